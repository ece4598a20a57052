//! Tests of the hashed index against a naive model, and of its bytes in a checkpoint.

use super::*;
use std::collections::BTreeMap;

fn entry(address: u64) -> IndexEntry {
    IndexEntry {
        address: RecordAddress(address),
        units: 4,
        namespace: NamespaceId(3),
        lifetime: EntryLifetime::Limited,
        has_extents: false,
    }
}

/// Compares the index with a naive model of (hash, address) pairs in order.
fn agree(index: &HashedIndex, model: &BTreeMap<(u64, u64), ()>, seed: u64) {
    assert_eq!(index.len(), model.len() as u64, "seed {seed}");
    let mut from = Some(KeyHash(0));
    let mut seen = 0;
    let mut last = 0;
    while let Some((hash, _)) = from.and_then(|from| index.next(from)) {
        assert!(hash.0 >= last, "seed {seed}: entries out of hash order");
        last = hash.0;
        let here = model.range((hash.0, 0)..=(hash.0, u64::MAX)).count();
        assert_eq!((0..).map_while(|nth| index.find(hash, nth)).count(), here, "seed {seed}");
        seen += here;
        from = Some(KeyHash(hash.0 + 1));
    }
    assert_eq!(seen, model.len(), "seed {seed}");
}

#[test]
fn seeded_runs_agree_with_a_naive_model() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut index = HashedIndex::new();
        let mut model: BTreeMap<(u64, u64), ()> = BTreeMap::new();
        for step in 1..4_000u64 {
            // Few distinct hashes in few segments provoke runs, equal hashes and growth.
            let hash =
                KeyHash(random.u64(0..3) << SLOT_HASH_BITS | random.u64(0..400) << (random.u32(0..40)));
            let known = model.range((hash.0, 0)..=(hash.0, u64::MAX)).next().map(|(key, ())| key.1);
            match (random.u8(0..4), known) {
                (0, Some(address)) => {
                    assert!(index.remove(hash, RecordAddress(address)), "seed {seed}");
                    model.remove(&(hash.0, address));
                    assert!(!index.remove(hash, RecordAddress(address)), "seed {seed}");
                }
                (1, Some(address)) => {
                    assert!(index.replace(hash, RecordAddress(address), entry(step)), "seed {seed}");
                    assert!(!index.replace(hash, RecordAddress(address), entry(step)), "seed {seed}");
                    model.remove(&(hash.0, address));
                    model.insert((hash.0, step), ());
                }
                _ => {
                    index.insert(hash, entry(step));
                    model.insert((hash.0, step), ());
                    assert!(index.contains(hash, RecordAddress(step)), "seed {seed}");
                }
            }
        }
        agree(&index, &model, seed);
    }
}

#[test]
fn a_segment_loads_as_it_was_saved() {
    let mut index = HashedIndex::new();
    let mut random = fastrand::Rng::with_seed(1);
    for address in 1..10_000 {
        index.insert(KeyHash(random.u64(..) >> 4), entry(address));
    }
    let mut loaded = HashedIndex::new();
    for number in 0..SEGMENTS {
        let saved: Vec<_> = index.segment(number).map(|(hash, entry)| encode_entry(hash, entry)).collect();
        let entries: Vec<_> = saved.into_iter().map(decode_entry).collect();
        loaded.load_segment(number, &entries).unwrap();
    }
    assert_eq!(loaded.len(), index.len());
    for number in 0..SEGMENTS {
        assert!(loaded.segment(number).eq(index.segment(number)));
    }
    assert!(
        loaded.load_segment(1, &[(KeyHash(0), entry(1))]).is_err(),
        "an entry of another segment is refused"
    );
}

#[test]
fn a_key_takes_under_40_bytes_and_under_32_from_1_1_million_keys_on() {
    let mut index = HashedIndex::new();
    let mut random = fastrand::Rng::with_seed(2);
    for address in 1..=2_500_000u64 {
        index.insert(KeyHash(random.u64(..) >> 4), entry(address));
        let limit = if address < 1_100_000 { 40 } else { 32 };
        if address >= 100_000 && address.is_multiple_of(100_000) {
            assert!(index.bytes() < limit * address, "{} bytes for {address} keys", index.bytes());
        }
    }
}
