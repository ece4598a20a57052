//! The host's end of a connection.
//!
//! Input: commands with their data or buffers; bytes from the controller.
//! Output: bytes to send; completions that return the buffers.
//! Invariant: every submitted command is returned exactly once, by [`HostStep::Completed`] or by
//! [`InitiatorConnection::abandon`]; received data is written directly to its buffer.
//!
//! ```text
//!          new: ICReq queued            ICResp                fault, or termination request
//!   AwaitingInitialize ------------------------> Open ----------------------------------------> Closed
//!           |                 fault, or any other PDU first                                       ^
//!           +-------------------------------------------------------------------------------------+
//! ```

mod errand;

use super::capsule_data::CapsuleData;
use super::decoder::{DataCheck, Decoded, Decoder};
use super::fault::{Fault, FaultKind};
use super::header::{DataPart, Header, Initialize, Received, Receiver, Rules, place};
use super::limits::{HOST_DATA_BYTES_LEAST, QUEUE_ENTRIES_MAX};
use super::outgoing::{Frame, Lent, Outgoing};
use super::target::{Ended, short_common};
use super::{Digest, Digests};
use crate::spec::command::SubmissionEntry;
use crate::spec::completion::CompletionEntry;
use crate::spec::tcp::{CommandPdu, CommonHeader, DataPdu, InitializePdu, PduKind, flag};
use errand::{Errand, Errands};
use std::ops::Range;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

pub use errand::CommandId;

/// The parameters that a host requests for a connection.
#[derive(Clone, Copy, Debug)]
pub struct InitiatorParameters {
    /// Requested digests.
    pub digests: Digests,
    /// Required alignment of data in PDUs from the controller, in dwords less one, 0 to 31 (HPDA).
    pub data_alignment: u8,
    /// Maximum outstanding R2Ts of a command, less one (MAXR2T).
    pub r2ts_max: u32,
    /// Maximum outstanding commands.
    pub depth: u16,
    /// Data up to this size is sent in the capsule: 8,192 on an admin queue, IOCCSZ less the entry on an I/O queue.
    pub in_capsule_max: u32,
}

impl Default for InitiatorParameters {
    fn default() -> Self {
        Self {
            digests: Digests::default(),
            data_alignment: 0,
            r2ts_max: 0,
            depth: 128,
            in_capsule_max: 8_192,
        }
    }
}

/// The data of a command, lent to the connection.
#[derive(Debug)]
pub enum Transfer<B> {
    /// No data.
    None,
    /// Data to the controller.
    Out(B),
    /// A buffer for data from the controller, up to its length.
    In(B),
}

/// A completed command.
#[derive(Debug)]
pub struct Completed<B> {
    /// The identifier that `submit` returned.
    pub id: CommandId,
    /// The completion queue entry.
    pub entry: CompletionEntry,
    /// The buffer lent for the command.
    pub transfer: Transfer<B>,
    /// Bytes received into the buffer.
    pub received: u32,
}

/// The next event of a connection.
#[derive(Debug)]
pub enum HostStep<B> {
    /// The connection needs more bytes.
    Starved,
    /// The controller accepted the connection; commands may be submitted.
    Opened,
    /// A command completed.
    Completed(Completed<B>),
    /// No more input is read. The caller sends the queued bytes, then closes the connection.
    Closed(Ended),
}

/// The error of a command that was not submitted; it returns the lent buffer.
#[derive(Debug)]
pub enum Untaken<B> {
    /// The maximum number of commands is outstanding.
    Full(Transfer<B>),
    /// The connection is not open.
    NotOpen(Transfer<B>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    AwaitingInitialize,
    Open,
    Closed(Ended),
}

/// The host's state machine of one connection.
#[derive(Debug)]
pub struct InitiatorConnection<B> {
    state: State,
    parameters: InitiatorParameters,
    decoder: Decoder,
    frame: Frame,
    host_data_max: u32,
    errands: Errands<B>,
    /// The command whose data is being received.
    course: Option<(CommandId, DataPart)>,
    outgoing: Outgoing<B>,
}

impl<B: Lent + Clone> InitiatorConnection<B> {
    /// Creates the state of a new connection and queues its ICReq.
    #[must_use]
    pub fn new(parameters: InitiatorParameters) -> Self {
        let data_alignment = parameters.data_alignment.min(31);
        let rules = Rules {
            receiver: Receiver::Host,
            digests: Digests::default(),
            alignment: (data_alignment + 1) * 4,
            in_capsule_max: 0,
            data_max: u32::MAX,
        };
        let bit = |digest, bit| if digest == Digest::On { bit } else { 0 };
        let pdu = InitializePdu {
            common: CommonHeader {
                kind: PduKind::InitializeRequest.number(),
                flags: 0,
                header_bytes: 128,
                data_offset: 0,
                pdu_bytes: U32::new(128),
            },
            format_version: U16::new(0),
            data_alignment,
            digests: bit(parameters.digests.header, 1) | bit(parameters.digests.data, 2),
            limit: U32::new(parameters.r2ts_max),
            reserved: [0; 112],
        };
        let mut outgoing = Outgoing::default();
        outgoing.raw().extend_from_slice(pdu.as_bytes());
        Self {
            state: State::AwaitingInitialize,
            parameters,
            decoder: Decoder::new(rules),
            frame: Frame { digests: Digests::default(), alignment: 4 },
            host_data_max: HOST_DATA_BYTES_LEAST,
            errands: Errands::new(parameters.depth.clamp(1, QUEUE_ENTRIES_MAX)),
            course: None,
            outgoing,
        }
    }

    /// Submits a command. Sets its identifier and data pointer; the caller sets all other fields.
    ///
    /// # Errors
    /// [`Untaken`], which returns the lent buffer.
    pub fn submit(
        &mut self,
        mut entry: SubmissionEntry,
        transfer: Transfer<B>,
    ) -> Result<CommandId, Untaken<B>> {
        if self.state != State::Open {
            return Err(Untaken::NotOpen(transfer));
        }
        let data = match &transfer {
            Transfer::None => CapsuleData::None,
            Transfer::In(buffer) => CapsuleData::Transport { bytes: length(buffer.bytes()) },
            Transfer::Out(bytes) if length(bytes.bytes()) <= self.parameters.in_capsule_max => {
                CapsuleData::InCapsule { offset: 0, bytes: length(bytes.bytes()) }
            }
            Transfer::Out(bytes) => CapsuleData::Transport { bytes: length(bytes.bytes()) },
        };
        let in_capsule = match &transfer {
            Transfer::Out(bytes) if matches!(data, CapsuleData::InCapsule { .. }) && bytes.bytes() > 0 => {
                Some(bytes.clone())
            }
            _ => None,
        };
        let id = self.errands.begin(transfer).map_err(Untaken::Full)?;
        entry.command_id = U16::new(id.0);
        data.write(&mut entry);
        let common = CommonHeader { header_bytes: 72, ..short_common(PduKind::Command, 0) };
        debug_assert!(PduKind::Command.header_bytes() == size_of::<CommandPdu>());
        match in_capsule {
            None => self.outgoing.header(common, entry.as_bytes(), self.frame.digests.header),
            Some(bytes) => {
                let range = 0..bytes.bytes();
                let _short = self.outgoing.data(self.frame, common, entry.as_bytes(), bytes, range);
            }
        }
        Ok(id)
    }

    /// Consumes bytes from the front of `input` up to the next event.
    pub fn advance(&mut self, input: &mut &[u8]) -> HostStep<B> {
        loop {
            if let State::Closed(ended) = self.state {
                return HostStep::Closed(ended);
            }
            let found = match self.decoder.decode(input) {
                Ok(Decoded::Starved) => return HostStep::Starved,
                Ok(Decoded::Header(header)) => self.take_header(&header),
                Ok(Decoded::Data(bytes)) => {
                    if let Some(command) = self.receiving() {
                        command.put(bytes);
                    }
                    Ok(None)
                }
                Ok(Decoded::End(check)) => Ok(self.finish_data(check)),
                Err(fault) => Err(fault),
            };
            match found {
                Ok(None) => {}
                Ok(Some(step)) => return step,
                Err(fault) => self.fail(fault),
            }
        }
    }

    /// Returns the buffer and range for the next bytes of the stream while they are data of one command. A socket may
    /// receive directly into it and then call [`placed`](Self::placed).
    pub fn destination(&mut self) -> Option<(&mut B, Range<usize>)> {
        let bytes = usize::try_from(self.decoder.data_left()).ok().filter(|&bytes| bytes > 0)?;
        let command = self.receiving()?;
        let at = command.received_bytes();
        match &mut command.transfer {
            Transfer::In(buffer) => Some((buffer, at..at + bytes)),
            _ => None,
        }
    }

    /// Accounts for the first `bytes` bytes of [`destination`](Self::destination), which were received directly.
    ///
    /// # Panics
    /// If `bytes` exceeds the range of `destination`.
    pub fn placed(&mut self, bytes: usize) {
        if let Some((id, _)) = self.course
            && let Some(command) = self.errands.get_mut(id)
        {
            let at = command.received_bytes();
            if let Transfer::In(buffer) = &command.transfer {
                self.decoder.placed(bytes, |crc| buffer.crc32c(crc, at..at + bytes));
                command.received += length(bytes);
            }
        }
    }

    /// Returns the send queue.
    #[must_use]
    #[inline]
    pub const fn outgoing(&self) -> &Outgoing<B> {
        &self.outgoing
    }

    /// Returns the send queue, to remove sent bytes.
    #[inline]
    pub const fn outgoing_mut(&mut self) -> &mut Outgoing<B> {
        &mut self.outgoing
    }

    /// Returns the number of outstanding commands.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.errands.live()
    }

    /// Returns true if commands may be submitted.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Closes the connection and returns every outstanding command with its lent buffer. The controller may have
    /// executed some of them.
    pub fn abandon(&mut self) -> Vec<(CommandId, Transfer<B>)> {
        self.course = None;
        if !matches!(self.state, State::Closed(_)) {
            self.state = State::Closed(Ended::Peer { status: 0, information: 0 });
        }
        self.errands.drain()
    }

    fn receiving(&mut self) -> Option<&mut Errand<B>> {
        let (id, _) = self.course?;
        self.errands.get_mut(id)
    }

    fn take_header(&mut self, header: &Header) -> Result<Option<HostStep<B>>, Fault> {
        match (self.state, header.what) {
            (_, Received::Termination { status, information }) => {
                self.state = State::Closed(Ended::Peer { status, information });
                Ok(None)
            }
            (State::AwaitingInitialize, Received::Initialize(response)) => self.open(&response).map(Some),
            (State::Open, Received::Response(entry)) => self.take_response(entry).map(Some),
            (State::Open, Received::Data(part)) => self.take_part(part).map(|()| None),
            (State::Open, Received::ReadyToTransfer(part)) => self.send_part(&part).map(|()| None),
            _ => Err(Fault::of(FaultKind::Sequence)),
        }
    }

    fn open(&mut self, response: &Initialize) -> Result<HostStep<B>, Fault> {
        let asked = self.parameters.digests;
        let unrequested = |granted, asked| granted == Digest::On && asked == Digest::Off;
        if unrequested(response.digests.header, asked.header)
            || unrequested(response.digests.data, asked.data)
        {
            return Err(Fault::field(place::DIGESTS));
        }
        if response.limit < HOST_DATA_BYTES_LEAST || !response.limit.is_multiple_of(4) {
            return Err(Fault::field(place::LIMIT));
        }
        self.state = State::Open;
        self.frame = Frame { digests: response.digests, alignment: (response.data_alignment + 1) * 4 };
        self.decoder.rules.digests = response.digests;
        self.host_data_max = response.limit;
        Ok(HostStep::Opened)
    }

    fn take_response(&mut self, entry: CompletionEntry) -> Result<HostStep<B>, Fault> {
        let id = CommandId(entry.command_id.get());
        let command = self.errands.end(id).ok_or(Fault::field(place::RESPONSE_COMMAND_ID))?;
        Ok(completed(id, entry, command))
    }

    fn take_part(&mut self, part: DataPart) -> Result<(), Fault> {
        let id = CommandId(part.command_id);
        let command = self.errands.get_mut(id).ok_or(Fault::field(place::COMMAND_ID))?;
        let Transfer::In(buffer) = &command.transfer else {
            return Err(Fault::field(place::COMMAND_ID));
        };
        let end = part.offset.checked_add(part.bytes).filter(|&end| end <= length(buffer.bytes()));
        end.ok_or(Fault::of(FaultKind::OutOfRange))?;
        if part.offset != command.received || command.is_finished() {
            return Err(Fault::of(FaultKind::Sequence));
        }
        self.course = Some((id, part));
        Ok(())
    }

    fn finish_data(&mut self, check: DataCheck) -> Option<HostStep<B>> {
        let (id, part) = self.course.take()?;
        self.errands.get_mut(id)?.finish_part(&part, check);
        if !part.is_answer() {
            return None;
        }
        let entry = CompletionEntry { command_id: U16::new(id.0), ..CompletionEntry::default() };
        self.errands.end(id).map(|command| completed(id, entry, command))
    }

    /// Sends the data that an R2T requests, in PDUs of at most MAXH2CDATA.
    fn send_part(&mut self, part: &DataPart) -> Result<(), Fault> {
        let id = CommandId(part.command_id);
        let command = self.errands.get_mut(id).ok_or(Fault::field(place::COMMAND_ID))?;
        let bytes = command.ask(part)?;
        let mut at = part.offset;
        let end = part.offset + part.bytes;
        while at < end {
            let next = at.saturating_add(self.host_data_max).min(end);
            let pdu = DataPdu {
                common: short_common(PduKind::HostData, if next == end { flag::LAST_PDU } else { 0 }),
                command_id: U16::new(part.command_id),
                transfer_tag: U16::new(part.transfer_tag),
                offset: U32::new(at),
                bytes: U32::new(next - at),
                reserved: U32::new(0),
            };
            let range = index(at)..index(next);
            let fields = &pdu.as_bytes()[8..];
            let _short = self.outgoing.data(self.frame, pdu.common, fields, bytes.clone(), range);
            at = next;
        }
        Ok(())
    }

    fn fail(&mut self, fault: Fault) {
        self.state = State::Closed(Ended::Fault(fault));
        fault.write(PduKind::HostTermination, self.decoder.header_bytes(), self.outgoing.raw());
    }
}

fn completed<B: Lent + Clone>(id: CommandId, mut entry: CompletionEntry, command: Errand<B>) -> HostStep<B> {
    command.judge(&mut entry);
    HostStep::Completed(Completed { id, entry, received: command.received, transfer: command.transfer })
}

/// Converts a length to the 32-bit field of a descriptor, saturating.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn index(at: u32) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}
