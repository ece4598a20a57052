//! The keys of one namespace as the commands of a transaction see them: as read from the device, with the writes of the
//! transaction's earlier commands.
//!
//! Input: records read from the device, and the device commands of the transaction's commands, which are executed here at
//! once. Output: their completions, the keys that must be read first, and the batch that makes it all true.
//! Invariant: a command that needs a key that was not read finds no such key, and the run that did so is repeated.
//!
//! A clear (FLUSHDB) hides what the device has: from then on a key is there only if the transaction made it, so that no key
//! need be read, and the device is asked for no list. What was read before the clear stays a condition of the batch.

use super::transaction::WatchedKeys;
use bytes::Bytes;
use headwater_host::clock::UnixMillis;
use headwater_host::width::{narrow, to_usize};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchWrite, ListPosition, ListedKey, NamespaceId, RecordExpiry, Sequence, SsdCommand, SsdCompletion,
    SubmitError, ValueSink, ValueSource, WriteCondition,
};
use headwater_ssd::limits::{KEY_BYTES_MAX, LOG_VALUE_BYTES_MAX};
use std::collections::{BTreeMap, VecDeque};

/// The first sequence of the records that the transaction makes, far above those of a device.
const FIRST_OWN_SEQUENCE: u64 = 1 << 63;

/// The detail in which a command needs to know a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeyDetail {
    /// Its existence, length, sequence and expiry.
    Metadata,
    /// Its value too.
    Value,
}

/// A record that the device has, or that the transaction made.
#[derive(Clone, Debug)]
pub(crate) struct ViewRecord {
    /// The value; `None` if only the metadata was read.
    pub(crate) value: Option<Bytes>,
    pub(crate) value_bytes: u32,
    pub(crate) sequence: Sequence,
    /// Wall time in milliseconds at which it expires, 0 for never.
    pub(crate) expiry_ms: u64,
}

/// The view of a transaction.
#[derive(Debug)]
pub(crate) struct TransactionView {
    namespace: NamespaceId,
    wall: UnixMillis,
    /// Records as they were read from the device, `None` for a missing one.
    known: BTreeMap<Bytes, Option<ViewRecord>>,
    /// Records as the transaction made them, `None` for a removed one of the device.
    changed: BTreeMap<Bytes, Option<ViewRecord>>,
    /// True if the transaction has removed every key of the device.
    cleared: bool,
    wanted: BTreeMap<Bytes, KeyDetail>,
    completions: VecDeque<SsdCompletion>,
    own_sequences: u64,
    /// Bytes of values copied since the run began.
    copied: usize,
    /// The keys that a command lists, which the device must be asked for.
    listing: Option<KeyRange>,
    /// The keys of the device when they were counted last.
    device_keys: u64,
}

/// A part of the device's order of keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRange {
    pub(crate) position: ListPosition,
    pub(crate) keys_max: u32,
}

impl TransactionView {
    /// Creates a view in which no key is known.
    pub(crate) fn new(namespace: NamespaceId) -> Self {
        Self {
            namespace,
            wall: UnixMillis::default(),
            known: BTreeMap::new(),
            changed: BTreeMap::new(),
            cleared: false,
            wanted: BTreeMap::new(),
            completions: VecDeque::new(),
            own_sequences: 0,
            copied: 0,
            listing: None,
            device_keys: 0,
        }
    }

    /// Clears all changes: the commands are run from the first one again.
    pub(crate) fn begin_run(&mut self, wall: UnixMillis) {
        self.wall = wall;
        self.changed.clear();
        self.cleared = false;
        self.wanted.clear();
        self.completions.clear();
        self.own_sequences = 0;
        self.copied = 0;
        self.listing = None;
    }

    /// Returns true if a command of this run needed a key that was not read.
    pub(crate) fn is_incomplete(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Returns the bytes of values copied in this run.
    pub(crate) fn copied(&self) -> usize {
        self.copied
    }

    /// Returns the keys that the present command lists, if it waits for them.
    pub(crate) fn listing(&self) -> Option<KeyRange> {
        self.listing
    }

    /// Returns true if the transaction has removed every key of the device.
    pub(crate) fn is_cleared(&self) -> bool {
        self.cleared
    }

    /// Stores the number of keys of the device.
    pub(crate) fn count_device_keys(&mut self, keys: u64) {
        self.device_keys = keys;
    }

    /// Notes that each changed key must be known: a list or a number of keys depends on it.
    pub(crate) fn want_changed(&mut self) {
        if self.cleared {
            return;
        }
        for key in self.changed.keys().filter(|key| !self.known.contains_key(*key)) {
            self.wanted.entry(key.clone()).or_insert(KeyDetail::Metadata);
        }
    }

    fn is_alive(&self, record: Option<&ViewRecord>) -> bool {
        record.is_some_and(|record| record.expiry_ms == 0 || record.expiry_ms > self.wall.0)
    }

    /// Returns true if the device has a key, as far as is known.
    fn is_on_device(&self, key: &Bytes) -> bool {
        self.is_alive(self.known.get(key).and_then(Option::as_ref))
    }

    /// Returns the number of keys with the changes of the transaction.
    pub(crate) fn key_count(&self) -> u64 {
        if self.cleared {
            return self.changed.values().filter(|record| self.is_alive(record.as_ref())).count() as u64;
        }
        let changed = |made: bool| {
            let alike = |(key, record): &(&Bytes, &Option<ViewRecord>)| {
                self.is_alive(record.as_ref()) == made && self.is_on_device(key) != made
            };
            self.changed.iter().filter(alike).count() as u64
        };
        (self.device_keys + changed(true)).saturating_sub(changed(false))
    }

    /// Applies the changes to a list of the device's keys, which ends the wait of the command that lists them. Keys that
    /// the transaction made come with the first of them.
    pub(crate) fn finish_listing(&mut self, completion: &mut SsdCompletion) {
        let Some(range) = self.listing.take() else {
            unreachable!("keys were listed for a transaction that waits for none");
        };
        completion.keys.retain_mut(|listed| match self.changed.get(&listed.key) {
            // One that the device still has, and that had expired, comes with those that the transaction made.
            Some(Some(record)) => {
                listed.expiry_ms = record.expiry_ms;
                self.is_on_device(&listed.key)
            }
            Some(None) => false,
            None => true,
        });
        if range.position == ListPosition::START {
            self.list_made(completion);
        }
    }

    /// Adds the keys that the transaction made and the device has not.
    fn list_made(&self, completion: &mut SsdCompletion) {
        for (key, record) in &self.changed {
            if let Some(record) = record
                && (self.cleared || !self.is_on_device(key))
            {
                let (value_bytes, expiry_ms) = (record.value_bytes, record.expiry_ms);
                completion.keys.push(ListedKey { key: key.clone(), value_bytes, expiry_ms });
            }
        }
    }

    /// Takes the keys to read before the next run.
    pub(crate) fn take_wanted(&mut self) -> impl Iterator<Item = (Bytes, KeyDetail)> + use<> {
        std::mem::take(&mut self.wanted).into_iter()
    }

    /// Notes what the device has under a key.
    pub(crate) fn learn(&mut self, key: Bytes, record: Option<ViewRecord>) {
        self.known.insert(key, record);
    }

    /// Forgets everything; returns the keys that were known, to be read again.
    pub(crate) fn forget(&mut self) -> impl Iterator<Item = (Bytes, KeyDetail)> + use<> {
        let detail = |record: &Option<ViewRecord>| match record {
            Some(ViewRecord { value: None, .. }) => KeyDetail::Metadata,
            _ => KeyDetail::Value,
        };
        std::mem::take(&mut self.known).into_iter().map(move |(key, seen)| (key, detail(&seen)))
    }

    /// Returns the writes of the changes under the condition that every key read is unchanged, and checks of the other keys
    /// that were read. Keys that are watched are left out.
    pub(crate) fn writes(&self, watched: &WatchedKeys) -> impl Iterator<Item = BatchWrite> {
        let is_watched = |key: &Bytes| watched.keys.contains_key(&(self.namespace, key.clone()));
        let changed = self.changed.keys().filter(move |key| !is_watched(key)).map(|key| {
            let seen = self.known.get(key).map(|seen| seen.as_ref().map(|seen| seen.sequence));
            self.write(key, seen.map_or(WriteCondition::Always, unchanged))
        });
        let is_only_read = move |key: &Bytes| !is_watched(key) && !self.changed.contains_key(key);
        let read = self.known.iter().filter(move |(key, _)| is_only_read(key));
        changed.chain(
            read.map(|(key, seen)| self.write(key, unchanged(seen.as_ref().map(|seen| seen.sequence)))),
        )
    }

    /// Returns the part of the batch for one key.
    pub(crate) fn write(&self, key: &Bytes, condition: WriteCondition) -> BatchWrite {
        let key = key.clone();
        match self.changed.get(&key) {
            Some(Some(ViewRecord { value: Some(value), expiry_ms, .. })) => {
                let expiry = if *expiry_ms == 0 { RecordExpiry::Never } else { RecordExpiry::At(*expiry_ms) };
                BatchWrite::Store { key, value: value.clone(), condition, expiry }
            }
            Some(Some(_)) => unreachable!("a transaction made a record without a value"),
            // What the transaction made and removed again leaves nothing to remove.
            Some(None) if condition == WriteCondition::IfAbsent => BatchWrite::Check { key, condition },
            Some(None) => BatchWrite::Delete { key, condition },
            None => BatchWrite::Check { key, condition },
        }
    }

    fn find(&mut self, key: &Bytes, detail: KeyDetail) -> Option<ViewRecord> {
        let found = match (self.changed.get(key), self.known.get(key)) {
            (Some(made), _) => made.clone(),
            (None, _) if self.cleared => None,
            (None, Some(None)) => None,
            (None, Some(Some(read))) if detail == KeyDetail::Metadata || read.value.is_some() => {
                Some(read.clone())
            }
            _ => {
                let wanted = self.wanted.entry(key.clone()).or_insert(detail);
                *wanted = detail.max(*wanted);
                None
            }
        };
        found.filter(|found| found.expiry_ms == 0 || found.expiry_ms > self.wall.0)
    }

    fn check(&mut self, key: &Bytes, condition: WriteCondition) -> Status {
        if condition == WriteCondition::Always {
            return Status::SUCCESS;
        }
        match (condition, self.find(key, KeyDetail::Metadata)) {
            (WriteCondition::IfExists, None) => Status::KEY_DOES_NOT_EXIST,
            (WriteCondition::IfAbsent, Some(_)) => Status::KEY_EXISTS,
            (WriteCondition::IfSequence(wanted), found)
                if found.as_ref().map(|found| found.sequence) != Some(wanted) =>
            {
                Status::SEQUENCE_MISMATCH
            }
            _ => Status::SUCCESS,
        }
    }

    fn put(&mut self, key: Bytes, value: Bytes, expiry: RecordExpiry) {
        let expiry_ms = match expiry {
            RecordExpiry::Never => 0,
            RecordExpiry::At(at) => at,
            RecordExpiry::Keep => self.find(&key, KeyDetail::Metadata).map_or(0, |found| found.expiry_ms),
        };
        let record = ViewRecord {
            value_bytes: narrow(value.len()),
            value: Some(value),
            sequence: Sequence(FIRST_OWN_SEQUENCE + self.own_sequences),
            expiry_ms,
        };
        self.own_sequences += 1;
        self.changed.insert(key, Some(record));
    }

    fn remove(&mut self, key: Bytes) {
        if self.cleared {
            // The clear removes what the device has.
            self.changed.remove(&key);
        } else {
            self.changed.insert(key, None);
        }
    }

    fn clear(&mut self) {
        self.changed.clear();
        self.cleared = true;
    }

    fn read(&mut self, key: &Bytes, detail: KeyDetail, completion: &mut SsdCompletion) -> Option<Bytes> {
        let Some(found) = self.find(key, detail) else {
            completion.status = Status::KEY_DOES_NOT_EXIST;
            return None;
        };
        completion.value_bytes = found.value_bytes;
        completion.sequence = found.sequence;
        completion.expiry_ms = found.expiry_ms;
        found.value
    }

    fn batch_of_command(&mut self, writes: Vec<BatchWrite>, completion: &mut SsdCompletion) {
        for (position, write) in (0..).zip(&writes) {
            let (BatchWrite::Store { key, condition, .. }
            | BatchWrite::Delete { key, condition }
            | BatchWrite::Check { key, condition }) = write;
            completion.status = self.check(key, *condition);
            if !completion.status.is_success() {
                completion.position = position;
                return;
            }
        }
        for write in writes {
            match write {
                BatchWrite::Store { key, value, expiry, .. } => self.put(key, value, expiry),
                BatchWrite::Delete { key, .. } => self.remove(key),
                BatchWrite::Check { .. } => {}
            }
        }
    }

    /// Takes a device command: its completion is there at once, unless it lists keys of the device.
    ///
    /// # Errors
    /// The command can never succeed.
    pub(crate) fn submit(&mut self, token: u64, command: SsdCommand) -> Result<(), SubmitError> {
        if let SsdCommand::List { position, keys_max } = command
            && !self.cleared
        {
            self.listing = Some(KeyRange { position, keys_max });
            return Ok(());
        }
        let completion = self.execute(command).map_err(SubmitError::Refused)?;
        self.completions.push_back(SsdCompletion { token, ..completion });
        Ok(())
    }

    /// Takes the next completion.
    pub(crate) fn next_completion(&mut self) -> Option<SsdCompletion> {
        self.completions.pop_front()
    }

    /// Returns the length of a key's value as far as is known, 0 if there is no such key.
    pub(crate) fn value_bytes(&self, key: &[u8]) -> usize {
        let of_device = || self.known.get(key).filter(|_| !self.cleared);
        let record = self.changed.get(key).or_else(of_device).and_then(Option::as_ref);
        record.map_or(0, |record| to_usize(record.value_bytes.into()))
    }

    /// Executes a device command.
    ///
    /// # Errors
    /// The status of the limit that the command exceeds.
    pub(crate) fn execute(&mut self, command: SsdCommand) -> Result<SsdCompletion, Status> {
        let mut completion = SsdCompletion::new(0, Status::SUCCESS);
        match command {
            SsdCommand::Retrieve { key, sink, offset, bytes_max, .. } => {
                check_key(&key)?;
                let (ValueSink::Bytes(mut sink), value) =
                    (sink, self.read(&key, KeyDetail::Value, &mut completion))
                else {
                    unreachable!("a RESP client lends no memory")
                };
                if let Some(value) = value {
                    let rest = value.get(to_usize(offset.into())..).unwrap_or_default();
                    let length = rest.len().min(to_usize(bytes_max.into()));
                    self.copied += length;
                    sink.extend_from_slice(&rest[..length]);
                }
                completion.sink = sink;
            }
            SsdCommand::Exist { key, .. } => {
                check_key(&key)?;
                self.read(&key, KeyDetail::Metadata, &mut completion);
            }
            SsdCommand::Store { key, value: ValueSource::Bytes(value), condition, expiry } => {
                check_key(&key)?;
                check_value(&value)?;
                completion.status = self.check(&key, condition);
                if completion.status.is_success() {
                    self.put(key, value, expiry);
                }
            }
            SsdCommand::Delete { key, condition } => {
                check_key(&key)?;
                completion.status = self.check(&key, condition);
                if completion.status.is_success() && self.find(&key, KeyDetail::Metadata).is_none() {
                    completion.status = Status::KEY_DOES_NOT_EXIST;
                }
                if completion.status.is_success() {
                    self.remove(key);
                }
            }
            SsdCommand::Batch { writes } => {
                for write in &writes {
                    check_key(write.key())?;
                    if let BatchWrite::Store { value, .. } = write {
                        check_value(value)?;
                    }
                }
                self.batch_of_command(writes, &mut completion);
            }
            // All keys come with the first part.
            SsdCommand::List { position: ListPosition::START, .. } => self.list_made(&mut completion),
            SsdCommand::List { .. } => {}
            SsdCommand::Clear => self.clear(),
            // What it waits for is covered by the batch of the whole transaction.
            SsdCommand::Fence { .. } => {}
            _ => return Err(Status::INVALID_OPCODE),
        }
        Ok(completion)
    }
}

/// Returns the condition that a key is as it was seen.
pub(crate) fn unchanged(seen: Option<Sequence>) -> WriteCondition {
    seen.map_or(WriteCondition::IfAbsent, WriteCondition::IfSequence)
}

fn check_key(key: &Bytes) -> Result<(), Status> {
    if (1..=KEY_BYTES_MAX).contains(&key.len()) { Ok(()) } else { Err(Status::INVALID_KEY_SIZE) }
}

fn check_value(value: &Bytes) -> Result<(), Status> {
    if value.len() <= LOG_VALUE_BYTES_MAX { Ok(()) } else { Err(Status::INVALID_VALUE_SIZE) }
}
