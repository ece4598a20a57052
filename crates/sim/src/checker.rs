//! A model of the device's promises, against which every completion is checked. It is independent of the
//! implementation.
//!
//! Input: every submitted command, every completion, every power cut, and after each recovery the contents of every
//! key.
//! Output: the first [`PromiseViolation`].
//! Invariants checked: exactly one completion a command; acknowledged durable writes survive a cut, deletes do not come
//! back, and what a read returned survives too (the release rule); a batch is present as a whole or not at all; no
//! value that was never written, no state older than the last durable one; conditions evaluated on a possible state;
//! sequences increase; listings name the keys that exist.
//! Time is a counter of submissions and completions, so "before" means what a client can observe.

mod blocks;
mod describe;
mod keys;
mod listing;
mod read_ranges;
mod recovery;
mod requests;
mod room;
mod unwitnessed;
mod validate;
mod violation;

use blocks::BlockCheck;
pub use blocks::block_key;
pub use keys::ValueFingerprint;
pub use violation::PromiseViolation;

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_ssd::command::{
    NamespaceId, ReadRelease, Sequence, SsdCompletion, ValueSource, WriteCondition,
};
use headwater_ssd::engine::Durability;
use headwater_ssd::limits::{NAMESPACES, OPERATIONS_MAX};
use keys::{KeyHistory, KeyWrite, ObservationSpan, WriteEffect, WriteGroup, WriteGroups};
use read_ranges::ReadRange;
use requests::KeyRequest;
use std::collections::BTreeMap;

/// The group of the initial state.
const INITIAL_GROUP: u64 = 0;

#[derive(Clone, Debug)]
enum CheckedKind {
    /// Writes of one group.
    Write {
        group: u64,
        keys: Vec<KeyRequest>,
        alone: bool,
        durable: DurabilityPoint,
    },
    Read {
        key: Bytes,
        range: ReadRange,
        release: ReadRelease,
    },
    Exist {
        key: Bytes,
        release: ReadRelease,
    },
    List,
    Flush,
    Fence(Sequence),
    /// A Read, Compare or Verify of blocks.
    Blocks {
        start: u64,
        blocks: BlockCheck,
    },
}

/// The point from which an acknowledged write must be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DurabilityPoint {
    /// As the durability mode of the namespace promises.
    Promised,
    /// From the acknowledgement, in every durability mode.
    Immediate,
}

/// A command as the checker records it.
#[derive(Clone, Debug)]
pub struct CheckedCommand {
    namespace: NamespaceId,
    kind: CheckedKind,
    tick: u64,
    wall: UnixMillis,
    highest_acked: u64,
    changes_table: bool,
}

/// The wall time of a submission and of its completion.
#[derive(Clone, Copy, Debug)]
pub struct WallSpan {
    /// Wall time before the submission.
    pub asked: UnixMillis,
    /// Wall time after the completion.
    pub answered: UnixMillis,
}

#[derive(Debug)]
struct KeySpace {
    durability: Durability,
    keys: BTreeMap<Bytes, KeyHistory>,
}

/// The model of one device and the checks against it.
#[derive(Debug)]
pub struct DeviceChecker {
    spaces: Vec<KeySpace>,
    groups: WriteGroups,
    commands_in_flight: BTreeMap<u64, CheckedCommand>,
    tick: u64,
    next_group: u64,
    highest_acked: u64,
    /// The highest sequence of an acknowledged write that was durable at a power cut.
    highest_kept: u64,
    /// Batches that a key was found to contain or to lack since the last recovery, each with the key.
    batches_shown: BTreeMap<u64, usize>,
    batches_lacked: BTreeMap<u64, usize>,
    /// The change of the namespace table that is in flight, or was at the power cut.
    change: Option<(NamespaceId, u64)>,
    /// The last change of the namespace table that was acknowledged since the last recovery.
    last_change: Option<(NamespaceId, u64)>,
    /// True while the medium may lie: a write that is durable may still be lost, so no older state is certainly gone.
    keeps_all: bool,
    /// The tick since which the medium is honest again, after a fault.
    honest_since: Option<u64>,
    /// The current size of a block.
    block_bytes: usize,
    /// Bytes of records that the device has room for, whatever happened before; 0 where nothing is known.
    room: u64,
}

impl DeviceChecker {
    /// Creates a checker for an empty device with these durability modes.
    #[must_use]
    pub fn new(durability: &[Durability; NAMESPACES]) -> Self {
        let space = |&durability: &Durability| KeySpace { durability, keys: BTreeMap::new() };
        let mut checker = Self {
            spaces: durability.iter().map(space).collect(),
            groups: WriteGroups::default(),
            commands_in_flight: BTreeMap::new(),
            tick: 0,
            next_group: INITIAL_GROUP,
            highest_acked: 0,
            highest_kept: 0,
            batches_shown: BTreeMap::new(),
            batches_lacked: BTreeMap::new(),
            change: None,
            last_change: None,
            keeps_all: false,
            honest_since: None,
            block_bytes: 0,
            room: 0,
        };
        checker.certain_group(NamespaceId::FIRST);
        checker
    }

    /// Notes keys that commands will name. A batch may clear a key that a later command names first, because only the keys
    /// that it names itself keep their order.
    pub fn expect_keys(&mut self, namespaces: u8, keys: impl Iterator<Item = Bytes>) {
        for key in keys {
            for number in 1..=namespaces {
                self.key(NamespaceId(number), &key);
            }
        }
    }

    /// Registers a command that the device accepted under this token; tokens increase.
    ///
    /// # Errors
    /// More commands are in flight than the limit.
    pub fn accepted(&mut self, token: u64, mut asked: CheckedCommand) -> Result<(), PromiseViolation> {
        self.tick += 1;
        asked.tick = self.tick;
        asked.highest_acked = self.highest_acked;
        let namespace = asked.namespace;
        if let CheckedKind::Write { group, keys, .. } = &mut asked.kind {
            self.next_group += 1;
            *group = self.next_group;
            let record = WriteGroup {
                namespaces: keys.iter().map(|one| one.namespace).chain([namespace]).collect(),
                submitted: self.tick,
                done: None,
                acked_at: None,
                certain: false,
                kept: false,
                sequence: 0,
                owns_sequence: false,
                settles: !asked.changes_table,
                writes: keys.iter().filter(|one| one.effect.is_some()).count(),
            };
            self.groups.insert(*group, record);
            if asked.changes_table {
                self.change = Some((namespace, *group));
            }
            for asked in keys.iter() {
                let Some(effect) = asked.effect else {
                    self.key(asked.namespace, &asked.key);
                    continue;
                };
                if effect.may_expire() {
                    let groups = std::mem::take(&mut self.groups);
                    self.key(asked.namespace, &asked.key).let_open_writes_expire(&groups);
                    self.groups = groups;
                }
                let write = KeyWrite {
                    group: *group,
                    effect,
                    sequence: None,
                    replaces: match asked.condition {
                        WriteCondition::IfSequence(Sequence(base)) => Some(base),
                        _ => None,
                    },
                };
                self.key(asked.namespace, &asked.key).writes.push(write);
            }
        } else if let CheckedKind::Read { key, .. } | CheckedKind::Exist { key, .. } = &asked.kind {
            self.key(namespace, key);
        }
        self.commands_in_flight.insert(token, asked);
        let (in_flight, limit) = (self.commands_in_flight.len(), OPERATIONS_MAX);
        if in_flight > limit {
            return Err(PromiseViolation::TooManyInFlight { in_flight, limit });
        }
        Ok(())
    }

    /// Checks a completion.
    ///
    /// # Errors
    /// The promise that it breaks.
    pub fn completed(
        &mut self,
        completion: &SsdCompletion,
        now: Nanos,
        wall: UnixMillis,
    ) -> Result<(), PromiseViolation> {
        let token = completion.token;
        let Some(asked) = self.commands_in_flight.remove(&token) else {
            return Err(PromiseViolation::UnexpectedCompletion { token });
        };
        self.tick += 1;
        let when = ObservationSpan { asked: asked.tick, wall_asked: asked.wall, wall_answered: wall };
        match &asked.kind {
            CheckedKind::Write { group, keys, alone, .. } => {
                self.write_completed((&asked, *group, keys), completion, now, when)?;
                if asked.changes_table {
                    self.last_change = self.change.take().filter(|_| completion.status.is_success());
                }
                if *alone && completion.status.is_success() {
                    self.learn_sequence(asked.namespace, &keys[0].key, *group, completion.sequence);
                    self.check_replaced(asked.namespace, &keys[0].key)?;
                }
            }
            CheckedKind::Read { key, range, release } => {
                let hash = self.hash_of_read((asked.namespace, key), *range, completion, when);
                self.read_completed((asked.namespace, key, *release), completion, hash, when)?;
            }
            CheckedKind::Exist { key, release } => {
                self.read_completed((asked.namespace, key, *release), completion, None, when)?;
            }
            CheckedKind::List => self.list_completed(asked.namespace, completion, when)?,
            CheckedKind::Flush | CheckedKind::Fence(_) if !completion.status.is_success() => {
                return Err(unexpected(completion));
            }
            CheckedKind::Flush => self.mark_kept(asked.namespace, |group| {
                group.acked_at.is_some() && group.done.is_some_and(|done| done < asked.tick)
            }),
            CheckedKind::Fence(up_to) => self.fence_completed(asked.namespace, *up_to),
            CheckedKind::Blocks { start, blocks } => {
                self.blocks_completed((asked.namespace, *start, blocks), completion, when)?;
            }
        }
        Ok(())
    }

    /// Retires a command that failed because the medium has no power: its writes may be present or not.
    ///
    /// # Errors
    /// The command is not in flight.
    pub fn failed(&mut self, token: u64) -> Result<(), PromiseViolation> {
        self.tick += 1;
        let asked = self.commands_in_flight.remove(&token);
        asked.map(drop).ok_or(PromiseViolation::UnexpectedCompletion { token })
    }

    /// Returns the number of commands accepted and not completed.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.commands_in_flight.len()
    }

    /// Checks an idle device: no command may be in flight.
    ///
    /// # Errors
    /// Commands were never completed.
    pub fn check_idle(&self) -> Result<(), PromiseViolation> {
        match self.commands_in_flight.first_key_value() {
            None => Ok(()),
            Some((&first, _)) => {
                Err(PromiseViolation::NeverCompleted { count: self.commands_in_flight.len(), first })
            }
        }
    }

    /// Applies an orderly shutdown: everything acknowledged is durable in every mode.
    pub fn shut_down(&mut self) {
        for group in self.groups.values_mut() {
            group.kept |= group.certain;
        }
    }

    /// Applies a power cut: commands in flight may have happened or not, and acknowledged writes that are not yet
    /// promised to be durable may be lost. `slack` is the time beyond its interval after which an acknowledged write
    /// must be durable: the media's own time.
    pub fn power_cut(&mut self, now: Nanos, slack: Nanos) {
        self.tick += 1;
        self.commands_in_flight.clear();
        for group in self.groups.values_mut() {
            let spaces = (1..).map(NamespaceId).zip(&self.spaces);
            for (_, space) in spaces.filter(|(namespace, _)| group.namespaces.contains(*namespace)) {
                if let (Durability::Interval(interval), Some(acked)) = (space.durability, group.acked_at) {
                    group.kept |= acked.after(interval).after(slack) <= now;
                }
            }
            group.certain &= group.kept;
        }
        // A sequence that was durable is never given out again, whatever becomes of its record.
        let kept = self.groups.values_mut().filter(|group| group.certain && group.owns_sequence);
        self.highest_kept = kept.map(|group| group.sequence).max().unwrap_or(0).max(self.highest_kept);
        self.highest_acked = self.highest_kept;
    }

    /// Returns the sequence of the key's record as far as a client has learnt it.
    #[must_use]
    pub fn known_sequence(&self, namespace: NamespaceId, key: &[u8]) -> Option<Sequence> {
        let history = self.space(namespace)?.keys.get(key)?;
        history.writes.iter().filter_map(|write| write.sequence).max().map(Sequence)
    }

    /// Returns every key that was ever used, for the check after a recovery.
    #[must_use]
    pub fn keys(&self) -> Vec<(NamespaceId, Bytes)> {
        let spaces = (1..).zip(&self.spaces);
        spaces
            .flat_map(|(number, space)| space.keys.keys().map(move |key| (NamespaceId(number), key.clone())))
            .collect()
    }

    fn space(&self, namespace: NamespaceId) -> Option<&KeySpace> {
        self.spaces.get(namespace.index())
    }

    fn key(&mut self, namespace: NamespaceId, key: &Bytes) -> &mut KeyHistory {
        let space = &mut self.spaces[namespace.index()];
        let number = space.keys.len();
        space.keys.entry(key.clone()).or_insert_with(|| KeyHistory {
            number,
            writes: vec![KeyWrite {
                group: INITIAL_GROUP,
                effect: WriteEffect::Delete,
                sequence: Some(0),
                replaces: None,
            }],
            past_values: Vec::new(),
        })
    }

    fn certain_group(&mut self, namespace: NamespaceId) -> u64 {
        let id = if self.groups.is_empty() { INITIAL_GROUP } else { self.next_group + 1 };
        self.next_group = id;
        let group = WriteGroup {
            namespaces: [namespace].into_iter().collect(),
            submitted: self.tick,
            done: Some(self.tick),
            acked_at: None,
            certain: true,
            kept: true,
            sequence: 0,
            owns_sequence: false,
            settles: true,
            writes: 1,
        };
        self.groups.insert(id, group);
        id
    }

    fn learn_sequence(&mut self, namespace: NamespaceId, key: &Bytes, group: u64, sequence: Sequence) {
        if sequence.0 == 0 {
            return;
        }
        let history = self.spaces[namespace.index()].keys.get_mut(key);
        let mut writes = history.into_iter().flat_map(|history| &mut history.writes);
        if let Some(write) = writes.find(|write| write.group == group) {
            write.sequence = Some(sequence.0);
        }
    }

    fn mark_kept(&mut self, namespace: NamespaceId, covered: impl Fn(&WriteGroup) -> bool) {
        for group in self.groups.values_mut() {
            if group.namespaces.contains(namespace) && covered(group) {
                group.kept = true;
            }
        }
    }

    fn fence_completed(&mut self, namespace: NamespaceId, up_to: Sequence) {
        let space = &self.spaces[namespace.index()];
        if space.durability != Durability::Always {
            return;
        }
        let writes = space.keys.values().flat_map(|history| &history.writes);
        let covered = writes.filter(|write| write.sequence.is_some_and(|sequence| sequence <= up_to.0));
        for write in covered {
            if let Some(group) = self.groups.get_mut(write.group) {
                group.kept |= group.certain;
            }
        }
    }
}

/// Returns the bytes of a payload. Simulated clients pass bytes inline; the simulator maps no client memory, and the checker
/// is asked about a received value with all of its bytes.
fn payload_bytes(value: &ValueSource) -> &[u8] {
    match value {
        ValueSource::Bytes(bytes) => bytes,
        ValueSource::Client(_) | ValueSource::Received { .. } => &[],
    }
}

fn unexpected(completion: &SsdCompletion) -> PromiseViolation {
    PromiseViolation::UnexpectedStatus { token: completion.token, status: completion.status }
}
