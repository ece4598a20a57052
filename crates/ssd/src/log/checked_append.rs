//! The move of a record: its bytes are proven while they are copied.
//!
//! Input: the header and the bytes of a record that lies elsewhere in the log. Output: the same record at the write frontier, or
//! the answer that its bytes fail its checksum. Invariant: until the bytes are proven they lie behind the end of the open page
//! and in frames of no page, so that a damaged record leaves nothing in the log.

use super::page_cache::PageCache;
use super::page_sum::PageSum;
use super::record::{FLAG_CHAINED, HEADER_BYTES, RecordAddress, RecordHeader, UNIT_BYTES};
use super::{OpenBlock, RecordLog, bytes_left};
use crate::log::blocks::BlockTable;
use crate::log::page::PageKind;
use crate::media::geometry::PAGE_DATA_BYTES;
use headwater_dma::frame::MediaFrame;
use headwater_host::copy::copy_crc32c;

/// Pages that a record takes here at most, the open one included. A longer record is proven first.
const PAGES_MAX: usize = 4;

/// The pages of a record that is copied: the open page, and frames behind it.
#[derive(Debug)]
pub(crate) struct CopiedRecord {
    frames: [Option<MediaFrame>; PAGES_MAX - 1],
    /// The checksums of the pages, the open one first.
    sums: [PageSum; PAGES_MAX],
    /// The last page, and the bytes of it that are in use.
    end: (usize, usize),
}

impl CopiedRecord {
    /// Returns the frames of a record that is given up.
    pub(crate) fn discard(self, dram: &mut PageCache) {
        self.frames.into_iter().flatten().for_each(|frame| dram.return_frame(frame));
    }
}

impl RecordLog {
    /// Takes the frames for the copy of a record, which [`copy_record`](Self::copy_record) fills; `None` if no block
    /// is open, or the record does not fit into it unchanged or is too long. The caller checked the room.
    pub(crate) fn begin_copy(&mut self, dram: &mut PageCache, header: &RecordHeader) -> Option<CopiedRecord> {
        let bytes = header.units() as usize * UNIT_BYTES;
        let open = self.open.as_mut()?;
        let pages = (open.offset + bytes).div_ceil(PAGE_DATA_BYTES);
        if bytes > bytes_left(open) || header.flags & FLAG_CHAINED != 0 || pages > PAGES_MAX {
            return None;
        }
        let mut frame = || Some(dram.take_frame().expect("frames were counted before the append"));
        if open.frame.is_none() {
            open.frame = frame();
        }
        let mut frames = [const { None }; PAGES_MAX - 1];
        frames[..pages - 1].iter_mut().for_each(|place| *place = frame());
        open.sum.prepare(header.payload_end() - HEADER_BYTES);
        let mut sums = [PageSum::EMPTY; PAGES_MAX];
        sums[0] = open.sum;
        Some(CopiedRecord { frames, sums, end: (0, open.offset) })
    }

    /// Copies a record, of which `pieces` are the bytes behind its checksum. Returns true if the checksum is theirs.
    ///
    /// # Panics
    /// The copy was not begun for a record of this length.
    pub(crate) fn copy_record<'p>(
        &mut self,
        copied: &mut CopiedRecord,
        checksum: u32,
        pieces: impl Iterator<Item = &'p [u8]>,
    ) -> bool {
        let open = self.open.as_mut().and_then(|open| open.frame.as_mut());
        let open = open.expect("the open page was made ready for the copy");
        let (mut page, mut at) = copied.end;
        // Records begin at multiples of 16 bytes: these four lie in one page.
        copied.sums[0].copy(&mut open[at..at + 4], &checksum.to_le_bytes());
        at += 4;
        let mut crc = 0;
        for mut bytes in pieces {
            while !bytes.is_empty() {
                if at == PAGE_DATA_BYTES {
                    (page, at) = (page + 1, 0);
                }
                let (here, rest) = bytes.split_at(bytes.len().min(PAGE_DATA_BYTES - at));
                let frame = match page.checked_sub(1) {
                    None => &mut *open,
                    Some(behind) => copied.frames[behind].as_mut().expect("frames were taken for the record"),
                };
                let target = &mut frame[at..at + here.len()];
                crc = copied.sums[page].put(target, crc, |target, crc| copy_crc32c(target, here, crc));
                at += here.len();
                bytes = rest;
            }
        }
        copied.end = (page, at);
        crc == checksum
    }

    /// Appends a record that was copied, and returns its address.
    pub(crate) fn append_copied(
        &mut self,
        dram: &mut PageCache,
        blocks: &mut BlockTable,
        header: &RecordHeader,
        copied: CopiedRecord,
    ) -> RecordAddress {
        self.appended = self.appended.max(header.sequence);
        let address = self.start_record(dram);
        blocks.raise_max_sequence(address.block(), header.sequence);
        let CopiedRecord { frames, sums, end: (last, used) } = copied;
        for (page, frame) in frames.into_iter().take(last).enumerate() {
            self.set_open_page(header, PAGE_DATA_BYTES, sums[page]);
            self.fill_page(PageKind::Log, blocks);
            self.open.as_mut().expect("the record fits into the open block").frame = frame;
        }
        self.set_open_page(header, used, sums[last]);
        self.align();
        self.close_full_page(dram, blocks);
        address
    }

    fn set_open_page(&mut self, header: &RecordHeader, used: usize, sum: PageSum) {
        let open: &mut OpenBlock = self.open.as_mut().expect("the record fits into the open block");
        open.offset = used;
        open.sum = sum;
        open.namespaces |= 1 << header.namespace.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{NamespaceId, Sequence};
    use crate::log::{ChecksumMode, RecordSource};
    use crate::media::geometry::{BlockId, FlashGeometry, PAGE_SPARE_BYTES, PAGES_PER_BLOCK, PageAddress};
    use crate::media::memory::MemoryMedia;
    use crate::media::token::MediaPurpose;
    use crate::media::{Media, MediaTraits};
    use headwater_dma::pool::Pool;
    use headwater_host::clock::Nanos;
    use headwater_host::copy::crc32c;

    const BLOCKS: u32 = 4;
    const FRAMES: usize = 300;

    /// A log on a medium in memory.
    struct FlashInMemory {
        log: RecordLog,
        dram: PageCache,
        blocks: BlockTable,
        media: MemoryMedia,
    }

    impl FlashInMemory {
        fn new(guard_pages: u8) -> Self {
            let geometry = FlashGeometry::with_blocks(BLOCKS);
            let media = MemoryMedia::erased(geometry).unwrap();
            let mut blocks = BlockTable::new(geometry);
            while let Some(block) = blocks.take_dirty() {
                blocks.complete_erase(block);
            }
            let dram = PageCache::new(geometry, FRAMES, Pool::of_process().unwrap());
            let traits = MediaTraits { guard_pages, ..media.traits() };
            Self { log: RecordLog::new(traits), dram, blocks, media }
        }

        fn append(&mut self, header: &RecordHeader, payload: &[u8]) -> RecordAddress {
            let payload = [RecordSource::Bytes(payload)];
            self.log.append(&mut self.dram, &mut self.blocks, header, ChecksumMode::Keep, &payload)
        }

        /// Copies a record of which a byte is damaged, which must leave nothing whether a commit follows or not, and then the
        /// record. Returns `None` if it cannot be proven while it is copied.
        fn copy(
            &mut self,
            header: &RecordHeader,
            payload: &[u8],
            (rng, is_sealed): (&mut fastrand::Rng, bool),
        ) -> Option<RecordAddress> {
            let whole = [&header.encode()[4..], payload].concat();
            let mut damaged = whole.clone();
            let at = rng.usize(..damaged.len());
            damaged[at] ^= 1 << rng.u8(..8);
            let mut attempt = |log: &mut RecordLog, dram: &mut PageCache, bytes: &[u8]| {
                let mut copied = log.begin_copy(dram, header)?;
                let (first, second) = bytes.split_at(rng.usize(..=bytes.len()));
                Some((log.copy_record(&mut copied, header.crc, [first, second].into_iter()), copied))
            };
            if let Some((is_intact, copied)) = attempt(&mut self.log, &mut self.dram, &damaged) {
                assert!(!is_intact, "a damaged byte is not found");
                copied.discard(&mut self.dram);
            }
            if is_sealed {
                self.log.seal(&mut self.dram, &mut self.blocks);
            }
            let (is_intact, copied) = attempt(&mut self.log, &mut self.dram, &whole)?;
            assert!(is_intact, "an intact record is damaged");
            Some(self.log.append_copied(&mut self.dram, &mut self.blocks, header, copied))
        }

        /// Programs every page. Returns those of the medium, when all frames are back.
        fn pages(mut self) -> Vec<Option<Vec<u8>>> {
            self.log.seal(&mut self.dram, &mut self.blocks);
            let mut done = Vec::new();
            while self.log.backlog() > 0 || self.media.in_flight() > 0 {
                self.log.submit(&mut self.media, &mut self.dram, Nanos::ZERO);
                self.media.poll(Nanos::ZERO, &mut done);
                for completion in done.drain(..) {
                    let MediaPurpose::Program(id) = MediaPurpose::decode(completion.token) else {
                        panic!("only pages are programmed")
                    };
                    self.log.complete_program(id, completion.frame, &mut self.dram);
                }
            }
            self.log.finish_block(&mut self.dram, &mut self.blocks);
            assert_eq!(self.dram.available(), FRAMES, "a frame is lost");
            let addresses = (0..BLOCKS).flat_map(|block| {
                (0..u8::try_from(PAGES_PER_BLOCK).unwrap())
                    .map(move |page| PageAddress::new(BlockId(block), page))
            });
            let bytes = PAGE_DATA_BYTES + PAGE_SPARE_BYTES;
            addresses.map(|page| self.media.view(page).map(|shown| shown[..bytes].to_vec())).collect()
        }
    }

    #[test]
    fn records_that_are_proven_while_they_are_copied_lie_as_if_they_were_appended() {
        let mut copies = 0;
        for seed in 0..40 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let guard_pages = rng.u8(..2);
            let [mut appended, mut copied] = [(); 2].map(|()| FlashInMemory::new(guard_pages));
            let mut left = BLOCKS as usize * PAGES_PER_BLOCK * PAGE_DATA_BYTES / 2;
            for sequence in 1.. {
                let value_bytes = [10, 700, 4_096, 9_000, 40_000][rng.usize(..5)];
                // Often it ends with its page.
                let at = appended.log.open.as_ref().map_or(0, |open| open.offset) + HEADER_BYTES + 1;
                let to_end = u32::try_from(PAGE_DATA_BYTES - at % PAGE_DATA_BYTES).unwrap();
                let value_bytes = if rng.u8(..4) == 0 { to_end } else { rng.u32(1..=value_bytes) };
                let payload: Vec<u8> = (0..=value_bytes).map(|_| rng.u8(..)).collect();
                let Some(rest) = left.checked_sub(payload.len() + HEADER_BYTES) else { break };
                left = rest;
                let mut header = RecordHeader {
                    crc: 0,
                    flags: 0,
                    key_bytes: 1,
                    value_bytes,
                    extents: 0,
                    namespace: NamespaceId(rng.u8(1..4)),
                    sequence: Sequence(sequence),
                    expiry_ms: rng.u64(..2),
                };
                header.crc = crc32c(crc32c(0, &header.encode()[4..]), &payload);
                let is_sealed = rng.u8(..4) == 0;
                if is_sealed {
                    appended.log.seal(&mut appended.dram, &mut appended.blocks);
                }
                let expected = appended.append(&header, &payload);
                let address = copied.copy(&header, &payload, (&mut rng, is_sealed));
                copies += usize::from(address.is_some());
                let address = address.unwrap_or_else(|| copied.append(&header, &payload));
                assert_eq!(address, expected, "seed {seed}: the address of record {sequence}");
            }
            assert!(appended.pages() == copied.pages(), "seed {seed}: pages differ");
        }
        assert!(copies > 1_000, "{copies} records were proven while they were copied");
    }
}
