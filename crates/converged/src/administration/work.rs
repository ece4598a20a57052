//! One action under way: the commands it takes, and what its answer will be.
//!
//! In: an action. Out: its steps, one at a time; then its answer. Invariant: a step is handed out again until it was
//! accepted, and the first that fails ends the action with its status.

use super::AdminTicket;
use crate::command::{Command, NamespaceId};
use crate::interpreter::MissingKey;
use crate::namespace::sanitize_mark::{SanitizeMark, SanitizePhase};
use crate::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind};
use headwater_nvme::controller::admin::{NamespaceAction, NamespaceFormat};
use headwater_nvme::spec::identify::NSID_BROADCAST;
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;

/// A command of an action.
pub(crate) type Step = (NamespaceId, Command);

/// An action.
#[derive(Debug)]
pub(crate) struct Work {
    /// Who is to be answered; nobody any more for what was answered when it began.
    pub(crate) ticket: Option<AdminTicket>,
    pub(crate) action: NamespaceAction,
    pub(crate) steps: VecDeque<Step>,
    /// The first step is with the device.
    pub(crate) in_flight: bool,
    /// Of a sanitize operation whose blocks are erased, or cannot be: what it came to.
    pub(crate) ending: Option<SanitizePhase>,
}

/// Marks how far a sanitize operation is.
pub(crate) fn mark(phase: SanitizePhase, command: u32) -> Step {
    let change = NamespaceChange::Sanitize(SanitizeMark { phase, command });
    (NamespaceId::FIRST, Command::Namespace(change))
}

/// A namespace number of the device.
pub(crate) fn namespace_id(nsid: u32) -> Option<NamespaceId> {
    u8::try_from(nsid).ok().filter(|&number| number > 0).map(NamespaceId)
}

/// The kind of a format that an NVMe host asks for.
pub(crate) fn kind_of(format: NamespaceFormat) -> Result<NamespaceKind, Status> {
    match format {
        NamespaceFormat::KeyValue => Ok(NamespaceKind::Kv),
        NamespaceFormat::Block { index } => BlockFormat::ALL
            .get(usize::from(index))
            .map(|&format| NamespaceKind::Block(format))
            .ok_or(Status::INVALID_FORMAT),
    }
}

/// What an NVMe host calls the format of a kind.
pub(crate) fn format_of(kind: NamespaceKind) -> NamespaceFormat {
    match kind {
        NamespaceKind::Kv => NamespaceFormat::KeyValue,
        NamespaceKind::Block(BlockFormat::B512) => NamespaceFormat::Block { index: 0 },
        NamespaceKind::Block(BlockFormat::B4096) => NamespaceFormat::Block { index: 1 },
    }
}

/// The commands that an action takes. `existing` are the namespaces that there are, in order; `uuid` is what one to be
/// made is called.
pub(crate) fn steps(
    action: &NamespaceAction,
    existing: &[(NamespaceId, Namespace)],
    uuid: [u8; 16],
) -> Result<VecDeque<Step>, Status> {
    let named = |nsid: u32| -> Result<Vec<(NamespaceId, Namespace)>, Status> {
        if nsid == NSID_BROADCAST {
            return Ok(existing.to_vec());
        }
        let id = namespace_id(nsid).ok_or(Status::INVALID_NAMESPACE)?;
        let found = existing.iter().find(|(known, _)| *known == id).ok_or(Status::INVALID_FIELD)?;
        Ok(vec![*found])
    };
    let change = |id: NamespaceId, change: NamespaceChange| (id, Command::Namespace(change));
    Ok(match action {
        NamespaceAction::Create { format, size } => {
            let made = Namespace { kind: kind_of(*format)?, size: *size, uuid, ..Namespace::IMPLICIT };
            VecDeque::from([change(NamespaceId::FIRST, NamespaceChange::CreateDetached(made))])
        }
        NamespaceAction::Delete { nsid } => {
            let ids = named(*nsid)?.into_iter().map(|(id, _)| id);
            // The first is there for ever; that it was deleted shows in that nobody has it.
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
        NamespaceAction::MissingKey { nsid, is_error } => {
            let told = if *is_error { MissingKey::Told } else { MissingKey::Ignored };
            let key_spaces =
                named(*nsid)?.into_iter().filter(|(_, namespace)| namespace.kind == NamespaceKind::Kv);
            key_spaces.map(|(id, _)| change(id, NamespaceChange::MissingKey(told))).collect()
        }
        NamespaceAction::Sanitize { command } => {
            let clears = existing.iter().map(|(id, _)| (*id, Command::Clear));
            [mark(SanitizePhase::Running, *command)].into_iter().chain(clears).collect()
        }
        NamespaceAction::Attach { nsid, controllers } => named(*nsid)?
            .into_iter()
            .map(|(id, _)| change(id, NamespaceChange::Attach(controllers.clone())))
            .collect(),
        NamespaceAction::Detach { nsid, controllers } => named(*nsid)?
            .into_iter()
            .map(|(id, _)| change(id, NamespaceChange::Detach(controllers.clone())))
            .collect(),
        NamespaceAction::LeaveSanitizeFailure => VecDeque::from([mark(SanitizePhase::Never, 0)]),
    })
}
