//! The administrative state of the device: its identity, controllers, actions and sanitize operation.
//!
//! Input: `NamespaceAction`s of controllers, under tickets of their front ends. Output: commands to the device, one
//! after another, and one [`AdminCompletion`] an action. The namespace table, not this state, holds which namespaces are
//! attached to which controllers. Invariant: an action is answered exactly once, even if its controller is gone.
//!
//! [`SsdDevice::administer`](crate::engine::SsdDevice::administer) takes actions, and the device itself is the
//! [`NvmSubsystem`](headwater_nvme::controller::NvmSubsystem) that a controller queries.
//!
//! # What this does not do
//! The controllers live as long as the process.

mod actions;
pub(super) mod host_traffic;
mod identity;

pub use identity::{identity, namespace_uuid};

use crate::command::{FrontEndId, NamespaceId, Sequence, SsdCommand};
use crate::namespace::NamespaceChange;
use crate::namespace::sanitize::{SanitizeMark, SanitizePhase};
use headwater_nvme::controller::AdminCompletion;
use headwater_nvme::controller::admin::{NamespaceAction, SanitizeState, SanitizeStatus, SubsystemIdentity};
use std::collections::{BTreeSet, VecDeque};

/// The front end number under which commands of actions are submitted; no real front end has it.
pub const ADMINISTRATION_FRONT_END: FrontEndId = FrontEndId(255);
/// Maximum of queued actions; one more is refused.
pub const ACTIONS_MAX: usize = 64;
/// Maximum of controllers of the subsystem.
pub const CONTROLLERS_MAX: usize = 1_024;

/// The front end and token under which an action is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminTicket {
    /// The front end.
    pub front_end: FrontEndId,
    /// The front end's token for the action.
    pub token: u64,
}

/// A sanitize operation whose clears are done and whose old blocks are being erased.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SanitizePurge {
    /// The last sequence whose data must be erased from the medium.
    pub(crate) up_to: Sequence,
    /// Blocks to erase when it began.
    pub(crate) initial_blocks: usize,
}

/// The state of the subsystem that belongs to no single namespace.
#[derive(Debug)]
pub(crate) struct AdminState {
    pub(crate) identity: SubsystemIdentity,
    pub(crate) controllers: BTreeSet<u16>,
    pub(crate) sanitize: SanitizeStatus,
    pub(crate) purge: Option<SanitizePurge>,
    /// Client bytes written up to the end of the last sanitize operation.
    pub(crate) client_bytes_at_sanitize: u64,
    pub(crate) discovery_log: Vec<u8>,
    /// Actions in order of arrival; the first is being carried out.
    pub(crate) actions: VecDeque<PendingAction>,
    completions: VecDeque<(AdminTicket, AdminCompletion)>,
    changes: u64,
}

impl Default for AdminState {
    fn default() -> Self {
        Self {
            identity: identity([0; 16]),
            controllers: BTreeSet::new(),
            sanitize: SanitizeStatus::default(),
            purge: None,
            client_bytes_at_sanitize: 0,
            discovery_log: Vec::new(),
            actions: VecDeque::new(),
            completions: VecDeque::new(),
            changes: 0,
        }
    }
}

impl AdminState {
    /// Counts a change of what controllers compare.
    pub(crate) fn count_change(&mut self) {
        self.changes += 1;
    }

    /// Returns the number of changes.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Enqueues the answer to an action.
    pub(crate) fn complete(&mut self, ticket: AdminTicket, answer: AdminCompletion) {
        self.completions.push_back((ticket, answer));
    }

    /// Takes the next answer for a front end, with its token.
    pub(crate) fn take_completion(&mut self, front_end: FrontEndId) -> Option<(u64, AdminCompletion)> {
        let at = self.completions.iter().position(|(ticket, _)| ticket.front_end == front_end)?;
        self.completions.remove(at).map(|(ticket, answer)| (ticket.token, answer))
    }

    /// Sets the state of the sanitize operation.
    pub(crate) fn set_sanitize_state(&mut self, state: SanitizeState) {
        self.sanitize.state = state;
        self.count_change();
    }
}

/// A command of an action, with its namespace.
pub(crate) type AdminStep = (NamespaceId, SsdCommand);

/// A queued action with its remaining steps.
#[derive(Debug)]
pub(crate) struct PendingAction {
    /// Ticket of the answer; `None` once it is answered, or if no controller requested the action.
    pub(crate) ticket: Option<AdminTicket>,
    pub(crate) action: NamespaceAction,
    pub(crate) steps: VecDeque<AdminStep>,
    /// True while the first step is in flight.
    pub(crate) in_flight: bool,
    /// Final phase of a sanitize operation whose blocks are erased, or cannot be.
    pub(crate) final_phase: Option<SanitizePhase>,
}

/// Returns the step that records the phase of a sanitize operation in the namespace table.
pub(crate) fn sanitize_mark_step(phase: SanitizePhase, command: u32) -> AdminStep {
    let change = NamespaceChange::Sanitize(SanitizeMark { phase, command });
    (NamespaceId::FIRST, SsdCommand::Namespace(change))
}

/// Returns the steps of a sanitize operation: its mark, then a clear of each namespace.
pub(crate) fn sanitize_steps(
    namespaces: impl Iterator<Item = NamespaceId>,
    command: u32,
) -> VecDeque<AdminStep> {
    let clears = namespaces.map(|id| (id, SsdCommand::Clear));
    [sanitize_mark_step(SanitizePhase::Running, command)].into_iter().chain(clears).collect()
}
