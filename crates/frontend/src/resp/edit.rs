//! Read-modify-write of one key.
//!
//! In: a [`Change`]. Out: what the change decides about the value that is there, written under the condition that it is still
//! there. When another face was faster, it begins again. Invariant: no reply leaves before what it is based on is durable: a
//! store is released by the device, a decision not to write is followed by a fence or a durable look.
//!
//! ```text
//!   Read -> Reading -+- write -> Write -> Writing -+- done -> Done
//!     ^              |                             +- changed -> Read
//!     |              +- found, no write -> Fence -> Fencing -> Done
//!     +- appeared ---+- missing, no write -> Look -> Looking -> Done
//! ```

use super::change::{Action, Change, Old};
use super::errors::{self, Failure};
use super::limits::RETRIES_MAX;
use super::operation::{Drive, Lane};
use super::reply::Reply;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_host::clock::UnixMillis;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    Command, Completion, Condition, Expiry, NamespaceId, Release, Sequence, SubmitError,
};

#[derive(Debug)]
enum Stage {
    Read,
    Reading,
    Write { action: Action, condition: Condition, reply: Reply },
    Writing(Reply),
    Fence(Sequence, Reply),
    Fencing(Reply),
    Look(Reply),
    Looking(Reply),
    Done(Reply),
}

/// A command, and what the stage becomes when it was accepted.
type Due = (Command, fn(Stage) -> Stage);

/// One read-modify-write.
#[derive(Debug)]
pub(crate) struct Edit {
    namespace: NamespaceId,
    key: Bytes,
    change: Change,
    stage: Stage,
    retries: u32,
    locked: bool,
}

impl Edit {
    /// A change to a key that its caller has locked.
    pub(crate) fn new(namespace: NamespaceId, key: Bytes, change: Change) -> Self {
        Self { namespace, key, change, stage: Stage::Read, retries: 0, locked: true }
    }

    /// The key while it is locked.
    pub(crate) fn locked_key(&self) -> Option<(NamespaceId, &[u8])> {
        self.locked.then_some((self.namespace, &self.key[..]))
    }

    /// Submits what is due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, lane: &mut Lane<'_, S>) -> Drive {
        let Some((command, next)) = self.due(lane) else {
            return self.waiting_or_done(lane);
        };
        match lane.submit(0, self.namespace, command) {
            Ok(()) => {
                self.stage = next(std::mem::replace(&mut self.stage, Stage::Reading));
                if !matches!(self.stage, Stage::Reading) {
                    self.unlock(lane);
                }
                Drive::Waiting
            }
            Err(SubmitError::Busy(_)) => Drive::Busy,
            Err(SubmitError::Refused(status)) => {
                self.stage = Stage::Done(errors::from_status(status).into());
                self.waiting_or_done(lane)
            }
        }
    }

    /// Takes in a completion.
    pub(crate) fn accept(&mut self, completion: Completion, wall: UnixMillis) {
        let status = completion.status;
        self.stage = match std::mem::replace(&mut self.stage, Stage::Read) {
            Stage::Reading => self.decide(completion, wall),
            Stage::Writing(reply) => match status {
                Status::SUCCESS => Stage::Done(reply),
                Status::SEQUENCE_MISMATCH | Status::KEY_EXISTS | Status::KEY_DOES_NOT_EXIST => self.retry(),
                other => Stage::Done(errors::from_status(other).into()),
            },
            Stage::Fencing(reply) if status.is_success() => Stage::Done(reply),
            Stage::Looking(reply) if status == Status::KEY_DOES_NOT_EXIST => Stage::Done(reply),
            Stage::Looking(_) if status.is_success() => self.retry(),
            Stage::Fencing(_) | Stage::Looking(_) => Stage::Done(errors::from_status(status).into()),
            other => other,
        };
    }

    fn retry(&mut self) -> Stage {
        self.retries += 1;
        if self.retries > RETRIES_MAX {
            return Stage::Done(errors::CONTENDED.into());
        }
        Stage::Read
    }

    fn decide(&self, completion: Completion, wall: UnixMillis) -> Stage {
        let sequence = completion.sequence;
        let old = match completion.status {
            Status::SUCCESS => Some(Old { bytes: completion.sink, expiry_ms: completion.expiry_ms }),
            Status::KEY_DOES_NOT_EXIST => None,
            other => return Stage::Done(errors::from_status(other).into()),
        };
        let condition = if old.is_some() { Condition::IfSequence(sequence) } else { Condition::IfAbsent };
        let found = old.is_some();
        let refused = |failure: Failure| (Action::Nothing, Reply::Error(failure));
        let (action, reply) = self.change.decide(old, wall).unwrap_or_else(refused);
        match action {
            Action::Nothing if found => Stage::Fence(sequence, reply),
            Action::Nothing => Stage::Look(reply),
            action => Stage::Write { action, condition, reply },
        }
    }

    /// The command to submit now and the stage that follows when it was accepted.
    fn due<S: CoreDevice>(&self, lane: &mut Lane<'_, S>) -> Option<Due> {
        let key = self.key.clone();
        match &self.stage {
            Stage::Read => Some((
                Command::Retrieve {
                    key,
                    sink: lane.shared.sinks.take().into(),
                    bytes_max: u32::MAX,
                    release: Release::Speculative,
                },
                |_| Stage::Reading,
            )),
            Stage::Write { action, condition, .. } => {
                let condition = *condition;
                let command = match action {
                    Action::Store(value, expiry) => Command::Store {
                        key,
                        value: value.clone().into(),
                        condition,
                        // A key that was not there has no time to keep.
                        expiry: match (*expiry, condition) {
                            (Expiry::Keep, Condition::IfAbsent) => Expiry::Never,
                            (expiry, _) => expiry,
                        },
                    },
                    Action::Delete | Action::Nothing => Command::Delete { key, condition },
                };
                Some((command, to_writing))
            }
            Stage::Fence(up_to, _) => Some((Command::Fence { up_to: *up_to }, to_fencing)),
            Stage::Look(_) => {
                let release = Release::WhenDurable;
                Some((Command::Exist { key, release }, to_looking))
            }
            _ => None,
        }
    }

    fn waiting_or_done<S: CoreDevice>(&mut self, lane: &mut Lane<'_, S>) -> Drive {
        match std::mem::replace(&mut self.stage, Stage::Reading) {
            Stage::Done(reply) => {
                self.unlock(lane);
                Drive::Done(reply)
            }
            other => {
                self.stage = other;
                Drive::Waiting
            }
        }
    }

    fn unlock<S: CoreDevice>(&mut self, lane: &mut Lane<'_, S>) {
        if std::mem::take(&mut self.locked) {
            lane.unlock(self.namespace, &self.key);
        }
    }
}

fn to_writing(stage: Stage) -> Stage {
    match stage {
        Stage::Write { reply, .. } => Stage::Writing(reply),
        other => other,
    }
}

fn to_fencing(stage: Stage) -> Stage {
    match stage {
        Stage::Fence(_, reply) => Stage::Fencing(reply),
        other => other,
    }
}

fn to_looking(stage: Stage) -> Stage {
    match stage {
        Stage::Look(reply) => Stage::Looking(reply),
        other => other,
    }
}
