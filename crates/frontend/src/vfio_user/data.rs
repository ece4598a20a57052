//! From what an entry says about its data to the guest's memory.
//!
//! In: entries and the guest's memory. Out: [`Segments`] that are exactly as long as the data, words for rings, or the
//! status that refuses the command. Invariant: everything a command names is resolved before it starts.

use headwater_dma::iova::{ClientMemory, Iova, Segments};
use headwater_host::ring_memory::ForeignWords;
use headwater_nvme::data_pointer::{DataRange, PageBytes, Transfer, data_ranges};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use headwater_ssd::nvme::interpreter::{DataNeed, IoCommand};
use headwater_ssd::nvme::request::Data;

/// Finds the data of entries. Keeps the room that it needs for that.
#[derive(Debug, Default)]
pub(super) struct DataFinder {
    ranges: Vec<DataRange>,
}

impl DataFinder {
    /// The data of a command of an I/O queue.
    #[inline]
    pub(super) fn of_command(
        &mut self,
        command: &IoCommand,
        entry: &SubmissionEntry,
        memory: &ClientMemory,
    ) -> Result<Data, Status> {
        let transfer = match command.data() {
            DataNeed::None => return Ok(Data::None),
            DataNeed::FromHost(bytes) => Transfer::FromHost(bytes),
            DataNeed::ToHost(bytes) => Transfer::ToHost(bytes),
        };
        self.of_entry(entry, transfer, memory).map(Data::Client)
    }

    /// So many bytes that an entry points at.
    #[inline]
    pub(super) fn of_entry(
        &mut self,
        entry: &SubmissionEntry,
        transfer: Transfer,
        memory: &ClientMemory,
    ) -> Result<Segments, Status> {
        let read = |at: Iova, into: &mut [u8]| {
            let bytes = u64::try_from(into.len()).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            let list = memory.resolve(at, bytes).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            if list.copy_in(0, into) == into.len() { Ok(()) } else { Err(Status::DATA_TRANSFER_ERROR) }
        };
        data_ranges(entry, transfer, PageBytes::MIN, read, &mut self.ranges)?;
        let mut segments = Segments::default();
        for range in &self.ranges {
            match *range {
                DataRange::Memory(range) => memory
                    .append(&mut segments, range.start, u64::from(range.bytes))
                    .map_err(|_| Status::DATA_TRANSFER_ERROR)?,
                DataRange::Discard(bytes) => segments.discard(usize::try_from(bytes).unwrap_or(0)),
            }
        }
        Ok(segments)
    }
}

/// Words of the guest's memory for a ring, if they are there.
pub(super) fn words(memory: &ClientMemory, at: Iova, words: usize) -> Option<ForeignWords> {
    let bytes = u64::try_from(words).ok()?.checked_mul(8)?;
    let (region, offset) = memory.in_one_piece(at, bytes).ok()?;
    ForeignWords::new(region, offset, words).ok()
}
