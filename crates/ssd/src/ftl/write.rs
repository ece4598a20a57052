//! Writes of records: the append, and its effect on index, blocks, expiry queue and counts.
//!
//! Input: a new record and the one it replaces. Output: its sequence. Invariant: an append and its index change happen
//! together, so no reader sees one without the other.

use super::clear_walks::ClearStep;
use super::receipts::IdleReceipts;
use super::{FoundRecord, Ftl, RecordPart, StallReason};
use crate::command::{NamespaceId, Sequence};
use crate::index::{EntryLifetime, IndexEntry, KeyHash};
use crate::log::RecordSource;
use crate::log::flash_log::AppendSize;
use crate::log::record::{
    FLAG_CLEAR, FLAG_LBA, FLAG_TOMBSTONE, FLAGS_BATCH, HEADER_BYTES, RecordAddress, RecordHeader, UNIT_BYTES,
    record_units,
};
use crate::log::record_draft::RecordDraft;
use crate::media::Media;
use crate::mutant::{Mutant, mutant};
use headwater_nvme::spec::status::Status;

/// Parts of the index that a clear walks at once: keys of few segments, blocks and expiries.
const PARTS_AT_ONCE: usize = 3;

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
        let mut bytes = self.live_bytes() + more as u64;
        let most = self.capacity_with(largest) + less as u64;
        if bytes > most && self.fail_idle_receipts(IdleReceipts::All) {
            bytes = self.live_bytes() + more as u64;
        }
        if bytes <= most {
            return Ok(());
        }
        let lacks_quarantined = bytes <= self.capacity_without(0, largest) + less as u64;
        Err(if lacks_quarantined { self.note_stuck() } else { Status::CAPACITY_EXCEEDED })
    }

    /// Checks that a client can append this many bytes now.
    pub(crate) fn check_client_room(&mut self, bytes: usize) -> Result<(), StallReason> {
        self.check_client_append(AppendSize::of(bytes))
    }

    /// Checks that a client can append this now.
    pub(crate) fn check_client_append(&mut self, append: AppendSize) -> Result<(), StallReason> {
        let (ready, checkpoint) = (self.space.collector_blocks(), self.checkpoint_reserve());
        if self.blocks().free_count() < checkpoint {
            // The rest of the open block is the collector's: it empties a block with it.
            return Err(StallReason::Room { blocks: self.flash.log().blocks_for(append.bytes) });
        }
        let free = ready + checkpoint;
        self.flash.check_room(append, ready, free).map_err(|blocks| StallReason::Room { blocks })
    }

    /// Checks that a tombstone for the expiry of the record at an address may be written now; else returns the sequence
    /// that must be durable first. If a power cut took a batch but left the tombstone of one of its keys, the batch
    /// would have happened in part: the earlier value of that key would be lost.
    pub(crate) fn may_expire(&self, address: RecordAddress) -> Result<(), Sequence> {
        let probe = IndexEntry::probe(address);
        let sequence = match self.header(probe, RecordPart::Key) {
            Ok(Some(header)) if header.flags & FLAGS_BATCH != 0 => header.sequence,
            Ok(_) => return Ok(()),
            // The page is not in memory. No record that starts in its block is younger than `max_sequence`, and no
            // valid one is younger than the last sequence given out, which a torn chain may exceed.
            Err(_) => self.blocks().get(address.block()).max_sequence.min(self.last_sequence()),
        };
        if sequence <= self.durable() { Ok(()) } else { Err(sequence) }
    }

    /// Appends a record in place of `old`, and returns its sequence. The caller checked the room.
    pub(crate) fn write(&mut self, new: &NewRecord<'_>, old: Option<FoundRecord>) -> Sequence {
        let header = self.header_of(new);
        let value = new.value.unwrap_or(RecordSource::Bytes(&[]));
        let address = self.flash.append_new(&header, &[RecordSource::Bytes(new.key), value]);
        self.account(new, (&header, address), old)
    }

    /// Appends a record whose pages are built in place of `old`, and returns its sequence. The caller checked the room.
    pub(crate) fn write_draft(
        &mut self,
        new: &NewRecord<'_>,
        draft: RecordDraft,
        old: Option<FoundRecord>,
    ) -> Sequence {
        let header = self.header_of(new);
        let address = self.flash.append_draft(&header, draft);
        self.account(new, (&header, address), old)
    }

    /// Checks that this many bytes of a draft find their frames.
    pub(crate) fn check_draft_room(&mut self, bytes: usize) -> Result<(), StallReason> {
        let frames = self.flash.log().frames_for(bytes) + self.flash.frames_for_commit();
        self.flash.reserve_frames(frames).then_some(()).ok_or(StallReason::Room { blocks: 0 })
    }

    /// Copies the next bytes of a draft's payload. The caller checked the room.
    pub(crate) fn extend_draft(&mut self, draft: &mut RecordDraft, piece: RecordSource<'_>) {
        self.flash.extend_draft(draft, piece);
    }

    /// Returns the frames of a draft that is given up.
    pub(crate) fn discard_draft(&mut self, draft: RecordDraft) {
        self.flash.discard_draft(draft);
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "lengths were checked against the limits at submission"
    )]
    #[inline]
    pub(super) fn header_of(&self, new: &NewRecord<'_>) -> RecordHeader {
        let tombstone = if new.value.is_none() { FLAG_TOMBSTONE } else { 0 };
        RecordHeader {
            crc: 0,
            flags: new.batch | tombstone | if new.hash.is_position() { FLAG_LBA } else { 0 },
            key_bytes: new.key.len() as u16,
            value_bytes: new.value.map_or(0, |value| value.len()) as u32,
            extents: 0,
            namespace: new.namespace,
            sequence: self.flash.log().sequence_next(),
            expiry_ms: new.expiry_ms,
        }
    }

    /// Accounts for a record that was appended in place of `old`, and returns its sequence.
    #[inline]
    pub(super) fn account(
        &mut self,
        new: &NewRecord<'_>,
        (header, address): (&RecordHeader, RecordAddress),
        old: Option<FoundRecord>,
    ) -> Sequence {
        let units = header.units();
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
            let has_extents = header.extents > 0;
            let entry = IndexEntry { address, units, namespace: new.namespace, lifetime, has_extents };
            self.catalog.put(new.hash, entry, new.expiry_ms, old.as_ref());
        } else {
            blocks.add_tombstone(address, units, header.sequence);
            if self.catalog.doubts().is_in_doubt(new.namespace) {
                let digest = self.catalog.hasher().digest_of(header, new.key);
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
        if let Some(old) = &old {
            self.free_replaced_extents(old);
            self.flash.drop_replaced(old.entry.address, old.entry.units);
        }
        header.sequence
    }

    /// Removes every key and block of a namespace by one record; their entries leave the index in later turns. Returns its
    /// sequence and the number removed. `batch` holds batch flags as in [`NewRecord`].
    pub(crate) fn clear(&mut self, namespace: NamespaceId, batch: u8) -> (Sequence, u64) {
        let sequence = self.flash.log().sequence_next();
        let header = RecordHeader {
            crc: 0,
            flags: FLAG_CLEAR | batch,
            key_bytes: 0,
            value_bytes: 0,
            extents: 0,
            namespace,
            sequence,
            expiry_ms: 0,
        };
        let address = self.flash.append_new(&header, &[]);
        self.collector.note_client_record(HEADER_BYTES);
        let blocks = self.flash.blocks_mut();
        blocks.add_tombstone(address, header.units(), sequence);
        self.removals.remove_keys(sequence);
        let is_alone = !self.is_clearing_any();
        let removed = self.catalog.clear(namespace, sequence);
        if is_alone {
            // A few keys leave the index at once, and no command waits for them.
            let parts = std::iter::repeat_with(|| self.advance_clears()).take(PARTS_AT_ONCE);
            let _ = parts.take_while(|step| *step == ClearStep::Part).count();
        }
        (sequence, removed)
    }

    /// Returns true if what the index holds of a namespace is dead: a clear removed it, and it leaves the index in parts.
    #[inline]
    pub(crate) fn is_clearing(&self, namespace: NamespaceId) -> bool {
        self.catalog.walks().is_clearing(namespace)
    }

    /// Returns true if the records of any cleared namespace are still in the index.
    #[inline]
    pub(crate) fn is_clearing_any(&self) -> bool {
        !self.catalog.walks().is_empty()
    }

    /// Removes the entry of a live record if a clear removed it, and the walk has not reached it yet. Returns true then.
    pub(super) fn retire_cleared(&mut self, hash: KeyHash, entry: IndexEntry, header: &RecordHeader) -> bool {
        let is_cleared = self.is_clearing(header.namespace);
        if is_cleared {
            self.catalog.retire_cleared(hash, entry, header.expiry_ms);
            self.flash.blocks_mut().remove_live(entry.address, entry.units);
            self.free_cleared_extents(entry);
        }
        is_cleared
    }

    /// Removes the next part of the entries of cleared namespaces.
    pub(crate) fn advance_clears(&mut self) -> ClearStep {
        let blocks = self.flash.blocks_mut();
        let mut with_extents = Vec::new();
        let step = self.catalog.advance_clears(|entry| {
            blocks.remove_live(entry.address, entry.units);
            with_extents.extend(entry.has_extents.then_some(entry));
        });
        with_extents.into_iter().for_each(|entry| self.free_cleared_extents(entry));
        step
    }

    /// Returns the bytes of live records and tombstones, without records that a clear removed.
    pub(crate) fn live_bytes(&self) -> u64 {
        let live = self.blocks().live_bytes() + self.extents.promised_bytes();
        live.saturating_sub(self.catalog.walks().dead_bytes())
    }
}
