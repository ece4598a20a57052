//! The extents of values: blocks outside of the log, each of which holds bytes of one value.
//!
//! Input: values to store, records that are replaced, removed or moved. Output: filled extents, and extents that may be erased.
//! Invariant: an extent belongs to one live record, or to one store under way, or is free; it is filled again only if a durable
//! page or record says that what replaced its record is durable (`docs/formats/medium-2.md`, rule 8).
//!
//! A value is stored in three steps: its whole blocks fill extents, all of them are programmed, its record is appended. Until
//! then nothing on the medium names the extents, and a power cut leaves free blocks.

use super::extent_store::ExtentStore;
use super::value_extents::bytes_of_extents;
use super::{FoundRecord, Ftl, NewRecord, StallReason};
use crate::command::{Sequence, ValueSource};
use crate::index::IndexEntry;
use crate::limits::COPY_PART_BYTES;
use crate::log::RecordSource;
use crate::log::extent_list::{Extent, decode, encode};
use crate::log::extent_writes::ExtentWriter;
use crate::log::flash_log::EXTENT_JOB_PAGES;
use crate::log::record::{
    EXTENT_ENTRY_BYTES, HEADER_BYTES, RecordAddress, RecordHeader, UNIT_BYTES, record_units,
};
use crate::media::Media;
use crate::media::geometry::{BLOCK_DATA_BYTES, PAGE_DATA_BYTES, PAGES_PER_BLOCK};
use crate::mutant::{Mutant, mutant};
use headwater_host::width::narrow;
use std::collections::BTreeSet;

/// Pages filled before other operations get a turn.
const PAGES_PER_TURN: usize = COPY_PART_BYTES / PAGE_DATA_BYTES;
/// Most pages that wait for the medium, and the part of device DRAM that they may take.
const WAITING_PAGES_MAX: usize = 512;
const WAITING_SHARE: usize = 4;
/// Most blocks that a store asks for at once.
const BLOCKS_ASKED_MAX: usize = 16;

impl<M: Media> Ftl<M> {
    /// Returns the number of extents that a value of this length takes; 0 if it lies in the log.
    pub(crate) fn extents_for(&self, value_bytes: usize) -> usize {
        let has_extents = self.flash.traits().has_extents && value_bytes >= self.extents_from;
        if has_extents { value_bytes / BLOCK_DATA_BYTES } else { 0 }
    }

    /// Returns the bytes of the log that the record of a value with extents takes.
    pub(crate) fn extent_record_bytes(key_bytes: usize, value_bytes: usize, extents: usize) -> usize {
        let rest = value_bytes - extents * BLOCK_DATA_BYTES;
        record_units(key_bytes, extents * EXTENT_ENTRY_BYTES + rest) as usize * UNIT_BYTES
    }

    /// Returns the bytes of the log and of extents that a record takes.
    pub(crate) fn stored_bytes(&self, entry: IndexEntry) -> usize {
        let extents = if entry.has_extents { self.extents.by_record.get(&entry.address) } else { None };
        entry.units as usize * UNIT_BYTES + extents.map_or(0, |extents| extents.len() * BLOCK_DATA_BYTES)
    }

    /// Begins a store of a value with so many extents. The caller checked the capacity; what the value takes counts from now on.
    pub(crate) fn begin_extents(&mut self, count: usize) -> ExtentStore {
        self.extents.promised += count;
        ExtentStore::new(self.flash.begin_extents(), count)
    }

    /// Fills the next pages of a value's extents. Stalls until all of them are on the medium.
    pub(crate) fn fill_extents(
        &mut self,
        store: &mut ExtentStore,
        value: &ValueSource,
    ) -> Result<(), StallReason> {
        let pages = store.count * PAGES_PER_BLOCK;
        let end = pages.min(store.pages + PAGES_PER_TURN);
        while store.pages < end {
            let (nth, page) = (store.pages / PAGES_PER_BLOCK, store.pages % PAGES_PER_BLOCK);
            if nth == store.extents.len() {
                self.open_extent(store)?;
            }
            let wanted = EXTENT_JOB_PAGES.min(end - store.pages).min(PAGES_PER_BLOCK - page);
            let now = self.extent_pages_now(store.writer, wanted)?;
            let (extent, at) = (store.extents[nth], store.pages * PAGE_DATA_BYTES);
            let range = (extent, narrow(page), narrow(now));
            let filled = usize::from(self.flash.fill_extent_pages(store.writer, range, (value, at)));
            if filled == 0 {
                return Err(StallReason::Room { blocks: 0 });
            }
            store.pages += filled;
            if page + filled == PAGES_PER_BLOCK {
                self.flash.close_extent(extent);
            }
        }
        if store.pages < pages {
            return Err(StallReason::Turn);
        }
        let (left, _) = self.flash.extent_pages(store.writer);
        if left > 0 && !mutant(Mutant::ExtentsNotAwaited) { Err(StallReason::ExtentPages) } else { Ok(()) }
    }

    pub(super) fn open_extent(&mut self, store: &mut ExtentStore) -> Result<(), StallReason> {
        let (ready, checkpoint) = (self.space.collector_blocks(), self.checkpoint_reserve());
        let few = self.blocks().ready_count() <= ready || self.blocks().free_count() <= ready + checkpoint;
        let extent = if few { None } else { self.flash.open_extent() };
        let Some(extent) = extent else {
            let blocks = (store.count - store.extents.len()).min(BLOCKS_ASKED_MAX);
            return Err(StallReason::Room { blocks });
        };
        self.extents.promised -= 1;
        store.extents.push(extent);
        Ok(())
    }

    /// Returns the number of pages of an extent, of those wanted, that find a frame now and leave those of a commit.
    pub(super) fn extent_pages_now(
        &mut self,
        writer: ExtentWriter,
        wanted: usize,
    ) -> Result<usize, StallReason> {
        let (own, all) = self.flash.extent_pages(writer);
        let most = WAITING_PAGES_MAX.min(self.page_cache().frames_max() / WAITING_SHARE);
        if all >= most {
            return Err(StallReason::ExtentPages);
        }
        let commit = self.flash.frames_for_commit();
        for pages in [wanted.min(most - all), 1] {
            if self.flash.reserve_frames(pages + commit) {
                return Ok(pages);
            }
        }
        Err(if own > 0 { StallReason::ExtentPages } else { StallReason::Room { blocks: 0 } })
    }

    /// Appends the record of a value whose extents are filled in place of `old`, and returns its sequence. `rest` is what lies
    /// behind the extents. The caller checked the room.
    pub(crate) fn write_extents(
        &mut self,
        new: &NewRecord<'_>,
        store: ExtentStore,
        rest: RecordSource<'_>,
        old: Option<FoundRecord>,
    ) -> Sequence {
        assert!(
            store.extents.len() == store.count && store.pages == store.count * PAGES_PER_BLOCK,
            "a record is appended before its extents are filled"
        );
        let list = encode(&store.extents);
        let header = RecordHeader {
            value_bytes: narrow(list.len() + rest.len()),
            extents: narrow(store.count),
            ..self.header_of(new)
        };
        let payload = [RecordSource::Bytes(new.key), RecordSource::Bytes(&list), rest];
        let address = self.flash.append_new(&header, &payload);
        let bytes = bytes_of_extents(store.count);
        self.stats.client_bytes += bytes;
        let sequence = self.account(new, (&header, address), old);
        self.extents.by_record.insert(address, store.extents);
        self.catalog.add_extent_bytes(new.namespace, bytes);
        sequence
    }

    /// Ends a store that wrote no record: its extents are free once nothing of them is in flight.
    pub(crate) fn abandon_extents(&mut self, store: ExtentStore) {
        self.extents.promised -= store.count - store.extents.len();
        if !store.extents.is_empty() {
            self.extents.abandoned.push((store.writer, store.extents));
        }
    }

    /// Frees the extents of ended stores of which nothing is in flight. Returns true if there were any.
    pub(super) fn free_abandoned_extents(&mut self) -> bool {
        let mut moved = false;
        for (writer, extents) in std::mem::take(&mut self.extents.abandoned) {
            if self.flash.extent_pages(writer).0 > 0 {
                self.extents.abandoned.push((writer, extents));
            } else {
                self.free_extents(&extents, Sequence(0));
                moved = true;
            }
        }
        moved
    }

    fn free_extents(&mut self, extents: &[Extent], replaced_by: Sequence) {
        for extent in extents {
            self.flash.blocks_mut().mark_evacuated(extent.block);
            self.collector.evacuated.add_extent(extent.block, extent.order, replaced_by);
        }
    }

    /// Frees the extents of a record that was replaced or removed, and returns their bytes.
    fn free_extents_of(&mut self, entry: IndexEntry) -> u64 {
        let extents = if entry.has_extents { self.extents.by_record.remove(&entry.address) } else { None };
        let Some(extents) = extents else { return 0 };
        if !mutant(Mutant::ExtentsNotFreed) {
            self.free_extents(&extents, self.last_sequence());
        }
        bytes_of_extents(extents.len())
    }

    /// Frees the extents of a record that the last one replaced or removed.
    #[inline]
    pub(super) fn free_replaced_extents(&mut self, old: &FoundRecord) {
        if old.entry.has_extents {
            let bytes = self.free_extents_of(old.entry);
            self.catalog.remove_extent_bytes(old.entry.namespace, bytes);
        }
    }

    /// Frees the extents of a record that a clear removed.
    pub(super) fn free_cleared_extents(&mut self, entry: IndexEntry) {
        let bytes = self.free_extents_of(entry);
        self.catalog.retire_extent_bytes(bytes);
    }

    /// Returns the extents that a record names; `None` if its bytes are no list.
    pub(crate) fn extents_of(
        &self,
        address: RecordAddress,
        header: &RecordHeader,
    ) -> Result<Option<Vec<Extent>>, StallReason> {
        let skip = HEADER_BYTES + usize::from(header.key_bytes);
        let mut list = Vec::with_capacity(header.list_bytes());
        for piece in super::RecordPieces::new(self, address, skip, header.list_bytes()) {
            list.extend_from_slice(piece.map_err(|_| self.pages(address, (0, skip + header.list_bytes())))?);
        }
        let is_whole = list.len() == header.list_bytes();
        Ok(decode(&list).filter(|_| is_whole))
    }

    /// Sets the extents of the records that recovery found. A block that is in use for something else, or that a list names
    /// twice, has no second owner: its pages do not prove themselves to the reader of the other record. An unowned extent can be
    /// read, and stays in quarantine until the next opening, which may know its record.
    pub(super) fn load_extents(&mut self, found: Vec<(IndexEntry, Vec<Extent>)>, unowned: &[Extent]) {
        let all = found.iter().flat_map(|(_, extents)| extents).chain(unowned);
        self.flash.blocks_mut().adopt_extents(all.map(|extent| (extent.block, extent.order)));
        let mut owned = BTreeSet::new();
        for (entry, mut extents) in found {
            extents.retain(|extent| self.is_own_extent(*extent) && owned.insert(extent.block));
            self.catalog.add_extent_bytes(entry.namespace, bytes_of_extents(extents.len()));
            self.extents.by_record.insert(entry.address, extents);
        }
        for extent in unowned {
            if self.is_own_extent(*extent) && owned.insert(extent.block) {
                self.flash.blocks_mut().quarantine(extent.block);
                self.note_quarantined(extent.block);
            }
        }
    }
}
