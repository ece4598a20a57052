//! Recovery by the rules of the format: which prefix of the log counts, what is damaged, and what that puts in doubt.
//!
//! Input: a medium. Output: the index, the blocks that count and the namespaces in doubt, or a refusal.
//! Invariant: the result depends on the medium alone.

use super::Rules;
use super::medium::{
    BLOCKS, BlockEntry, Cell, Checkpoint, CheckpointSlot, CommitRecord, EPOCHS, EXTENTS, GROUP, KEYS, Medium,
    ModelPrefix, ModelTick, PAGES, Page, PageContent, Record, Slot,
};
use std::collections::BTreeMap;

/// The place and the content of a key's newest record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) block: u8,
    pub(super) page: u8,
    /// The life of the block in which the record was written.
    pub(super) order: u8,
}

/// The answer to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Sequence(u8),
    Absent,
    Error,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RecoveredLog {
    pub(super) accepted: ModelPrefix,
    /// The highest epoch, commit number, sequence and block order on the medium, counted or not.
    pub(super) epoch: u8,
    pub(super) number: u16,
    pub(super) sequence: u8,
    pub(super) order: u8,
    pub(super) epoch_ends: [ModelPrefix; EPOCHS],
    pub(super) checkpoint: u8,
    pub(super) start_order: u8,
    pub(super) index: [Option<Entry>; KEYS],
    pub(super) blocks: [BlockEntry; BLOCKS],
    pub(super) doubt: [u8; KEYS],
    pub(super) settled: [u8; KEYS],
    /// The page of each key's last removal in the window.
    pub(super) tombstones: [Option<Entry>; KEYS],
}

/// The checkpoint that counts cannot be read, or no commit record is left: the device refuses to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused;

struct FoundEvidence<'a> {
    pages: Vec<(usize, usize, &'a Page)>,
    records: Vec<CommitRecord>,
}

fn find<'a>(medium: &'a Medium, rules: &Rules) -> FoundEvidence<'a> {
    let mut pages = Vec::new();
    for block in 0..BLOCKS {
        pages.extend((0..PAGES).filter_map(|page| Some((block, page, medium.page(block, page, rules)?))));
    }
    let whole = |cell: &Cell| match cell {
        Cell::Whole(record) => Some(*record),
        _ => None,
    };
    let mut records: Vec<CommitRecord> = medium.cells.iter().filter_map(whole).collect();
    records.sort_by_key(|record| record.number);
    FoundEvidence { pages, records }
}

impl FoundEvidence<'_> {
    /// Returns the longest prefix that anything on the medium says is durable.
    fn durable(&self) -> ModelPrefix {
        let records = self.records.iter().map(|record| record.durable.max(record.accepted));
        let pages = self.pages.iter().map(|(_, _, page)| page.durable.max(page.accepted));
        records.chain(pages).max().unwrap_or_default()
    }

    /// Returns where each epoch below `epoch` ended; `None` for an epoch whose end nothing names.
    fn epoch_ends(&self, epoch: u8) -> [ModelPrefix; EPOCHS] {
        let mut ends = [ModelPrefix::default(); EPOCHS];
        for record in self.records.iter().filter(|record| record.epoch == epoch) {
            ends = record.epoch_ends;
        }
        for (_, _, page) in &self.pages {
            let ended = usize::from(page.accepted.tick.0);
            if page.epoch > 0 && page.accepted.tick.1 > 0 {
                ends[ended] = ends[ended].max(page.accepted);
            }
        }
        ends
    }
}

/// Returns the ticks of the log behind `start` up to `end`.
fn ticks(start: ModelTick, end: ModelTick, epoch_ends: &[ModelPrefix; EPOCHS]) -> Vec<ModelTick> {
    let mut ticks = Vec::new();
    for epoch in start.0..=end.0 {
        let first = if epoch == start.0 { start.1 + 1 } else { 1 };
        let last = if epoch == end.0 { end.1 } else { epoch_ends[usize::from(epoch)].tick.1 };
        ticks.extend((first..=last).map(|number| (epoch, number)));
    }
    ticks
}

pub(super) fn recover(medium: &Medium, rules: &Rules) -> Result<RecoveredLog, Refused> {
    let found = find(medium, rules);
    let Some(newest) = found.records.last() else { return Err(Refused) };
    let root = newest.checkpoint;
    let checkpoint = match medium.checkpoints[usize::from(root) % 2] {
        _ if root == 0 => None,
        CheckpointSlot::Whole(checkpoint) if checkpoint.number == root => Some(checkpoint),
        CheckpointSlot::WithoutIndex(checkpoint) if checkpoint.number == root => {
            Some(rebuild(medium, checkpoint, rules))
        }
        _ => return Err(Refused),
    };
    let epoch = found
        .records
        .iter()
        .map(|record| record.epoch)
        .chain(found.pages.iter().map(|(_, _, page)| page.epoch))
        .max();
    let epoch = epoch.unwrap_or(0);
    let epoch_ends = found.epoch_ends(epoch);
    let durable = found.durable();
    let start = checkpoint.map_or((0, 0), |checkpoint| checkpoint.start);
    let start_order = checkpoint.map_or(1, |checkpoint| checkpoint.start_order);
    let by_tick: BTreeMap<ModelTick, (usize, usize, &Page)> = found
        .pages
        .iter()
        .filter(|(_, _, page)| page.order >= start_order && page.tick > (0, 0))
        .map(|found| (found.2.tick, *found))
        .collect();
    // The candidate: at most one commit lies behind what is known to be durable.
    let mut accepted = durable;
    let candidate = found.records.iter().rev().find(|record| record.end > durable && record.epoch == epoch);
    if let Some(candidate) = candidate {
        let needed = ticks(durable.tick.max(start), candidate.end.tick, &epoch_ends);
        let is_whole = |tick| match by_tick.get(tick).map(|(_, _, page)| page.content) {
            // A moved record's extent was written long before: its damage is no torn commit.
            Some(PageContent::Record(record)) => {
                let is_moved = record.sequence <= durable.sequence && rules.moved_extents_are_old;
                !rules.whole_extents || is_moved || medium.has_value(&record)
            }
            _ => false,
        };
        if !rules.whole_candidate || needed.iter().all(is_whole) {
            accepted = candidate.end;
        }
    }
    let mut recovered = RecoveredLog {
        accepted,
        epoch,
        number: newest.number,
        sequence: found.sequence(durable),
        order: found.pages.iter().map(|(_, _, page)| page.order).chain([start_order - 1]).max().unwrap_or(0),
        epoch_ends,
        checkpoint: root,
        start_order,
        index: checkpoint.map_or([None; KEYS], |checkpoint| {
            let order = |block: u8| checkpoint.blocks[usize::from(block)].order;
            checkpoint
                .index
                .map(|place| place.map(|(block, page)| Entry { block, page, order: order(block) }))
        }),
        blocks: checkpoint.map_or([BlockEntry::default(); BLOCKS], |checkpoint| checkpoint.blocks),
        doubt: checkpoint.map_or([0; KEYS], |checkpoint| checkpoint.doubt),
        settled: checkpoint.map_or([0; KEYS], |checkpoint| checkpoint.settled),
        tombstones: [None; KEYS],
    };
    recovered.replay(&found, &by_tick, start, rules);
    Ok(recovered)
}

/// Rebuilds the index from the blocks that the map lists.
fn rebuild(medium: &Medium, map: Checkpoint, rules: &Rules) -> Checkpoint {
    let mut rebuilt = Checkpoint { index: [None; KEYS], ..map };
    let mut newest: [Option<(Record, ModelTick)>; KEYS] = [None; KEYS];
    for (block, entry) in map.blocks.iter().enumerate().filter(|(_, entry)| entry.order != 0) {
        let pages = if rules.rebuilding_stops_at_the_end { usize::from(entry.pages) } else { PAGES };
        for place in 0..pages {
            let page = medium.page(block, place, rules).filter(|page| page.order == entry.order);
            if page.is_none() && rules.rebuilding_doubts_lost_pages {
                rebuilt.doubt = rebuilt.doubt.map(|doubt| doubt.max(entry.max_sequence));
            }
            let Some(Page { content: PageContent::Record(record), tick, .. }) = page else { continue };
            let key = usize::from(record.key);
            let is_newest =
                newest[key].is_none_or(|(known, at)| (known.sequence, at) < (record.sequence, *tick));
            if is_newest && record.sequence > map.dropped[key] {
                newest[key] = Some((*record, *tick));
                rebuilt.index[key] = (!record.is_removal).then_some((block as u8, place as u8));
            }
        }
    }
    for (key, (record, _)) in newest.iter().enumerate().filter_map(|(key, newest)| Some((key, (*newest)?))) {
        if record.is_removal {
            rebuilt.settled[key] = rebuilt.settled[key].max(record.sequence);
        }
    }
    rebuilt
}

impl FoundEvidence<'_> {
    fn sequence(&self, durable: ModelPrefix) -> u8 {
        let pages = self.pages.iter().map(|(_, _, page)| match page.content {
            PageContent::Record(record) => record.sequence,
            PageContent::Guard => 0,
        });
        pages
            .chain(self.records.iter().map(|record| record.end.sequence))
            .chain([durable.sequence])
            .max()
            .unwrap_or(0)
    }

    /// Returns the sequence below which a run of lost ticks puts keys in doubt, and their namespaces.
    fn doubt(&self, run: &LostRun, next: Option<&Page>, log: &RecoveredLog, rules: &Rules) -> (u8, u8) {
        let is_covered = run.last - run.first < GROUP || !rules.long_runs_name_all;
        let mask = |namespaces: u8| if is_covered { namespaces } else { u8::MAX };
        if let Some(next) = next {
            return (next.before.sequence, mask(next.before.namespaces));
        }
        let last = (run.epoch, run.last);
        let end = log.end_of(run.epoch);
        if end.tick != last {
            return (log.accepted.sequence, u8::MAX);
        }
        let ends_there = |record: &&CommitRecord| {
            let is_exact = record.end.tick == last || (!rules.masks_end_there && record.end.tick > last);
            is_exact && (record.epoch == run.epoch || !rules.masks_are_of_their_epoch)
        };
        let mask = self.records.iter().rfind(ends_there).map_or(u8::MAX, |record| mask(record.namespaces));
        (end.sequence, mask)
    }
}

/// Ticks of one epoch, none of which is on an intact page.
struct LostRun {
    epoch: u8,
    first: u8,
    last: u8,
}

/// Returns the lost ticks as runs that are as long as possible.
fn lost_runs(lost: &[ModelTick]) -> Vec<LostRun> {
    let mut runs: Vec<LostRun> = Vec::new();
    for &(epoch, tick) in lost {
        match runs.last_mut() {
            Some(run) if (run.epoch, run.last + 1) == (epoch, tick) => run.last = tick,
            _ => runs.push(LostRun { epoch, first: tick, last: tick }),
        }
    }
    runs
}

impl RecoveredLog {
    /// Returns the extents that the index refers to, with their keys.
    pub(super) fn extents(&self, medium: &Medium) -> [Option<(u8, Option<ModelTick>)>; EXTENTS] {
        let mut extents = [None; EXTENTS];
        for (key, entry) in self.index.iter().enumerate() {
            let Some(entry) = entry else { continue };
            if let Slot::Programmed(page) = medium.slots[usize::from(entry.block)][usize::from(entry.page)]
                && page.order == entry.order
                && let PageContent::Record(Record { extent: Some(extent), .. }) = page.content
            {
                extents[usize::from(extent)] = Some((key as u8, None));
            }
        }
        extents
    }

    /// Returns the prefix with which an epoch ended.
    fn end_of(&self, epoch: u8) -> ModelPrefix {
        if epoch == self.accepted.tick.0 { self.accepted } else { self.epoch_ends[usize::from(epoch)] }
    }

    fn replay(
        &mut self,
        found: &FoundEvidence<'_>,
        by_tick: &BTreeMap<ModelTick, (usize, usize, &Page)>,
        start: ModelTick,
        rules: &Rules,
    ) {
        // An entry of the checkpoint that points behind its start is replaced by the log.
        for entry in &mut self.index {
            *entry = entry.filter(|entry| entry.order != 0);
        }
        let mut lost = Vec::new();
        let mut newest: [Option<(Record, ModelTick, Entry)>; KEYS] = [None; KEYS];
        for tick in ticks(start, self.accepted.tick, &self.epoch_ends) {
            let Some((block, page, content)) = by_tick.get(&tick) else {
                lost.push(tick);
                continue;
            };
            let PageContent::Record(record) = content.content else { continue };
            let counted = &mut self.blocks[*block];
            if counted.order != content.order {
                *counted = BlockEntry { order: content.order, ..BlockEntry::default() };
            }
            counted.pages = counted.pages.max(*page as u8 + 1);
            counted.max_sequence = counted.max_sequence.max(record.sequence);
            let entry = Entry { block: *block as u8, page: *page as u8, order: content.order };
            let known = &mut newest[usize::from(record.key)];
            if known.is_none_or(|(known, _, _)| known.sequence <= record.sequence) {
                *known = Some((record, tick, entry));
            }
        }
        for run in lost_runs(&lost) {
            let next = by_tick.get(&(run.epoch, run.last + 1)).map(|(_, _, page)| *page);
            let (below, namespaces) = found.doubt(&run, next, self, rules);
            for key in (0..KEYS).filter(|key| rules.doubt && namespaces & 1 << key != 0) {
                self.doubt[key] = self.doubt[key].max(below);
            }
        }
        for (key, newest) in newest.iter().enumerate() {
            let Some((record, _, entry)) = newest else { continue };
            self.index[key] = (!record.is_removal).then_some(*entry);
            if record.is_removal {
                self.settled[key] = self.settled[key].max(record.sequence);
                self.tombstones[key] = Some(*entry);
            }
        }
    }
}

/// Answers a read from the index, by the bytes of the medium.
pub(super) fn read(
    medium: &Medium,
    key: usize,
    entry: Option<Entry>,
    doubt: &[u8; KEYS],
    settled: &[u8; KEYS],
    rules: &Rules,
) -> Answer {
    let Some(entry) = entry else {
        let in_doubt = settled[key] < doubt[key] && rules.absence_needs_proof;
        return if in_doubt { Answer::Error } else { Answer::Absent };
    };
    let (block, page) = (usize::from(entry.block), usize::from(entry.page));
    let Some(page) = medium.page(block, page, rules) else { return Answer::Error };
    if page.order != entry.order && rules.reads_check_order {
        return Answer::Error;
    }
    match page.content {
        PageContent::Record(record) if usize::from(record.key) == key && !record.is_removal => {
            let is_whole = medium.has_value(&record);
            if record.sequence < doubt[key] || !is_whole {
                Answer::Error
            } else {
                Answer::Sequence(record.sequence)
            }
        }
        _ => Answer::Error,
    }
}

/// Returns the longest prefix that anything on a medium says is durable.
pub(super) fn durable(medium: &Medium, rules: &Rules) -> ModelPrefix {
    find(medium, rules).durable()
}
