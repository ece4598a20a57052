//! Writes of records: the append, and its effect on index, blocks, expiry queue and counts.
//!
//! Input: a new record and the one it replaces. Output: its sequence. Invariant: an append and its index change happen
//! together, so no reader sees one without the other.

use super::{FoundRecord, Ftl, NamespaceState, StallReason};
use crate::command::{NamespaceId, Sequence};
use crate::index::{EntryLifetime, IndexEntry, KeyHash, RecordIndex};
use crate::log::record::{FLAG_CLEAR, FLAG_LBA, FLAG_TOMBSTONE, RecordHeader, UNIT_BYTES, record_units};
use crate::log::{ChecksumMode, RecordSource};
use crate::media::Media;

/// A record to be written, with everything except its sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRecord<'a> {
    pub(crate) namespace: NamespaceId,
    pub(crate) hash: KeyHash,
    pub(crate) key: &'a [u8],
    /// `None` writes a tombstone.
    pub(crate) value: Option<RecordSource<'a>>,
    pub(crate) expiry_ms: u64,
    /// Flags of its position in an all-or-nothing batch: `FLAG_BATCH_MORE`, `FLAG_BATCH_REST`, both or none.
    pub(crate) batch: u8,
}

impl NewRecord<'_> {
    /// Returns the length in bytes, padding included.
    pub(crate) fn bytes(&self) -> usize {
        record_units(self.key.len(), self.value.map_or(0, |value| value.len())) as usize * UNIT_BYTES
    }
}

impl<M: Media> Ftl<M> {
    /// Returns true if live bytes may grow by `more` and shrink by `less`; the largest new record has `largest` bytes.
    pub(crate) fn has_capacity(&self, largest: usize, more: usize, less: usize) -> bool {
        self.blocks.live_bytes() + more as u64 <= self.capacity_with(largest) + less as u64
    }

    /// Checks that a client can append this many bytes now.
    pub(crate) fn client_room(&mut self, bytes: usize) -> Result<(), StallReason> {
        self.room(bytes, self.reserve_blocks() + self.set_aside)
    }

    /// Appends a record in place of `old`, and returns its sequence. The caller checked the room.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "lengths were checked against the limits at submission"
    )]
    pub(crate) fn write(&mut self, new: &NewRecord<'_>, old: Option<FoundRecord>) -> Sequence {
        let value = new.value.unwrap_or(RecordSource::Bytes(&[]));
        let tombstone = if new.value.is_none() { FLAG_TOMBSTONE } else { 0 };
        let flags = new.batch | tombstone | if new.hash.is_place() { FLAG_LBA } else { 0 };
        let header = RecordHeader {
            crc: 0,
            flags,
            key_bytes: new.key.len() as u16,
            value_bytes: value.len() as u32,
            namespace: new.namespace,
            sequence: self.log.sequence_next(),
            expiry_ms: new.expiry_ms,
        };
        let units = header.units();
        let payload = [RecordSource::Bytes(new.key), value];
        let address =
            self.log.append(&mut self.dram, &mut self.blocks, &header, ChecksumMode::Compute, &payload);
        self.log.advance();
        self.reserve_for(units as usize * UNIT_BYTES);
        self.stats.client_bytes += u64::from(units) * UNIT_BYTES as u64;
        if new.value.is_some() {
            let lifetime = if new.expiry_ms == 0 { EntryLifetime::Unlimited } else { EntryLifetime::Limited };
            let entry = IndexEntry { address, units, namespace: new.namespace, lifetime };
            self.put_entry(new.hash, entry, old);
            self.expiry.insert(new.expiry_ms, new.hash, address);
            self.blocks.add_live(address, units);
        } else {
            self.blocks.add_tombstone(address, units, header.sequence);
            self.last_removal = header.sequence;
            if new.batch != 0 {
                self.last_joint_removal = header.sequence;
            }
            if let Some(old) = old {
                self.index.remove(new.hash, old.entry.address);
                self.forget_record(new.hash, old);
                self.count(new.namespace, |state| state.remove(old.entry));
            }
        }
        header.sequence
    }

    fn put_entry(&mut self, hash: KeyHash, entry: IndexEntry, old: Option<FoundRecord>) {
        match old {
            Some(old) => {
                let replaced = self.index.replace(hash, old.entry.address, entry);
                assert!(replaced, "the replaced record is not in the index");
                self.forget_record(hash, old);
                self.count(entry.namespace, |state| {
                    state.remove(old.entry);
                    state.add(entry);
                });
            }
            None => {
                self.index.insert(hash, entry);
                self.count(entry.namespace, |state| state.add(entry));
            }
        }
    }

    /// Removes a replaced record from the live bytes and the expiry queue.
    fn forget_record(&mut self, hash: KeyHash, old: FoundRecord) {
        self.blocks.remove_live(old.entry.address, old.entry.units);
        if old.entry.lifetime == EntryLifetime::Limited {
            match old.header {
                Some(header) => self.expiry.remove(header.expiry_ms, hash, old.entry.address),
                // The expiry in the damaged header is unknown: the whole queue is searched. Rare, and linear.
                None => self.expiry.retain(|at, address| (at, address) != (hash, old.entry.address)),
            }
        }
    }

    /// Removes every key and block of a namespace by one record. Returns its sequence and the number removed. `batch`
    /// holds batch flags as in [`NewRecord`].
    pub(crate) fn clear(&mut self, namespace: NamespaceId, batch: u8) -> (Sequence, u64) {
        let sequence = self.log.sequence_next();
        let header = RecordHeader {
            crc: 0,
            flags: FLAG_CLEAR | batch,
            key_bytes: 0,
            value_bytes: 0,
            namespace,
            sequence,
            expiry_ms: 0,
        };
        let address = self.log.append(&mut self.dram, &mut self.blocks, &header, ChecksumMode::Compute, &[]);
        self.log.advance();
        self.blocks.add_tombstone(address, header.units(), sequence);
        self.last_removal = sequence;
        self.last_joint_removal = sequence;
        let removed = self.namespaces[namespace.index()].keys;
        let blocks = &mut self.blocks;
        let mut flat = 0;
        self.index.flat.drain(namespace, |entry| {
            blocks.remove_live(entry.address, entry.units);
            flat += 1;
        });
        if flat < removed {
            self.clear_keys(namespace);
        }
        self.count(namespace, |state| {
            *state = NamespaceState { cleared: sequence, ..NamespaceState::default() }
        });
        (sequence, removed)
    }

    fn clear_keys(&mut self, namespace: NamespaceId) {
        let mut from = KeyHash(0);
        while let Some((hash, _)) = self.index.hashed.next(from) {
            let removed: Vec<IndexEntry> = (0..)
                .map_while(|nth| self.index.find(hash, nth))
                .filter(|entry| entry.namespace == namespace)
                .collect();
            for entry in removed {
                self.index.remove(hash, entry.address);
                self.blocks.remove_live(entry.address, entry.units);
            }
            from = KeyHash(hash.0 + 1);
        }
        let index = &self.index;
        self.expiry.retain(|hash, address| index.contains(hash, address));
    }
}
