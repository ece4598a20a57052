//! Reads a value that lies in extents in parts.
//!
//! Input: a record, and the progress of the operation that reads it. Output: the bytes that its sink takes, and no more;
//! before, a stall for the pages of the next part, for jobs of the mover that copy it, or until the operation's next turn. Invariant: the record itself is checked
//! before the first byte; a failed part leaves nothing in a sink of bytes.

use crate::command::ValueSink;
use crate::engine::operation::ValueProgress;
use crate::ftl::{Ftl, RangeRead, StallReason};
use crate::index::IndexEntry;
use crate::limits::COPY_PART_BYTES;
use crate::log::record::RecordHeader;
use crate::media::Media;
use headwater_dma::mover::MoveMemory;

/// Reads the next part of a value, of which the sink receives at most `bytes_max` bytes. Returns true if what was read is
/// intact, once all is read.
pub(super) fn read_part<M: Media>(
    ftl: &mut Ftl<M>,
    (entry, header): (IndexEntry, &RecordHeader),
    (sink, bytes_max): (&mut ValueSink, u32),
    progress: &mut Option<ValueProgress>,
) -> Result<bool, StallReason> {
    let mut wanted = header.value_len().min(bytes_max as usize);
    if let ValueSink::Client(segments) = sink {
        wanted = wanted.min(segments.bytes());
    }
    let Some(before) = progress.filter(|before| before.sequence == header.sequence) else {
        if let (Some(before), ValueSink::Bytes(bytes)) = (progress.take(), &mut *sink) {
            bytes.truncate(bytes.len() - before.bytes_done);
        }
        if !ftl.is_intact(entry, header)? {
            return Ok(false);
        }
        if let ValueSink::Bytes(bytes) = sink {
            bytes.reserve_exact(wanted);
        }
        let (sequence, record_crc) = (header.sequence, header.crc);
        *progress = Some(ValueProgress { sequence, bytes_done: 0, crc: 0, record_crc, in_extents: true });
        return Err(StallReason::Turn);
    };
    let part_bytes = COPY_PART_BYTES.min(ftl.range_bytes_max());
    let range = before.bytes_done..wanted.min(before.bytes_done + part_bytes);
    let end = range.end;
    if range.is_empty() && before.bytes_done > 0 {
        // Channels of the mover copied the last part.
        *progress = None;
        return Ok(true);
    }
    let (mut memory, to) = match sink {
        ValueSink::Bytes(bytes) => (MoveMemory::Vec(std::mem::take(bytes)), None),
        ValueSink::Client(segments) => (MoveMemory::Client(std::mem::take(segments)), Some(range.start)),
    };
    let start = memory.bytes();
    let read = ftl.read_range(entry.address, header, range, (&mut memory, to.unwrap_or(start)));
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
    if end < wanted {
        *progress = Some(ValueProgress { bytes_done: end, ..before });
        return Err(StallReason::Turn);
    }
    *progress = None;
    Ok(true)
}
