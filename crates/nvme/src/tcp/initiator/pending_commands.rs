//! The table of a host's pending commands and their lent buffers.
//!
//! Input: transfers. Output: identifiers, and the transfers when the commands end.
//! Invariant: an identifier carries a generation, so a duplicate response matches no command.

use super::super::decoder::DataCheck;
use super::super::fault::{TcpFault, TcpFaultKind};
use super::super::header::{DataPart, LastPdu, ResponseMode, field_offset};
use super::super::send_queue::LentBytes;
use super::CommandTransfer;
use crate::spec::completion::CompletionEntry;
use crate::spec::status::Status;
use headwater_host::width::narrow;
use zerocopy::little_endian::U16;

/// The identifier of an outstanding command: its slot in the low bits, its generation above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandId(pub u16);

/// Bits of a slot index; they limit the number of outstanding commands.
const SLOT_BITS: u32 = 10;
const SLOT_MASK: u16 = (1 << SLOT_BITS) - 1;

impl CommandId {
    /// Returns the slot index, below the connection's depth.
    #[must_use]
    #[inline]
    pub const fn slot(self) -> usize {
        (self.0 & SLOT_MASK) as usize
    }
}

/// The progress of a read's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadProgress {
    /// More data may follow.
    Receiving,
    /// The last data PDU was received.
    Finished,
}

/// An outstanding command.
#[derive(Debug)]
pub(super) struct InitiatorCommand<B> {
    pub(super) transfer: CommandTransfer<B>,
    /// Bytes received.
    pub(super) received: u32,
    /// Bytes requested by R2Ts.
    requested: u32,
    progress: ReadProgress,
    check: DataCheck,
}

impl<B: LentBytes + Clone> InitiatorCommand<B> {
    /// Copies received data to the buffer. The caller has checked that it fits.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let at = self.received_bytes();
        if let CommandTransfer::In(buffer) = &mut self.transfer {
            buffer.write_at(at, bytes);
        }
        self.received += narrow::<usize, u32>(bytes.len());
    }

    pub(super) fn received_bytes(&self) -> usize {
        self.received as usize
    }

    pub(super) fn is_finished(&self) -> bool {
        self.progress == ReadProgress::Finished
    }

    pub(super) fn finish_part(&mut self, part: &DataPart, check: DataCheck) {
        if check == DataCheck::Corrupt {
            self.check = check;
        }
        if part.last == LastPdu::Yes {
            self.progress = ReadProgress::Finished;
        }
    }

    /// Validates an R2T: its data exists, is in order and was not requested before (section 3.6.2.10). Returns the
    /// data.
    pub(super) fn accept_r2t(&mut self, part: &DataPart) -> Result<B, TcpFault> {
        let CommandTransfer::Out(bytes) = &self.transfer else {
            return Err(TcpFault::invalid_field(field_offset::COMMAND_ID));
        };
        if part.bytes == 0 {
            return Err(TcpFault::invalid_field(field_offset::BYTES));
        }
        let end = part.offset.checked_add(part.bytes).filter(|&end| end as usize <= bytes.bytes());
        let end = end.ok_or(TcpFault::of(TcpFaultKind::OutOfRange))?;
        if part.offset != self.requested {
            return Err(TcpFault::of(TcpFaultKind::Sequence));
        }
        self.requested = end;
        Ok(bytes.clone())
    }

    /// Replaces a success by a transport error if the data digest was wrong.
    pub(super) fn apply_data_check(&self, entry: &mut CompletionEntry) {
        if self.check == DataCheck::Corrupt && entry.status().is_success() {
            entry.status_and_phase = U16::new(Status::TRANSIENT_TRANSPORT_ERROR.to_field());
        }
    }
}

impl DataPart {
    /// Returns true if the data PDU implies the response.
    pub(super) fn implies_response(&self) -> bool {
        self.response == ResponseMode::Implied
    }
}

#[derive(Debug)]
struct InitiatorSlot<B> {
    generation: u16,
    command: Option<InitiatorCommand<B>>,
}

/// All pending commands, by slot.
#[derive(Debug)]
pub(super) struct InitiatorCommandTable<B> {
    slots: Vec<InitiatorSlot<B>>,
    free: Vec<u16>,
}

impl<B: LentBytes + Clone> InitiatorCommandTable<B> {
    pub(super) fn new(depth: u16) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(usize::from(depth), || InitiatorSlot { generation: 0, command: None });
        Self { slots, free: (0..depth).rev().collect() }
    }

    /// Allocates a slot, or returns the transfer if none is free.
    pub(super) fn insert(&mut self, transfer: CommandTransfer<B>) -> Result<CommandId, CommandTransfer<B>> {
        let Some(index) = self.free.pop() else {
            return Err(transfer);
        };
        let slot = &mut self.slots[usize::from(index)];
        slot.command = Some(InitiatorCommand {
            transfer,
            received: 0,
            requested: 0,
            progress: ReadProgress::Receiving,
            check: DataCheck::Valid,
        });
        Ok(CommandId(slot.generation << SLOT_BITS | index))
    }

    pub(super) fn get_mut(&mut self, id: CommandId) -> Option<&mut InitiatorCommand<B>> {
        let slot = self.slots.get_mut(id.slot())?;
        if slot.generation != id.0 >> SLOT_BITS {
            return None;
        }
        slot.command.as_mut()
    }

    pub(super) fn remove(&mut self, id: CommandId) -> Option<InitiatorCommand<B>> {
        self.get_mut(id)?;
        let slot = &mut self.slots[id.slot()];
        slot.generation = (slot.generation + 1) & (u16::MAX >> SLOT_BITS);
        self.free.push(id.0 & SLOT_MASK);
        slot.command.take()
    }

    pub(super) fn live(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn drain(&mut self) -> Vec<(CommandId, CommandTransfer<B>)> {
        let ids: Vec<CommandId> = (0_u16..)
            .zip(&self.slots)
            .filter(|(_, slot)| slot.command.is_some())
            .map(|(index, slot)| CommandId(slot.generation << SLOT_BITS | index))
            .collect();
        ids.into_iter().filter_map(|id| self.remove(id).map(|command| (id, command.transfer))).collect()
    }
}
