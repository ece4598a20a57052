//! The path of a get from the ring to the device, compared with the smallest program on it.
//!
//! Input: the measured device. Output: the claims `p8.submit.*`: nanoseconds in which the front end fetches an entry, decodes
//! it, resolves its address, checks rights and limits, hashes the key and submits the operation.
//! The floor reads the same 64 bytes, compares the buffer with the bounds of client memory, hashes the key with the device's
//! hash function, prefetches its slot in an array as large as an index, and appends an operation.
//! Both are timed on a pinned thread around whole turns of up to [`DEPTH`] commands, and a round counts its median turn: the CPU
//! clock of a thread is a system call, which costs as much as a few commands, and a turn in which the kernel ran something
//! else is not the median.

use super::RunExtent;
use super::measured_device::{BUFFERS, DEPTH, MeasuredDevice, RoundKind, entry_of, median_turn};
use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError};
use crate::measure::{CompareCase, SampleSpread, run_interleaved};
use crate::report::ReportRow;
use headwater_host::clock::Clock;
use headwater_host::copy::prefetch_read;
use headwater_host::width::to_usize;
use headwater_nvme::spec::command::{SUBMISSION_WORDS, SubmissionEntry};
use headwater_ssd::command::NamespaceId;
use headwater_ssd::index::{KeyHash, KeyHasher};
use headwater_ssd::limits::HASH_BITS;
use std::hint::black_box;

/// Maximum time of a command, in nanoseconds.
const SUBMIT_NS_MAX: f64 = 60.0;

/// Measures the device and the floor interleaved, and adds their row and the claim `p8.submit.{case}`.
pub(super) fn compare(
    case: &'static str,
    subject: &mut MeasuredDevice,
    mut floor: SubmitFloor,
    extent: &RunExtent,
    findings: &mut ExperimentFindings,
) -> Result<(), LabError> {
    let count = extent.commands;
    let mut product = || subject.fetch_round(count);
    let mut floor = || floor.round(count);
    let mut contestants: [CompareCase<'_, f64, LabError>; 2] = [&mut product, &mut floor];
    let samples = run_interleaved(extent.rounds, &mut contestants)?;
    let (of, floor) = (SampleSpread::of(&samples[0]), SampleSpread::of(&samples[1]));
    let median = |spread: Option<SampleSpread>| spread.map_or(f64::NAN, |spread| spread.median);
    findings.rows.push(
        ReportRow::new()
            .with("submit of", case)
            .with("fetch_decode_submit_ns", of)
            .with("floor_ns", floor)
            .with("ratio", SampleSpread::of_ratios(&samples[0], &samples[1])),
    );
    findings.claims.push(LabClaim::found(
        format!("p8.submit.{case}"),
        ClaimGoal::AtMost(SUBMIT_NS_MAX),
        (median(of), "ns to fetch, decode and submit a command"),
        EvidenceLabel::Measured,
        format!("entry read, bounds, hash and prefetch of the slot, {:.1} ns", median(floor)),
    ));
    Ok(())
}

/// The floor: entries to operations, without a device.
pub(super) struct SubmitFloor {
    ring: Vec<[u64; SUBMISSION_WORDS]>,
    /// The submitted operations: hash of the key, address and length of the buffer.
    operations: Vec<(KeyHash, u64, u32)>,
    /// An index without keys, of a power of two of slots.
    slots: Vec<[u64; 2]>,
    hasher: KeyHasher,
    random: fastrand::Rng,
    clock: Clock,
    keys: u64,
    value_bytes: u32,
    /// Bytes of client memory.
    memory_bytes: u64,
}

impl SubmitFloor {
    pub(super) fn new(keys: u64, value_bytes: u32, seed: u64) -> Self {
        // Slots that were never written would all be the one zero page, which is always in the cache.
        let slots = vec![[1; 2]; to_usize(keys / 4 * 5).next_power_of_two()];
        Self {
            ring: Vec::with_capacity(DEPTH as usize),
            operations: Vec::with_capacity(DEPTH as usize),
            slots,
            hasher: KeyHasher::new(seed, HASH_BITS),
            random: fastrand::Rng::with_seed(seed),
            clock: Clock::start(),
            keys,
            value_bytes,
            memory_bytes: u64::from(DEPTH) * u64::from(value_bytes.next_multiple_of(64)),
        }
    }

    /// Runs at least one turn, and as many as `count` commands fill. Returns the nanoseconds of a command in the median turn.
    fn round(&mut self, count: u64) -> Result<f64, LabError> {
        let mut turns = Vec::new();
        for _ in 0..(count / u64::from(DEPTH)).max(1) {
            self.fill_ring();
            let begun = self.clock.now();
            let refused = self.take_entries();
            turns.push((u64::from(DEPTH), self.clock.now().since(begun)));
            black_box(&self.operations);
            if refused > 0 {
                let reason = "an entry lies outside of client memory".to_owned();
                return Err(LabError::Measure { program: "the floor".to_owned(), reason });
            }
        }
        median_turn(&turns)
    }

    /// Writes the entries of a turn: gets of random keys.
    fn fill_ring(&mut self) {
        self.ring.clear();
        for turn in 0..u64::from(DEPTH) {
            let entry = entry_of(self.random.u64(..self.keys), turn, self.value_bytes, RoundKind::Get);
            self.ring.extend(entry.map(|entry| entry.to_words()));
        }
    }

    /// Turns every entry of the ring into an operation. Returns the number of those that lie outside of client memory.
    fn take_entries(&mut self) -> usize {
        self.operations.clear();
        for words in &self.ring {
            let entry = SubmissionEntry::from_words(*words);
            let (address, bytes) = (entry.prp1.get(), entry.kv_data_bytes());
            let end = address.checked_sub(BUFFERS.0).and_then(|from| from.checked_add(u64::from(bytes)));
            let field = entry.kv_key_field();
            let Some(key) = field.get(..usize::from(entry.kv_key_bytes())) else {
                continue;
            };
            if end.is_none_or(|end| end > self.memory_bytes) {
                continue;
            }
            let hash = self.hasher.hash(NamespaceId::FIRST, key);
            prefetch_read(&self.slots[to_usize(hash.0) & (self.slots.len() - 1)]);
            self.operations.push((hash, address, bytes));
        }
        self.ring.len() - self.operations.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floor_turns_every_entry_into_an_operation_on_its_key() {
        let mut floor = SubmitFloor::new(100, 4_096, 1);
        assert!(floor.round(64).unwrap().is_finite());
        assert_eq!(floor.operations.len(), DEPTH as usize);
        let keys: Vec<_> = floor.ring.iter().map(|words| SubmissionEntry::from_words(*words)).collect();
        for (turn, ((hash, address, bytes), entry)) in (0_u64..).zip(floor.operations.iter().zip(keys)) {
            assert_eq!((*address, *bytes), (BUFFERS.0 + turn * 4_096, 4_096));
            assert_eq!(hash.0, floor.hasher.hash(NamespaceId::FIRST, &entry.kv_key_field()).0);
        }
    }

    #[test]
    fn floor_refuses_a_buffer_outside_of_client_memory() {
        let mut floor = SubmitFloor::new(100, 100, 1);
        floor.fill_ring();
        assert_eq!(floor.take_entries(), 0);
        for outside in [BUFFERS.0 - 1, BUFFERS.0 + floor.memory_bytes - 99, u64::MAX] {
            let mut entry = SubmissionEntry::from_words(floor.ring[0]);
            entry.prp1.set(outside);
            floor.ring[0] = entry.to_words();
            assert_eq!(floor.take_entries(), 1, "{outside:#x}");
        }
    }
}
