//! The corpus of the fuzz target `admission`, replayed: no nightly toolchain needed.

use crate::replay;
use headwater_fuzz_bodies::admission as body;

#[test]
fn corpus_entries_reach_a_shared_ssd_only_if_the_model_allows_them() {
    replay::replay("admission", body::body);
}

/// Generates an entry that is valid more often than random bytes, and its grant.
fn step(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = vec![0; 8 + 64 + 384];
    let small = |random: &mut fastrand::Rng| [random.u8(0..6), 0, 0, 0];
    let kind = random.choice([0, 1, 1, 1, 3, 5, 5, 7]).unwrap_or(1);
    bytes[..2].copy_from_slice(&[kind, random.choice([0, 1, 1, 1, 2, 3, 3, 3]).unwrap_or(1)]);
    bytes[2..6].copy_from_slice(&small(random));
    bytes[6] = random.u8(0..12);
    bytes[8] = random.choice([0, 1, 2, 5, 8, 9, 9, 0x0C, 0x19]).unwrap_or(1);
    bytes[12] = if random.u8(..8) == 0 { random.u8(..) } else { bytes[1] };
    let page = 0x10_0000 + u64::from(random.u8(0..36)) * 0x800;
    bytes[32..40].copy_from_slice(&page.to_le_bytes());
    bytes[48..52].copy_from_slice(&small(random));
    if bytes[8] == 9 {
        bytes[52] = 4;
    }
    bytes[56..60].copy_from_slice(&small(random));
    for range in 0..24 {
        let at = 72 + range * 16;
        bytes[at + 4..at + 8].copy_from_slice(&small(random));
        bytes[at + 8..at + 12].copy_from_slice(&small(random));
    }
    // Sometimes one random byte.
    if random.bool() {
        let at = random.usize(0..bytes.len());
        bytes[at] = random.u8(..);
    }
    bytes
}

#[test]
fn random_entries_reach_a_shared_ssd_only_if_the_model_allows_them() {
    let first = fastrand::u64(..) >> 16;
    for seed in first..first + 3_000 {
        let bytes = step(&mut fastrand::Rng::with_seed(seed));
        let run = std::panic::catch_unwind(|| body::body(&bytes));
        assert!(run.is_ok(), "seed {seed}");
    }
}
