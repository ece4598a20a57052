//! Identify (NVMe Base 2.0 section 5.17; KV 1.3 section 4.1.5).
//!
//! Input: an entry. Output: 4,096 bytes, or the status that refuses the entry. A namespace that is not attached here
//! reads as zeroes; an NSID out of range is refused.

mod controller;
mod namespace;

pub(super) use namespace::ANA_GROUP;

use super::{ControllerKind, DeviceController, NamespaceProperties, NvmSubsystem};
use crate::spec::admin::IdentifyDwords;
use crate::spec::command::SubmissionEntry;
use crate::spec::identify::{
    CONTROLLER_SELF, CommandSet, DescriptorKind, DescriptorWriter, IDENTIFY_LENGTH, IdentifyView,
    NSID_BROADCAST, NvmController, controller_list, namespace_list,
};
use crate::spec::status::Status;
use zerocopy::{FromZeros, IntoBytes};

/// The first of the two NSIDs that a list cannot start after.
const NSID_LIST_LIMIT: u32 = 0xFFFF_FFFE;
/// I/O Command Set Vector: NVM and Key Value.
const COMMAND_SETS: u64 = 1 << CommandSet::Nvm.number() | 1 << CommandSet::KeyValue.number();

/// The namespaces that a view covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamespaceScope {
    /// The namespaces attached to this controller.
    Active,
    /// All allocated namespaces.
    Allocated,
}

impl DeviceController {
    pub(super) fn identify(
        &self,
        entry: &SubmissionEntry,
        subsystem: &impl NvmSubsystem,
    ) -> Result<Vec<u8>, Status> {
        let fields = IdentifyDwords::from_entry(entry);
        let view = IdentifyView::from_number(fields.view).ok_or(Status::INVALID_FIELD)?;
        if self.config.kind == ControllerKind::Discovery && view != IdentifyView::Controller {
            return Err(Status::INVALID_FIELD);
        }
        let nsid = entry.namespace.get();
        let set = CommandSet::from_number(fields.command_set).ok_or(Status::INVALID_COMMAND_SET);
        match view {
            IdentifyView::Controller => Ok(controller::identify_controller(&self.config, subsystem)),
            IdentifyView::Namespace => self.describe_blocks(NamespaceScope::Active, nsid, subsystem),
            IdentifyView::AllocatedNamespace => {
                self.describe_blocks(NamespaceScope::Allocated, nsid, subsystem)
            }
            IdentifyView::CommandSetNamespace => {
                self.describe_by_set(NamespaceScope::Active, nsid, set?, subsystem)
            }
            IdentifyView::CommandSetAllocatedNamespace => {
                self.describe_by_set(NamespaceScope::Allocated, nsid, set?, subsystem)
            }
            IdentifyView::NamespaceFormat => {
                namespace::format_page(self, CommandSet::Nvm, fields.format, subsystem)
            }
            IdentifyView::CommandSetFormat => {
                let set = set?;
                let page = namespace::format_page(self, set, fields.format, subsystem)?;
                Ok(if set == CommandSet::Nvm { zeroes() } else { page })
            }
            IdentifyView::IndependentNamespace => {
                let facts = self.active_namespace(nsid, subsystem)?;
                Ok(facts.map_or_else(zeroes, |_| namespace::independent(self.config.multipath)))
            }
            IdentifyView::ActiveNamespaces => self.list(NamespaceScope::Active, nsid, None, subsystem),
            IdentifyView::AllocatedNamespaces => self.list(NamespaceScope::Allocated, nsid, None, subsystem),
            IdentifyView::CommandSetActiveNamespaces => {
                self.list(NamespaceScope::Active, nsid, Some(set?), subsystem)
            }
            IdentifyView::CommandSetAllocatedNamespaces => {
                self.list(NamespaceScope::Allocated, nsid, Some(set?), subsystem)
            }
            IdentifyView::Descriptors => {
                let facts = self.active_namespace(nsid, subsystem)?.ok_or(Status::INVALID_NAMESPACE)?;
                Ok(descriptors(&facts))
            }
            IdentifyView::CommandSetController => match set? {
                CommandSet::Nvm => Ok(NvmController::new_zeroed().as_bytes().to_vec()),
                CommandSet::KeyValue => Ok(controller::key_value()),
            },
            IdentifyView::AttachedControllers => {
                self.find(NamespaceScope::Allocated, nsid, subsystem)?;
                let controllers = subsystem.controllers();
                let attached = controllers.into_iter().filter(|&id| subsystem.is_attached(nsid, id));
                Ok(controller_list(fields.controller, attached))
            }
            IdentifyView::Controllers => {
                Ok(controller_list(fields.controller, subsystem.controllers().into_iter()))
            }
            IdentifyView::CommandSetCombinations => {
                let id = fields.controller;
                if id != CONTROLLER_SELF && !subsystem.controllers().contains(&id) {
                    return Err(Status::INVALID_FIELD);
                }
                let mut page = COMMAND_SETS.to_le_bytes().to_vec();
                page.resize(IDENTIFY_LENGTH, 0);
                Ok(page)
            }
        }
    }

    /// Returns a namespace attached to this controller, or `None` if the NSID is in range but no such namespace is
    /// attached.
    pub(super) fn active_namespace(
        &self,
        nsid: u32,
        subsystem: &impl NvmSubsystem,
    ) -> Result<Option<NamespaceProperties>, Status> {
        self.find(NamespaceScope::Active, nsid, subsystem)
    }

    fn find(
        &self,
        scope: NamespaceScope,
        nsid: u32,
        subsystem: &impl NvmSubsystem,
    ) -> Result<Option<NamespaceProperties>, Status> {
        if !(1..=subsystem.namespaces_max()).contains(&nsid) {
            return Err(Status::INVALID_NAMESPACE);
        }
        Ok(self.is_in_scope(scope, nsid, subsystem).then(|| subsystem.namespace(nsid)).flatten())
    }

    /// Returns true if the view covers the namespace. A host that selected the NVM command set alone (CC.CSS) sees no
    /// key spaces.
    fn is_in_scope(&self, scope: NamespaceScope, nsid: u32, subsystem: &impl NvmSubsystem) -> bool {
        let seen = |facts: NamespaceProperties| {
            facts.format.command_set() == CommandSet::Nvm || self.has_key_value()
        };
        match scope {
            NamespaceScope::Allocated => true,
            NamespaceScope::Active => {
                subsystem.is_attached(nsid, self.config.id) && subsystem.namespace(nsid).is_some_and(seen)
            }
        }
    }

    /// Builds the page of CNS 00h and 11h. It is zero for a key space: hosts that know nothing of command sets skip it then,
    /// and would give up the whole controller for an error.
    fn describe_blocks(
        &self,
        scope: NamespaceScope,
        nsid: u32,
        subsystem: &impl NvmSubsystem,
    ) -> Result<Vec<u8>, Status> {
        match self.describe(scope, nsid, CommandSet::Nvm, subsystem) {
            Err(Status::INVALID_COMMAND_SET) => Ok(zeroes()),
            described => described,
        }
    }

    /// Builds the page of a namespace, if it has this command set.
    fn describe(
        &self,
        scope: NamespaceScope,
        nsid: u32,
        set: CommandSet,
        subsystem: &impl NvmSubsystem,
    ) -> Result<Vec<u8>, Status> {
        if nsid == NSID_BROADCAST {
            return Ok(namespace::capabilities(self, set, subsystem));
        }
        match self.find(scope, nsid, subsystem)? {
            None => Ok(zeroes()),
            Some(facts) if facts.format.command_set() == set => {
                Ok(namespace::namespace_page(self, &facts, subsystem))
            }
            Some(_) => Err(Status::INVALID_COMMAND_SET),
        }
    }

    /// Builds the page of CNS 05h and 1Bh. For the NVM command set the page is zero: no protection information and no
    /// extended formats.
    fn describe_by_set(
        &self,
        scope: NamespaceScope,
        nsid: u32,
        set: CommandSet,
        subsystem: &impl NvmSubsystem,
    ) -> Result<Vec<u8>, Status> {
        let page = self.describe(scope, nsid, set, subsystem)?;
        Ok(if set == CommandSet::Nvm { zeroes() } else { page })
    }

    fn list(
        &self,
        scope: NamespaceScope,
        after: u32,
        set: Option<CommandSet>,
        subsystem: &impl NvmSubsystem,
    ) -> Result<Vec<u8>, Status> {
        if after >= NSID_LIST_LIMIT {
            return Err(Status::INVALID_NAMESPACE);
        }
        let listed = (1..=subsystem.namespaces_max()).filter(|&nsid| {
            self.is_in_scope(scope, nsid, subsystem)
                && subsystem
                    .namespace(nsid)
                    .is_some_and(|facts| set.is_none_or(|set| facts.format.command_set() == set))
        });
        Ok(namespace_list(after, listed))
    }
}

fn descriptors(facts: &NamespaceProperties) -> Vec<u8> {
    let mut writer = DescriptorWriter::default();
    if facts.uuid != [0; 16] {
        writer = writer.with(DescriptorKind::Nguid, &facts.uuid).with(DescriptorKind::Uuid, &facts.uuid);
    }
    writer.with(DescriptorKind::CommandSet, &[facts.format.command_set().number()]).finish()
}

fn zeroes() -> Vec<u8> {
    vec![0; IDENTIFY_LENGTH]
}
