//! A model of the device: the contract of `submit` and `next_completion` over a `BTreeMap`.
//!
//! Input: commands. Output: one completion each, in an order shuffled by a seed within the contract: commands on one
//! key keep their order, a completion is returned only when the data it wrote or read is durable, and a refused command
//! has no effect.

use crate::model_limits::{check_limits, keys_of};
use crate::model_readers::{ModelReader, ModelReaders};
use headwater_frontend::core_device::{CoreDevice, CoreWork};
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, ListPosition, ListedKey, NamespaceId, ReadRelease, RecordExpiry, Sequence, SsdCommand,
    SsdCompletion, SubmitError, ValueSink, ValueSource, WriteCondition,
};
use headwater_ssd::engine::{DeviceStats, KeyedBatch};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Debug)]
struct ModelRecord {
    value: Vec<u8>,
    sequence: u64,
    expiry_ms: u64,
}

struct QueuedCommand {
    namespace: NamespaceId,
    token: u64,
    command: SsdCommand,
}

/// The treatment of reads of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelReads {
    /// They are carried out.
    Free,
    /// The next one is carried out; then every record is written again, and reads wait.
    OneMore,
    /// They wait.
    Held,
}

/// A model of the device.
pub(crate) struct KvDeviceModel {
    records: BTreeMap<(u8, Vec<u8>), ModelRecord>,
    deleted: BTreeMap<(u8, Vec<u8>), u64>,
    /// The values that are read in parts, with the bytes that were read.
    readers: ModelReaders,
    queue: VecDeque<QueuedCommand>,
    held: Vec<(u64, SsdCompletion)>,
    ready: VecDeque<SsdCompletion>,
    sequence: u64,
    durable: u64,
    /// Maximum number of commands in flight.
    pub(crate) in_flight_max: usize,
    /// Writes whose keys were hashed last.
    hashed: std::cell::Cell<usize>,
    /// True if another front end writes between the commands of this one.
    pub(crate) rewriting: bool,
    /// The treatment of reads of values.
    pub(crate) reads: ModelReads,
    /// True if a reader of a value ends when the value is replaced.
    pub(crate) gives_up_readers: bool,
    /// True if writes become durable over time.
    pub(crate) flushing: bool,
    /// The counter of expired keys.
    pub(crate) expired: u64,
    random: fastrand::Rng,
}

impl KvDeviceModel {
    pub(crate) fn new(seed: u64, in_flight_max: usize) -> Self {
        Self {
            records: BTreeMap::new(),
            deleted: BTreeMap::new(),
            readers: ModelReaders::default(),
            queue: VecDeque::new(),
            held: Vec::new(),
            ready: VecDeque::new(),
            sequence: 0,
            durable: 0,
            in_flight_max,
            hashed: std::cell::Cell::default(),
            rewriting: false,
            reads: ModelReads::Free,
            gives_up_readers: false,
            flushing: true,
            expired: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Returns the number of records written and removed.
    pub(crate) fn writes(&self) -> u64 {
        self.sequence
    }

    /// Makes the writes so far durable, and no later ones.
    pub(crate) fn flush_once(&mut self) {
        self.durable = self.sequence;
    }

    fn find(&mut self, namespace: NamespaceId, key: &[u8], wall: UnixMillis) -> Option<ModelRecord> {
        let full_key = (namespace.0, key.to_vec());
        let record = self.records.get(&full_key)?.clone();
        if record.expiry_ms != 0 && record.expiry_ms <= wall.0 {
            self.records.remove(&full_key);
            return None;
        }
        Some(record)
    }

    fn last_sequence(&self, namespace: NamespaceId, key: &[u8]) -> u64 {
        let full_key = (namespace.0, key.to_vec());
        self.records
            .get(&full_key)
            .map(|record| record.sequence)
            .max(self.deleted.get(&full_key).copied())
            .unwrap_or(0)
    }

    pub(crate) fn check(
        &mut self,
        namespace: NamespaceId,
        key: &[u8],
        condition: WriteCondition,
        wall: UnixMillis,
    ) -> Status {
        let record = self.find(namespace, key, wall);
        match (condition, record) {
            (WriteCondition::IfExists, None) => Status::KEY_DOES_NOT_EXIST,
            (WriteCondition::IfAbsent, Some(_)) => Status::KEY_EXISTS,
            (WriteCondition::IfSequence(_), None) => Status::SEQUENCE_MISMATCH,
            (WriteCondition::IfSequence(wanted), Some(record)) if record.sequence != wanted.0 => {
                Status::SEQUENCE_MISMATCH
            }
            _ => Status::SUCCESS,
        }
    }

    pub(crate) fn put(
        &mut self,
        namespace: NamespaceId,
        key: &[u8],
        value: &[u8],
        expiry: RecordExpiry,
        wall: UnixMillis,
    ) {
        let before = self.find(namespace, key, wall);
        self.sequence += 1;
        let expiry_ms = match expiry {
            RecordExpiry::Never => 0,
            RecordExpiry::At(at) => at,
            RecordExpiry::Keep => before.map_or(0, |record| record.expiry_ms),
        };
        let record = ModelRecord { value: value.to_vec(), sequence: self.sequence, expiry_ms };
        self.records.insert((namespace.0, key.to_vec()), record);
    }

    pub(crate) fn remove(&mut self, namespace: NamespaceId, key: &[u8]) {
        self.sequence += 1;
        self.records.remove(&(namespace.0, key.to_vec()));
        self.deleted.insert((namespace.0, key.to_vec()), self.sequence);
    }

    fn delete(
        &mut self,
        namespace: NamespaceId,
        key: &[u8],
        condition: WriteCondition,
        wall: UnixMillis,
    ) -> Status {
        let status = self.check(namespace, key, condition, wall);
        if status.is_success() && self.find(namespace, key, wall).is_none() {
            return Status::KEY_DOES_NOT_EXIST;
        }
        if status.is_success() {
            self.remove(namespace, key);
        }
        status
    }

    /// Executes a command; returns the completion and the sequence that must be durable before it is returned.
    fn execute(&mut self, submitted: QueuedCommand, wall: UnixMillis) -> (u64, SsdCompletion) {
        let namespace = submitted.namespace;
        let mut completion = SsdCompletion {
            token: submitted.token,
            status: Status::SUCCESS,
            value_bytes: 0,
            sequence: Sequence(0),
            expiry_ms: 0,
            position: 0,
            sink: Vec::new(),
            keys: Vec::new(),
            next_position: None,
        };
        let mut needs = 0;
        match submitted.command {
            SsdCommand::Store { key, value, condition, expiry } => {
                completion.status = self.check(namespace, &key, condition, wall);
                if completion.status.is_success() {
                    let ValueSource::Bytes(value) = value else {
                        panic!("the RESP front end lends no memory")
                    };
                    self.put(namespace, &key, &value, expiry, wall);
                    completion.sequence = Sequence(self.sequence);
                }
                needs = self.last_sequence(namespace, &key);
            }
            SsdCommand::Delete { key, condition } => {
                completion.status = self.delete(namespace, &key, condition, wall);
                if completion.status.is_success() {
                    completion.sequence = Sequence(self.sequence);
                }
                needs = self.last_sequence(namespace, &key);
            }
            SsdCommand::Retrieve { key, sink, offset, bytes_max, release, .. } => {
                completion.sink = owned(sink);
                self.read_record(namespace, &key, Some((offset, bytes_max)), wall, &mut completion);
                if release == ReadRelease::WhenDurable {
                    needs = self.last_sequence(namespace, &key);
                }
            }
            SsdCommand::Exist { key, release } => {
                self.read_record(namespace, &key, None, wall, &mut completion);
                if release == ReadRelease::WhenDurable {
                    needs = self.last_sequence(namespace, &key);
                }
            }
            SsdCommand::OpenValue { key, reader } => {
                self.open_value((namespace, &key), reader.number(), wall, &mut completion);
                needs = self.last_sequence(namespace, &key);
            }
            SsdCommand::ReadPart { reader, offset, sink, bytes_max } => {
                completion.sink = sink;
                let part = (offset as usize, bytes_max as usize);
                self.read_part(reader.number(), part, &mut completion);
            }
            batch @ (SsdCommand::Batch { .. } | SsdCommand::BatchAcross { .. }) => {
                self.batch(namespace, batch, wall, &mut completion);
                (needs, completion.sequence) = (self.sequence, Sequence(self.sequence));
            }
            SsdCommand::List { position: from, keys_max } => {
                self.list(namespace, from, keys_max, wall, &mut completion);
            }
            SsdCommand::Flush => needs = self.sequence,
            SsdCommand::Fence { up_to } => needs = up_to.0,
            SsdCommand::Clear => {
                self.clear(namespace);
                needs = self.sequence;
            }
            other => panic!("the RESP front end never submits {other:?}"),
        }
        (needs, completion)
    }

    /// Simulates another front end that stores a record again unchanged: same value, new sequence.
    fn rewrite_record(&mut self) {
        let count = self.records.len();
        if count > 0 && self.random.u8(..3) == 0 {
            let at = self.random.usize(..count);
            self.sequence += 1;
            if let Some(record) = self.records.values_mut().nth(at) {
                record.sequence = self.sequence;
            }
        }
    }

    pub(crate) fn clear(&mut self, namespace: NamespaceId) {
        self.sequence += 1;
        let sequence = self.sequence;
        let cleared: Vec<_> = self.records.keys().filter(|key| key.0 == namespace.0).cloned().collect();
        for key in cleared {
            self.records.remove(&key);
            self.deleted.insert(key, sequence);
        }
    }

    fn read_record(
        &mut self,
        namespace: NamespaceId,
        key: &[u8],
        part: Option<(u32, u32)>,
        wall: UnixMillis,
        completion: &mut SsdCompletion,
    ) {
        let Some(record) = self.find(namespace, key, wall) else {
            completion.status = Status::KEY_DOES_NOT_EXIST;
            return;
        };
        completion.value_bytes = u32::try_from(record.value.len()).unwrap();
        completion.sequence = Sequence(record.sequence);
        completion.expiry_ms = record.expiry_ms;
        if let Some((offset, bytes_max)) = part {
            let rest = record.value.iter().skip(offset as usize).take(bytes_max as usize);
            completion.sink.extend(rest);
        }
    }

    fn open_value(
        &mut self,
        (namespace, key): (NamespaceId, &[u8]),
        number: u64,
        wall: UnixMillis,
        completion: &mut SsdCompletion,
    ) {
        self.read_record(namespace, key, None, wall, completion);
        if completion.status.is_success() {
            let found = (namespace.0, key.to_vec());
            let value = self.records[&found].value.clone();
            self.readers.open(number, ModelReader::new(found, completion.sequence, value));
        }
    }

    fn read_part(&mut self, number: u64, part: (usize, usize), completion: &mut SsdCompletion) {
        let (records, gives_up) = (&self.records, self.gives_up_readers);
        let is_given_up = |read: &ModelReader| {
            gives_up && records.get(&read.key).map(|record| record.sequence) != Some(read.sequence.0)
        };
        match self.readers.read(number, part, is_given_up) {
            Some(part) => completion.sink.extend(part),
            None => completion.status = Status::SEQUENCE_MISMATCH,
        }
    }

    /// Returns keys in the order of a hash, so that the front end cannot depend on the meaning of a position.
    fn list(
        &mut self,
        namespace: NamespaceId,
        from: ListPosition,
        keys_max: u32,
        wall: UnixMillis,
        completion: &mut SsdCompletion,
    ) {
        let mut all: Vec<(u64, Vec<u8>, ModelRecord)> = self
            .records
            .iter()
            .filter(|(key, record)| {
                key.0 == namespace.0 && (record.expiry_ms == 0 || record.expiry_ms > wall.0)
            })
            .map(|(key, record)| (position_of(&key.1), key.1.clone(), record.clone()))
            .filter(|(position, _, _)| *position > from.0)
            .collect();
        all.sort_by_key(|(position, _, _)| *position);
        let more = all.len() > keys_max as usize;
        all.truncate(keys_max as usize);
        completion.next_position =
            if more { all.last().map(|(position, _, _)| ListPosition(*position)) } else { None };
        completion.keys = all
            .into_iter()
            .map(|(_, key, record)| ListedKey {
                key: key.into(),
                value_bytes: u32::try_from(record.value.len()).unwrap(),
                expiry_ms: record.expiry_ms,
            })
            .collect();
    }

    /// Returns true if the command at `at` may execute before the commands ahead of it in the queue.
    fn is_free(&self, at: usize) -> bool {
        let this = &self.queue[at];
        if self.reads == ModelReads::Held && matches!(this.command, SsdCommand::Retrieve { .. }) {
            return false;
        }
        self.queue.iter().take(at).all(|before| {
            let is_across = |queued: &QueuedCommand| matches!(queued.command, SsdCommand::BatchAcross { .. });
            before.namespace != this.namespace && !is_across(before) && !is_across(this)
                || match (keys_of(&before.command), keys_of(&this.command)) {
                    (Some(left), Some(right)) => !left.iter().any(|key| right.contains(key)),
                    _ => false,
                }
        })
    }
}

fn is_expired(record: &ModelRecord, wall: UnixMillis) -> bool {
    record.expiry_ms != 0 && record.expiry_ms <= wall.0
}

fn owned(sink: ValueSink) -> Vec<u8> {
    match sink {
        ValueSink::Bytes(bytes) => bytes,
        ValueSink::Client(_) => panic!("the RESP front end lends no memory"),
    }
}

fn position_of(key: &[u8]) -> u64 {
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(1)
}

impl CoreDevice for KvDeviceModel {
    fn submit(
        &mut self,
        _face: FrontEndId,
        namespace: NamespaceId,
        token: u64,
        command: SsdCommand,
    ) -> Result<(), SubmitError> {
        check_limits(&command).map_err(SubmitError::Refused)?;
        if !self.has_room(namespace, &command) {
            if let SsdCommand::ReadPart { sink, .. } = &command {
                assert_eq!(sink.capacity(), 0, "the buffer of a part is lost with the command");
            }
            return Err(SubmitError::Busy(self.in_flight_max));
        }
        self.queue.push_back(QueuedCommand { namespace, token, command });
        Ok(())
    }

    fn submit_batch(&mut self, of: FrontEndId, token: u64, all: KeyedBatch) -> Result<(), SubmitError> {
        assert_eq!(self.hashed.get(), all.writes().len(), "keys of a batch are left for the device to hash");
        self.submit(of, all.namespace(), token, SsdCommand::Batch { writes: all.into_writes() })
    }

    fn hash_keys(&self, batch: &mut KeyedBatch) {
        self.hashed.set(batch.writes().len());
    }

    fn has_room(&self, _namespace: NamespaceId, _command: &SsdCommand) -> bool {
        self.queue.len() + self.held.len() + self.ready.len() < self.in_flight_max
    }

    fn value_bytes(&self, namespace: NamespaceId, key: &[u8]) -> usize {
        self.records.get(&(namespace.0, key.to_vec())).map_or(0, |record| record.value.len())
    }

    fn batch_bytes_max(&self) -> usize {
        24 << 20
    }

    fn next_completion(&mut self, _face: FrontEndId) -> Option<SsdCompletion> {
        if self.ready.is_empty() {
            return None;
        }
        let at = self.random.usize(..self.ready.len());
        self.ready.remove(at)
    }
}

impl CoreWork for KvDeviceModel {
    fn poll(&mut self, _now: Nanos, wall: UnixMillis) -> bool {
        let moved = !self.queue.is_empty();
        let expired = self.records.iter().find(|(_, record)| is_expired(record, wall));
        if let Some(key) = expired.map(|(key, _)| key.clone()) {
            self.records.remove(&key);
        }
        for _ in 0..self.random.usize(1..=16) {
            let free: Vec<usize> = (0..self.queue.len()).filter(|&at| self.is_free(at)).collect();
            if free.is_empty() {
                break;
            }
            let at = free[self.random.usize(..free.len())];
            if self.rewriting {
                self.rewrite_record();
            }
            let submitted = self.queue.remove(at).unwrap();
            let is_read = matches!(submitted.command, SsdCommand::Retrieve { .. });
            let held = self.execute(submitted, wall);
            if is_read && self.reads == ModelReads::OneMore {
                self.reads = ModelReads::Held;
                self.sequence += 1;
                self.records.values_mut().for_each(|record| record.sequence = self.sequence);
            }
            self.held.push(held);
        }
        if self.flushing && self.random.bool() {
            self.durable = self.sequence;
        }
        let durable = self.durable;
        for (_, completion) in self.held.extract_if(.., |(needs, _)| *needs <= durable) {
            self.ready.push_back(completion);
        }
        moved || !self.ready.is_empty()
    }

    fn is_expiring(&self, wall: UnixMillis) -> bool {
        self.records.values().any(|record| is_expired(record, wall))
    }

    fn stats(&self) -> DeviceStats {
        let mut stats = DeviceStats { expired: self.expired, ..DeviceStats::default() };
        for key in self.records.keys() {
            stats.keys[usize::from(key.0) - 1] += 1;
        }
        stats
    }

    fn shutdown(&mut self, _clock: &Clock) -> Result<(), String> {
        self.flush_once();
        Ok(())
    }
}
