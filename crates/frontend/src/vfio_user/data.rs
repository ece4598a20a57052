//! Resolution of an entry's data pointer to the guest's memory.
//!
//! Input: entries and the guest's memory. Output: [`ClientSegments`] that are exactly as long as the data, words for
//! rings, or the status that refuses the command. Invariant: everything a command names is resolved before it starts.

use headwater_dma::iova::{ClientMemory, ClientSegments, Iova};
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_nvme::data_pointer::{DataRange, HostTransfer, PageBytes, data_ranges};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use headwater_ssd::nvme::decoder::{DataNeed, IoCommand};
use headwater_ssd::nvme::request::RequestData;

/// A resolver of data pointers, with a reusable buffer.
#[derive(Debug, Default)]
pub(super) struct DataResolver {
    ranges: Vec<DataRange>,
}

impl DataResolver {
    /// Resolves the data of a command of an I/O queue.
    #[inline]
    pub(super) fn resolve_command(
        &mut self,
        command: &IoCommand,
        entry: &SubmissionEntry,
        memory: &ClientMemory,
    ) -> Result<RequestData, Status> {
        let transfer = match command.data() {
            DataNeed::None => return Ok(RequestData::None),
            DataNeed::FromHost(bytes) => HostTransfer::FromHost(bytes),
            DataNeed::ToHost(bytes) => HostTransfer::ToHost(bytes),
        };
        self.resolve_entry(entry, transfer, memory).map(RequestData::Client)
    }

    /// Resolves the bytes of a transfer by an entry's data pointer.
    #[inline]
    pub(super) fn resolve_entry(
        &mut self,
        entry: &SubmissionEntry,
        transfer: HostTransfer,
        memory: &ClientMemory,
    ) -> Result<ClientSegments, Status> {
        let read = |at: Iova, into: &mut [u8]| {
            let bytes = u64::try_from(into.len()).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            let list = memory.resolve(at, bytes).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            if list.copy_in(0, into) == into.len() { Ok(()) } else { Err(Status::DATA_TRANSFER_ERROR) }
        };
        data_ranges(entry, transfer, PageBytes::MIN, read, &mut self.ranges)?;
        let mut segments = ClientSegments::default();
        for range in &self.ranges {
            match *range {
                DataRange::Memory(range) => memory
                    .append(&mut segments, range.start, u64::from(range.bytes))
                    .map_err(|_| Status::DATA_TRANSFER_ERROR)?,
                DataRange::Discard(bytes) => segments.discard(bytes as usize),
            }
        }
        if matches!(transfer, HostTransfer::ToHost(_)) && !segments.is_writable() {
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        let (resolved, bytes) = (segments.bytes(), transfer.bytes());
        assert!(resolved == bytes as usize, "{resolved} bytes are resolved for a transfer of {bytes}");
        Ok(segments)
    }
}

/// Returns words of the guest's memory for a ring, if one region contains them.
pub(super) fn ring_words(memory: &ClientMemory, at: Iova, words: usize) -> Option<SharedMemoryWords> {
    let bytes = u64::try_from(words).ok()?.checked_mul(8)?;
    let (region, offset) = memory.map_contiguous(at, bytes).ok()?;
    SharedMemoryWords::new(region, offset, words).ok()
}
