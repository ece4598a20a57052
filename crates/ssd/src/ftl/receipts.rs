//! Long values that the device receives itself, before the command that stores them.
//!
//! Input: the length of a value, then its bytes from a source such as a socket. Output: filled extents, which the store of the
//! value takes over. Invariant: a receipt never holds a key. It holds room for the whole value, the extents that it has filled and
//! one more, and the frame of one page that is filled in part; all of that is given back when its front end has dropped it, and
//! when other values need the room and it made no progress for [`RECEIPT_PATIENCE`].
//!
//! The bytes are written by the source into the frames that are programmed: no other memory holds them in between, and the
//! medium works while the rest of the value is on its way.

use super::extent_store::ExtentStore;
use super::open_receipts::OpenReceipt;
use super::{Ftl, StallReason};
use crate::command::{NamespaceId, ReceiptStep, Sequence, ValueReceipt};
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::media::Media;
use crate::media::geometry::{BLOCK_DATA_BYTES, PAGE_DATA_BYTES, PAGES_PER_BLOCK};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;
use std::io::{self, IoSliceMut};

/// Most receipts at a time; further values are received by their front ends.
const RECEIPTS_MAX: usize = 256;
/// Frames of device DRAM for each receipt that may be open.
const FRAMES_EACH: usize = 16;
/// The part of the free capacity that all receipts together may hold.
const CAPACITY_SHARE: u64 = 4;
/// Pages that one call fills: their bytes are still in the second cache when their checksums are computed.
const PAGES_PER_CALL: usize = 32;
/// The time without progress after which a receipt gives up its room to other values.
const RECEIPT_PATIENCE: Nanos = Nanos::from_millis(5_000);
/// Bytes that one call takes from a source for a value that cannot be stored any more.
const DISCARDED_BYTES: usize = 64 << 10;

/// The receipts without progress that give up their room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleReceipts {
    /// All of them: a value that has arrived needs the room.
    All,
    /// Those whose values have not arrived: the room is for another receipt, whose value its front end can receive too. A
    /// complete one waits for the device or for its front end, not for a client.
    Incomplete,
}

/// A source of bytes: it fills the slices in order and returns how many bytes it wrote; 0 if it has none now.
pub(crate) type ByteSource<'a> = &'a mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>;

impl<M: Media> Ftl<M> {
    /// Begins to receive a value of this length. Returns `None` if it does not lie in extents, or if the device is not to hold
    /// as much for a value that may never come. The limits of a namespace would hold back the store, but not its bytes: a value
    /// for one that has any is not received.
    pub(crate) fn begin_receipt(
        &mut self,
        namespace: NamespaceId,
        value_bytes: usize,
    ) -> Option<ValueReceipt> {
        self.drop_receipts();
        let count = self.extents_for(value_bytes);
        let is_refused = self.is_read_only() || self.write_refusal().is_some();
        let has_limits = || self.namespace_table().limits(namespace).is_some();
        if count == 0 || value_bytes > VALUE_BYTES_MAX || is_refused || has_limits() {
            return None;
        }
        // A receipt that has failed keeps its place until its front end drops it: another one gets none by that.
        let has_place = self.extents.receipts.open.len() < self.receipts_max();
        let mut fits = || {
            self.fits_receipts(value_bytes, count)
                || self.fail_idle_receipts(IdleReceipts::Incomplete) && self.fits_receipts(value_bytes, count)
        };
        if !has_place || !fits() {
            return None;
        }
        let store = Ok(self.begin_extents(count));
        let receipts = &mut self.extents.receipts;
        receipts.last += 1;
        receipts.extents += count;
        let handle = ValueReceipt::new(receipts.last, count * BLOCK_DATA_BYTES);
        let receipt = OpenReceipt {
            handle: handle.clone(),
            store,
            partial: None,
            bytes: 0,
            is_opening: false,
            moved_at: receipts.now,
        };
        receipts.open.insert(handle.number(), receipt);
        Some(handle)
    }

    fn receipts_max(&self) -> usize {
        RECEIPTS_MAX.min(self.page_cache().frames_max() / FRAMES_EACH)
    }

    /// Returns true if a value of so many extents fits beside the open receipts, into their share of the free capacity.
    fn fits_receipts(&self, value_bytes: usize, count: usize) -> bool {
        let in_log = Self::extent_record_bytes(KEY_BYTES_MAX, value_bytes, count);
        let needed = (in_log + count * BLOCK_DATA_BYTES) as u64;
        let free = self.capacity_with(in_log).saturating_sub(self.live_bytes());
        let receipts = &self.extents.receipts;
        let held = (receipts.extents * BLOCK_DATA_BYTES) as u64;
        held + needed <= (free + held) / CAPACITY_SHARE
    }

    /// Gives back what receipts hold that made no progress for long. Returns true if there were any.
    #[cold]
    pub(super) fn fail_idle_receipts(&mut self, which: IdleReceipts) -> bool {
        let receipts = &self.extents.receipts;
        let is_idle = |receipt: &OpenReceipt| {
            receipt.store.is_ok()
                && !receipt.is_opening
                && (which == IdleReceipts::All || receipt.bytes < receipt.handle.bytes())
                && receipts.now.since(receipt.moved_at) >= RECEIPT_PATIENCE
        };
        let idle = receipts.open.iter().filter(|(_, receipt)| is_idle(receipt));
        let idle: Vec<u64> = idle.map(|(number, _)| *number).collect();
        idle.iter().for_each(|number| self.fail_receipt(*number, Status::CAPACITY_EXCEEDED));
        !idle.is_empty()
    }

    /// Gives back what receipts hold of the time before a sequence, for Sanitize. Returns true if extents of ended stores are
    /// not free yet.
    pub(super) fn purge_receipts(&mut self, up_to: Sequence) -> bool {
        let is_old = |receipt: &OpenReceipt| {
            let extents = receipt.store.as_ref().map_or(&[][..], |store| &store.extents);
            extents.iter().any(|extent| self.blocks().get(extent.block).open_sequence <= up_to)
        };
        let old = self.extents.receipts.open.iter().filter(|(_, receipt)| is_old(receipt));
        let old: Vec<u64> = old.map(|(number, _)| *number).collect();
        old.iter().for_each(|number| self.fail_receipt(*number, Status::ABORT_REQUESTED));
        !self.extents.abandoned.is_empty()
    }

    /// Returns true if a receipt needs an extent that no operation opens yet, and notes that one does now.
    pub(crate) fn takes_extent(&mut self, number: u64) -> bool {
        let Some(receipt) = self.extents.receipts.open.get_mut(&number) else { return false };
        let Ok(store) = &receipt.store else { return false };
        let needs = !receipt.is_opening && store.lacks_extent();
        receipt.is_opening |= needs;
        needs
    }

    /// Opens the next extent of a receipt that has not ended.
    pub(crate) fn open_receipt_extent(&mut self, number: u64) -> Result<(), StallReason> {
        let Some(mut receipt) = self.extents.receipts.open.remove(&number) else { return Ok(()) };
        let opened = match &mut receipt.store {
            Ok(store) if store.lacks_extent() && !receipt.handle.is_last() => self.open_extent(store),
            _ => Ok(()),
        };
        self.extents.receipts.open.insert(number, receipt);
        opened
    }

    /// Ends the operation that opened an extent of a receipt. If it failed, the value cannot be stored.
    pub(crate) fn end_receipt_extent(&mut self, number: u64, status: Status) {
        if let Some(receipt) = self.extents.receipts.open.get_mut(&number) {
            receipt.is_opening = false;
        }
        if !status.is_success() {
            self.fail_receipt(number, status);
        }
    }

    /// Receives the next bytes of a value from a source.
    ///
    /// # Errors
    /// Those of the source, which was called once.
    pub(crate) fn receive(&mut self, number: u64, source: ByteSource<'_>) -> io::Result<ReceiptStep> {
        if let Some(status) = self.write_refusal() {
            self.fail_receipt(number, status);
        }
        let Some(mut receipt) = self.extents.receipts.open.remove(&number) else {
            return Ok(ReceiptStep::NoRoom);
        };
        let left = receipt.handle.bytes() - receipt.bytes;
        let step = match &mut receipt.store {
            Ok(store) if left > 0 => self.receive_pages(store, &mut receipt.partial, source),
            Err(_) if left > 0 => discard(left, source),
            _ => Ok(ReceiptStep::Received(0)),
        };
        if let Ok(ReceiptStep::Received(bytes @ 1..)) = step {
            (receipt.bytes, receipt.moved_at) = (receipt.bytes + bytes, self.extents.receipts.now);
            self.extents.receipts.bytes += bytes as u64;
        }
        self.extents.receipts.open.insert(number, receipt);
        step
    }

    /// Receives bytes into the next pages of an open extent.
    fn receive_pages(
        &mut self,
        store: &mut ExtentStore,
        partial: &mut Option<(MediaFrame, usize)>,
        source: ByteSource<'_>,
    ) -> io::Result<ReceiptStep> {
        let (nth, first) = (store.pages / PAGES_PER_BLOCK, store.pages % PAGES_PER_BLOCK);
        let Some(extent) = store.extents.get(nth).copied() else { return Ok(ReceiptStep::NoRoom) };
        let wanted = PAGES_PER_CALL.min(PAGES_PER_BLOCK - first);
        let (mut frames, filled) = match partial.take() {
            Some((frame, filled)) => (vec![frame], filled),
            None => (Vec::with_capacity(wanted), 0),
        };
        if wanted > frames.len()
            && let Ok(now) = self.extent_pages_now(store.writer, wanted - frames.len())
        {
            frames.extend((0..now).map_while(|_| self.flash.take_frame()));
        }
        if frames.is_empty() {
            return Ok(ReceiptStep::NoRoom);
        }
        let mut slices: Vec<IoSliceMut<'_>> = Vec::with_capacity(frames.len());
        for (at, frame) in frames.iter_mut().enumerate() {
            let from = if at == 0 { filled } else { 0 };
            slices.push(IoSliceMut::new(&mut frame[from..PAGE_DATA_BYTES]));
        }
        let room = frames_room(&slices);
        let received = source(&mut slices);
        let bytes = *received.as_ref().unwrap_or(&0);
        assert!(bytes <= room, "a source wrote {bytes} bytes into {room}");
        let end = filled + bytes;
        let whole = end / PAGE_DATA_BYTES;
        for (at, frame) in frames.into_iter().enumerate() {
            if at < whole {
                let page = narrow(first + at);
                self.flash.program_received_page(store.writer, (extent, page), frame);
            } else if at == whole && !end.is_multiple_of(PAGE_DATA_BYTES) {
                *partial = Some((frame, end % PAGE_DATA_BYTES));
            } else {
                self.flash.return_frame(frame);
            }
        }
        store.pages += whole;
        if first + whole == PAGES_PER_BLOCK {
            self.flash.close_extent(extent);
        }
        received.map(ReceiptStep::Received)
    }

    /// Returns true if a value of this length may be stored from a receipt: all of its extents are filled.
    pub(crate) fn is_received(&self, receipt: &ValueReceipt, value_bytes: usize) -> bool {
        let open = self.extents.receipts.open.get(&receipt.number());
        open.is_some_and(|open| {
            open.bytes == receipt.bytes()
                && self.extents_for(value_bytes) * BLOCK_DATA_BYTES == receipt.bytes()
        })
    }

    /// Takes the extents of a received value, for the operation that stores it.
    ///
    /// # Errors
    /// The status of a value that could not be kept.
    pub(crate) fn take_receipt(&mut self, receipt: &ValueReceipt) -> Result<ExtentStore, Status> {
        let open = self.extents.receipts.open.remove(&receipt.number()).ok_or(Status::INVALID_FIELD)?;
        self.extents.receipts.extents -= extents_of(&open.handle);
        open.store
    }

    /// Returns the extents of a received value to its receipt: the operation that took them wrote no record.
    pub(crate) fn return_receipt(&mut self, receipt: &ValueReceipt, store: ExtentStore) {
        let receipts = &mut self.extents.receipts;
        receipts.extents += extents_of(receipt);
        let open = OpenReceipt {
            handle: receipt.clone(),
            store: Ok(store),
            partial: None,
            bytes: receipt.bytes(),
            is_opening: false,
            moved_at: receipts.now,
        };
        let before = receipts.open.insert(receipt.number(), open);
        assert!(before.is_none(), "a receipt is returned that was not taken");
    }

    /// Gives back what receipts hold that their front ends have dropped. Returns true if there were any.
    fn drop_receipts(&mut self) -> bool {
        if self.extents.receipts.open.is_empty() {
            return false;
        }
        let dropped = |receipt: &OpenReceipt| receipt.handle.is_last() && !receipt.is_opening;
        let open = &mut self.extents.receipts.open;
        let ended: Vec<OpenReceipt> =
            open.extract_if(.., |_, receipt| dropped(receipt)).map(|(_, receipt)| receipt).collect();
        for receipt in &ended {
            self.extents.receipts.extents -= extents_of(&receipt.handle);
        }
        let any = !ended.is_empty();
        for receipt in ended {
            self.give_back(receipt.store, receipt.partial);
        }
        any
    }

    /// Gives back what a receipt holds: its value cannot be stored. What follows of it is received and dropped.
    fn fail_receipt(&mut self, number: u64, status: Status) {
        let Some(receipt) = self.extents.receipts.open.get_mut(&number) else { return };
        if receipt.store.is_err() {
            return;
        }
        let (store, partial) = (std::mem::replace(&mut receipt.store, Err(status)), receipt.partial.take());
        self.give_back(store, partial);
    }

    fn give_back(&mut self, store: Result<ExtentStore, Status>, partial: Option<(MediaFrame, usize)>) {
        if let Some((frame, _)) = partial {
            self.flash.return_frame(frame);
        }
        if let Ok(store) = store {
            self.abandon_extents(store);
        }
    }

    /// Sets the time of the present turn, and gives back what dropped receipts hold. Returns true if there were any.
    pub(super) fn advance_receipts(&mut self, now: Nanos) -> bool {
        self.extents.receipts.now = now;
        self.drop_receipts()
    }

    /// Returns the bytes that were received so far.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.extents.receipts.bytes
    }
}

fn extents_of(handle: &ValueReceipt) -> usize {
    handle.bytes() / BLOCK_DATA_BYTES
}

fn frames_room(slices: &[IoSliceMut<'_>]) -> usize {
    slices.iter().map(|slice| slice.len()).sum()
}

/// Takes bytes from a source and drops them.
fn discard(left: usize, source: ByteSource<'_>) -> io::Result<ReceiptStep> {
    let mut bytes = vec![0; left.min(DISCARDED_BYTES)];
    let received = source(&mut [IoSliceMut::new(&mut bytes)])?;
    Ok(ReceiptStep::Received(received.min(bytes.len())))
}
