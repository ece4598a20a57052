//! The controller's end of a connection.
//!
//! Input: bytes from a host. Output: commands, then a notification when the data of each is complete, or for each part
//! of it; responses and data as bytes to send.
//! Invariant: a command passed to the caller is answered once; its identifier is live until then. A command whose data
//! is corrupt, or whose data pointer is invalid, is answered here and never becomes [`TargetStep::Ready`].
//!
//! ```text
//!                        ICReq                      fault, or termination request
//!   AwaitingInitialize ---------> Open ------------------------------------------> Closed
//!           |                 fault, or any other PDU first                           ^
//!           +-------------------------------------------------------------------------+
//! ```

mod command_data;
mod exchange;
mod host_data;
mod interface;

use super::capsule_data::CapsuleData;
use super::decoder::{DataCheck, DecoderStep, PduDecoder};
use super::fault::{TcpFault, TcpFaultKind};
use super::header::{
    DataPart, HeaderRules, InitializeFields, PduFields, PduHeader, ReceiverRole, field_offset,
};
use super::limits::{ADMIN_IN_CAPSULE_BYTES, PDU_DATA_BYTES_MAX, QUEUE_ENTRIES_MAX, SLOTS_BEFORE_CONNECT};
use super::send_queue::{DataFraming, SendQueue};
use super::{DigestMode, DigestSettings};
use crate::controller::live_ids::LiveIds;
use crate::spec::command::SubmissionEntry;
use crate::spec::completion::CompletionEntry;
use crate::spec::status::Status;
use crate::spec::tcp::{CommonHeader, DataPdu, InitializePdu, PduKind, flag};
pub use command_data::CommandData;
use exchange::{CommandExchange, DataIntegrity, ExchangeStage};
use headwater_dma::pool::Pool;
use headwater_host::width::narrow;
pub use interface::{
    ArrivingPart, CloseReason, ExchangeSlot, FlowControl, NeedOutcome, TargetParameters, TargetResponse,
    TargetStep, TransferNeed,
};
use std::collections::VecDeque;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetState {
    AwaitingInitialize,
    Open,
    Closed(CloseReason),
}

/// The destination of the data of the current PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataDestination {
    Discard,
    Command(ExchangeSlot),
}

/// The controller's state machine of one connection.
#[derive(Debug)]
pub struct TargetConnection {
    state: TargetState,
    parameters: TargetParameters,
    pool: Option<Pool>,
    decoder: PduDecoder,
    frame: DataFraming,
    r2ts_max: u32,
    exchanges: Vec<CommandExchange>,
    free: Vec<u16>,
    live: LiveIds,
    destination: DataDestination,
    waiting: VecDeque<ExchangeSlot>,
    /// Bytes of unanswered writes requested by R2T.
    requested_write_bytes: usize,
    flow: FlowControl,
    queue_entries: u16,
    head: u16,
    outgoing: SendQueue<Vec<u8>>,
}

impl TargetConnection {
    /// Creates the state of a newly accepted connection.
    #[must_use]
    pub fn new(parameters: TargetParameters) -> Self {
        let rules = HeaderRules {
            receiver: ReceiverRole::Controller,
            digests: DigestSettings::default(),
            alignment: 4,
            in_capsule_max: parameters.in_capsule_max.max(ADMIN_IN_CAPSULE_BYTES),
            data_max: parameters.host_data_max,
        };
        let mut connection = Self {
            state: TargetState::AwaitingInitialize,
            parameters,
            pool: None,
            decoder: PduDecoder::new(rules),
            frame: DataFraming { digests: DigestSettings::default(), alignment: 4 },
            r2ts_max: 1,
            exchanges: Vec::new(),
            free: Vec::new(),
            live: LiveIds::new(),
            destination: DataDestination::Discard,
            waiting: VecDeque::new(),
            requested_write_bytes: 0,
            flow: FlowControl::Enabled,
            queue_entries: u16::MAX,
            head: 0,
            outgoing: SendQueue::default(),
        };
        connection.grow_slots(SLOTS_BEFORE_CONNECT);
        connection
    }

    /// Returns the connection with a pool for long data of commands.
    #[must_use]
    pub fn with_pool(self, pool: Pool) -> Self {
        Self { pool: Some(pool), ..self }
    }

    /// Consumes bytes from the front of `input` up to the next event.
    pub fn advance(&mut self, input: &mut &[u8]) -> TargetStep {
        loop {
            if let TargetState::Closed(ended) = self.state {
                return TargetStep::Closed(ended);
            }
            if let Some(slot) = self.part_in_front(input) {
                return TargetStep::Part(slot);
            }
            let found = match self.decoder.decode(input) {
                Ok(DecoderStep::NeedInput) => return TargetStep::NeedInput,
                Ok(DecoderStep::Header(header)) => self.take_header(&header),
                Ok(DecoderStep::Data(bytes)) => {
                    if let DataDestination::Command(slot) = self.destination {
                        self.exchange(slot).accept(bytes);
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

    /// Declares the data that the command just returned by [`advance`](Self::advance) needs.
    ///
    /// # Panics
    /// If the slot holds no such command, or if the parts of a need are longer than all of it.
    pub fn declare_need(&mut self, slot: ExchangeSlot, need: TransferNeed) -> NeedOutcome {
        let exchange = self.exchange(slot);
        assert_eq!(
            exchange.stage,
            ExchangeStage::AwaitingNeed,
            "the command in slot {} awaits no data need",
            slot.0
        );
        let (TransferNeed::FromHost(bytes)
        | TransferNeed::ToHost(bytes)
        | TransferNeed::InParts { bytes, .. }) = need
        else {
            exchange.stage = ExchangeStage::Running;
            return self.discard_capsule_data(slot);
        };
        if bytes > exchange.data_limit() {
            self.respond(slot, TargetResponse::status(Status::DATA_SGL_LENGTH_INVALID));
            return NeedOutcome::Refused;
        }
        if bytes == 0 || matches!(need, TransferNeed::ToHost(_)) {
            exchange.stage = ExchangeStage::Running;
            return self.discard_capsule_data(slot);
        }
        exchange.needed = bytes;
        match (exchange.data_pointer, need) {
            (Some(CapsuleData::InCapsule { offset, .. }), _) => {
                exchange.stage = ExchangeStage::InCapsule { skip: offset };
                if self.reserve_data(slot).is_err() {
                    self.respond(slot, TargetResponse::status(Status::INTERNAL_ERROR));
                    return NeedOutcome::Refused;
                }
            }
            (_, TransferNeed::InParts { direct: direct @ 1.., .. }) => {
                exchange.begin_parts(direct);
                self.discard_capsule_data(slot);
            }
            _ => {
                exchange.stage = ExchangeStage::Waiting;
                self.discard_capsule_data(slot);
                self.waiting.push_back(slot);
                self.request_waiting_data();
            }
        }
        NeedOutcome::Later
    }

    /// Takes the data of a ready command: of one in parts, what lies behind the parts.
    ///
    /// # Panics
    /// If the slot does not exist on this connection.
    pub fn take_data(&mut self, slot: ExchangeSlot) -> CommandData {
        std::mem::take(&mut self.exchange(slot).data)
    }

    /// Completes a command with a response.
    ///
    /// # Panics
    /// If the slot holds no unanswered command.
    pub fn respond(&mut self, slot: ExchangeSlot, response: TargetResponse) {
        let _ = self.discard_capsule_data(slot);
        let exchange = self.exchange(slot);
        assert_ne!(
            exchange.stage,
            ExchangeStage::Free,
            "response to slot {}, which holds no command",
            slot.0
        );
        let command_id = exchange.entry.command_id.get();
        let granted = exchange.granted_bytes();
        let room = exchange.data_limit().min(PDU_DATA_BYTES_MAX) as usize;
        exchange.stage = ExchangeStage::Free;
        self.requested_write_bytes -= granted;
        self.live.remove(command_id);
        self.free.push(slot.0);
        self.send_response(command_id, response, room);
        self.request_waiting_data();
    }

    /// Returns the slot of the running command with this identifier: its data is complete and it is not answered.
    /// Searches all slots.
    #[must_use]
    pub fn running(&self, command_id: u16) -> Option<ExchangeSlot> {
        self.find(command_id, ExchangeStage::Running)
    }

    /// Returns true if the slot holds a command that is not answered. One whose data is in parts is answered without a step if
    /// there is no memory for the rest of its data.
    #[must_use]
    pub fn is_unanswered(&self, slot: ExchangeSlot) -> bool {
        self.exchanges.get(usize::from(slot.0)).is_some_and(|exchange| exchange.stage != ExchangeStage::Free)
    }

    fn find(&self, command_id: u16, stage: ExchangeStage) -> Option<ExchangeSlot> {
        let is_it = |exchange: &CommandExchange| {
            exchange.stage == stage && exchange.entry.command_id.get() == command_id
        };
        self.exchanges.iter().position(is_it).and_then(|at| u16::try_from(at).ok()).map(ExchangeSlot)
    }

    /// Holds a running command that waits without a time limit, an Asynchronous Event Request. A host that uses its
    /// identifier for another command has given it up; then the slot is free before that command is returned.
    pub fn hold(&mut self, slot: ExchangeSlot) {
        self.exchange(slot).stage = ExchangeStage::Held;
    }

    /// Frees the slot of a held command. Returns false if none has this identifier.
    fn give_up_held(&mut self, command_id: u16) -> bool {
        let Some(slot) = self.find(command_id, ExchangeStage::Held) else { return false };
        self.exchange(slot).stage = ExchangeStage::Free;
        self.free.push(slot.0);
        true
    }

    /// Sets the size and flow control of the queue that Connect created on this connection.
    pub fn set_queue(&mut self, entries: u16, flow: FlowControl) {
        let entries = entries.clamp(2, QUEUE_ENTRIES_MAX);
        self.queue_entries = entries;
        self.head %= entries;
        self.flow = flow;
        self.grow_slots(entries);
    }

    /// Returns the send queue.
    #[must_use]
    #[inline]
    pub const fn outgoing(&self) -> &SendQueue<Vec<u8>> {
        &self.outgoing
    }

    /// Returns the send queue, to remove sent bytes.
    #[inline]
    pub const fn outgoing_mut(&mut self) -> &mut SendQueue<Vec<u8>> {
        &mut self.outgoing
    }

    /// Returns true if the host has opened the connection and it is not closed.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.state, TargetState::Open)
    }

    /// Returns the number of commands that wait for data or for their response.
    #[must_use]
    #[inline]
    pub fn live_commands(&self) -> usize {
        self.exchanges.len() - self.free.len()
    }

    fn exchange(&mut self, slot: ExchangeSlot) -> &mut CommandExchange {
        &mut self.exchanges[usize::from(slot.0)]
    }

    fn grow_slots(&mut self, count: u16) {
        let have = narrow(self.exchanges.len());
        self.free.splice(0..0, (have..count).rev());
        self.exchanges.resize_with(usize::from(have.max(count)), CommandExchange::default);
    }

    /// Discards further in-capsule data of a command.
    fn discard_capsule_data(&mut self, slot: ExchangeSlot) -> NeedOutcome {
        if self.destination == DataDestination::Command(slot) {
            self.destination = DataDestination::Discard;
        }
        NeedOutcome::Now
    }

    fn take_header(&mut self, header: &PduHeader) -> Result<Option<TargetStep>, TcpFault> {
        self.destination = DataDestination::Discard;
        match (self.state, header.fields) {
            (_, PduFields::Termination { status, information }) => {
                self.state = TargetState::Closed(CloseReason::Peer { status, information });
                Ok(None)
            }
            (TargetState::AwaitingInitialize, PduFields::Initialize(request)) => {
                self.open(&request);
                Ok(None)
            }
            (TargetState::Open, PduFields::Command(entry)) => self.take_command(entry, header.data_bytes),
            (TargetState::Open, PduFields::Data(part)) => self.begin_data(&part).map(|()| None),
            _ => Err(TcpFault::of(TcpFaultKind::Sequence)),
        }
    }

    fn open(&mut self, request: &InitializeFields) {
        self.state = TargetState::Open;
        self.frame = DataFraming { digests: request.digests, alignment: (request.data_alignment + 1) * 4 };
        self.decoder.rules.digests = request.digests;
        self.r2ts_max = request.limit.saturating_add(1);
        let bit = |digest, bit| if digest == DigestMode::On { bit } else { 0 };
        let pdu = InitializePdu {
            common: CommonHeader {
                kind: PduKind::InitializeResponse.number(),
                flags: 0,
                header_bytes: 128,
                data_offset: 0,
                pdu_bytes: U32::new(128),
            },
            format_version: U16::new(0),
            data_alignment: 0,
            digests: bit(request.digests.header, 1) | bit(request.digests.data, 2),
            limit: U32::new(self.parameters.host_data_max),
            reserved: [0; 112],
        };
        self.outgoing.copied_mut().extend_from_slice(pdu.as_bytes());
    }

    fn take_command(
        &mut self,
        entry: SubmissionEntry,
        capsule_bytes: u32,
    ) -> Result<Option<TargetStep>, TcpFault> {
        let next = self.head + 1;
        self.head = if next >= self.queue_entries { 0 } else { next };
        let command_id = entry.command_id.get();
        let is_new = self.live.insert(command_id) || self.give_up_held(command_id);
        let &index = self.free.last().ok_or(TcpFault::of(TcpFaultKind::Sequence))?;
        let slot = ExchangeSlot(index);
        if !is_new {
            self.send_response(command_id, TargetResponse::status(Status::COMMAND_ID_CONFLICT), 0);
            return Ok(None);
        }
        self.free.pop();
        let data = CapsuleData::of(&entry, capsule_bytes);
        self.exchange(slot).begin(entry, data.unwrap_or(CapsuleData::None));
        if let Err(status) = data {
            self.respond(slot, TargetResponse::status(status));
            return Ok(None);
        }
        if capsule_bytes > 0 {
            self.destination = DataDestination::Command(slot);
        }
        Ok(Some(TargetStep::Command { slot, entry }))
    }

    fn begin_data(&mut self, part: &DataPart) -> Result<(), TcpFault> {
        let r2t_bytes = self.parameters.r2t_bytes;
        let exchange = self.exchanges.get(usize::from(part.transfer_tag));
        exchange
            .ok_or(TcpFault::invalid_field(field_offset::TRANSFER_TAG))?
            .validate_data(part, r2t_bytes)?;
        self.destination = DataDestination::Command(ExchangeSlot(part.transfer_tag));
        Ok(())
    }

    fn finish_data(&mut self, check: DataCheck) -> Option<TargetStep> {
        let DataDestination::Command(slot) =
            std::mem::replace(&mut self.destination, DataDestination::Discard)
        else {
            return None;
        };
        let exchange = self.exchange(slot);
        if check == DataCheck::Corrupt {
            exchange.integrity = DataIntegrity::Corrupt;
        }
        if exchange.is_in_parts() {
            return self.finish_part(slot);
        }
        if !exchange.is_complete() {
            self.send_r2ts(slot);
            return None;
        }
        if exchange.integrity == DataIntegrity::Corrupt {
            return self.fail_corrupt(slot);
        }
        exchange.stage = ExchangeStage::Running;
        Some(TargetStep::Ready(slot))
    }

    fn send_response(&mut self, command_id: u16, response: TargetResponse, room: usize) {
        let TargetResponse { result, mut status, data } = response;
        if data.len() > room {
            status = Status::INTERNAL_ERROR;
        }
        if status.is_success() && !data.is_empty() {
            let implied = self.flow == FlowControl::Disabled && result == 0;
            self.send_data(command_id, data, if implied { flag::SUCCESS } else { 0 });
            if implied {
                return;
            }
        }
        let [a, b, c, d, e, f, g, h] = result.to_le_bytes();
        let entry = CompletionEntry {
            result: U32::from_bytes([a, b, c, d]),
            reserved: U32::from_bytes([e, f, g, h]),
            submission_head: U16::new(match self.flow {
                FlowControl::Enabled => self.head,
                FlowControl::Disabled => u16::MAX,
            }),
            submission_queue: U16::new(0),
            command_id: U16::new(command_id),
            status_and_phase: U16::new(status.to_field()),
        };
        let common = short_common(PduKind::Response, 0);
        self.outgoing.header(common, entry.as_bytes(), self.frame.digests.header);
    }

    fn send_data(&mut self, command_id: u16, data: Vec<u8>, success: u8) {
        let bytes = data.len();
        let pdu = DataPdu {
            common: short_common(PduKind::ControllerData, flag::LAST_PDU | success),
            command_id: U16::new(command_id),
            transfer_tag: U16::new(0),
            offset: U32::new(0),
            bytes: U32::new(narrow(bytes)),
            reserved: U32::new(0),
        };
        let _short = self.outgoing.data(self.frame, pdu.common, &pdu.as_bytes()[8..], data, 0..bytes);
    }

    fn fail(&mut self, fault: TcpFault) {
        self.state = TargetState::Closed(CloseReason::Fault(fault));
        fault.write_termination(
            PduKind::ControllerTermination,
            self.decoder.header_bytes(),
            self.outgoing.copied_mut(),
        );
    }
}

/// Returns the common header of a PDU whose header has 24 bytes; its length is set when the PDU is queued.
pub(super) fn short_common(kind: PduKind, flags: u8) -> CommonHeader {
    CommonHeader { kind: kind.number(), flags, header_bytes: 24, data_offset: 0, pdu_bytes: U32::new(0) }
}
