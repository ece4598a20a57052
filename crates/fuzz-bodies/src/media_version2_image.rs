//! The bytes of a medium of version 2 that a device wrote, and changes of them after which every checksum matches.

use bytes::Bytes;
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::copy::crc32c;
use headwater_ssd::command::{
    BatchWrite, FrontEndId, Fua, Lba, NamespaceId, RecordExpiry, SsdCommand, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::log::commit_record::{CheckpointRoot, CommitRecord, RECORD_BYTES, StreamExtent};
use headwater_ssd::log::page::{NO_RECORD, PageKind, PageSpare};
use headwater_ssd::log::record::{HEADER_BYTES, RecordHeader, UNIT_BYTES};
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::media::{
    BlockId, CELL_BYTES, CellNumber, FlashGeometry, Media, MediaOp, MediaToken, PAGE_DATA_BYTES,
    PAGE_SPARE_BYTES, PAGES_PER_BLOCK, PageAddress,
};
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind};
use std::sync::Arc;

const BLOCKS: u32 = 20;
const SLOT_BYTES: usize = PAGE_DATA_BYTES + PAGE_SPARE_BYTES;
/// Bytes of a spare, and of a commit record, in front of its checksum.
const SPARE_FIELDS_BYTES: usize = PAGE_SPARE_BYTES - 4;
const RECORD_FIELDS_BYTES: usize = RECORD_BYTES - 4;
/// Bytes of a record that a change may strike: its header, its key and the front of its value.
const RECORD_FRONT_BYTES: usize = 160;
/// Bits of the number of a page in its checkpoint.
const PART_BITS: u32 = 32;
/// A medium in memory has no uuid.
const SEED: u32 = 0;
const START: StartTime = StartTime { now: Nanos::ZERO, wall: UnixMillis(0) };
const FRONT_END: FrontEndId = FrontEndId(0);

/// A part of the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RewrittenPart {
    /// Both copies of the map.
    Map,
    /// The index.
    Index,
}

/// A medium of version 2.
#[derive(Clone)]
pub(crate) struct MediumImage {
    /// Data and spare of each page; `None` if it was never written.
    pages: Vec<Option<Arc<[u8; SLOT_BYTES]>>>,
    cells: Vec<[u8; CELL_BYTES]>,
}

impl MediumImage {
    /// Returns the media of a device without a checkpoint, of one that was killed behind its checkpoint, and of one that
    /// was closed.
    pub(crate) fn of_devices() -> [Self; 3] {
        let mut host = ImageHost::new();
        host.fill();
        let window = Self::of(host.device.into_media());
        let mut host = ImageHost::new();
        host.fill();
        host.checkpoint();
        host.fill_further();
        let killed = host.device.into_media().after_power_cut();
        let behind = Self::of(killed);
        let mut host = ImageHost::on(behind.clone().into_medium());
        host.fill_further();
        host.device.shutdown(host.now, START.wall).expect("memory takes every write");
        [window, behind, Self::of(host.device.into_media())]
    }

    fn of(medium: MemoryMedia) -> Self {
        let mut medium = medium.after_power_cut();
        let pages = addresses().map(|page| {
            medium.view(page).map(|bytes| Arc::new(*bytes.first_chunk().expect("a page has this length")))
        });
        let pages = pages.collect();
        let cells = (0..medium.traits().cell_count()).map(CellNumber);
        let cells = cells.map(|cell| *medium.cell_mut(cell).expect("it is below their number")).collect();
        Self { pages, cells }
    }

    /// Returns the medium.
    pub(crate) fn into_medium(self) -> MemoryMedia {
        let geometry = FlashGeometry::with_blocks(BLOCKS);
        let mut medium = MemoryMedia::erased(geometry).expect("a few blocks fit in memory");
        let blocks = self.pages.chunks(PAGES_PER_BLOCK);
        for (block, pages) in (0..).map(BlockId).zip(blocks) {
            let programmed = pages.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            for (number, slot) in (0..).zip(&pages[..programmed]) {
                let mut frame = MediaFrame::zeroed();
                if let Some(slot) = slot {
                    frame[..SLOT_BYTES].copy_from_slice(&slot[..]);
                }
                let op = MediaOp::Program { page: PageAddress::new(block, number), frame };
                medium.submit(MediaToken(0), op, Nanos::ZERO).expect("pages are written in order");
                medium.poll(Nanos::ZERO, &mut Vec::new());
            }
        }
        for (number, cell) in (0..).map(CellNumber).zip(&self.cells) {
            *medium.cell_mut(number).expect("the medium has as many") = *cell;
        }
        medium
    }

    /// Changes the fields of a spare.
    pub(crate) fn change_spare(&mut self, which: u16, change: impl FnOnce(&mut [u8])) {
        self.change_slot(which, |slot| {
            change(&mut slot[PAGE_DATA_BYTES..PAGE_DATA_BYTES + SPARE_FIELDS_BYTES]);
        });
    }

    /// Changes the data of a page.
    pub(crate) fn change_data(&mut self, which: u16, change: impl FnOnce(&mut [u8])) {
        self.change_slot(which, |slot| change(&mut slot[..PAGE_DATA_BYTES]));
    }

    /// Changes the front of a record.
    pub(crate) fn change_record(&mut self, which: u16, change: impl FnOnce(&mut [u8])) {
        let records: Vec<(usize, usize)> = (0..self.pages.len())
            .flat_map(|page| self.records(page).into_iter().map(move |at| (page, at)))
            .collect();
        let Some(&(page, at)) = records.get(usize::from(which) % records.len().max(1)) else { return };
        let Some(slot) = self.pages[page].as_mut().map(Arc::make_mut) else { return };
        change(&mut slot[at + 4..PAGE_DATA_BYTES.min(at + RECORD_FRONT_BYTES)]);
        let header = slot[at..].first_chunk().and_then(|bytes| RecordHeader::decode(bytes).ok());
        let end = header.map_or(0, |header| at + header.payload_end());
        if (at + HEADER_BYTES..=PAGE_DATA_BYTES).contains(&end) {
            let crc = crc32c(0, &slot[at + 4..end]);
            slot[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        }
        PageSpare::set_checksums(&mut slot[..], SEED);
    }

    /// Returns the offsets of the records that start in a page.
    fn records(&self, page: usize) -> Vec<usize> {
        let Some((slot, spare)) = self.spare(page) else { return Vec::new() };
        let mut found = Vec::new();
        let mut at = usize::from(spare.first);
        while spare.kind == PageKind::Log && spare.first != NO_RECORD && at < usize::from(spare.used) {
            let header = slot[at..].first_chunk().and_then(|bytes| RecordHeader::decode(bytes).ok());
            let Some(header) = header.filter(|_| at + HEADER_BYTES <= PAGE_DATA_BYTES) else { break };
            found.push(at);
            at += header.units() as usize * UNIT_BYTES;
        }
        found
    }

    fn spare(&self, page: usize) -> Option<(&[u8; SLOT_BYTES], PageSpare)> {
        let slot = self.pages[page].as_deref()?;
        let address = addresses().nth(page)?;
        Some((slot, PageSpare::decode(slot, address, SEED)?))
    }

    /// Changes a page that was written.
    fn change_slot(&mut self, which: u16, change: impl FnOnce(&mut [u8; SLOT_BYTES])) {
        if let Some(slot) = self.written(which).and_then(|page| self.pages[page].as_mut()).map(Arc::make_mut)
        {
            change(slot);
            PageSpare::set_checksums(&mut slot[..], SEED);
        }
    }

    fn written(&self, which: u16) -> Option<usize> {
        let written: Vec<usize> = (0..self.pages.len()).filter(|page| self.pages[*page].is_some()).collect();
        written.get(usize::from(which) % written.len().max(1)).copied()
    }

    /// Makes a page one that was never written.
    pub(crate) fn clear_page(&mut self, which: u16) {
        if let Some(page) = self.written(which) {
            self.pages[page] = None;
        }
    }

    /// Changes the fields of a commit record.
    pub(crate) fn change_commit_record(&mut self, which: u16, change: impl FnOnce(&mut [u8])) {
        if let Some(cell) = self.used_cell(which) {
            change(&mut cell[..RECORD_FIELDS_BYTES]);
            set_record_checksum(cell);
        }
    }

    /// Changes the fields of every commit record.
    pub(crate) fn change_every_commit_record(&mut self, mut change: impl FnMut(&mut [u8])) {
        for cell in self.cells.iter_mut().filter(|cell| is_used(cell)) {
            change(&mut cell[..RECORD_FIELDS_BYTES]);
            set_record_checksum(cell);
        }
    }

    /// Makes a cell one that was never written.
    pub(crate) fn clear_cell(&mut self, which: u16) {
        if let Some(cell) = self.used_cell(which) {
            cell.fill(0);
        }
    }

    fn used_cell(&mut self, which: u16) -> Option<&mut [u8; CELL_BYTES]> {
        let mut used: Vec<_> = self.cells.iter_mut().filter(|cell| is_used(cell)).collect();
        let which = usize::from(which) % used.len().max(1);
        (which < used.len()).then(|| used.swap_remove(which))
    }

    /// Changes the bytes of a part of the newest checkpoint, in each copy.
    pub(crate) fn change_part(&mut self, part: RewrittenPart, change: impl FnOnce(&mut [u8])) {
        let Some(root) = self.newest_root() else { return };
        let (extents, mut bytes) = match part {
            RewrittenPart::Map => (root.maps.to_vec(), self.part_bytes(root, root.maps[0])),
            RewrittenPart::Index => (vec![root.index], self.part_bytes(root, root.index)),
        };
        change(&mut bytes);
        for extent in extents {
            let mut rest = &bytes[..];
            for page in self.part_pages(root, extent) {
                let used = self.spare(page).map_or(0, |(_, spare)| usize::from(spare.used));
                let Some(slot) = self.pages[page].as_mut().map(Arc::make_mut) else { continue };
                let (front, behind) = rest.split_at(used.min(rest.len()));
                slot[..front.len()].copy_from_slice(front);
                PageSpare::set_checksums(&mut slot[..], SEED);
                rest = behind;
            }
        }
        self.set_part_checksums(root);
    }

    /// Takes bytes from the end of the map or of the index.
    pub(crate) fn shorten_part(&mut self, how: u16) {
        let Some(root) = self.newest_root() else { return };
        let extents = if how.is_multiple_of(2) { root.maps.to_vec() } else { vec![root.index] };
        for extent in extents {
            let Some(page) = self.part_pages(root, extent).pop() else { continue };
            let Some((slot, spare)) = self.spare(page) else { continue };
            let mut slot = *slot;
            PageSpare { used: spare.used.saturating_sub(how / 2 % 512), ..spare }.encode(&mut slot[..], SEED);
            self.pages[page] = Some(Arc::new(slot));
        }
        self.set_part_checksums(root);
    }

    fn newest_root(&self) -> Option<CheckpointRoot> {
        let records = self.cells.iter().filter_map(|cell| CommitRecord::decode(cell, SEED));
        records.max_by_key(|record| record.number).map(|record| record.root).filter(|root| root.number > 0)
    }

    /// Returns the pages of a part, in order.
    fn part_pages(&self, root: CheckpointRoot, extent: StreamExtent) -> Vec<usize> {
        let parts = u64::from(extent.first)..u64::from(extent.first) + u64::from(extent.pages);
        let mut found: Vec<(u64, usize)> = (0..self.pages.len())
            .filter_map(|page| Some((self.spare(page)?.1, page)))
            .filter(|(spare, _)| {
                spare.kind == PageKind::Checkpoint && spare.continues >> PART_BITS == root.number
            })
            .map(|(spare, page)| (spare.continues & ((1 << PART_BITS) - 1), page))
            .filter(|(part, _)| parts.contains(part))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, page)| page).collect()
    }

    fn part_bytes(&self, root: CheckpointRoot, extent: StreamExtent) -> Vec<u8> {
        let pages = self.part_pages(root, extent).into_iter().filter_map(|page| self.spare(page));
        pages.flat_map(|(slot, spare)| &slot[..usize::from(spare.used)]).copied().collect()
    }

    /// Writes the checksums of the parts of a checkpoint into every commit record that names it.
    fn set_part_checksums(&mut self, root: CheckpointRoot) {
        let with_crc = |extent| StreamExtent { crc: crc32c(0, &self.part_bytes(root, extent)), ..extent };
        let (maps, index) = (root.maps.map(with_crc), with_crc(root.index));
        for cell in &mut self.cells {
            let Some(mut record) = CommitRecord::decode(cell, SEED) else { continue };
            if record.root.number == root.number {
                record.root = CheckpointRoot { maps, index, ..record.root };
                record.encode(cell, SEED);
            }
        }
    }
}

fn addresses() -> impl Iterator<Item = PageAddress> {
    let pages = 0..u8::try_from(PAGES_PER_BLOCK).expect("64 pages a block");
    (0..BLOCKS).flat_map(move |block| pages.clone().map(move |page| PageAddress::new(BlockId(block), page)))
}

fn is_used(cell: &[u8; CELL_BYTES]) -> bool {
    cell.iter().any(|byte| *byte != 0)
}

fn set_record_checksum(cell: &mut [u8; CELL_BYTES]) {
    let crc = crc32c(SEED, &cell[..RECORD_FIELDS_BYTES]);
    cell[RECORD_FIELDS_BYTES..RECORD_BYTES].copy_from_slice(&crc.to_le_bytes());
}

/// A host that writes an image.
struct ImageHost {
    device: SsdDevice<MemoryMedia>,
    now: Nanos,
}

impl ImageHost {
    fn new() -> Self {
        let geometry = FlashGeometry::with_blocks(BLOCKS);
        Self::on(MemoryMedia::erased(geometry).expect("a few blocks fit in memory"))
    }

    fn on(medium: MemoryMedia) -> Self {
        let device = SsdDevice::open(medium, DeviceConfig::default(), START, &mut |_| {});
        Self { device: device.expect("the medium is whole"), now: Nanos::ZERO }
    }

    /// Runs a command that succeeds, and returns its position.
    fn run(&mut self, namespace: u8, command: SsdCommand) -> u32 {
        self.device.submit(FRONT_END, NamespaceId(namespace), 0, command).expect("the device is idle");
        loop {
            let moved = self.device.poll(self.now, START.wall);
            if let Some(completion) = self.device.next_completion(FRONT_END) {
                assert!(completion.status.is_success(), "{:?}", completion.status);
                return completion.position;
            }
            if !moved {
                self.now = self.device.next_deadline().unwrap_or(self.now).max(self.now).after(Nanos(1));
            }
        }
    }

    fn store(&mut self, namespace: u8, key: u32, bytes: usize) {
        self.run(namespace, store(key, vec![key.to_le_bytes()[0]; bytes]));
    }

    /// Writes keys, a namespace of blocks, removals, a batch and a record that is chained over blocks.
    fn fill(&mut self) {
        for key in 0..60 {
            self.store(1, key, 300 * key as usize % 7_000);
        }
        self.store(2, 1, 50);
        self.run(2, SsdCommand::Clear);
        self.store(2, 2, 50);
        self.store(2, 3, 300_000);
        let blocks = Namespace {
            kind: NamespaceKind::Block(BlockFormat::B4096),
            size: 1 << 20,
            uuid: [3; 16],
            ..Namespace::IMPLICIT
        };
        let created = self.run(1, SsdCommand::Namespace(NamespaceChange::Create(blocks)));
        assert_eq!(created, u32::from(BLOCK_NAMESPACE));
        for key in 0..20 {
            let key = key_of(key);
            self.run(1, SsdCommand::Delete { key, condition: WriteCondition::Always });
        }
        self.fill_further();
    }

    /// Writes again.
    fn fill_further(&mut self) {
        for key in 30..45 {
            self.store(1, key, 900);
        }
        for start in 0..12 {
            let data = vec![u8::try_from(start).expect("below 12"); 2 * 4_096].into();
            self.run(BLOCK_NAMESPACE, SsdCommand::Write { start: Lba(start * 2), data, fua: Fua::No });
        }
        let writes = (50..56).map(|key| BatchWrite::Store {
            key: key_of(key),
            value: Bytes::from_static(b"batch"),
            condition: WriteCondition::Always,
            expiry: RecordExpiry::At(4_000_000_000_000),
        });
        self.run(1, SsdCommand::Batch { writes: writes.collect() });
    }

    /// Writes a checkpoint.
    fn checkpoint(&mut self) {
        let before = self.device.stats().checkpoints;
        self.device.request_checkpoint();
        while self.device.stats().checkpoints == before {
            self.device.poll(self.now, START.wall);
            self.now = self.now.after(Nanos::from_millis(1));
        }
    }
}

/// The number that the namespace of blocks gets.
const BLOCK_NAMESPACE: u8 = 3;

fn key_of(key: u32) -> Bytes {
    Bytes::from(format!("key {key}"))
}

fn store(key: u32, value: Vec<u8>) -> SsdCommand {
    let (value, condition, expiry) = (value.into(), WriteCondition::Always, RecordExpiry::Never);
    SsdCommand::Store { key: key_of(key), value, condition, expiry }
}
