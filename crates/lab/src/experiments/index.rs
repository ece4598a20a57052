//! The cost of the index: DRAM for each key, and CPU for each insert and find.
//!
//! Input: hashes of random keys, in random order.
//! Output: bytes for each key of an index that holds them all, and CPU nanoseconds of an operation. The floor is a bare
//! array of the same 16-byte slots, probed once at the position that the hash gives: it does not compare, does not
//! grow, and accepts any slot.

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::measure::{CompareCase, CorePin, PinState, SampleSpread, cpu_ns_each, run_interleaved};
use crate::report::ReportRow;
use headwater_ssd::command::NamespaceId;
use headwater_ssd::index::{EntryLifetime, HashedIndex, IndexEntry, KeyHash, RecordIndex};
use headwater_ssd::limits::HASH_BITS;
use headwater_ssd::log::record::RecordAddress;
use std::convert::Infallible;
use std::hint::black_box;

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "index",
    summary: "DRAM of the index for each key, and CPU of an insert and a find",
    baseline: "one probe of a bare array of 16-byte slots",
    claims: &["p1.index.bytes_per_key"],
    run,
};

/// Number of keys of the claim.
const KEYS: usize = 10_000_000;
/// Number of keys of the timed index in a quick run; far more than any cache holds.
const QUICK_TIMED_KEYS: usize = 2_000_000;
const BYTES_MAX: f64 = 32.0;
/// Number of finds by which slots are prefetched, as the device does between submission and execution.
const PREFETCH_DISTANCE: usize = 16;

/// The names of the compared operations, each of which runs once for every hash.
const WORK: [&str; 5] =
    ["array probe (floor)", "find", "find, prefetched", "array store (floor)", "insert, growth included"];

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let (timed_keys, rounds) = if context.is_quick() { (QUICK_TIMED_KEYS, 3) } else { (KEYS, 7) };
    let mut random = fastrand::Rng::with_seed(context.seed());
    let hashes: Vec<KeyHash> = (0..KEYS).map(|_| KeyHash(random.u64(..) >> (64 - HASH_BITS))).collect();
    let mut findings = ExperimentFindings::default();
    let mut index = HashedIndex::new();
    let mut filled = 0;
    let mut worst: f64 = 0.0;
    for size in [100_000, 1_000_000, 2_000_000, 5_000_000, KEYS] {
        for &hash in &hashes[filled..size] {
            index.insert(hash, entry(filled as u64));
            filled += 1;
        }
        let bytes = bytes_per_key(&index);
        if size >= 1_000_000 {
            worst = worst.max(bytes);
        }
        findings.rows.push(
            ReportRow::new()
                .with("keys", size as u64)
                .with("index_bytes", index.bytes())
                .with("bytes_per_key", bytes),
        );
    }
    findings.claims.push(LabClaim::found(
        "p1.index.bytes_per_key",
        ClaimGoal::AtMost(BYTES_MAX),
        (bytes_per_key(&index), "bytes of DRAM a key, ten million keys"),
        EvidenceLabel::Functional,
        format!("16 bytes, a packed entry; worst size from a million keys on: {worst:.1}"),
    ));
    drop(index);
    let pin = CorePin::current_core();
    let samples = measure(&hashes[..timed_keys], rounds, context.seed());
    for (name, samples) in WORK.iter().zip(&samples) {
        findings.rows.push(
            ReportRow::new()
                .with("operation", *name)
                .with("keys", timed_keys as u64)
                .with("cpu_ns", SampleSpread::of(samples))
                .with("label", EvidenceLabel::Measured.to_string())
                .with("pinned", if pin.is_pinned() == PinState::Yes { "yes" } else { "no" }),
        );
    }
    Ok(findings)
}

fn entry(number: u64) -> IndexEntry {
    IndexEntry {
        address: RecordAddress(number),
        units: 11,
        namespace: NamespaceId::FIRST,
        lifetime: EntryLifetime::Unlimited,
        has_extents: false,
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
fn bytes_per_key(index: &HashedIndex) -> f64 {
    index.bytes() as f64 / index.len() as f64
}

/// The floor: slots without keys, sized like a table that is 80 % full.
struct SlotArray {
    slots: Vec<[u64; 2]>,
}

impl SlotArray {
    fn new(keys: usize) -> Self {
        Self { slots: vec![[0; 2]; keys / 4 * 5] }
    }

    fn slot_of(&self, hash: KeyHash) -> usize {
        ((u128::from(hash.0) * self.slots.len() as u128) >> HASH_BITS) as usize
    }

    fn probe(&self, hashes: &[KeyHash]) -> u64 {
        hashes.iter().fold(0, |sum, hash| sum ^ self.slots[self.slot_of(*hash)][1])
    }

    fn store(&mut self, hashes: &[KeyHash]) {
        for (number, hash) in (0..).zip(hashes) {
            let slot = self.slot_of(*hash);
            self.slots[slot] = [hash.0, number];
        }
    }
}

fn filled(hashes: &[KeyHash]) -> HashedIndex {
    let mut index = HashedIndex::new();
    for (number, hash) in (0..).zip(hashes) {
        index.insert(*hash, entry(number));
    }
    index
}

fn find(index: &HashedIndex, hashes: &[KeyHash]) -> u64 {
    hashes.iter().filter_map(|hash| index.find(*hash, 0)).fold(0, |sum, entry| sum ^ entry.address.0)
}

fn find_prefetched(index: &HashedIndex, hashes: &[KeyHash]) -> u64 {
    let mut sum = 0;
    for (at, hash) in hashes.iter().enumerate() {
        if let Some(later) = hashes.get(at + PREFETCH_DISTANCE) {
            index.prefetch(*later);
        }
        sum ^= index.find(*hash, 0).map_or(0, |entry| entry.address.0);
    }
    sum
}

/// Returns the CPU nanoseconds for an operation: for each of [`WORK`], one value a round.
fn measure(hashes: &[KeyHash], rounds: usize, seed: u64) -> Vec<Vec<f64>> {
    let index = filled(hashes);
    let mut bare = SlotArray::new(hashes.len());
    bare.store(hashes);
    // The finds run in another order than the inserts.
    let mut sought = hashes.to_vec();
    fastrand::Rng::with_seed(seed ^ 1).shuffle(&mut sought);
    let count = hashes.len() as u64;
    let cost = |work: &mut dyn FnMut() -> u64| {
        Ok::<f64, Infallible>(cpu_ns_each(count, || {
            black_box(work());
        }))
    };
    let mut probe_array = || cost(&mut || bare.probe(&sought));
    let mut find_one = || cost(&mut || find(&index, &sought));
    let mut find_ahead = || cost(&mut || find_prefetched(&index, &sought));
    let mut store_array = || {
        let mut target = SlotArray::new(hashes.len());
        // The kernel allocates memory page by page, so the floor's time includes its page faults, as the index's does.
        cost(&mut || {
            target.store(hashes);
            target.slots[0][0]
        })
    };
    let mut insert = || cost(&mut || filled(hashes).len());
    let mut contestants: [CompareCase<'_, f64, Infallible>; WORK.len()] =
        [&mut probe_array, &mut find_one, &mut find_ahead, &mut store_array, &mut insert];
    match run_interleaved(rounds, &mut contestants) {
        Ok(samples) => samples,
        Err(never) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_and_prefetched_finds_find_every_key() {
        let mut random = fastrand::Rng::with_seed(7);
        let hashes: Vec<KeyHash> = (0..10_000).map(|_| KeyHash(random.u64(..) >> 4)).collect();
        let index = filled(&hashes);
        assert_eq!(index.len(), 10_000);
        let all = (0..10_000).fold(0, |sum, number: u64| sum ^ number);
        assert_eq!(find(&index, &hashes), all);
        assert_eq!(find_prefetched(&index, &hashes), all);
    }

    #[test]
    fn floor_stores_every_hash_inside_its_array() {
        let hashes = [KeyHash(0), KeyHash((1 << HASH_BITS) - 1)];
        let mut bare = SlotArray::new(8);
        bare.store(&hashes);
        assert_eq!(bare.slots[9], [hashes[1].0, 1]);
        assert_eq!(bare.probe(&hashes), 1);
    }
}
