//! The same device command for many keys: MGET, and DEL, UNLINK, EXISTS and TOUCH of several keys.
//!
//! Input: keys. Output: their values, or the number of keys found. The commands run concurrently, up to a window; once
//! the last is submitted the connection may start its next command, because the device keeps the order of each key.

use super::errors::{self, ErrorReply};
use super::limits::{GATHER_IN_FLIGHT_MAX, OUTPUT_BUFFER_BYTES_MAX};
use super::operation_step::{DriveResult, OperationContext};
use super::output_queue::ReplyEncoder;
use super::reply::RespReply;
use super::state::RespState;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    NamespaceId, ReadRelease, SsdCommand, SsdCompletion, SubmitError, WriteCondition,
};

/// The device command for each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyQuery {
    /// Reads the value.
    Value,
    /// Checks that the key exists.
    Exists,
    /// Deletes the key.
    Delete,
}

/// The same device command for many keys.
#[derive(Debug)]
pub(crate) struct KeyGather {
    namespace: NamespaceId,
    query: KeyQuery,
    keys: Vec<Bytes>,
    submitted: usize,
    outstanding: usize,
    found: i64,
    values: Vec<Option<Vec<u8>>>,
    /// Bytes of the values.
    bytes: usize,
    failed: Option<ErrorReply>,
}

impl KeyGather {
    /// Creates an operation on keys.
    pub(crate) fn new(namespace: NamespaceId, query: KeyQuery, keys: Vec<Bytes>) -> Self {
        let values = if query == KeyQuery::Value { keys.iter().map(|_| None).collect() } else { Vec::new() };
        Self {
            namespace,
            query,
            keys,
            submitted: 0,
            outstanding: 0,
            found: 0,
            values,
            bytes: 0,
            failed: None,
        }
    }

    /// Returns true if commands for some keys are still to be submitted.
    pub(crate) fn is_submitting(&self) -> bool {
        self.submitted < self.keys.len() && self.failed.is_none()
    }

    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        while self.is_submitting() && self.outstanding < GATHER_IN_FLIGHT_MAX {
            let command = self.command(context.shared);
            let part = narrow(self.submitted);
            match context.submit(part, self.namespace, command) {
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
        DriveResult::Done(match self.failed.take() {
            Some(failed) => failed.into(),
            None if self.query == KeyQuery::Value => self.array(context),
            None => RespReply::Integer(self.found),
        })
    }

    /// Applies a completion to the state.
    pub(crate) fn accept(&mut self, part: u32, completion: SsdCompletion, shared: &mut RespState) {
        self.outstanding -= 1;
        match completion.status {
            Status::SUCCESS => {
                self.found += 1;
                if let Some(value) = self.values.get_mut(part as usize) {
                    shared.counters.hits += 1;
                    self.bytes += completion.sink.len();
                    *value = Some(completion.sink);
                    if self.bytes > OUTPUT_BUFFER_BYTES_MAX {
                        self.failed = Some(errors::TOO_MANY_VALUES);
                        self.values = Vec::new();
                    }
                    return;
                }
            }
            Status::KEY_DOES_NOT_EXIST => {
                shared.counters.misses += u64::from(self.query == KeyQuery::Value);
            }
            other => self.failed = Some(errors::from_status(other)),
        }
        shared.value_buffers.put_back(completion.sink);
    }

    fn command(&self, shared: &mut RespState) -> SsdCommand {
        let key = self.keys[self.submitted].clone();
        let release = ReadRelease::WhenDurable;
        match self.query {
            KeyQuery::Value => SsdCommand::Retrieve {
                key,
                sink: shared.value_buffers.take().into(),
                bytes_max: u32::MAX,
                release,
            },
            KeyQuery::Exists => SsdCommand::Exist { key, release },
            KeyQuery::Delete => SsdCommand::Delete { key, condition: WriteCondition::Always },
        }
    }

    fn array<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> RespReply {
        let total: usize = self.values.iter().flatten().map(Vec::len).sum();
        let mut out = Vec::with_capacity(total + self.values.len() * 16);
        let mut encoder = ReplyEncoder::new(&mut out, context.protocol);
        encoder.array(self.values.len());
        for value in self.values.drain(..) {
            match value {
                Some(value) => {
                    encoder.bulk(&value);
                    context.shared.value_buffers.put_back(value);
                }
                None => encoder.null(),
            }
        }
        RespReply::Encoded(out)
    }
}
