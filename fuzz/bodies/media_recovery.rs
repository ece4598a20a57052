//! Recovery: whatever lies on the medium, the device opens or says why not; what it then serves carries a valid checksum.
//!
//! In: a script, a byte or a few for each step, that writes records and pages as our log would and then spoils some of
//! them. A purely random page would stop at its checksum; a spoiled good one reaches the code behind it.

use headwater_converged::command::{NamespaceId, Sequence};
use headwater_converged::media::memory::MemoryMedia;
use headwater_converged::media::{
    BlockId, Geometry, Media, MediaOp, MediaToken, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PAGES_PER_BLOCK, PageAddress,
};
use headwater_converged::page::{NO_RECORD, PageKind, PageSpare};
use headwater_converged::record::{RecordHeader, UNIT_BYTES};
use headwater_dma::frame::Frame;
use headwater_host::clock::Nanos;
use headwater_host::copy::crc32c;

const BLOCKS: u32 = 16;
const SLOT_BYTES: usize = PAGE_DATA_BYTES + PAGE_SPARE_BYTES;

/// One run.
pub fn body(bytes: &[u8]) {
    let mut script = Script { bytes };
    let mut medium = MemoryMedia::erased(Geometry::with_blocks(BLOCKS)).expect("16 blocks fit in memory");
    let mut writer = Writer::new();
    while let Some(step) = script.byte() {
        match step % 8 {
            0..=2 => writer.record(&mut script),
            3 => writer.flip(&mut script),
            4 => writer.copy_raw(&mut script),
            5 => writer.next_block(&mut medium, &mut script),
            _ => writer.end_page(&mut medium, &mut script),
        }
    }
    writer.end_page(&mut medium, &mut script);
    super::recover(medium);
}

struct Script<'a> {
    bytes: &'a [u8],
}

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn small(&mut self) -> u8 {
        self.byte().unwrap_or(0)
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.small(), self.small()])
    }
}

/// The page under way, and where the log stands.
struct Writer {
    slot: Box<[u8; SLOT_BYTES]>,
    used: usize,
    first: u16,
    at: PageAddress,
    order: u64,
    sequence: u64,
    flips: Vec<u16>,
}

impl Writer {
    fn new() -> Self {
        Self {
            slot: Box::new([0; SLOT_BYTES]),
            used: 0,
            first: NO_RECORD,
            at: PageAddress::new(BlockId(0), 0),
            order: 1,
            sequence: 1,
            flips: Vec::new(),
        }
    }

    /// Puts a record with a right checksum behind what is there, as far as the page goes.
    fn record(&mut self, script: &mut Script<'_>) {
        let key = [b'a' + script.small() % 8];
        let value = vec![script.small(); usize::from(script.word() % 2_048)];
        let header = RecordHeader {
            crc: 0,
            flags: script.small() & 0x1f,
            key_bytes: if script.small() == 255 { 0 } else { 1 },
            value_bytes: u32::try_from(value.len()).expect("below 2,048"),
            namespace: NamespaceId(script.small() % 18),
            sequence: Sequence(self.sequence),
            expiry_ms: u64::from(script.small()),
        };
        // Mostly the next one; sometimes the same again, or a gap.
        self.sequence += u64::from(script.small() % 4);
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(&key[..usize::from(header.key_bytes)]);
        bytes.extend_from_slice(&value);
        let crc = crc32c(0, &bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(UNIT_BYTES), 0);
        if self.first == NO_RECORD {
            self.first = u16::try_from(self.used.min(PAGE_DATA_BYTES - UNIT_BYTES)).expect("below a page");
        }
        let fits = bytes.len().min(PAGE_DATA_BYTES - self.used);
        self.slot[self.used..self.used + fits].copy_from_slice(&bytes[..fits]);
        self.used += fits;
    }

    /// Spoils a bit once the page is whole, checksums and all.
    fn flip(&mut self, script: &mut Script<'_>) {
        self.flips.push(script.word());
    }

    /// Takes bytes of the script as they are.
    fn copy_raw(&mut self, script: &mut Script<'_>) {
        let wanted = usize::from(script.small());
        let taken = wanted.min(script.bytes.len()).min(PAGE_DATA_BYTES - self.used);
        let (raw, rest) = script.bytes.split_at(taken);
        script.bytes = rest;
        self.slot[self.used..self.used + taken].copy_from_slice(raw);
        self.used = (self.used + taken).next_multiple_of(UNIT_BYTES).min(PAGE_DATA_BYTES);
    }

    fn end_page(&mut self, medium: &mut MemoryMedia, script: &mut Script<'_>) {
        let spare = PageSpare {
            kind: match script.small() % 8 {
                0 => PageKind::Checkpoint,
                1 => PageKind::Guard,
                _ => PageKind::Log,
            },
            page: self.at.page,
            first: self.first,
            used: u16::try_from(self.used).expect("at most a page"),
            order: self.order,
            open_sequence: Sequence(self.sequence.saturating_sub(u64::from(script.small()))),
            durable_sequence: Sequence(self.sequence.saturating_sub(u64::from(script.small()))),
            continues: u64::from(script.small() / 128) * u64::from(script.word()),
            stream: u64::from(script.small() / 128),
        };
        spare.encode(&mut self.slot[..]);
        for flip in self.flips.drain(..) {
            let bit = usize::from(flip) % (SLOT_BYTES * 8);
            self.slot[bit / 8] ^= 1 << (bit % 8);
        }
        let mut frame = Frame::zeroed();
        frame[..SLOT_BYTES].copy_from_slice(&self.slot[..]);
        if self.at.block.0 < BLOCKS && usize::from(self.at.page) < PAGES_PER_BLOCK {
            let op = MediaOp::Program { page: self.at, frame };
            medium.submit(MediaToken(0), op, Nanos::ZERO).expect("pages are written in order");
            medium.poll(Nanos::ZERO, &mut Vec::new());
            self.at.page += 1;
        }
        self.slot.fill(0);
        self.used = 0;
        self.first = NO_RECORD;
    }

    fn next_block(&mut self, medium: &mut MemoryMedia, script: &mut Script<'_>) {
        if self.used > 0 {
            self.end_page(medium, script);
        }
        self.at = PageAddress::new(BlockId(self.at.block.0.saturating_add(1)), 0);
        // Mostly a new order; sometimes the same, which two blocks can never have.
        self.order += u64::from(script.small().min(1));
    }
}
