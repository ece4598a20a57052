//! The scan: every record of the blocks that no checkpoint covers.
//!
//! In: pages of the log in the order in which they were written. Out: one line a record that carries its checksum, and
//! what each block is. Invariant: a record is reported only if its CRC matches over all of its bytes, on however many
//! pages and blocks they lie.

use super::read_pages;
use super::survey::Survey;
use crate::blocks::{Block, BlockState};
use crate::command::{NamespaceId, Sequence};
use crate::device::Progress;
use crate::index::{FlatIndex, KeyHash};
use crate::media::geometry::{BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use crate::media::{Media, MediaError};
use crate::page::{NO_RECORD, PageKind, PageSpare};
use crate::record::{HEADER_BYTES, RecordAddress, RecordHeader, UNIT_BYTES};
use crate::utl::Utl;
use headwater_host::clock::Nanos;
use headwater_host::copy::crc32c;
use std::collections::BTreeSet;

/// One record found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// Stands for namespace and key.
    pub(super) digest: u128,
    pub(super) hash: KeyHash,
    pub(super) sequence: Sequence,
    /// Order of the block it lies in.
    pub(super) order: u64,
    pub(super) address: RecordAddress,
    pub(super) units: u32,
    pub(super) namespace: NamespaceId,
    pub(super) flags: u8,
    pub(super) expiry_ms: u64,
}

/// Everything found.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    pub(super) lines: Vec<Line>,
    pub(super) blocks: Vec<(BlockId, Block)>,
    /// The highest durable sequence that any page says.
    pub(super) durable: Sequence,
    /// The highest order up to which some page says that all blocks were begun.
    pub(super) durable_order: u64,
    /// Records that did not carry their checksum.
    pub(super) damaged: u64,
    /// Blocks in which there was damage.
    pub(super) suspect: BTreeSet<BlockId>,
    /// The highest block order that any page says.
    pub(super) highest_order: u64,
}

/// A block's pages, gathered until all have come.
struct BlockPages {
    block: BlockId,
    data: Vec<u8>,
    spares: Vec<Option<PageSpare>>,
    programmed: u8,
}

impl BlockPages {
    fn new(block: BlockId) -> Self {
        Self {
            block,
            data: Vec::with_capacity(PAGES_PER_BLOCK * PAGE_DATA_BYTES),
            spares: Vec::new(),
            programmed: 0,
        }
    }

    fn push(&mut self, page: PageAddress, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => {
                self.data.extend_from_slice(&bytes[..PAGE_DATA_BYTES]);
                self.spares.push(PageSpare::decode(bytes, page.page));
                self.programmed = page.page + 1;
            }
            None => {
                self.data.resize(self.data.len() + PAGE_DATA_BYTES, 0);
                self.spares.push(None);
            }
        }
    }

    fn is_whole(&self) -> bool {
        self.spares.len() == PAGES_PER_BLOCK
    }

    /// Whether some page before the last programmed one is not a page of this life.
    fn is_holed(&self, life: &PageSpare) -> bool {
        let mine = |spare: &Option<PageSpare>| spare.is_some_and(|spare| spare.order == life.order);
        !self.spares.iter().take(usize::from(self.programmed)).all(mine)
    }

    /// The life of the block that its pages belong to: a page of an older life is not part of it.
    fn life(&self) -> Option<PageSpare> {
        self.spares.iter().flatten().copied().max_by_key(|spare| spare.order)
    }
}

/// A chained record whose rest lies in the next block.
struct Chain {
    address: RecordAddress,
    order: u64,
    bytes: Vec<u8>,
    wanted: usize,
}

/// Scans every log block from `start_order` on.
#[expect(clippy::cast_possible_truncation, reason = "64 pages a block")]
pub(super) fn scan<M: Media>(
    utl: &mut Utl<M>,
    survey: &Survey,
    start_order: u64,
    now: &mut Nanos,
    progress: &mut dyn FnMut(Progress),
) -> Result<Scanned, MediaError> {
    let blocks = survey.log_blocks(start_order);
    let total = blocks.len() as u64;
    let pages =
        blocks.iter().flat_map(|block| (0..PAGES_PER_BLOCK as u8).map(|page| PageAddress::new(*block, page)));
    let hasher = utl.hasher;
    let mut scanner = Scanner { survey, found: Scanned::default(), hasher, chain: None };
    let mut current: Option<BlockPages> = None;
    let mut done = 0;
    read_pages(&mut utl.media, now, pages, |page, bytes| {
        let gathering = current.get_or_insert_with(|| BlockPages::new(page.block));
        gathering.push(page, bytes);
        if gathering.is_whole() {
            if let Some(whole) = current.take() {
                scanner.block(&whole);
            }
            done += 1;
            progress(Progress { stage: "scan", done, total });
        }
    })?;
    utl.stats.damaged += scanner.found.damaged;
    Ok(scanner.found)
}

struct Scanner<'a> {
    survey: &'a Survey,
    found: Scanned,
    hasher: crate::index::KeyHasher,
    chain: Option<Chain>,
}

impl Scanner<'_> {
    fn block(&mut self, pages: &BlockPages) {
        let Some(life) = pages.life() else { return };
        self.found.highest_order = self.found.highest_order.max(life.order);
        let taken = self.found.blocks.last().is_some_and(|(_, block)| block.order >= life.order);
        // Where the first page still shows an older life, the first page of the younger one was never programmed whole:
        // nothing of it was durable, and what the older one held had moved away before the erase.
        let outlived = self.survey.spare(pages.block).is_some_and(|first| first.order != life.order);
        if life.kind == PageKind::Checkpoint || !self.survey.is_accepted(life.order) || taken || outlived {
            return;
        }
        if pages.is_holed(&life) {
            self.found.suspect.insert(pages.block);
        }
        let mut max_sequence = Sequence(0);
        let before = self.found.lines.len();
        self.go_on(pages, &life);
        for number in 0..pages.spares.len() {
            let Some(spare) = pages.spares[number].filter(|spare| spare.order == life.order) else {
                continue;
            };
            self.found.durable = self.found.durable.max(spare.durable_sequence);
            self.found.durable_order = self.found.durable_order.max(spare.durable_order);
            if spare.kind == PageKind::Log && spare.first != NO_RECORD {
                self.page(pages, number, &spare);
            }
        }
        for line in &self.found.lines[before..] {
            max_sequence = max_sequence.max(line.sequence);
        }
        if let Some(chain) = &self.chain {
            max_sequence =
                max_sequence.max(header_of(&chain.bytes).map_or(Sequence(0), |header| header.sequence));
        }
        let block = Block {
            state: BlockState::Closed,
            order: life.order,
            open_sequence: life.open_sequence,
            max_sequence,
            live_bytes: 0,
            tombstone_bytes: 0,
            tombstone_sequence: Sequence(0),
            next: None,
            pages: pages.programmed,
            checkpoint: false,
            suspect: self.found.suspect.contains(&pages.block),
        };
        self.found.blocks.push((pages.block, block));
    }

    fn damage(&mut self, block: BlockId) {
        self.found.damaged += 1;
        self.found.suspect.insert(block);
        if let Some((_, found)) = self.found.blocks.iter_mut().rev().find(|(number, _)| *number == block) {
            found.suspect = true;
        }
    }

    /// The rest of a chained record at the start of a block.
    fn go_on(&mut self, pages: &BlockPages, life: &PageSpare) {
        let Some(mut chain) = self.chain.take() else {
            return;
        };
        let continues =
            pages.spares[0].filter(|spare| spare.order == life.order).map_or(0, |spare| spare.continues);
        if continues != chain.address.0 + 1 {
            self.damage(chain.address.block());
            return;
        }
        let here = (chain.wanted - chain.bytes.len()).min(pages.data.len());
        chain.bytes.extend_from_slice(&pages.data[..here]);
        if chain.bytes.len() < chain.wanted {
            self.chain = Some(chain);
            return;
        }
        // A chained record lies in the block of its header.
        let order = chain.order;
        self.record(&chain.bytes, chain.address, order);
    }

    /// The records that start in one page.
    fn page(&mut self, pages: &BlockPages, number: usize, spare: &PageSpare) {
        let page_start = number * PAGE_DATA_BYTES;
        let mut at = page_start + usize::from(spare.first);
        let end = page_start + usize::from(spare.used);
        while at + HEADER_BYTES <= pages.data.len() && at < end {
            let Some(header) = header_of(&pages.data[at..]) else {
                self.damage(pages.block);
                return;
            };
            let address = RecordAddress::in_block(pages.block, at);
            let bytes = header.units() as usize * UNIT_BYTES;
            if at + bytes > pages.data.len() {
                let mut chained = Vec::with_capacity(bytes);
                chained.extend_from_slice(&pages.data[at..]);
                self.chain = Some(Chain { address, order: spare.order, bytes: chained, wanted: bytes });
                return;
            }
            if !self.record(&pages.data[at..at + bytes], address, spare.order) {
                // Lengths of a damaged header lead nowhere; the next page says where its first record starts.
                return;
            }
            at += bytes;
        }
    }

    /// One whole record. False when it does not carry its checksum.
    fn record(&mut self, bytes: &[u8], address: RecordAddress, order: u64) -> bool {
        let header =
            header_of(bytes).filter(|header| crc32c(0, &bytes[4..header.payload_end()]) == header.crc);
        let Some(header) = header else {
            self.damage(address.block());
            return false;
        };
        let key = &bytes[HEADER_BYTES..HEADER_BYTES + usize::from(header.key_bytes)];
        let hash = self.hasher.hash_of(&header, key);
        if hash.is_place() && !FlatIndex::holds(hash) {
            self.damage(address.block());
            return false;
        }
        self.found.lines.push(Line {
            digest: self.hasher.digest_of(&header, key),
            hash,
            sequence: header.sequence,
            order,
            address,
            units: header.units(),
            namespace: header.namespace,
            flags: header.flags,
            expiry_ms: header.expiry_ms,
        });
        true
    }
}

fn header_of(bytes: &[u8]) -> Option<RecordHeader> {
    RecordHeader::decode(bytes.first_chunk()?).ok()
}
