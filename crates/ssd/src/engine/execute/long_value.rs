//! Reads a long value in parts, so that a copy of many megabytes keeps no other operation waiting.
//!
//! Input: a record, and the progress of the operation that reads it. Output: the bytes, in a vector or in client memory,
//! once all parts are copied; before, a stall until the operation's next turn. Invariant: the operation holds its key
//! between the parts, so that the record may move, and its header lose the flags of a batch, but its key and value not
//! change; a failed part leaves the bytes of the parts before it.

use crate::command::{ReadCaching, ValueSink};
use crate::engine::operation::ValueProgress;
use crate::ftl::{Ftl, RecordPieces, StallReason};
use crate::index::IndexEntry;
use crate::limits::COPY_PART_BYTES;
use crate::log::record::{HEADER_BYTES, RecordHeader};
use crate::media::Media;
use crate::mutant::{Mutant, mutant};
use headwater_host::copy::{append_crc32c, crc32c};
use std::ops::Range;

/// The part of a value that a command reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedPart {
    /// Bytes of the value before it.
    pub(super) offset: u32,
    /// Most bytes of it.
    pub(super) bytes_max: u32,
    /// The use of device DRAM for its pages.
    pub(super) caching: ReadCaching,
}

impl WantedPart {
    /// Returns the range of a value of `value_bytes` bytes that a sink receives.
    pub(super) fn range(self, value_bytes: usize, sink: &ValueSink) -> Range<usize> {
        let start = value_bytes.min(self.offset as usize);
        let mut bytes = (value_bytes - start).min(self.bytes_max as usize);
        if let ValueSink::Client(segments) = sink {
            bytes = bytes.min(segments.bytes());
        }
        start..start + bytes
    }
}

/// Returns true if a value is read in parts: it is long, and its bytes are all that its sink has.
pub(super) fn is_read_in_parts(
    header: &RecordHeader,
    sink: &ValueSink,
    progress: Option<&ValueProgress>,
) -> bool {
    let takes_it_alone = match sink {
        ValueSink::Bytes(bytes) => bytes.is_empty() || progress.is_some(),
        ValueSink::Client(_) => true,
    };
    header.value_bytes as usize > COPY_PART_BYTES && takes_it_alone
}

/// Copies a piece of a value to offset `at` of its sink, and returns the checksum that continues `crc` over it.
fn copy_piece(sink: &mut ValueSink, at: usize, piece: &[u8], crc: u32) -> u32 {
    match sink {
        ValueSink::Bytes(bytes) => append_crc32c(bytes, piece, crc),
        ValueSink::Client(segments) => segments.copy_out_crc32c(at, piece, crc),
    }
}

/// Removes what a sink received behind the first `bytes` bytes; client memory keeps what it received.
fn truncate(sink: &mut ValueSink, bytes: usize) {
    if let ValueSink::Bytes(received) = sink {
        received.truncate(bytes);
    }
}

/// Reads the next part of a value, of which the sink receives what it wants. Returns true if the whole record is intact, once
/// it is read: its checksum covers what is not wanted too.
pub(super) fn read_part<M: Media>(
    ftl: &Ftl<M>,
    (entry, header): (IndexEntry, &RecordHeader),
    (sink, part): (&mut ValueSink, WantedPart),
    progress: &mut Option<ValueProgress>,
) -> Result<bool, StallReason> {
    let key_end = HEADER_BYTES + usize::from(header.key_bytes);
    let stall = |_| ftl.all_pages(entry.address, header.payload_end());
    let Some(before) = progress.filter(|before| before.sequence == header.sequence) else {
        let mut crc = 0;
        for piece in RecordPieces::new(ftl, entry.address, 4, key_end - 4) {
            crc = crc32c(crc, piece.map_err(stall)?);
        }
        truncate(sink, 0);
        let (sequence, record_crc) = (header.sequence, header.crc);
        *progress = Some(ValueProgress { sequence, bytes_done: 0, crc, record_crc, in_extents: false });
        return Err(StallReason::Turn);
    };
    let value_bytes = header.value_bytes as usize;
    let wanted = part.range(value_bytes, sink);
    if let ValueSink::Bytes(bytes) = sink
        && bytes.is_empty()
    {
        bytes.reserve_exact(wanted.len());
    }
    let (mut at, mut crc) = (before.bytes_done, before.crc);
    let end = value_bytes.min(at + COPY_PART_BYTES);
    for piece in RecordPieces::new(ftl, entry.address, key_end + at, end - at) {
        let Ok(piece) = piece else {
            truncate(sink, before.bytes_done.clamp(wanted.start, wanted.end) - wanted.start);
            return Err(ftl.all_pages(entry.address, header.payload_end()));
        };
        let (front, rest) = piece.split_at(wanted.start.saturating_sub(at).min(piece.len()));
        at += front.len();
        let (copied, behind) = rest.split_at(wanted.end.saturating_sub(at).min(rest.len()));
        let to = at.saturating_sub(wanted.start);
        crc = crc32c(copy_piece(sink, to, copied, crc32c(crc, front)), behind);
        at += rest.len();
    }
    if end < value_bytes {
        *progress = Some(ValueProgress { bytes_done: end, crc, ..before });
        return Err(StallReason::Turn);
    }
    *progress = None;
    let intact = crc == before.record_crc || mutant(Mutant::ReadChecksumIgnored);
    if !intact {
        truncate(sink, 0);
    }
    Ok(intact)
}
