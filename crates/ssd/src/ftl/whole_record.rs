//! Records that lie on one page, which most are: their bytes are one slice.
//!
//! Input: the place of a record. Output: its bytes, if all of them are on one page in memory; its key compared, its value
//! copied. A record that spans pages is read piece by piece instead ([`find`](super::find)), with the same results.

use super::{Ftl, SinkRange};
use crate::command::ValueSink;
use crate::log::record::{HEADER_BYTES, RecordAddress, RecordHeader};
use crate::media::Media;
use crate::media::geometry::PAGE_DATA_BYTES;
use crate::mutant::{Mutant, mutant};
use headwater_host::copy::{append_crc32c, crc32c};

impl<M: Media> Ftl<M> {
    /// Returns true if a record on one page has this key.
    #[inline]
    pub(super) fn has_key_whole(record: &[u8], header: &RecordHeader, key: &[u8]) -> bool {
        let end = HEADER_BYTES + usize::from(header.key_bytes);
        let is_same = record.get(HEADER_BYTES..end).is_some_and(|stored| stored == key);
        is_same || (usize::from(header.key_bytes) == key.len() && mutant(Mutant::KeyNotCompared))
    }

    /// Returns the first `bytes` bytes of the record at an address, if they lie on one page in memory.
    #[inline]
    pub(super) fn whole_record(&self, address: RecordAddress, bytes: usize) -> Option<&[u8]> {
        let start = address.offset_in_block() % PAGE_DATA_BYTES;
        let end = start + bytes;
        if end > PAGE_DATA_BYTES {
            return None;
        }
        self.page(address.page())?.get(start..end)
    }

    /// Copies a part of the value of a record on one page to `sink`. Returns true if the whole record is intact. If it is
    /// not, appended bytes are removed again; the contents of client memory are undefined.
    #[inline]
    pub(super) fn copy_whole_value(
        &self,
        record: &[u8],
        header: &RecordHeader,
        sink: &mut ValueSink,
        window: SinkRange,
    ) -> bool {
        let (skip, mut wanted) = window.bytes_of(header);
        // What is before the part is checked with the key.
        let (head, value) = record.split_at(HEADER_BYTES + usize::from(header.key_bytes) + skip);
        let mut crc = crc32c(0, &head[4..]);
        self.prefetch_piece();
        if let ValueSink::Client(segments) = sink {
            wanted = wanted.min(segments.bytes().saturating_sub(window.offset));
        }
        let (copied, rest) = value.split_at(wanted);
        match sink {
            ValueSink::Bytes(bytes) => crc = append_crc32c(bytes, copied, crc),
            ValueSink::Client(segments) => {
                self.prefetch_piece();
                crc = segments.copy_out_crc32c(window.offset, copied, crc);
            }
        }
        let intact = crc32c(crc, rest) == header.crc || mutant(Mutant::ReadChecksumIgnored);
        if let ValueSink::Bytes(bytes) = sink
            && !intact
        {
            bytes.truncate(bytes.len() - copied.len());
        }
        intact
    }
}
