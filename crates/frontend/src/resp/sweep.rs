//! The commands on whole namespaces: FLUSHDB, FLUSHALL, SAVE and BGSAVE.
//!
//! Input: a range of namespaces and the command for each. Output: one reply after the last completion.

use super::errors;
use super::limits::DATABASES;
use super::operation_step::{DriveResult, OperationContext};
use super::reply::RespReply;
use super::state::RespState;
use crate::core_device::CoreDevice;
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{NamespaceId, SsdCommand, SsdCompletion, SubmitError};

/// The command for each namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SweepCommand {
    /// Deletes every key.
    Clear,
    /// Makes every acknowledged write durable.
    Flush,
    /// The same, with BGSAVE's reply.
    BackgroundSave,
}

/// A clear or flush of whole namespaces.
#[derive(Debug)]
pub(crate) struct NamespaceSweep {
    work: SweepCommand,
    next: u8,
    last: u8,
    outstanding: u8,
    failed: Option<Status>,
    scope: SweepScope,
}

/// The namespaces that the command addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SweepScope {
    /// One namespace.
    One,
    /// Every key-value namespace; block namespaces are skipped.
    All,
}

impl NamespaceSweep {
    /// Creates a command on one namespace.
    pub(crate) fn one(namespace: NamespaceId, work: SweepCommand) -> Self {
        Self::range(namespace.0, namespace.0, work, SweepScope::One)
    }

    /// Creates a command on all key-value namespaces.
    pub(crate) fn all(work: SweepCommand) -> Self {
        Self::range(1, narrow(DATABASES), work, SweepScope::All)
    }

    fn range(first: u8, last: u8, work: SweepCommand, scope: SweepScope) -> Self {
        Self { work, next: first, last, outstanding: 0, failed: None, scope }
    }

    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        while self.next <= self.last && self.failed.is_none() {
            let command = match self.work {
                SweepCommand::Clear => SsdCommand::Clear,
                SweepCommand::Flush | SweepCommand::BackgroundSave => SsdCommand::Flush,
            };
            match context.submit(u32::from(self.next), NamespaceId(self.next), command) {
                Ok(()) => {
                    self.next += 1;
                    self.outstanding += 1;
                }
                Err(SubmitError::Busy(_)) => return DriveResult::Busy,
                Err(SubmitError::Refused(Status::INVALID_NAMESPACE)) if self.scope == SweepScope::All => {
                    self.next += 1;
                }
                Err(SubmitError::Refused(status)) => self.failed = Some(status),
            }
        }
        if self.outstanding > 0 {
            return DriveResult::Waiting;
        }
        DriveResult::Done(match (self.failed, self.work) {
            (Some(status), _) => errors::from_status(status).into(),
            (None, SweepCommand::BackgroundSave) => RespReply::Simple("Background saving started"),
            (None, _) => RespReply::Ok,
        })
    }

    /// Applies a completion to the state.
    pub(crate) fn accept(&mut self, completion: &SsdCompletion, shared: &mut RespState) {
        self.outstanding -= 1;
        if !completion.status.is_success() {
            self.failed = Some(completion.status);
        } else if self.work != SweepCommand::Clear {
            shared.last_save = shared.wall;
        }
    }
}
