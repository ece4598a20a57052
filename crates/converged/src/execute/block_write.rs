//! Commands that write blocks: Write, Deallocate, Copy.
//!
//! In: blocks and their bytes. Out: one record a block, or a tombstone for a block that goes, in one all-or-nothing batch.
//! Invariant: what a command writes is one unbroken run of sequences, so that a power cut leaves all of it or nothing; a
//! removal of more than [`DEALLOCATE_BATCH_MAX`] blocks is several such runs.

use super::extent::Extent;
use super::{Gate, Outcome, block_read, must_be_durable};
use crate::command::{Command, Fua, Lba, LbaRange, NamespaceId, Payload, Sequence};
use crate::index::{Index, KeyHash};
use crate::limits::DEALLOCATE_BATCH_MAX;
use crate::log::Source;
use crate::media::Media;
use crate::operation::{Operation, Span, Walk, Work};
use crate::record::{HEADER_BYTES, LBA_BYTES, UNIT_BYTES, batch_flags, record_units};
use crate::utl::{Stall, Utl};
use headwater_nvme::spec::status::Status;

const TOMBSTONE_BYTES: usize = record_units(LBA_BYTES, 0) as usize * UNIT_BYTES;

/// Runs a command that writes blocks.
pub(super) fn run<M: Media>(utl: &mut Utl<M>, operation: &mut Operation) -> Result<Outcome, Stall> {
    let extent = match Extent::of(utl, operation) {
        Ok(extent) => extent,
        Err(status) => return Ok(Outcome::status(status, Sequence(0))),
    };
    let Operation { work: Work::Command(command), walk, span, spans, .. } = operation else {
        return Ok(Outcome::status(Status::INTERNAL_ERROR, Sequence(0)));
    };
    let (outcome, fua) = match command {
        Command::Write { start, data, fua } => (write(utl, &extent, *start, data)?, *fua),
        Command::Deallocate { ranges, fua } => {
            if let Err(status) = ranges.iter().try_for_each(|range| extent.check(*range)) {
                return Ok(Outcome::status(status, Sequence(0)));
            }
            let none = ranges.iter().all(|range| range.blocks == 0);
            let spans = if spans.is_empty() { std::slice::from_ref(span) } else { &spans[..] };
            (deallocate(utl, &extent, if none { &[] } else { spans }, walk)?, *fua)
        }
        Command::Copy { sources, destination, fua } => {
            (copy(utl, &extent, sources, *destination, walk)?, *fua)
        }
        _ => return Ok(Outcome::status(Status::INVALID_OPCODE, Sequence(0))),
    };
    Ok(match (fua, outcome.gate) {
        (Fua::Yes, Gate::Promise(sequence)) => Outcome { gate: Gate::Durable(sequence), ..outcome },
        _ => outcome,
    })
}

/// Whether records of so many blocks in place of those that the index has for `blocks` find room; else the status.
fn room_for<M: Media>(
    utl: &mut Utl<M>,
    extent: &Extent,
    (written, removed): (usize, usize),
    blocks: impl Iterator<Item = Lba>,
) -> Result<Result<(), Status>, Stall> {
    let largest = extent.record_bytes();
    let more = written * largest + removed * TOMBSTONE_BYTES;
    let old = blocks.filter_map(|lba| extent.entry(utl, lba));
    let less = old.map(|found| found.entry.units as usize * UNIT_BYTES).sum();
    if written > 0 && !utl.has_capacity(largest, more, less) {
        return Ok(Err(Status::CAPACITY_EXCEEDED));
    }
    // Records that do not fit behind one another leave room at the end of a block: an eighth covers it.
    let slack = if written + removed > 1 { more / 8 } else { 0 };
    utl.client_room(more + slack)?;
    Ok(Ok(()))
}

fn write<M: Media>(utl: &mut Utl<M>, extent: &Extent, start: Lba, data: &Payload) -> Result<Outcome, Stall> {
    let (bytes, count) = (extent.format.bytes(), data.len() >> extent.format.shift());
    let range = LbaRange { start, blocks: u32::try_from(count).unwrap_or(u32::MAX) };
    if let Err(status) = extent.check(range) {
        return Ok(Outcome::status(status, Sequence(0)));
    }
    let blocks = || (start.0..).map(Lba).take(count);
    if let Err(status) = room_for(utl, extent, (count, 0), blocks())? {
        return Ok(Outcome::status(status, Sequence(0)));
    }
    let last = count.saturating_sub(1);
    let mut wrote = Sequence(0);
    for (place, lba) in blocks().enumerate() {
        let at = place * bytes;
        let value = match data {
            Payload::Bytes(data) => Source::Bytes(&data[at..at + bytes]),
            Payload::Client(segments) => Source::Part { segments, at, len: bytes },
        };
        wrote = extent.write(utl, lba, Some(value), batch_flags(place, last));
    }
    Ok(Outcome::wrote(wrote))
}

/// Removes the blocks of these spans that exist.
fn deallocate<M: Media>(
    utl: &mut Utl<M>,
    extent: &Extent,
    spans: &[Span],
    walk: &mut Walk,
) -> Result<Outcome, Stall> {
    let end = KeyHash::of_block(extent.namespace, Lba(extent.size - 1));
    let first = KeyHash::of_block(extent.namespace, Lba(0));
    let doomed = next_removals(utl, extent.namespace, spans, walk.from);
    if doomed.is_empty() {
        // What was not there may have been removed by something that is not durable yet.
        walk.seen = walk.seen.max(utl.last_removal);
        return Ok(Outcome::wrote(walk.seen));
    }
    let whole = spans.iter().any(|span| span.first <= first && span.last >= end);
    if whole && doomed.len() > 1 {
        utl.client_room(HEADER_BYTES)?;
        let (sequence, _) = utl.clear(extent.namespace, 0);
        return Ok(Outcome::wrote(sequence));
    }
    if let Err(status) = room_for(utl, extent, (0, doomed.len()), std::iter::empty())? {
        return Ok(Outcome::status(status, Sequence(0)));
    }
    let last = doomed.len() - 1;
    for (place, block) in doomed.iter().enumerate() {
        walk.seen = extent.write(utl, block.block().1, None, batch_flags(place, last));
    }
    if doomed.len() < DEALLOCATE_BATCH_MAX {
        return Ok(Outcome::wrote(walk.seen));
    }
    walk.from = doomed.last().map(|block| KeyHash(block.0 + 1));
    // Others get a turn before it goes on.
    Err(Stall::Pages(Vec::new()))
}

/// Whether a removal may leave out what is absent already. What made it absent may still be lost to a power cut while this
/// removal is not: then the removal says it itself.
fn absent_for_good<M: Media>(utl: &Utl<M>) -> bool {
    utl.last_removal <= utl.commit.durable
}

/// The next blocks of these spans that must be removed, as many as go in one batch: those that exist, or of a removal that
/// fits one batch all, as long as their absence is not durable.
fn next_removals<M: Media>(
    utl: &Utl<M>,
    namespace: NamespaceId,
    spans: &[Span],
    from: Option<KeyHash>,
) -> Vec<KeyHash> {
    let mut doomed = Vec::new();
    let first = |span: &Span| span.first.max(from.unwrap_or(span.first));
    if !absent_for_good(utl) {
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
            let found = utl.index.next(next).filter(|(_, entry)| entry.namespace == namespace);
            let Some((place, _)) = found.filter(|(place, _)| *place <= span.last) else {
                break;
            };
            doomed.push(place);
            next = KeyHash(place.0 + 1);
        }
    }
    doomed
}

fn copy<M: Media>(
    utl: &mut Utl<M>,
    extent: &Extent,
    sources: &[LbaRange],
    destination: Lba,
    walk: &mut Walk,
) -> Result<Outcome, Stall> {
    let count: u32 = sources.iter().map(|range| range.blocks).sum();
    let target = LbaRange { start: destination, blocks: count };
    if let Err(status) = sources.iter().chain([&target]).try_for_each(|range| extent.check(*range)) {
        return Ok(Outcome::status(status, Sequence(0)));
    }
    let status = block_read::gather(utl, extent, sources, walk)?;
    if !status.is_success() {
        return Ok(Outcome::status(status, walk.seen));
    }
    // Were a power cut to take a write of several blocks and leave the copy of one, part of it would have happened.
    must_be_durable(utl, walk.joint)?;
    let (bytes, for_good) = (extent.format.bytes(), absent_for_good(utl));
    // Zeroes need no record; a block that holds something else gives it up.
    let blocks = (destination.0..).map(Lba).zip(walk.bytes.chunks_exact(bytes));
    let blocks: Vec<(Lba, Option<&[u8]>)> = blocks
        .map(|(lba, block)| (lba, block.iter().any(|byte| *byte != 0).then_some(block)))
        .filter(|(lba, block)| block.is_some() || !for_good || extent.entry(utl, *lba).is_some())
        .collect();
    let written = blocks.iter().filter(|(_, block)| block.is_some()).count();
    let counts = (written, blocks.len() - written);
    if let Err(status) = room_for(utl, extent, counts, blocks.iter().map(|(lba, _)| *lba))? {
        return Ok(Outcome::status(status, walk.seen));
    }
    let last = blocks.len().saturating_sub(1);
    let mut wrote = walk.seen;
    for (place, (lba, block)) in blocks.into_iter().enumerate() {
        wrote = extent.write(utl, lba, block.map(Source::Bytes), batch_flags(place, last));
    }
    Ok(Outcome::wrote(wrote))
}
