//! Translates an action of a controller into device commands.
//!
//! Input: an action, and the namespaces that exist. Output: its steps in order, or the status with which it is refused.

use crate::command::{NamespaceId, SsdCommand};
use crate::engine::administration::{AdminStep, sanitize_mark_step, sanitize_steps};
use crate::namespace::sanitize::SanitizePhase;
use crate::namespace::{BlockFormat, MissingKey, Namespace, NamespaceChange, NamespaceKind};
use headwater_nvme::controller::admin::{NamespaceAction, NamespaceFormat};
use headwater_nvme::spec::identify::NSID_BROADCAST;
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;

/// Returns the device's namespace number of an NSID, if it has one.
pub(crate) fn namespace_id(nsid: u32) -> Option<NamespaceId> {
    u8::try_from(nsid).ok().filter(|&number| number > 0).map(NamespaceId)
}

/// Returns the namespace kind of a format that an NVMe host requests.
pub(crate) fn kind_of(format: NamespaceFormat) -> Result<NamespaceKind, Status> {
    match format {
        NamespaceFormat::KeyValue => Ok(NamespaceKind::Kv),
        NamespaceFormat::Block { index } => BlockFormat::ALL
            .get(usize::from(index))
            .map(|&format| NamespaceKind::Block(format))
            .ok_or(Status::INVALID_FORMAT),
    }
}

/// Returns the NVMe format of a namespace kind.
pub(crate) fn format_of(kind: NamespaceKind) -> NamespaceFormat {
    match kind {
        NamespaceKind::Kv => NamespaceFormat::KeyValue,
        NamespaceKind::Block(BlockFormat::B512) => NamespaceFormat::Block { index: 0 },
        NamespaceKind::Block(BlockFormat::B4096) => NamespaceFormat::Block { index: 1 },
    }
}

/// Returns the steps of an action. `existing` are all namespaces in order; `uuid` is for a namespace to be created.
pub(crate) fn steps(
    action: &NamespaceAction,
    existing: &[(NamespaceId, Namespace)],
    uuid: [u8; 16],
) -> Result<VecDeque<AdminStep>, Status> {
    let named = |nsid: u32| -> Result<Vec<(NamespaceId, Namespace)>, Status> {
        if nsid == NSID_BROADCAST {
            return Ok(existing.to_vec());
        }
        let id = namespace_id(nsid).ok_or(Status::INVALID_NAMESPACE)?;
        let found = existing.iter().find(|(known, _)| *known == id).ok_or(Status::INVALID_FIELD)?;
        Ok(vec![*found])
    };
    let change = |id: NamespaceId, change: NamespaceChange| (id, SsdCommand::Namespace(change));
    Ok(match action {
        NamespaceAction::Create { format, size } => {
            let made = Namespace { kind: kind_of(*format)?, size: *size, uuid, ..Namespace::IMPLICIT };
            VecDeque::from([change(NamespaceId::FIRST, NamespaceChange::CreateDetached(made))])
        }
        NamespaceAction::Delete { nsid } => {
            let ids = named(*nsid)?.into_iter().map(|(id, _)| id);
            // The first namespace always exists; deleting it also detaches it from all controllers.
            let hidden = |id: NamespaceId| (id == NamespaceId::FIRST).then_some(NamespaceChange::DetachAll);
            let steps = ids.flat_map(|id| {
                let both = [Some(NamespaceChange::Delete), hidden(id)];
                both.into_iter().flatten().map(move |step| change(id, step))
            });
            steps.collect()
        }
        NamespaceAction::Format { nsid, index } => {
            let formats = named(*nsid)?.into_iter().map(|(id, namespace)| {
                let format = match namespace.kind {
                    NamespaceKind::Kv => NamespaceFormat::KeyValue,
                    NamespaceKind::Block(_) => NamespaceFormat::Block { index: *index },
                };
                Ok(change(id, NamespaceChange::Format(kind_of(format)?)))
            });
            formats.collect::<Result<_, Status>>()?
        }
        NamespaceAction::SetMissingKeyError { nsid, is_error } => {
            let missing_key = if *is_error { MissingKey::Reported } else { MissingKey::Ignored };
            let key_spaces =
                named(*nsid)?.into_iter().filter(|(_, namespace)| namespace.kind == NamespaceKind::Kv);
            key_spaces.map(|(id, _)| change(id, NamespaceChange::MissingKey(missing_key))).collect()
        }
        NamespaceAction::Sanitize { command } => sanitize_steps(existing.iter().map(|(id, _)| *id), *command),
        NamespaceAction::Attach { nsid, controllers } => named(*nsid)?
            .into_iter()
            .map(|(id, _)| change(id, NamespaceChange::Attach(controllers.clone())))
            .collect(),
        NamespaceAction::Detach { nsid, controllers } => named(*nsid)?
            .into_iter()
            .map(|(id, _)| change(id, NamespaceChange::Detach(controllers.clone())))
            .collect(),
        NamespaceAction::LeaveSanitizeFailure => {
            VecDeque::from([sanitize_mark_step(SanitizePhase::Never, 0)])
        }
    })
}
