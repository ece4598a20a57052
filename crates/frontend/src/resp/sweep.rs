//! Whole namespaces: FLUSHDB, FLUSHALL, SAVE and BGSAVE.
//!
//! In: which namespaces and what to do with them. Out: one reply when the last has answered.

use super::errors;
use super::limits::DATABASES;
use super::operation::{Drive, Lane};
use super::reply::Reply;
use super::shared::Shared;
use crate::core_device::CoreDevice;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Command, Completion, NamespaceId, SubmitError};

/// What is done to a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Every key goes.
    Clear,
    /// Everything acknowledged is made durable.
    Flush,
    /// The same, in BGSAVE's words.
    FlushAside,
}

/// Something done to namespaces.
#[derive(Debug)]
pub(crate) struct Sweep {
    work: Work,
    next: u8,
    last: u8,
    outstanding: u8,
    failed: Option<Status>,
    scope: Scope,
}

/// Which namespaces were meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// This one.
    One,
    /// Every key space: what holds blocks is passed over.
    All,
}

impl Sweep {
    /// One namespace.
    pub(crate) fn one(namespace: NamespaceId, work: Work) -> Self {
        Self::range(namespace.0, namespace.0, work, Scope::One)
    }

    /// All of them.
    pub(crate) fn all(work: Work) -> Self {
        Self::range(1, u8::try_from(DATABASES).unwrap_or(u8::MAX), work, Scope::All)
    }

    fn range(first: u8, last: u8, work: Work, scope: Scope) -> Self {
        Self { work, next: first, last, outstanding: 0, failed: None, scope }
    }

    /// Submits what is due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, lane: &mut Lane<'_, S>) -> Drive {
        while self.next <= self.last && self.failed.is_none() {
            let command = match self.work {
                Work::Clear => Command::Clear,
                Work::Flush | Work::FlushAside => Command::Flush,
            };
            match lane.submit(u32::from(self.next), NamespaceId(self.next), command) {
                Ok(()) => {
                    self.next += 1;
                    self.outstanding += 1;
                }
                Err(SubmitError::Busy(_)) => return Drive::Busy,
                Err(SubmitError::Refused(Status::INVALID_NAMESPACE)) if self.scope == Scope::All => {
                    self.next += 1;
                }
                Err(SubmitError::Refused(status)) => self.failed = Some(status),
            }
        }
        if self.outstanding > 0 {
            return Drive::Waiting;
        }
        Drive::Done(match (self.failed, self.work) {
            (Some(status), _) => errors::from_status(status).into(),
            (None, Work::FlushAside) => Reply::Simple("Background saving started"),
            (None, _) => Reply::Ok,
        })
    }

    /// Takes in a completion.
    pub(crate) fn accept(&mut self, completion: &Completion, shared: &mut Shared) {
        self.outstanding -= 1;
        if !completion.status.is_success() {
            self.failed = Some(completion.status);
        } else if self.work != Work::Clear {
            shared.last_save = shared.wall;
        }
    }
}
