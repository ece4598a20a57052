//! The possible states of one key: its writes, and those of them that may be the last.
//!
//! Input: writes with their groups (a command is a group: it happens as a whole).
//! Output: the writes that an observer may see.
//! Invariant: there is always at least one write that may be seen.
//! A write may be seen unless a write that certainly happened is certainly later. Certainly later: both sequences are
//! known and ordered, or the one was submitted after the other completed.

use crate::value_pattern::ValuePattern;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::width::narrow;
use headwater_host::width::to_usize;
use headwater_ssd::command::NamespaceId;

/// The identity of a value whose bytes are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueFingerprint {
    /// Length of the value.
    pub bytes: u32,
    /// Hash of the bytes.
    pub hash: u64,
    /// The pattern by which each part of the value is known, if its bytes have one.
    pub(crate) pattern: Option<ValuePattern>,
}

impl ValueFingerprint {
    /// Computes the fingerprint of a value.
    #[must_use]
    pub fn of(value: &[u8]) -> Self {
        let (bytes, hash) = (narrow(value.len()), xxhash_rust::xxh3::xxh3_64(value));
        Self { bytes, hash, pattern: ValuePattern::of(value) }
    }
}

/// The lifetime of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordLifetime {
    /// Until this wall time in milliseconds; 0 for a record that never expires.
    Until(u64),
    /// The lifetime of the record that it replaced, which was this one if that record still existed.
    Inherited(Option<u64>),
}

/// The effect of a write on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteEffect {
    Store(ValueFingerprint, RecordLifetime),
    Delete,
}

impl WriteEffect {
    /// Returns true if the record may expire.
    pub(super) fn may_expire(&self) -> bool {
        match self {
            Self::Delete | Self::Store(_, RecordLifetime::Until(0) | RecordLifetime::Inherited(Some(0))) => {
                false
            }
            Self::Store(..) => true,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct KeyWrite {
    pub(super) group: u64,
    pub(super) effect: WriteEffect,
    pub(super) sequence: Option<u64>,
    /// The sequence that the condition named: no other write may lie between it and the write's own.
    pub(super) replaces: Option<u64>,
}

/// The namespaces of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupNamespaces(u32);

impl GroupNamespaces {
    /// Returns true for a namespace of the command.
    pub(super) fn contains(self, namespace: NamespaceId) -> bool {
        self.0 >> namespace.index() & 1 == 1
    }
}

impl FromIterator<NamespaceId> for GroupNamespaces {
    fn from_iter<I: IntoIterator<Item = NamespaceId>>(namespaces: I) -> Self {
        Self(namespaces.into_iter().fold(0, |all, namespace| all | 1 << namespace.index()))
    }
}

/// The writes of one command.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says something else of the writes")]
pub(super) struct WriteGroup {
    pub(super) namespaces: GroupNamespaces,
    /// The tick of its submission.
    pub(super) submitted: u64,
    /// The tick by which it had certainly happened, if it happened: it was acknowledged or seen.
    pub(super) done: Option<u64>,
    /// The time of its acknowledgement.
    pub(super) acked_at: Option<Nanos>,
    /// True if it happened and is in force: later observers see it or a later write.
    pub(super) certain: bool,
    /// True if a power cut must not lose it.
    pub(super) kept: bool,
    /// The sequence that its acknowledgement returned.
    pub(super) sequence: u64,
    /// True if that sequence was given to it: a batch whose deletes found nothing to delete returns one that it observed.
    pub(super) owns_sequence: bool,
    /// True if it ends doubt of its keys. A change of the namespace table does not: blocks behind a smaller size stay in doubt.
    pub(super) settles: bool,
    pub(super) writes: usize,
}

/// The groups by number. Numbers are given out one after the other, so a group is found without a search.
#[derive(Debug, Default)]
pub(super) struct WriteGroups {
    groups: Vec<Option<WriteGroup>>,
}

impl WriteGroups {
    pub(super) fn get(&self, id: u64) -> Option<&WriteGroup> {
        self.groups.get(usize::try_from(id).ok()?)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut WriteGroup> {
        self.groups.get_mut(usize::try_from(id).ok()?)?.as_mut()
    }

    /// Adds a group under the next number or a later one.
    pub(super) fn insert(&mut self, id: u64, group: WriteGroup) {
        let at = to_usize(id);
        if self.groups.len() <= at {
            self.groups.resize_with(at + 1, || None);
        }
        self.groups[at] = Some(group);
    }

    pub(super) fn remove(&mut self, id: u64) {
        if let Some(group) = usize::try_from(id).ok().and_then(|at| self.groups.get_mut(at)) {
            *group = None;
        }
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut WriteGroup> {
        self.groups.iter_mut().flatten()
    }

    /// Returns true if no group was ever added.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Removes the groups whose number `keeps` refuses.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(u64) -> bool) {
        for (id, group) in (0..).zip(&mut self.groups) {
            if group.is_some() && !keeps(id) {
                *group = None;
            }
        }
    }
}

/// An observation of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyObservation {
    Absent,
    Present {
        bytes: u32,
        hash: Option<u64>,
        sequence: u64,
        expiry_ms: u64,
    },
    /// This value, from any record.
    Content(ValueFingerprint),
    /// Some record; nothing more is known.
    AnyRecord,
}

/// The time span of an observation.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservationSpan {
    pub(super) asked: u64,
    pub(super) wall_asked: UnixMillis,
    pub(super) wall_answered: UnixMillis,
}

#[derive(Clone, Debug)]
pub(super) struct KeyHistory {
    pub(super) number: usize,
    pub(super) writes: Vec<KeyWrite>,
    /// Values that the key once held, to distinguish a value that came back from one that was never written.
    pub(super) past_values: Vec<ValueFingerprint>,
}

impl KeyHistory {
    /// Returns the indices of the writes that may be seen and that explain the observation.
    pub(super) fn explanations(
        &self,
        groups: &WriteGroups,
        seen: KeyObservation,
        when: ObservationSpan,
    ) -> Vec<usize> {
        self.explanations_by(groups, seen, when, |group| group.certain).collect()
    }

    /// Returns the same, if the groups that happened certainly are those that `certain` names.
    fn explanations_by(
        &self,
        groups: &WriteGroups,
        seen: KeyObservation,
        when: ObservationSpan,
        certain: fn(&WriteGroup) -> bool,
    ) -> impl Iterator<Item = usize> {
        (0..self.writes.len()).filter(move |&index| {
            let write = with_sequence_of(self.writes[index], seen);
            matches_observation(&write, seen, when) && self.may_be_seen(groups, &write, when, certain)
        })
    }

    /// Returns true if the observation has one explanation even without the writes that a power cut may lose. If it has
    /// more, the observation stays true when the newest of them is lost, such as a delete of a key that was absent
    /// anyway.
    pub(super) fn has_single_durable_explanation(
        &self,
        groups: &WriteGroups,
        seen: KeyObservation,
        when: ObservationSpan,
    ) -> bool {
        self.explanations_by(groups, seen, when, |group| group.certain && group.kept).count() == 1
    }

    /// Returns true if any write, of any age, matches the observation.
    pub(super) fn ever_written(&self, seen: KeyObservation, when: ObservationSpan) -> bool {
        let any_time = ObservationSpan { wall_asked: UnixMillis(0), ..when };
        let was = |value: &ValueFingerprint| match seen {
            KeyObservation::Present { bytes, hash, .. } => {
                value.bytes == bytes && hash.is_none_or(|hash| hash == value.hash)
            }
            KeyObservation::Content(seen) => *value == seen,
            KeyObservation::Absent | KeyObservation::AnyRecord => true,
        };
        self.past_values.iter().any(was)
            || self.writes.iter().any(|write| matches_observation(write, seen, any_time))
    }

    fn may_be_seen(
        &self,
        groups: &WriteGroups,
        write: &KeyWrite,
        when: ObservationSpan,
        certain: fn(&WriteGroup) -> bool,
    ) -> bool {
        let before_asked =
            |group: &WriteGroup| certain(group) && group.done.is_some_and(|done| done <= when.asked);
        !self.writes.iter().any(|other| {
            groups.get(other.group).is_some_and(before_asked) && certainly_after(groups, other, write)
        })
    }

    /// Describes the states that may be seen.
    pub(super) fn describe_expected(&self, groups: &WriteGroups, when: ObservationSpan) -> String {
        let may: Vec<_> = (self.writes.iter())
            .filter(|write| self.may_be_seen(groups, write, when, |group| group.certain))
            .map(|write| match write.effect {
                WriteEffect::Delete => "nothing".to_owned(),
                WriteEffect::Store(value, lifetime) => {
                    let sequence = write.sequence.map_or_else(|| "?".to_owned(), |known| known.to_string());
                    format!("{} bytes (sequence {sequence}, {lifetime:?})", value.bytes)
                }
            })
            .collect();
        format!("expected {} at wall time {}", may.join(" or "), when.wall_answered.0)
    }

    /// Notes a write that may expire: one that is in flight and keeps the lifetime of the record that it replaces may
    /// happen after it.
    pub(super) fn let_open_writes_expire(&mut self, groups: &WriteGroups) {
        let is_open = |write: &KeyWrite| groups.get(write.group).is_some_and(|group| group.done.is_none());
        for write in self.writes.iter_mut().filter(|write| is_open(write)) {
            if let WriteEffect::Store(_, RecordLifetime::Inherited(known)) = &mut write.effect {
                *known = None;
            }
        }
    }

    /// Archives the writes that no observer can see any more, not even one that submitted at tick `oldest_open`, and
    /// not even after a power cut.
    pub(super) fn archive_obsolete(&mut self, groups: &WriteGroups, oldest_open: u64) {
        let lasting = |group: &WriteGroup| {
            group.certain && group.kept && group.done.is_some_and(|done| done < oldest_open)
        };
        let settled: Vec<KeyWrite> = (self.writes.iter())
            .filter(|write| groups.get(write.group).is_some_and(lasting))
            .copied()
            .collect();
        let past = |write: &KeyWrite| settled.iter().any(|other| certainly_after(groups, other, write));
        self.archive(past);
    }

    /// Moves writes into `past_values`.
    pub(super) fn archive(&mut self, past: impl Fn(&KeyWrite) -> bool) {
        let buried = &mut self.past_values;
        self.writes.retain(|write| {
            let gone = past(write);
            if let (true, WriteEffect::Store(value, _)) = (gone, write.effect) {
                buried.push(value);
            }
            !gone
        });
    }
}

/// Returns the write with the observed sequence if its own is unknown.
fn with_sequence_of(write: KeyWrite, seen: KeyObservation) -> KeyWrite {
    match (seen, write.sequence) {
        (KeyObservation::Present { sequence, .. }, None) => KeyWrite { sequence: Some(sequence), ..write },
        _ => write,
    }
}

pub(super) fn certainly_after(groups: &WriteGroups, later: &KeyWrite, earlier: &KeyWrite) -> bool {
    if later.group == earlier.group {
        return false;
    }
    if let (Some(later), Some(earlier)) = (later.sequence, earlier.sequence) {
        return later > earlier;
    }
    let (Some(later), Some(earlier)) = (groups.get(later.group), groups.get(earlier.group)) else {
        return false;
    };
    earlier.done.is_some_and(|done| later.submitted > done)
}

fn matches_observation(write: &KeyWrite, seen: KeyObservation, when: ObservationSpan) -> bool {
    match (write.effect, seen) {
        (WriteEffect::Delete, KeyObservation::Absent) => true,
        (WriteEffect::Delete, _) => false,
        (WriteEffect::Store(_, lifetime), KeyObservation::Absent) => match lifetime {
            RecordLifetime::Until(end) => end != 0 && end <= when.wall_answered.0,
            RecordLifetime::Inherited(known) => known != Some(0),
        },
        (WriteEffect::Store(_, lifetime), KeyObservation::AnyRecord) => outlives(lifetime, when.wall_asked),
        (WriteEffect::Store(value, lifetime), KeyObservation::Content(seen)) => {
            value == seen && outlives(lifetime, when.wall_asked)
        }
        (
            WriteEffect::Store(value, lifetime),
            KeyObservation::Present { bytes, hash, sequence, expiry_ms },
        ) => {
            value.bytes == bytes
                && hash.is_none_or(|hash| hash == value.hash)
                && write.sequence.is_none_or(|known| known == sequence)
                && outlives(lifetime, when.wall_asked)
                && match lifetime {
                    RecordLifetime::Until(end) => end == expiry_ms,
                    RecordLifetime::Inherited(_) => true,
                }
        }
    }
}

fn outlives(lifetime: RecordLifetime, wall: UnixMillis) -> bool {
    match lifetime {
        RecordLifetime::Until(end) => end == 0 || end > wall.0,
        RecordLifetime::Inherited(_) => true,
    }
}
