//! The long values that are on their way to the device.
//!
//! Input: submitted writes and their completions. Output: the length of the longest value that a key may have once they
//! are executed. The device knows the length of a value only when its write was executed; a read that is submitted
//! behind the write must be counted with the new length. Values within a connection's share are not counted.

use super::limits::REPLY_SHARE_BYTES;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_ssd::command::{BatchWrite, NamespaceId, SsdCommand};
use headwater_ssd::engine::KeyedBatch;
use std::collections::BTreeMap;

/// A long value that a command writes.
#[derive(Debug)]
pub(crate) struct LongValue {
    namespace: NamespaceId,
    key: Bytes,
    bytes: usize,
}

/// The writes of long values in flight.
#[derive(Debug, Default)]
pub(crate) struct LargeWrites {
    /// Lengths by key and the token of the write.
    lengths: BTreeMap<(NamespaceId, Bytes), Vec<(u64, usize)>>,
    /// Keys by token.
    keys: BTreeMap<u64, Vec<(NamespaceId, Bytes)>>,
}

impl LargeWrites {
    /// Returns the long values of a command, to be counted once it is submitted.
    #[inline]
    pub(crate) fn of(namespace: NamespaceId, command: &SsdCommand) -> Vec<LongValue> {
        match command {
            SsdCommand::Store { value, .. } if value.len() <= REPLY_SHARE_BYTES => Vec::new(),
            SsdCommand::Store { .. } | SsdCommand::Batch { .. } | SsdCommand::BatchAcross { .. } => {
                Self::of_write(namespace, command)
            }
            _ => Vec::new(),
        }
    }

    fn of_write(namespace: NamespaceId, command: &SsdCommand) -> Vec<LongValue> {
        match command {
            SsdCommand::Store { key, value, .. } => {
                vec![LongValue { namespace, key: key.clone(), bytes: value.len() }]
            }
            SsdCommand::Batch { writes } => Self::of_writes(namespace, writes),
            SsdCommand::BatchAcross { writes, runs } => {
                let firsts = std::iter::once(0).chain(runs.iter().map(|run| run.end));
                let runs = runs.iter().zip(firsts);
                runs.flat_map(|(run, first)| Self::of_writes(run.namespace, &writes[first..run.end]))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the long values of a batch, whose writes are visited only if there may be any.
    pub(crate) fn of_batch(batch: &KeyedBatch) -> Vec<LongValue> {
        if batch.value_bytes_max() <= REPLY_SHARE_BYTES {
            return Vec::new();
        }
        Self::of_writes(batch.namespace(), batch.writes())
    }

    fn of_writes(namespace: NamespaceId, writes: &[BatchWrite]) -> Vec<LongValue> {
        let long = writes.iter().filter_map(|write| match write {
            BatchWrite::Store { key, value, .. } if value.len() > REPLY_SHARE_BYTES => {
                Some(LongValue { namespace, key: key.clone(), bytes: value.len() })
            }
            _ => None,
        });
        long.collect()
    }

    /// Counts the long values of a submitted command.
    #[inline]
    pub(crate) fn begin(&mut self, token: u64, values: Vec<LongValue>) {
        for LongValue { namespace, key, bytes } in values {
            self.keys.entry(token).or_default().push((namespace, key.clone()));
            self.lengths.entry((namespace, key)).or_default().push((token, bytes));
        }
    }

    /// Forgets the values of a completed command.
    #[inline]
    pub(crate) fn end(&mut self, token: u64) {
        if self.keys.is_empty() {
            return;
        }
        for place in self.keys.remove(&token).unwrap_or_default() {
            if let Some(lengths) = self.lengths.get_mut(&place) {
                lengths.retain(|(write, _)| *write != token);
                if lengths.is_empty() {
                    self.lengths.remove(&place);
                }
            }
        }
    }

    /// Returns true if no long value is on its way.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns an upper bound of the bytes that a key's value will have when a command that is submitted now is executed.
    #[inline]
    pub(crate) fn value_bytes<S: CoreDevice>(
        &self,
        device: &S,
        namespace: NamespaceId,
        key: &Bytes,
    ) -> usize {
        device.value_bytes(namespace, key).max(self.longest(namespace, key))
    }

    /// Returns the length of the longest value that is being written to a key; 0 if there is none.
    #[inline]
    fn longest(&self, namespace: NamespaceId, key: &Bytes) -> usize {
        if self.lengths.is_empty() {
            return 0;
        }
        let lengths = self.lengths.get(&(namespace, key.clone()));
        lengths.and_then(|lengths| lengths.iter().map(|(_, length)| *length).max()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_ssd::command::{RecordExpiry, WriteCondition};

    fn store(key: &'static [u8], length: usize) -> SsdCommand {
        SsdCommand::Store {
            key: Bytes::from_static(key),
            value: vec![0; length].into(),
            condition: WriteCondition::Always,
            expiry: RecordExpiry::Never,
        }
    }

    #[test]
    fn longest_value_in_flight_is_known_until_its_write_completes() {
        let mut writes = LargeWrites::default();
        let (first, key) = (NamespaceId::FIRST, Bytes::from_static(b"k"));
        for (token, length) in [(1, 100_000), (2, 300_000), (3, 200_000), (4, REPLY_SHARE_BYTES)] {
            writes.begin(token, LargeWrites::of(first, &store(b"k", length)));
        }
        writes.begin(5, LargeWrites::of(NamespaceId(2), &store(b"k", 900_000)));
        assert_eq!(writes.longest(first, &key), 300_000);
        writes.end(2);
        assert_eq!(writes.longest(first, &key), 200_000);
        for token in [1, 3, 4, 5] {
            writes.end(token);
        }
        assert_eq!(writes.longest(NamespaceId(2), &key), 0);
        assert!(writes.lengths.is_empty() && writes.keys.is_empty());
    }
}
