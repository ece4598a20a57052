//! A long value that is sent while it is read: GET, GETRANGE, and each long value of MGET.
//!
//! Input: a key whose value is probably long. Output: the reply, in parts. The next part is read when the client has been
//! sent the one before it, so that a client that receives slowly holds one part of memory, whatever the length of the value.
//! The device keeps the value in place that it found first. Invariant: the parts are one value, in order; a value that cannot
//! be read to its end after a part of it was sent ends the connection, because no error fits into a reply that has begun.
//!
//! ```text
//!  Open --reader--> Await --value found--> Read --part--> Await --bytes--> Send --taken--> Read ... --last part--> done
//!                     +-- no value, or nothing sent yet and a failure --> Reply     a failure after a part --> Close
//! ```

use super::errors;
use super::limits::STREAM_PART_BYTES;
use super::operation_step::{DriveResult, OperationContext};
use super::output_queue::ReplyEncoder;
use super::reply::{RespReply, RespVersion};
use super::reply_form::value_range;
use super::state::RespState;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_host::clock::Nanos;
use headwater_host::width::{narrow, to_usize};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{NamespaceId, SsdCommand, SsdCompletion, SubmitError, ValueReader};

/// The next step of a stream.
#[derive(Debug)]
enum StreamStep {
    /// Open a reader.
    Open,
    /// Wait for a completion.
    Await,
    /// Read the next part.
    Read,
    /// Send the part that was read.
    Send(Vec<u8>),
    /// Reply with this.
    Reply(RespReply),
    /// Close the connection for this reason.
    Close(&'static str),
}

/// The part of a value that a client wants.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamedRange {
    /// The value, or null if there is none.
    Whole,
    /// The bytes from one to another, of which negative ones count from the end; empty if there are none.
    Bytes(i64, i64),
}

/// A long value that is sent while it is read.
#[derive(Debug)]
pub(crate) struct ValueStream {
    /// The number of its device commands in their tokens.
    part: u32,
    namespace: NamespaceId,
    key: Bytes,
    range: StreamedRange,
    step: StreamStep,
    /// Its reader, and true once it is open.
    reader: Option<(ValueReader, bool)>,
    /// Length of the bulk string.
    length: usize,
    /// The first byte of the range that was not read yet, in the value.
    next: usize,
    /// Bytes of the range that were not read yet.
    left: usize,
    /// True if the first part has been admitted already.
    is_admitted: bool,
    header_sent: bool,
    /// The time at which its first part was ready to be sent.
    sent_from: Option<Nanos>,
}

impl ValueStream {
    /// Creates the stream of a key's value, whose first part was admitted.
    pub(crate) fn new(namespace: NamespaceId, key: Bytes, range: StreamedRange) -> Self {
        Self {
            part: 0,
            namespace,
            key,
            range,
            step: StreamStep::Open,
            reader: None,
            length: 0,
            next: 0,
            left: 0,
            is_admitted: true,
            header_sent: false,
            sent_from: None,
        }
    }

    /// Creates the stream of one value of a reply of several. It is the part of this number.
    pub(crate) fn in_reply(namespace: NamespaceId, key: Bytes, part: u32) -> Self {
        Self { part, is_admitted: false, ..Self::new(namespace, key, StreamedRange::Whole) }
    }

    /// Returns the bytes of its reply that it holds, or that its next completion brings.
    pub(crate) fn reply_bytes(&self) -> usize {
        let is_open = self.reader.as_ref().is_some_and(|(_, is_open)| *is_open);
        match &self.step {
            StreamStep::Open | StreamStep::Await if !is_open && self.is_admitted => STREAM_PART_BYTES,
            StreamStep::Await if is_open => self.next_bytes(),
            StreamStep::Send(part) => part.len(),
            _ => 0,
        }
    }

    /// Returns the time at which its first part was ready to be sent: what follows is the client's time.
    pub(crate) fn sent_from(&self) -> Option<Nanos> {
        self.sent_from
    }

    /// Returns true if a completion is outstanding.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.step, StreamStep::Await)
    }

    /// Submits the device command that is due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        let command = match &self.step {
            StreamStep::Await => return DriveResult::Waiting,
            StreamStep::Close(reason) => return DriveResult::Broken(reason),
            StreamStep::Reply(_) => return DriveResult::Done(self.take_reply()),
            StreamStep::Send(_) if self.left == 0 => {
                return DriveResult::Done(self.last_part(context.protocol));
            }
            // What was sent before comes first.
            StreamStep::Send(_) => return DriveResult::NoRoom,
            StreamStep::Open => {
                let reader = context.shared.new_reader();
                self.reader = Some((reader.clone(), false));
                SsdCommand::OpenValue { key: self.key.clone(), reader }
            }
            StreamStep::Read => {
                let bytes = self.next_bytes();
                if !self.is_admitted && (context.unsent > 0 || !context.admits_reply(0, bytes)) {
                    return DriveResult::NoRoom;
                }
                let (reader, _) = self.reader.clone().expect("a stream that reads has opened its reader");
                let (offset, bytes_max) = (narrow(self.next), narrow(bytes));
                let mut command = SsdCommand::ReadPart { reader, offset, sink: Vec::new(), bytes_max };
                // A device without room would drop the buffer with the command.
                if !context.has_room(self.namespace, &command) {
                    return DriveResult::Busy;
                }
                if let SsdCommand::ReadPart { sink, .. } = &mut command {
                    *sink = context.shared.value_buffers.take_part(bytes);
                }
                command
            }
        };
        match context.submit(self.part, self.namespace, command) {
            Ok(()) => {
                self.step = StreamStep::Await;
                DriveResult::Waiting
            }
            Err(SubmitError::Busy(_)) => DriveResult::Busy,
            Err(SubmitError::Refused(status)) => {
                self.fail(status);
                self.drive(context)
            }
        }
    }

    /// Applies a completion to the state.
    pub(crate) fn accept(&mut self, completion: SsdCompletion, shared: &mut RespState) {
        let counts = matches!(self.range, StreamedRange::Whole);
        match (completion.status, &mut self.reader) {
            (Status::SUCCESS, Some((_, true))) => self.accept_part(completion.sink, shared),
            (Status::SUCCESS, Some((_, is_open))) => {
                *is_open = true;
                shared.counters.hits += u64::from(counts);
                self.start(to_usize(completion.value_bytes.into()));
            }
            (status, _) => {
                shared.value_buffers.put_back(completion.sink);
                shared.counters.misses += u64::from(counts && status == Status::KEY_DOES_NOT_EXIST);
                self.fail(status);
            }
        }
    }

    /// Takes the part that was read.
    pub(crate) fn take_part(&mut self, protocol: RespVersion) -> Option<Vec<RespReply>> {
        let StreamStep::Send(part) = &mut self.step else { return None };
        let part = std::mem::take(part);
        self.step = StreamStep::Read;
        Some(self.with_header(part, protocol))
    }

    /// Returns the bytes of the next part. It ends where an extent ends, so that no page is read for two parts.
    fn next_bytes(&self) -> usize {
        self.left.min(STREAM_PART_BYTES - self.next % STREAM_PART_BYTES)
    }

    /// Begins to read a value of this length.
    fn start(&mut self, value_bytes: usize) {
        let range = match self.range {
            StreamedRange::Whole => 0..value_bytes,
            StreamedRange::Bytes(start, end) => value_range(start, end, value_bytes).unwrap_or(0..0),
        };
        (self.next, self.left, self.length) = (range.start, range.len(), range.len());
        self.step = StreamStep::Read;
        if range.is_empty() {
            self.reader = None;
            self.step = StreamStep::Reply(RespReply::Bulk(Vec::new()));
        }
    }

    fn accept_part(&mut self, part: Vec<u8>, shared: &mut RespState) {
        assert!(!part.is_empty(), "the device read no byte of a value that it said to have");
        self.is_admitted = false;
        self.next += part.len();
        self.left -= part.len();
        self.sent_from.get_or_insert(shared.now);
        self.step = StreamStep::Send(part);
    }

    /// Sets the step that follows a failure.
    fn fail(&mut self, status: Status) {
        self.reader = None;
        self.step = match (status, self.header_sent) {
            (Status::KEY_DOES_NOT_EXIST, _) => StreamStep::Reply(match self.range {
                StreamedRange::Whole => RespReply::Null,
                StreamedRange::Bytes(..) => RespReply::Bulk(Vec::new()),
            }),
            (Status::SEQUENCE_MISMATCH, false) => StreamStep::Open,
            (status, false) => StreamStep::Reply(errors::from_status(status).into()),
            (Status::SEQUENCE_MISMATCH, true) => StreamStep::Close(
                "its value was replaced, and the device needed the room of the old one; receive faster, or write that \
                 key less often",
            ),
            _ => StreamStep::Close("the rest of its value cannot be read; the log names the damage"),
        };
    }

    fn take_reply(&mut self) -> RespReply {
        match std::mem::replace(&mut self.step, StreamStep::Await) {
            StreamStep::Reply(reply) => reply,
            step => unreachable!("a stream replies in step {step:?}"),
        }
    }

    fn last_part(&mut self, protocol: RespVersion) -> RespReply {
        let StreamStep::Send(part) = std::mem::replace(&mut self.step, StreamStep::Await) else {
            unreachable!("a stream ends with its last part")
        };
        // The rest of the value behind a range is not read.
        self.reader = None;
        let mut parts = self.with_header(part, protocol);
        parts.push(RespReply::Encoded(b"\r\n".to_vec()));
        RespReply::Parts(parts)
    }

    fn with_header(&mut self, part: Vec<u8>, protocol: RespVersion) -> Vec<RespReply> {
        let mut parts = Vec::with_capacity(3);
        if !std::mem::replace(&mut self.header_sent, true) {
            let mut header = Vec::new();
            ReplyEncoder::new(&mut header, protocol).bulk_header(self.length);
            parts.push(RespReply::Encoded(header));
        }
        parts.push(RespReply::Encoded(part));
        parts
    }
}
