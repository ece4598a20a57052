//! The check of every key after a recovery: the value found resolves the outcome of the commands in flight at the cut.
//!
//! Input: the completion of a Retrieve of each key, with no other command in flight.
//! Output: a model with one state for each key, or the [`PromiseViolation`], including a batch that one key contains and
//! another lacks.

use super::keys::{
    KeyHistory, KeyObservation, KeyWrite, ObservationSpan, RecordLifetime, ValueFingerprint, WriteEffect,
    certainly_after,
};
use super::{DeviceChecker, INITIAL_GROUP, PromiseViolation, WallSpan};
use bytes::Bytes;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{NamespaceId, ReadRelease, SsdCompletion};
use std::collections::BTreeSet;

impl DeviceChecker {
    /// Checks the completion of a Retrieve of the whole value, after a recovery and with nothing else in flight, and
    /// reduces the key's history to the state found. Call it for every one of [`Self::keys`], then [`Self::finish_recovery_check`].
    ///
    /// # Errors
    /// The promise that the state found breaks.
    pub fn check_recovered_key(
        &mut self,
        namespace: NamespaceId,
        key: &Bytes,
        completion: &SsdCompletion,
        wall: WallSpan,
    ) -> Result<(), PromiseViolation> {
        self.tick += 1;
        let when = ObservationSpan { asked: self.tick, wall_asked: wall.asked, wall_answered: wall.answered };
        let history = self.key(namespace, key);
        let before =
            KeyHistory { number: history.number, writes: history.writes.clone(), past_values: Vec::new() };
        let value = ValueFingerprint::of(&completion.sink);
        let hash = value.hash;
        self.read_completed((namespace, key, ReadRelease::WhenDurable), completion, Some(hash), when)?;
        let (sequence, effect, seen) = match completion.status {
            Status::SUCCESS => {
                let bytes = completion.value_bytes;
                let (sequence, expiry_ms) = (completion.sequence.0, completion.expiry_ms);
                let seen = KeyObservation::Present { bytes, hash: Some(hash), sequence, expiry_ms };
                let value = ValueFingerprint { bytes, ..value };
                let effect = WriteEffect::Store(value, RecordLifetime::Until(expiry_ms));
                (Some(sequence), effect, seen)
            }
            _ => (None, WriteEffect::Delete, KeyObservation::Absent),
        };
        self.record_batches(namespace, &before, seen, when)?;
        let group = self.certain_group(namespace);
        self.highest_acked = self.highest_acked.max(sequence.unwrap_or(0));
        let history = self.key(namespace, key);
        history.archive(|_| true);
        history.writes = vec![KeyWrite { group, effect, sequence, replaces: None }];
        Ok(())
    }

    /// Notes the unfinished batches that a key contains or lacks, according to the state found.
    fn record_batches(
        &mut self,
        namespace: NamespaceId,
        history: &KeyHistory,
        seen: KeyObservation,
        when: ObservationSpan,
    ) -> Result<(), PromiseViolation> {
        let matching = history.explanations(&self.groups, seen, when);
        let rests_on = |index: &usize| {
            let base = history.writes[*index].replaces?;
            history.writes.iter().find(|write| write.sequence == Some(base)).map(|write| write.group)
        };
        // The write found named the record that it replaced, so that record existed, and its whole batch with it.
        let mut based_on = None;
        if let [only] = &matching[..] {
            based_on = rests_on(only);
        }
        for write in &history.writes {
            let batch = write.group;
            if self.groups.get(batch).is_none_or(|group| group.writes < 2) {
                continue;
            }
            let explained_by = || matching.iter().map(|&index| &history.writes[index]);
            let shows = based_on == Some(batch) || explained_by().all(|other| other.group == batch);
            if matching.len() == 1 && shows {
                self.batches_shown.entry(batch).or_insert(history.number);
            } else if explained_by().all(|other| certainly_after(&self.groups, write, other)) {
                self.batches_lacked.entry(batch).or_insert(history.number);
            }
            if let (Some(&present), Some(&missing)) =
                (self.batches_shown.get(&batch), self.batches_lacked.get(&batch))
            {
                return Err(PromiseViolation::TornBatch { namespace, batch, present, missing });
            }
        }
        Ok(())
    }

    /// Discards the state of the check after every key was settled.
    pub fn finish_recovery_check(&mut self) {
        self.batches_shown.clear();
        self.batches_lacked.clear();
        self.last_change = None;
        // What is still uncertain belongs to keys that were answered with errors. Their sequences may be given out again.
        for write in
            self.spaces.iter_mut().flat_map(|space| space.keys.values_mut()).flat_map(|key| &mut key.writes)
        {
            if self.groups.get(write.group).is_some_and(|group| !group.certain) {
                write.sequence = None;
            }
        }
        let used = self.spaces.iter().flat_map(|space| space.keys.values());
        let used: BTreeSet<u64> =
            used.flat_map(|history| history.writes.iter().map(|write| write.group)).collect();
        self.groups.retain(|id| id == INITIAL_GROUP || used.contains(&id));
    }
}
