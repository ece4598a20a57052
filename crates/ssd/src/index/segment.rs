//! One part of the hashed index: a sorted, linearly probed table that grows by a quarter, where it lies.
//!
//! Input: 48-bit hashes and packed entries of 16 bytes. Output: the same, in hash order. Growth by a quarter, not by
//! doubling, keeps a table of eight pages or more between 65 % and 87 % full, a shorter one above 42 %. Invariant: occupied
//! slots are sorted by hash, and no empty slot lies between an entry and its home slot.

use super::{EXTENTS_UNIT, EntryLifetime, IndexEntry};
use crate::command::NamespaceId;
use crate::log::record::RecordAddress;
use headwater_host::growing_slice::GrowingSlice;

/// Bits of a hash that a segment keeps in each slot.
pub(super) const SLOT_HASH_BITS: u32 = 48;

const UNITS_BITS: u32 = 24;
const LIMITED: u64 = 0x100;
const HOMES_MIN: usize = 8;

/// An entry packed into 16 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct SegmentSlot {
    /// Hash in the high 48 bits, lifetime in bit 8, namespace in the low 8.
    hash_and_namespace: u64,
    /// Address in the high 40 bits, units in the low 24; zero means empty, because no record has zero units.
    address_and_units: u64,
}

const _: () = assert!(size_of::<SegmentSlot>() == 16);
const SLOTS_PER_LINE: usize = 64 / size_of::<SegmentSlot>();

impl SegmentSlot {
    fn pack(hash: u64, entry: IndexEntry) -> Self {
        debug_assert!(entry.units > 0 && entry.units < EXTENTS_UNIT);
        let lifetime = if entry.lifetime == EntryLifetime::Limited { LIMITED } else { 0 };
        Self {
            hash_and_namespace: hash << (64 - SLOT_HASH_BITS) | lifetime | u64::from(entry.namespace.0),
            address_and_units: entry.address.0 << UNITS_BITS | u64::from(entry.packed_units()),
        }
    }

    #[inline]
    const fn is_empty(self) -> bool {
        self.address_and_units == 0
    }

    #[inline]
    const fn hash(self) -> u64 {
        self.hash_and_namespace >> (64 - SLOT_HASH_BITS)
    }

    #[inline]
    const fn address(self) -> RecordAddress {
        RecordAddress(self.address_and_units >> UNITS_BITS)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the fields are as wide as what was packed")]
    const fn entry(self) -> IndexEntry {
        let packed = (self.address_and_units & ((1 << UNITS_BITS) - 1)) as u32;
        IndexEntry {
            address: self.address(),
            units: packed & !EXTENTS_UNIT,
            has_extents: packed & EXTENTS_UNIT != 0,
            namespace: NamespaceId(self.hash_and_namespace as u8),
            lifetime: if self.hash_and_namespace & LIMITED == 0 {
                EntryLifetime::Unlimited
            } else {
                EntryLifetime::Limited
            },
        }
    }
}

/// A table of `homes` home slots and a tail for entries that overflow the end.
#[derive(Debug, Default)]
pub(super) struct IndexSegment {
    slots: GrowingSlice<SegmentSlot>,
    homes: usize,
    len: usize,
}

impl IndexSegment {
    #[inline]
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.homes as u128) >> SLOT_HASH_BITS) as usize
    }

    /// Returns the first slot at or after the home slot of `hash` that is empty or holds a hash not below it.
    #[inline]
    fn lower_bound(&self, hash: u64) -> usize {
        let mut at = self.home(hash);
        while let Some(slot) = self.slots.get(at) {
            if slot.is_empty() || slot.hash() >= hash {
                break;
            }
            at += 1;
        }
        at
    }

    pub(super) fn find(&self, hash: u64, nth: usize) -> Option<IndexEntry> {
        let slot = self.slots.get(self.lower_bound(hash) + nth)?;
        // Equal hashes are adjacent, so the nth neighbour either has the hash or ends the run.
        (!slot.is_empty() && slot.hash() == hash).then(|| slot.entry())
    }

    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        // The entry is in its home slot or a few slots after it, which is often in the next line.
        let home = self.home(hash);
        for slot in [home, home + SLOTS_PER_LINE] {
            if let Some(slot) = self.slots.get(slot) {
                headwater_host::copy::prefetch_read(slot);
            }
        }
    }

    pub(super) fn insert(&mut self, hash: u64, entry: IndexEntry) {
        if self.len * 8 >= self.homes * 7 {
            self.grow();
        }
        while !self.try_insert(SegmentSlot::pack(hash, entry)) {
            self.grow();
        }
        self.len += 1;
    }

    fn try_insert(&mut self, new: SegmentSlot) -> bool {
        let at = self.lower_bound(new.hash());
        let Some(empty) = self.slots.get(at..).and_then(|rest| rest.iter().position(|slot| slot.is_empty()))
        else {
            return false;
        };
        self.slots.copy_within(at..at + empty, at + 1);
        self.slots[at] = new;
        true
    }

    fn grow(&mut self) {
        let homes = (self.homes + self.homes.div_ceil(4)).max(HOMES_MIN);
        self.spread(homes);
    }

    /// Moves every entry to its place in a table of `homes` home slots or a few more. The table becomes no shorter.
    fn spread(&mut self, homes: usize) {
        let slots = GrowingSlice::<SegmentSlot>::full_len(homes + HOMES_MIN + homes / 64);
        // Every slot of the last page is in use.
        self.homes = homes.max(slots.saturating_sub(HOMES_MIN) * 64 / 65);
        // The tail grows until every entry fits.
        let occupied = self.slots.iter().filter(|slot| !slot.is_empty());
        let end = occupied.fold(0, |end, slot| self.home(slot.hash()).max(end) + 1);
        self.slots.grow(GrowingSlice::<SegmentSlot>::full_len(slots.max(end + 1)));
        // First all entries move to the end, where each lies at or behind its new place, because those behind it fit.
        let mut packed = self.slots.len();
        for at in (0..self.slots.len()).rev() {
            let slot = std::mem::take(&mut self.slots[at]);
            if !slot.is_empty() {
                packed -= 1;
                self.slots[packed] = slot;
            }
        }
        let mut place = 0;
        for at in packed..self.slots.len() {
            let slot = std::mem::take(&mut self.slots[at]);
            place = self.home(slot.hash()).max(place);
            self.slots[place] = slot;
            place += 1;
        }
    }

    /// Builds a table of at least `homes` home slots from entries in hash order.
    fn from_sorted(homes: usize, sorted: impl ExactSizeIterator<Item = SegmentSlot>) -> Self {
        let len = sorted.len();
        let mut slots = GrowingSlice::new(GrowingSlice::<SegmentSlot>::full_len(homes.max(len)));
        for (to, slot) in slots.iter_mut().zip(sorted) {
            *to = slot;
        }
        let mut table = Self { slots, homes: 0, len };
        table.spread(homes);
        table
    }

    /// Builds a table from entries of a checkpoint, in hash order.
    pub(super) fn load(entries: &[(u64, IndexEntry)]) -> Self {
        let homes = (entries.len() * 5 / 4).max(HOMES_MIN);
        Self::from_sorted(homes, entries.iter().map(|&(hash, entry)| SegmentSlot::pack(hash, entry)))
    }

    fn position(&self, hash: u64, address: RecordAddress) -> Option<usize> {
        let start = self.lower_bound(hash);
        let run = self.slots.get(start..)?.iter().take_while(|slot| !slot.is_empty() && slot.hash() == hash);
        run.zip(start..).find(|(slot, _)| slot.address() == address).map(|(_, at)| at)
    }

    pub(super) fn replace(&mut self, hash: u64, old: RecordAddress, new: IndexEntry) -> bool {
        let Some(at) = self.position(hash, old) else {
            return false;
        };
        self.slots[at] = SegmentSlot::pack(hash, new);
        true
    }

    pub(super) fn remove(&mut self, hash: u64, address: RecordAddress) -> bool {
        let Some(at) = self.position(hash, address) else {
            return false;
        };
        let mut end = at + 1;
        while let Some(slot) = self.slots.get(end) {
            // A slot that is empty or holds an entry in its home slot ends the run that must move down.
            if slot.is_empty() || self.home(slot.hash()) == end {
                break;
            }
            end += 1;
        }
        self.slots.copy_within(at + 1..end, at);
        self.slots[end - 1] = SegmentSlot::default();
        self.len -= 1;
        true
    }

    /// Removes every entry of a namespace, passes each to `retire`, and returns the number of entries before.
    pub(super) fn remove_namespace(
        &mut self,
        namespace: NamespaceId,
        mut retire: impl FnMut(IndexEntry),
    ) -> usize {
        let before = self.len;
        let is_kept = |slot: &SegmentSlot| slot.entry().namespace != namespace;
        let occupied = self.slots.iter().filter(|slot| !slot.is_empty());
        occupied.clone().filter(|slot| !is_kept(slot)).for_each(|slot| retire(slot.entry()));
        let kept = occupied.filter(|slot| is_kept(slot)).count();
        if kept == 0 {
            *self = Self::default();
        } else if kept < before {
            let homes = (kept * 5 / 4).max(HOMES_MIN);
            let slots = self.slots.iter().copied().filter(|slot| !slot.is_empty() && is_kept(slot));
            let slots: Vec<SegmentSlot> = slots.collect();
            *self = Self::from_sorted(homes, slots.into_iter());
        }
        before
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn next(&self, from: u64) -> Option<(u64, IndexEntry)> {
        let start = self.lower_bound(from);
        let slot = self.slots.get(start..)?.iter().find(|slot| !slot.is_empty())?;
        Some((slot.hash(), slot.entry()))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, IndexEntry)> + '_ {
        self.slots.iter().filter(|slot| !slot.is_empty()).map(|slot| (slot.hash(), slot.entry()))
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<SegmentSlot>()
    }
}
