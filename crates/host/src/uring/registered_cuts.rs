//! Registration of the memory of buffers with a ring, so that a transfer pins no pages.
//!
//! Input: the buffers of transfers. Output: the slot of the ring's table in whose memory they lie, if there is one. Invariant: a
//! slot counts only for buffers of the very cut whose pages were registered. One of them was alive all the time since then, so
//! that the pages were neither returned nor unmapped: the pages that the kernel has pinned are those at their addresses.
//!
//! The last buffer of a cut empties its slot before the pages return to their source: memory that is given back is not pinned.
//!
//! # What this does not do
//! It registers no memory of the heap, and no memory whose buffers are transferred rarely.

use crate::mapped_region::{SectorBacking, SectorBuffer};
use crate::pinning::uring::{BufferTable, RegistrationBudget, SlotRegistration};
use crate::pinning::{MemlockBudget, MemoryRange, PinCause};
use crate::width::narrow;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Buffers of a cut that are transferred before its memory is registered. To pin all of it takes longer than to pin a few buffers.
const BUFFERS_MIN: u64 = 256;
/// Factor by which more buffers of a cut are transferred before its memory is registered, after each refusal.
const REFUSED_FACTOR: u64 = 16;
/// Transfers after which the cuts that are gone are forgotten.
const FORGET_EVERY: u64 = 1_024;
/// Transfers during which no memory is registered, after the kernel had none for it or the table no slot.
const PAUSE: u64 = 65_536;

/// The memory that a ring has registered, and its use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisteredCounters {
    /// Bytes that are registered now.
    pub bytes: u64,
    /// Transfers from and to registered memory.
    pub transfers: u64,
    /// Cuts whose memory was refused, each counted once: the rings of the process would exceed half of the limit of locked memory,
    /// the table is full, or the kernel refuses it.
    pub refused: u64,
    /// Transfers that the kernel refused on registered memory, and that were repeated without it. No other transfer uses it then.
    pub repeated: u64,
}

/// A cut of which buffers were transferred.
#[derive(Debug)]
struct SeenCut {
    /// Keeps the address of the backing from being given out again.
    backing: Weak<SectorBacking>,
    /// Buffers that were transferred.
    buffers: u64,
    /// Buffers from which on the memory is registered.
    register_from: u64,
    slot: Option<u32>,
}

/// The registered memory of a ring.
#[derive(Debug)]
pub(super) struct RegisteredCuts {
    table: Arc<BufferTable>,
    budget: RegistrationBudget,
    /// By the address of the backing.
    seen: BTreeMap<usize, SeenCut>,
    /// Transfers that asked for a slot.
    asked: u64,
    /// The transfer from which on memory is registered again after a pause.
    paused_until: u64,
    /// True once the kernel refused a transfer on registered memory.
    is_unusable: bool,
    /// All counters but that of the bytes.
    counters: RegisteredCounters,
}

impl RegisteredCuts {
    /// Begins with no memory. The rings of the process leave half of the limit of locked memory to other processes of the user.
    pub(super) fn new(table: Arc<BufferTable>) -> Self {
        let bound_bytes = MemlockBudget::read().registrations_max();
        Self::within(table, RegistrationBudget::of_process(bound_bytes))
    }

    pub(super) fn within(table: Arc<BufferTable>, budget: RegistrationBudget) -> Self {
        Self {
            table,
            budget,
            seen: BTreeMap::new(),
            asked: 0,
            paused_until: 0,
            is_unusable: false,
            counters: RegisteredCounters::default(),
        }
    }

    /// Returns the counters.
    pub(super) fn counters(&self) -> RegisteredCounters {
        RegisteredCounters { bytes: self.budget.ring_bytes(), ..self.counters }
    }

    /// Counts a transfer on registered memory.
    pub(super) fn count_transfer(&mut self) {
        self.counters.transfers += 1;
    }

    /// Returns the slot in whose memory all of these buffers lie. Registers that memory if buffers of it are transferred often.
    pub(super) fn slot_of(&mut self, buffers: &[SectorBuffer]) -> Option<u16> {
        if self.is_unusable {
            return None;
        }
        self.asked += 1;
        if self.asked.is_multiple_of(FORGET_EVERY) {
            self.seen.retain(|_, cut| cut.backing.strong_count() > 0);
        }
        let backing = buffers.first()?.backing();
        if !buffers.iter().all(|buffer| Arc::ptr_eq(buffer.backing(), backing)) {
            return None;
        }
        let range = backing.range()?;
        let cut = self.seen.entry(Arc::as_ptr(backing).addr()).or_insert_with(|| SeenCut {
            backing: Arc::downgrade(backing),
            buffers: 0,
            register_from: BUFFERS_MIN,
            slot: None,
        });
        cut.buffers = cut.buffers.saturating_add(buffers.len() as u64);
        if cut.slot.is_none() && cut.buffers >= cut.register_from && self.asked >= self.paused_until {
            let registered = register(&self.table, &self.budget, backing, range);
            cut.slot = registered.ok();
            if let Err(cause) = registered {
                self.counters.refused += u64::from(cut.register_from == BUFFERS_MIN);
                cut.register_from = cut.buffers.saturating_mul(REFUSED_FACTOR);
                // Other cuts would be refused too. Any other cause concerns this one.
                if matches!(cause, Some(PinCause::OverLimit | PinCause::TableFull)) {
                    self.paused_until = self.asked + PAUSE;
                }
            }
        }
        // A table has at most 2^14 slots.
        cut.slot.map(narrow)
    }

    /// Notes that the kernel refused transfers on registered memory: none uses it any more, and no page stays pinned for it.
    /// Transfers that are in flight complete, or are refused and repeated too.
    pub(super) fn note_refused_transfers(&mut self, transfers: usize) {
        self.counters.repeated += transfers as u64;
        self.is_unusable = true;
        for cut in std::mem::take(&mut self.seen).into_values() {
            // Only the ring that holds the slot ends the registration.
            if let Some(backing) = cut.backing.upgrade().filter(|_| cut.slot.is_some()) {
                backing.end_registration();
            }
        }
    }
}

/// Registers the memory of a cut until its last buffer is dropped. Returns the slot.
///
/// # Errors
/// The cause of the refusal; `None` if the bound allows no more bytes now, or the memory is registered with another ring.
fn register(
    table: &Arc<BufferTable>,
    budget: &RegistrationBudget,
    backing: &SectorBacking,
    range: MemoryRange,
) -> Result<u32, Option<PinCause>> {
    let registration =
        SlotRegistration::new(table, range, budget).map_err(|error| error.map(|error| error.cause))?;
    let slot = registration.slot();
    if backing.keep_registration(registration) { Ok(slot) } else { Err(None) }
}

#[cfg(test)]
#[expect(clippy::print_stderr, reason = "a skipped test prints its reason")]
mod tests {
    use super::super::tests::{LeakedSpan, cut_buffers};
    use super::super::{FileRing, FileRingBackend, FileTransfer, RingKind, UringChoice};
    use super::*;
    use crate::mapped_region::SpanSink;
    use crate::reservation::{Backing, BackingOrder, PageRun, PageSpan, Reservation};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    /// A reservation that takes its spans back.
    struct SharedReservation(Arc<Mutex<Reservation>>);

    impl SpanSink for SharedReservation {
        fn return_span(&self, span: PageSpan) {
            self.0.lock().unwrap().release(span);
        }
    }

    /// Pages of a cut of 64 buffers.
    const CUT_PAGES: u32 = 72;
    const CUT_BYTES: u64 = 72 * 4_096;
    const BUFFERS: usize = 64;
    const BUFFER_BYTES: usize = 4_608;
    /// Transfers of a cut in a test: enough that its memory is registered.
    const ROUNDS: usize = 200;

    /// Bytes that a process must be able to lock for these tests: more than all of their cuts that are registered together.
    const LOCKABLE_BYTES_MIN: u64 = 4 << 20;

    /// Opens a ring on an empty file with a table of so many slots, and a bound of its own. Returns `None` where io_uring or its
    /// tables are refused, or little memory may be locked.
    fn ring(slots: u32, bound_bytes: Option<u64>) -> Option<FileRing> {
        ring_within(slots, RegistrationBudget::sharing(Box::leak(Box::<AtomicU64>::default()), bound_bytes))
    }

    fn ring_within(slots: u32, budget: RegistrationBudget) -> Option<FileRing> {
        if let Err(error) = MemlockBudget::read().of_registrations().check(LOCKABLE_BYTES_MIN) {
            eprintln!("skipped: {error}");
            return None;
        }
        let mut ring = FileRing::open(tempfile::tempfile().unwrap(), 8, UringChoice::Auto).unwrap();
        let table = match ring.table(slots) {
            Ok(table) => table,
            Err(error) => {
                eprintln!("skipped: {error}");
                return None;
            }
        };
        ring.register_buffers(slots);
        if let FileRingBackend::Kernel(kernel) = &mut ring.backend {
            kernel.registered = Some(RegisteredCuts::within(table, budget));
        }
        Some(ring)
    }

    /// Writes all buffers of a cut so many times.
    fn write_often(ring: &mut FileRing, mut cut: Vec<SectorBuffer>, times: usize) -> Vec<SectorBuffer> {
        for _ in 0..times {
            cut = run(ring, FileTransfer::Write { offset: 0, buffers: cut });
        }
        cut
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
        for (slots, bound, registered) in [(8, Some(0), 0), (8, Some(CUT_BYTES), 1), (1, None, 1)] {
            let Some(mut ring) = ring(slots, bound) else { return };
            // The first cut stays alive beside the second one.
            let first = write_often(&mut ring, cut_buffers(CUT_PAGES), 6);
            check_bytes(&mut ring, cut_buffers(CUT_PAGES), seed);
            let counters = ring.registered();
            assert_eq!(counters.bytes, registered * CUT_BYTES, "seed {seed}");
            assert_eq!((counters.refused, counters.repeated), (2 - registered, 0), "seed {seed}");
            assert_eq!(counters.transfers > 0, registered > 0, "seed {seed}");
            drop(first);
        }
    }

    #[test]
    fn cut_above_the_bound_keeps_no_other_cut_from_being_registered() {
        let Some(mut ring) = ring(8, Some(CUT_BYTES)) else { return };
        let long = write_often(&mut ring, cut_buffers(2 * CUT_PAGES), 6);
        let counters = ring.registered();
        assert_eq!((counters.bytes, counters.refused, counters.transfers), (0, 1, 0), "{counters:?}");
        let short = write_often(&mut ring, cut_buffers(CUT_PAGES), 6);
        let counters = ring.registered();
        assert_eq!((counters.bytes, counters.refused), (CUT_BYTES, 1), "{counters:?}");
        assert!(counters.transfers > 0, "{counters:?}");
        drop((long, short));
    }

    #[test]
    fn rings_share_one_bound_and_a_refused_cut_is_registered_once_it_has_room() {
        static SHARED_BYTES: AtomicU64 = AtomicU64::new(0);
        let of_one_ring = || ring_within(8, RegistrationBudget::sharing(&SHARED_BYTES, Some(CUT_BYTES)));
        let (Some(mut first_ring), Some(mut second_ring)) = (of_one_ring(), of_one_ring()) else { return };
        let first = write_often(&mut first_ring, cut_buffers(CUT_PAGES), 6);
        let mut second = write_often(&mut second_ring, cut_buffers(CUT_PAGES), 6);
        assert_eq!((first_ring.registered().bytes, first_ring.registered().refused), (CUT_BYTES, 0));
        assert_eq!((second_ring.registered().bytes, second_ring.registered().refused), (0, 1));
        drop(first);
        assert_eq!((first_ring.registered().bytes, SHARED_BYTES.load(Ordering::Relaxed)), (0, 0));
        second = write_often(&mut second_ring, second, 70);
        let counters = second_ring.registered();
        assert_eq!((counters.bytes, counters.refused), (CUT_BYTES, 1), "{counters:?}");
        assert!(counters.transfers > 0, "{counters:?}");
        // Its buffers are alive longer than the ring.
        drop(second_ring);
        drop(second);
        assert_eq!(SHARED_BYTES.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn slot_is_emptied_before_the_pages_return() {
        /// A sink that counts the free slots of a table whenever pages return.
        struct FreeSlotsSink(Arc<BufferTable>, Arc<Mutex<Vec<usize>>>);

        impl SpanSink for FreeSlotsSink {
            fn return_span(&self, span: PageSpan) {
                self.1.lock().unwrap().push(self.0.free_slots());
                LeakedSpan.return_span(span);
            }
        }

        let Some(mut ring) = ring(4, None) else { return };
        let table = ring.table(4).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        for nth in 1..=6 {
            let all = PageRun { first: 0, pages: CUT_PAGES };
            let mut reservation = Reservation::new(all.bytes()).unwrap();
            reservation.commit(all, BackingOrder::only(Backing::Small)).unwrap();
            let span = reservation.claim(all).unwrap();
            let sink = FreeSlotsSink(Arc::clone(&table), Arc::clone(&seen));
            let mut cut = write_often(&mut ring, SectorBuffer::cut(span, 9, 0, Box::new(sink)), 6);
            assert_eq!((table.free_slots(), ring.registered().bytes), (3, CUT_BYTES), "cut {nth}");
            let last = cut.pop();
            thread::spawn(move || drop(cut)).join().unwrap();
            assert_eq!(table.free_slots(), 3, "cut {nth} has a buffer");
            // Without a transfer, on another thread.
            thread::spawn(move || drop(last)).join().unwrap();
            assert_eq!(*seen.lock().unwrap(), vec![4; nth]);
            assert_eq!(ring.registered().bytes, 0, "cut {nth}");
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
    fn slots_of_cuts_that_are_gone_are_used_again() {
        let seed = fastrand::u64(..);
        let Some(mut ring) = ring(1, None) else { return };
        for nth in 0..6 {
            let before = ring.registered().transfers;
            check_bytes(&mut ring, cut_buffers(CUT_PAGES), seed.wrapping_add(nth));
            let counters = ring.registered();
            assert!(counters.transfers > before, "seed {seed}, cut {nth}: {counters:?}");
            assert_eq!((counters.bytes, counters.refused), (0, 0), "seed {seed}, cut {nth}: {counters:?}");
        }
    }

    #[test]
    fn transfers_that_the_kernel_refuses_are_repeated_and_all_registered_memory_is_unpinned() {
        let seed = fastrand::u64(..);
        let Some(mut ring) = ring(8, None) else { return };
        let mut cuts = [cut_buffers(CUT_PAGES), cut_buffers(CUT_PAGES)];
        for cut in &mut cuts {
            *cut = write_often(&mut ring, std::mem::take(cut), 6);
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
