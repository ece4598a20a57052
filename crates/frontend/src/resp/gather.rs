//! The same device command for many keys: MGET, and DEL, UNLINK, EXISTS and TOUCH of several keys.
//!
//! Input: keys. Output: their values, or the number of keys found. The commands run concurrently, up to a window; once
//! the last is submitted the connection may start its next command, because the device keeps the order of each key.
//! Values are read as far as the client's unread replies have room, and many bytes of values are sent as they arrive.
//! A failed read fails the whole command, unless its first values have been sent: then the error takes the place of
//! the value.

use super::errors;
use super::limits::{GATHER_IN_FLIGHT_MAX, STREAMED_BYTES_MIN};
use super::operation_step::{DriveResult, OperationContext};
use super::output_queue::ReplyEncoder;
use super::reply::{RespReply, RespVersion};
use super::state::RespState;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    NamespaceId, ReadRelease, SsdCommand, SsdCompletion, SubmitError, WriteCondition,
};
use std::collections::VecDeque;

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

/// A value of MGET that has not been sent.
#[derive(Debug)]
enum GatheredValue {
    /// It is being read, and has at most so many bytes.
    Reading(usize),
    /// Its part of the reply.
    Known(RespReply),
}

impl GatheredValue {
    fn bytes(&self) -> usize {
        match self {
            Self::Reading(bytes) => *bytes,
            Self::Known(reply) => reply.value_bytes(),
        }
    }
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
    /// The values that are read or known, from number `sent` on.
    values: VecDeque<GatheredValue>,
    sent: usize,
    /// Bytes of `values`.
    bytes: usize,
    /// True once values are sent as they arrive.
    streams: bool,
    header_sent: bool,
    failed: Option<Status>,
}

impl KeyGather {
    /// Creates an operation on keys.
    pub(crate) fn new(namespace: NamespaceId, query: KeyQuery, keys: Vec<Bytes>) -> Self {
        Self {
            namespace,
            query,
            keys,
            submitted: 0,
            outstanding: 0,
            found: 0,
            values: VecDeque::new(),
            sent: 0,
            bytes: 0,
            streams: false,
            header_sent: false,
            failed: None,
        }
    }

    /// Returns the device command for each key, and the keys.
    pub(crate) fn into_parts(self) -> (KeyQuery, Vec<Bytes>) {
        (self.query, self.keys)
    }

    /// Returns true if commands for some keys are still to be submitted.
    pub(crate) fn is_submitting(&self) -> bool {
        self.submitted < self.keys.len() && self.failed.is_none()
    }

    /// Returns the bytes of the values that are being read or have not been sent.
    pub(crate) fn reply_bytes(&self) -> usize {
        self.bytes
    }

    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        while self.is_submitting() && self.outstanding < GATHER_IN_FLIGHT_MAX {
            let bytes = match self.query {
                KeyQuery::Value => {
                    let key = &self.keys[self.submitted];
                    context.shared.large_writes.value_bytes(&*context.device, self.namespace, key)
                }
                KeyQuery::Exists | KeyQuery::Delete => 0,
            };
            if bytes > 0 && !context.admits_reply(self.bytes, bytes) {
                self.streams = true;
                return DriveResult::NoRoom;
            }
            let command = self.command(context.shared);
            let part = narrow(self.submitted);
            match context.submit(part, self.namespace, command) {
                Ok(()) => {
                    self.submitted += 1;
                    self.outstanding += 1;
                    self.push(GatheredValue::Reading(bytes));
                }
                Err(SubmitError::Busy(_)) if self.outstanding > 0 => return DriveResult::Waiting,
                Err(SubmitError::Busy(_)) => return DriveResult::Busy,
                Err(SubmitError::Refused(status)) if self.header_sent => {
                    self.submitted += 1;
                    self.push(GatheredValue::Known(errors::from_status(status).into()));
                }
                Err(SubmitError::Refused(status)) => self.failed = Some(status),
            }
        }
        if self.outstanding > 0 {
            return DriveResult::Waiting;
        }
        DriveResult::Done(match self.failed.take() {
            Some(status) => errors::from_status(status).into(),
            None if self.query == KeyQuery::Value => self.take_known(context.protocol),
            None => RespReply::Integer(self.found),
        })
    }

    /// Applies a completion to the state.
    pub(crate) fn accept(&mut self, part: u32, completion: SsdCompletion, shared: &mut RespState) {
        self.outstanding -= 1;
        let reply = match completion.status {
            Status::SUCCESS => {
                self.found += 1;
                if self.query == KeyQuery::Value {
                    shared.counters.hits += 1;
                    RespReply::Bulk(completion.sink)
                } else {
                    shared.value_buffers.put_back(completion.sink);
                    RespReply::Ok
                }
            }
            status => {
                shared.value_buffers.put_back(completion.sink);
                match status {
                    Status::KEY_DOES_NOT_EXIST => {
                        shared.counters.misses += u64::from(self.query == KeyQuery::Value);
                        RespReply::Null
                    }
                    status if self.header_sent => errors::from_status(status).into(),
                    status => {
                        self.failed = Some(status);
                        RespReply::Null
                    }
                }
            }
        };
        if self.failed.is_some() {
            self.values.clear();
            self.bytes = 0;
            return;
        }
        let at = (part as usize).checked_sub(self.sent);
        if let Some(value) = at.and_then(|at| self.values.get_mut(at)) {
            self.bytes -= value.bytes();
            *value = GatheredValue::Known(reply);
            self.bytes += value.bytes();
            self.streams |= self.bytes >= STREAMED_BYTES_MIN;
        }
    }

    /// Takes the values that are known and follow those that were sent, if values are sent as they arrive.
    pub(crate) fn take_part(&mut self, protocol: RespVersion) -> Option<RespReply> {
        let known = matches!(self.values.front(), Some(GatheredValue::Known(_)));
        (self.streams && known && self.query == KeyQuery::Value).then(|| self.take_known(protocol))
    }

    fn push(&mut self, value: GatheredValue) {
        if self.query == KeyQuery::Value {
            self.bytes += value.bytes();
            self.values.push_back(value);
        }
    }

    fn take_known(&mut self, protocol: RespVersion) -> RespReply {
        let mut parts = Vec::new();
        if !std::mem::replace(&mut self.header_sent, true) {
            let mut header = Vec::new();
            ReplyEncoder::new(&mut header, protocol).array(self.keys.len());
            parts.push(RespReply::Encoded(header));
        }
        while let Some(GatheredValue::Known(_)) = self.values.front() {
            if let Some(GatheredValue::Known(reply)) = self.values.pop_front() {
                self.bytes -= reply.value_bytes();
                self.sent += 1;
                parts.push(reply);
            }
        }
        RespReply::Parts(parts)
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
}
