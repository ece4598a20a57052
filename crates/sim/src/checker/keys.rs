//! The possible states of one key: its writes, and those of them that may be the last.
//!
//! Input: writes with their groups (a command is a group: it happens as a whole).
//! Output: the writes that an observer may see.
//! Invariant: there is always at least one write that may be seen.
//! A write may be seen unless a write that certainly happened is certainly later. Certainly later: both sequences are
//! known and ordered, or the one was submitted after the other completed.

use headwater_host::clock::{Nanos, UnixMillis};
use headwater_ssd::command::NamespaceId;
use std::collections::BTreeMap;

/// The identity of a value whose bytes are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Length of the value.
    pub bytes: u32,
    /// Hash of the bytes.
    pub hash: u64,
}

impl Fingerprint {
    /// Computes the fingerprint of a value.
    #[must_use]
    pub fn of(value: &[u8]) -> Self {
        Self {
            bytes: u32::try_from(value.len()).unwrap_or(u32::MAX),
            hash: xxhash_rust::xxh3::xxh3_64(value),
        }
    }
}

/// The lifetime of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifetime {
    /// Until this wall time in milliseconds; 0 for a record that never expires.
    Until(u64),
    /// The lifetime of the record that it replaced, which was this one if that record still existed.
    Inherited(Option<u64>),
}

/// The effect of a write on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Store(Fingerprint, Lifetime),
    Delete,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) group: u64,
    pub(super) effect: Effect,
    pub(super) sequence: Option<u64>,
    /// The sequence that the condition named: no other write may lie between it and the write's own.
    pub(super) replaces: Option<u64>,
}

/// The writes of one command.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) namespace: NamespaceId,
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
    pub(super) writes: usize,
}

pub(super) type Groups = BTreeMap<u64, Group>;

/// An observation of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Absent,
    Present {
        bytes: u32,
        hash: Option<u64>,
        sequence: u64,
        expiry_ms: u64,
    },
    /// This value, from any record.
    Content(Fingerprint),
    /// Some record; nothing more is known.
    Something,
}

/// The time span of an observation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) asked: u64,
    pub(super) wall_asked: UnixMillis,
    pub(super) wall_answered: UnixMillis,
}

#[derive(Clone, Debug)]
pub(super) struct KeyHistory {
    pub(super) number: usize,
    pub(super) writes: Vec<Write>,
    /// Values that the key once held, to distinguish a value that came back from one that was never written.
    pub(super) past: Vec<Fingerprint>,
}

impl KeyHistory {
    /// Returns the indices of the writes that may be seen and that explain the observation.
    pub(super) fn explanations(&self, groups: &Groups, seen: Seen, when: Interval) -> Vec<usize> {
        (0..self.writes.len())
            .filter(|&index| {
                let write = with_sequence_of(self.writes[index], seen);
                explains(&write, seen, when) && self.may_be_seen(groups, &write, when)
            })
            .collect()
    }

    /// Returns true if the observation has one explanation even without the writes that a power cut may lose. If it has
    /// more, the observation stays true when the newest of them is lost, such as a delete of a key that was absent
    /// anyway.
    pub(super) fn is_explained_once_for_good(&self, groups: &Groups, seen: Seen, when: Interval) -> bool {
        let lasting: Groups = groups
            .iter()
            .filter(|(id, _)| self.writes.iter().any(|write| write.group == **id))
            .map(|(id, group)| {
                let certain = group.certain && group.kept;
                (*id, Group { certain, ..group.clone() })
            })
            .collect();
        self.explanations(&lasting, seen, when).len() == 1
    }

    /// Returns true if any write, of any age, matches the observation.
    pub(super) fn ever_written(&self, seen: Seen, when: Interval) -> bool {
        let any_time = Interval { wall_asked: UnixMillis(0), ..when };
        let was = |value: &Fingerprint| match seen {
            Seen::Present { bytes, hash, .. } => {
                value.bytes == bytes && hash.is_none_or(|hash| hash == value.hash)
            }
            Seen::Content(seen) => *value == seen,
            Seen::Absent | Seen::Something => true,
        };
        self.past.iter().any(was) || self.writes.iter().any(|write| explains(write, seen, any_time))
    }

    fn may_be_seen(&self, groups: &Groups, write: &Write, when: Interval) -> bool {
        let before_asked = |group: &Group| group.certain && group.done.is_some_and(|done| done <= when.asked);
        !self.writes.iter().any(|other| {
            groups.get(&other.group).is_some_and(before_asked) && surely_after(groups, other, write)
        })
    }

    /// Describes the states that may be seen.
    pub(super) fn expected(&self, groups: &Groups, when: Interval) -> String {
        let may: Vec<_> = (self.writes.iter())
            .filter(|write| self.may_be_seen(groups, write, when))
            .map(|write| match write.effect {
                Effect::Delete => "nothing".to_owned(),
                Effect::Store(value, lifetime) => {
                    let sequence = write.sequence.map_or_else(|| "?".to_owned(), |known| known.to_string());
                    format!("{} bytes (sequence {sequence}, {lifetime:?})", value.bytes)
                }
            })
            .collect();
        format!("expected {} at wall time {}", may.join(" or "), when.wall_answered.0)
    }

    /// Archives the writes that no observer can see any more, not even one that submitted at tick `oldest_open`, and
    /// not even after a power cut.
    pub(super) fn forget(&mut self, groups: &Groups, oldest_open: u64) {
        let lasting =
            |group: &Group| group.certain && group.kept && group.done.is_some_and(|done| done < oldest_open);
        let settled: Vec<Write> = (self.writes.iter())
            .filter(|write| groups.get(&write.group).is_some_and(lasting))
            .copied()
            .collect();
        let past = |write: &Write| settled.iter().any(|other| surely_after(groups, other, write));
        self.bury(past);
    }

    /// Moves writes into `past`.
    pub(super) fn bury(&mut self, past: impl Fn(&Write) -> bool) {
        let buried = &mut self.past;
        self.writes.retain(|write| {
            let gone = past(write);
            if let (true, Effect::Store(value, _)) = (gone, write.effect) {
                buried.push(value);
            }
            !gone
        });
    }
}

/// Returns the write with the observed sequence if its own is unknown.
fn with_sequence_of(write: Write, seen: Seen) -> Write {
    match (seen, write.sequence) {
        (Seen::Present { sequence, .. }, None) => Write { sequence: Some(sequence), ..write },
        _ => write,
    }
}

pub(super) fn surely_after(groups: &Groups, later: &Write, earlier: &Write) -> bool {
    if later.group == earlier.group {
        return false;
    }
    if let (Some(later), Some(earlier)) = (later.sequence, earlier.sequence) {
        return later > earlier;
    }
    let (Some(later), Some(earlier)) = (groups.get(&later.group), groups.get(&earlier.group)) else {
        return false;
    };
    earlier.done.is_some_and(|done| later.submitted > done)
}

fn explains(write: &Write, seen: Seen, when: Interval) -> bool {
    match (write.effect, seen) {
        (Effect::Delete, Seen::Absent) => true,
        (Effect::Delete, _) => false,
        (Effect::Store(_, lifetime), Seen::Absent) => match lifetime {
            Lifetime::Until(end) => end != 0 && end <= when.wall_answered.0,
            Lifetime::Inherited(known) => known != Some(0),
        },
        (Effect::Store(_, lifetime), Seen::Something) => outlives(lifetime, when.wall_asked),
        (Effect::Store(value, lifetime), Seen::Content(seen)) => {
            value == seen && outlives(lifetime, when.wall_asked)
        }
        (Effect::Store(value, lifetime), Seen::Present { bytes, hash, sequence, expiry_ms }) => {
            value.bytes == bytes
                && hash.is_none_or(|hash| hash == value.hash)
                && write.sequence.is_none_or(|known| known == sequence)
                && outlives(lifetime, when.wall_asked)
                && match lifetime {
                    Lifetime::Until(end) => end == expiry_ms,
                    Lifetime::Inherited(_) => true,
                }
        }
    }
}

fn outlives(lifetime: Lifetime, wall: UnixMillis) -> bool {
    match lifetime {
        Lifetime::Until(end) => end == 0 || end > wall.0,
        Lifetime::Inherited(_) => true,
    }
}
