//! What hosts that administer the device see of it, and the changes they ask for.
//!
//! In: `NamespaceAction`s of controllers, under tickets of their faces. Out: commands to the device, one after another,
//! and for each action one [`AdminAnswer`]. Also kept here: who the subsystem is, and which controllers it has; which
//! namespaces are attached to them says the table of namespaces. Invariant: an action is answered exactly once, whatever becomes of its controller.
//!
//! [`Device::administer`](crate::device::Device::administer) takes actions, and the device itself is the
//! [`Subsystem`](headwater_nvme::controller::Subsystem) that a controller asks.
//!
//! # What this does not do
//! The controllers live as long as the process.

mod identity;
mod traffic;
mod work;

pub use identity::{identity, namespace_uuid};

use crate::command::{FaceId, Sequence};
use headwater_nvme::controller::AdminAnswer;
use headwater_nvme::controller::admin::{Identity, SanitizeFacts, SanitizeState};
use std::collections::{BTreeSet, VecDeque};
use traffic::Traffic;
pub(crate) use work::{Step, Work, format_of, mark, namespace_id, steps};

/// Who submits the commands of actions: no face has this number.
pub const ADMINISTRATION_FACE: FaceId = FaceId(255);
/// Actions that wait at once; one more is refused.
pub const ACTIONS_MAX: usize = 64;
/// Controllers of the subsystem.
pub const CONTROLLERS_MAX: usize = 1_024;

/// Who asked for an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminTicket {
    /// The face.
    pub face: FaceId,
    /// The face's name for it.
    pub token: u64,
}

/// A sanitize operation that goes on: its clears are done, old blocks are being erased.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purge {
    /// Nothing that was written up to this may stay on the medium.
    pub(crate) up_to: Sequence,
    /// Blocks to go when it began.
    pub(crate) blocks: usize,
}

/// The state of the subsystem that is no namespace's.
#[derive(Debug)]
pub(crate) struct Administration {
    pub(crate) identity: Identity,
    pub(crate) controllers: BTreeSet<u16>,
    pub(crate) sanitize: SanitizeFacts,
    pub(crate) purge: Option<Purge>,
    /// Client bytes written when the last sanitize operation was done.
    pub(crate) sanitized_at: u64,
    pub(crate) traffic: Traffic,
    pub(crate) discovery_log: Vec<u8>,
    /// In the order in which they came; the first is being carried out.
    pub(crate) works: VecDeque<Work>,
    answers: VecDeque<(AdminTicket, AdminAnswer)>,
    changes: u64,
}

impl Default for Administration {
    fn default() -> Self {
        Self {
            identity: identity([0; 16]),
            controllers: BTreeSet::new(),
            sanitize: SanitizeFacts::default(),
            purge: None,
            sanitized_at: 0,
            traffic: Traffic::default(),
            discovery_log: Vec::new(),
            works: VecDeque::new(),
            answers: VecDeque::new(),
            changes: 0,
        }
    }
}

impl Administration {
    /// Something that controllers compare has changed.
    pub(crate) fn touch(&mut self) {
        self.changes += 1;
    }

    /// How often that was so.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// An action is done, or has begun and is answered now.
    pub(crate) fn answer(&mut self, ticket: AdminTicket, answer: AdminAnswer) {
        self.answers.push_back((ticket, answer));
    }

    /// The next answer for a face.
    pub(crate) fn take_answer(&mut self, face: FaceId) -> Option<(u64, AdminAnswer)> {
        let place = self.answers.iter().position(|(ticket, _)| ticket.face == face)?;
        self.answers.remove(place).map(|(ticket, answer)| (ticket.token, answer))
    }

    /// A sanitize operation is in a new state.
    pub(crate) fn sanitize_is(&mut self, state: SanitizeState) {
        self.sanitize.state = state;
        self.touch();
    }
}
