//! RENAME, RENAMENX and COPY.
//!
//! In: two keys. Out: the first key's value under the second, with its time. A rename is one batch under the condition that the
//! source is still what was read; a copy is one store. When another face was faster, it begins again.

use super::errors;
use super::limits::RETRIES_MAX;
use super::operation::{Drive, Lane};
use super::reply::Reply;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchWrite, Command, Completion, Condition, Expiry, NamespaceId, Release, Sequence, SubmitError,
};

/// What becomes of the source and of a target that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The source goes, the target is replaced.
    Rename,
    /// The source goes if the target is free.
    RenameNew,
    /// The source stays, the target is replaced.
    CopyReplace,
    /// The source stays if the target is free.
    Copy,
}

/// From where to where.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) from: (NamespaceId, Bytes),
    pub(crate) to: (NamespaceId, Bytes),
}

#[derive(Debug)]
enum Stage {
    Read,
    Reading,
    Write(Value),
    Writing,
    Done(Reply),
}

#[derive(Debug)]
struct Value {
    bytes: Bytes,
    expiry: Expiry,
    sequence: Sequence,
}

/// A value on its way to another key.
#[derive(Debug)]
pub(crate) struct Relocate {
    route: Route,
    manner: Manner,
    stage: Stage,
    retries: u32,
}

impl Relocate {
    /// A value on its way.
    pub(crate) fn new(route: Route, manner: Manner) -> Self {
        Self { route, manner, stage: Stage::Read, retries: 0 }
    }

    fn is_rename(&self) -> bool {
        matches!(self.manner, Manner::Rename | Manner::RenameNew)
    }

    /// Submits what is due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, lane: &mut Lane<'_, S>) -> Drive {
        let (namespace, command, next) = match &self.stage {
            Stage::Read => {
                let command = Command::Retrieve {
                    key: self.route.from.1.clone(),
                    sink: Vec::new().into(),
                    bytes_max: u32::MAX,
                    release: Release::WhenDurable,
                };
                (self.route.from.0, command, Stage::Reading)
            }
            Stage::Write(value) => (self.route.to.0, self.write(value), Stage::Writing),
            Stage::Reading | Stage::Writing => return Drive::Waiting,
            Stage::Done(_) => match std::mem::replace(&mut self.stage, Stage::Writing) {
                Stage::Done(reply) => return Drive::Done(reply),
                _ => return Drive::Waiting,
            },
        };
        match lane.submit(0, namespace, command) {
            Ok(()) => {
                self.stage = next;
                Drive::Waiting
            }
            Err(SubmitError::Busy(_)) => Drive::Busy,
            Err(SubmitError::Refused(status)) => Drive::Done(errors::from_status(status).into()),
        }
    }

    /// Takes in a completion.
    pub(crate) fn accept(&mut self, completion: Completion) {
        self.stage = match self.stage {
            Stage::Reading => self.read(completion),
            _ => self.written(&completion),
        };
    }

    fn read(&self, completion: Completion) -> Stage {
        match completion.status {
            Status::SUCCESS => {}
            Status::KEY_DOES_NOT_EXIST if self.is_rename() => return Stage::Done(errors::NO_SUCH_KEY.into()),
            Status::KEY_DOES_NOT_EXIST => return Stage::Done(Reply::Integer(0)),
            other => return Stage::Done(errors::from_status(other).into()),
        }
        if self.route.from == self.route.to {
            return Stage::Done(match self.manner {
                Manner::Rename => Reply::Ok,
                _ => Reply::Integer(0),
            });
        }
        Stage::Write(Value {
            bytes: completion.sink.into(),
            expiry: if completion.expiry_ms == 0 { Expiry::Never } else { Expiry::At(completion.expiry_ms) },
            sequence: completion.sequence,
        })
    }

    fn written(&mut self, completion: &Completion) -> Stage {
        let target_taken = matches!(self.manner, Manner::RenameNew | Manner::Copy)
            && completion.status == Status::KEY_EXISTS
            && (self.manner == Manner::Copy || completion.position == 0);
        match completion.status {
            Status::SUCCESS if self.manner == Manner::Rename => Stage::Done(Reply::Ok),
            Status::SUCCESS => Stage::Done(Reply::Integer(1)),
            _ if target_taken => Stage::Done(Reply::Integer(0)),
            Status::SEQUENCE_MISMATCH | Status::KEY_DOES_NOT_EXIST if self.retries < RETRIES_MAX => {
                self.retries += 1;
                Stage::Read
            }
            Status::SEQUENCE_MISMATCH | Status::KEY_DOES_NOT_EXIST => Stage::Done(errors::CONTENDED.into()),
            other => Stage::Done(errors::from_status(other).into()),
        }
    }

    fn write(&self, value: &Value) -> Command {
        let key = self.route.to.1.clone();
        let condition = match self.manner {
            Manner::Rename | Manner::CopyReplace => Condition::Always,
            Manner::RenameNew | Manner::Copy => Condition::IfAbsent,
        };
        let bytes = value.bytes.clone();
        let expiry = value.expiry;
        if !self.is_rename() {
            return Command::Store { key, value: bytes.into(), condition, expiry };
        }
        Command::Batch {
            writes: vec![
                BatchWrite::Store { key, value: bytes, condition, expiry },
                BatchWrite::Delete {
                    key: self.route.from.1.clone(),
                    condition: Condition::IfSequence(value.sequence),
                },
            ],
        }
    }
}
