//! Administration of the device by its NVMe controllers.
//!
//! Input: `NamespaceAction`s of controllers, under tickets of their front ends. Output: one [`AdminCompletion`] an action.
//! [`SsdDevice::administer`] turns an action into steps, which the engine carries out; the device itself is the
//! [`NvmSubsystem`](headwater_nvme::controller::NvmSubsystem) that a controller queries. Invariant: an action is answered
//! exactly once, even if its controller is gone.

mod steps;
mod subsystem;

use crate::command::{FrontEndId, NamespaceId};
use crate::engine::SsdDevice;
use crate::engine::administration::{
    ACTIONS_MAX, AdminStep, AdminTicket, CONTROLLERS_MAX, PendingAction, namespace_uuid,
};
use crate::log::record::{LBA_BYTES, UNIT_BYTES, record_units};
use crate::media::Media;
use headwater_nvme::controller::AdminCompletion;
use headwater_nvme::controller::admin::{NamespaceAction, NamespaceFormat, SanitizeState, SubsystemIdentity};
use headwater_nvme::spec::identify::LBA_FORMAT_SHIFTS;
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;
use steps::{format_of, steps};

impl<M: Media> SsdDevice<M> {
    /// Sets the identity of the subsystem; until then it is the identity of a zero UUID.
    pub fn set_identity(&mut self, identity: SubsystemIdentity) {
        self.administration_mut().identity = identity;
    }

    /// Sets the page that discovery controllers return for Get Log Page 70h.
    pub fn set_discovery_log(&mut self, page: Vec<u8>) {
        self.administration_mut().discovery_log = page;
    }

    /// Adds a controller. Returns false if its number is taken, or there are too many controllers.
    #[must_use]
    pub fn add_controller(&mut self, id: u16) -> bool {
        let controllers = &mut self.administration_mut().controllers;
        controllers.len() < CONTROLLERS_MAX && controllers.insert(id)
    }

    /// Removes a controller. Its queued actions are still carried out.
    pub fn remove_controller(&mut self, id: u16) {
        if self.administration_mut().controllers.remove(&id) {
            self.ftl_mut().forget_controller(id);
            self.administration_mut().count_change();
        }
    }

    /// Returns true while a sanitize operation runs: until it is done, I/O commands of NVMe hosts are refused
    /// ([`Status::SANITIZE_IN_PROGRESS`]).
    #[must_use]
    pub fn is_sanitizing(&self) -> bool {
        matches!(self.administration().sanitize.state, SanitizeState::Running(_))
    }

    /// Returns true if a namespace is attached to a controller, so that its I/O commands may name it.
    #[must_use]
    pub fn is_attached(&self, namespace: NamespaceId, controller: u16) -> bool {
        self.ftl().namespace_table().is_attached(namespace, controller)
    }

    /// Enqueues an action. Exactly one answer follows, by [`next_admin_completion`](Self::next_admin_completion).
    pub fn administer(&mut self, ticket: AdminTicket, action: NamespaceAction) {
        let full = self.administration().actions.len() >= ACTIONS_MAX;
        let planned = if full { Err(Status::INTERNAL_ERROR) } else { self.plan_action(&action) };
        let steps = match planned {
            Ok(steps) => steps,
            Err(status) => {
                return self.administration_mut().complete(ticket, AdminCompletion::with_status(status));
            }
        };
        let work = PendingAction { ticket: Some(ticket), action, steps, in_flight: false, final_phase: None };
        if let NamespaceAction::Sanitize { command } = work.action {
            let sanitize = &mut self.administration_mut().sanitize;
            sanitize.command = command;
            sanitize.started += 1;
            self.administration_mut().set_sanitize_state(SanitizeState::Running(0));
        }
        self.administration_mut().actions.push_back(work);
    }

    /// Takes the next answer for a front end, with the token of its ticket.
    pub fn next_admin_completion(&mut self, front_end: FrontEndId) -> Option<(u64, AdminCompletion)> {
        self.administration_mut().take_completion(front_end)
    }

    fn plan_action(&self, action: &NamespaceAction) -> Result<VecDeque<AdminStep>, Status> {
        if let NamespaceAction::Create { format, size } = action
            && self.record_bytes_for(*format, *size) > self.unallocated_bytes()
        {
            return Err(Status::NAMESPACE_INSUFFICIENT_CAPACITY);
        }
        let uuid = namespace_uuid(self.administration().identity.uuid, 0, self.ftl().last_sequence().0 + 1);
        let existing: Vec<_> = self.existing_namespaces().collect();
        steps(action, &existing, uuid)
    }

    /// Returns the bytes of records of a full namespace.
    fn record_bytes_for(&self, format: NamespaceFormat, size: u64) -> u64 {
        match format {
            NamespaceFormat::KeyValue => size,
            NamespaceFormat::Block { index } => {
                let shift = LBA_FORMAT_SHIFTS.get(usize::from(index)).copied().unwrap_or(0);
                let record = u64::from(record_units(LBA_BYTES, 1 << shift)) * UNIT_BYTES as u64;
                size.saturating_mul(record)
            }
        }
    }

    /// Returns the bytes of capacity that are allocated to no namespace.
    pub(super) fn unallocated_bytes(&self) -> u64 {
        let promised = self.existing_namespaces().map(|(_, namespace)| {
            let format = format_of(namespace.kind);
            self.record_bytes_for(format, namespace.size)
        });
        self.ftl().capacity_with(0).saturating_sub(promised.fold(0, u64::saturating_add))
    }
}
