//! Reads a value that lies in extents in parts.
//!
//! Input: a record, and the progress of the operation that reads it. Output: the bytes that its command wants, and no more;
//! before, a stall for the pages of the next part, for jobs of the mover that copy it, or until the operation's next turn. Invariant: the record itself is checked
//! before the first byte; a failed part leaves nothing in a sink of bytes.

use super::long_value::WantedPart;
use crate::command::ValueSink;
use crate::engine::operation::ValueProgress;
use crate::ftl::{Ftl, RangeRead, StallReason};
use crate::index::IndexEntry;
use crate::limits::COPY_PART_BYTES;
use crate::log::record::RecordHeader;
use crate::media::Media;
use crate::media::geometry::PAGE_DATA_BYTES;
use headwater_dma::mover::MoveMemory;

/// Reads the next part of a value, of which the sink receives what it wants, and no page of the extents that holds none of
/// that. Returns true if what was read is intact, once all is read.
pub(super) fn read_part<M: Media>(
    ftl: &mut Ftl<M>,
    (entry, header): (IndexEntry, &RecordHeader),
    (sink, part): (&mut ValueSink, WantedPart),
    progress: &mut Option<ValueProgress>,
) -> Result<bool, StallReason> {
    let wanted = part.range(header.value_len(), sink);
    let Some(before) = progress.filter(|before| before.sequence == header.sequence) else {
        if let (Some(before), ValueSink::Bytes(bytes)) = (progress.take(), &mut *sink) {
            bytes.truncate(bytes.len() - before.bytes_done);
        }
        if !ftl.is_intact(entry, header)? {
            return Ok(false);
        }
        if let ValueSink::Bytes(bytes) = sink {
            bytes.reserve_exact(wanted.len());
        }
        let (sequence, record_crc) = (header.sequence, header.crc);
        *progress = Some(ValueProgress { sequence, bytes_done: 0, crc: 0, record_crc, in_extents: true });
        return Err(StallReason::Turn);
    };
    let start = wanted.start + before.bytes_done;
    // It ends with a page, so that no page is read for two parts.
    let part_end = (start + COPY_PART_BYTES.min(ftl.range_bytes_max())) / PAGE_DATA_BYTES * PAGE_DATA_BYTES;
    let range = start..wanted.end.min(part_end);
    let end = range.end;
    if range.is_empty() && before.bytes_done > 0 {
        // Channels of the mover copied the last part.
        *progress = None;
        return Ok(true);
    }
    let (mut memory, to) = match sink {
        ValueSink::Bytes(bytes) => (MoveMemory::Vec(std::mem::take(bytes)), None),
        ValueSink::Client(segments) => {
            (MoveMemory::Client(std::mem::take(segments)), Some(before.bytes_done))
        }
    };
    let start = memory.bytes();
    let at = (entry.address, header);
    let read = ftl.read_range(at, range, (&mut memory, to.unwrap_or(start)), part.caching);
    // The progress counts the bytes that the sink has, not those before them.
    let read = read.map_err(|stall| match stall {
        StallReason::Moves(moved) => StallReason::Moves(moved.start - wanted.start..moved.end - wanted.start),
        stall => stall,
    });
    let is_moving = matches!(read, Err(StallReason::Moves(_)));
    match memory {
        MoveMemory::Vec(bytes) => *sink = ValueSink::Bytes(bytes),
        MoveMemory::Client(segments) => *sink = ValueSink::Client(segments),
        // The vector is in a job, and returns with it.
        _ => assert!(is_moving, "a sink is bytes or client memory"),
    }
    if let (Err(_), ValueSink::Bytes(bytes), false) = (&read, &mut *sink, is_moving) {
        bytes.truncate(start);
    }
    if read? == RangeRead::Damaged {
        if let ValueSink::Bytes(bytes) = sink {
            bytes.truncate(start - before.bytes_done);
        }
        *progress = None;
        return Ok(false);
    }
    if end < wanted.end {
        *progress = Some(ValueProgress { bytes_done: end - wanted.start, ..before });
        return Err(StallReason::Turn);
    }
    *progress = None;
    Ok(true)
}
