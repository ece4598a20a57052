//! Resolves the addresses of a command in client memory.
//!
//! Input: an entry, its command, and the memory table of the client that sent it. Output: [`RequestData`], or the status that
//! refuses it. Invariant: every address is resolved completely before the command starts, and each list is read once.
//!
//! # The flat data pointer
//! Clients in this process and attached ones use IOVAs ([`dma::iova`](headwater_dma::iova)), in which every buffer is
//! contiguous. So PRP Entry 1 is the address of the first byte, of any alignment, and PRP Entry 2 is zero. Data in several
//! buffers is an SGL, as every host writes it.

use super::RequestData;
use crate::nvme::decoder::{DataNeed, IoCommand, IoOperation};
use headwater_dma::iova::{ClientMemory, ClientSegments, DataTransferError, Iova, IovaRange};
use headwater_nvme::data_pointer::{DataRange, HostTransfer, PageBytes, data_ranges};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::sgl::PointerKind;
use headwater_nvme::spec::status::Status;

/// The kind of a client's data pointers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressMode {
    /// PRP Entry 1 is the address of the contiguous data, unless PSDT selects an SGL.
    #[default]
    Flat,
    /// PRPs of pages of this size, or an SGL, as PSDT selects; written by a guest's driver.
    Lists(PageBytes),
}

/// The resolver of data addresses, which reuses its buffer for lists from one command to the next.
#[derive(Debug, Default)]
pub struct AddressResolver {
    ranges: Vec<DataRange>,
}

impl AddressResolver {
    /// Resolves the data of a command.
    ///
    /// # Errors
    /// [`Status::DATA_TRANSFER_ERROR`] for an address outside the client's memory, [`Status::INVALID_FIELD`] for a
    /// pointer of a kind that the mode does not have, and the errors of [`data_ranges`] for an invalid list.
    #[inline]
    pub fn resolve(
        &mut self,
        command: &IoCommand,
        entry: &SubmissionEntry,
        memory: &ClientMemory,
        mode: AddressMode,
    ) -> Result<RequestData, Status> {
        if let IoOperation::Put { key, value } | IoOperation::Get { key, buffer: value } = command.operation {
            return Ok(RequestData::KeyAndValue {
                key: resolve_range(memory, key)?,
                value: resolve_range(memory, value)?,
            });
        }
        let transfer = match command.data() {
            DataNeed::None => return Ok(RequestData::None),
            DataNeed::FromHost(bytes) => HostTransfer::FromHost(bytes),
            DataNeed::ToHost(bytes) => HostTransfer::ToHost(bytes),
        };
        let segments = match mode {
            AddressMode::Flat if entry.pointer_kind() == PointerKind::Prp => {
                resolve_flat(entry, transfer.bytes(), memory)
            }
            // An SGL has no pages.
            AddressMode::Flat => self.resolve_list(entry, transfer, memory, PageBytes::MIN),
            AddressMode::Lists(page) => self.resolve_list(entry, transfer, memory, page),
        };
        segments.map(RequestData::Client)
    }

    fn resolve_list(
        &mut self,
        entry: &SubmissionEntry,
        transfer: HostTransfer,
        memory: &ClientMemory,
        page: PageBytes,
    ) -> Result<ClientSegments, Status> {
        let read = |at: Iova, into: &mut [u8]| memory.read(at, into).map_err(|error| transfer_error(&error));
        data_ranges(entry, transfer, page, read, &mut self.ranges)?;
        let mut segments = ClientSegments::default();
        for range in &self.ranges {
            match *range {
                DataRange::Memory(range) => memory
                    .append(&mut segments, range.start, u64::from(range.bytes))
                    .map_err(|error| transfer_error(&error))?,
                DataRange::Discard(bytes) => segments.discard(bytes as usize),
            }
        }
        Ok(segments)
    }
}

#[inline]
fn resolve_flat(
    entry: &SubmissionEntry,
    bytes: u32,
    memory: &ClientMemory,
) -> Result<ClientSegments, Status> {
    if entry.prp2.get() != 0 {
        return Err(Status::INVALID_FIELD);
    }
    resolve_range(memory, IovaRange { start: Iova(entry.prp1.get()), bytes })
}

#[inline]
fn resolve_range(memory: &ClientMemory, range: IovaRange) -> Result<ClientSegments, Status> {
    memory.resolve(range.start, u64::from(range.bytes)).map_err(|error| transfer_error(&error))
}

/// Returns the one NVMe status for all addresses outside the client's memory.
fn transfer_error(_: &DataTransferError) -> Status {
    Status::DATA_TRANSFER_ERROR
}
