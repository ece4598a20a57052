//! The catalogue of what exists: the record of every key and block, its expiry, and the namespaces.
//!
//! Input: records as they are written, replaced, moved and removed. Output: the entry of a key, the next expiry, the
//! definition and the counts of a namespace. Invariant: index, expiry queue and counts change together: every live
//! record with an expiry is in the queue, and the counts of a namespace are those of its index entries.

use super::clear_walks::{ClearStep, ClearWalks, ENTRIES_PER_TURN, SEGMENTS_PER_TURN, WalkPosition};
use super::doubt::Doubts;
use super::found_record::FoundRecord;
use super::namespace_state::NamespaceState;
use super::namespace_table::{NamespaceDefinition, NamespaceTable};
use super::sanitize_mark::FoundMark;
use crate::command::{Lba, NamespaceId, Sequence};
use crate::index::expiry::ExpiryQueue;
use crate::index::{
    CompositeIndex, EntryLifetime, FlatIndex, HashedIndex, IndexEntry, KeyHash, KeyHasher, RecordIndex,
};
use crate::limits::SPACES;
use crate::log::record::{RecordAddress, RecordHeader};
use crate::mutant::{Mutant, mutant};
use crate::namespace::NamespaceKind;
use crate::namespace::attachment::NamespaceAttachment;
use headwater_host::clock::UnixMillis;

/// Index, expiries and namespaces.
#[derive(Debug)]
pub(super) struct Catalog {
    index: CompositeIndex,
    hasher: KeyHasher,
    expiry: ExpiryQueue,
    counts: [NamespaceState; SPACES],
    namespace_table: NamespaceTable,
    doubts: Doubts,
    walks: ClearWalks,
    /// Wall time of this turn, at which expiries are due.
    wall: UnixMillis,
}

impl Catalog {
    /// Makes a catalogue of nothing, whose keys are hashed with this hasher.
    pub(super) fn new(hasher: KeyHasher) -> Self {
        Self {
            index: CompositeIndex::default(),
            hasher,
            expiry: ExpiryQueue::default(),
            counts: [NamespaceState::default(); SPACES],
            namespace_table: NamespaceTable::default(),
            doubts: Doubts::default(),
            walks: ClearWalks::default(),
            wall: UnixMillis(0),
        }
    }

    /// Returns the index.
    #[inline]
    pub(super) fn index(&self) -> &CompositeIndex {
        &self.index
    }

    /// Returns the index, for tests that damage it.
    #[cfg(test)]
    pub(super) fn index_mut(&mut self) -> &mut CompositeIndex {
        &mut self.index
    }

    /// Returns the hasher and the index.
    pub(super) fn into_index(self) -> (KeyHasher, CompositeIndex) {
        (self.hasher, self.index)
    }

    /// Returns the hasher of keys.
    #[inline]
    pub(super) fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// Returns the expiry queue.
    pub(super) fn expiry(&self) -> &ExpiryQueue {
        &self.expiry
    }

    /// Returns the counts of all namespaces, by index.
    pub(super) fn counts(&self) -> &[NamespaceState; SPACES] {
        &self.counts
    }

    /// Returns the namespace table.
    #[inline]
    pub(super) fn namespace_table(&self) -> &NamespaceTable {
        &self.namespace_table
    }

    /// Returns what is in doubt.
    #[inline]
    pub(super) fn doubts(&self) -> &Doubts {
        &self.doubts
    }

    /// Returns what is in doubt, to change it.
    pub(super) fn doubts_mut(&mut self) -> &mut Doubts {
        &mut self.doubts
    }

    /// Sets the wall time at which expiries are due.
    pub(super) fn set_wall(&mut self, wall: UnixMillis) {
        self.wall = wall;
    }

    /// Returns true if a record with this header has expired.
    #[inline]
    pub(super) fn is_expired(&self, header: &RecordHeader) -> bool {
        header.is_expired(self.wall.0)
    }

    /// Returns the record that expires first, if it is due.
    pub(super) fn first_due(&self) -> Option<(u64, KeyHash, RecordAddress)> {
        self.expiry.first_due(self.wall.0)
    }

    /// Removes a record from the expiry queue, because its expiry is being carried out.
    pub(super) fn take_expiry(&mut self, expiry_ms: u64, hash: KeyHash, address: RecordAddress) {
        self.expiry.remove(expiry_ms, hash, address);
    }

    /// Removes a record whose expiry is unknown from the expiry queue: the whole queue is searched. Rare, and linear.
    pub(super) fn forget_expiry(&mut self, hash: KeyHash, address: RecordAddress) {
        self.expiry.retain(|at, place| (at, place) != (hash, address));
    }

    /// Puts a new record in place of `old`, which has the same key.
    pub(super) fn put(
        &mut self,
        hash: KeyHash,
        entry: IndexEntry,
        expiry_ms: u64,
        old: Option<&FoundRecord>,
    ) {
        match old {
            Some(old) => {
                let replaced = self.index.replace(hash, old.entry.address, entry);
                assert!(replaced, "the replaced record is not in the index");
                self.retire_expiry(hash, old);
                self.update_counts(entry.namespace, |state| {
                    state.remove(old.entry);
                    state.add(entry);
                });
            }
            None => {
                self.index.insert(hash, entry);
                self.update_counts(entry.namespace, |state| state.add(entry));
            }
        }
        if !mutant(Mutant::ExpiryNotQueued) {
            self.expiry.insert(expiry_ms, hash, entry.address);
        }
    }

    /// Removes the record of a key of this namespace.
    pub(super) fn remove(&mut self, namespace: NamespaceId, hash: KeyHash, old: &FoundRecord) {
        let removed = self.index.remove(hash, old.entry.address);
        assert!(removed, "the removed record is not in the index");
        self.retire_expiry(hash, old);
        self.update_counts(namespace, |state| state.remove(old.entry));
    }

    /// Replaces the address of a record that was moved, by compare and swap.
    pub(super) fn relocate(&mut self, hash: KeyHash, from: RecordAddress, to: IndexEntry, expiry_ms: u64) {
        let swapped = self.index.replace(hash, from, to);
        assert!(swapped, "the index lost a record while it was moved");
        if to.lifetime == EntryLifetime::Limited {
            self.expiry.remove(expiry_ms, hash, from);
            self.expiry.insert(expiry_ms, hash, to.address);
        }
    }

    fn retire_expiry(&mut self, hash: KeyHash, old: &FoundRecord) {
        if old.entry.lifetime == EntryLifetime::Limited {
            match old.header {
                Some(header) => self.expiry.remove(header.expiry_ms, hash, old.entry.address),
                // The expiry in the damaged header is unknown.
                None => self.forget_expiry(hash, old.entry.address),
            }
        }
    }

    /// Removes every key and block of a namespace, and returns their number. Their entries leave the index in later turns,
    /// and are dead until then.
    pub(super) fn clear(&mut self, namespace: NamespaceId, sequence: Sequence) -> u64 {
        let NamespaceState { keys: removed, bytes, .. } = self.counts[namespace.index()];
        self.doubts.clear(namespace, sequence);
        self.update_counts(namespace, |state| {
            *state = NamespaceState { cleared: sequence, ..NamespaceState::default() }
        });
        if removed > 0 {
            self.walks.begin(namespace, bytes);
        }
        removed
    }

    /// Counts bytes of extents that a record of a namespace has.
    pub(super) fn add_extent_bytes(&mut self, namespace: NamespaceId, bytes: u64) {
        self.counts[namespace.index()].bytes += bytes;
    }

    /// Uncounts bytes of extents that a record of a namespace had.
    pub(super) fn remove_extent_bytes(&mut self, namespace: NamespaceId, bytes: u64) {
        let state = &mut self.counts[namespace.index()];
        state.bytes =
            state.bytes.checked_sub(bytes).expect("a namespace lost bytes of extents that it did not have");
    }

    /// Notes that extents of dead records are free.
    pub(super) fn retire_extent_bytes(&mut self, bytes: u64) {
        self.walks.retire_bytes(bytes);
    }

    /// Returns the walks through the index for cleared namespaces.
    #[inline]
    pub(super) fn walks(&self) -> &ClearWalks {
        &self.walks
    }

    /// Removes the next part of the entries of cleared namespaces, and passes each to `retire`.
    pub(super) fn advance_clears(&mut self, mut retire: impl FnMut(IndexEntry)) -> ClearStep {
        let Some(mut walk) = self.walks.first() else { return ClearStep::Idle };
        let walks = &mut self.walks;
        let mut remove = |entry: IndexEntry| {
            walk.has_expiries |= entry.lifetime == EntryLifetime::Limited;
            walks.retire(entry.units);
            retire(entry);
        };
        walk.position = match walk.position {
            WalkPosition::Keys(first) => {
                match walk_segments(&mut self.index.hashed, first, walk.namespace, &mut remove) {
                    Some(next) => WalkPosition::Keys(next),
                    None => WalkPosition::Blocks(KeyHash::of_block(walk.namespace, Lba(0))),
                }
            }
            WalkPosition::Blocks(from) => {
                match walk_blocks(&mut self.index.flat, from, walk.namespace, &mut remove) {
                    Some(next) => WalkPosition::Blocks(next),
                    None if walk.has_expiries => WalkPosition::Expiries((0, KeyHash(0), RecordAddress(0))),
                    None => WalkPosition::End,
                }
            }
            WalkPosition::Expiries(from) => {
                let index = &self.index;
                let live = |hash, address| index.contains(hash, address);
                match self.expiry.retain_part(from, ENTRIES_PER_TURN, live) {
                    Some(next) => WalkPosition::Expiries(next),
                    None => WalkPosition::End,
                }
            }
            WalkPosition::End => WalkPosition::End,
        };
        self.walks.set_first(walk)
    }

    /// Removes the entry of a dead record that the walk has not reached yet.
    pub(super) fn retire_cleared(&mut self, hash: KeyHash, entry: IndexEntry, expiry_ms: u64) {
        let removed = self.index.remove(hash, entry.address);
        assert!(removed, "the dead record is not in the index");
        self.expiry.remove(expiry_ms, hash, entry.address);
        self.walks.retire(entry.units);
    }

    /// Changes the counts of a namespace.
    fn update_counts(&mut self, namespace: NamespaceId, change: impl FnOnce(&mut NamespaceState)) {
        let state = &mut self.counts[namespace.index()];
        let was_empty = state.keys == 0;
        change(state);
        if was_empty != (state.keys == 0) {
            self.namespace_table.note_emptiness_change(namespace);
        }
    }

    /// Returns true if the records of a key space may grow by `more` bytes and shrink by `less` within its quota.
    pub(super) fn fits_quota(&self, namespace: NamespaceId, more: usize, less: usize) -> bool {
        match self.namespace_table.get(namespace) {
            NamespaceDefinition::Created(made) if made.size > 0 && made.kind == NamespaceKind::Kv => {
                let bytes = self.counts[namespace.index()].bytes;
                more <= less || bytes + more as u64 <= made.size + less as u64
            }
            _ => true,
        }
    }

    /// Applies a change of a namespace whose record was written with this sequence.
    pub(super) fn change_namespace(
        &mut self,
        namespace: NamespaceId,
        definition: NamespaceDefinition,
        attachment: NamespaceAttachment,
        sequence: Sequence,
    ) {
        self.namespace_table.apply_change(namespace, definition, attachment, sequence);
    }

    /// Makes the changes of namespaces up to this durable sequence visible.
    #[inline]
    pub(super) fn make_visible(&mut self, durable: Sequence) {
        self.namespace_table.make_visible(durable);
    }

    /// Removes a controller that is gone from the attachments of all namespaces.
    pub(super) fn forget_controller(&mut self, controller: u16) {
        self.namespace_table.forget_controller(controller);
    }
}

/// The calls of recovery alone, which inserts what it found and counts it at the end.
impl Catalog {
    /// Sets the hasher of an empty catalogue.
    pub(super) fn set_hasher(&mut self, hasher: KeyHasher) {
        assert!(self.index.is_empty(), "the hasher of an index with entries cannot change");
        self.hasher = hasher;
    }

    /// Raises the sequence of the last clear of a namespace. Returns true if it grew.
    pub(super) fn raise_cleared(&mut self, namespace: NamespaceId, sequence: Sequence) -> bool {
        let state = &mut self.counts[namespace.index()];
        let grows = sequence > state.cleared;
        state.cleared = state.cleared.max(sequence);
        grows
    }

    /// Inserts an entry of a checkpoint, unless its block is there already.
    pub(super) fn insert_block(&mut self, position: KeyHash, entry: IndexEntry) {
        if self.index.find(position, 0).is_none() {
            self.index.insert(position, entry);
        }
    }

    /// Inserts the entries of one segment of a checkpoint, sorted by hash. Drops all of them if they are out of order.
    pub(super) fn insert_segment(&mut self, number: usize, entries: &[(KeyHash, IndexEntry)]) {
        // The entries of a segment are sorted; one that is not was damaged unnoticed by the checksum, and is dropped.
        let _ = self.index.hashed.load_segment(number, entries);
    }

    /// Inserts a record that the scan found.
    pub(super) fn insert_record(&mut self, hash: KeyHash, entry: IndexEntry, expiry_ms: u64) {
        self.index.insert(hash, entry);
        self.expiry.insert(expiry_ms, hash, entry.address);
    }

    /// Inserts an entry whose record is lost.
    pub(super) fn insert_lost(&mut self, hash: KeyHash, entry: IndexEntry) {
        self.index.insert(hash, entry);
        self.counts[entry.namespace.index()].add(entry);
    }

    /// Removes an entry of a checkpoint for which the scan found a newer record.
    pub(super) fn remove_outdated(&mut self, hash: KeyHash, address: RecordAddress) {
        let removed = self.index.remove(hash, address);
        assert!(removed, "the outdated record is not in the index");
    }

    /// Inserts an expiry of a checkpoint, if its record is live.
    pub(super) fn insert_expiry(&mut self, expiry_ms: u64, hash: KeyHash, address: RecordAddress) {
        if self.index.contains(hash, address) {
            self.expiry.insert(expiry_ms, hash, address);
        }
    }

    /// Counts every entry in its namespace, and passes it to `each`.
    pub(super) fn count_all(&mut self, mut each: impl FnMut(IndexEntry)) {
        let mut from = KeyHash(0);
        while let Some((hash, _)) = self.index.next(from) {
            for entry in (0..).map_while(|nth| self.index.find(hash, nth)) {
                self.counts[entry.namespace.index()].add(entry);
                each(entry);
            }
            from = KeyHash(hash.0 + 1);
        }
    }

    /// Sets the definition of a namespace.
    pub(super) fn load_namespace(
        &mut self,
        namespace: NamespaceId,
        definition: NamespaceDefinition,
        attachment: &NamespaceAttachment,
    ) {
        self.namespace_table.load(namespace, definition, attachment);
    }

    /// Sets the sanitize mark.
    pub(super) fn load_sanitize(&mut self, mark: Option<FoundMark>) {
        self.namespace_table.load_sanitize(mark);
    }
}

/// Removes the entries of a namespace from a few segments. Returns the segment at which the walk goes on.
fn walk_segments(
    index: &mut HashedIndex,
    first: usize,
    namespace: NamespaceId,
    remove: &mut impl FnMut(IndexEntry),
) -> Option<usize> {
    let (mut next, mut visited) = (first, 0);
    for _ in 0..SEGMENTS_PER_TURN {
        let (segment, entries) = index.remove_namespace(next, namespace, &mut *remove)?;
        next = segment + 1;
        visited += entries;
        if visited >= ENTRIES_PER_TURN {
            break;
        }
    }
    Some(next)
}

/// Removes blocks of a namespace. Returns the position at which the walk goes on.
fn walk_blocks(
    index: &mut FlatIndex,
    from: KeyHash,
    namespace: NamespaceId,
    remove: &mut impl FnMut(IndexEntry),
) -> Option<KeyHash> {
    let mut next = from;
    for _ in 0..ENTRIES_PER_TURN {
        let (position, entry) = index.next_in(namespace, next.namespace_and_lba().1)?;
        index.remove(position, entry.address);
        remove(entry);
        next = KeyHash(position.0 + 1);
    }
    Some(next)
}
