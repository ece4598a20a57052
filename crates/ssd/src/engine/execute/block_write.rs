//! Commands that write blocks: Write, Deallocate, Copy.
//!
//! Input: blocks and their bytes. Output: one record a block, or a tombstone for a removed block, in one all-or-nothing
//! batch; of many blocks in parts (`block_batch.rs`). Invariant: a command writes one unbroken run of sequences, so that
//! a power cut keeps all of it or nothing; a removal of more than [`DEALLOCATE_BATCH_MAX`] blocks is several such runs.

use super::block_batch::{self, BlockWrite};
use super::block_namespace::BlockNamespace;
use super::long_batch::is_long;
use super::{ExecutionOutcome, ReleaseGate, block_read, require_durable, staged_value};
use crate::command::{Fua, Lba, LbaRange, NamespaceId, Sequence, SsdCommand, ValueSource};
use crate::engine::key_span::KeySpan;
use crate::engine::operation::{BlockProgress, DeviceOperation, OperationWork};
use crate::ftl::{Ftl, StallReason};
use crate::index::{KeyHash, RecordIndex};
use crate::limits::DEALLOCATE_BATCH_MAX;
use crate::log::RecordSource;
use crate::log::record::{HEADER_BYTES, LBA_BYTES, UNIT_BYTES, batch_flags, record_units};
use crate::media::Media;
use crate::mutant::{Mutant, mutant};
use headwater_host::copy::is_zero;
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;

const TOMBSTONE_BYTES: usize = record_units(LBA_BYTES, 0) as usize * UNIT_BYTES;

/// Runs a command that writes blocks.
pub(super) fn run<M: Media>(
    ftl: &mut Ftl<M>,
    operation: &mut DeviceOperation,
) -> Result<ExecutionOutcome, StallReason> {
    let extent = match BlockNamespace::of(ftl, operation) {
        Ok(extent) => extent,
        Err(status) => return Ok(ExecutionOutcome::status(status, Sequence(0))),
    };
    let DeviceOperation { work: OperationWork::Command(command), progress: walk, span, spans, .. } =
        operation
    else {
        unreachable!("an expiry is no command on blocks")
    };
    let (outcome, fua) = match command {
        SsdCommand::Write { start, data, fua } => (write(ftl, &extent, (*start, data), walk)?, *fua),
        SsdCommand::Deallocate { ranges, fua } => {
            if let Err(status) = ranges.iter().try_for_each(|range| extent.check_range(*range)) {
                return Ok(ExecutionOutcome::status(status, Sequence(0)));
            }
            let none = ranges.iter().all(|range| range.blocks == 0);
            let spans = if spans.is_empty() { std::slice::from_ref(span) } else { &spans[..] };
            (deallocate(ftl, &extent, if none { &[] } else { spans }, walk)?, *fua)
        }
        SsdCommand::Copy { sources, destination, fua } => {
            (copy(ftl, &extent, sources, *destination, walk)?, *fua)
        }
        _ => unreachable!("the command does not write blocks"),
    };
    Ok(with_access(outcome, fua))
}

/// Goes on with a command whose records are appended in parts.
pub(super) fn go_on<M: Media>(
    ftl: &mut Ftl<M>,
    operation: &mut DeviceOperation,
) -> Result<ExecutionOutcome, StallReason> {
    let DeviceOperation { work: OperationWork::Command(command), progress: walk, .. } = operation else {
        unreachable!("an expiry is no command on blocks")
    };
    let (data, fua) = match command {
        SsdCommand::Write { data, fua, .. } => (Some(&*data), *fua),
        SsdCommand::Deallocate { fua, .. } | SsdCommand::Copy { fua, .. } => (None, *fua),
        _ => unreachable!("the command does not write blocks"),
    };
    let wrote = match block_batch::append_part(ftl, data, walk)? {
        Ok(wrote) => wrote,
        Err(status) => return Ok(ExecutionOutcome::status(status, Sequence(0))),
    };
    walk.seen = wrote;
    let end = walk.batch.take().map(|batch| batch.end());
    if let (SsdCommand::Deallocate { .. }, Some((Some(last), DEALLOCATE_BATCH_MAX..))) = (&*command, end) {
        // Other operations run before it continues.
        walk.next_removal = Some(KeyHash(KeyHash::of_block(operation.namespace, last).0 + 1));
        ftl.release_log();
        return Err(StallReason::Turn);
    }
    Ok(with_access(ExecutionOutcome::written(wrote), fua))
}

/// Returns the outcome with the gate that a forced access needs.
fn with_access(outcome: ExecutionOutcome, fua: Fua) -> ExecutionOutcome {
    match (fua, outcome.gate) {
        (Fua::Yes, ReleaseGate::IfPromised(sequence)) if !mutant(Mutant::ForcedUnitAccessIgnored) => {
            ExecutionOutcome { gate: ReleaseGate::Durable(sequence), ..outcome }
        }
        _ => outcome,
    }
}

/// The result of a check for room on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoomCheck {
    /// The records fit.
    Available,
    /// The records exceed the device's capacity: the status of the command.
    Exceeded(Status),
}

/// Checks for room for `written` records and `removed` tombstones, in place of the present records of `blocks`.
fn check_room_for<M: Media>(
    ftl: &mut Ftl<M>,
    extent: &BlockNamespace,
    (written, removed): (usize, usize),
    blocks: impl Iterator<Item = Lba>,
) -> Result<RoomCheck, StallReason> {
    let largest = extent.record_bytes();
    let more = written * largest + removed * TOMBSTONE_BYTES;
    let old = blocks.filter_map(|lba| extent.entry(ftl, lba));
    let less = old.map(|found| found.entry.units as usize * UNIT_BYTES).sum();
    if written > 0
        && let Err(status) = ftl.check_capacity(largest, more, less)
    {
        return Ok(RoomCheck::Exceeded(status));
    }
    if is_long(ftl, written + removed, more) {
        return block_batch::check_room(ftl, more).map(|()| RoomCheck::Available);
    }
    // A record that does not fit into a block leaves the block's end unused: an eighth more covers it.
    let slack = if written + removed > 1 { more / 8 } else { 0 };
    ftl.check_client_room(more + slack)?;
    Ok(RoomCheck::Available)
}

fn write<M: Media>(
    ftl: &mut Ftl<M>,
    extent: &BlockNamespace,
    (start, data): (Lba, &ValueSource),
    walk: &mut BlockProgress,
) -> Result<ExecutionOutcome, StallReason> {
    let (bytes, count) = (extent.format.bytes(), data.len() >> extent.format.shift());
    let range = LbaRange { start, blocks: narrow(count) };
    if let Err(status) = extent.check_range(range) {
        return Ok(ExecutionOutcome::status(status, Sequence(0)));
    }
    let blocks = || (start.0..).map(Lba).take(count);
    let is_in_parts = is_long(ftl, count, count * extent.record_bytes());
    if is_in_parts && let Err(status) = block_batch::stage_part(data, walk)? {
        return Ok(ExecutionOutcome::status(status, Sequence(0)));
    }
    if let RoomCheck::Exceeded(status) = check_room_for(ftl, extent, (count, 0), blocks())? {
        return Ok(ExecutionOutcome::status(status, Sequence(0)));
    }
    if is_in_parts {
        let records = blocks().zip((0..).step_by(bytes).map(Some)).collect();
        return Err(block_batch::begin(ftl, extent, records, walk));
    }
    let data = match staged_value::stage(data) {
        Ok(data) => data,
        Err(status) => return Ok(ExecutionOutcome::status(status, Sequence(0))),
    };
    let last = count.saturating_sub(1);
    let mut wrote = Sequence(0);
    for (index, lba) in blocks().enumerate() {
        let at = index * bytes;
        let value = match &*data {
            ValueSource::Bytes(data) => RecordSource::Bytes(&data[at..at + bytes]),
            ValueSource::Received { .. } => unreachable!("a command on blocks brings its bytes"),
            ValueSource::Client(segments) => RecordSource::Part { segments, offset: at, len: bytes },
        };
        wrote = extent.write(ftl, lba, Some(value), batch_flags(index, last));
    }
    Ok(ExecutionOutcome::written(wrote))
}

/// Removes the existing blocks of these spans.
fn deallocate<M: Media>(
    ftl: &mut Ftl<M>,
    extent: &BlockNamespace,
    spans: &[KeySpan],
    walk: &mut BlockProgress,
) -> Result<ExecutionOutcome, StallReason> {
    let end = KeyHash::of_block(extent.namespace, Lba(extent.size - 1));
    let first = KeyHash::of_block(extent.namespace, Lba(0));
    let doomed = next_removals(ftl, extent.namespace, spans, walk.next_removal);
    if doomed.is_empty() {
        // The removal that made the blocks absent may not be durable yet.
        walk.seen = walk.seen.max(ftl.last_removal());
        return Ok(ExecutionOutcome::written(walk.seen));
    }
    let whole = spans.iter().any(|span| span.first <= first && span.last >= end);
    if whole && doomed.len() > 1 {
        ftl.check_client_room(HEADER_BYTES)?;
        let (sequence, _) = ftl.clear(extent.namespace, 0);
        return Ok(ExecutionOutcome::written(sequence));
    }
    let room = check_room_for(ftl, extent, (0, doomed.len()), std::iter::empty())?;
    if let RoomCheck::Exceeded(status) = room {
        return Ok(ExecutionOutcome::status(status, Sequence(0)));
    }
    if is_long(ftl, doomed.len(), 0) {
        let records = doomed.iter().map(|block| (block.namespace_and_lba().1, None)).collect();
        return Err(block_batch::begin(ftl, extent, records, walk));
    }
    let last = doomed.len() - 1;
    for (index, block) in doomed.iter().enumerate() {
        walk.seen = extent.write(ftl, block.namespace_and_lba().1, None, batch_flags(index, last));
    }
    if doomed.len() < DEALLOCATE_BATCH_MAX {
        return Ok(ExecutionOutcome::written(walk.seen));
    }
    walk.next_removal = doomed.last().map(|block| KeyHash(block.0 + 1));
    // Other operations run before it continues.
    Err(StallReason::Pages(Vec::new()))
}

/// Returns true if a removal may skip absent blocks. While an earlier removal is not durable, a power cut may lose that
/// one and keep this one, so this one must write its own tombstones; so it must if the medium may have lost a block.
fn absence_is_final<M: Media>(ftl: &Ftl<M>, namespace: NamespaceId) -> bool {
    ftl.is_absence_final(namespace) || mutant(Mutant::AbsentBlockSkipped)
}

/// Returns the next blocks of these spans to remove, at most one batch: the existing ones; or all blocks, if they fit
/// one batch and the absence of absent ones is not durable.
fn next_removals<M: Media>(
    ftl: &Ftl<M>,
    namespace: NamespaceId,
    spans: &[KeySpan],
    from: Option<KeyHash>,
) -> Vec<KeyHash> {
    let mut doomed = Vec::new();
    let first = |span: &KeySpan| span.first.max(from.unwrap_or(span.first));
    if !absence_is_final(ftl, namespace) {
        let blocks = spans.iter().map(|span| (span.last.0 + 1).saturating_sub(first(span).0));
        let fits = blocks.fold(0, u64::saturating_add) <= DEALLOCATE_BATCH_MAX as u64;
        let all = spans.iter().flat_map(|span| (first(span).0..=span.last.0).map(KeyHash));
        doomed.extend(all.take_while(|_| fits));
    }
    if !doomed.is_empty() {
        return doomed;
    }
    for span in spans {
        let mut next = first(span);
        while doomed.len() < DEALLOCATE_BATCH_MAX {
            let found = ftl.index().next(next).filter(|(_, entry)| entry.namespace == namespace);
            let Some((block, _)) = found.filter(|(block, _)| *block <= span.last) else {
                break;
            };
            doomed.push(block);
            next = KeyHash(block.0 + 1);
        }
    }
    doomed
}

fn copy<M: Media>(
    ftl: &mut Ftl<M>,
    extent: &BlockNamespace,
    sources: &[LbaRange],
    destination: Lba,
    walk: &mut BlockProgress,
) -> Result<ExecutionOutcome, StallReason> {
    let count: u32 = sources.iter().map(|range| range.blocks).sum();
    let target = LbaRange { start: destination, blocks: count };
    if let Err(status) = sources.iter().chain([&target]).try_for_each(|range| extent.check_range(*range)) {
        return Ok(ExecutionOutcome::status(status, Sequence(0)));
    }
    let status = block_read::read_copy_sources(ftl, extent, sources, walk)?;
    if !status.is_success() {
        return Ok(ExecutionOutcome::status(status, walk.seen));
    }
    // If a power cut lost a write of several blocks but kept a copy of one, the write would have taken effect in part.
    require_durable(ftl, walk.seen_in_batch)?;
    let (bytes, for_good) = (extent.format.bytes(), absence_is_final(ftl, extent.namespace));
    // A block of zeroes needs no record: the record of an overwritten block is removed instead.
    let blocks = (destination.0..).map(Lba).zip(walk.bytes.chunks_exact(bytes));
    let blocks: Vec<BlockWrite> = blocks
        .zip((0..).step_by(bytes))
        .map(|((lba, block), at)| (lba, (!is_zero(block)).then_some(at)))
        .filter(|(lba, block)| block.is_some() || !for_good || extent.entry(ftl, *lba).is_some())
        .collect();
    let written = blocks.iter().filter(|(_, block)| block.is_some()).count();
    let counts = (written, blocks.len() - written);
    let room = check_room_for(ftl, extent, counts, blocks.iter().map(|(lba, _)| *lba))?;
    if let RoomCheck::Exceeded(status) = room {
        return Ok(ExecutionOutcome::status(status, walk.seen));
    }
    if is_long(ftl, blocks.len(), written * extent.record_bytes()) {
        return Err(block_batch::begin(ftl, extent, blocks, walk));
    }
    let last = blocks.len().saturating_sub(1);
    let mut wrote = walk.seen;
    for (index, (lba, at)) in blocks.into_iter().enumerate() {
        let block = at.map(|at| RecordSource::Bytes(&walk.bytes[at..at + bytes]));
        wrote = extent.write(ftl, lba, block, batch_flags(index, last));
    }
    Ok(ExecutionOutcome::written(wrote))
}
