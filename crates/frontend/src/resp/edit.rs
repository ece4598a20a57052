//! Read-modify-write of one key.
//!
//! Input: a [`KeyChange`]. Output: the write that the change computes, under the condition that the key is unchanged since
//! the read. If another front end has changed the key, the edit starts again. Invariant: no reply is sent before the
//! data it depends on is durable: the device releases a store when it is durable; a decision not to write is followed
//! by a fence or a durable read.
//!
//! ```text
//!   Read -> Reading -+- write -> Write -> Writing -+- done -> Done
//!     ^              |                             +- changed -> Read
//!     |              +- found, no write -> Fence -> Fencing -> Done
//!     +- created ----+- missing, no write -> Check -> Checking -> Done
//! ```

use super::change::{KeyChange, OldValue, WriteAction};
use super::errors::{self, ErrorReply};
use super::limits::{REPLY_SHARE_BYTES, RETRIES_MAX};
use super::operation_step::{DriveResult, OperationContext};
use super::reply::RespReply;
use super::state::RespState;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_host::clock::UnixMillis;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    NamespaceId, ReadRelease, RecordExpiry, Sequence, SsdCommand, SsdCompletion, SubmitError, WriteCondition,
};

#[derive(Debug)]
enum EditStage {
    Read,
    Reading,
    Write { action: WriteAction, condition: WriteCondition, reply: RespReply },
    Writing(RespReply),
    Fence(Sequence, RespReply),
    Fencing(RespReply),
    Check(RespReply),
    Checking(RespReply),
    Done(RespReply),
}

/// A command to submit, and the function that advances the stage once the device accepted it.
type NextCommand = (SsdCommand, fn(EditStage) -> EditStage);

/// A read-modify-write of one key.
#[derive(Debug)]
pub(crate) struct KeyEdit {
    namespace: NamespaceId,
    key: Bytes,
    change: KeyChange,
    stage: EditStage,
    retries: u32,
    locked: bool,
}

impl KeyEdit {
    /// Creates a change of a key that the caller has locked.
    pub(crate) fn new(namespace: NamespaceId, key: Bytes, change: KeyChange) -> Self {
        Self { namespace, key, change, stage: EditStage::Read, retries: 0, locked: true }
    }

    /// Creates a change of a key that no other command can touch, and that is therefore not locked.
    pub(crate) fn unlocked(namespace: NamespaceId, key: Bytes, change: KeyChange) -> Self {
        Self { locked: false, ..Self::new(namespace, key, change) }
    }

    /// Returns the key while this operation holds its lock.
    pub(crate) fn locked_key(&self) -> Option<(NamespaceId, &[u8])> {
        self.locked.then_some((self.namespace, &self.key[..]))
    }

    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        let Some((command, next)) = self.next_command(context) else {
            return self.waiting_or_done(context);
        };
        match context.submit(0, self.namespace, command) {
            Ok(()) => {
                self.stage = next(std::mem::replace(&mut self.stage, EditStage::Reading));
                if !matches!(self.stage, EditStage::Reading) {
                    self.unlock(context);
                }
                DriveResult::Waiting
            }
            Err(SubmitError::Busy(_)) => DriveResult::Busy,
            Err(SubmitError::Refused(status)) => {
                self.stage = EditStage::Done(errors::from_status(status).into());
                self.waiting_or_done(context)
            }
        }
    }

    /// Applies a completion to the state.
    pub(crate) fn accept(&mut self, completion: SsdCompletion, wall: UnixMillis) {
        let status = completion.status;
        self.stage = match std::mem::replace(&mut self.stage, EditStage::Read) {
            EditStage::Reading => self.decide(completion, wall),
            EditStage::Writing(reply) => match status {
                Status::SUCCESS => EditStage::Done(reply),
                Status::SEQUENCE_MISMATCH | Status::KEY_EXISTS | Status::KEY_DOES_NOT_EXIST => self.retry(),
                other => EditStage::Done(errors::from_status(other).into()),
            },
            EditStage::Fencing(reply) if status.is_success() => EditStage::Done(reply),
            EditStage::Checking(reply) if status == Status::KEY_DOES_NOT_EXIST => EditStage::Done(reply),
            EditStage::Checking(_) if status.is_success() => self.retry(),
            EditStage::Fencing(_) | EditStage::Checking(_) => {
                EditStage::Done(errors::from_status(status).into())
            }
            other => other,
        };
    }

    fn retry(&mut self) -> EditStage {
        self.retries += 1;
        if self.retries > RETRIES_MAX {
            return EditStage::Done(errors::CONTENDED.into());
        }
        EditStage::Read
    }

    fn decide(&self, completion: SsdCompletion, wall: UnixMillis) -> EditStage {
        let sequence = completion.sequence;
        let old = match completion.status {
            Status::SUCCESS => Some(OldValue { bytes: completion.sink, expiry_ms: completion.expiry_ms }),
            Status::KEY_DOES_NOT_EXIST => None,
            other => return EditStage::Done(errors::from_status(other).into()),
        };
        let condition =
            if old.is_some() { WriteCondition::IfSequence(sequence) } else { WriteCondition::IfAbsent };
        let found = old.is_some();
        let refused = |failure: ErrorReply| (WriteAction::Nothing, RespReply::Error(failure));
        let (action, reply) = self.change.apply(old, wall).unwrap_or_else(refused);
        match action {
            WriteAction::Nothing if found => EditStage::Fence(sequence, reply),
            WriteAction::Nothing => EditStage::Check(reply),
            action => EditStage::Write { action, condition, reply },
        }
    }

    /// Returns the command to submit now, if any, and the function that advances the stage.
    fn next_command<S: CoreDevice>(&self, context: &mut OperationContext<'_, S>) -> Option<NextCommand> {
        let key = self.key.clone();
        match &self.stage {
            EditStage::Read => Some((
                SsdCommand::retrieve_whole(
                    key,
                    self.sink(&*context.device, context.shared).into(),
                    ReadRelease::Speculative,
                ),
                |_| EditStage::Reading,
            )),
            EditStage::Write { action, condition, .. } => {
                let condition = *condition;
                let command = match action {
                    WriteAction::Store(value, expiry) => SsdCommand::Store {
                        key,
                        value: value.clone(),
                        condition,
                        // A key that did not exist has no expiry to keep.
                        expiry: match (*expiry, condition) {
                            (RecordExpiry::Keep, WriteCondition::IfAbsent) => RecordExpiry::Never,
                            (expiry, _) => expiry,
                        },
                    },
                    WriteAction::Delete | WriteAction::Nothing => SsdCommand::Delete { key, condition },
                };
                Some((command, to_writing))
            }
            EditStage::Fence(up_to, _) => Some((SsdCommand::Fence { up_to: *up_to }, to_fencing)),
            EditStage::Check(_) => {
                let release = ReadRelease::WhenDurable;
                Some((SsdCommand::Exist { key, release }, to_checking))
            }
            _ => None,
        }
    }

    /// Returns a buffer for the old value; a long one has room for the change, so that it is not copied to grow.
    fn sink<S: CoreDevice>(&self, device: &S, shared: &mut RespState) -> Vec<u8> {
        let bytes = shared.large_writes.value_bytes(device, self.namespace, &self.key);
        if bytes > REPLY_SHARE_BYTES {
            return Vec::with_capacity(bytes + self.change.growth());
        }
        shared.value_buffers.take()
    }

    fn waiting_or_done<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        match std::mem::replace(&mut self.stage, EditStage::Reading) {
            EditStage::Done(reply) => {
                self.unlock(context);
                DriveResult::Done(match reply {
                    RespReply::Error(failure) => self.change.failed(failure),
                    reply => reply,
                })
            }
            other => {
                self.stage = other;
                DriveResult::Waiting
            }
        }
    }

    fn unlock<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) {
        if std::mem::take(&mut self.locked) {
            context.unlock(self.namespace, &self.key);
        }
    }
}

fn to_writing(stage: EditStage) -> EditStage {
    match stage {
        EditStage::Write { reply, .. } => EditStage::Writing(reply),
        other => unreachable!("a write is submitted in stage {other:?}"),
    }
}

fn to_fencing(stage: EditStage) -> EditStage {
    match stage {
        EditStage::Fence(_, reply) => EditStage::Fencing(reply),
        other => unreachable!("a fence is submitted in stage {other:?}"),
    }
}

fn to_checking(stage: EditStage) -> EditStage {
    match stage {
        EditStage::Check(reply) => EditStage::Checking(reply),
        other => unreachable!("a durable read is submitted in stage {other:?}"),
    }
}
