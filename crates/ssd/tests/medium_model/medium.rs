//! The bytes of the model: pages, commit cells and checkpoints, and what faults and power cuts do to them.
//!
//! Input: writes, flushes, and one fault. Output: the medium that a recovery finds. Invariant: a flushed write changes
//! only by a fault.

/// Blocks of the medium.
pub(super) const BLOCKS: usize = 4;
/// Pages of a block; with the commit page, a block holds two records.
pub(super) const PAGES: usize = 3;
/// Cells of commit records; the format has 64.
pub(super) const CELLS: usize = 4;
/// Places for values outside the log, each of one record.
pub(super) const EXTENTS: usize = 2;
/// Keys, each the only one of its namespace.
pub(super) const KEYS: usize = 2;
/// Openings of the device: the first one, and one after each power cut.
pub(super) const EPOCHS: usize = 3;

/// The position of a page of records in the order of all such pages: epoch, then number from 1.
pub(super) type Tick = (u8, u8);

/// The end of a durable prefix of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Prefix {
    pub(super) tick: Tick,
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

/// The statements of a commit about itself and about the log before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CommitRecord {
    pub(super) number: u8,
    pub(super) epoch: u8,
    /// The end of the commit.
    pub(super) end: Prefix,
    /// A prefix that was durable when the record was written.
    pub(super) durable: Prefix,
    /// Bit `k` is set if the commit holds a record of namespace `k`.
    pub(super) namespaces: u8,
    /// Number of the checkpoint that counts.
    pub(super) checkpoint: u8,
    /// The end of each epoch before this one.
    pub(super) epoch_ends: [Prefix; EPOCHS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PageContent {
    Record(Record),
    Commit(CommitRecord),
}

/// A page as it was programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Page {
    pub(super) block: u8,
    pub(super) page: u8,
    pub(super) order: u8,
    /// (0, 0) for a page without a record.
    pub(super) tick: Tick,
    pub(super) epoch: u8,
    pub(super) durable: Prefix,
    /// The end of the epoch before this page's epoch.
    pub(super) accepted: Prefix,
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

/// A copy of the index, with everything that recovery needs to go on from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Checkpoint {
    pub(super) number: u8,
    /// The log from the block with this order on is read after the checkpoint.
    pub(super) start_order: u8,
    /// The last tick before that block.
    pub(super) start: Tick,
    /// Order of each block that counts and is older than `start_order`; 0 for the rest.
    pub(super) block_orders: [u8; BLOCKS],
    /// Page of each key.
    pub(super) index: [Option<(u8, u8)>; KEYS],
    pub(super) doubt: [u8; KEYS],
    /// The sequence of each key's last removal: it settles an older doubt.
    pub(super) settled: [u8; KEYS],
}

/// The bytes of a checkpoint's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum CheckpointSlot {
    #[default]
    Empty,
    Damaged,
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
    Cell(CommitRecord),
    Checkpoint(Checkpoint),
    /// The value of the record with this sequence.
    Extent {
        extent: u8,
        sequence: u8,
    },
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
    /// Flipped bits in a page.
    RotPage(u8, u8),
    /// A page and the one behind it hold what they held before they were last programmed (a lost write of two pages).
    StalePages {
        block: u8,
        page: u8,
        pages: u8,
    },
    /// Two pages have changed places.
    Swap((u8, u8), (u8, u8)),
    RotCell(u8),
    StaleCell(u8),
    RotCheckpoint(u8),
    StaleCheckpoint(u8),
    RotExtent(u8),
    StaleExtent(u8),
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
            Write::Cell(record) => {
                let at = usize::from(record.number) % CELLS;
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
            Fault::RotPage(block, page) => self.slots[usize::from(block)][usize::from(page)] = Slot::Damaged,
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
            Fault::RotCell(cell) => self.cells[usize::from(cell)] = Cell::Damaged,
            Fault::StaleCell(cell) => self.cells[usize::from(cell)] = self.former_cells[usize::from(cell)],
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
            faults.push(Fault::RotPage(block, page));
            faults.extend((1..=PAGES as u8 - page).map(|pages| Fault::StalePages { block, page, pages }));
            faults.extend(
                pages().filter(|other| *other > (block, page)).map(|other| Fault::Swap((block, page), other)),
            );
        }
        faults.extend((0..CELLS as u8).flat_map(|cell| [Fault::RotCell(cell), Fault::StaleCell(cell)]));
        faults.extend((0..2).flat_map(|at| [Fault::RotCheckpoint(at), Fault::StaleCheckpoint(at)]));
        faults.extend((0..EXTENTS as u8).flat_map(|at| [Fault::RotExtent(at), Fault::StaleExtent(at)]));
        faults.retain(|fault| self.changes(*fault));
        faults
    }

    /// Returns true if a fault would change a byte.
    fn changes(&self, fault: Fault) -> bool {
        let at = |block: u8, page: u8| &self.slots[usize::from(block)][usize::from(page)];
        match fault {
            Fault::RotPage(block, page) => matches!(at(block, page), Slot::Programmed(_)),
            // Without the last page this would be another fault of the list.
            Fault::StalePages { block, page, pages } => {
                let former = |page: u8| &self.former_slots[usize::from(block)][usize::from(page)];
                at(block, page) != former(page) && at(block, page + pages - 1) != former(page + pages - 1)
            }
            Fault::Swap(one, other) => at(one.0, one.1) != at(other.0, other.1),
            Fault::RotCell(cell) => matches!(self.cells[usize::from(cell)], Cell::Whole(_)),
            Fault::StaleCell(cell) => self.cells[usize::from(cell)] != self.former_cells[usize::from(cell)],
            Fault::RotCheckpoint(at) => matches!(self.checkpoints[usize::from(at)], CheckpointSlot::Whole(_)),
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
