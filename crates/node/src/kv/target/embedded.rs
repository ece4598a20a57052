//! The embedded target: a device in this process, on the data directory of a stopped node.
//!
//! Input: batches. Output: commands to the device, results in order. Invariant: all commands of a batch are in flight
//! together, and the batch ends when the last of them has completed.

use super::{KeyValueRecord, KvError, KvRange, KvTarget, OnFound, OnStored, ScanCursor, StoreResult};
use crate::kv::pipeline::execute_all;
use bytes::Bytes;
use headwater_frontend::core_device::CoreDevice;
use headwater_host::clock::Clock;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    ListPosition, NamespaceId, ReadCaching, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion,
    WriteCondition,
};

const SCAN_KEYS: u32 = 1_000;

/// A device in this process.
pub struct EmbeddedTarget<D, G> {
    device: D,
    namespace: NamespaceId,
    clock: Clock,
    matches: PatternMatcher,
    /// The lock of the data directory, which must be held as long as the device exists.
    _guard: G,
}

impl<D, G> std::fmt::Debug for EmbeddedTarget<D, G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedTarget").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// A function that matches a key with a pattern, by the rules of the RESP front end.
pub type PatternMatcher = fn(pattern: &[u8], key: &[u8]) -> bool;

impl<D: CoreDevice, G> EmbeddedTarget<D, G> {
    /// Returns a target on an open device; `guard` is dropped after the device.
    pub fn new(device: D, namespace: NamespaceId, clock: Clock, matches: PatternMatcher, guard: G) -> Self {
        Self { device, namespace, clock, matches, _guard: guard }
    }

    fn execute(&mut self, commands: impl Iterator<Item = SsdCommand>) -> Result<Vec<SsdCompletion>, KvError> {
        execute_all(&mut self.device, &self.clock, self.namespace, commands)
            .map_err(|error| KvError::Device(error.to_string()))
    }

    fn presence(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<SsdCompletion>>, KvError> {
        let done = self.execute(keys.iter().map(|key| SsdCommand::Exist {
            key: Bytes::copy_from_slice(key),
            release: ReadRelease::WhenDurable,
        }))?;
        done.into_iter().map(existing).collect()
    }
}

impl<D: CoreDevice, G> KvTarget for EmbeddedTarget<D, G> {
    fn set(&mut self, records: &[KeyValueRecord], answer: OnStored<'_>) -> Result<(), KvError> {
        let done = self.execute(records.iter().map(|record| SsdCommand::Store {
            key: Bytes::copy_from_slice(&record.key),
            value: Bytes::copy_from_slice(&record.value).into(),
            condition: WriteCondition::Always,
            expiry: record.expiry_ms.map_or(RecordExpiry::Never, RecordExpiry::At),
        }))?;
        for (index, completion) in done.into_iter().enumerate() {
            let status = completion.status;
            answer(
                index,
                if status.is_success() {
                    StoreResult::Acknowledged
                } else {
                    StoreResult::Refused(status.to_string())
                },
            )?;
        }
        Ok(())
    }

    fn get(&mut self, keys: &[Vec<u8>], answer: OnFound<'_>) -> Result<(), KvError> {
        let done = self.execute(keys.iter().map(|key| {
            let (key, sink) = (Bytes::copy_from_slice(key), Vec::new().into());
            SsdCommand::retrieve_whole(key, sink, ReadRelease::WhenDurable)
        }))?;
        for (index, completion) in done.into_iter().enumerate() {
            answer(index, existing(completion)?.map(|completion| completion.sink))?;
        }
        Ok(())
    }

    fn get_range(&mut self, key: &[u8], range: KvRange) -> Result<Option<Vec<u8>>, KvError> {
        let command = SsdCommand::Retrieve {
            key: Bytes::copy_from_slice(key),
            sink: Vec::new().into(),
            offset: range.offset,
            bytes_max: range.bytes_max,
            caching: ReadCaching::ByLength,
            release: ReadRelease::WhenDurable,
        };
        let Some(done) = self.execute(std::iter::once(command))?.pop() else { return Ok(None) };
        Ok(existing(done)?.map(|completion| completion.sink))
    }

    fn expiry(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<u64>>, KvError> {
        let found = self.presence(keys)?;
        Ok(found.into_iter().map(|found| found.map(|found| found.expiry_ms).filter(|&at| at != 0)).collect())
    }

    fn del(&mut self, keys: &[Vec<u8>]) -> Result<u64, KvError> {
        let done = self.execute(keys.iter().map(|key| SsdCommand::Delete {
            key: Bytes::copy_from_slice(key),
            condition: WriteCondition::Always,
        }))?;
        let mut deleted = 0;
        for completion in done {
            deleted += u64::from(existing(completion)?.is_some());
        }
        Ok(deleted)
    }

    fn exists(&mut self, keys: &[Vec<u8>]) -> Result<Vec<bool>, KvError> {
        Ok(self.presence(keys)?.iter().map(Option::is_some).collect())
    }

    fn scan(
        &mut self,
        from: ScanCursor,
        pattern: Option<&[u8]>,
    ) -> Result<(Vec<Vec<u8>>, Option<ScanCursor>), KvError> {
        let list = SsdCommand::List { position: ListPosition(from.0), keys_max: SCAN_KEYS };
        let Some(done) = self.execute(std::iter::once(list))?.pop() else {
            return Ok((Vec::new(), None));
        };
        if !done.status.is_success() {
            return Err(refused(done.status));
        }
        let fits = |key: &[u8]| pattern.is_none_or(|pattern| (self.matches)(pattern, key));
        let keys = done.keys.into_iter().filter(|listed| fits(&listed.key)).map(|listed| listed.key.to_vec());
        Ok((keys.collect(), done.next_position.map(|next| ScanCursor(next.0))))
    }

    fn key_count(&mut self) -> Result<u64, KvError> {
        Ok(self.device.stats().keys.get(self.namespace.index()).copied().unwrap_or(0))
    }

    fn close(&mut self) -> Result<(), KvError> {
        self.device.shutdown(&self.clock).map_err(KvError::Device)
    }
}

/// Returns a successful completion, or `None` if the key does not exist.
fn existing(completion: SsdCompletion) -> Result<Option<SsdCompletion>, KvError> {
    match completion.status {
        status if status.is_success() => Ok(Some(completion)),
        Status::KEY_DOES_NOT_EXIST => Ok(None),
        status => Err(refused(status)),
    }
}

fn refused(status: Status) -> KvError {
    KvError::Device(format!("the device refused the command: {status}"))
}
