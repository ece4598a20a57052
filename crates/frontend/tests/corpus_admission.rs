//! The corpus of the fuzz target `admission`, replayed: no nightly toolchain needed.

#[path = "../../../fuzz/bodies/admission.rs"]
mod body;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn what_reaches_a_shared_ssd_is_what_the_model_lets_pass() {
    replay::replay("admission", body::body);
}

/// An entry that means something more often than bytes of chance do, and the grant that it is judged by.
fn step(chance: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = vec![0; 8 + 64 + 384];
    let small = |chance: &mut fastrand::Rng| [chance.u8(0..6), 0, 0, 0];
    let kind = chance.choice([0, 1, 1, 1, 3, 5, 5, 7]).unwrap_or(1);
    bytes[..2].copy_from_slice(&[kind, chance.choice([0, 1, 1, 1, 2, 3, 3, 3]).unwrap_or(1)]);
    bytes[2..6].copy_from_slice(&small(chance));
    bytes[6] = chance.u8(0..12);
    bytes[8] = chance.choice([0, 1, 2, 5, 8, 9, 9, 0x0C, 0x19]).unwrap_or(1);
    bytes[12] = if chance.u8(..8) == 0 { chance.u8(..) } else { bytes[1] };
    let page = 0x10_0000 + u64::from(chance.u8(0..36)) * 0x800;
    bytes[32..40].copy_from_slice(&page.to_le_bytes());
    bytes[48..52].copy_from_slice(&small(chance));
    if bytes[8] == 9 {
        bytes[52] = 4;
    }
    bytes[56..60].copy_from_slice(&small(chance));
    for range in 0..24 {
        let at = 72 + range * 16;
        bytes[at + 4..at + 8].copy_from_slice(&small(chance));
        bytes[at + 8..at + 12].copy_from_slice(&small(chance));
    }
    // Now and then a byte of anything.
    if chance.bool() {
        let place = chance.usize(0..bytes.len());
        bytes[place] = chance.u8(..);
    }
    bytes
}

#[test]
fn no_entry_of_chance_gets_further_than_the_model_lets_it() {
    let first = fastrand::u64(..) >> 16;
    for seed in first..first + 3_000 {
        let bytes = step(&mut fastrand::Rng::with_seed(seed));
        let run = std::panic::catch_unwind(|| body::body(&bytes));
        assert!(run.is_ok(), "seed {seed}");
    }
}
