//! The clients' workload: a seeded stream of commands.
//!
//! Input: a seed, a mixture, the wall time, and the sequence of a key's record as far as the client has learnt it.
//! Output: legal commands, with keys from a small set so that they conflict, and values whose bytes differ between
//! writes.
//! Invariant: the same seed and the same completions give the same stream.

mod reads;
#[cfg(test)]
mod tests;

use crate::value_pattern::ValuePattern;
use bytes::Bytes;
use headwater_host::clock::UnixMillis;
use headwater_host::width::to_usize;
use headwater_ssd::command::{
    BatchClear, BatchWrite, ListPosition, NamespaceId, NamespaceRun, ReadRelease, RecordExpiry, Sequence,
    SsdCommand, WriteCondition,
};
use headwater_ssd::limits::BATCH_RUNS_MAX;
use std::ops::Range;

/// Usual lengths of values that are longer than a block.
pub const CHAINED_BYTES: Range<usize> = 280_000..320_000;

/// Usual maximum of the writes of one batch.
pub const BATCH_WRITES: usize = 6;

/// The mixture of commands, keys and values.
#[derive(Clone, Debug)]
pub struct WorkloadConfig {
    /// Number of namespaces used, from the first.
    pub namespaces: u8,
    /// Number of keys of each namespace.
    pub keys: u32,
    /// Longest ordinary value in bytes.
    pub value_bytes_max: usize,
    /// The lengths of ordinary values.
    pub lengths: ValueLengths,
    /// One in this many values of the first two keys is longer than a block; 0 for never.
    pub chained_every: u32,
    /// Lengths of these values.
    pub chained_bytes: Range<usize>,
    /// Shares of the commands.
    pub shares: CommandShares,
    /// The use of record lifetimes.
    pub expiry: FeatureUse,
    /// The use of conditions on writes.
    pub conditions: FeatureUse,
    /// The use of checks in batches.
    pub checks: FeatureUse,
    /// The use of reads of any part of a value, also behind its end, and of reads whose pages stay in device DRAM. The values
    /// have a pattern then, by which the checker knows each part.
    pub parts: FeatureUse,
    /// The use of batches over several namespaces.
    pub across: FeatureUse,
    /// The use of clears by batches over several namespaces.
    pub batch_clears: FeatureUse,
    /// Most writes of one batch.
    pub batch_writes_max: usize,
}

/// The lengths of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueLengths {
    /// Any length up to the maximum.
    Drawn,
    /// All values are as long as the maximum, so that records of two lives of a block lie in the same places.
    Same,
}

/// The use of a feature by the clients of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureUse {
    /// Some commands use it.
    Some,
    /// Most commands use it.
    Most,
    /// No command uses it.
    Never,
}

/// Shares of the commands; only their ratios count.
#[derive(Clone, Copy, Debug)]
pub struct CommandShares {
    /// Stores of one key.
    pub store: u32,
    /// Retrieves.
    pub retrieve: u32,
    /// Exists.
    pub exist: u32,
    /// Deletes.
    pub delete: u32,
    /// All-or-nothing batches.
    pub batch: u32,
    /// Lists.
    pub list: u32,
    /// Flushes.
    pub flush: u32,
    /// Fences.
    pub fence: u32,
    /// Clears of a whole namespace.
    pub clear: u32,
}

impl CommandShares {
    /// Half writes, and some of every kind of command.
    pub const MIXED: Self = Self {
        store: 400,
        retrieve: 250,
        exist: 40,
        delete: 100,
        batch: 80,
        list: 15,
        flush: 20,
        fence: 10,
        clear: 2,
    };
}

/// One command for one namespace.
#[derive(Debug)]
pub struct WorkloadRequest {
    /// The namespace that it is for.
    pub namespace: NamespaceId,
    /// The command.
    pub command: SsdCommand,
}

/// A seeded stream of requests.
#[derive(Debug)]
pub struct CommandStream {
    rng: fastrand::Rng,
    /// Draws the parts of values that are read, so that a seed keeps its other commands.
    ranges: fastrand::Rng,
    config: WorkloadConfig,
    batch_bytes_max: usize,
    keys: Vec<Bytes>,
}

/// The lookup of the sequence of a key's record, as far as the client has learnt it.
pub type KnownSequence<'a> = &'a dyn Fn(NamespaceId, &[u8]) -> Option<Sequence>;

impl CommandStream {
    /// Creates a stream from a seed, whose batches have at most `batch_bytes_max` [`bytes`](BatchWrite::bytes).
    #[must_use]
    pub fn new(seed: u64, config: WorkloadConfig, batch_bytes_max: usize) -> Self {
        let keys = (0..config.keys.max(1)).map(key_bytes).collect();
        let [rng, ranges] = [seed, seed ^ 0x7061_7274].map(fastrand::Rng::with_seed);
        Self { rng, ranges, config, batch_bytes_max, keys }
    }

    /// Returns the next request.
    pub fn next(&mut self, wall: UnixMillis, known: KnownSequence<'_>) -> WorkloadRequest {
        let namespace = self.any_namespace();
        let shares = self.config.shares;
        let kinds = [
            shares.store,
            shares.retrieve,
            shares.exist,
            shares.delete,
            shares.batch,
            shares.list,
            shares.flush,
            shares.fence,
            shares.clear,
        ];
        let command = match self.pick(&kinds) {
            0 => self.store(namespace, wall, known),
            1 => self.retrieve(),
            2 => SsdCommand::Exist { key: self.any_key().1, release: self.release() },
            3 => {
                let key = self.any_key().1;
                let condition = self.delete_condition(namespace, &key, known);
                SsdCommand::Delete { key, condition }
            }
            4 if self.config.across == FeatureUse::Some && self.rng.u8(0..4) > 0 => {
                return self.batch_across(wall, known);
            }
            4 => self.batch(namespace, wall, known),
            5 => SsdCommand::List {
                position: if self.rng.bool() { ListPosition::START } else { ListPosition(self.rng.u64(..)) },
                keys_max: self.rng.u32(1..=64),
            },
            6 => SsdCommand::Flush,
            7 => {
                let key = self.any_key().1;
                let up_to = known(namespace, &key).unwrap_or_default();
                SsdCommand::Fence { up_to }
            }
            _ => SsdCommand::Clear,
        };
        WorkloadRequest { namespace, command }
    }

    fn pick(&mut self, shares: &[u32]) -> usize {
        let mut roll = self.rng.u32(0..shares.iter().sum::<u32>().max(1));
        for (index, &share) in shares.iter().enumerate() {
            if roll < share {
                return index;
            }
            roll -= share;
        }
        0
    }

    fn any_namespace(&mut self) -> NamespaceId {
        NamespaceId(self.rng.u8(1..=self.config.namespaces.max(1)))
    }

    fn any_key(&mut self) -> (u32, Bytes) {
        // A few keys are used often, so that commands in flight conflict.
        let keys = self.config.keys.max(1);
        let number =
            if self.rng.u8(0..4) == 0 { self.rng.u32(0..keys.div_ceil(8)) } else { self.rng.u32(0..keys) };
        (number, self.key(number))
    }

    fn key(&self, number: u32) -> Bytes {
        self.keys[number as usize].clone()
    }

    fn store(&mut self, namespace: NamespaceId, wall: UnixMillis, known: KnownSequence<'_>) -> SsdCommand {
        let (number, key) = self.any_key();
        let condition = match self.rng.u8(0..16) {
            _ if self.config.conditions == FeatureUse::Never => WriteCondition::Always,
            0 => WriteCondition::IfExists,
            1 => WriteCondition::IfAbsent,
            2 | 3 => WriteCondition::IfSequence(known(namespace, &key).unwrap_or(Sequence(1))),
            4 => WriteCondition::IfSequence(Sequence(self.rng.u64(1..1_000))),
            _ => WriteCondition::Always,
        };
        SsdCommand::Store { value: self.value(number).into(), expiry: self.expiry(wall), key, condition }
    }

    fn delete_condition(
        &mut self,
        namespace: NamespaceId,
        key: &[u8],
        known: KnownSequence<'_>,
    ) -> WriteCondition {
        match self.rng.u8(0..8) {
            _ if self.config.conditions == FeatureUse::Never => WriteCondition::Always,
            0 => WriteCondition::IfSequence(known(namespace, key).unwrap_or(Sequence(1))),
            1 => WriteCondition::IfExists,
            _ => WriteCondition::Always,
        }
    }

    fn release(&mut self) -> ReadRelease {
        if self.rng.u8(0..12) == 0 { ReadRelease::Speculative } else { ReadRelease::WhenDurable }
    }

    fn batch(&mut self, namespace: NamespaceId, wall: UnixMillis, known: KnownSequence<'_>) -> SsdCommand {
        let mut numbers = Vec::new();
        let length = self.rng.usize(2..=self.config.batch_writes_max.max(2));
        while numbers.len() < length.min(self.config.keys as usize) {
            let (number, _) = self.any_key();
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
        // Most batches have no condition: a failed batch leaves nothing to check.
        let conditions = self.rng.u8(0..4) == 0 && self.config.conditions == FeatureUse::Some;
        let mut writes = Vec::new();
        for number in numbers {
            writes.push(self.batch_write((namespace, number), conditions, wall, known));
        }
        if self.config.checks == FeatureUse::Some {
            self.add_checks(&mut writes, namespace, known);
        }
        shorten(&mut writes, self.batch_bytes_max);
        SsdCommand::Batch { writes }
    }

    /// Returns a write of a key; some writes have conditions if any of their batch may.
    fn batch_write(
        &mut self,
        (namespace, number): (NamespaceId, u32),
        conditions: bool,
        wall: UnixMillis,
        known: KnownSequence<'_>,
    ) -> BatchWrite {
        let key = self.key(number);
        let condition = match (conditions, self.rng.u8(0..6)) {
            (true, 0) => WriteCondition::IfExists,
            (true, 1) => WriteCondition::IfAbsent,
            (true, 2) => WriteCondition::IfSequence(known(namespace, &key).unwrap_or(Sequence(1))),
            _ => WriteCondition::Always,
        };
        if self.rng.u8(0..5) == 0 {
            let condition =
                if condition == WriteCondition::IfAbsent { WriteCondition::Always } else { condition };
            return BatchWrite::Delete { key, condition };
        }
        let (value, expiry) = (self.value(number), self.expiry(wall));
        BatchWrite::Store { key, value, condition, expiry }
    }

    /// Makes a batch clear a namespace: one that it writes to, or any.
    fn add_clears(&mut self, runs: &mut Vec<NamespaceRun>) {
        if self.rng.u8(0..3) == 0 && runs.len() < BATCH_RUNS_MAX {
            runs.insert(0, NamespaceRun { namespace: self.any_namespace(), end: 0, clear: BatchClear::No });
        }
        runs[0].clear = BatchClear::BeforeWrites;
    }

    /// Returns a batch over several namespaces, some in one run each, some in many.
    fn batch_across(&mut self, wall: UnixMillis, known: KnownSequence<'_>) -> WorkloadRequest {
        let keys = to_usize(u64::from(self.config.keys)) * usize::from(self.config.namespaces);
        let length = self.rng.usize(2..=self.config.batch_writes_max.max(2)).min(keys);
        let mut places: Vec<(NamespaceId, u32)> = Vec::new();
        while places.len() < length {
            let place = (self.any_namespace(), self.any_key().0);
            if !places.contains(&place) {
                places.push(place);
            }
        }
        if places.len() > BATCH_RUNS_MAX || self.rng.bool() {
            places.sort_by_key(|(namespace, _)| *namespace);
        }
        let conditions = self.rng.u8(0..4) == 0 && self.config.conditions == FeatureUse::Some;
        let (mut writes, mut runs) = (Vec::new(), Vec::<NamespaceRun>::new());
        for (namespace, number) in places {
            writes.push(if self.rng.u8(0..10) == 0 {
                let key = self.key(number);
                let seen = known(namespace, &key);
                let condition = seen.map_or(WriteCondition::IfAbsent, WriteCondition::IfSequence);
                BatchWrite::Check { key, condition }
            } else {
                self.batch_write((namespace, number), conditions, wall, known)
            });
            match runs.last_mut() {
                Some(run) if run.namespace == namespace => run.end = writes.len(),
                _ => runs.push(NamespaceRun { namespace, end: writes.len(), clear: BatchClear::No }),
            }
        }
        shorten(&mut writes, self.batch_bytes_max);
        if self.config.batch_clears == FeatureUse::Some && self.rng.u8(0..4) == 0 {
            self.add_clears(&mut runs);
        }
        let namespace = runs.first().map_or(NamespaceId::FIRST, |run| run.namespace);
        WorkloadRequest { namespace, command: SsdCommand::BatchAcross { writes, runs } }
    }

    /// Makes half of the batches check keys that they do not write, as an EXEC with watched keys does: most checks name the
    /// sequence that was seen last, some one that no record has.
    fn add_checks(&mut self, writes: &mut Vec<BatchWrite>, namespace: NamespaceId, known: KnownSequence<'_>) {
        if self.rng.bool() {
            return;
        }
        for _ in 0..self.rng.usize(1..=2) {
            let (_, key) = self.any_key();
            if writes.iter().any(|write| write.key() == &key) {
                continue;
            }
            let condition = match (self.rng.u8(0..8), known(namespace, &key)) {
                (0, _) => WriteCondition::IfSequence(Sequence(self.rng.u64(1..1_000))),
                (1, _) => WriteCondition::IfExists,
                (_, Some(sequence)) => WriteCondition::IfSequence(sequence),
                (_, None) => WriteCondition::IfAbsent,
            };
            let at = self.rng.usize(0..=writes.len());
            writes.insert(at, BatchWrite::Check { key, condition });
        }
    }

    fn expiry(&mut self, wall: UnixMillis) -> RecordExpiry {
        match self.rng.u8(0..24) {
            _ if self.config.expiry == FeatureUse::Never => RecordExpiry::Never,
            0..20 if self.config.expiry == FeatureUse::Most => RecordExpiry::At(wall.0 + self.rng.u64(1..50)),
            0 => RecordExpiry::Keep,
            1 => RecordExpiry::At(wall.0 + self.rng.u64(1..50)),
            2 => RecordExpiry::At(wall.0 + self.rng.u64(50..5_000)),
            3 => RecordExpiry::At(wall.0 + 10_000_000),
            _ => RecordExpiry::Never,
        }
    }

    fn value(&mut self, key_number: u32) -> Bytes {
        let longest = self.config.value_bytes_max.max(1);
        let every = self.config.chained_every;
        let length = match self.rng.u8(0..20) {
            _ if key_number < 2 && every > 0 && self.rng.u32(0..every) == 0 => {
                self.rng.usize(self.config.chained_bytes.clone())
            }
            _ if self.config.lengths == ValueLengths::Same => longest,
            0 => 0,
            1..=8 => self.rng.usize(0..100),
            9..=13 => self.rng.usize(0..1_500),
            14 => self.rng.usize(3_900..4_200),
            _ => self.rng.usize(0..=longest),
        };
        let mut value = vec![0; length.min(longest.max(self.config.chained_bytes.end))];
        self.rng.fill(&mut value);
        if self.config.parts != FeatureUse::Never
            && let Some(number) = value.first_chunk()
        {
            ValuePattern::new(u64::from_le_bytes(*number)).fill(&mut value);
        }
        Bytes::from(value)
    }
}

/// Shortens the values of a batch, from the last, until it has at most `bytes_max`.
fn shorten(writes: &mut [BatchWrite], bytes_max: usize) {
    let mut excess = writes.iter().map(BatchWrite::bytes).sum::<usize>().saturating_sub(bytes_max);
    for write in writes.iter_mut().rev() {
        if let BatchWrite::Store { value, .. } = write {
            let cut = excess.min(value.len());
            value.truncate(value.len() - cut);
            excess -= cut;
        }
    }
}

/// Returns the bytes of the key with this number: most are short, some longer than a ring's inline key, a few longer
/// than a page.
#[must_use]
pub fn key_bytes(number: u32) -> Bytes {
    let mut key = format!("key-{number}").into_bytes();
    let length = match number % 16 {
        7 => 33,
        11 => 300,
        13 if number == 13 => 5_000,
        _ => key.len(),
    };
    key.resize(length.max(key.len()), b'.');
    Bytes::from(key)
}
