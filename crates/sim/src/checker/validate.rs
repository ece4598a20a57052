//! Checks of completions against the model of the keys that they name.
//!
//! Input: a completion with its command. Output: the updated model, or the [`PromiseViolation`].

use super::keys::{KeyHistory, KeyObservation, KeyWrite, ObservationSpan, WriteEffect};
use super::{CheckedCommand, DeviceChecker, KeyRequest, PromiseViolation, unexpected};
use bytes::Bytes;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{NamespaceId, ReadRelease, Sequence, SsdCompletion, WriteCondition};
use headwater_ssd::engine::Durability;

impl DeviceChecker {
    pub(super) fn write_completed(
        &mut self,
        (asked, group, keys): (&CheckedCommand, u64, &[KeyRequest]),
        completion: &SsdCompletion,
        now: Nanos,
        when: ObservationSpan,
    ) -> Result<(), PromiseViolation> {
        let (status, namespace) = (completion.status, asked.namespace);
        if status.is_success() {
            // The completion waits for what any of its namespaces promises.
            let is_always = |one: &&KeyRequest| self.durability(one.namespace) == Durability::Always;
            let strictest = keys.iter().find(is_always).map_or(namespace, |one| one.namespace);
            for one in keys {
                self.check_condition(one, strictest, (group, status), when)?;
            }
            let before = asked.highest_acked;
            let sequence = completion.sequence.0;
            // A batch whose deletes found nothing to delete returns the sequence that it observed.
            let wrote = asked.writes_one_key()
                || keys.iter().any(|one| matches!(one.effect, Some(WriteEffect::Store(..))));
            if wrote && sequence != 0 && sequence <= before {
                let token = completion.token;
                return Err(PromiseViolation::SequenceWentBack { token, sequence, before });
            }
            self.highest_acked = self.highest_acked.max(sequence);
            let kept = self.durability(strictest) == Durability::Always || asked.is_durable_when_acked();
            if let Some(group) = self.groups.get_mut(group) {
                group.done = group.done.or(Some(self.tick));
                group.acked_at = Some(now);
                group.certain = true;
                group.kept |= kept;
                (group.sequence, group.owns_sequence) = (sequence, wrote);
            }
        } else if let Some(seen) = observation_of_refusal(status) {
            self.remove_group(group, keys);
            if status == Status::CAPACITY_EXCEEDED {
                self.check_full(namespace, keys, when)?;
            }
            let failed = usize::try_from(completion.position).ok().filter(|_| keys.len() > 1);
            if let (Some(one), Some(seen)) = (keys.get(failed.unwrap_or(0)), seen) {
                self.check_refusal(one, (status, seen), when)?;
            }
        } else {
            return Err(unexpected(completion));
        }
        let oldest_open =
            self.commands_in_flight.first_key_value().map_or(self.tick, |(_, asked)| asked.tick);
        for one in keys.iter().filter(|_| !self.keeps_all) {
            let history = self.spaces[one.namespace.index()].keys.get_mut(&one.key);
            if let Some(history) = history {
                history.archive_obsolete(&self.groups, oldest_open);
            }
        }
        Ok(())
    }

    fn durability(&self, namespace: NamespaceId) -> Durability {
        self.spaces[namespace.index()].durability
    }

    pub(super) fn remove_group(&mut self, group: u64, keys: &[KeyRequest]) {
        for one in keys {
            self.key(one.namespace, &one.key).writes.retain(|write| write.group != group);
        }
        self.groups.remove(group);
    }

    /// Checks the condition of a write or a check of a command that was carried out, and whose completion waited as long as
    /// the durability of the namespace `strictest` asks.
    pub(super) fn check_condition(
        &mut self,
        one: &KeyRequest,
        strictest: NamespaceId,
        (group, status): (u64, Status),
        when: ObservationSpan,
    ) -> Result<(), PromiseViolation> {
        let seen = match one.condition {
            WriteCondition::Always => return Ok(()),
            WriteCondition::IfExists | WriteCondition::IfSequence(_) => KeyObservation::AnyRecord,
            WriteCondition::IfAbsent => KeyObservation::Absent,
        };
        let namespace = one.namespace;
        let mut before = self.key(namespace, &one.key).clone();
        before.writes.retain(|write| write.group != group);
        let mut matching = before.explanations(&self.groups, seen, when);
        if let WriteCondition::IfSequence(Sequence(wanted)) = one.condition {
            let known = |index: &usize| before.writes[*index].sequence;
            matching.retain(|index| known(index).is_none_or(|sequence| sequence == wanted));
        }
        if !matching.is_empty() {
            // The write was acknowledged, so the group that decided its condition has happened as a whole, and lasts as
            // long as the write.
            self.mark_happened(strictest, &before, &matching, (seen, when), ReadRelease::WhenDurable);
            let always = self.durability(strictest) == Durability::Always;
            if let (WriteCondition::IfSequence(Sequence(wanted)), [only], true) =
                (one.condition, &matching[..], always)
                && before.writes[*only].sequence == Some(wanted)
                && let Some(group) = self.groups.get_mut(before.writes[*only].group)
            {
                group.kept = true;
            }
            return Ok(());
        }
        Err(PromiseViolation::ConditionMisjudged {
            namespace,
            key: before.number,
            status,
            expected: before.describe_expected(&self.groups, when),
        })
    }

    /// Checks that a read-modify-write replaced the record that it named; otherwise another client's update was lost.
    pub(super) fn check_replaced(&self, namespace: NamespaceId, key: &Bytes) -> Result<(), PromiseViolation> {
        let history = self.space(namespace).and_then(|space| space.keys.get(key));
        let Some(history) = history else { return Ok(()) };
        for write in &history.writes {
            let (Some(base), Some(own)) = (write.replaces, write.sequence) else {
                continue;
            };
            // A write that a lie may have taken replaced nothing for certain.
            let happened = |other: &KeyWrite| self.groups.get(other.group).is_none_or(|group| group.certain);
            let between = |other: &&KeyWrite| {
                other.sequence.is_some_and(|known| base < known && known < own) && happened(other)
            };
            if let Some(other) = history.writes.iter().find(between) {
                return Err(PromiseViolation::LostUpdate {
                    namespace,
                    key: history.number,
                    base,
                    own,
                    between: other.sequence.unwrap_or(0),
                });
            }
        }
        Ok(())
    }

    pub(super) fn check_refusal(
        &mut self,
        one: &KeyRequest,
        (status, seen): (Status, KeyObservation),
        when: ObservationSpan,
    ) -> Result<(), PromiseViolation> {
        let namespace = one.namespace;
        let history = self.key(namespace, &one.key).clone();
        let matching = history.explanations(&self.groups, seen, when);
        if matching.is_empty() {
            return Err(PromiseViolation::ConditionMisjudged {
                namespace,
                key: history.number,
                status,
                expected: history.describe_expected(&self.groups, when),
            });
        }
        self.mark_happened(namespace, &history, &matching, (seen, when), ReadRelease::WhenDurable);
        Ok(())
    }

    pub(super) fn read_completed(
        &mut self,
        (namespace, key, release): (NamespaceId, &Bytes, ReadRelease),
        completion: &SsdCompletion,
        hash: Option<u64>,
        when: ObservationSpan,
    ) -> Result<(), PromiseViolation> {
        let seen = match completion.status {
            Status::KEY_DOES_NOT_EXIST => KeyObservation::Absent,
            Status::SUCCESS => KeyObservation::Present {
                bytes: completion.value_bytes,
                hash,
                sequence: completion.sequence.0,
                expiry_ms: completion.expiry_ms,
            },
            _ => return Err(unexpected(completion)),
        };
        self.check_observation((namespace, key, release), seen, when)
    }

    /// Checks that the observation of the key is possible, and updates the model with what follows from it.
    pub(super) fn check_observation(
        &mut self,
        (namespace, key, release): (NamespaceId, &Bytes, ReadRelease),
        seen: KeyObservation,
        when: ObservationSpan,
    ) -> Result<(), PromiseViolation> {
        if self.space(namespace).is_some_and(|space| !space.keys.contains_key(key)) {
            self.key(namespace, key);
        }
        let Some(history) = self.space(namespace).and_then(|space| space.keys.get(key)) else {
            return Ok(());
        };
        let matching = history.explanations(&self.groups, seen, when);
        let [only] = matching[..] else {
            if matching.is_empty() {
                return Err(self.violation_for(namespace, history, seen, when));
            }
            return Ok(());
        };
        let group = history.writes[only].group;
        let lasting = self.is_lasting(namespace, history, (seen, when), release);
        if let KeyObservation::Present { sequence, .. } = seen {
            self.learn_sequence(namespace, key, group, Sequence(sequence));
        }
        self.mark_group(group, lasting);
        Ok(())
    }

    /// Marks the write that explains the observation as having happened; if the completion was held until the write was
    /// durable, it must also survive a cut.
    pub(super) fn mark_happened(
        &mut self,
        namespace: NamespaceId,
        history: &KeyHistory,
        matching: &[usize],
        (seen, when): (KeyObservation, ObservationSpan),
        release: ReadRelease,
    ) {
        let [only] = matching else { return };
        let lasting = self.is_lasting(namespace, history, (seen, when), release);
        self.mark_group(history.writes[*only].group, lasting);
    }

    /// Returns true if the write that explains the observation was durable when the completion was released.
    fn is_lasting(
        &self,
        namespace: NamespaceId,
        history: &KeyHistory,
        (seen, when): (KeyObservation, ObservationSpan),
        release: ReadRelease,
    ) -> bool {
        release == ReadRelease::WhenDurable
            && self.durability(namespace) == Durability::Always
            && history.has_single_durable_explanation(&self.groups, seen, when)
    }

    fn mark_group(&mut self, group: u64, lasting: bool) {
        if let Some(group) = self.groups.get_mut(group) {
            group.done = group.done.or(Some(self.tick));
            group.certain = true;
            group.kept |= lasting;
        }
    }

    pub(super) fn violation_for(
        &self,
        namespace: NamespaceId,
        history: &KeyHistory,
        seen: KeyObservation,
        when: ObservationSpan,
    ) -> PromiseViolation {
        let (key, expected) = (history.number, history.describe_expected(&self.groups, when));
        let saw = match seen {
            KeyObservation::Absent => "found nothing".to_owned(),
            KeyObservation::AnyRecord => "found a record".to_owned(),
            KeyObservation::Content(value) => format!("found {} bytes", value.bytes),
            KeyObservation::Present { bytes, sequence, expiry_ms, .. } => {
                format!("found {bytes} bytes (sequence {sequence}, expiry {expiry_ms})")
            }
        };
        match seen {
            KeyObservation::Absent => PromiseViolation::Lost { namespace, key, found: saw, expected },
            _ if history.ever_written(seen, when) => {
                PromiseViolation::CameBack { namespace, key, found: saw, expected }
            }
            _ => PromiseViolation::NeverWritten { namespace, key, found: saw, expected },
        }
    }
}

/// Returns `Some` if a status means that nothing was written; the inner value is the state that the device must have
/// observed.
fn observation_of_refusal(status: Status) -> Option<Option<KeyObservation>> {
    match status {
        Status::KEY_DOES_NOT_EXIST => Some(Some(KeyObservation::Absent)),
        Status::KEY_EXISTS => Some(Some(KeyObservation::AnyRecord)),
        Status::SEQUENCE_MISMATCH | Status::CAPACITY_EXCEEDED => Some(None),
        _ => None,
    }
}
