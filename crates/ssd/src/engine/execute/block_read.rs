//! Commands that read blocks: Read, Verify, Compare, and the first half of Copy.
//!
//! Input: ranges of blocks. Output: their bytes, or the status of their comparison or verification. Blocks are read as
//! their pages arrive, in parts between which other operations run, and no block is read twice: a transfer has many
//! megabytes, and a verification may cover all blocks of a namespace. Invariant: a block without a record reads as zeroes,
//! and the bytes of a block with a wrong checksum are never returned.

use super::block_namespace::{BlockNamespace, BlockRecord};
use super::{ExecutionOutcome, ReleaseGate, batch_sequence, staged_value};
use crate::command::{Lba, LbaRange, Sequence, SsdCommand, SsdCompletion, ValueSink, ValueSource};
use crate::engine::operation::{BlockProgress, DeviceOperation, OperationWork};
use crate::ftl::{Ftl, SinkRange, StallReason};
use crate::limits::COPY_PART_BYTES;
use crate::media::Media;
use crate::namespace::BlockFormat;
use headwater_host::width::{narrow, to_usize};
use headwater_nvme::spec::status::Status;

const BLOCK_BYTES_MAX: usize = BlockFormat::B4096.bytes();
static ZEROES: [u8; BLOCK_BYTES_MAX] = [0; BLOCK_BYTES_MAX];

/// The purpose for which blocks are read.
enum ReadPurpose<'a> {
    /// To copy their bytes into this sink.
    Sink(&'a mut ValueSink),
    /// To compare them with these bytes.
    Compare(&'a ValueSource),
    /// To verify that they can be read.
    Verify,
}

/// Runs a command that reads blocks and writes none.
#[inline]
pub(super) fn run<M: Media>(
    ftl: &mut Ftl<M>,
    operation: &mut DeviceOperation,
) -> Result<ExecutionOutcome, StallReason> {
    let extent = match BlockNamespace::of(ftl, operation) {
        Ok(extent) => extent,
        Err(status) => {
            // The namespace was removed or changed when a part of it was read.
            discard_parts(operation);
            return Ok(ExecutionOutcome::status(status, Sequence(0)));
        }
    };
    let DeviceOperation { work: OperationWork::Command(command), progress: walk, .. } = operation else {
        unreachable!("an expiry is no command on blocks")
    };
    let (range, mut purpose) = match command {
        SsdCommand::Read { range, sink } => (*range, ReadPurpose::Sink(sink)),
        SsdCommand::Verify { range } => (*range, ReadPurpose::Verify),
        SsdCommand::Compare { start, data } => {
            let blocks = narrow(data.len() >> extent.format.shift());
            (LbaRange { start: *start, blocks }, ReadPurpose::Compare(data))
        }
        _ => unreachable!("the command does not read blocks"),
    };
    if let Err(status) = extent.check_range(range) {
        return Ok(ExecutionOutcome::status(status, Sequence(0)));
    }
    let mut status = walk_blocks(ftl, &extent, &[range], walk, &mut purpose)?;
    let lost = match &purpose {
        ReadPurpose::Sink(sink) => staged_value::has_lost_pages(sink),
        ReadPurpose::Compare(ValueSource::Client(segments)) => segments.has_lost_pages(),
        ReadPurpose::Compare(ValueSource::Received { .. }) => {
            unreachable!("a command on blocks brings its bytes")
        }
        ReadPurpose::Compare(ValueSource::Bytes(_)) | ReadPurpose::Verify => false,
    };
    if lost && matches!(status, Status::SUCCESS | Status::COMPARE_FAILURE) {
        status = Status::DATA_TRANSFER_ERROR;
    }
    let mut completion = SsdCompletion::new(0, status);
    completion.sequence = walk.seen;
    if let ReadPurpose::Sink(_) = purpose
        && status.is_success()
    {
        completion.value_bytes = range.blocks << extent.format.shift();
    }
    Ok(ExecutionOutcome { completion, gate: ReleaseGate::IfPromised(walk.seen) })
}

/// Reads the sources of a copy into the byte buffer of `progress`.
pub(super) fn read_copy_sources<M: Media>(
    ftl: &mut Ftl<M>,
    extent: &BlockNamespace,
    sources: &[LbaRange],
    walk: &mut BlockProgress,
) -> Result<Status, StallReason> {
    let mut sink = ValueSink::Bytes(std::mem::take(&mut walk.bytes));
    let status = walk_blocks(ftl, extent, sources, walk, &mut ReadPurpose::Sink(&mut sink));
    if let ValueSink::Bytes(bytes) = sink {
        walk.bytes = bytes;
    }
    status
}

/// Reads the blocks of all ranges, from the progress in `progress` on.
#[inline]
fn walk_blocks<M: Media>(
    ftl: &mut Ftl<M>,
    extent: &BlockNamespace,
    ranges: &[LbaRange],
    walk: &mut BlockProgress,
    purpose: &mut ReadPurpose<'_>,
) -> Result<Status, StallReason> {
    let blocks_in_part = COPY_PART_BYTES as u64 >> extent.format.shift();
    let mut before = 0;
    for (number, range) in ranges.iter().enumerate() {
        let blocks = u64::from(range.blocks);
        while walk.blocks_done < before + blocks {
            let lba = Lba(range.start.0 + (walk.blocks_done - before));
            let status = match read_block(ftl, extent, lba, walk, purpose) {
                Ok(status) => status,
                Err(StallReason::Pages(_)) => {
                    let here = LbaRange { start: lba, blocks: blocks_left(range, lba) };
                    let ahead = std::iter::once(&here).chain(&ranges[number + 1..]).flat_map(blocks_of);
                    return Err(StallReason::Pages(extent.missing_pages(ftl, ahead)));
                }
                Err(StallReason::Unreadable(_) | StallReason::InDoubt) => {
                    discard_output(extent, walk, purpose);
                    return Ok(Status::UNRECOVERED_READ_ERROR);
                }
                Err(stall) => return Err(stall),
            };
            if !status.is_success() {
                discard_output(extent, walk, purpose);
                ftl.count_damaged(u64::from(status == Status::UNRECOVERED_READ_ERROR));
                return Ok(status);
            }
            let part = walk.blocks_done / blocks_in_part;
            walk.blocks_done += 1;
            if let ReadPurpose::Verify = purpose {
                // Absent blocks of a namespace in doubt are looked at one by one.
                let certain = !ftl.doubts().is_in_doubt(extent.namespace);
                walk.blocks_done += u64::from(certain)
                    * extent.absent_run(ftl, LbaRange { start: lba, blocks: blocks_left(range, lba) });
            }
            if walk.blocks_done < before + blocks && walk.blocks_done / blocks_in_part != part {
                return Err(StallReason::Turn);
            }
        }
        before += blocks;
    }
    Ok(Status::SUCCESS)
}

fn blocks_left(range: &LbaRange, from: Lba) -> u32 {
    narrow(range.start.0 + u64::from(range.blocks) - from.0)
}

fn blocks_of(range: &LbaRange) -> impl Iterator<Item = Lba> + use<> {
    let start = range.start.0;
    (start..start + u64::from(range.blocks)).map(Lba)
}

/// Removes from the sink of a read the parts that were read before the command failed as a whole.
fn discard_parts(operation: &mut DeviceOperation) {
    let done = operation.progress.blocks_done << operation.format.map_or(0, BlockFormat::shift);
    if let OperationWork::Command(SsdCommand::Read { sink: ValueSink::Bytes(bytes), .. }) =
        &mut operation.work
    {
        bytes.truncate(bytes.len() - to_usize(done));
    }
}

/// Removes from the sink what a failed read has put there.
#[expect(clippy::cast_possible_truncation, reason = "what was read is in memory, so its length is a usize")]
fn discard_output(extent: &BlockNamespace, walk: &BlockProgress, purpose: &mut ReadPurpose<'_>) {
    if let ReadPurpose::Sink(ValueSink::Bytes(bytes)) = purpose {
        bytes.truncate(bytes.len() - ((walk.blocks_done as usize) << extent.format.shift()));
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the bytes of a command are limited at submission")]
fn read_block<M: Media>(
    ftl: &Ftl<M>,
    extent: &BlockNamespace,
    lba: Lba,
    walk: &mut BlockProgress,
    purpose: &mut ReadPurpose<'_>,
) -> Result<Status, StallReason> {
    let bytes = extent.format.bytes();
    let at = (walk.blocks_done as usize) << extent.format.shift();
    let (found, header) = match extent.find(ftl, lba)? {
        BlockRecord::Damaged => return Ok(Status::UNRECOVERED_READ_ERROR),
        BlockRecord::Absent => {
            // The removal that made it absent may not be durable yet; the sequence of the last removal covers it.
            walk.seen = walk.seen.max(ftl.last_removal());
            walk.seen_in_batch = walk.seen_in_batch.max(ftl.last_multi_key_removal());
            return Ok(read_absent_block(&ZEROES[..bytes], at, purpose));
        }
        BlockRecord::Present(found, header) => (found, header),
    };
    walk.seen_in_batch = walk.seen_in_batch.max(batch_sequence(&header));
    let intact = match purpose {
        ReadPurpose::Verify => ftl.is_intact(found.entry, &header)?,
        ReadPurpose::Sink(sink) => {
            let window = SinkRange { offset: at, skip: 0, bytes_max: header.value_bytes };
            ftl.read_value(found.entry, &header, sink, window)?
        }
        ReadPurpose::Compare(data) => {
            let mut sink = ValueSink::Bytes(std::mem::take(&mut walk.bytes));
            let intact =
                ftl.read_value(found.entry, &header, &mut sink, SinkRange::front(header.value_bytes));
            if let ValueSink::Bytes(bytes) = sink {
                walk.bytes = bytes;
            }
            let intact = intact?;
            let same = !intact || payload_equals(data, at, &walk.bytes);
            walk.bytes.clear();
            if !same {
                walk.seen = walk.seen.max(header.sequence);
                return Ok(Status::COMPARE_FAILURE);
            }
            intact
        }
    };
    walk.seen = walk.seen.max(header.sequence);
    Ok(if intact { Status::SUCCESS } else { Status::UNRECOVERED_READ_ERROR })
}

fn read_absent_block(zeroes: &[u8], at: usize, purpose: &mut ReadPurpose<'_>) -> Status {
    match purpose {
        ReadPurpose::Sink(ValueSink::Bytes(bytes)) => bytes.extend_from_slice(zeroes),
        ReadPurpose::Sink(ValueSink::Client(segments)) => {
            segments.copy_out(at, zeroes);
        }
        ReadPurpose::Compare(data) if !payload_equals(data, at, zeroes) => return Status::COMPARE_FAILURE,
        ReadPurpose::Compare(_) | ReadPurpose::Verify => {}
    }
    Status::SUCCESS
}

/// Returns true if the payload holds these bytes at this offset. Client memory is copied first, because the client may
/// change it during the comparison.
fn payload_equals(data: &ValueSource, at: usize, block: &[u8]) -> bool {
    match data {
        ValueSource::Bytes(bytes) => bytes.get(at..at + block.len()) == Some(block),
        ValueSource::Received { .. } => unreachable!("a command on blocks brings its bytes"),
        ValueSource::Client(segments) => {
            let mut copy = [0; BLOCK_BYTES_MAX];
            let copy = &mut copy[..block.len()];
            segments.copy_in(at, copy) == block.len() && copy == block
        }
    }
}
