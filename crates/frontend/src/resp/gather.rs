//! The same device command for many keys: MGET, and DEL, UNLINK, EXISTS and TOUCH of several keys.
//!
//! Input: keys. Output: their values, or the number of keys found. The commands run concurrently, up to a window; once
//! the last is submitted the connection may start its next command, because the device keeps the order of each key.
//! Values are read as far as the client's unread replies have room, and many bytes of values are sent as they arrive. A
//! long value is opened in its turn and read when the client has received what is in front of it.
//! A failed read fails the whole command, unless its first values have been sent: then the error takes the place of
//! the value.

use super::errors;
use super::limits::{GATHER_IN_FLIGHT_MAX, LONG_VALUES_OPEN_MAX, STREAM_PART_BYTES, STREAMED_BYTES_MIN};
use super::operation_step::{DriveResult, OperationContext};
use super::output_queue::ReplyEncoder;
use super::reply::{RespReply, RespVersion};
use super::state::RespState;
use super::value_stream::ValueStream;
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
    /// It is sent while it is read.
    Long(Box<ValueStream>),
    /// Its part of the reply.
    Known(RespReply),
}

impl GatheredValue {
    fn bytes(&self) -> usize {
        match self {
            Self::Reading(bytes) => *bytes,
            // Only the first of the reply holds any.
            Self::Long(_) => 0,
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
    /// Bytes of `values`, without those of long ones.
    bytes: usize,
    /// Long values that are opened and not read to their ends.
    long_values: usize,
    /// True if long values are sent while they are read.
    pub(crate) streams_long_values: bool,
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
            long_values: 0,
            streams_long_values: false,
            streams: false,
            header_sent: false,
            failed: None,
        }
    }

    /// Returns the device command for each key, and the keys.
    pub(crate) fn into_parts(self) -> (KeyQuery, Vec<Bytes>) {
        (self.query, self.keys)
    }

    /// Returns true if the connection's next command must wait.
    pub(crate) fn holds_connection(&self) -> bool {
        self.is_submitting() || self.long_values > 0
    }

    /// Returns true if commands for some keys are still to be submitted.
    fn is_submitting(&self) -> bool {
        self.submitted < self.keys.len() && self.failed.is_none()
    }

    /// Returns the bytes of the values that are being read or have not been sent.
    pub(crate) fn reply_bytes(&self) -> usize {
        match self.values.front() {
            Some(GatheredValue::Long(stream)) => self.bytes + stream.reply_bytes(),
            _ => self.bytes,
        }
    }

    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        while self.is_submitting()
            && self.outstanding < GATHER_IN_FLIGHT_MAX
            && self.long_values < LONG_VALUES_OPEN_MAX
        {
            let bytes = match self.query {
                KeyQuery::Value => {
                    let key = &self.keys[self.submitted];
                    context.shared.large_writes.value_bytes(&*context.device, self.namespace, key)
                }
                KeyQuery::Exists | KeyQuery::Delete => 0,
            };
            if bytes > STREAM_PART_BYTES && self.streams_long_values {
                if let Some(result) = self.open_long_value(context) {
                    return result;
                }
                continue;
            }
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
        while self.long_values > 0 && self.failed.is_none() {
            if let Some(result) = self.drive_front(context) {
                return result;
            }
        }
        if self.outstanding > 0 {
            return DriveResult::Waiting;
        }
        assert!(!self.is_submitting(), "a command of many keys ends before it asked for the last");
        DriveResult::Done(match self.failed.take() {
            Some(status) => errors::from_status(status).into(),
            None if self.query == KeyQuery::Value => self.take_known(context.protocol),
            None => RespReply::Integer(self.found),
        })
    }

    /// Opens the reader of the next value. Returns the result of the operation if the device has no room.
    fn open_long_value<S: CoreDevice>(
        &mut self,
        context: &mut OperationContext<'_, S>,
    ) -> Option<DriveResult> {
        let key = self.keys[self.submitted].clone();
        let mut stream = ValueStream::in_reply(self.namespace, key, narrow(self.submitted));
        match stream.drive(context) {
            DriveResult::Busy if self.outstanding > 0 => return Some(DriveResult::Waiting),
            DriveResult::Busy => return Some(DriveResult::Busy),
            _ => {}
        }
        self.submitted += 1;
        self.outstanding += usize::from(stream.is_waiting());
        self.long_values += 1;
        self.streams = true;
        self.push(GatheredValue::Long(Box::new(stream)));
        None
    }

    /// Drives the first value of the reply, behind which a long one is. Returns the result of the operation, or nothing if
    /// the value is known now.
    fn drive_front<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> Option<DriveResult> {
        let front = self.values.front_mut().expect("a long value is one of the values");
        let GatheredValue::Long(stream) = front else {
            let is_known = matches!(front, GatheredValue::Known(_));
            // What is known is sent first.
            return Some(if is_known { DriveResult::NoRoom } else { DriveResult::Waiting });
        };
        if stream.is_waiting() {
            return Some(DriveResult::Waiting);
        }
        match stream.drive(context) {
            DriveResult::Done(reply) => {
                self.long_values -= 1;
                self.bytes += reply.value_bytes();
                *front = GatheredValue::Known(reply);
                None
            }
            DriveResult::Waiting => {
                self.outstanding += 1;
                Some(DriveResult::Waiting)
            }
            result => Some(result),
        }
    }

    /// Applies a completion to the state.
    pub(crate) fn accept(&mut self, part: u32, completion: SsdCompletion, shared: &mut RespState) {
        self.outstanding -= 1;
        let at = (part as usize).checked_sub(self.sent);
        if let Some(GatheredValue::Long(stream)) = at.and_then(|at| self.values.get_mut(at)) {
            stream.accept(completion, shared);
            return;
        }
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
            (self.bytes, self.long_values) = (0, 0);
            return;
        }
        if let Some(value) = at.and_then(|at| self.values.get_mut(at)) {
            self.bytes -= value.bytes();
            *value = GatheredValue::Known(reply);
            self.bytes += value.bytes();
            self.streams |= self.bytes >= STREAMED_BYTES_MIN;
        }
    }

    /// Takes the values that are known and follow those that were sent, if values are sent as they arrive.
    pub(crate) fn take_part(&mut self, protocol: RespVersion) -> Option<RespReply> {
        if !self.streams || self.query != KeyQuery::Value {
            return None;
        }
        match self.values.front_mut() {
            Some(GatheredValue::Known(_)) => Some(self.take_known(protocol)),
            Some(GatheredValue::Long(stream)) => {
                let part = stream.take_part(protocol)?;
                Some(RespReply::Parts(self.header(protocol).into_iter().chain(part).collect()))
            }
            _ => None,
        }
    }

    fn push(&mut self, value: GatheredValue) {
        if self.query == KeyQuery::Value {
            self.bytes += value.bytes();
            self.values.push_back(value);
        }
    }

    fn take_known(&mut self, protocol: RespVersion) -> RespReply {
        let mut parts: Vec<RespReply> = self.header(protocol).into_iter().collect();
        while let Some(GatheredValue::Known(_)) = self.values.front() {
            if let Some(GatheredValue::Known(reply)) = self.values.pop_front() {
                self.bytes -= reply.value_bytes();
                self.sent += 1;
                parts.push(reply);
            }
        }
        RespReply::Parts(parts)
    }

    /// Returns the header of the array, the first time.
    fn header(&mut self, protocol: RespVersion) -> Option<RespReply> {
        if std::mem::replace(&mut self.header_sent, true) {
            return None;
        }
        let mut header = Vec::new();
        ReplyEncoder::new(&mut header, protocol).array(self.keys.len());
        Some(RespReply::Encoded(header))
    }

    fn command(&self, shared: &mut RespState) -> SsdCommand {
        let key = self.keys[self.submitted].clone();
        let release = ReadRelease::WhenDurable;
        match self.query {
            KeyQuery::Value => SsdCommand::retrieve_whole(key, shared.value_buffers.take().into(), release),
            KeyQuery::Exists => SsdCommand::Exist { key, release },
            KeyQuery::Delete => SsdCommand::Delete { key, condition: WriteCondition::Always },
        }
    }
}
