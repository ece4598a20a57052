//! Registration of the memory of buffers with a ring, so that a transfer pins no pages.
//!
//! Input: the buffers of transfers. Output: the slot of the ring's table in whose memory they lie, if there is one. Invariant: a
//! slot counts only for buffers of the very cut whose pages were registered. One of them was alive all the time since then, so
//! that the pages were neither returned nor unmapped: the pages that the kernel has pinned are those at their addresses.
//!
//! The slot of a cut that is gone is emptied some transfers later. Until then its pages stay pinned, and the slot names no buffer.
//!
//! # What this does not do
//! It registers no memory of the heap, and no memory whose buffers are transferred rarely.

use crate::mapped_region::{SectorBacking, SectorBuffer};
use crate::pinning::MemlockBudget;
use crate::pinning::uring::BufferTable;
use crate::width::narrow;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Buffers of a cut that are transferred before its memory is registered. To pin all of it takes longer than to pin a few buffers.
const BUFFERS_MIN: u32 = 256;
/// Transfers after which the slots of cuts that are gone are emptied.
const EMPTY_EVERY: u64 = 1_024;

/// The memory that a ring has registered, and its use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisteredCounters {
    /// Bytes that are registered now.
    pub bytes: u64,
    /// Transfers from and to registered memory.
    pub transfers: u64,
    /// Cuts whose memory was refused: it exceeds half of the limit of locked memory, the table is full, or the kernel refuses it.
    pub refused: u64,
    /// Transfers that the kernel refused on registered memory, and that were repeated without it. No other transfer uses it then.
    pub repeated: u64,
}

/// A cut of which buffers were transferred.
#[derive(Debug)]
struct SeenCut {
    /// Keeps the address of the backing from being given out again.
    backing: Weak<SectorBacking>,
    buffers: u32,
    slot: Option<u32>,
    bytes: u64,
}

/// The registered memory of a ring.
#[derive(Debug)]
pub(super) struct RegisteredCuts {
    table: Arc<BufferTable>,
    /// By the address of the backing.
    seen: BTreeMap<usize, SeenCut>,
    /// Bytes that may still be registered; `None` is no limit.
    room_bytes: Option<u64>,
    /// True after a refusal, until a slot is emptied.
    is_full: bool,
    /// True once the kernel refused a transfer on registered memory.
    is_unusable: bool,
    looks: u64,
    pub(super) counters: RegisteredCounters,
}

impl RegisteredCuts {
    /// Begins with no memory. Half of the limit of locked memory is left to other rings of the user.
    pub(super) fn new(table: Arc<BufferTable>) -> Self {
        let room = MemlockBudget::read().room_bytes();
        Self::with_room(table, room.map(|room| room / 2))
    }

    pub(super) fn with_room(table: Arc<BufferTable>, room_bytes: Option<u64>) -> Self {
        Self {
            table,
            seen: BTreeMap::new(),
            room_bytes,
            is_full: false,
            is_unusable: false,
            looks: 0,
            counters: RegisteredCounters::default(),
        }
    }

    /// Returns the slot in whose memory all of these buffers lie. Registers that memory if buffers of it are transferred often.
    pub(super) fn slot_of(&mut self, buffers: &[SectorBuffer]) -> Option<u16> {
        if self.is_unusable {
            return None;
        }
        self.looks += 1;
        if self.looks.is_multiple_of(EMPTY_EVERY) {
            self.empty_unused();
        }
        let backing = buffers.first()?.backing();
        if !buffers.iter().all(|buffer| Arc::ptr_eq(buffer.backing(), backing)) {
            return None;
        }
        let range = backing.range()?;
        let bytes = range.bytes() as u64;
        let cut = self.seen.entry(Arc::as_ptr(backing).addr()).or_insert_with(|| SeenCut {
            backing: Arc::downgrade(backing),
            buffers: 0,
            slot: None,
            bytes,
        });
        cut.buffers = cut.buffers.saturating_add(narrow(buffers.len()));
        if cut.slot.is_none() && cut.buffers >= BUFFERS_MIN && !self.is_full {
            let fits = self.room_bytes.is_none_or(|room| bytes <= room);
            cut.slot = if fits { self.table.register(&[range]).ok() } else { None };
            if cut.slot.is_some() {
                self.room_bytes = self.room_bytes.map(|room| room - bytes);
                self.counters.bytes += bytes;
            } else {
                self.is_full = true;
                self.counters.refused += 1;
            }
        }
        // A table has at most 2^14 slots.
        cut.slot.map(narrow)
    }

    /// Notes that the kernel refused transfers on registered memory: none uses it any more, and no page stays pinned for it. Others
    /// that are in flight complete, or are refused and repeated too.
    pub(super) fn note_refused_transfers(&mut self, transfers: usize) {
        self.counters.repeated += transfers as u64;
        if !self.is_unusable {
            self.is_unusable = true;
            self.empty_unused();
        }
    }

    /// Forgets the cuts that are gone, or all of them once none is used any more, and empties their slots.
    fn empty_unused(&mut self) {
        let (table, counters, room) = (&self.table, &mut self.counters, &mut self.room_bytes);
        let is_unusable = self.is_unusable;
        let mut emptied = false;
        self.seen.retain(|_, cut| {
            if !is_unusable && cut.backing.strong_count() > 0 {
                return true;
            }
            // A slot that the kernel does not empty stays taken.
            if let Some(slot) = cut.slot
                && table.unregister(slot..slot + 1).is_ok()
            {
                counters.bytes -= cut.bytes;
                *room = room.map(|room| room + cut.bytes);
                emptied = true;
            }
            false
        });
        if emptied {
            self.is_full = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::cut_buffers;
    use super::super::{FileRing, FileRingBackend, FileTransfer, RingKind, UringChoice};
    use super::*;
    use crate::mapped_region::SpanSink;
    use crate::reservation::{Backing, BackingOrder, PageRun, PageSpan, Reservation};
    use std::sync::Mutex;

    /// A reservation that takes its spans back.
    struct SharedReservation(Arc<Mutex<Reservation>>);

    impl SpanSink for SharedReservation {
        fn return_span(&self, span: PageSpan) {
            self.0.lock().unwrap().release(span);
        }
    }

    /// Pages of a cut of 64 buffers.
    const CUT_PAGES: u32 = 72;
    const BUFFERS: usize = 64;
    const BUFFER_BYTES: usize = 4_608;
    /// Transfers of a cut in a test: enough that its memory is registered.
    const ROUNDS: usize = 200;

    /// Bytes that a process must be able to lock for these tests: more than all of their cuts that are registered together.
    const LOCKABLE_BYTES_MIN: u64 = 4 << 20;

    /// Opens a ring on an empty file with a table of so many slots. Returns `None` where io_uring or its tables are refused, or
    /// little memory may be locked.
    fn ring(slots: u32, room_bytes: Option<u64>) -> Option<FileRing> {
        if MemlockBudget::read().room_bytes().is_some_and(|room| room < LOCKABLE_BYTES_MIN) {
            return None;
        }
        let mut ring = FileRing::open(tempfile::tempfile().unwrap(), 8, UringChoice::Auto).unwrap();
        let table = ring.table(slots).ok()?;
        ring.register_buffers(slots);
        if let FileRingBackend::Kernel(kernel) = &mut ring.backend {
            kernel.registered = Some(RegisteredCuts::with_room(table, room_bytes));
        }
        Some(ring)
    }

    fn run(ring: &mut FileRing, transfer: FileTransfer) -> Vec<SectorBuffer> {
        ring.submit(1, transfer).unwrap();
        let mut done = Vec::new();
        while ring.in_flight() > 0 {
            ring.wait();
            ring.poll(&mut done);
        }
        let finished = done.pop().unwrap();
        let bytes: usize = finished.buffers.iter().map(|buffer| buffer.len()).sum();
        assert_eq!(finished.result, Ok(bytes));
        finished.buffers
    }

    /// Writes and reads random parts of a cut: single buffers, neighbours, and buffers in any order.
    fn check_bytes(ring: &mut FileRing, mut cut: Vec<SectorBuffer>, seed: u64) {
        assert_eq!(cut.len(), BUFFERS);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut file = vec![0; BUFFERS * BUFFER_BYTES];
        cut.iter_mut().for_each(|buffer| buffer.fill(0));
        cut = run(ring, FileTransfer::Write { offset: 0, buffers: cut });
        for round in 0..ROUNDS {
            let count = if random.bool() { 1 } else { random.usize(1..=BUFFERS) };
            match random.u8(..3) {
                0 => random.shuffle(&mut cut),
                1 => cut.sort_by_key(|buffer| buffer.as_ptr().addr()),
                _ => {}
            }
            let at = random.usize(..=BUFFERS - count) * BUFFER_BYTES;
            let mut buffers: Vec<SectorBuffer> = cut.drain(..count).collect();
            let range = at..at + count * BUFFER_BYTES;
            let offset = at as u64;
            if random.bool() {
                buffers.iter_mut().for_each(|buffer| random.fill(buffer));
                file[range].copy_from_slice(&joined(&buffers));
                buffers = run(ring, FileTransfer::Write { offset, buffers });
            } else {
                buffers.iter_mut().for_each(|buffer| buffer.fill(0xEE));
                buffers = run(ring, FileTransfer::Read { offset, buffers });
                assert!(
                    joined(&buffers) == file[range],
                    "seed {seed}, round {round}: {count} buffers at {at}"
                );
            }
            cut.append(&mut buffers);
        }
    }

    fn joined(buffers: &[SectorBuffer]) -> Vec<u8> {
        buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect()
    }

    #[test]
    fn bytes_are_the_same_on_registered_memory_and_without() {
        let seed = fastrand::u64(..);
        let Some(mut ring) = ring(8, None) else { return };
        for nth in 0..3 {
            let before = ring.registered();
            check_bytes(&mut ring, cut_buffers(CUT_PAGES), seed.wrapping_add(nth));
            let after = ring.registered();
            assert!(after.transfers > before.transfers, "seed {seed}: {after:?}");
            assert_eq!((after.refused, after.repeated), (0, 0), "seed {seed}");
        }
        let mut plain = FileRing::open(tempfile::tempfile().unwrap(), 8, UringChoice::Auto).unwrap();
        check_bytes(&mut plain, cut_buffers(CUT_PAGES), seed);
        assert_eq!(plain.registered(), RegisteredCounters::default(), "seed {seed}");
    }

    #[test]
    fn memory_above_the_limit_or_without_a_slot_is_transferred_by_its_address() {
        let seed = fastrand::u64(..);
        let cut_bytes = u64::from(CUT_PAGES) * 4_096;
        for (slots, room, registered) in [(8, Some(0), 0), (8, Some(cut_bytes), 1), (1, None, 1)] {
            let Some(mut ring) = ring(slots, room) else { return };
            // The first cut stays alive beside the second one.
            let mut first = cut_buffers(CUT_PAGES);
            for _ in 0..6 {
                let buffers = std::mem::take(&mut first);
                first = run(&mut ring, FileTransfer::Write { offset: 0, buffers });
            }
            check_bytes(&mut ring, cut_buffers(CUT_PAGES), seed);
            let counters = ring.registered();
            assert_eq!(counters.bytes, registered * cut_bytes, "seed {seed}");
            assert_eq!((counters.refused, counters.repeated), (1, 0), "seed {seed}");
            assert_eq!(counters.transfers > 0, registered > 0, "seed {seed}");
        }
    }

    #[test]
    fn memory_that_is_mapped_anew_is_not_taken_for_the_registered_cut_that_was_there() {
        let Some(mut ring) = ring(8, None) else { return };
        let all = PageRun { first: 0, pages: CUT_PAGES };
        let reservation = Reservation::new(all.bytes()).unwrap();
        let reservation = Arc::new(Mutex::new(reservation));
        for seed in 0..5 {
            let before = ring.registered();
            let span = {
                let mut reservation = reservation.lock().unwrap();
                reservation.commit(all, BackingOrder::only(Backing::Small)).unwrap();
                reservation.claim(all).unwrap()
            };
            let cut = SectorBuffer::cut(span, 9, 0, Box::new(SharedReservation(Arc::clone(&reservation))));
            check_bytes(&mut ring, cut, seed);
            assert!(ring.registered().transfers > before.transfers, "cut {seed} was not registered");
            reservation.lock().unwrap().decommit(all).unwrap();
        }
    }

    #[test]
    fn slots_of_cuts_that_are_gone_are_emptied() {
        let Some(mut ring) = ring(4, None) else { return };
        for seed in 0..6 {
            check_bytes(&mut ring, cut_buffers(CUT_PAGES), seed);
            // Transfers of another cut, during which the slot of the first one is emptied.
            let mut other = cut_buffers(9);
            for _ in 0..EMPTY_EVERY {
                let buffers = other.split_off(other.len() - 1);
                other.append(&mut run(&mut ring, FileTransfer::Read { offset: 0, buffers }));
            }
            let counters = ring.registered();
            assert_eq!(counters.refused, 0, "after {} cuts: {counters:?}", seed + 1);
        }
    }

    #[test]
    fn transfers_that_the_kernel_refuses_are_repeated_and_all_registered_memory_is_unpinned() {
        let seed = fastrand::u64(..);
        let Some(mut ring) = ring(8, None) else { return };
        let mut cuts = [cut_buffers(CUT_PAGES), cut_buffers(CUT_PAGES)];
        for cut in &mut cuts {
            for _ in 0..6 {
                let buffers = std::mem::take(cut);
                *cut = run(&mut ring, FileTransfer::Write { offset: 0, buffers });
            }
        }
        let table = ring.table(8).unwrap();
        assert_eq!(table.free_slots(), 6, "seed {seed}: {:?}", ring.registered());
        // The kernel refuses transfers on a slot without memory.
        table.unregister(0..1).unwrap();
        let [first, second] = cuts;
        check_bytes(&mut ring, first, seed);
        check_bytes(&mut ring, second, seed);
        let counters = ring.registered();
        assert_eq!((counters.bytes, counters.repeated), (0, 1), "seed {seed}: {counters:?}");
        assert_eq!(table.free_slots(), 8, "seed {seed}: {counters:?}");
    }

    #[test]
    fn rings_without_io_uring_register_nothing() {
        for mut ring in [
            FileRing::open(tempfile::tempfile().unwrap(), 8, UringChoice::Never).unwrap(),
            FileRing::in_memory(tempfile::tempfile().unwrap(), 8).unwrap(),
        ] {
            assert_ne!(ring.kind(), RingKind::Uring);
            ring.register_buffers(8);
            check_bytes(&mut ring, cut_buffers(CUT_PAGES), 3);
            assert_eq!(ring.registered(), RegisteredCounters::default());
        }
    }
}
