//! Writes of records: the append, and its effect on index, blocks, expiry queue and counts.
//!
//! Input: a new record and the one it replaces. Output: its sequence. Invariant: an append and its index change happen
//! together, so no reader sees one without the other.

use super::{FoundRecord, Ftl, StallReason};
use crate::command::{NamespaceId, Sequence};
use crate::index::{EntryLifetime, IndexEntry, KeyHash};
use crate::log::RecordSource;
use crate::log::record::{
    FLAG_CLEAR, FLAG_LBA, FLAG_TOMBSTONE, HEADER_BYTES, RecordHeader, UNIT_BYTES, record_units,
};
use crate::media::Media;
use crate::mutant::{Mutant, mutant};
use headwater_nvme::spec::status::Status;

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
    /// Checks that live bytes may grow by `more` and shrink by `less`; the largest new record has `largest` bytes. Returns
    /// the status if not: it tells whether blocks that cannot be read are in the way.
    pub(crate) fn check_capacity(&mut self, largest: usize, more: usize, less: usize) -> Result<(), Status> {
        let bytes = self.blocks().live_bytes() + more as u64;
        if bytes <= self.capacity_with(largest) + less as u64 {
            return Ok(());
        }
        let lacks_quarantined = bytes <= self.capacity_without(0, largest) + less as u64;
        Err(if lacks_quarantined { self.note_stuck() } else { Status::CAPACITY_EXCEEDED })
    }

    /// Checks that a client can append this many bytes now.
    pub(crate) fn check_client_room(&mut self, bytes: usize) -> Result<(), StallReason> {
        let (ready, checkpoint) = (self.space.collector_blocks(), self.checkpoint_reserve());
        if self.blocks().free_count() < checkpoint {
            // The rest of the open block is the collector's: it empties a block with it.
            return Err(StallReason::Room { blocks: self.flash.log().blocks_for(bytes) });
        }
        let free = ready + checkpoint;
        self.flash.check_room(bytes, ready, free).map_err(|blocks| StallReason::Room { blocks })
    }

    /// Appends a record in place of `old`, and returns its sequence. The caller checked the room.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "lengths were checked against the limits at submission"
    )]
    pub(crate) fn write(&mut self, new: &NewRecord<'_>, old: Option<FoundRecord>) -> Sequence {
        let value = new.value.unwrap_or(RecordSource::Bytes(&[]));
        let tombstone = if new.value.is_none() { FLAG_TOMBSTONE } else { 0 };
        let flags = new.batch | tombstone | if new.hash.is_position() { FLAG_LBA } else { 0 };
        let header = RecordHeader {
            crc: 0,
            flags,
            key_bytes: new.key.len() as u16,
            value_bytes: value.len() as u32,
            namespace: new.namespace,
            sequence: self.flash.log().sequence_next(),
            expiry_ms: new.expiry_ms,
        };
        let units = header.units();
        let address = self.flash.append_new(&header, &[RecordSource::Bytes(new.key), value]);
        self.space.raise_for_record(units as usize * UNIT_BYTES);
        self.stats.client_bytes += u64::from(units) * UNIT_BYTES as u64;
        self.collector.note_client_record(units as usize * UNIT_BYTES);
        let blocks = self.flash.blocks_mut();
        if new.value.is_some() {
            if let Some(old) = &old
                && !mutant(Mutant::LiveBytesKept)
            {
                blocks.remove_live(old.entry.address, old.entry.units);
            }
            blocks.add_live(address, units - u32::from(mutant(Mutant::LiveBytesShort)));
            let lifetime = if new.expiry_ms == 0 { EntryLifetime::Unlimited } else { EntryLifetime::Limited };
            let entry = IndexEntry { address, units, namespace: new.namespace, lifetime };
            self.catalog.put(new.hash, entry, new.expiry_ms, old.as_ref());
        } else {
            blocks.add_tombstone(address, units, header.sequence);
            if self.catalog.doubts().is_in_doubt(new.namespace) {
                let digest = self.catalog.hasher().digest_of(&header, new.key);
                self.catalog.doubts_mut().remove_key(new.namespace, digest, header.sequence);
            }
            if new.batch == 0 {
                self.removals.remove_key(header.sequence);
            } else {
                self.removals.remove_keys(header.sequence);
            }
            if let Some(old) = &old {
                blocks.remove_live(old.entry.address, old.entry.units);
                self.catalog.remove(new.namespace, new.hash, old);
            }
        }
        header.sequence
    }

    /// Removes every key and block of a namespace by one record. Returns its sequence and the number removed. `batch`
    /// holds batch flags as in [`NewRecord`].
    pub(crate) fn clear(&mut self, namespace: NamespaceId, batch: u8) -> (Sequence, u64) {
        let sequence = self.flash.log().sequence_next();
        let header = RecordHeader {
            crc: 0,
            flags: FLAG_CLEAR | batch,
            key_bytes: 0,
            value_bytes: 0,
            namespace,
            sequence,
            expiry_ms: 0,
        };
        let address = self.flash.append_new(&header, &[]);
        self.collector.note_client_record(HEADER_BYTES);
        let blocks = self.flash.blocks_mut();
        blocks.add_tombstone(address, header.units(), sequence);
        self.removals.remove_keys(sequence);
        let retire = |entry: IndexEntry| blocks.remove_live(entry.address, entry.units);
        let removed = self.catalog.clear(namespace, sequence, retire);
        (sequence, removed)
    }
}
