//! Reads of parts of values, as observations of whole values.
//!
//! Input: the range that a read asked for, and its completion. Output: the hash of the only value that the read may see and that
//! has these bytes at this place; none if there are several. Invariant: bytes that no such value has there are the observation of
//! a value that came back, or that was never written.

use super::keys::{KeyObservation, ObservationSpan, WriteEffect};
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
    /// Returns the hash of the value that a read saw; `None` if its bytes are those of several that it may see.
    pub(super) fn hash_of_read(
        &self,
        (namespace, key): (NamespaceId, &Bytes),
        range: ReadRange,
        completion: &SsdCompletion,
        when: ObservationSpan,
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
        let offset = to_usize(u64::from(range.offset));
        let explains = |value: &ValueFingerprint| {
            value.bytes == completion.value_bytes
                && value.pattern.is_none_or(|pattern| pattern.matches(offset, &completion.sink))
        };
        let stored = |index: usize| match history.writes[index].effect {
            WriteEffect::Store(value, _) => Some(value),
            WriteEffect::Delete => None,
        };
        let seen = KeyObservation::Present {
            bytes: completion.value_bytes,
            hash: None,
            sequence: completion.sequence.0,
            expiry_ms: completion.expiry_ms,
        };
        let visible = history.explanations(&self.groups, seen, when).into_iter().filter_map(stored);
        let mut hashes: Vec<u64> = visible.filter(explains).map(|value| value.hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        // Old values share bytes with each other, which must not make them pass for a newer one.
        let old = history.past_values.iter().copied().chain((0..history.writes.len()).filter_map(stored));
        match hashes[..] {
            [] => old.filter(explains).map(|value| value.hash).next().or(never_written),
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
    use headwater_host::width::narrow;
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
        read_after(&NUMBERS.map(value), (offset, bytes_max), sink).is_ok()
    }

    /// Checks a read of a part that returns these bytes, after these values were stored one after the other.
    fn read_after(
        values: &[Vec<u8>],
        (offset, bytes_max): (u32, u32),
        sink: &[u8],
    ) -> Result<(), PromiseViolation> {
        let mut checker = DeviceChecker::new(&DeviceConfig::default().durability);
        for (token, value) in (1..).zip(values) {
            let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
            let store = SsdCommand::Store { key: key(), value: value.clone().into(), condition, expiry };
            let sequence = Sequence(token);
            let stored = SsdCompletion { sequence, ..SsdCompletion::new(token, Status::SUCCESS) };
            run(&mut checker, &store, &stored).unwrap();
        }
        let (caching, release) = (ReadCaching::Keep, ReadRelease::WhenDurable);
        let target = Vec::new().into();
        let read = SsdCommand::Retrieve { key: key(), sink: target, offset, bytes_max, caching, release };
        let completion = SsdCompletion {
            value_bytes: narrow(values[values.len() - 1].len()),
            sequence: Sequence(values.len() as u64),
            sink: sink.to_vec(),
            ..SsdCompletion::new(values.len() as u64 + 1, Status::SUCCESS)
        };
        run(&mut checker, &read, &completion)
    }

    #[test]
    fn bytes_that_old_values_share_are_not_those_of_the_newest() {
        const PLACE: usize = 5_003;
        let byte = |number: u64| value(number)[PLACE];
        let first = byte(NUMBERS[0]);
        let twin = (NUMBERS[0] + 1..100_000).find(|number| byte(*number) == first).unwrap();
        let newest = (twin + 1..100_000).find(|number| byte(*number) != first).unwrap();
        let values = [NUMBERS[0], twin, newest].map(value);
        assert_eq!(read_after(&values, (5_003, 1), &values[2][PLACE..=PLACE]), Ok(()));
        assert!(read_after(&values, (5_003, 1), &[first]).is_err(), "a byte of both older values");
    }

    #[test]
    fn parts_of_values_of_less_than_two_words_are_checked() {
        for bytes in 2..16 {
            let values = NUMBERS.map(|number| value(number)[..bytes].to_vec());
            assert_eq!(read_after(&values, (0, 1), &values[1][..1]), Ok(()), "{bytes} bytes");
            assert!(
                read_after(&values, (0, 1), &values[0][..1]).is_err(),
                "{bytes} bytes, of the older value"
            );
            let damaged = read_after(&values, (0, 1), &[values[1][0] ^ 0x80]);
            assert!(
                matches!(damaged, Err(PromiseViolation::NeverWritten { .. })),
                "{bytes} bytes: {damaged:?}"
            );
        }
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
