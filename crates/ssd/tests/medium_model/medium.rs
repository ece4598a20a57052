//! The bytes of the model: pages, commit cells and checkpoints, and what faults and power cuts do to them.
//!
//! Input: writes, flushes, and one fault. Output: the medium that a recovery finds. Invariant: a flushed write changes
//! only by a fault.

/// Blocks of the medium.
pub(super) const BLOCKS: usize = 4;
/// Pages of a block.
pub(super) const PAGES: usize = 3;
/// Ticks of a group, whose namespaces are kept as one mask; the format has 64.
pub(super) const GROUP: u8 = 2;
/// Cells of commit records, half of them on each side: the fewest that the format permits; a new file has 64.
pub(super) const CELLS: usize = 6;
/// Places for values outside the log, each of one record.
pub(super) const EXTENTS: usize = 2;
/// Keys, each the only one of its namespace.
pub(super) const KEYS: usize = 2;
/// Openings of the device: the first one, and one after each power cut.
pub(super) const EPOCHS: usize = 3;

/// The position of a page of records in the order of all such pages: epoch, then number from 1.
pub(super) type ModelTick = (u8, u8);

/// The end of a durable prefix of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ModelPrefix {
    pub(super) tick: ModelTick,
    pub(super) sequence: u8,
}

/// A write or a removal of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub(super) key: u8,
    pub(super) sequence: u8,
    pub(super) is_removal: bool,
    /// The extent that holds the value; the record carries the checksum of its bytes.
    pub(super) extent: Option<u8>,
}

/// The statements of a page about the ticks before its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Before {
    /// The last sequence that was given out when the page before was filled; 0 on the first page of an epoch.
    pub(super) sequence: u8,
    /// The namespaces of at least `GROUP` pages before, or of all pages of the epoch.
    pub(super) namespaces: u8,
}

/// The statements of a commit about itself and about the log before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CommitRecord {
    pub(super) number: u16,
    pub(super) epoch: u8,
    /// The end of the commit.
    pub(super) end: ModelPrefix,
    /// A prefix that was durable when the record was written.
    pub(super) durable: ModelPrefix,
    /// The end of the epoch before this one.
    pub(super) accepted: ModelPrefix,
    /// Bit `k` is set if one of at least `GROUP` pages up to the end, or of all, holds a record of namespace `k`.
    pub(super) namespaces: u8,
    /// Number of the checkpoint that counts.
    pub(super) checkpoint: u8,
    /// The end of each epoch before this one.
    pub(super) epoch_ends: [ModelPrefix; EPOCHS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PageContent {
    Record(Record),
    /// No record: the page separates two commits where pages share a sector.
    Guard,
}

/// A page as it was programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Page {
    pub(super) block: u8,
    pub(super) page: u8,
    pub(super) order: u8,
    /// (0, 0) for a page without a record.
    pub(super) tick: ModelTick,
    pub(super) epoch: u8,
    pub(super) durable: ModelPrefix,
    /// The end of the epoch before this page's epoch.
    pub(super) accepted: ModelPrefix,
    pub(super) before: Before,
    pub(super) content: PageContent,
}

/// The bytes of one page slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Slot {
    #[default]
    Blank,
    Damaged,
    Programmed(Page),
}

/// The part of a block that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct BlockEntry {
    /// 0 for a block that holds nothing that counts.
    pub(super) order: u8,
    /// Pages up to the last one that counts.
    pub(super) pages: u8,
    /// The highest sequence on them.
    pub(super) max_sequence: u8,
}

/// A copy of the index, with everything that recovery needs to go on from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Checkpoint {
    pub(super) number: u8,
    /// The log from the block with this order on is read after the checkpoint.
    pub(super) start_order: u8,
    /// The last tick before that block.
    pub(super) start: ModelTick,
    /// The blocks that count and are older than `start_order`.
    pub(super) blocks: [BlockEntry; BLOCKS],
    /// Page of each key.
    pub(super) index: [Option<(u8, u8)>; KEYS],
    pub(super) doubt: [u8; KEYS],
    /// The sequence of each key's last removal: it settles an older doubt.
    pub(super) settled: [u8; KEYS],
    /// The same, if no block holds the removal any more. It stands for the rule of version 1 that a tombstone is kept
    /// as long as a block holds an older record.
    pub(super) dropped: [u8; KEYS],
}

/// The bytes of a checkpoint's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum CheckpointSlot {
    #[default]
    Empty,
    Damaged,
    /// Only a copy of the map is intact: what the checkpoint says without `index`.
    WithoutIndex(Checkpoint),
    Whole(Checkpoint),
}

/// The bytes of a commit cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Cell {
    #[default]
    Empty,
    Damaged,
    Whole(CommitRecord),
}

/// One write that is not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Write {
    Page(Page),
    /// A record for the cell at this place.
    Cell(u8, CommitRecord),
    Checkpoint(Checkpoint),
    /// The value of the record with this sequence.
    Extent {
        extent: u8,
        sequence: u8,
    },
}

impl Write {
    pub(super) fn is_guard(&self) -> bool {
        matches!(self, Self::Page(Page { content: PageContent::Guard, .. }))
    }
}

/// The outcome of one unflushed write in a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum WriteOutcome {
    Lost,
    Torn,
    Arrived,
}

/// One fault of the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fault {
    /// Flipped bits in one page, or in a sector that two pages share.
    RotPages {
        block: u8,
        page: u8,
        pages: u8,
    },
    /// A page and the one behind it hold what they held before they were last programmed (a lost write of two pages).
    StalePages {
        block: u8,
        page: u8,
        pages: u8,
    },
    /// Two pages have changed places.
    Swap((u8, u8), (u8, u8)),
    /// The last write of the first page went to the place of the second.
    Misdirect((u8, u8), (u8, u8)),
    RotCell(u8),
    StaleCell(u8),
    /// All cells of one side are damaged.
    RotSide(u8),
    /// All cells of one side hold what they held before they were last written.
    StaleSide(u8),
    RotCheckpoint(u8),
    RotIndex(u8),
    StaleCheckpoint(u8),
    RotExtent(u8),
    StaleExtent(u8),
}

/// Returns the places of the cells of one side: 0 is the front, 1 the tail.
fn side_cells(side: u8) -> impl Iterator<Item = usize> {
    (0..CELLS).filter(move |cell| cell % 2 == usize::from(side))
}

/// The bytes of a damaged extent: no record has the sequence.
const DAMAGED: u8 = u8::MAX;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Medium {
    pub(super) slots: [[Slot; PAGES]; BLOCKS],
    /// The bytes of each page before it was last programmed.
    former_slots: [[Slot; PAGES]; BLOCKS],
    pub(super) cells: [Cell; CELLS],
    former_cells: [Cell; CELLS],
    pub(super) checkpoints: [CheckpointSlot; 2],
    former_checkpoints: [CheckpointSlot; 2],
    /// The sequence of the record whose value each extent holds.
    pub(super) extents: [u8; EXTENTS],
    former_extents: [u8; EXTENTS],
}

impl Medium {
    /// Damages the page before a torn page: they share a sector.
    pub(super) fn tear_page_before(&mut self, torn: &Page) {
        let before = &mut self.slots[usize::from(torn.block)][usize::from(torn.page) - 1];
        if matches!(before, Slot::Programmed(_)) {
            *before = Slot::Damaged;
        }
    }

    pub(super) fn apply(&mut self, write: &Write, outcome: WriteOutcome) {
        if outcome == WriteOutcome::Lost {
            return;
        }
        let arrived = outcome == WriteOutcome::Arrived;
        match write {
            Write::Page(page) => {
                let slot = &mut self.slots[usize::from(page.block)][usize::from(page.page)];
                self.former_slots[usize::from(page.block)][usize::from(page.page)] = *slot;
                *slot = if arrived { Slot::Programmed(*page) } else { Slot::Damaged };
            }
            Write::Cell(at, record) => {
                let at = usize::from(*at);
                self.former_cells[at] = self.cells[at];
                self.cells[at] = if arrived { Cell::Whole(*record) } else { Cell::Damaged };
            }
            Write::Extent { extent, sequence } => {
                let at = usize::from(*extent);
                self.former_extents[at] = self.extents[at];
                self.extents[at] = if arrived { *sequence } else { DAMAGED };
            }
            Write::Checkpoint(checkpoint) => {
                let at = usize::from(checkpoint.number) % 2;
                self.former_checkpoints[at] = self.checkpoints[at];
                self.checkpoints[at] =
                    if arrived { CheckpointSlot::Whole(*checkpoint) } else { CheckpointSlot::Damaged };
            }
        }
    }

    pub(super) fn damage(&mut self, fault: Fault) {
        match fault {
            Fault::RotPages { block, page, pages } => {
                let struck = usize::from(page)..usize::from(page + pages);
                self.slots[usize::from(block)][struck].fill(Slot::Damaged);
            }
            Fault::StalePages { block, page, pages } => {
                for page in usize::from(page)..usize::from(page + pages).min(PAGES) {
                    self.slots[usize::from(block)][page] = self.former_slots[usize::from(block)][page];
                }
            }
            Fault::Swap(one, other) => {
                let at = |(block, page): (u8, u8)| (usize::from(block), usize::from(page));
                let (one, other) = (at(one), at(other));
                let first = self.slots[one.0][one.1];
                self.slots[one.0][one.1] = self.slots[other.0][other.1];
                self.slots[other.0][other.1] = first;
            }
            Fault::Misdirect(from, to) => {
                let at = |(block, page): (u8, u8)| (usize::from(block), usize::from(page));
                let (from, to) = (at(from), at(to));
                self.slots[to.0][to.1] = self.slots[from.0][from.1];
                self.slots[from.0][from.1] = self.former_slots[from.0][from.1];
            }
            Fault::RotCell(cell) => self.cells[usize::from(cell)] = Cell::Damaged,
            Fault::StaleCell(cell) => self.cells[usize::from(cell)] = self.former_cells[usize::from(cell)],
            Fault::RotSide(side) => side_cells(side).for_each(|cell| self.cells[cell] = Cell::Damaged),
            Fault::StaleSide(side) => {
                side_cells(side).for_each(|cell| self.cells[cell] = self.former_cells[cell]);
            }
            Fault::RotIndex(at) => {
                if let CheckpointSlot::Whole(checkpoint) = self.checkpoints[usize::from(at)] {
                    self.checkpoints[usize::from(at)] = CheckpointSlot::WithoutIndex(checkpoint);
                }
            }
            Fault::RotExtent(at) => self.extents[usize::from(at)] = DAMAGED,
            Fault::StaleExtent(at) => self.extents[usize::from(at)] = self.former_extents[usize::from(at)],
            Fault::RotCheckpoint(at) => self.checkpoints[usize::from(at)] = CheckpointSlot::Damaged,
            Fault::StaleCheckpoint(at) => {
                self.checkpoints[usize::from(at)] = self.former_checkpoints[usize::from(at)];
            }
        }
    }

    /// Returns every fault that changes this medium.
    pub(super) fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let pages = || (0..BLOCKS as u8).flat_map(|block| (0..PAGES as u8).map(move |page| (block, page)));
        for (block, page) in pages() {
            let rest = PAGES as u8 - page;
            faults.extend((1..=rest.min(2)).map(|pages| Fault::RotPages { block, page, pages }));
            faults.extend((1..=rest).map(|pages| Fault::StalePages { block, page, pages }));
            faults.extend(
                pages().filter(|other| *other > (block, page)).map(|other| Fault::Swap((block, page), other)),
            );
            faults.extend(pages().map(|other| Fault::Misdirect((block, page), other)));
        }
        faults.extend((0..CELLS as u8).flat_map(|cell| [Fault::RotCell(cell), Fault::StaleCell(cell)]));
        faults.extend((0..2).flat_map(|side| [Fault::RotSide(side), Fault::StaleSide(side)]));
        faults.extend(
            (0..2).flat_map(|at| [Fault::RotCheckpoint(at), Fault::RotIndex(at), Fault::StaleCheckpoint(at)]),
        );
        faults.extend((0..EXTENTS as u8).flat_map(|at| [Fault::RotExtent(at), Fault::StaleExtent(at)]));
        faults.retain(|fault| self.changes(*fault));
        faults
    }

    /// Returns true if a fault would change a byte.
    fn changes(&self, fault: Fault) -> bool {
        let at = |block: u8, page: u8| &self.slots[usize::from(block)][usize::from(page)];
        match fault {
            Fault::RotPages { block, page, pages } => {
                (page..page + pages).all(|page| matches!(at(block, page), Slot::Programmed(_)))
            }
            // Without the last page this would be another fault of the list.
            Fault::StalePages { block, page, pages } => {
                let former = |page: u8| &self.former_slots[usize::from(block)][usize::from(page)];
                at(block, page) != former(page) && at(block, page + pages - 1) != former(page + pages - 1)
            }
            Fault::Swap(one, other) => at(one.0, one.1) != at(other.0, other.1),
            Fault::Misdirect(from, to) => from != to && matches!(at(from.0, from.1), Slot::Programmed(_)),
            Fault::RotCell(cell) => matches!(self.cells[usize::from(cell)], Cell::Whole(_)),
            Fault::StaleCell(cell) => self.cells[usize::from(cell)] != self.former_cells[usize::from(cell)],
            Fault::RotSide(side) => side_cells(side).any(|cell| self.cells[cell] != Cell::Damaged),
            Fault::StaleSide(side) => {
                side_cells(side).any(|cell| self.cells[cell] != self.former_cells[cell])
            }
            Fault::RotCheckpoint(at) | Fault::RotIndex(at) => {
                matches!(self.checkpoints[usize::from(at)], CheckpointSlot::Whole(_))
            }
            Fault::RotExtent(at) => self.extents[usize::from(at)] != DAMAGED,
            Fault::StaleExtent(at) => self.extents[usize::from(at)] != self.former_extents[usize::from(at)],
            Fault::StaleCheckpoint(at) => {
                self.checkpoints[usize::from(at)] != self.former_checkpoints[usize::from(at)]
            }
        }
    }

    /// Returns true if the value of a record is where the record says.
    pub(super) fn has_value(&self, record: &Record) -> bool {
        record.extent.is_none_or(|extent| self.extents[usize::from(extent)] == record.sequence)
    }

    /// Returns the page at an address, if it is intact and lies where it was programmed.
    pub(super) fn page(&self, block: usize, page: usize, rules: &super::Rules) -> Option<&Page> {
        match &self.slots[block][page] {
            Slot::Programmed(found)
                if !rules.own_address
                    || (usize::from(found.block), usize::from(found.page)) == (block, page) =>
            {
                Some(found)
            }
            _ => None,
        }
    }
}
