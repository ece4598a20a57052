//! From the addresses of a command to its bytes.
//!
//! In: an entry, its command, and the memory table of the client that sent it. Out: [`Data`], or the status that refuses
//! it. Invariant: every address is resolved whole before the command starts, and what a list says is read once.
//!
//! # The flat data pointer
//! Clients in this process and attached ones have memory with addresses of its own ([`dma::iova`](headwater_dma::iova)),
//! in which every buffer is one run. So PRP Entry 1 is the address of the first byte, of any alignment, and PRP Entry 2 is
//! zero. SGLs are refused.

use super::Data;
use crate::nvme::interpreter::{DataNeed, IoCommand, IoOperation};
use headwater_dma::iova::{ClientMemory, DataTransferError, Iova, IovaRange, Segments};
use headwater_nvme::data_pointer::{DataRange, PageBytes, Transfer, data_ranges};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::sgl::PointerKind;
use headwater_nvme::spec::status::Status;

/// What a data pointer is to a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressMode {
    /// PRP Entry 1 is the address of all data.
    #[default]
    Flat,
    /// NVMe's own: PRPs of pages of this size, or an SGL, as PSDT says. What a guest's driver writes.
    Lists(PageBytes),
}

/// Finds the bytes of commands. Keeps room for lists from one command to the next.
#[derive(Debug, Default)]
pub struct Places {
    ranges: Vec<DataRange>,
}

impl Places {
    /// Finds the bytes of a command.
    ///
    /// # Errors
    /// [`Status::DATA_TRANSFER_ERROR`] for an address that is not the client's, [`Status::INVALID_FIELD`] for a pointer of
    /// a kind that the mode does not have, and what [`data_ranges`] finds wrong with a list.
    #[inline]
    pub fn find(
        &mut self,
        command: &IoCommand,
        entry: &SubmissionEntry,
        memory: &ClientMemory,
        mode: AddressMode,
    ) -> Result<Data, Status> {
        if let IoOperation::Put { key, value } | IoOperation::Get { key, buffer: value } = command.operation {
            return Ok(Data::Keyed { key: run(memory, key)?, value: run(memory, value)? });
        }
        let transfer = match command.data() {
            DataNeed::None => return Ok(Data::None),
            DataNeed::FromHost(bytes) => Transfer::FromHost(bytes),
            DataNeed::ToHost(bytes) => Transfer::ToHost(bytes),
        };
        let segments = match mode {
            AddressMode::Flat => flat(entry, transfer.bytes(), memory),
            AddressMode::Lists(page) => self.listed(entry, transfer, memory, page),
        };
        segments.map(Data::Client)
    }

    fn listed(
        &mut self,
        entry: &SubmissionEntry,
        transfer: Transfer,
        memory: &ClientMemory,
        page: PageBytes,
    ) -> Result<Segments, Status> {
        let read = |at: Iova, into: &mut [u8]| memory.read(at, into).map_err(|error| unmapped(&error));
        data_ranges(entry, transfer, page, read, &mut self.ranges)?;
        let mut segments = Segments::default();
        for range in &self.ranges {
            match *range {
                DataRange::Memory(range) => memory
                    .append(&mut segments, range.start, u64::from(range.bytes))
                    .map_err(|error| unmapped(&error))?,
                DataRange::Discard(bytes) => segments.discard(bytes as usize),
            }
        }
        Ok(segments)
    }
}

#[inline]
fn flat(entry: &SubmissionEntry, bytes: u32, memory: &ClientMemory) -> Result<Segments, Status> {
    if entry.pointer_kind() != PointerKind::Prp || entry.prp2.get() != 0 {
        return Err(Status::INVALID_FIELD);
    }
    run(memory, IovaRange { start: Iova(entry.prp1.get()), bytes })
}

#[inline]
fn run(memory: &ClientMemory, range: IovaRange) -> Result<Segments, Status> {
    memory.resolve(range.start, u64::from(range.bytes)).map_err(|error| unmapped(&error))
}

/// An address that is not the client's: NVMe has one word for all of these.
fn unmapped(_: &DataTransferError) -> Status {
    Status::DATA_TRANSFER_ERROR
}
