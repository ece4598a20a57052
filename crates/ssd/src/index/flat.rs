//! The flat index: an array of block records for each block namespace, allocated only where blocks exist.
//!
//! Input: positions ([`KeyHash::of_block`]) and entries. Output: the one entry at a position, and all entries in the
//! order of their positions.
//!
//! ```text
//!  space (a namespace) -> branch (262,144 blocks) -> leaf (512 blocks, 4 KiB) -> address and length, 8 bytes a block
//! ```
//!
//! Invariant: a leaf without entries is freed, so an empty namespace takes only its row of branches.

use super::{EntryLifetime, IndexEntry, KeyHash, RecordIndex};
use crate::command::{Lba, NamespaceId};
use crate::limits::{NAMESPACE_BLOCKS_MAX, SPACES};
use crate::log::record::RecordAddress;
use headwater_host::width::narrow;

const FAN_BITS: u32 = 9;
const FAN: usize = 1 << FAN_BITS;
const UNITS_BITS: u32 = 24;

/// Address in the high 40 bits, units in the low 24; zero means no record, because none has zero units.
type PackedEntry = u64;

#[derive(Debug)]
struct IndexLeaf {
    slots: [PackedEntry; FAN],
    len: usize,
}

#[derive(Debug)]
struct IndexBranch {
    leaves: [Option<Box<IndexLeaf>>; FAN],
    len: usize,
}

#[derive(Debug, Default)]
struct NamespaceBlocks {
    branches: Vec<Option<Box<IndexBranch>>>,
}

/// The index of blocks.
#[derive(Debug, Default)]
pub struct FlatIndex {
    namespaces: [NamespaceBlocks; SPACES],
    len: u64,
    leaves: u64,
    branches: u64,
}

/// Splits a block address into branch, leaf and slot.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "block addresses are below 2^36, and the rest is masked")]
const fn split(lba: Lba) -> (usize, usize, usize) {
    let slot = lba.0 as usize % FAN;
    let leaf = (lba.0 >> FAN_BITS) as usize % FAN;
    ((lba.0 >> (2 * FAN_BITS)) as usize, leaf, slot)
}

const fn join(branch: usize, leaf: usize, slot: usize) -> Lba {
    Lba((branch as u64) << (2 * FAN_BITS) | (leaf as u64) << FAN_BITS | slot as u64)
}

const fn pack(entry: IndexEntry) -> PackedEntry {
    entry.address.0 << UNITS_BITS | entry.units as u64
}

const fn unpack(namespace: NamespaceId, slot: PackedEntry) -> IndexEntry {
    IndexEntry {
        address: RecordAddress(slot >> UNITS_BITS),
        units: (slot & ((1 << UNITS_BITS) - 1)) as u32,
        namespace,
        lifetime: EntryLifetime::Unlimited,
        has_extents: false,
    }
}

impl FlatIndex {
    /// Returns true if the index can hold this position. Positions from a medium must be checked.
    #[must_use]
    pub fn can_hold(position: KeyHash) -> bool {
        let (namespace, lba) = position.namespace_and_lba();
        position.is_position() && namespace.index() < SPACES && lba.0 < NAMESPACE_BLOCKS_MAX
    }

    #[inline]
    fn slot(&self, position: KeyHash) -> PackedEntry {
        let (namespace, lba) = position.namespace_and_lba();
        let (branch, leaf, slot) = split(lba);
        let branches = self.namespaces.get(namespace.index()).map_or(&[][..], |space| &space.branches);
        let branch = branches.get(branch).and_then(Option::as_deref);
        branch.and_then(|branch| branch.leaves[leaf].as_deref()).map_or(0, |leaf| leaf.slots[slot])
    }

    fn slot_mut(&mut self, position: KeyHash) -> Option<&mut PackedEntry> {
        let (namespace, lba) = position.namespace_and_lba();
        let (branch, leaf, slot) = split(lba);
        let branch = self.namespaces.get_mut(namespace.index())?.branches.get_mut(branch)?.as_deref_mut()?;
        Some(&mut branch.leaves[leaf].as_deref_mut()?.slots[slot])
    }

    /// Returns the first block of a namespace at or after `from`.
    pub fn next_in(&self, namespace: NamespaceId, from: Lba) -> Option<(KeyHash, IndexEntry)> {
        let (first_branch, mut first_leaf, mut first_slot) = split(from);
        let branches = &self.namespaces.get(namespace.index())?.branches;
        for (number, branch) in branches.iter().enumerate().skip(first_branch) {
            let leaves = branch.as_deref().map_or(&[][..], |branch| &branch.leaves);
            for (leaf_number, leaf) in leaves.iter().enumerate().skip(first_leaf) {
                let slots = leaf.as_deref().map_or(&[][..], |leaf| &leaf.slots);
                let found = slots.iter().enumerate().skip(first_slot).find(|(_, slot)| **slot != 0);
                if let Some((slot_number, slot)) = found {
                    let lba = join(number, leaf_number, slot_number);
                    return Some((KeyHash::of_block(namespace, lba), unpack(namespace, *slot)));
                }
                first_slot = 0;
            }
            (first_leaf, first_slot) = (0, 0);
        }
        None
    }
}

impl RecordIndex for FlatIndex {
    #[inline]
    fn find(&self, hash: KeyHash, nth: usize) -> Option<IndexEntry> {
        let slot = self.slot(hash);
        (slot != 0 && nth == 0).then(|| unpack(hash.namespace_and_lba().0, slot))
    }

    fn insert(&mut self, hash: KeyHash, entry: IndexEntry) {
        assert!(Self::can_hold(hash), "the position lies outside every namespace");
        let (namespace, lba) = hash.namespace_and_lba();
        let (branch, leaf, slot) = split(lba);
        let branches = &mut self.namespaces[namespace.index()].branches;
        if branches.len() <= branch {
            branches.resize_with(branch + 1, || None);
        }
        let branch = branches[branch].get_or_insert_with(|| {
            self.branches += 1;
            Box::new(IndexBranch { leaves: [const { None }; FAN], len: 0 })
        });
        let leaf = branch.leaves[leaf].get_or_insert_with(|| {
            self.leaves += 1;
            branch.len += 1;
            Box::new(IndexLeaf { slots: [0; FAN], len: 0 })
        });
        debug_assert!(leaf.slots[slot] == 0, "the block has a record already");
        let new = u64::from(leaf.slots[slot] == 0);
        leaf.slots[slot] = pack(entry);
        leaf.len += usize::from(new == 1);
        self.len += new;
    }

    fn replace(&mut self, hash: KeyHash, old: RecordAddress, new: IndexEntry) -> bool {
        match self.slot_mut(hash) {
            Some(slot) if *slot != 0 && *slot >> UNITS_BITS == old.0 => {
                *slot = pack(new);
                true
            }
            _ => false,
        }
    }

    fn remove(&mut self, hash: KeyHash, address: RecordAddress) -> bool {
        let (namespace, lba) = hash.namespace_and_lba();
        let (at, leaf_at, slot_at) = split(lba);
        let branches = self.namespaces.get_mut(namespace.index()).map(|space| &mut space.branches);
        let Some(branch_slot) = branches.and_then(|branches| branches.get_mut(at)) else {
            return false;
        };
        let Some(branch) = branch_slot else { return false };
        let leaf_slot = &mut branch.leaves[leaf_at];
        let Some(leaf) = leaf_slot else { return false };
        let slot = leaf.slots[slot_at];
        if slot == 0 || slot >> UNITS_BITS != address.0 {
            return false;
        }
        leaf.slots[slot_at] = 0;
        leaf.len -= 1;
        self.len -= 1;
        if leaf.len == 0 {
            *leaf_slot = None;
            self.leaves -= 1;
            branch.len -= 1;
            if branch.len == 0 {
                *branch_slot = None;
                self.branches -= 1;
            }
        }
        true
    }

    fn next(&self, from: KeyHash) -> Option<(KeyHash, IndexEntry)> {
        let (first, lba) = from.max(KeyHash::FIRST_POSITION).namespace_and_lba();
        let last: u8 = narrow(SPACES);
        (first.0.max(1)..=last).map(NamespaceId).find_map(|namespace| {
            let from = if namespace == first { lba } else { Lba(0) };
            self.next_in(namespace, from)
        })
    }

    #[inline]
    fn prefetch(&self, hash: KeyHash) {
        let (namespace, lba) = hash.namespace_and_lba();
        let (branch, leaf, slot) = split(lba);
        let branches = self.namespaces.get(namespace.index()).map_or(&[][..], |space| &space.branches);
        if let Some(branch) = branches.get(branch).and_then(Option::as_deref)
            && let Some(leaf) = branch.leaves[leaf].as_deref()
        {
            headwater_host::copy::prefetch_read(&leaf.slots[slot]);
        }
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn bytes(&self) -> u64 {
        let rows: usize =
            self.namespaces.iter().map(|space| space.branches.capacity() * size_of::<usize>()).sum();
        let leaves = self.leaves * size_of::<IndexLeaf>() as u64;
        rows as u64 + leaves + self.branches * size_of::<IndexBranch>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn entry(namespace: NamespaceId, address: u64) -> IndexEntry {
        IndexEntry {
            address: RecordAddress(address),
            units: 36,
            namespace,
            lifetime: EntryLifetime::Unlimited,
            has_extents: false,
        }
    }

    fn agree(index: &FlatIndex, model: &BTreeMap<KeyHash, u64>, seed: u64) {
        assert_eq!(index.len(), model.len() as u64, "seed {seed}");
        let mut from = Some(KeyHash::FIRST_POSITION);
        let mut seen = Vec::new();
        while let Some((position, entry)) = from.and_then(|from| index.next(from)) {
            seen.push((position, entry.address.0));
            assert_eq!(entry.namespace, position.namespace_and_lba().0, "seed {seed}");
            from = Some(KeyHash(position.0 + 1));
        }
        assert!(seen.iter().copied().eq(model.iter().map(|(position, at)| (*position, *at))), "seed {seed}");
    }

    #[test]
    fn seeded_runs_agree_with_a_naive_model() {
        for seed in 0..10 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut index = FlatIndex::default();
            let mut model: BTreeMap<KeyHash, u64> = BTreeMap::new();
            for step in 1..6_000u64 {
                let namespace = NamespaceId(random.u8(1..=17));
                // Few blocks, near each other and at both ends of leaves, of branches and of the index.
                let far = [0, 509, (1 << 18) - 3, NAMESPACE_BLOCKS_MAX - 6][random.usize(0..4)];
                let position = KeyHash::of_block(namespace, Lba(far + random.u64(0..6)));
                assert_eq!(
                    index.find(position, 0).map(|entry| entry.address.0),
                    model.get(&position).copied()
                );
                match (random.u8(0..3), model.get(&position).copied()) {
                    (0, Some(at)) => {
                        assert!(!index.remove(position, RecordAddress(at + 1)), "seed {seed}");
                        assert!(index.remove(position, RecordAddress(at)), "seed {seed}");
                        assert!(!index.remove(position, RecordAddress(at)), "seed {seed}");
                        model.remove(&position);
                    }
                    (_, Some(at)) => {
                        assert!(!index.replace(position, RecordAddress(at + 1), entry(namespace, step)));
                        assert!(index.replace(position, RecordAddress(at), entry(namespace, step)));
                        model.insert(position, step);
                    }
                    (_, None) => {
                        index.insert(position, entry(namespace, step));
                        model.insert(position, step);
                    }
                }
            }
            agree(&index, &model, seed);
        }
    }

    #[test]
    fn an_emptied_namespace_frees_its_memory() {
        let mut index = FlatIndex::default();
        let position = |lba| KeyHash::of_block(NamespaceId(2), Lba(lba));
        for lba in 0..5_000 {
            index.insert(position(lba), entry(NamespaceId(2), lba + 1));
        }
        assert!(index.bytes() / index.len() < 16, "{} bytes for 5,000 blocks in a row", index.bytes());
        for lba in 0..5_000 {
            assert!(index.remove(position(lba), RecordAddress(lba + 1)));
        }
        assert!(index.bytes() < 100, "{} bytes are left", index.bytes());
    }

    #[test]
    fn positions_outside_every_namespace_are_rejected() {
        assert!(FlatIndex::can_hold(KeyHash::of_block(NamespaceId(1), Lba(NAMESPACE_BLOCKS_MAX - 1))));
        assert!(!FlatIndex::can_hold(KeyHash::of_block(NamespaceId(1), Lba(NAMESPACE_BLOCKS_MAX))));
        assert!(!FlatIndex::can_hold(KeyHash::of_block(NamespaceId(18), Lba(0))));
        assert!(!FlatIndex::can_hold(KeyHash::of_block(NamespaceId(0), Lba(0))));
        assert!(!FlatIndex::can_hold(KeyHash(7)));
    }
}
