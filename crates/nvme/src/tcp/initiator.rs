//! The host's end of a connection.
//!
//! Input: commands with their data or buffers; bytes from the controller.
//! Output: bytes to send; completions that return the buffers.
//! Invariant: every submitted command is returned exactly once, by [`InitiatorStep::Completed`] or by
//! [`InitiatorConnection::abandon`]; received data is written directly to its buffer.
//!
//! ```text
//!          new: ICReq queued            ICResp                fault, or termination request
//!   AwaitingInitialize ------------------------> Open ----------------------------------------> Closed
//!           |                 fault, or any other PDU first                                       ^
//!           +-------------------------------------------------------------------------------------+
//! ```

mod pending_commands;

use super::capsule_data::CapsuleData;
use super::decoder::{DataCheck, DecoderStep, PduDecoder};
use super::fault::{TcpFault, TcpFaultKind};
use super::header::{
    DataPart, HeaderRules, InitializeFields, PduFields, PduHeader, ReceiverRole, field_offset,
};
use super::limits::{HOST_DATA_BYTES_MIN, PDU_DATA_BYTES_MAX, QUEUE_ENTRIES_MAX};
use super::send_queue::{DataFraming, LentBytes, SendQueue};
use super::target::{CloseReason, short_common};
use super::{DigestMode, DigestSettings};
use crate::spec::command::SubmissionEntry;
use crate::spec::completion::CompletionEntry;
use crate::spec::tcp::{CommandPdu, CommonHeader, DataPdu, InitializePdu, PduKind, flag};
use headwater_host::width::narrow;
use pending_commands::{InitiatorCommand, InitiatorCommandTable};
use std::ops::Range;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

pub use pending_commands::CommandId;

/// The parameters that a host requests for a connection.
#[derive(Clone, Copy, Debug)]
pub struct InitiatorParameters {
    /// Requested digests.
    pub digests: DigestSettings,
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
            digests: DigestSettings::default(),
            data_alignment: 0,
            r2ts_max: 0,
            depth: 128,
            in_capsule_max: 8_192,
        }
    }
}

/// The data of a command, lent to the connection.
#[derive(Debug)]
pub enum CommandTransfer<B> {
    /// No data.
    None,
    /// Data to the controller.
    Out(B),
    /// A buffer for data from the controller, up to its length.
    In(B),
}

impl<B: LentBytes> CommandTransfer<B> {
    /// Returns the length of the data.
    fn bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Out(buffer) | Self::In(buffer) => buffer.bytes(),
        }
    }
}

/// A completed command.
#[derive(Debug)]
pub struct InitiatorCompletion<B> {
    /// The identifier that `submit` returned.
    pub id: CommandId,
    /// The completion queue entry.
    pub entry: CompletionEntry,
    /// The buffer lent for the command.
    pub transfer: CommandTransfer<B>,
    /// Bytes received into the buffer.
    pub received: u32,
}

/// The next event of a connection.
#[derive(Debug)]
pub enum InitiatorStep<B> {
    /// The connection needs more bytes.
    NeedInput,
    /// The controller accepted the connection; commands may be submitted.
    Opened,
    /// A command completed.
    Completed(InitiatorCompletion<B>),
    /// No more input is read. The caller sends the queued bytes, then closes the connection.
    Closed(CloseReason),
}

/// The error of a command that was not submitted; it returns the lent buffer.
#[derive(Debug)]
pub enum InitiatorSubmitError<B> {
    /// The maximum number of commands is outstanding.
    Full(CommandTransfer<B>),
    /// The connection is not open.
    NotOpen(CommandTransfer<B>),
    /// The data is 4 GiB or longer, which no command can describe.
    TooLong(CommandTransfer<B>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InitiatorState {
    AwaitingInitialize,
    Open,
    Closed(CloseReason),
}

/// The host's state machine of one connection.
#[derive(Debug)]
pub struct InitiatorConnection<B> {
    state: InitiatorState,
    parameters: InitiatorParameters,
    decoder: PduDecoder,
    frame: DataFraming,
    host_data_max: u32,
    pending: InitiatorCommandTable<B>,
    /// The command whose data is being received.
    receiving_data: Option<(CommandId, DataPart)>,
    outgoing: SendQueue<B>,
}

impl<B: LentBytes + Clone> InitiatorConnection<B> {
    /// Creates the state of a new connection and queues its ICReq.
    #[must_use]
    pub fn new(parameters: InitiatorParameters) -> Self {
        let data_alignment = parameters.data_alignment.min(31);
        let rules = HeaderRules {
            receiver: ReceiverRole::Host,
            digests: DigestSettings::default(),
            alignment: (data_alignment + 1) * 4,
            in_capsule_max: 0,
            data_max: u32::MAX,
        };
        let bit = |digest, bit| if digest == DigestMode::On { bit } else { 0 };
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
        let mut outgoing = SendQueue::default();
        outgoing.copied_mut().extend_from_slice(pdu.as_bytes());
        Self {
            state: InitiatorState::AwaitingInitialize,
            parameters,
            decoder: PduDecoder::new(rules),
            frame: DataFraming { digests: DigestSettings::default(), alignment: 4 },
            host_data_max: HOST_DATA_BYTES_MIN,
            pending: InitiatorCommandTable::new(parameters.depth.clamp(1, QUEUE_ENTRIES_MAX)),
            receiving_data: None,
            outgoing,
        }
    }

    /// Submits a command. Sets its identifier and data pointer; the caller sets all other fields.
    ///
    /// # Errors
    /// [`InitiatorSubmitError`], which returns the lent buffer.
    pub fn submit(
        &mut self,
        mut entry: SubmissionEntry,
        transfer: CommandTransfer<B>,
    ) -> Result<CommandId, InitiatorSubmitError<B>> {
        if self.state != InitiatorState::Open {
            return Err(InitiatorSubmitError::NotOpen(transfer));
        }
        let Ok(bytes) = u32::try_from(transfer.bytes()) else {
            return Err(InitiatorSubmitError::TooLong(transfer));
        };
        let in_capsule_max = self.parameters.in_capsule_max.min(PDU_DATA_BYTES_MAX);
        let data = match &transfer {
            CommandTransfer::None => CapsuleData::None,
            CommandTransfer::Out(_) if bytes <= in_capsule_max => CapsuleData::InCapsule { offset: 0, bytes },
            CommandTransfer::Out(_) | CommandTransfer::In(_) => CapsuleData::Transport { bytes },
        };
        let in_capsule = match &transfer {
            CommandTransfer::Out(bytes)
                if matches!(data, CapsuleData::InCapsule { .. }) && bytes.bytes() > 0 =>
            {
                Some(bytes.clone())
            }
            _ => None,
        };
        let id = self.pending.insert(transfer).map_err(InitiatorSubmitError::Full)?;
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
    pub fn advance(&mut self, input: &mut &[u8]) -> InitiatorStep<B> {
        loop {
            if let InitiatorState::Closed(ended) = self.state {
                return InitiatorStep::Closed(ended);
            }
            let found = match self.decoder.decode(input) {
                Ok(DecoderStep::NeedInput) => return InitiatorStep::NeedInput,
                Ok(DecoderStep::Header(header)) => self.take_header(&header),
                Ok(DecoderStep::Data(bytes)) => {
                    if let Some(command) = self.receiving() {
                        command.put(bytes);
                    }
                    Ok(None)
                }
                Ok(DecoderStep::End(check)) => Ok(self.finish_data(check)),
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
    /// receive directly into it and then call [`note_direct_data`](Self::note_direct_data).
    pub fn destination(&mut self) -> Option<(&mut B, Range<usize>)> {
        let bytes = usize::try_from(self.decoder.data_left()).ok().filter(|&bytes| bytes > 0)?;
        let command = self.receiving()?;
        let at = command.received_bytes();
        match &mut command.transfer {
            CommandTransfer::In(buffer) => Some((buffer, at..at + bytes)),
            _ => None,
        }
    }

    /// Accounts for the first `bytes` bytes of [`destination`](Self::destination), which were received directly.
    ///
    /// # Panics
    /// If `bytes` exceeds the range of `destination`.
    pub fn note_direct_data(&mut self, bytes: usize) {
        if let Some((id, _)) = self.receiving_data
            && let Some(command) = self.pending.get_mut(id)
        {
            let at = command.received_bytes();
            if let CommandTransfer::In(buffer) = &command.transfer {
                self.decoder.note_direct_data(bytes, |crc| buffer.crc32c(crc, at..at + bytes));
                command.received += narrow::<usize, u32>(bytes);
            }
        }
    }

    /// Returns the send queue.
    #[must_use]
    #[inline]
    pub const fn outgoing(&self) -> &SendQueue<B> {
        &self.outgoing
    }

    /// Returns the send queue, to remove sent bytes.
    #[inline]
    pub const fn outgoing_mut(&mut self) -> &mut SendQueue<B> {
        &mut self.outgoing
    }

    /// Returns the number of outstanding commands.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.pending.live()
    }

    /// Returns true if commands may be submitted.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.state, InitiatorState::Open)
    }

    /// Closes the connection and returns every outstanding command with its lent buffer. The controller may have
    /// executed some of them.
    pub fn abandon(&mut self) -> Vec<(CommandId, CommandTransfer<B>)> {
        self.receiving_data = None;
        if !matches!(self.state, InitiatorState::Closed(_)) {
            self.state = InitiatorState::Closed(CloseReason::Peer { status: 0, information: 0 });
        }
        self.pending.drain()
    }

    fn receiving(&mut self) -> Option<&mut InitiatorCommand<B>> {
        let (id, _) = self.receiving_data?;
        self.pending.get_mut(id)
    }

    fn take_header(&mut self, header: &PduHeader) -> Result<Option<InitiatorStep<B>>, TcpFault> {
        match (self.state, header.fields) {
            (_, PduFields::Termination { status, information }) => {
                self.state = InitiatorState::Closed(CloseReason::Peer { status, information });
                Ok(None)
            }
            (InitiatorState::AwaitingInitialize, PduFields::Initialize(response)) => {
                self.open(&response).map(Some)
            }
            (InitiatorState::Open, PduFields::Response(entry)) => self.take_response(entry).map(Some),
            (InitiatorState::Open, PduFields::Data(part)) => self.begin_data(part).map(|()| None),
            (InitiatorState::Open, PduFields::ReadyToTransfer(part)) => self.answer_r2t(&part).map(|()| None),
            _ => Err(TcpFault::of(TcpFaultKind::Sequence)),
        }
    }

    fn open(&mut self, response: &InitializeFields) -> Result<InitiatorStep<B>, TcpFault> {
        let asked = self.parameters.digests;
        let unrequested = |granted, asked| granted == DigestMode::On && asked == DigestMode::Off;
        if unrequested(response.digests.header, asked.header)
            || unrequested(response.digests.data, asked.data)
        {
            return Err(TcpFault::invalid_field(field_offset::DIGESTS));
        }
        if response.limit < HOST_DATA_BYTES_MIN || !response.limit.is_multiple_of(4) {
            return Err(TcpFault::invalid_field(field_offset::LIMIT));
        }
        self.state = InitiatorState::Open;
        self.frame = DataFraming { digests: response.digests, alignment: (response.data_alignment + 1) * 4 };
        self.decoder.rules.digests = response.digests;
        self.host_data_max = response.limit.min(PDU_DATA_BYTES_MAX);
        Ok(InitiatorStep::Opened)
    }

    fn take_response(&mut self, entry: CompletionEntry) -> Result<InitiatorStep<B>, TcpFault> {
        let id = CommandId(entry.command_id.get());
        let command =
            self.pending.remove(id).ok_or(TcpFault::invalid_field(field_offset::RESPONSE_COMMAND_ID))?;
        Ok(completed(id, entry, command))
    }

    fn begin_data(&mut self, part: DataPart) -> Result<(), TcpFault> {
        let id = CommandId(part.command_id);
        let command = self.pending.get_mut(id).ok_or(TcpFault::invalid_field(field_offset::COMMAND_ID))?;
        let CommandTransfer::In(buffer) = &command.transfer else {
            return Err(TcpFault::invalid_field(field_offset::COMMAND_ID));
        };
        let end = part.offset.checked_add(part.bytes).filter(|&end| end as usize <= buffer.bytes());
        end.ok_or(TcpFault::of(TcpFaultKind::OutOfRange))?;
        if part.offset != command.received || command.is_finished() {
            return Err(TcpFault::of(TcpFaultKind::Sequence));
        }
        self.receiving_data = Some((id, part));
        Ok(())
    }

    fn finish_data(&mut self, check: DataCheck) -> Option<InitiatorStep<B>> {
        let (id, part) = self.receiving_data.take()?;
        self.pending.get_mut(id)?.finish_part(&part, check);
        if !part.implies_response() {
            return None;
        }
        let entry = CompletionEntry { command_id: U16::new(id.0), ..CompletionEntry::default() };
        self.pending.remove(id).map(|command| completed(id, entry, command))
    }

    /// Sends the data that an R2T requests, in PDUs of at most MAXH2CDATA.
    fn answer_r2t(&mut self, part: &DataPart) -> Result<(), TcpFault> {
        let id = CommandId(part.command_id);
        let command = self.pending.get_mut(id).ok_or(TcpFault::invalid_field(field_offset::COMMAND_ID))?;
        let bytes = command.accept_r2t(part)?;
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
            let range = at as usize..next as usize;
            let fields = &pdu.as_bytes()[8..];
            let _short = self.outgoing.data(self.frame, pdu.common, fields, bytes.clone(), range);
            at = next;
        }
        Ok(())
    }

    fn fail(&mut self, fault: TcpFault) {
        self.state = InitiatorState::Closed(CloseReason::Fault(fault));
        fault.write_termination(
            PduKind::HostTermination,
            self.decoder.header_bytes(),
            self.outgoing.copied_mut(),
        );
    }
}

fn completed<B: LentBytes + Clone>(
    id: CommandId,
    mut entry: CompletionEntry,
    command: InitiatorCommand<B>,
) -> InitiatorStep<B> {
    command.apply_data_check(&mut entry);
    InitiatorStep::Completed(InitiatorCompletion {
        id,
        entry,
        received: command.received,
        transfer: command.transfer,
    })
}
