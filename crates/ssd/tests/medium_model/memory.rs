//! The memory of the model's device: blocks, index, and the state of commit and checkpoint.
//!
//! Input: appended records, and a recovery. Output: pages, commit records, and which blocks and extents are free.
//! Invariant: a block or an extent is free only if no recovery could need it.

use super::Rules;
use super::medium::{
    BLOCKS, Before, BlockEntry, CELLS, CommitRecord, EPOCHS, EXTENTS, GROUP, KEYS, Medium, ModelPrefix,
    ModelTick, PAGES, Page, PageContent, Record, Write,
};
use super::recovery::{Entry, RecoveredLog};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum BlockState {
    #[default]
    Free,
    Used {
        entry: BlockEntry,
        /// The last record that replaced one of this block.
        emptied: ModelTick,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Commit {
    pub(super) end: ModelPrefix,
    /// Unflushed writes that its flush covers.
    pub(super) writes: u8,
    pub(super) checkpoint: u8,
    pub(super) witnesses: ModelPrefix,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CheckpointStep {
    None,
    /// The start is chosen.
    Begun {
        start_order: u8,
        start: ModelTick,
    },
    /// The stream is written; it counts when a commit has made it durable that covers all it names.
    Written {
        number: u8,
        start_order: u8,
        covers: ModelTick,
        /// True while the commit runs that ran when it was written.
        in_commit: bool,
    },
    /// Durable: the next commit record names it.
    Durable {
        number: u8,
        start_order: u8,
    },
}

impl CheckpointStep {
    pub(super) fn is_written(&self) -> bool {
        matches!(self, Self::Written { .. } | Self::Durable { .. })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Memory {
    pub(super) epoch: u8,
    pub(super) appended: ModelPrefix,
    pub(super) durable: ModelPrefix,
    /// The longest prefix that any record written by now says is durable.
    pub(super) said: ModelPrefix,
    /// The longest prefix that a durable page or record says is durable.
    pub(super) witnessed: ModelPrefix,
    pub(super) accepted: ModelPrefix,
    pub(super) epoch_ends: [ModelPrefix; EPOCHS],
    /// The namespaces of the current group of ticks, and of the group before it.
    pub(super) groups: [u8; 2],
    /// The last sequence that was given out when the last page was filled; 0 before the first page of an epoch.
    pub(super) filled: u8,
    /// The highest number of a commit record.
    pub(super) number: u16,
    pub(super) order: u8,
    pub(super) open: Option<(u8, u8)>,
    pub(super) blocks: [BlockState; BLOCKS],
    /// The key whose value an extent holds or held, and the record that replaced it.
    pub(super) extents: [Option<(u8, Option<ModelTick>)>; EXTENTS],
    pub(super) index: [Option<Entry>; KEYS],
    pub(super) doubt: [u8; KEYS],
    pub(super) settled: [u8; KEYS],
    /// The page of each key's last removal, if it is known.
    pub(super) tombstones: [Option<Entry>; KEYS],
    pub(super) commit: Option<Commit>,
    pub(super) checkpoint: u8,
    pub(super) start_order: u8,
    pub(super) checkpointing: CheckpointStep,
    /// True until the record of the opening is durable.
    pub(super) is_opening: bool,
}

impl Memory {
    pub(super) fn from_recovered(recovered: &RecoveredLog, visible: &Medium, rules: &Rules) -> Self {
        let mut epoch_ends = recovered.epoch_ends;
        epoch_ends[usize::from(recovered.accepted.tick.0)] = recovered.accepted;
        let sequence = if rules.sequences_are_new { recovered.sequence } else { recovered.accepted.sequence };
        let epoch = recovered.epoch + 1;
        Self {
            epoch,
            appended: ModelPrefix { tick: (epoch, 0), sequence },
            durable: ModelPrefix { tick: (epoch, 0), sequence },
            said: recovered.accepted,
            witnessed: recovered.accepted,
            accepted: recovered.accepted,
            epoch_ends,
            groups: [0; 2],
            filled: 0,
            number: recovered.number,
            order: recovered.order,
            open: None,
            // A block without a page that counts is free: the record of the opening says so.
            blocks: recovered.blocks.map(|entry| match entry.order {
                0 => BlockState::Free,
                _ => BlockState::Used { entry, emptied: recovered.accepted.tick },
            }),
            extents: recovered.extents(visible),
            index: recovered.index,
            doubt: recovered.doubt,
            settled: recovered.settled,
            tombstones: recovered.tombstones,
            commit: None,
            checkpoint: recovered.checkpoint,
            start_order: recovered.start_order,
            checkpointing: CheckpointStep::None,
            is_opening: true,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.open.is_some_and(|(_, page)| usize::from(page) < PAGES)
            || self.blocks.contains(&BlockState::Free)
    }

    /// Programs the next page of the frontier.
    pub(super) fn program(&mut self, content: PageContent, tick: ModelTick) -> Page {
        if self.open.is_none_or(|(_, page)| usize::from(page) == PAGES) {
            let free =
                self.blocks.iter().position(|block| *block == BlockState::Free).expect("there is room");
            self.order += 1;
            self.blocks[free] = BlockState::Used {
                entry: BlockEntry { order: self.order, ..BlockEntry::default() },
                emptied: (0, 0),
            };
            self.open = Some((free as u8, 0));
        }
        let (block, page) = self.open.expect("a block is open");
        self.open = Some((block, page + 1));
        Page {
            block,
            page,
            order: self.order,
            tick,
            epoch: self.epoch,
            durable: self.durable_claim(),
            accepted: self.accepted,
            before: Before { sequence: self.filled, namespaces: self.groups[0] | self.groups[1] },
            content,
        }
    }

    /// Returns what pages and records say is durable.
    pub(super) fn durable_claim(&self) -> ModelPrefix {
        if self.durable.tick.1 == 0 { self.accepted } else { self.durable }
    }

    pub(super) fn append(&mut self, record: Record, unflushed: &mut Vec<Write>) {
        self.appended.tick = (self.epoch, self.appended.tick.1 + 1);
        let page = self.program(PageContent::Record(record), self.appended.tick);
        if let BlockState::Used { entry, .. } = &mut self.blocks[usize::from(page.block)] {
            entry.pages = page.page + 1;
            entry.max_sequence = entry.max_sequence.max(record.sequence);
        }
        unflushed.push(Write::Page(page));
        self.filled = self.appended.sequence;
        self.groups[0] |= 1 << record.key;
        if self.appended.tick.1.is_multiple_of(GROUP) {
            self.groups = [0, self.groups[0]];
        }
        for (at, extent) in self.extents.iter_mut().enumerate() {
            if let Some((key, replaced @ None)) = extent
                && *key == record.key
                && record.extent.is_none_or(|kept| usize::from(kept) != at)
            {
                *replaced = Some(self.appended.tick);
            }
        }
        if let Some(extent) = record.extent {
            self.extents[usize::from(extent)] = Some((record.key, None));
        }
        let entry = &mut self.index[usize::from(record.key)];
        if let Some(former) = entry.replace(Entry { block: page.block, page: page.page, order: page.order })
            && let BlockState::Used { emptied, .. } = &mut self.blocks[usize::from(former.block)]
        {
            *emptied = self.appended.tick;
        }
    }

    /// Writes the guard behind the last page of a commit, unless the block ends there.
    pub(super) fn guard(&mut self, unflushed: &mut Vec<Write>) {
        if self.open.is_some_and(|(_, page)| usize::from(page) < PAGES) {
            unflushed.push(Write::Page(self.program(PageContent::Guard, (0, 0))));
        }
    }

    /// Writes a record under the next numbers: even ones in front, odd ones at the end.
    pub(super) fn write_record(
        &mut self,
        record: CommitRecord,
        copies: u8,
        rules: &Rules,
        unflushed: &mut Vec<Write>,
    ) {
        for copy in 0..copies {
            self.number += 1;
            // Without the rule both records lie in front.
            let side = if rules.two_sides { self.number % 2 } else { 0 };
            let row = if rules.two_sides { self.number / 2 } else { self.number / 2 + u16::from(copy) };
            let at = row % (CELLS as u16 / 2) * 2 + side;
            unflushed.push(Write::Cell(at as u8, CommitRecord { number: self.number, ..record }));
        }
    }

    pub(super) fn commit_record(&self, end: ModelPrefix) -> CommitRecord {
        // Before its first page an epoch ends where the one before it did.
        let end = if end.tick.1 == 0 { self.accepted } else { end };
        CommitRecord {
            number: self.number,
            epoch: self.epoch,
            end,
            durable: self.durable_claim(),
            accepted: self.accepted,
            namespaces: self.groups[0] | self.groups[1],
            checkpoint: self.checkpoint,
            epoch_ends: self.epoch_ends,
        }
    }

    pub(super) fn opening_record(&self) -> CommitRecord {
        CommitRecord { end: self.accepted, durable: self.accepted, ..self.commit_record(self.accepted) }
    }

    /// Returns the sequence of a key's last removal if no block holds it, else 0.
    pub(super) fn dropped(&self, key: usize) -> u8 {
        let is_kept = self.tombstones[key].is_some_and(|tombstone| {
            let block = self.blocks[usize::from(tombstone.block)];
            matches!(block, BlockState::Used { entry, .. } if entry.order == tombstone.order)
        });
        if is_kept { 0 } else { self.settled[key] }
    }

    /// Returns an extent that holds nothing that any recovery could need.
    pub(super) fn free_extent(&self, rules: &Rules) -> Option<usize> {
        self.extents.iter().position(|extent| match extent {
            None => true,
            Some((_, replaced)) => {
                let proven = if rules.extents_wait_for_witness { self.witnessed } else { self.durable };
                replaced.is_some_and(|tick| tick <= proven.tick)
            }
        })
    }

    /// Returns true if a block holds nothing that any recovery could need.
    pub(super) fn is_reusable(&self, block: usize, rules: &Rules) -> bool {
        let BlockState::Used { entry: BlockEntry { order, .. }, emptied } = self.blocks[block] else {
            return false;
        };
        let is_open = self.open.is_some_and(|(open, _)| usize::from(open) == block) && self.order == order;
        let is_live = self.index.iter().flatten().any(|entry| usize::from(entry.block) == block);
        let is_moved = !rules.reuse_waits_for_moves || emptied <= self.durable.tick;
        // The record that names the newest checkpoint may not be durable.
        let is_named = self.commit.is_none_or(|commit| commit.checkpoint != self.checkpoint);
        let is_old = !rules.reuse_waits_for_checkpoint || (order < self.start_order && is_named);
        !is_open && !is_live && is_moved && is_old
    }
}
