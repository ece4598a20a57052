//! Appends the records of a command on many blocks in parts: all of them, or none.
//!
//! Input: a command that writes blocks, whose room was checked. Output: the sequence of its last record, or the stall after
//! which it goes on. Invariant: the log is reserved from the first record to behind the last one
//! (`ftl/log_reservation.rs`), and nothing can refuse the command in between but the medium.
//!
//! No record must be found for this: the index alone says what is replaced, at the moment of each append.

use super::block_namespace::BlockNamespace;
use crate::command::{Lba, Sequence, ValueSource};
use crate::engine::operation::BlockProgress;
use crate::ftl::{Ftl, StallReason};
use crate::limits::COPY_PART_BYTES;
use crate::log::RecordSource;
use crate::log::flash_log::AppendSize;
use crate::log::record::batch_flags;
use crate::media::{Media, PAGE_DATA_BYTES};
use headwater_nvme::spec::status::Status;

/// A record of a command: the block, and the offset of its bytes; without one the block is removed.
pub(super) type BlockWrite = (Lba, Option<usize>);

/// The records of a command, while they are appended.
#[derive(Debug)]
pub(crate) struct BlockBatch {
    extent: BlockNamespace,
    records: Vec<BlockWrite>,
    /// Records appended.
    appended: usize,
    /// The sequence of the last one.
    wrote: Sequence,
}

impl BlockBatch {
    /// Returns the last block and the number of records.
    pub(super) fn end(&self) -> (Option<Lba>, usize) {
        (self.records.last().map(|(lba, _)| *lba), self.records.len())
    }
}

/// Checks the room of records of `bytes`: blocks for all of them, and frames for a part.
pub(super) fn check_room<M: Media>(ftl: &mut Ftl<M>, bytes: usize) -> Result<(), StallReason> {
    // A record that does not fit into a block leaves the block's end unused: an eighth more covers it.
    let bytes = bytes + bytes / 8;
    ftl.check_client_append(AppendSize { bytes, drafted: bytes })?;
    ftl.check_draft_room(frame_bytes(bytes.min(COPY_PART_BYTES)))
}

/// Copies the next part of memory that the client can take away to the progress. Stalls until all is copied.
///
/// # Errors
/// [`Status::DATA_TRANSFER_ERROR`] if a page of it is gone.
pub(super) fn stage_part(
    data: &ValueSource,
    walk: &mut BlockProgress,
) -> Result<Result<(), Status>, StallReason> {
    let ValueSource::Client(segments) = data else { return Ok(Ok(())) };
    let at = walk.bytes.len();
    if !segments.can_lose_pages() || at == segments.bytes() {
        return Ok(Ok(()));
    }
    walk.bytes.reserve_exact(segments.bytes() - at);
    let len = COPY_PART_BYTES.min(segments.bytes() - at);
    walk.bytes.resize(at + len, 0);
    if segments.copy_in(at, &mut walk.bytes[at..]) != len {
        return Ok(Err(Status::DATA_TRANSFER_ERROR));
    }
    if at + len < segments.bytes() { Err(StallReason::Turn) } else { Ok(Ok(())) }
}

/// Reserves the log for these records. Their bytes are those of the progress, or of the command if it has none.
pub(super) fn begin<M: Media>(
    ftl: &mut Ftl<M>,
    extent: &BlockNamespace,
    records: Vec<BlockWrite>,
    walk: &mut BlockProgress,
) -> StallReason {
    ftl.reserve_log();
    let batch = BlockBatch { extent: *extent, records, appended: 0, wrote: walk.seen };
    walk.batch = Some(Box::new(batch));
    StallReason::Turn
}

/// Appends the next records. Returns the sequence of the last one when all are appended.
pub(super) fn append_part<M: Media>(
    ftl: &mut Ftl<M>,
    data: Option<&ValueSource>,
    walk: &mut BlockProgress,
) -> Result<Result<Sequence, Status>, StallReason> {
    let BlockProgress { batch: Some(batch), bytes: copied, .. } = walk else {
        unreachable!("blocks are appended to a batch that did not begin")
    };
    if ftl.failure().is_some() {
        return Ok(Err(Status::MEDIUM_FAILED));
    }
    let block_bytes = batch.extent.format.bytes();
    let record_bytes = batch.extent.record_bytes();
    let count = ftl.part_writes().min((COPY_PART_BYTES / record_bytes).max(1));
    let end = batch.records.len().min(batch.appended + count);
    ftl.check_draft_room(frame_bytes((end - batch.appended) * record_bytes))?;
    let last = batch.records.len() - 1;
    for index in batch.appended..end {
        let (lba, offset) = batch.records[index];
        let value = offset.map(|at| match data {
            Some(ValueSource::Client(segments)) if copied.is_empty() => {
                RecordSource::Part { segments, offset: at, len: block_bytes }
            }
            Some(ValueSource::Bytes(bytes)) => RecordSource::Bytes(&bytes[at..at + block_bytes]),
            _ => RecordSource::Bytes(&copied[at..at + block_bytes]),
        });
        batch.wrote = batch.extent.write(ftl, lba, value, batch_flags(index, last));
    }
    batch.appended = end;
    if end <= last { Err(StallReason::Turn) } else { Ok(Ok(batch.wrote)) }
}

/// Returns the bytes of frames that records of `bytes` may take: those at the end of a block leave a rest.
const fn frame_bytes(bytes: usize) -> usize {
    bytes + bytes / 8 + 4 * PAGE_DATA_BYTES
}
