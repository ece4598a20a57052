//! The bytes of a checkpoint (`docs/formats/medium-2.md`): the map (head, namespaces, block table, doubts) and the index
//! (segments, blocks, expiries). The map is encoded by [`MapEncoder`](super::map_encoder::MapEncoder).
//!
//! Input: the translation layer, part by part; or a stream. Output: a byte stream; or its decoded parts. Invariant: a
//! stream is accepted only if every part of it is whole and nothing follows. Its checksum is in the commit record.

use crate::command::{NamespaceId, Sequence};
use crate::ftl::Ftl;
use crate::ftl::doubt::Doubts;
use crate::index::{ENTRY_BYTES, HashedIndex, SEGMENTS, decode_entry, encode_entry};
use crate::index::{EntryLifetime, FlatIndex, IndexEntry, KeyHash, RecordIndex};
use crate::limits::{NAMESPACES, SPACES};
use crate::log::blocks::{BlockEntry, BlockState, BlockUse};
use crate::log::commit_record::CheckpointRoot;
use crate::log::prefix::{NUMBER_MAX, Tick};
use crate::log::record::{RECORD_UNITS_MAX, RecordAddress};
use crate::media::geometry::BLOCK_DATA_BYTES;
use crate::media::{BlockId, Media, PAGES_PER_BLOCK};
use headwater_host::copy::crc32c;
use std::collections::BTreeMap;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 4] = *b"HWCK";
/// Version of the format without blocks, on a medium of version 1.
pub(crate) const CHECKPOINT_VERSION_KEYS: u32 = 1;
/// Version of the format with blocks, on a medium of version 1.
pub(crate) const CHECKPOINT_VERSION: u32 = 2;
/// Version of the map on a medium of version 2.
const MAP_VERSION: u32 = 3;
/// Empty segments encoded together: a page of their lengths.
const EMPTY_SEGMENTS_MAX: usize = 1_024;
/// Block entries encoded together.
const RUN_ENTRIES: usize = 512;
/// Expiries encoded together.
const EXPIRIES_PER_PART: usize = 512;
/// Bits of a page number within a checkpoint.
const PART_BITS: u32 = 32;

/// Packs checkpoint number and page number as a page's spare holds them.
pub(crate) const fn page_context(id: u64, part: u64) -> u64 {
    id << PART_BITS | part
}

/// Unpacks checkpoint number and page number.
pub(crate) const fn split_page_context(stream: u64) -> (u64, u64) {
    (stream >> PART_BITS, stream & ((1 << PART_BITS) - 1))
}

/// The head of the stream.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CheckpointHeadLayout {
    magic: [u8; 4],
    version: U32,
    id: U64,
    start_order: U64,
    sequence: U64,
    durable: U64,
    hash_seed: U64,
    hash_mask: U64,
    blocks: U32,
    segments: U32,
}

const _: () = assert!(size_of::<CheckpointHeadLayout>() == 64);

/// One closed block of the log.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CheckpointBlockLayout {
    block: U32,
    pages: U32,
    order: U64,
    open_sequence: U64,
    max_sequence: U64,
    tombstone_sequence: U64,
    tombstone_bytes: U32,
    reserved: U32,
}

const _: () = assert!(size_of::<CheckpointBlockLayout>() == 48);

impl CheckpointHeadLayout {
    /// Returns the head of a map of this many blocks.
    pub(super) fn of_map<M: Media>(ftl: &Ftl<M>, root: &CheckpointRoot, blocks: u32) -> Self {
        let (hash_seed, hash_mask) = ftl.hasher().parts();
        Self {
            magic: MAGIC,
            version: U32::new(MAP_VERSION),
            id: U64::new(root.number),
            start_order: U64::new(root.start_order),
            sequence: U64::new(ftl.last_sequence().0),
            durable: U64::new(root.start.0),
            hash_seed: U64::new(hash_seed),
            hash_mask: U64::new(hash_mask),
            blocks: U32::new(blocks),
            segments: U32::new(u32::try_from(SEGMENTS).expect("a constant")),
        }
    }
}

impl CheckpointBlockLayout {
    pub(super) fn new(number: BlockId, block: &BlockEntry) -> Self {
        Self {
            block: U32::new(number.0),
            pages: U32::new(u32::from(block.pages)),
            order: U64::new(block.order),
            open_sequence: U64::new(block.open_sequence.0),
            max_sequence: U64::new(block.max_sequence.0),
            tombstone_sequence: U64::new(block.tombstone_sequence.0),
            tombstone_bytes: U32::new(block.tombstone_bytes),
            reserved: U32::ZERO,
        }
    }
}

/// The bytes of a part of a checkpoint that are encoded and not yet written, and the checksum of all that were encoded.
#[derive(Debug, Default)]
pub(crate) struct StreamBuffer {
    bytes: Vec<u8>,
    /// Bytes at the front that were written.
    written: usize,
    /// The checksum of all bytes that were written: it is taken page by page, entries are too short for it.
    crc: u32,
}

impl StreamBuffer {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the checksum of the bytes encoded so far.
    pub(crate) fn crc(&self) -> u32 {
        crc32c(self.crc, self.waiting())
    }

    /// Returns the number of bytes encoded and not yet written.
    pub(crate) fn len(&self) -> usize {
        self.waiting().len()
    }

    /// Copies the next bytes into a page and zeroes the rest of it. Returns the number of bytes copied.
    pub(crate) fn copy_page(&self, page: &mut [u8]) -> usize {
        let used = self.len().min(page.len());
        page[..used].copy_from_slice(&self.waiting()[..used]);
        page[used..].fill(0);
        used
    }

    /// Drops bytes whose page was submitted.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.crc = crc32c(self.crc, &self.waiting()[..bytes]);
        self.written += bytes;
        // What is left moves to the front only when it is no more than what was written.
        if self.written >= self.len() {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }

    fn waiting(&self) -> &[u8] {
        &self.bytes[self.written..]
    }
}

/// The encoder of an index, which buffers the stream until it is written page by page.
#[derive(Debug)]
pub(crate) struct IndexEncoder {
    buffer: StreamBuffer,
    /// Index position of the next block entry; `None` if all are encoded.
    blocks_from: Option<KeyHash>,
    expiries: Option<ExpiryCursor>,
}

/// The position in the expiries of an index.
#[derive(Debug)]
struct ExpiryCursor {
    /// The next expiry; `None` behind the last one.
    from: Option<(u64, KeyHash, RecordAddress)>,
    /// Expiries of the stream that are not encoded.
    left: usize,
}

impl IndexEncoder {
    /// Begins a stream.
    pub(crate) fn new() -> Self {
        let buffer = StreamBuffer::default();
        Self { buffer, blocks_from: Some(KeyHash::FIRST_POSITION), expiries: None }
    }

    /// Returns the bytes that are encoded and not yet written.
    pub(crate) fn buffer(&mut self) -> &mut StreamBuffer {
        &mut self.buffer
    }

    /// Appends a segment of the index, or several if they are empty, and returns how many.
    pub(crate) fn push_segments(&mut self, index: &HashedIndex, first: usize) -> usize {
        const EMPTY: [u8; 4 * EMPTY_SEGMENTS_MAX] = [0; _];
        let empty = index.empty_segments(first, EMPTY_SEGMENTS_MAX);
        if empty > 0 {
            self.buffer.push(&EMPTY[..4 * empty]);
            return empty;
        }
        self.push_segment(index, first);
        1
    }

    fn push_segment(&mut self, index: &HashedIndex, number: usize) {
        let entries: Vec<_> = index.segment(number).collect();
        self.buffer.push(&u32::try_from(entries.len()).unwrap_or(u32::MAX).to_le_bytes());
        for (hash, entry) in entries {
            self.buffer.push(&encode_entry(hash, entry));
        }
    }

    /// Appends the next run of block entries, and after the last an empty run. Returns false if none is left to append.
    pub(crate) fn push_block_run(&mut self, index: &FlatIndex) -> bool {
        let Some(from) = self.blocks_from else { return false };
        let mut run = Vec::with_capacity(RUN_ENTRIES);
        let mut next = Some(from);
        while let Some((place, entry)) =
            next.filter(|_| run.len() < RUN_ENTRIES).and_then(|from| index.next(from))
        {
            run.push((place, entry));
            next = Some(KeyHash(place.0 + 1));
        }
        self.buffer.push(&u32::try_from(run.len()).unwrap_or(u32::MAX).to_le_bytes());
        for (place, entry) in &run {
            self.buffer.push(&place.0.to_le_bytes());
            self.buffer
                .push(&encode_entry(KeyHash(0), IndexEntry { namespace: NamespaceId::FIRST, ..*entry })[8..]);
        }
        self.blocks_from = next.filter(|_| !run.is_empty());
        true
    }

    /// Appends the next part of the expiries, which end the stream. Returns false behind the last one.
    ///
    /// The part begins with their number, and they change while it is encoded. Those of records in the window, which begins
    /// with this order, are left out: recovery takes them from the log, and so the number suffices for all older ones. What
    /// is left of it is filled with expiries of no block, which recovery passes over.
    pub(crate) fn push_expiries<M: Media>(&mut self, ftl: &Ftl<M>, start_order: u64) -> bool {
        let all = ftl.expiry();
        if self.expiries.is_none() {
            self.buffer.push(&(all.len() as u64).to_le_bytes());
        }
        let first = ExpiryCursor { from: Some((0, KeyHash(0), RecordAddress(0))), left: all.len() };
        let mut cursor = self.expiries.take().unwrap_or(first);
        if cursor.left == 0 {
            return false;
        }
        if let Some(from) = cursor.from {
            let mut part = all.range_from(from);
            for (expiry_ms, hash, address) in part.by_ref().take(EXPIRIES_PER_PART) {
                if ftl.blocks().get(address.block()).order < start_order {
                    self.push_expiry(expiry_ms, hash, address);
                    cursor.left =
                        cursor.left.checked_sub(1).expect("an older expiry came after the first part");
                }
            }
            cursor.from = part.next();
        } else {
            let nowhere = RecordAddress::in_block(BlockId(ftl.geometry().blocks), 0);
            let fill = cursor.left.min(EXPIRIES_PER_PART);
            (0..fill).for_each(|_| self.push_expiry(0, KeyHash(0), nowhere));
            cursor.left -= fill;
        }
        self.expiries = Some(cursor);
        true
    }

    fn push_expiry(&mut self, expiry_ms: u64, hash: KeyHash, address: RecordAddress) {
        let entry = [U64::new(expiry_ms), U64::new(hash.0), U64::new(address.0)];
        self.buffer.push(entry.as_bytes());
    }
}

/// A decoded map.
#[derive(Debug)]
pub(crate) struct DecodedMap {
    pub(crate) number: u64,
    pub(crate) start_order: u64,
    pub(crate) start: Tick,
    pub(crate) sequence: Sequence,
    pub(crate) hasher: (u64, u64),
    pub(crate) cleared: [Sequence; NAMESPACES],
    pub(crate) blocks: Vec<(BlockId, BlockEntry)>,
    pub(crate) doubts: Doubts,
    pub(crate) version_1_below: u64,
}

/// A decoded index.
#[derive(Debug, Default)]
pub(crate) struct DecodedIndex {
    pub(crate) segments: Vec<Vec<(KeyHash, IndexEntry)>>,
    pub(crate) flat: Vec<(KeyHash, IndexEntry)>,
    pub(crate) expiries: Vec<(u64, KeyHash, RecordAddress)>,
}

/// A decoded checkpoint of version 1.
#[derive(Debug)]
pub(crate) struct DecodedCheckpoint {
    pub(crate) start_order: u64,
    pub(crate) sequence: Sequence,
    pub(crate) durable: Sequence,
    pub(crate) hasher: (u64, u64),
    pub(crate) cleared: [Sequence; NAMESPACES],
    pub(crate) blocks: Vec<(BlockId, BlockEntry)>,
    pub(crate) index: DecodedIndex,
}

/// A reader that takes parts off the front of a stream.
struct StreamReader<'a>(&'a [u8]);

impl<'a> StreamReader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn take<T: FromBytes>(&mut self) -> Option<T> {
        T::read_from_bytes(self.bytes(size_of::<T>())?).ok()
    }
}

/// Decodes a map; returns `None` if it is not whole, or of another version.
pub(crate) fn decode_map(stream: &[u8]) -> Option<DecodedMap> {
    let mut reader = StreamReader(stream);
    let head: CheckpointHeadLayout = reader.take()?;
    if head.magic != MAGIC || head.version.get() != MAP_VERSION || head.segments.get() as usize != SEGMENTS {
        return None;
    }
    let cleared = decode_cleared(&mut reader)?;
    let blocks = (0..head.blocks.get()).map(|_| decode_block(&mut reader)).collect::<Option<Vec<_>>>()?;
    let mut below = [Sequence(0); SPACES];
    for sequence in &mut below {
        *sequence = Sequence(reader.take::<U64>()?.get());
    }
    let count = reader.take::<U64>()?.get();
    let mut settled = (0..count).map(|_| decode_settled(&mut reader)).collect::<Option<BTreeMap<_, _>>>()?;
    // Of keys that were gone when their part was encoded.
    settled.retain(|_, removed| removed.0 > 0);
    let version_1_below = reader.take::<U64>()?.get();
    let sequence = Sequence(head.sequence.get());
    if below.iter().chain(&cleared).chain([&sequence]).any(|sequence| sequence.0 > NUMBER_MAX) {
        return None;
    }
    reader.0.is_empty().then_some(DecodedMap {
        number: head.id.get(),
        start_order: head.start_order.get(),
        start: Tick(head.durable.get()),
        sequence,
        hasher: (head.hash_seed.get(), head.hash_mask.get()),
        cleared,
        blocks,
        doubts: Doubts::new(below, settled),
        version_1_below,
    })
}

/// Decodes an index; returns `None` if it is not whole.
pub(crate) fn decode_index(stream: &[u8]) -> Option<DecodedIndex> {
    let mut reader = StreamReader(stream);
    let index = decode_index_parts(&mut reader, true)?;
    reader.0.is_empty().then_some(index)
}

fn decode_index_parts(reader: &mut StreamReader<'_>, has_blocks: bool) -> Option<DecodedIndex> {
    let segments = (0..SEGMENTS).map(|_| decode_segment(reader)).collect::<Option<Vec<_>>>()?;
    let flat = if has_blocks { decode_runs(reader)? } else { Vec::new() };
    let count = reader.take::<U64>()?.get();
    let expiries = (0..count).map(|_| decode_expiry(reader)).collect::<Option<Vec<_>>>()?;
    Some(DecodedIndex { segments, flat, expiries })
}

fn decode_cleared(reader: &mut StreamReader<'_>) -> Option<[Sequence; NAMESPACES]> {
    let mut cleared = [Sequence(0); NAMESPACES];
    for sequence in &mut cleared {
        *sequence = Sequence(reader.take::<U64>()?.get());
    }
    Some(cleared)
}

fn decode_settled(reader: &mut StreamReader<'_>) -> Option<(u128, Sequence)> {
    let [low, high, removed]: [U64; 3] = reader.take()?;
    let digest = u128::from(high.get()) << 64 | u128::from(low.get());
    (removed.get() <= NUMBER_MAX).then_some((digest, Sequence(removed.get())))
}

/// Decodes the checkpoint of a medium of version 1; returns `None` if it is not whole, no checkpoint, or of another
/// version.
pub(crate) fn decode_version_1(stream: &[u8]) -> Option<DecodedCheckpoint> {
    let (body, crc) = stream.split_at_checked(stream.len().checked_sub(4)?)?;
    if crc32c(0, body).to_le_bytes() != crc {
        return None;
    }
    let mut reader = StreamReader(body);
    let head: CheckpointHeadLayout = reader.take()?;
    if head.magic != MAGIC
        || !(CHECKPOINT_VERSION_KEYS..=CHECKPOINT_VERSION).contains(&head.version.get())
        || head.segments.get() as usize != SEGMENTS
    {
        return None;
    }
    let cleared = decode_cleared(&mut reader)?;
    let blocks = (0..head.blocks.get()).map(|_| decode_block(&mut reader)).collect::<Option<Vec<_>>>()?;
    let index = decode_index_parts(&mut reader, head.version.get() == CHECKPOINT_VERSION)?;
    reader.0.is_empty().then_some(DecodedCheckpoint {
        start_order: head.start_order.get(),
        sequence: Sequence(head.sequence.get()),
        durable: Sequence(head.durable.get()),
        hasher: (head.hash_seed.get(), head.hash_mask.get()),
        cleared,
        blocks,
        index,
    })
}

fn decode_block(reader: &mut StreamReader<'_>) -> Option<(BlockId, BlockEntry)> {
    let layout: CheckpointBlockLayout = reader.take()?;
    let block = BlockEntry {
        state: BlockState::Closed,
        order: layout.order.get(),
        open_sequence: Sequence(layout.open_sequence.get()),
        max_sequence: Sequence(layout.max_sequence.get()),
        live_bytes: 0,
        tombstone_bytes: layout.tombstone_bytes.get(),
        tombstone_sequence: Sequence(layout.tombstone_sequence.get()),
        next: None,
        pages: u8::try_from(layout.pages.get()).ok()?,
        last_tick: Tick(0),
        usage: BlockUse::Log,
        listed: false,
        has_damage: false,
    };
    let sequences = [block.open_sequence, block.max_sequence, block.tombstone_sequence];
    let is_possible = usize::from(block.pages) <= PAGES_PER_BLOCK
        && block.tombstone_bytes as usize <= BLOCK_DATA_BYTES
        && sequences.iter().all(|sequence| sequence.0 <= NUMBER_MAX);
    is_possible.then_some((BlockId(layout.block.get()), block))
}

fn decode_segment(reader: &mut StreamReader<'_>) -> Option<Vec<(KeyHash, IndexEntry)>> {
    let count = reader.take::<U32>()?.get() as usize;
    let bytes = reader.bytes(count.checked_mul(ENTRY_BYTES)?)?;
    let (entries, _) = bytes.as_chunks::<ENTRY_BYTES>();
    let entries = entries.iter().map(|entry| decode_entry(*entry));
    entries.map(|found| (1..=RECORD_UNITS_MAX).contains(&found.1.units).then_some(found)).collect()
}

/// Decodes the block entries, up to the empty run.
fn decode_runs(reader: &mut StreamReader<'_>) -> Option<Vec<(KeyHash, IndexEntry)>> {
    let mut flat: Vec<(KeyHash, IndexEntry)> = Vec::new();
    loop {
        let count = reader.take::<U32>()?.get() as usize;
        if count == 0 {
            return Some(flat);
        }
        let bytes = reader.bytes(count.checked_mul(ENTRY_BYTES)?)?;
        let (entries, _) = bytes.as_chunks::<ENTRY_BYTES>();
        for entry in entries {
            let [place, _]: [U64; 2] = zerocopy::transmute!(*entry);
            let place = KeyHash(place.get());
            let (_, mut found) = decode_entry(*entry);
            found.namespace = place.namespace_and_lba().0;
            let is_behind = flat.last().is_none_or(|(last, _)| *last < place);
            if !is_behind
                || !FlatIndex::can_hold(place)
                || !(1..=RECORD_UNITS_MAX).contains(&found.units)
                || found.lifetime == EntryLifetime::Limited
            {
                return None;
            }
            flat.push((place, found));
        }
    }
}

fn decode_expiry(reader: &mut StreamReader<'_>) -> Option<(u64, KeyHash, RecordAddress)> {
    let [expiry_ms, hash, address]: [U64; 3] = reader.take()?;
    Some((expiry_ms.get(), KeyHash(hash.get()), RecordAddress(address.get())))
}
