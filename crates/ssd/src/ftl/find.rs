//! Lookup of a record: from the hash of a key through the index to the bytes on their pages.
//!
//! Input: a namespace and a key. Output: the record that carries exactly this key, or the pages that must be read
//! first. Invariant: a record is found only if its full key matches; a record whose checksum does not match is reported
//! as damaged, never as absent.
//!
//! The next record is prefetched during the lookup of one. A processor has few outstanding memory reads (16 lines on most), and a request
//! for a whole page at once waits until most of it has come; so a record is prefetched in pieces, between the stages of
//! the record before it.

use super::garbage_collector::page_of;
use super::{FoundRecord, Ftl, SinkRange, StallReason};
use crate::command::{NamespaceId, ValueSink};
use crate::index::{IndexEntry, KeyHash, RecordIndex};
use crate::log::record::{HEADER_BYTES, RecordAddress, RecordHeader, UNIT_BYTES};
use crate::media::Media;
use crate::media::geometry::{BLOCK_DATA_BYTES, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use crate::mutant::{Mutant, mutant};
use headwater_dma::iova::ClientSegments;
use headwater_host::copy::{append_crc32c, crc32c, prefetch, prefetch_read};

/// Longest record that is prefetched; a longer one hides its own latency.
const PREFETCH_BYTES_MAX: usize = 8 << 10;
/// Bytes prefetched at a time.
const PIECE_BYTES: usize = 1 << 10;

/// The part of a record that will be needed, so that all its pages are requested at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordPart {
    /// Header and key: to replace, remove or describe it.
    Key,
    /// The whole record: to read its value.
    Whole,
}

/// An iterator over the pieces of a range of a record's bytes, page by page.
pub(crate) struct RecordPieces<'a, M> {
    ftl: &'a Ftl<M>,
    block: crate::media::BlockId,
    offset: usize,
    left: usize,
}

impl<'a, M: Media> RecordPieces<'a, M> {
    /// Makes an iterator over the bytes `skip..skip + len` of the record at `address`.
    pub(crate) fn new(ftl: &'a Ftl<M>, address: RecordAddress, skip: usize, len: usize) -> Self {
        let mut block = address.block();
        let mut offset = address.offset_in_block() + skip;
        while offset >= BLOCK_DATA_BYTES {
            offset -= BLOCK_DATA_BYTES;
            match ftl.blocks().next_in_chain(block) {
                Some(next) => block = next,
                None => {
                    return Self { ftl, block, offset: 0, left: 0 };
                }
            }
        }
        Self { ftl, block, offset, left: len }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a page number within a block")]
    fn page_address(&self) -> PageAddress {
        PageAddress::new(self.block, (self.offset / PAGE_DATA_BYTES) as u8)
    }

    fn step(&mut self, bytes: usize) {
        self.left -= bytes;
        self.offset += bytes;
        if self.offset == BLOCK_DATA_BYTES && self.left > 0 {
            self.offset = 0;
            match self.ftl.blocks().next_in_chain(self.block) {
                Some(next) => self.block = next,
                None => self.left = 0,
            }
        }
    }

    /// Returns the page of the next piece, its offset there and its length.
    #[inline]
    pub(crate) fn next_span(&mut self) -> Option<(PageAddress, usize, usize)> {
        if self.left == 0 {
            return None;
        }
        let page = self.page_address();
        let within = self.offset % PAGE_DATA_BYTES;
        let bytes = self.left.min(PAGE_DATA_BYTES - within);
        self.step(bytes);
        Some((page, within, bytes))
    }

    /// Returns the pages that are not in memory.
    pub(crate) fn missing(mut self) -> Vec<PageAddress> {
        let mut missing = Vec::new();
        while let Some((page, ..)) = self.next_span() {
            if self.ftl.page(page).is_none() {
                missing.push(page);
            }
        }
        missing
    }
}

impl<'a, M: Media> Iterator for RecordPieces<'a, M> {
    type Item = Result<&'a [u8], PageAddress>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (page, within, bytes) = self.next_span()?;
        match self.ftl.page(page) {
            Some(data) => Some(Ok(&data[within..within + bytes])),
            None => {
                self.left = 0;
                Some(Err(page))
            }
        }
    }
}

/// The part of the next record to read that is not prefetched yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingPrefetch {
    address: RecordAddress,
    bytes: usize,
}

impl PendingPrefetch {
    /// Nothing to prefetch.
    pub(super) const NOTHING: Self = Self { address: RecordAddress(0), bytes: 0 };
}

impl<M: Media> Ftl<M> {
    /// Prefetches the first line of the record that a hash probably leads to, and returns its entry.
    #[inline]
    pub(crate) fn prefetch_record(&self, hash: KeyHash) -> Option<IndexEntry> {
        let entry = self.index().find(hash, 0)?;
        let bytes = self.page(entry.address.page())?;
        let offset = entry.address.offset_in_block() % PAGE_DATA_BYTES;
        prefetch_read(&bytes[offset]);
        if let Some(line) = bytes.get(offset + 64) {
            prefetch_read(line);
        }
        Some(entry)
    }

    /// Prefetches the last line of a record that spans two pages, because each page needs its own address translation.
    #[inline]
    pub(crate) fn prefetch_end(&self, entry: IndexEntry) {
        let end = entry.address.offset_in_block() + entry.units as usize * UNIT_BYTES - 1;
        let (page, within) = (end / PAGE_DATA_BYTES, end % PAGE_DATA_BYTES);
        if page != usize::from(entry.address.page().page)
            && page < PAGES_PER_BLOCK
            && let Some(line) =
                self.page(page_of(entry.address.block(), page)).and_then(|data| data.get(within))
        {
            prefetch_read(line);
        }
    }

    /// Sets the record that is read next, and prefetches its first piece.
    #[inline]
    pub(crate) fn prefetch_next(&self, entry: IndexEntry) {
        let bytes = entry.units as usize * UNIT_BYTES;
        if bytes <= PREFETCH_BYTES_MAX {
            self.pending_prefetch.set(PendingPrefetch { address: entry.address, bytes });
            self.prefetch_bytes(PIECE_BYTES);
        }
    }

    /// Prefetches the next piece of that record.
    #[inline]
    pub(crate) fn prefetch_piece(&self) {
        self.prefetch_bytes(PIECE_BYTES);
    }

    /// Prefetches the rest of that record.
    #[inline]
    pub(crate) fn prefetch_rest(&self) {
        self.prefetch_bytes(PREFETCH_BYTES_MAX);
    }

    fn prefetch_bytes(&self, bytes_max: usize) {
        let PendingPrefetch { address, bytes } = self.pending_prefetch.get();
        let bytes_now = bytes.min(bytes_max);
        if bytes_now == 0 {
            return;
        }
        let mut pieces = RecordPieces::new(self, address, 0, bytes_now);
        while let Some((page, within, bytes)) = pieces.next_span() {
            if let Some(data) = self.page(page) {
                prefetch(&data[within..within + bytes]);
            }
        }
        let offset = address.offset_in_block() + bytes_now;
        let left = if offset < BLOCK_DATA_BYTES { bytes - bytes_now } else { 0 };
        let address = if left > 0 { RecordAddress::in_block(address.block(), offset) } else { address };
        self.pending_prefetch.set(PendingPrefetch { address, bytes: left });
    }

    /// Returns the stall of a caller that needs the first `bytes` bytes of a record.
    pub(crate) fn all_pages(&self, address: RecordAddress, bytes: usize) -> StallReason {
        self.pages(address, (0, bytes))
    }

    /// Sets the pages whose reads failed for the present caller: until [`clear_failed_pages`](Self::clear_failed_pages)
    /// it gets [`StallReason::Unreadable`] where it needs one of them, whatever other callers read.
    #[inline]
    pub(crate) fn set_failed_pages<'a>(&mut self, failed: impl IntoIterator<Item = &'a PageAddress>) {
        assert!(self.failed_pages.is_empty(), "a call would see the failed reads of another caller");
        self.failed_pages.extend(failed);
    }

    /// Forgets the failed reads of the present caller.
    #[inline]
    pub(crate) fn clear_failed_pages(&mut self) {
        if !self.failed_pages.is_empty() {
            self.failed_pages.clear();
        }
    }

    /// Returns the header of the record at an address; `None` if the bytes there are not a header.
    #[inline]
    pub(crate) fn header(
        &self,
        entry: IndexEntry,
        reach: RecordPart,
    ) -> Result<Option<RecordHeader>, StallReason> {
        let mut bytes = [0; HEADER_BYTES];
        let mut filled = 0;
        for piece in RecordPieces::new(self, entry.address, 0, HEADER_BYTES) {
            let piece = piece.map_err(|_| match reach {
                RecordPart::Key => self.all_pages(entry.address, HEADER_BYTES),
                RecordPart::Whole => self.all_pages(entry.address, entry.units as usize * UNIT_BYTES),
            })?;
            bytes[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        }
        Ok((filled == HEADER_BYTES).then(|| RecordHeader::decode(&bytes).ok()).flatten())
    }

    /// Returns true if the record has this key.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call of it costs 60 of the 4,000 instructions of a get")]
    fn has_key(&self, entry: IndexEntry, header: &RecordHeader, key: &[u8]) -> Result<bool, StallReason> {
        if usize::from(header.key_bytes) != key.len() {
            return Ok(false);
        }
        let mut rest = key;
        for piece in RecordPieces::new(self, entry.address, HEADER_BYTES, key.len()) {
            let piece = piece.map_err(|_| self.all_pages(entry.address, HEADER_BYTES + key.len()))?;
            let (here, behind) = rest.split_at(piece.len());
            if here != piece && !mutant(Mutant::KeyNotCompared) {
                return Ok(false);
            }
            rest = behind;
        }
        Ok(rest.is_empty())
    }

    /// Returns true if a record is the one that was written. Its pages were proven when they were read, but memory that is
    /// addressed is never read into device DRAM: there the record's checksum decides.
    pub(crate) fn is_proven(&self, entry: IndexEntry, header: &RecordHeader) -> Result<bool, StallReason> {
        Ok(!self.flash.traits().addressable || self.is_intact(entry, header)?)
    }

    /// Returns true if the record's bytes match its checksum field.
    pub(crate) fn is_intact(&self, entry: IndexEntry, header: &RecordHeader) -> Result<bool, StallReason> {
        if header.units() != entry.units {
            return Ok(false);
        }
        let mut crc = 0;
        for piece in RecordPieces::new(self, entry.address, 4, header.payload_end() - 4) {
            crc = crc32c(crc, piece.map_err(|_| self.all_pages(entry.address, header.payload_end()))?);
        }
        Ok(crc == header.crc)
    }

    /// Returns the record of a key, expired or not.
    pub(crate) fn find(
        &self,
        hash: KeyHash,
        namespace: NamespaceId,
        key: &[u8],
        reach: RecordPart,
    ) -> Result<Option<FoundRecord>, StallReason> {
        for nth in 0.. {
            let Some(entry) = self.index().find(hash, nth) else {
                break;
            };
            if entry.namespace != namespace {
                continue;
            }
            if let Some(found) = self.match_entry((hash, entry), key, reach)? {
                return if self.is_record_in_doubt(&found) {
                    Err(StallReason::InDoubt)
                } else {
                    Ok(Some(found))
                };
            }
        }
        if self.is_absence_in_doubt(hash, namespace, key) {
            return Err(StallReason::InDoubt);
        }
        Ok(None)
    }

    /// Returns true if a found record may be superseded by one that the medium lost.
    #[inline]
    pub(crate) fn is_record_in_doubt(&self, found: &FoundRecord) -> bool {
        let doubts = self.doubts();
        !mutant(Mutant::RecordInDoubtAnswered)
            && found.header.is_some_and(|header| doubts.covers(header.namespace, header.sequence))
    }

    /// Returns true if the medium may have lost a record of a key that has none.
    #[inline]
    fn is_absence_in_doubt(&self, hash: KeyHash, namespace: NamespaceId, key: &[u8]) -> bool {
        let digest =
            || if hash.is_position() { u128::from(hash.0) } else { self.hasher().digest(namespace, key) };
        self.doubts().covers_absence(namespace, digest) && !mutant(Mutant::AbsenceNotDoubted)
    }

    /// Returns the record of a key that a write replaces: the first one whose key matches, or cannot be read. It has no
    /// header if it cannot be read, or may be superseded by one that the medium lost. Such a record is known by its hash
    /// alone: if two of ten million keys of a namespace share their 60 bits (probability 4 in 100,000) and the record of one
    /// cannot be read, a write of the other replaces it.
    pub(crate) fn find_replaced(
        &self,
        hash: KeyHash,
        namespace: NamespaceId,
        key: &[u8],
    ) -> Result<Option<FoundRecord>, StallReason> {
        let entries = (0..).map_while(|nth| self.index().find(hash, nth));
        for entry in entries.filter(|entry| entry.namespace == namespace) {
            match self.match_entry((hash, entry), key, RecordPart::Key) {
                Ok(None) => {}
                Err(StallReason::Unreadable(_)) => return Ok(Some(FoundRecord { entry, header: None })),
                Ok(Some(found)) if self.is_record_in_doubt(&found) => {
                    return Ok(Some(FoundRecord { entry, header: None }));
                }
                found => return found,
            }
        }
        Ok(None)
    }

    /// Returns the record of an entry if it has this key, or is damaged.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the record would be copied on the stack, for every command")]
    fn match_entry(
        &self,
        (hash, entry): (KeyHash, IndexEntry),
        key: &[u8],
        reach: RecordPart,
    ) -> Result<Option<FoundRecord>, StallReason> {
        let damaged = FoundRecord { entry, header: None };
        let whole = self.whole_record(entry.address, entry.units as usize * UNIT_BYTES);
        let header = match whole {
            Some(record) => record.first_chunk().and_then(|front| RecordHeader::decode(front).ok()),
            None => self.header(entry, reach)?,
        };
        Ok(match header {
            Some(header) if header.units() == entry.units => {
                let is_same = match whole {
                    Some(record) => Self::has_key_whole(record, &header, key),
                    None => self.has_key(entry, &header, key)?,
                };
                if is_same {
                    let is_damaged = self.is_expired(&header) && !self.is_proven(entry, &header)?;
                    Some(if is_damaged { damaged } else { FoundRecord { entry, header: Some(header) } })
                } else {
                    (!self.is_of_another_key(hash, entry, &header)?).then_some(damaged)
                }
            }
            _ => Some(damaged),
        })
    }

    /// Copies a part of a record's value to `sink`. Returns true if the whole record is intact. If it is not, or
    /// pages are missing, appended bytes are removed again; the contents of client memory are undefined.
    pub(crate) fn read_value(
        &self,
        entry: IndexEntry,
        header: &RecordHeader,
        sink: &mut ValueSink,
        window: SinkRange,
    ) -> Result<bool, StallReason> {
        if let Some(record) = self.whole_record(entry.address, header.payload_end()) {
            return Ok(self.copy_whole_value(record, header, sink, window));
        }
        let (skip, value_bytes) = window.bytes_of(header);
        let part_at = HEADER_BYTES + usize::from(header.key_bytes) + skip;
        let stall = |_| self.all_pages(entry.address, header.payload_end());
        let mut crc = 0;
        for piece in RecordPieces::new(self, entry.address, 4, part_at - 4) {
            crc = crc32c(crc, piece.map_err(stall)?);
        }
        self.prefetch_piece();
        let start = if let ValueSink::Bytes(bytes) = sink { bytes.len() } else { 0 };
        let copied = match sink {
            ValueSink::Bytes(bytes) => self.append_value(entry.address, part_at, value_bytes, crc, bytes),
            ValueSink::Client(segments) => {
                let target = (&*segments, window.offset);
                self.copy_value(entry.address, part_at, value_bytes, crc, target)
            }
        };
        let intact = copied.and_then(|(taken, crc)| {
            let rest = header.value_bytes as usize - skip - taken;
            let mut pieces = RecordPieces::new(self, entry.address, part_at + taken, rest);
            pieces
                .try_fold(crc, |crc, piece| Ok(crc32c(crc, piece?)))
                .map(|crc| crc == header.crc || mutant(Mutant::ReadChecksumIgnored))
        });
        if let ValueSink::Bytes(bytes) = sink
            && intact != Ok(true)
        {
            bytes.truncate(start);
        }
        intact.map_err(stall)
    }

    fn append_value(
        &self,
        address: RecordAddress,
        skip: usize,
        value_bytes: usize,
        mut crc: u32,
        bytes: &mut Vec<u8>,
    ) -> Result<(usize, u32), PageAddress> {
        bytes.reserve(value_bytes);
        for piece in RecordPieces::new(self, address, skip, value_bytes) {
            crc = append_crc32c(bytes, piece?, crc);
        }
        Ok((value_bytes, crc))
    }

    fn copy_value(
        &self,
        address: RecordAddress,
        skip: usize,
        value_bytes: usize,
        mut crc: u32,
        (segments, start): (&ClientSegments, usize),
    ) -> Result<(usize, u32), PageAddress> {
        let mut at = start;
        let taken = value_bytes.min(segments.bytes().saturating_sub(start));
        for piece in RecordPieces::new(self, address, skip, taken) {
            let piece = piece?;
            self.prefetch_piece();
            crc = segments.copy_out_crc32c(at, piece, crc);
            at += piece.len();
        }
        Ok((taken, crc))
    }

    /// Returns the index key of a record: its key's hash, or its block's position.
    #[inline]
    pub(crate) fn index_key(&self, entry: IndexEntry, header: &RecordHeader) -> Result<KeyHash, StallReason> {
        let key_bytes = usize::from(header.key_bytes);
        match RecordPieces::new(self, entry.address, HEADER_BYTES, key_bytes).next() {
            Some(Ok(key)) if key.len() == key_bytes => Ok(self.hasher().index_key(header, key)),
            _ => Ok(self.hasher().index_key(header, &self.key_of(entry, header)?)),
        }
    }

    /// Returns the key of a record, for callers that have only its address.
    pub(crate) fn key_of(&self, entry: IndexEntry, header: &RecordHeader) -> Result<Vec<u8>, StallReason> {
        let mut key = Vec::with_capacity(usize::from(header.key_bytes));
        for piece in RecordPieces::new(self, entry.address, HEADER_BYTES, usize::from(header.key_bytes)) {
            key.extend_from_slice(piece.map_err(|_| self.all_pages(entry.address, header.payload_end()))?);
        }
        Ok(key)
    }
}
