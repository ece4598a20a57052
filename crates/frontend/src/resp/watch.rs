//! The command WATCH: notes the sequence of each key on the device.
//!
//! Input: keys. Output: their sequences, in the transaction of the connection. The sequence of a record changes with every
//! write of its key by any front end, so that EXEC finds all of them.

use super::errors::{self, ErrorReply};
use super::limits::GATHER_IN_FLIGHT_MAX;
use super::operation_step::{DriveResult, OperationContext};
use super::reply::RespReply;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{NamespaceId, ReadRelease, Sequence, SsdCommand, SsdCompletion, SubmitError};

/// A WATCH of some keys.
#[derive(Debug)]
pub(crate) struct KeyWatch {
    namespace: NamespaceId,
    keys: Vec<Bytes>,
    seen: Vec<Option<Sequence>>,
    submitted: usize,
    outstanding: usize,
    failed: Option<ErrorReply>,
}

impl KeyWatch {
    /// Creates a watch.
    pub(crate) fn new(namespace: NamespaceId, keys: Vec<Bytes>) -> Self {
        let seen = vec![None; keys.len()];
        Self { namespace, keys, seen, submitted: 0, outstanding: 0, failed: None }
    }

    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        while self.submitted < self.keys.len()
            && self.outstanding < GATHER_IN_FLIGHT_MAX
            && self.failed.is_none()
        {
            let key = self.keys[self.submitted].clone();
            // A sequence that a power cut takes back ends the connection as well.
            let command = SsdCommand::Exist { key, release: ReadRelease::Speculative };
            match context.submit(narrow(self.submitted), self.namespace, command) {
                Ok(()) => {
                    self.submitted += 1;
                    self.outstanding += 1;
                }
                Err(SubmitError::Busy(_)) if self.outstanding > 0 => return DriveResult::Waiting,
                Err(SubmitError::Busy(_)) => return DriveResult::Busy,
                Err(SubmitError::Refused(status)) => self.failed = Some(errors::from_status(status)),
            }
        }
        if self.outstanding > 0 {
            return DriveResult::Waiting;
        }
        if let Some(failed) = self.failed.take() {
            return DriveResult::Done(failed.into());
        }
        for (key, seen) in std::mem::take(&mut self.keys).into_iter().zip(&self.seen) {
            context.watched.note(self.namespace, key, *seen);
        }
        DriveResult::Done(RespReply::Ok)
    }

    /// Applies a completion to the state.
    pub(crate) fn accept(&mut self, part: u32, completion: &SsdCompletion) {
        self.outstanding -= 1;
        match completion.status {
            Status::SUCCESS => self.seen[part as usize] = Some(completion.sequence),
            Status::KEY_DOES_NOT_EXIST => {}
            other => self.failed = Some(errors::from_status(other)),
        }
    }
}
