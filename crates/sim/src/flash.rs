//! The contents of simulated flash: the pages and cells that a read returns now, and those that a power cut leaves.
//!
//! Input: programs, erases and writes of cells in the order of acceptance, the finish and completion of each, and
//! flushes. Output: page images, cells.
//! Invariant: durable contents change only by [`SimFlash::make_durable`] (or, without a volatile cache, by
//! [`SimFlash::finish`]); a cut affects only the operations in between and the neighbours that the media traits expose.

mod cells;

use crate::faults::{CutOutcome, DamagePlan};
use crate::media::struck::{MediumPlace, StruckPlace};
use cells::{CellImage, CellImages};
use headwater_ssd::media::{
    BlockId, CELLS_PER_SIDE, CellNumber, FlashGeometry, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PAGES_PER_BLOCK,
    PageAddress,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a page slot that a program writes: data and spare.
pub const SLOT_BYTES: usize = PAGE_DATA_BYTES + PAGE_SPARE_BYTES;
/// Bytes that reach the flash atomically.
pub const SECTOR_BYTES: usize = 512;
/// Commit cells in front of the blocks, and behind them.
pub const CELLS: (u16, u16) = (CELLS_PER_SIDE, CELLS_PER_SIDE);

/// The bytes of one programmed page slot.
#[derive(Clone, Debug)]
pub struct PageImage {
    bytes: Box<[u8; SLOT_BYTES]>,
    readable: bool,
}

impl PageImage {
    /// Copies a page slot from the front of a frame.
    ///
    /// # Panics
    /// Never: a shorter frame is filled up with zeroes.
    #[must_use]
    pub fn from_frame(frame: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(SLOT_BYTES);
        bytes.extend_from_slice(&frame[..frame.len().min(SLOT_BYTES)]);
        bytes.resize(SLOT_BYTES, 0);
        let bytes = bytes.into_boxed_slice().try_into();
        Self { bytes: bytes.expect("a slot has as many bytes as were collected"), readable: true }
    }

    /// Returns the data, followed by the spare.
    #[must_use]
    pub fn bytes(&self) -> &[u8; SLOT_BYTES] {
        &self.bytes
    }

    /// Returns true if the medium can read the bytes back.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.readable
    }
}

type PageSlot = Option<Arc<PageImage>>;

#[derive(Clone, Debug)]
enum FlashChange {
    Program { page: PageAddress, image: Arc<PageImage> },
    Erase { block: BlockId },
    Cell { cell: CellNumber, image: CellImage },
}

#[derive(Clone, Debug)]
struct PendingChange {
    change: FlashChange,
    /// True if reads see it.
    finished: bool,
    completed: bool,
}

/// The pages of one medium.
#[derive(Clone, Debug)]
pub struct SimFlash {
    geometry: FlashGeometry,
    volatile: bool,
    addressing: PageAddressing,
    visible: Vec<PageSlot>,
    durable: Vec<PageSlot>,
    cells: CellImages,
    pending: BTreeMap<u64, PendingChange>,
    interrupted: u64,
}

impl SimFlash {
    /// Creates flash whose pages are all blank. With a volatile cache, finished work stays in the cache until a flush.
    #[must_use]
    pub fn blank(geometry: FlashGeometry, cache: CacheKind, addressing: PageAddressing) -> Self {
        let pages = geometry.blocks as usize * PAGES_PER_BLOCK;
        Self {
            geometry,
            volatile: cache == CacheKind::Volatile,
            addressing,
            visible: vec![None; pages],
            durable: vec![None; pages],
            cells: CellImages::zeroed(),
            pending: BTreeMap::new(),
            interrupted: 0,
        }
    }

    /// Returns the page as a power cut leaves it at least.
    #[must_use]
    pub fn durable_page(&self, page: PageAddress) -> Option<&PageImage> {
        self.durable.get(page.index())?.as_deref()
    }

    /// Returns the page as a read sees it now.
    #[must_use]
    pub fn page(&self, page: PageAddress) -> Option<&PageImage> {
        self.visible.get(page.index())?.as_deref()
    }

    /// Accepts a program. The page must lie inside the geometry.
    pub fn begin_program(&mut self, id: u64, page: PageAddress, image: PageImage) {
        let image = Arc::new(image);
        self.begin(id, FlashChange::Program { page, image });
    }

    /// Accepts an erase. The block must lie inside the geometry.
    pub fn begin_erase(&mut self, id: u64, block: BlockId) {
        self.begin(id, FlashChange::Erase { block });
    }

    fn begin(&mut self, id: u64, change: FlashChange) {
        if self.addressing == PageAddressing::InPlace {
            apply(&mut self.visible, &change);
        }
        let finished = self.addressing == PageAddressing::InPlace;
        self.pending.insert(id, PendingChange { change, finished, completed: false });
    }

    /// Returns true if a program of this block is accepted and not completed; an erase of the block would race it.
    #[must_use]
    pub fn has_incomplete_program(&self, block: BlockId) -> bool {
        self.pending.values().any(|pending| {
            !pending.completed
                && match &pending.change {
                    FlashChange::Program { page, .. } => page.block == block,
                    FlashChange::Erase { .. } | FlashChange::Cell { .. } => false,
                }
        })
    }

    /// Finishes an operation on the medium: reads see it, and without a volatile cache it is durable.
    pub fn finish(&mut self, id: u64) {
        let Some(pending) = self.pending.get_mut(&id) else {
            return;
        };
        pending.finished = true;
        if self.addressing == PageAddressing::ByRead {
            apply(&mut self.visible, &pending.change);
        }
        if let FlashChange::Cell { cell, image } = &pending.change {
            self.cells.finish(*cell, image);
        }
        if !self.volatile
            && let Some(pending) = self.pending.remove(&id)
        {
            self.keep(&pending.change);
        }
    }

    /// Marks the operation as completed to the caller: the next flush covers it.
    pub fn complete_to_caller(&mut self, id: u64) {
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.completed = true;
        }
    }

    /// Kills the process that uses the medium: an operation that was not completed to it takes effect or not. What was
    /// completed stays in a volatile cache, and a flush of the next process covers it.
    pub fn kill(&mut self, rng: &mut fastrand::Rng) {
        if !self.volatile {
            let damage = DamagePlan { whole_percent: 50, ..DamagePlan::CLEAN };
            self.power_cut(rng, &damage, 0);
            return;
        }
        let open: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| !pending.completed).map(|(id, _)| *id).collect();
        for id in open {
            // What reads see already is in the cache, and the next flush covers it.
            let is_visible = self.pending.get(&id).is_some_and(|pending| pending.finished);
            if rng.bool() || is_visible {
                self.finish(id);
                self.complete_to_caller(id);
            } else {
                self.pending.remove(&id);
            }
        }
    }

    /// Returns the last operation whose outcome is open, or 0.
    #[must_use]
    pub fn last_pending(&self) -> u64 {
        self.pending.last_key_value().map_or(0, |(id, _)| *id)
    }

    /// Returns the operations that a flush accepted now will cover.
    #[must_use]
    pub fn covered_by_flush(&self) -> Vec<u64> {
        let answered = self.pending.iter().filter(|(_, pending)| pending.completed);
        answered.map(|(&id, _)| id).collect()
    }

    /// Finishes a flush: makes the operations that it covers durable.
    pub fn make_durable(&mut self, covered: &[u64]) {
        for id in covered {
            if let Some(pending) = self.pending.remove(id) {
                self.keep(&pending.change);
            }
        }
    }

    fn keep(&mut self, change: &FlashChange) {
        apply(&mut self.durable, change);
        if let FlashChange::Cell { cell, image } = change {
            self.cells.keep(*cell, image);
        }
    }

    /// Gives up an operation that failed: it takes no effect.
    pub(crate) fn discard(&mut self, id: u64) {
        if let Some(PendingChange { change: FlashChange::Program { page, .. }, .. }) =
            self.pending.remove(&id)
            && self.addressing == PageAddressing::InPlace
        {
            self.visible[page.index()] = None;
        }
    }

    /// Sets one page or cell back to an earlier moment: of pages, one that was programmed then and holds other bytes now.
    /// Returns what it held.
    pub(crate) fn restore_place(&mut self, rng: &mut fastrand::Rng, earlier: &Self) -> Option<StruckPlace> {
        let changed = |&index: &usize| match (&earlier.durable[index], &self.durable[index]) {
            (Some(then), Some(now)) => !Arc::ptr_eq(then, now),
            (Some(_), None) => true,
            (None, _) => false,
        };
        let pages: Vec<_> = (0..self.durable.len()).filter(changed).collect();
        let cells = self.cells.changed_since(&earlier.cells);
        match rng.choice(0..pages.len() + cells.len()) {
            Some(choice) if choice < pages.len() => {
                let index = pages[choice];
                let held = self.durable[index].clone();
                self.durable[index].clone_from(&earlier.durable[index]);
                self.visible[index].clone_from(&earlier.durable[index]);
                let block = BlockId(u32::try_from(index / PAGES_PER_BLOCK).ok()?);
                let page = PageAddress::new(block, u8::try_from(index % PAGES_PER_BLOCK).ok()?);
                Some(StruckPlace { place: MediumPlace::Page(page), wanted: held?.bytes().to_vec() })
            }
            Some(choice) => {
                let cell = cells[choice - pages.len()];
                let wanted = self.cell(cell)?.to_vec();
                self.cells.restore(cell, &earlier.cells);
                Some(StruckPlace { place: MediumPlace::Cell(cell), wanted })
            }
            None => None,
        }
    }

    /// Cuts the power: leaves the pages that the next boot finds. The outcome of each operation that was not durable is
    /// drawn separately; with a volatile cache even an erase may be lost under a later program of its block, because
    /// the cache writes back in any order. A torn program may garble up to `guard_pages` pages before it in its block.
    pub fn power_cut(&mut self, rng: &mut fastrand::Rng, damage: &DamagePlan, guard_pages: u8) {
        let pending = std::mem::take(&mut self.pending);
        let mut not_erased: Vec<BlockId> = Vec::new();
        for (_, PendingChange { change, .. }) in pending {
            let outcome = damage.outcome(rng);
            self.interrupted += u64::from(outcome != CutOutcome::Complete);
            match change {
                FlashChange::Program { page, image } => {
                    if self.volatile || !not_erased.contains(&page.block) {
                        self.cut_program(rng, damage, guard_pages, (page, image, outcome));
                    }
                }
                FlashChange::Erase { block } => {
                    if outcome != CutOutcome::Complete {
                        not_erased.push(block);
                    }
                    let is_torn = outcome == CutOutcome::Torn && !damage.whole_erases;
                    self.cut_erase(
                        rng,
                        block,
                        if is_torn || outcome == CutOutcome::Lost { outcome } else { CutOutcome::Complete },
                    );
                }
                FlashChange::Cell { cell, image } => match outcome {
                    CutOutcome::Complete => self.cells.keep(cell, &image),
                    CutOutcome::Lost => {}
                    CutOutcome::Torn => self.cells.tear(rng, cell, &image),
                },
            }
        }
        self.cells.lose_cache();
        self.visible.clone_from(&self.durable);
    }

    fn cut_program(
        &mut self,
        rng: &mut fastrand::Rng,
        damage: &DamagePlan,
        guard_pages: u8,
        (page, image, outcome): (PageAddress, Arc<PageImage>, CutOutcome),
    ) {
        match outcome {
            CutOutcome::Complete => self.durable[page.index()] = Some(image),
            CutOutcome::Lost => {}
            CutOutcome::Torn => {
                let before = self.durable[page.index()].as_deref();
                let torn = tear(rng, before, &image, damage.unreadable_percent);
                self.durable[page.index()] = Some(Arc::new(torn));
                for back in 1..=guard_pages.min(page.page) {
                    if rng.u8(0..100) < damage.neighbour_percent {
                        let neighbour = PageAddress::new(page.block, page.page - back);
                        self.garble(rng, neighbour);
                    }
                }
            }
        }
    }

    fn cut_erase(&mut self, rng: &mut fastrand::Rng, block: BlockId, outcome: CutOutcome) {
        if outcome == CutOutcome::Lost {
            return;
        }
        for page in pages_of(block) {
            match (outcome, rng.u8(0..3)) {
                (CutOutcome::Torn, 0) => {}
                (CutOutcome::Torn, 1) => self.garble(rng, page),
                _ => self.durable[page.index()] = None,
            }
        }
    }

    fn garble(&mut self, rng: &mut fastrand::Rng, page: PageAddress) {
        let Some(image) = self.durable[page.index()].as_mut() else {
            return;
        };
        let image = Arc::make_mut(image);
        if rng.bool() {
            let sector = rng.usize(0..SLOT_BYTES.div_ceil(SECTOR_BYTES)) * SECTOR_BYTES;
            rng.fill(&mut image.bytes[sector..(sector + SECTOR_BYTES).min(SLOT_BYTES)]);
        } else {
            for _ in 0..rng.u32(1..64) {
                image.bytes[rng.usize(0..SLOT_BYTES)] ^= rng.u8(1..=255);
            }
        }
    }

    /// Flips `flips` different bits of a programmed page, durably. Returns true if the page was programmed.
    pub fn flip_bits(&mut self, rng: &mut fastrand::Rng, page: PageAddress, flips: usize) -> bool {
        let bits = rng.choose_multiple(0..SLOT_BYTES * 8, flips);
        self.change_page(page, |bytes| {
            for bit in bits {
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        })
    }

    /// Changes the bytes of a programmed page, durably. Returns true if the page was programmed.
    pub fn change_page(&mut self, page: PageAddress, change: impl FnOnce(&mut [u8; SLOT_BYTES])) -> bool {
        let Some(image) = self.visible.get_mut(page.index()).and_then(Option::as_mut) else {
            return false;
        };
        change(&mut Arc::make_mut(image).bytes);
        let image = Arc::clone(image);
        if let Some(slot) = self.durable[page.index()].as_mut() {
            *slot = image;
        }
        true
    }

    /// Makes a page blank, durably, as an erase that a power cut interrupted may leave it.
    pub fn blank_page(&mut self, page: PageAddress) {
        self.visible[page.index()] = None;
        self.durable[page.index()] = None;
    }

    /// Returns the number of operations that power cuts lost or tore so far.
    #[must_use]
    pub fn interrupted(&self) -> u64 {
        self.interrupted
    }

    /// Returns the geometry of the medium.
    #[must_use]
    pub fn geometry(&self) -> FlashGeometry {
        self.geometry
    }
}

/// The way in which the CPU accesses pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAddressing {
    /// Pages are addressable in place, and are visible from the moment at which their program is accepted.
    InPlace,
    /// Pages must be read, and are visible when their program has finished.
    ByRead,
}

/// The kind of cache: it decides if finished work may still be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheKind {
    /// Finished operations are durable.
    WriteThrough,
    /// Finished operations are durable after the next flush.
    Volatile,
}

pub(crate) fn pages_of(block: BlockId) -> impl Iterator<Item = PageAddress> {
    (0..u8::MAX).take(PAGES_PER_BLOCK).map(move |page| PageAddress::new(block, page))
}

fn apply(slots: &mut [PageSlot], change: &FlashChange) {
    match change {
        FlashChange::Program { page, image } => slots[page.index()] = Some(Arc::clone(image)),
        FlashChange::Erase { block } => {
            for page in pages_of(*block) {
                slots[page.index()] = None;
            }
        }
        FlashChange::Cell { .. } => {}
    }
}

/// Returns a page of which only some sectors arrived; at least one did not.
fn tear(
    rng: &mut fastrand::Rng,
    before: Option<&PageImage>,
    new: &PageImage,
    unreadable_percent: u8,
) -> PageImage {
    let mut torn = new.clone();
    let sectors = SLOT_BYTES.div_ceil(SECTOR_BYTES);
    let surely_missing = rng.usize(0..sectors);
    for sector in 0..sectors {
        if sector != surely_missing && rng.bool() {
            continue;
        }
        let range = sector * SECTOR_BYTES..((sector + 1) * SECTOR_BYTES).min(SLOT_BYTES);
        match (rng.u8(0..4), before) {
            (0, _) => rng.fill(&mut torn.bytes[range]),
            (1, _) => torn.bytes[range].fill(0),
            (_, Some(before)) => torn.bytes[range.clone()].copy_from_slice(&before.bytes[range]),
            (_, None) => torn.bytes[range].fill(0xFF),
        }
    }
    torn.readable = rng.u8(0..100) >= unreadable_percent;
    torn
}
