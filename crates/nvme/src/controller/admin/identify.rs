//! Identify (NVMe Base 2.0 section 5.17; KV 1.0d section 4.1.5).
//!
//! Input: an entry. Output: 4,096 bytes, or the status that refuses the entry. A namespace that is not attached here
//! reads as zeroes; an NSID out of range is refused.

mod controller;
mod namespace;

pub(super) use namespace::ANA_GROUP;

use super::{Controller, ControllerKind, NamespaceFacts, Subsystem};
use crate::spec::admin::IdentifyDwords;
use crate::spec::command::SubmissionEntry;
use crate::spec::identify::{
    CONTROLLER_SELF, CommandSet, DescriptorType, DescriptorWriter, IDENTIFY_LENGTH, NSID_BROADCAST,
    NvmController, View, controller_list, namespace_list,
};
use crate::spec::status::Status;
use zerocopy::{FromZeros, IntoBytes};

/// The first of the two NSIDs that a list cannot start after.
const NSID_LIST_LIMIT: u32 = 0xFFFF_FFFE;
/// I/O Command Set Vector: NVM and Key Value.
const COMMAND_SETS: u64 = 1 << CommandSet::Nvm.number() | 1 << CommandSet::KeyValue.number();

/// The namespaces that a view covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Among {
    /// The namespaces attached to this controller.
    Active,
    /// All allocated namespaces.
    Allocated,
}

impl Controller {
    pub(super) fn identify(
        &self,
        entry: &SubmissionEntry,
        subsystem: &impl Subsystem,
    ) -> Result<Vec<u8>, Status> {
        let fields = IdentifyDwords::of(entry);
        let view = View::from_number(fields.view).ok_or(Status::INVALID_FIELD)?;
        if self.config.kind == ControllerKind::Discovery && view != View::Controller {
            return Err(Status::INVALID_FIELD);
        }
        let nsid = entry.namespace.get();
        let set = CommandSet::from_number(fields.command_set).ok_or(Status::INVALID_COMMAND_SET);
        match view {
            View::Controller => Ok(controller::identify_controller(&self.config, subsystem)),
            View::Namespace => self.describe(Among::Active, nsid, CommandSet::Nvm, subsystem),
            View::AllocatedNamespace => self.describe(Among::Allocated, nsid, CommandSet::Nvm, subsystem),
            View::CommandSetNamespace => self.describe_by_set(Among::Active, nsid, set?, subsystem),
            View::CommandSetAllocatedNamespace => {
                self.describe_by_set(Among::Allocated, nsid, set?, subsystem)
            }
            View::IndependentNamespace => {
                let facts = self.active_namespace(nsid, subsystem)?;
                Ok(facts.map_or_else(zeroes, |_| namespace::independent(self.config.sharing)))
            }
            View::ActiveNamespaces => self.list(Among::Active, nsid, None, subsystem),
            View::AllocatedNamespaces => self.list(Among::Allocated, nsid, None, subsystem),
            View::CommandSetActiveNamespaces => self.list(Among::Active, nsid, Some(set?), subsystem),
            View::CommandSetAllocatedNamespaces => self.list(Among::Allocated, nsid, Some(set?), subsystem),
            View::Descriptors => {
                let facts = self.active_namespace(nsid, subsystem)?.ok_or(Status::INVALID_NAMESPACE)?;
                Ok(descriptors(&facts))
            }
            View::CommandSetController => match set? {
                CommandSet::Nvm => Ok(NvmController::new_zeroed().as_bytes().to_vec()),
                CommandSet::KeyValue => Ok(zeroes()),
            },
            View::AttachedControllers => {
                self.find(Among::Allocated, nsid, subsystem)?;
                let controllers = subsystem.controllers();
                let attached = controllers.into_iter().filter(|&id| subsystem.is_attached(nsid, id));
                Ok(controller_list(fields.controller, attached))
            }
            View::Controllers => Ok(controller_list(fields.controller, subsystem.controllers().into_iter())),
            View::CommandSetCombinations => {
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
        subsystem: &impl Subsystem,
    ) -> Result<Option<NamespaceFacts>, Status> {
        self.find(Among::Active, nsid, subsystem)
    }

    fn find(
        &self,
        among: Among,
        nsid: u32,
        subsystem: &impl Subsystem,
    ) -> Result<Option<NamespaceFacts>, Status> {
        if !(1..=subsystem.namespaces_max()).contains(&nsid) {
            return Err(Status::INVALID_NAMESPACE);
        }
        Ok(self.is_among(among, nsid, subsystem).then(|| subsystem.namespace(nsid)).flatten())
    }

    /// Returns true if the view covers the namespace. A host that selected the NVM command set alone (CC.CSS) sees no
    /// key spaces.
    fn is_among(&self, among: Among, nsid: u32, subsystem: &impl Subsystem) -> bool {
        let seen =
            |facts: NamespaceFacts| facts.format.command_set() == CommandSet::Nvm || self.has_key_value();
        match among {
            Among::Allocated => true,
            Among::Active => {
                subsystem.is_attached(nsid, self.config.id) && subsystem.namespace(nsid).is_some_and(seen)
            }
        }
    }

    /// Builds the page of CNS 00h and 11h: block namespaces only.
    fn describe(
        &self,
        among: Among,
        nsid: u32,
        set: CommandSet,
        subsystem: &impl Subsystem,
    ) -> Result<Vec<u8>, Status> {
        if nsid == NSID_BROADCAST {
            return Ok(namespace::capabilities(self, set, subsystem));
        }
        match self.find(among, nsid, subsystem)? {
            None => Ok(zeroes()),
            Some(facts) if facts.format.command_set() == set => Ok(namespace::facts(self, &facts, subsystem)),
            Some(_) => Err(Status::INVALID_COMMAND_SET),
        }
    }

    /// Builds the page of CNS 05h and 1Bh. For the NVM command set the page is zero: no protection information and no
    /// extended formats.
    fn describe_by_set(
        &self,
        among: Among,
        nsid: u32,
        set: CommandSet,
        subsystem: &impl Subsystem,
    ) -> Result<Vec<u8>, Status> {
        let page = self.describe(among, nsid, set, subsystem)?;
        Ok(if set == CommandSet::Nvm { zeroes() } else { page })
    }

    fn list(
        &self,
        among: Among,
        after: u32,
        set: Option<CommandSet>,
        subsystem: &impl Subsystem,
    ) -> Result<Vec<u8>, Status> {
        if after >= NSID_LIST_LIMIT {
            return Err(Status::INVALID_NAMESPACE);
        }
        let listed = (1..=subsystem.namespaces_max()).filter(|&nsid| {
            self.is_among(among, nsid, subsystem)
                && subsystem
                    .namespace(nsid)
                    .is_some_and(|facts| set.is_none_or(|set| facts.format.command_set() == set))
        });
        Ok(namespace_list(after, listed))
    }
}

fn descriptors(facts: &NamespaceFacts) -> Vec<u8> {
    let mut writer = DescriptorWriter::default();
    if facts.uuid != [0; 16] {
        writer = writer.with(DescriptorType::Nguid, &facts.uuid).with(DescriptorType::Uuid, &facts.uuid);
    }
    writer.with(DescriptorType::CommandSet, &[facts.format.command_set().number()]).finish()
}

fn zeroes() -> Vec<u8> {
    vec![0; IDENTIFY_LENGTH]
}
