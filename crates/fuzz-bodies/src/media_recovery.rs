//! Recovery of a medium of version 1: for any contents, the device opens or fails with a reason; it serves only data with a valid
//! checksum.
//!
//! Input: a script, one or a few bytes for each step, that writes records and pages as the log would and then corrupts
//! some of them. A purely random page would stop at its checksum; a corrupted valid one reaches the code behind it.

use headwater_dma::frame::MediaFrame;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::copy::crc32c;
use headwater_ssd::command::{FrontEndId, ListPosition, NamespaceId, SsdCommand};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::media::{
    BlockId, FlashGeometry, Media, MediaOp, MediaToken, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PAGES_PER_BLOCK,
    PageAddress,
};

const BLOCKS: u32 = 16;
const SLOT_BYTES: usize = PAGE_DATA_BYTES + PAGE_SPARE_BYTES;
const UNIT_BYTES: usize = 16;
/// The flag of a record whose key is a block address.
const FLAG_BLOCK: u8 = 32;
/// The first of the steps that write records of blocks.
const BLOCK_STEPS: u8 = 248;
const NO_RECORD: u16 = u16::MAX;
/// Polls after which a device without an answer counts as stuck.
const POLLS_MAX: u32 = 100_000;

/// Writes a medium, corrupts it, and opens a device on it.
///
/// # Panics
/// If the device refuses without a reason, or if a command is never completed.
pub fn body(bytes: &[u8]) {
    let mut script = FuzzScript { bytes };
    let mut medium =
        MemoryMedia::erased(FlashGeometry::with_blocks(BLOCKS)).expect("16 blocks fit in memory");
    let mut writer = PageWriter::new();
    while let Some(step) = script.byte() {
        match step % 8 {
            _ if step >= BLOCK_STEPS => writer.record(&mut script, RecordKey::Block),
            0..=2 => writer.record(&mut script, RecordKey::Key),
            3 => writer.flip(&mut script),
            4 => writer.copy_raw(&mut script),
            5 => writer.next_block(&mut medium, &mut script),
            _ => writer.end_page(&mut medium, &mut script),
        }
    }
    writer.end_page(&mut medium, &mut script);
    recover(medium);
}

/// Opens a device on the medium; if it opens, it lists its keys. Neither may panic or hang.
fn recover(medium: MemoryMedia) {
    let start = StartTime { now: Nanos::ZERO, wall: UnixMillis(0) };
    let opened = SsdDevice::open(medium.as_version_1(), DeviceConfig::default(), start, &mut |_| {});
    let mut device = match opened {
        Ok(device) => device,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "refused without a reason");
            return;
        }
    };
    let list = SsdCommand::List { position: ListPosition::START, keys_max: 100 };
    if device.submit(FrontEndId(0), NamespaceId::FIRST, 1, list).is_err() {
        return;
    }
    for turn in 0..POLLS_MAX {
        device.poll(Nanos(u64::from(turn) * 1_000), UnixMillis(0));
        if let Some(completion) = device.next_completion(FrontEndId(0)) {
            assert_eq!(completion.token, 1, "a completion without a command");
            return;
        }
    }
    panic!("a command was accepted and never answered");
}

/// The kind of key of a record.
#[derive(Clone, Copy)]
enum RecordKey {
    Key,
    Block,
}

/// The rest of the input: steps and their operands.
struct FuzzScript<'a> {
    bytes: &'a [u8],
}

impl FuzzScript<'_> {
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

/// The page being written, and the position of the log.
struct PageWriter {
    slot: Box<[u8; SLOT_BYTES]>,
    used: usize,
    first: u16,
    at: PageAddress,
    order: u64,
    sequence: u64,
    flips: Vec<u16>,
}

impl PageWriter {
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

    /// Appends a record with a valid checksum, truncated at the end of the page (docs/formats/record.md).
    fn record(&mut self, script: &mut FuzzScript<'_>, kind: RecordKey) {
        let name = script.small();
        let value = vec![script.small(); usize::from(script.word() % 2_048)];
        let flags = script.small() & 0x1f;
        let (key, flags) = match kind {
            RecordKey::Key => (vec![b'a' + name % 8], flags),
            // Blocks near the start, and beyond every namespace.
            RecordKey::Block => (vec![name % 8, 0, 0, 0, name / 64 * 8, 0, 0, 0], flags | FLAG_BLOCK),
        };
        let key = if script.small() == 255 { &key[..0] } else { &key[..] };
        let mut bytes = vec![0, 0, 0, 0, 1, flags];
        bytes.extend_from_slice(&u16::try_from(key.len()).expect("one at most").to_le_bytes());
        bytes.extend_from_slice(&u32::try_from(value.len()).expect("below 2,048").to_le_bytes());
        bytes.extend_from_slice(&u32::from(script.small() % 18).to_le_bytes());
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        // Epoch, slot, reserved and request id are zero on a device without peers.
        bytes.resize(40, 0);
        bytes.extend_from_slice(&u64::from(script.small()).to_le_bytes());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(&value);
        let crc = crc32c(0, &bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(UNIT_BYTES), 0);
        // Mostly the next number; sometimes the same again, or a gap.
        self.sequence += u64::from(script.small() % 4);
        if self.first == NO_RECORD {
            self.first = u16::try_from(self.used.min(PAGE_DATA_BYTES - UNIT_BYTES)).expect("below a page");
        }
        let fits = bytes.len().min(PAGE_DATA_BYTES - self.used);
        self.slot[self.used..self.used + fits].copy_from_slice(&bytes[..fits]);
        self.used += fits;
    }

    /// Schedules the flip of a bit of the complete page, checksums included.
    fn flip(&mut self, script: &mut FuzzScript<'_>) {
        self.flips.push(script.word());
    }

    /// Copies bytes of the script unchanged.
    fn copy_raw(&mut self, script: &mut FuzzScript<'_>) {
        let wanted = usize::from(script.small());
        let taken = wanted.min(script.bytes.len()).min(PAGE_DATA_BYTES - self.used);
        let (raw, rest) = script.bytes.split_at(taken);
        script.bytes = rest;
        self.slot[self.used..self.used + taken].copy_from_slice(raw);
        self.used = (self.used + taken).next_multiple_of(UNIT_BYTES).min(PAGE_DATA_BYTES);
    }

    fn end_page(&mut self, medium: &mut MemoryMedia, script: &mut FuzzScript<'_>) {
        self.spare(script);
        for flip in self.flips.drain(..) {
            let bit = usize::from(flip) % (SLOT_BYTES * 8);
            self.slot[bit / 8] ^= 1 << (bit % 8);
        }
        let mut frame = MediaFrame::zeroed();
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

    /// Writes the page's spare, with a valid checksum.
    fn spare(&mut self, script: &mut FuzzScript<'_>) {
        let kind = match script.small() % 8 {
            0 => 2,
            1 => 3,
            _ => 1,
        };
        let mut fields = b"HWP1".to_vec();
        fields.extend_from_slice(&[1, kind, self.at.page, 0]);
        fields.extend_from_slice(&self.first.to_le_bytes());
        fields.extend_from_slice(&u16::try_from(self.used).expect("at most a page").to_le_bytes());
        fields.extend_from_slice(&[0; 4]);
        let open = self.sequence.saturating_sub(u64::from(script.small()));
        let durable = self.sequence.saturating_sub(u64::from(script.small()));
        let continues = u64::from(script.small() / 128) * u64::from(script.word());
        let context = u64::from(script.small() / 128);
        let durable_order = self.order - self.order.min(1);
        for number in [self.order, open, durable, durable_order, continues, context] {
            fields.extend_from_slice(&number.to_le_bytes());
        }
        fields.extend_from_slice(&[0; 4]);
        let crc = crc32c(0, &fields);
        fields.extend_from_slice(&crc.to_le_bytes());
        self.slot[PAGE_DATA_BYTES..PAGE_DATA_BYTES + fields.len()].copy_from_slice(&fields);
    }

    fn next_block(&mut self, medium: &mut MemoryMedia, script: &mut FuzzScript<'_>) {
        if self.used > 0 {
            self.end_page(medium, script);
        }
        self.at = PageAddress::new(BlockId(self.at.block.0.saturating_add(1)), 0);
        // Mostly a new order; sometimes the same, which two blocks of a valid log never have.
        self.order += u64::from(script.small().min(1));
    }
}
