//! The promises of the model's device to its clients, and the excuses of one fault.
//!
//! Input: answers of a device. Output: the promise that an answer breaks. Invariant: the checks know the answers to
//! clients, and nothing of how the device recovers.

use super::Rules;
use super::device::State;
use super::medium::{BLOCKS, Fault, KEYS, Medium, ModelPrefix, PAGES, Slot};
use super::recovery::{self, Answer, read, recover};

/// The newest acknowledged state of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Promise {
    /// The newest acknowledged operation; 0 if there was none.
    pub(super) acknowledged: u8,
    /// True if a fault struck the last commit before anything said that it is durable: it may be lost.
    pub(super) may_be_lost: bool,
}

impl State {
    /// Damages the medium while no device runs: a device reads nothing back, so an earlier fault leaves the same bytes.
    pub(super) fn strike(&mut self, fault: Fault, rules: &Rules) {
        self.faults += 1;
        let before = self.medium.clone();
        self.medium.damage(fault);
        // The last commit may be lost if the fault strikes its pages and nothing else says that it was durable. The end
        // of the log is what a recovery of the undamaged medium finds.
        let durable = recover(&before, rules).map_or(ModelPrefix::default(), |recovered| recovered.accepted);
        self.excuse(&before, recovery::durable(&self.medium, rules), durable);
    }

    pub(super) fn excuse(&mut self, before: &Medium, witnessed: ModelPrefix, durable: ModelPrefix) {
        let struck = (0..BLOCKS).flat_map(|block| (0..PAGES).map(move |page| (block, page)));
        let struck =
            struck.filter(|(block, page)| before.slots[*block][*page] != self.medium.slots[*block][*page]);
        let unwitnessed = struck.into_iter().any(|(block, page)| match before.slots[block][page] {
            Slot::Programmed(page) => page.tick > witnessed.tick && page.tick <= durable.tick,
            _ => false,
        });
        if unwitnessed || (before.extents != self.medium.extents && witnessed.tick < durable.tick) {
            self.unwitnessed = durable;
            for promise in &mut self.promises {
                promise.may_be_lost |= promise.acknowledged > witnessed.sequence;
            }
        }
    }

    /// Compares what the device answers after it opened with its promises, which then become what it answers.
    pub(super) fn check_recovered(&mut self, rules: &Rules) -> Result<(), String> {
        let memory = self.memory.as_ref().expect("the device is open");
        let visible = self.visible();
        // What recovery did not accept never happened.
        self.history
            .iter_mut()
            .skip(usize::from(memory.accepted.sequence) + 1)
            .for_each(|operation| *operation = None);
        for key in 0..KEYS {
            let answer = read(&visible, key, memory.index[key], &memory.doubt, &memory.settled, rules);
            self.check_answer(key, answer, memory.durable)?;
        }
        for key in 0..KEYS {
            let answer = read(&visible, key, memory.index[key], &memory.doubt, &memory.settled, rules);
            let newest = self.newest_counted(key as u8, memory.durable.sequence);
            let promise = &mut self.promises[key];
            match answer {
                Answer::Sequence(sequence) => {
                    *promise = Promise { acknowledged: sequence, may_be_lost: false }
                }
                Answer::Absent => *promise = Promise { acknowledged: newest, may_be_lost: false },
                Answer::Error => {}
            }
        }
        Ok(())
    }

    /// Returns the newest removal of a key up to a sequence, or 0.
    pub(super) fn newest_counted(&self, key: u8, sequence: u8) -> u8 {
        let counted = self.history.iter().enumerate().take(usize::from(sequence) + 1);
        let removals = counted.filter(|(_, operation)| **operation == Some((key, true)));
        removals.map(|(sequence, _)| sequence as u8).max().unwrap_or(0)
    }

    pub(super) fn check_answer(
        &self,
        key: usize,
        answer: Answer,
        durable: ModelPrefix,
    ) -> Result<(), String> {
        let promise = self.promises[key];
        let newest = |sequence: u8| self.history.get(usize::from(sequence)).copied().flatten();
        match answer {
            Answer::Error if self.faults > 0 => Ok(()),
            Answer::Error => Err(format!("key {key} answered with an error without a fault")),
            Answer::Sequence(sequence) if newest(sequence) != Some((key as u8, false)) => {
                Err(format!("key {key} answered with operation {sequence}, which is not a store of it"))
            }
            Answer::Sequence(sequence) if sequence < promise.acknowledged && !promise.may_be_lost => {
                Err(format!(
                    "key {key} answered with operation {sequence}, older than {}, which was acknowledged",
                    promise.acknowledged
                ))
            }
            Answer::Sequence(_) => Ok(()),
            Answer::Absent => {
                let removed = newest(promise.acknowledged).is_none_or(|(_, is_removal)| is_removal);
                let later = self.newest_counted(key as u8, durable.sequence) > promise.acknowledged;
                if removed || later || promise.may_be_lost {
                    return Ok(());
                }
                Err(format!("key {key} is absent, although operation {} stored it", promise.acknowledged))
            }
        }
    }

    /// Checks that a device in service never answers with an older state, and with an error only after a fault.
    pub(super) fn check_answers(&self, rules: &Rules) -> Result<(), String> {
        let Some(memory) = self.memory.as_ref().filter(|memory| !memory.is_opening) else { return Ok(()) };
        let visible = self.visible();
        (0..KEYS).try_for_each(|key| {
            let answer = read(&visible, key, memory.index[key], &memory.doubt, &memory.settled, rules);
            self.check_answer(key, answer, memory.appended)
        })
    }
}
