//! Reads of parts of values, as observations of whole values.
//!
//! Input: the range that a read asked for, and its completion. Output: the hash of the only value of the key that has these bytes
//! at this place, if the model knows it. Invariant: bytes that no value of the key ever had there are the observation of a value
//! that was never written.

use super::keys::WriteEffect;
use super::{DeviceChecker, ValueFingerprint};
use bytes::Bytes;
use headwater_host::width::to_usize;
use headwater_ssd::command::{NamespaceId, SsdCompletion};

/// The range of a value that a read asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadRange {
    pub(super) offset: u32,
    pub(super) bytes_max: u32,
}

impl DeviceChecker {
    /// Returns the hash of the value that a read saw; `None` if its bytes do not tell.
    pub(super) fn hash_of_read(
        &self,
        (namespace, key): (NamespaceId, &Bytes),
        range: ReadRange,
        completion: &SsdCompletion,
    ) -> Option<u64> {
        let own = ValueFingerprint::of(&completion.sink).hash;
        if range.offset == 0 && completion.value_bytes <= range.bytes_max {
            return Some(own);
        }
        // No value has this hash, neither the one that was asked for nor the bytes that came.
        let never_written = Some(!own);
        let wanted = completion.value_bytes.saturating_sub(range.offset).min(range.bytes_max);
        if completion.sink.len() != to_usize(u64::from(wanted)) {
            return never_written;
        }
        if wanted == 0 {
            return None;
        }
        let history = self.space(namespace)?.keys.get(key)?;
        let written = history.writes.iter().filter_map(|write| match write.effect {
            WriteEffect::Store(value, _) => Some(value),
            WriteEffect::Delete => None,
        });
        let offset = to_usize(u64::from(range.offset));
        let explains = |value: &ValueFingerprint| {
            value.bytes == completion.value_bytes
                && value.pattern.is_none_or(|pattern| pattern.matches(offset, &completion.sink))
        };
        let all = written.chain(history.past_values.iter().copied());
        let mut hashes: Vec<u64> = all.filter(explains).map(|value| value.hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        match hashes[..] {
            [] => never_written,
            [hash] => Some(hash),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checker::PromiseViolation;
    use crate::value_pattern::ValuePattern;
    use headwater_host::clock::{Nanos, UnixMillis};
    use headwater_nvme::spec::status::Status;
    use headwater_ssd::command::{
        ReadCaching, ReadRelease, RecordExpiry, Sequence, SsdCommand, WriteCondition,
    };
    use headwater_ssd::engine::DeviceConfig;

    const WALL: UnixMillis = UnixMillis(1_000);
    const BYTES: usize = 10_000;
    /// The numbers of the values of the key, the older one first.
    const NUMBERS: [u64; 2] = [10, 20];

    fn key() -> Bytes {
        Bytes::from_static(b"key")
    }

    fn value(number: u64) -> Vec<u8> {
        let mut value = vec![0; BYTES];
        ValuePattern::new(number).fill(&mut value);
        value
    }

    fn run(
        checker: &mut DeviceChecker,
        command: &SsdCommand,
        completion: &SsdCompletion,
    ) -> Result<(), PromiseViolation> {
        let asked = checker.prepare(NamespaceId::FIRST, command, WALL);
        checker.accepted(completion.token, asked)?;
        checker.completed(completion, Nanos::ZERO, WALL)
    }

    /// Returns true if a read of a part of the newer value may return these bytes.
    fn is_explained(offset: u32, bytes_max: u32, sink: &[u8]) -> bool {
        let mut checker = DeviceChecker::new(&DeviceConfig::default().durability);
        for (token, number) in (1..).zip(NUMBERS) {
            let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
            let store = SsdCommand::Store { key: key(), value: value(number).into(), condition, expiry };
            let sequence = Sequence(token);
            let stored = SsdCompletion { sequence, ..SsdCompletion::new(token, Status::SUCCESS) };
            run(&mut checker, &store, &stored).unwrap();
        }
        let (caching, release) = (ReadCaching::Keep, ReadRelease::WhenDurable);
        let target = Vec::new().into();
        let read = SsdCommand::Retrieve { key: key(), sink: target, offset, bytes_max, caching, release };
        let completion = SsdCompletion {
            value_bytes: 10_000,
            sequence: Sequence(2),
            sink: sink.to_vec(),
            ..SsdCompletion::new(3, Status::SUCCESS)
        };
        run(&mut checker, &read, &completion).is_ok()
    }

    #[test]
    fn a_part_is_that_of_the_newest_value_at_its_place() {
        let [older, newer] = NUMBERS.map(value);
        assert!(is_explained(5_003, 300, &newer[5_003..5_303]));
        assert!(is_explained(9_900, u32::MAX, &newer[9_900..]));
        assert!(is_explained(0, u32::MAX, &newer));
        assert!(!is_explained(5_003, 300, &older[5_003..5_303]), "a value that was replaced");
        assert!(!is_explained(4_096, 300, &newer[8_192..8_492]), "another page");
        let mut altered = newer[5_003..5_303].to_vec();
        altered[299] ^= 1;
        assert!(!is_explained(5_003, 300, &altered), "one bit of its last byte");
    }

    #[test]
    fn a_part_has_the_length_that_was_asked_for_and_the_value_has() {
        let newer = value(NUMBERS[1]);
        assert!(!is_explained(100, 300, &newer[100..399]), "a byte less");
        assert!(!is_explained(100, 300, &newer[100..401]), "a byte more");
        assert!(!is_explained(0, 300, &newer), "the whole value");
        for offset in [10_000, 10_001, u32::MAX] {
            assert!(is_explained(offset, u32::MAX, &[]), "nothing lies behind byte {offset}");
            assert!(!is_explained(offset, u32::MAX, &newer[..1]), "a byte behind the end, from {offset} on");
        }
    }
}
