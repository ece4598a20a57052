//! The resident memory of an index that grew, in a process of its own.
//!
//! Input: millions of entries, inserted in random order. Output: the growth of the resident set. Invariant: it is hardly
//! more than the bytes that the index states; tables that moved leave nothing behind.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use headwater_ssd::command::NamespaceId;
use headwater_ssd::index::{EntryLifetime, HashedIndex, IndexEntry, KeyHash, RecordIndex};
use headwater_ssd::limits::HASH_BITS;
use headwater_ssd::log::record::RecordAddress;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn growth_of_an_index_leaves_no_memory_unused() {
    let before = resident_bytes();
    let mut index = HashedIndex::new();
    let mut random = fastrand::Rng::with_seed(3);
    for address in 1..=3_000_000u64 {
        let entry = IndexEntry {
            address: RecordAddress(address),
            units: 4,
            namespace: NamespaceId::FIRST,
            lifetime: EntryLifetime::Unlimited,
            has_extents: false,
        };
        index.insert(KeyHash(random.u64(..) >> (64 - HASH_BITS)), entry);
    }
    let resident = resident_bytes().saturating_sub(before);
    assert!(resident < index.bytes() / 8 * 9, "{resident} bytes resident for {} of index", index.bytes());
}
