//! The commands RENAME, RENAMENX and COPY.
//!
//! Input: two keys. Output: the first key's value and expiry under the second key. A rename is one batch under the
//! condition that the source is unchanged since it was read; a copy is one store. If another front end changed the
//! source, a rename starts again.

use super::errors;
use super::limits::RETRIES_MAX;
use super::operation_step::{DriveResult, OperationContext};
use super::reply::RespReply;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchWrite, NamespaceId, ReadRelease, RecordExpiry, Sequence, SsdCommand, SsdCompletion, SubmitError,
    WriteCondition,
};

/// The treatment of the source and of an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelocateKind {
    /// Deletes the source, replaces the target.
    Rename,
    /// Deletes the source; has no effect if the target exists.
    RenameNew,
    /// Keeps the source, replaces the target.
    CopyReplace,
    /// Keeps the source; has no effect if the target exists.
    Copy,
}

/// The source and the target key.
#[derive(Debug)]
pub(crate) struct SourceAndTarget {
    pub(crate) from: (NamespaceId, Bytes),
    pub(crate) to: (NamespaceId, Bytes),
}

#[derive(Debug)]
enum RelocateStage {
    Read,
    Reading,
    Write(SourceValue),
    Writing,
    Done(RespReply),
}

#[derive(Debug)]
struct SourceValue {
    bytes: Bytes,
    expiry: RecordExpiry,
    sequence: Sequence,
}

/// A rename or copy of a key.
#[derive(Debug)]
pub(crate) struct KeyRelocation {
    route: SourceAndTarget,
    kind: RelocateKind,
    stage: RelocateStage,
    retries: u32,
}

impl KeyRelocation {
    /// Creates a rename or copy.
    pub(crate) fn new(route: SourceAndTarget, kind: RelocateKind) -> Self {
        Self { route, kind, stage: RelocateStage::Read, retries: 0 }
    }

    /// Returns the source.
    pub(crate) fn source(&self) -> (NamespaceId, &Bytes) {
        (self.route.from.0, &self.route.from.1)
    }

    fn is_rename(&self) -> bool {
        matches!(self.kind, RelocateKind::Rename | RelocateKind::RenameNew)
    }

    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        let (namespace, command, next) = match &self.stage {
            RelocateStage::Read => {
                let command = SsdCommand::retrieve_whole(
                    self.route.from.1.clone(),
                    Vec::new().into(),
                    ReadRelease::WhenDurable,
                );
                (self.route.from.0, command, RelocateStage::Reading)
            }
            RelocateStage::Write(value) => (self.route.to.0, self.write(value), RelocateStage::Writing),
            RelocateStage::Reading | RelocateStage::Writing => return DriveResult::Waiting,
            RelocateStage::Done(_) => match std::mem::replace(&mut self.stage, RelocateStage::Writing) {
                RelocateStage::Done(reply) => return DriveResult::Done(reply),
                _ => return DriveResult::Waiting,
            },
        };
        match context.submit(0, namespace, command) {
            Ok(()) => {
                self.stage = next;
                DriveResult::Waiting
            }
            Err(SubmitError::Busy(_)) => DriveResult::Busy,
            Err(SubmitError::Refused(status)) => DriveResult::Done(errors::from_status(status).into()),
        }
    }

    /// Applies a completion to the state.
    pub(crate) fn accept(&mut self, completion: SsdCompletion) {
        self.stage = match self.stage {
            RelocateStage::Reading => self.read(completion),
            _ => self.written(&completion),
        };
    }

    fn read(&self, completion: SsdCompletion) -> RelocateStage {
        match completion.status {
            Status::SUCCESS => {}
            Status::KEY_DOES_NOT_EXIST if self.is_rename() => {
                return RelocateStage::Done(errors::NO_SUCH_KEY.into());
            }
            Status::KEY_DOES_NOT_EXIST => return RelocateStage::Done(RespReply::Integer(0)),
            other => return RelocateStage::Done(errors::from_status(other).into()),
        }
        if self.route.from == self.route.to {
            return RelocateStage::Done(match self.kind {
                RelocateKind::Rename => RespReply::Ok,
                _ => RespReply::Integer(0),
            });
        }
        RelocateStage::Write(SourceValue {
            bytes: completion.sink.into(),
            expiry: if completion.expiry_ms == 0 {
                RecordExpiry::Never
            } else {
                RecordExpiry::At(completion.expiry_ms)
            },
            sequence: completion.sequence,
        })
    }

    fn written(&mut self, completion: &SsdCompletion) -> RelocateStage {
        let target_taken = matches!(self.kind, RelocateKind::RenameNew | RelocateKind::Copy)
            && completion.status == Status::KEY_EXISTS
            && (self.kind == RelocateKind::Copy || completion.position == 0);
        match completion.status {
            Status::SUCCESS if self.kind == RelocateKind::Rename => RelocateStage::Done(RespReply::Ok),
            Status::SUCCESS => RelocateStage::Done(RespReply::Integer(1)),
            _ if target_taken => RelocateStage::Done(RespReply::Integer(0)),
            Status::SEQUENCE_MISMATCH | Status::KEY_DOES_NOT_EXIST if self.retries < RETRIES_MAX => {
                self.retries += 1;
                RelocateStage::Read
            }
            Status::SEQUENCE_MISMATCH | Status::KEY_DOES_NOT_EXIST => {
                RelocateStage::Done(errors::CONTENDED.into())
            }
            other => RelocateStage::Done(errors::from_status(other).into()),
        }
    }

    fn write(&self, value: &SourceValue) -> SsdCommand {
        let key = self.route.to.1.clone();
        let condition = match self.kind {
            RelocateKind::Rename | RelocateKind::CopyReplace => WriteCondition::Always,
            RelocateKind::RenameNew | RelocateKind::Copy => WriteCondition::IfAbsent,
        };
        let bytes = value.bytes.clone();
        let expiry = value.expiry;
        if !self.is_rename() {
            return SsdCommand::Store { key, value: bytes.into(), condition, expiry };
        }
        SsdCommand::Batch {
            writes: vec![
                BatchWrite::Store { key, value: bytes, condition, expiry },
                BatchWrite::Delete {
                    key: self.route.from.1.clone(),
                    condition: WriteCondition::IfSequence(value.sequence),
                },
            ],
        }
    }
}
