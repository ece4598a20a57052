//! Tests of a table on a real ring, and of transfers through it.
#![expect(clippy::print_stderr, reason = "a skipped test prints its reason")]

use super::*;
use crate::file::{DirectChoice, open};
use crate::pinning::PinCause;
use crate::reservation::{Backing, BackingOrder, LentSpan, PageRun, Reservation};
use crate::uring::{
    FileRing, FileTransfer, FinishedTransfer, FixedBuffer, RejectedReason, RingKind, UringChoice,
};
use std::sync::Arc;

const PAGES: u32 = 16;

fn run(first: u32, pages: u32) -> PageRun {
    PageRun { first, pages }
}

/// A ring on an empty file, past the page cache where the file system allows it, and two chunks of memory.
struct TableBench {
    ring: FileRing,
    reservation: Reservation,
    _file: tempfile::NamedTempFile,
}

impl TableBench {
    fn open(choice: UringChoice) -> Self {
        let named = tempfile::NamedTempFile::new().unwrap();
        let (file, _) = open(named.path(), DirectChoice::Auto).unwrap();
        let ring = FileRing::open(file, 8, choice).unwrap();
        let mut reservation = Reservation::new(1 << 20).unwrap();
        for first in [0, PAGES] {
            reservation.commit(run(first, PAGES), BackingOrder::only(Backing::Small)).unwrap();
        }
        Self { ring, reservation, _file: named }
    }

    fn table(&mut self, slots: u32) -> Option<Arc<BufferTable>> {
        match self.ring.table(slots) {
            Ok(table) => Some(table),
            Err(error) => {
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    fn memory(&self, first: u32) -> MemoryRange {
        self.reservation.memory(run(first, PAGES)).unwrap()
    }

    fn filled(&mut self, first: u32, fill: u8) -> LentSpan {
        let mut span = self.reservation.claim(run(first, 2)).unwrap();
        span.fill(fill);
        span.lend()
    }

    fn answer(&mut self) -> FinishedTransfer {
        let mut done = Vec::new();
        while done.is_empty() {
            self.ring.wait();
            self.ring.poll(&mut done);
        }
        done.remove(0)
    }

    /// Returns the bytes that were moved, after releasing the pages.
    fn finish(&mut self, check: impl FnOnce(&[u8])) -> Result<usize, i32> {
        let FinishedTransfer { fixed, result, .. } = self.answer();
        let span = fixed.unwrap().into_span().reclaim();
        check(&span);
        self.reservation.release(span);
        result
    }
}

#[test]
fn registered_write_reads_back_through_registered_read() {
    for choice in [UringChoice::Auto, UringChoice::Never] {
        let mut bench = TableBench::open(choice);
        // Without io_uring there is no table, and slots are ignored.
        let slot = match bench.ring.kind() {
            RingKind::Uring => {
                let Some(table) = bench.table(4) else { continue };
                table.register(&[bench.memory(PAGES), bench.memory(0)]).unwrap() + 1
            }
            RingKind::Blocking { .. } | RingKind::Memory => 9,
        };
        let buffer = FixedBuffer::new(bench.filled(0, 0xA5), slot, 8_192);
        bench.ring.submit(1, FileTransfer::WriteFixed { offset: 4_096, buffer }).unwrap();
        assert_eq!(bench.finish(|_| ()), Ok(8_192));
        let buffer = FixedBuffer::new(bench.filled(4, 0), slot, 4_096);
        bench.ring.submit(2, FileTransfer::ReadFixed { offset: 8_192, buffer }).unwrap();
        let moved = bench.finish(|bytes| {
            assert!(bytes[..4_096].iter().all(|&byte| byte == 0xA5), "{choice:?}");
            assert!(bytes[4_096..].iter().all(|&byte| byte == 0), "bytes beyond the request are unchanged");
        });
        assert_eq!(moved, Ok(4_096));
    }
}

#[test]
fn unregistered_slot_or_range_is_rejected_before_it_starts() {
    let mut bench = TableBench::open(UringChoice::Auto);
    let Some(table) = bench.table(2) else { return };
    let slot = table.register(&[bench.memory(0)]).unwrap();
    // A free slot, slots that do not exist, unregistered memory, memory that runs over the end.
    for (first, slot) in [(0, 1 - slot), (0, 2), (0, u32::MAX), (PAGES, slot), (PAGES - 1, slot)] {
        let span = bench.reservation.claim(run(first, 2)).unwrap().lend();
        let transfer = FileTransfer::ReadFixed { offset: 0, buffer: FixedBuffer::new(span, slot, 8_192) };
        let rejected = bench.ring.submit(1, transfer).unwrap_err();
        assert_eq!(rejected.reason, RejectedReason::NotRegistered, "page {first}, slot {slot}");
        let FileTransfer::ReadFixed { buffer, .. } = rejected.transfer else {
            unreachable!("it is returned")
        };
        bench.reservation.release(buffer.into_span().reclaim());
    }
    assert_eq!(bench.ring.in_flight(), 0);
}

#[test]
fn range_unregistered_in_flight_is_still_transferred() {
    let mut bench = TableBench::open(UringChoice::Auto);
    let Some(table) = bench.table(1) else { return };
    for round in 0..200_u8 {
        let slot = table.register(&[bench.memory(0)]).unwrap();
        let buffer = FixedBuffer::new(bench.filled(0, round), slot, 8_192);
        bench.ring.submit(1, FileTransfer::WriteFixed { offset: 0, buffer }).unwrap();
        bench.ring.kick();
        table.unregister(slot..slot + 1).unwrap();
        // The slot may be reused while the write is in flight.
        let other = table.register(&[bench.memory(PAGES)]).unwrap();
        assert_eq!(bench.finish(|_| ()), Ok(8_192));
        let buffer = FixedBuffer::new(bench.filled(PAGES, !round), other, 8_192);
        bench.ring.submit(2, FileTransfer::ReadFixed { offset: 0, buffer }).unwrap();
        bench.ring.kick();
        table.unregister(other..other + 1).unwrap();
        let read = bench.finish(|bytes| assert!(bytes.iter().all(|&byte| byte == round)));
        assert_eq!(read, Ok(8_192));
    }
    assert_eq!((table.free_slots(), table.slot_memory(0)), (1, None));
}

#[test]
fn table_stays_consistent_when_ring_is_dropped_in_flight() {
    let mut bench = TableBench::open(UringChoice::Auto);
    let Some(table) = bench.table(2) else { return };
    let slot = table.register(&[bench.memory(0)]).unwrap();
    let buffer = FixedBuffer::new(bench.filled(0, 1), slot, 8_192);
    bench.ring.submit(1, FileTransfer::WriteFixed { offset: 0, buffer }).unwrap();
    let TableBench { ring, reservation, .. } = bench;
    drop(ring);
    table.unregister(slot..slot + 1).unwrap();
    assert_eq!(reservation.claimed_pages(), 2, "pages in flight stay claimed");
}

#[test]
fn table_errors_name_their_cause_and_change_nothing() {
    let mut bench = TableBench::open(UringChoice::Never);
    assert_eq!(bench.ring.table(4).unwrap_err().cause, PinCause::Unsupported);
    let mut bench = TableBench::open(UringChoice::Auto);
    if bench.ring.kind() != RingKind::Uring {
        return eprintln!("skipped: no io_uring here");
    }
    for slots in [0, SLOTS_MAX + 1] {
        assert_eq!(bench.ring.table(slots).unwrap_err().errno, libc::EINVAL);
    }
    let Some(table) = bench.table(3) else { return };
    assert!(Arc::ptr_eq(&table, &bench.ring.table(1).unwrap()), "a ring has one table");
    let cause = |ranges: &[MemoryRange]| table.register(ranges).unwrap_err().cause;
    let (memory, hole) = (bench.memory(0), MemoryRange::new(bench.memory(0).address(), 3 * (64 << 10)));
    assert_eq!(cause(&[MemoryRange::new(memory.address(), REGISTRATION_BYTES_MAX + 1)]), PinCause::TooLong);
    assert_eq!(cause(&[MemoryRange::new(memory.address(), 0)]), PinCause::Unaligned);
    assert_eq!(cause(&[memory; 4]), PinCause::TableFull);
    assert_eq!(cause(&[]), PinCause::TableFull);
    // The second of three cannot be pinned: none of the three is.
    assert_eq!(cause(&[memory, hole, memory]), PinCause::NotMapped);
    assert_eq!(table.free_slots(), 3);
    assert_eq!(table.register(&[memory, memory]).unwrap(), 0);
    table.update(1, &[bench.memory(PAGES)]).unwrap();
    assert_eq!((table.slot_memory(1), table.slot_memory(2)), (Some(bench.memory(PAGES)), None));
    assert_eq!(table.update(2, &[memory, memory]).unwrap_err().cause, PinCause::Unaligned);
    assert_eq!(table.update(1, &[hole]).unwrap_err().cause, PinCause::NotMapped);
    assert_eq!(table.slot_memory(1), None, "the failed update leaves the slot empty");
    assert_eq!(table.unregister(2..4).unwrap_err().errno, libc::EINVAL);
    table.unregister(0..1).unwrap();
    assert_eq!(table.free_slots(), 3);
}
