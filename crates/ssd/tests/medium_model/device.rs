//! The device of the model: its memory, its steps, and what it owes its clients.
//!
//! Input: a step. Output: the next state, or the promise that was broken. Invariant: a step is taken only when the rules
//! permit it.

use super::Rules;
use super::medium::{
    BLOCKS, BlockEntry, Checkpoint, EPOCHS, EXTENTS, Fault, KEYS, Medium, ModelPrefix, Page, PageContent,
    Record, Write, WriteOutcome,
};
use super::memory::{BlockState, CheckpointStep, Commit, Memory};
use super::promise::Promise;
use super::recovery::{Refused, recover};

pub(super) const OUTCOMES: [WriteOutcome; 3] =
    [WriteOutcome::Lost, WriteOutcome::Torn, WriteOutcome::Arrived];

/// The bounds of one search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// New records.
    pub(super) records: u8,
    /// Records moved by the collector.
    pub(super) moves: u8,
    pub(super) checkpoints: u8,
    pub(super) power_cuts: u8,
    pub(super) faults: u8,
}

/// Makes the outcomes of a power cut over these unflushed writes.
pub(super) type PowerCuts<'a> = dyn FnMut(&[Write]) -> Vec<Vec<WriteOutcome>> + 'a;

/// One thing that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Store(u8),
    /// Stores a value in an extent.
    StoreExtent(u8),
    Remove(u8),
    /// Moves a key's record to the frontier, as the collector does.
    Move(u8),
    /// Seals the log and writes the commit record.
    Seal,
    /// The flush answers: the commit is durable and acknowledged.
    Acknowledge,
    BeginCheckpoint,
    WriteCheckpoint,
    /// Frees every block that the rules permit to reuse.
    Free,
    /// Says what is durable although nothing was written.
    Idle,
    /// Each unflushed write has one of these outcomes, and the memory is gone.
    PowerCut(Vec<WriteOutcome>),
    /// The memory is gone; the system still holds the unflushed writes.
    Kill,
    Open,
    /// The record of the opening is durable: the device serves.
    FinishOpening,
    Fault(Fault),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) medium: Medium,
    pub(super) unflushed: Vec<Write>,
    pub(super) memory: Option<Memory>,
    pub(super) promises: [Promise; KEYS],
    /// Operations by sequence: key, and true for a removal.
    pub(super) history: Vec<Option<(u8, bool)>>,
    /// A prefix that a fault struck before anything said that it is durable.
    pub(super) unwitnessed: ModelPrefix,
    records: u8,
    moves: u8,
    checkpoints: u8,
    power_cuts: u8,
    pub(super) faults: u8,
}

impl State {
    pub(super) fn new() -> Self {
        let mut memory = Memory {
            epoch: 0,
            appended: ModelPrefix::default(),
            durable: ModelPrefix::default(),
            said: ModelPrefix::default(),
            witnessed: ModelPrefix::default(),
            accepted: ModelPrefix::default(),
            epoch_ends: [ModelPrefix::default(); EPOCHS],
            groups: [0; 2],
            filled: 0,
            number: 0,
            order: 0,
            open: None,
            blocks: [BlockState::Free; BLOCKS],
            extents: [None; EXTENTS],
            index: [None; KEYS],
            doubt: [0; KEYS],
            settled: [0; KEYS],
            tombstones: [None; KEYS],
            commit: None,
            checkpoint: 0,
            start_order: 1,
            checkpointing: CheckpointStep::None,
            is_opening: false,
        };
        let mut medium = Medium::default();
        let mut opening = Vec::new();
        memory.write_record(memory.opening_record(), 2, &super::ALL, &mut opening);
        opening.iter().for_each(|write| medium.apply(write, WriteOutcome::Arrived));
        Self {
            medium,
            unflushed: Vec::new(),
            memory: Some(memory),
            promises: [Promise::default(); KEYS],
            history: vec![None],
            unwitnessed: ModelPrefix::default(),
            records: 0,
            moves: 0,
            checkpoints: 0,
            power_cuts: 0,
            faults: 0,
        }
    }

    /// Returns what a read sees: the medium with the unflushed writes.
    pub(super) fn visible(&self) -> Medium {
        let mut medium = self.medium.clone();
        self.unflushed.iter().for_each(|write| medium.apply(write, WriteOutcome::Arrived));
        medium
    }

    /// Returns every step that can be taken now.
    pub(super) fn steps(&self, bounds: &Bounds, rules: &Rules, cuts: &mut PowerCuts<'_>) -> Vec<Step> {
        let mut steps = Vec::new();
        let Some(memory) = &self.memory else {
            steps.push(Step::Open);
            if self.faults < bounds.faults {
                steps.extend(self.medium.faults().into_iter().map(Step::Fault));
            }
            return steps;
        };
        if memory.is_opening {
            steps.push(Step::FinishOpening);
            self.add_accidents(memory, bounds, cuts, &mut steps);
            return steps;
        }
        let writes = self.unflushed.iter().filter(|write| !write.is_guard()).count();
        if memory.has_room() && writes < 4 {
            if self.records < bounds.records {
                steps.extend((0..KEYS as u8).map(Step::Store));
                if memory.free_extent(rules).is_some() {
                    steps.extend((0..KEYS as u8).map(Step::StoreExtent));
                }
                let stored = (0..KEYS as u8).filter(|key| memory.index[usize::from(*key)].is_some());
                steps.extend(stored.map(Step::Remove));
            }
            if self.moves < bounds.moves {
                let visible = self.visible();
                steps.extend(
                    (0..KEYS as u8)
                        .filter(|key| self.can_move(memory, &visible, *key, rules))
                        .map(Step::Move),
                );
            }
        }
        match &memory.commit {
            // A commit without pages makes a checkpoint count.
            None if memory.appended > memory.durable || memory.checkpointing.is_written() => {
                steps.push(Step::Seal);
            }
            None if memory.durable_claim() > memory.said => steps.push(Step::Idle),
            None => {}
            Some(_) => steps.push(Step::Acknowledge),
        }
        match memory.checkpointing {
            CheckpointStep::None
                if self.checkpoints < bounds.checkpoints
                    && memory.appended == memory.durable
                    && memory.commit.is_none() =>
            {
                steps.push(Step::BeginCheckpoint);
            }
            CheckpointStep::Begun { .. } => steps.push(Step::WriteCheckpoint),
            _ => {}
        }
        if (0..BLOCKS).any(|block| memory.is_reusable(block, rules)) {
            steps.push(Step::Free);
        }
        self.add_accidents(memory, bounds, cuts, &mut steps);
        steps
    }

    fn add_accidents(
        &self,
        memory: &Memory,
        bounds: &Bounds,
        cuts: &mut PowerCuts<'_>,
        steps: &mut Vec<Step>,
    ) {
        if self.power_cuts < bounds.power_cuts && usize::from(memory.epoch) + 1 < EPOCHS {
            steps.extend(cuts(&self.unflushed).into_iter().map(Step::PowerCut));
            if !self.unflushed.is_empty() {
                steps.push(Step::Kill);
            }
        }
    }

    fn can_move(&self, memory: &Memory, visible: &Medium, key: u8, rules: &Rules) -> bool {
        let Some(entry) = memory.index[usize::from(key)] else { return false };
        let closed = memory.open.is_none_or(|(open, _)| open != entry.block);
        let Some(page) = visible.page(usize::from(entry.block), usize::from(entry.page), rules) else {
            return false;
        };
        let PageContent::Record(record) = page.content else { return false };
        closed && page.order == entry.order && record.key == key && page.tick <= memory.witnessed.tick
    }

    /// Takes a step.
    ///
    /// # Errors
    /// The promise that was broken.
    pub(super) fn take(&mut self, step: &Step, rules: &Rules) -> Result<(), String> {
        match step {
            Step::Store(key) => self.append(*key, false, None),
            Step::StoreExtent(key) => self.store_extent(*key, rules),
            Step::Remove(key) => self.append(*key, true, None),
            Step::Move(key) => self.move_record(*key),
            Step::Seal => self.seal(rules),
            Step::Idle => {
                let memory = self.memory.as_mut().expect("the device is open");
                let record = memory.commit_record(memory.appended);
                memory.write_record(record, 1, rules, &mut self.unflushed);
                memory.said = record.durable;
            }
            Step::Acknowledge => self.acknowledge(),
            Step::BeginCheckpoint => self.begin_checkpoint(),
            Step::WriteCheckpoint => self.write_checkpoint(rules),
            Step::Free => self.free(rules),
            Step::PowerCut(outcomes) => {
                self.cut_power(outcomes);
            }
            Step::Kill => {
                self.memory = None;
                self.power_cuts += 1;
            }
            Step::Open => return self.open(rules),
            Step::FinishOpening => {
                self.unflushed.drain(..).for_each(|write| self.medium.apply(&write, WriteOutcome::Arrived));
                self.memory.as_mut().expect("the device opens").is_opening = false;
                return self.check_recovered(rules);
            }
            Step::Fault(fault) => self.strike(*fault, rules),
        }
        self.check_answers(rules)
    }

    /// Applies the unflushed writes with these outcomes. A torn page damages a flushed page that shares its sector.
    fn cut_power(&mut self, outcomes: &[WriteOutcome]) {
        let writes = std::mem::take(&mut self.unflushed);
        for (write, outcome) in writes.iter().zip(outcomes) {
            self.medium.apply(write, *outcome);
            let Write::Page(torn) = write else { continue };
            let is_before = |write: &Write| match write {
                Write::Page(page) => page.block == torn.block && page.page + 1 == torn.page,
                _ => false,
            };
            if *outcome == WriteOutcome::Torn && torn.page > 0 && !writes.iter().any(is_before) {
                self.medium.tear_page_before(torn);
            }
        }
        self.memory = None;
        self.power_cuts += 1;
    }

    fn store_extent(&mut self, key: u8, rules: &Rules) {
        let memory = self.memory.as_mut().expect("the device is open");
        let extent = memory.free_extent(rules).expect("an extent is free");
        let sequence = memory.appended.sequence + 1;
        self.unflushed.push(Write::Extent { extent: extent as u8, sequence });
        self.append(key, false, Some(extent as u8));
    }

    fn append(&mut self, key: u8, is_removal: bool, extent: Option<u8>) {
        let memory = self.memory.as_mut().expect("the device is open");
        self.records += 1;
        memory.appended.sequence += 1;
        let record = Record { key, sequence: memory.appended.sequence, is_removal, extent };
        self.history.resize(usize::from(record.sequence) + 1, None);
        self.history[usize::from(record.sequence)] = Some((key, is_removal));
        memory.append(record, &mut self.unflushed);
        if is_removal {
            memory.tombstones[usize::from(key)] = memory.index[usize::from(key)].take();
            memory.settled[usize::from(key)] = record.sequence;
        }
    }

    fn move_record(&mut self, key: u8) {
        let visible = self.visible();
        let memory = self.memory.as_mut().expect("the device is open");
        self.moves += 1;
        let entry = memory.index[usize::from(key)].expect("the key is stored");
        if let super::medium::Slot::Programmed(Page { content: PageContent::Record(record), .. }) =
            visible.slots[usize::from(entry.block)][usize::from(entry.page)]
        {
            memory.append(record, &mut self.unflushed);
        }
    }

    fn seal(&mut self, rules: &Rules) {
        let memory = self.memory.as_mut().expect("the device is open");
        if let CheckpointStep::Durable { number, start_order } = memory.checkpointing {
            memory.checkpoint = number;
            memory.start_order = start_order;
            memory.checkpointing = CheckpointStep::None;
        } else if let CheckpointStep::Written { number, start_order, .. } = memory.checkpointing
            && !rules.checkpoint_waits_for_flush
        {
            memory.checkpoint = number;
            memory.start_order = start_order;
            memory.checkpointing = CheckpointStep::None;
        }
        let record = memory.commit_record(memory.appended);
        if memory.appended > memory.durable && rules.guards {
            memory.guard(&mut self.unflushed);
        }
        let copies = if rules.commits_have_two_records { 2 } else { 1 };
        memory.write_record(record, copies, rules, &mut self.unflushed);
        memory.said = record.durable;
        memory.commit = Some(Commit {
            end: memory.appended,
            writes: self.unflushed.len() as u8,
            checkpoint: record.checkpoint,
            witnesses: record.durable,
        });
    }

    fn acknowledge(&mut self) {
        let memory = self.memory.as_mut().expect("the device is open");
        let commit = memory.commit.take().expect("a commit runs");
        for write in self.unflushed.drain(..usize::from(commit.writes)) {
            self.medium.apply(&write, WriteOutcome::Arrived);
        }
        memory.durable = commit.end;
        memory.witnessed = memory.witnessed.max(commit.witnesses);
        if memory.witnessed >= self.unwitnessed {
            self.promises.iter_mut().for_each(|promise| promise.may_be_lost = false);
        }
        if let CheckpointStep::Written { number, start_order, covers, in_commit } = memory.checkpointing {
            if in_commit {
                // The flush of that commit did not cover the stream; the next one does.
                memory.checkpointing =
                    CheckpointStep::Written { number, start_order, covers, in_commit: false };
            } else if commit.end.tick >= covers {
                memory.checkpointing = CheckpointStep::Durable { number, start_order };
            }
        }
        for (sequence, operation) in
            self.history.iter().enumerate().take(usize::from(commit.end.sequence) + 1)
        {
            let Some((key, _)) = operation else { continue };
            let promise = &mut self.promises[usize::from(*key)];
            if promise.acknowledged < sequence as u8 {
                *promise = Promise { acknowledged: sequence as u8, may_be_lost: promise.may_be_lost };
            }
        }
    }

    fn begin_checkpoint(&mut self) {
        let memory = self.memory.as_mut().expect("the device is open");
        self.checkpoints += 1;
        // The window begins with the open block.
        let start_order = memory.open.map_or(memory.order + 1, |_| memory.order);
        let visible = {
            let mut medium = self.medium.clone();
            self.unflushed.iter().for_each(|write| medium.apply(write, WriteOutcome::Arrived));
            medium
        };
        let mut start = memory.appended.tick;
        if let Some((block, _)) = memory.open {
            let ticks = visible.slots[usize::from(block)].iter().filter_map(|slot| match slot {
                super::medium::Slot::Programmed(page) if page.order == memory.order && page.tick > (0, 0) => {
                    Some(page.tick)
                }
                _ => None,
            });
            if let Some(first) = ticks.min() {
                start = if first.1 > 1 { (first.0, first.1 - 1) } else { memory.accepted.tick };
            }
        }
        memory.checkpointing = CheckpointStep::Begun { start_order, start };
    }

    fn write_checkpoint(&mut self, rules: &Rules) {
        let memory = self.memory.as_mut().expect("the device is open");
        let CheckpointStep::Begun { start_order, start } = memory.checkpointing else { return };
        let number = memory.checkpoint + 1;
        let old = |order: u8| order < start_order;
        let blocks = memory.blocks.map(|block| match block {
            BlockState::Used { entry, .. } if old(entry.order) => entry,
            _ => BlockEntry::default(),
        });
        let checkpoint = Checkpoint {
            number,
            start_order,
            start,
            blocks,
            index: memory.index.map(|entry| entry.map(|entry| (entry.block, entry.page))),
            doubt: if rules.checkpoints_keep_doubt { memory.doubt } else { [0; KEYS] },
            settled: memory.settled,
            dropped: std::array::from_fn(|key| memory.dropped(key)),
        };
        self.unflushed.push(Write::Checkpoint(checkpoint));
        let (covers, in_commit) = (memory.appended.tick, memory.commit.is_some());
        memory.checkpointing = CheckpointStep::Written { number, start_order, covers, in_commit };
    }

    fn free(&mut self, rules: &Rules) {
        let memory = self.memory.as_mut().expect("the device is open");
        for block in 0..BLOCKS {
            if memory.is_reusable(block, rules) {
                memory.blocks[block] = BlockState::Free;
            }
        }
    }

    fn open(&mut self, rules: &Rules) -> Result<(), String> {
        let visible = self.visible();
        let recovered = match recover(&visible, rules) {
            Ok(recovered) => recovered,
            Err(Refused) if self.faults > 0 => {
                // Nothing is served. The search ends here.
                self.memory = None;
                self.power_cuts = u8::MAX;
                return Ok(());
            }
            Err(Refused) => return Err("refused to open without a fault".into()),
        };
        let mut memory = Memory::from_recovered(&recovered, &visible, rules);
        if usize::from(memory.epoch) >= EPOCHS {
            return Ok(());
        }
        // Served data must be durable: flush, then the record of the opening, then a flush, then the first page.
        if rules.flush_before_opening {
            self.unflushed.drain(..).for_each(|write| self.medium.apply(&write, WriteOutcome::Arrived));
        }
        let record = memory.opening_record();
        let copies = if rules.openings_have_two_records { 2 } else { 1 };
        memory.write_record(record, copies, rules, &mut self.unflushed);
        memory.witnessed = memory.accepted;
        memory.is_opening = rules.opening_waits_for_flush;
        self.memory = Some(memory);
        if rules.opening_waits_for_flush { Ok(()) } else { self.check_recovered(rules) }
    }
}

/// Returns every combination of outcomes of unflushed writes; a guard arrives.
pub(super) fn outcomes(writes: &[Write]) -> Vec<Vec<WriteOutcome>> {
    let mut all = vec![Vec::new()];
    for write in writes {
        let outcomes: &[WriteOutcome] = if write.is_guard() { &[WriteOutcome::Arrived] } else { &OUTCOMES };
        let with = |all: &Vec<WriteOutcome>, outcome: &WriteOutcome| [all.as_slice(), &[*outcome]].concat();
        all = all.iter().flat_map(|all| outcomes.iter().map(|outcome| with(all, outcome))).collect();
    }
    all
}
