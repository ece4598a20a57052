//! A writer of flash files of version 1 (`docs/formats/flash-file.md`, `docs/formats/record.md`), which the program itself
//! only reads.
//!
//! Input: records, or pages that version 1 wrote. Output: the bytes of a file that was closed. Invariant: the bytes are
//! made from the format's pages, not with code that reads them, except for the layouts of record and page.

use headwater_host::copy::crc32c;
use headwater_host::width::narrow;
use headwater_ssd::command::{NamespaceId, Sequence};
use headwater_ssd::log::page::{NO_RECORD, PageKind};
use headwater_ssd::log::page_version1::PageSpare;
use headwater_ssd::log::record::{FLAG_CHAINED, RecordAddress, RecordHeader, UNIT_BYTES};
use headwater_ssd::media::geometry::BLOCK_DATA_BYTES;
use headwater_ssd::media::{
    BlockId, FlashGeometry, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PAGES_PER_BLOCK, PageAddress,
};
use std::collections::BTreeMap;

const PIECE: usize = 4_096;
const SLOT: usize = 4_608;
const STAMP: usize = PAGE_DATA_BYTES + PAGE_SPARE_BYTES;
const GENERATIONS_PER_PIECE: usize = 508;
/// The session of the writer, in the upper half of a generation.
const SESSION: u64 = 3;

/// A record of version 1.
#[derive(Clone, Debug)]
pub struct Version1Record {
    /// Number of its namespace.
    pub namespace: u8,
    /// `FLAG_*` of a record.
    pub flags: u8,
    /// Position in the order of all writes.
    pub sequence: u64,
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

impl Version1Record {
    fn bytes(&self, flags: u8) -> Vec<u8> {
        let mut header = RecordHeader {
            crc: 0,
            flags,
            key_bytes: narrow(self.key.len()),
            value_bytes: narrow(self.value.len()),
            extents: 0,
            namespace: NamespaceId(self.namespace),
            sequence: Sequence(self.sequence),
            expiry_ms: 0,
        };
        let checked = [&header.encode()[4..], &self.key, &self.value].concat();
        header.crc = crc32c(0, &checked);
        let mut bytes = [&header.encode()[..], &self.key, &self.value].concat();
        bytes.resize(bytes.len().next_multiple_of(UNIT_BYTES), 0);
        bytes
    }
}

/// A flash file of version 1 that is being made.
#[derive(Debug)]
pub struct Version1File {
    geometry: FlashGeometry,
    uuid: [u8; 16],
    /// Data and spare of the pages that were programmed in the present life of their block.
    pages: BTreeMap<usize, Vec<u8>>,
    /// Pages that were programmed in an older life of their block.
    old_pages: BTreeMap<usize, Vec<u8>>,
    order: u64,
    block: u32,
    open_sequence: u64,
    sequence: u64,
    /// Address plus 1 of the record that continues at the start of the block, else 0.
    continues: u64,
    data: Vec<u8>,
    /// Offsets in the block at which records start.
    starts: Vec<usize>,
}

impl Version1File {
    /// Begins a file of this many blocks.
    #[must_use]
    pub fn new(blocks: u32, uuid: [u8; 16]) -> Self {
        Self {
            geometry: FlashGeometry::with_blocks(blocks),
            uuid,
            pages: BTreeMap::new(),
            old_pages: BTreeMap::new(),
            order: 1,
            block: 0,
            open_sequence: 1,
            sequence: 0,
            continues: 0,
            data: Vec::new(),
            starts: Vec::new(),
        }
    }

    /// Returns the length of the file.
    #[must_use]
    pub fn file_bytes(&self) -> usize {
        self.slots_offset() + self.geometry.blocks as usize * PAGES_PER_BLOCK * SLOT
    }

    /// Returns the length of the file after an upgrade.
    #[must_use]
    pub fn upgraded_bytes(&self) -> usize {
        self.file_bytes() + 34 * PIECE
    }

    /// Returns the number of blocks in which something was written, with the present one.
    #[must_use]
    pub fn blocks_used(&self) -> u32 {
        self.block + u32::from(!self.data.is_empty())
    }

    fn table_pieces(&self) -> usize {
        (self.geometry.blocks as usize).div_ceil(GENERATIONS_PER_PIECE)
    }

    fn slots_offset(&self) -> usize {
        PIECE * (3 + 2 * self.table_pieces())
    }

    /// Appends a record. One that fits in no block is chained, one that does not fit in the rest of a block begins the next.
    pub fn append(&mut self, record: &Version1Record) {
        let chained = record.bytes(0).len() > BLOCK_DATA_BYTES;
        let bytes = record.bytes(record.flags | if chained { FLAG_CHAINED } else { 0 });
        let room = BLOCK_DATA_BYTES - self.data.len();
        if room < if chained { PAGE_DATA_BYTES } else { bytes.len() } {
            self.end_block();
        }
        let address = RecordAddress::in_block(BlockId(self.block), self.data.len());
        self.starts.push(self.data.len());
        self.sequence = self.sequence.max(record.sequence);
        let mut rest = &bytes[..];
        loop {
            let (here, behind) = rest.split_at(rest.len().min(BLOCK_DATA_BYTES - self.data.len()));
            self.data.extend_from_slice(here);
            if behind.is_empty() {
                break;
            }
            rest = behind;
            self.end_block();
            self.continues = address.0 + 1;
        }
    }

    /// Ends the present page, as a flush does.
    pub fn end_page(&mut self) {
        let end = self.data.len().next_multiple_of(PAGE_DATA_BYTES);
        if end == BLOCK_DATA_BYTES {
            self.end_block();
        } else {
            self.data.resize(end, 0);
        }
    }

    /// Ends the present block; the next record begins another one.
    pub fn end_block(&mut self) {
        let data = std::mem::take(&mut self.data);
        let starts = std::mem::take(&mut self.starts);
        for (number, page) in data.chunks(PAGE_DATA_BYTES).enumerate() {
            let range = number * PAGE_DATA_BYTES..(number + 1) * PAGE_DATA_BYTES;
            let first = starts.iter().find(|start| range.contains(start));
            let first = first.map_or(NO_RECORD, |start| narrow(start - range.start));
            let spare = PageSpare {
                kind: PageKind::Log,
                page: narrow(number),
                first,
                used: narrow(page.len()),
                order: self.order,
                open_sequence: Sequence(self.open_sequence),
                durable_sequence: Sequence(self.open_sequence - 1),
                durable_order: self.order - 1,
                continues: if number == 0 { self.continues } else { 0 },
                context: 0,
            };
            let mut bytes = page.to_vec();
            bytes.resize(PAGE_DATA_BYTES + PAGE_SPARE_BYTES, 0);
            spare.encode(&mut bytes);
            self.add_page(PageAddress::new(BlockId(self.block), spare.page), &bytes);
        }
        self.continues = 0;
        self.open_sequence = self.sequence + 1;
        self.order += 1;
        self.block += 1;
    }

    /// Makes all pages so far those of an older life of their blocks, which is over: version 1 reads none of them. What
    /// follows is written behind them.
    pub fn erase_all(&mut self) {
        self.end_block();
        self.old_pages = std::mem::take(&mut self.pages);
    }

    /// Adds a page that version 1 wrote: data and spare.
    pub fn add_page(&mut self, page: PageAddress, bytes: &[u8]) {
        self.pages.insert(page.index(), bytes.to_vec());
    }

    /// Returns the non-zero parts of the file, each with its offset.
    #[must_use]
    pub fn finish(mut self) -> Vec<(usize, Vec<u8>)> {
        self.end_block();
        let seed = crc32c(0, &self.uuid);
        let mut parts = vec![(0, self.superblock()), (PIECE, session(seed)), (2 * PIECE, session(seed))];
        for copy in 0..2 {
            for number in 0..self.table_pieces() {
                let offset = PIECE * (3 + copy * self.table_pieces() + number);
                parts.push((offset, self.table_piece(number, 1 + copy as u64, seed)));
            }
        }
        let old = self.old_pages.iter().map(|page| (page, 1));
        for ((page, bytes), count) in old.chain(self.pages.iter().map(|page| (page, 2))) {
            let generation = SESSION << 32 | count;
            let check = crc32c(crc32c(seed, &generation.to_le_bytes()), &(*page as u64).to_le_bytes());
            let mut slot = bytes.clone();
            slot.resize(SLOT, 0);
            slot[STAMP..STAMP + 8].copy_from_slice(&generation.to_le_bytes());
            slot[STAMP + 8..STAMP + 12].copy_from_slice(&check.to_le_bytes());
            parts.push((self.slots_offset() + page * SLOT, slot));
        }
        parts
    }

    fn superblock(&self) -> Vec<u8> {
        let mut piece = b"HWFLASH\0".to_vec();
        let geometry = self.geometry;
        piece.extend([1, geometry.blocks].map(u32::to_le_bytes).concat());
        piece.extend([geometry.channels, geometry.dies_per_channel].map(u16::to_le_bytes).concat());
        piece.extend([64_u32, 4_096, 128, 4_608, 0].map(u32::to_le_bytes).concat());
        piece.extend([self.slots_offset() as u64, self.file_bytes() as u64].map(u64::to_le_bytes).concat());
        piece.extend(self.uuid);
        with_crc(piece, 0)
    }

    fn table_piece(&self, number: usize, write: u64, seed: u32) -> Vec<u8> {
        let mut piece = write.to_le_bytes().to_vec();
        piece.extend([narrow(number), 0_u32].map(u32::to_le_bytes).concat());
        let blocks = number * GENERATIONS_PER_PIECE..self.geometry.blocks as usize;
        for block in blocks.take(GENERATIONS_PER_PIECE) {
            let pages = block * PAGES_PER_BLOCK..(block + 1) * PAGES_PER_BLOCK;
            let used = |found: &BTreeMap<usize, Vec<u8>>| found.range(pages.clone()).next().is_some();
            let is_used = used(&self.pages) || used(&self.old_pages);
            piece.extend((if is_used { SESSION << 32 | 2 } else { 0 }).to_le_bytes());
        }
        with_crc(piece, seed)
    }
}

fn session(seed: u32) -> Vec<u8> {
    let mut piece = b"HWSESSN\0".to_vec();
    piece.extend(SESSION.to_le_bytes());
    with_crc(piece, seed)
}

fn with_crc(mut piece: Vec<u8>, seed: u32) -> Vec<u8> {
    piece.resize(PIECE - 4, 0);
    piece.extend(crc32c(seed, &piece).to_le_bytes());
    piece
}
