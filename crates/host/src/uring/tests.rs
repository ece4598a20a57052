//! Tests of every implementation.

use super::*;
use crate::mapped_region::{SECTOR_BYTES, SpanSink};
use crate::reservation::{Backing, BackingOrder, PAGE_BYTES, PageRun, PageSpan, Reservation};
use rustix::event::{PollFd, PollFlags, poll};

#[derive(Clone, Copy, Debug)]
enum RingUnderTest {
    Of(UringChoice),
    Memory,
}

const ALL: [RingUnderTest; 3] =
    [RingUnderTest::Of(UringChoice::Auto), RingUnderTest::Of(UringChoice::Never), RingUnderTest::Memory];

fn open_on(file: File, entries: usize, ring: RingUnderTest) -> FileRing {
    match ring {
        RingUnderTest::Of(choice) => FileRing::open(file, entries, choice).unwrap(),
        RingUnderTest::Memory => FileRing::in_memory(file, entries).unwrap(),
    }
}

fn open(entries: usize, ring: RingUnderTest) -> FileRing {
    open_on(tempfile::tempfile().unwrap(), entries, ring)
}

fn buffer(fill: u8) -> SectorBuffer {
    let mut buffer = SectorBuffer::zeroed(2);
    buffer.fill(fill);
    buffer
}

fn drain(ring: &mut FileRing) -> Vec<FinishedTransfer> {
    let mut done = Vec::new();
    while ring.in_flight() > 0 {
        ring.wait();
        ring.poll(&mut done);
    }
    done.sort_by_key(|finished| finished.id);
    done
}

fn only(ring: &mut FileRing, transfer: FileTransfer) -> FinishedTransfer {
    ring.submit(77, transfer).unwrap();
    let mut done = drain(ring);
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].id, 77);
    done.pop().unwrap()
}

#[test]
fn gathered_write_reads_back_scattered() {
    for choice in ALL {
        let mut ring = open(8, choice);
        let buffers = (1..=5).map(buffer).collect();
        let written = only(&mut ring, FileTransfer::Write { offset: 1_024, buffers });
        assert_eq!(written.result, Ok(5 * 2 * SECTOR_BYTES));
        assert_eq!(written.buffers.len(), 5);
        assert_eq!(only(&mut ring, FileTransfer::SyncData).result, Ok(0));
        let buffers = (0..3).map(|_| buffer(0xEE)).collect();
        let read = only(&mut ring, FileTransfer::Read { offset: 2_048, buffers });
        assert_eq!(read.result, Ok(3 * 2 * SECTOR_BYTES));
        for (buffer, expected) in read.buffers.iter().zip(2..) {
            assert!(buffer.iter().all(|&byte| byte == expected), "{choice:?}");
        }
    }
}

/// A receiver of pages that leaves them claimed for ever.
pub(super) struct LeakedSpan;

impl SpanSink for LeakedSpan {
    fn return_span(&self, _span: PageSpan) {}
}

/// Returns buffers of nine sectors that lie behind each other in memory, in order. A reservation with a claimed span stays mapped.
pub(super) fn cut_buffers(pages: u32) -> Vec<SectorBuffer> {
    let mut reservation = Reservation::new(pages as usize * PAGE_BYTES).unwrap();
    let all = PageRun { first: 0, pages };
    reservation.commit(all, BackingOrder::only(Backing::Small)).unwrap();
    let span = reservation.claim(all).unwrap();
    SectorBuffer::cut(span, 9, 0, Box::new(LeakedSpan))
}

#[test]
fn buffers_that_lie_behind_each_other_keep_their_order() {
    for choice in ALL {
        let mut ring = open(4, choice);
        let mut cut = cut_buffers(18);
        assert_eq!(cut.len(), 16);
        // Runs of neighbours, single ones, and neighbours in the wrong order.
        cut.swap(4, 5);
        cut.swap(9, 14);
        for (fill, buffer) in (1..).zip(&mut cut) {
            buffer.fill(fill);
        }
        let bytes = 16 * 9 * SECTOR_BYTES;
        let written = only(&mut ring, FileTransfer::Write { offset: 0, buffers: cut });
        assert_eq!(written.result, Ok(bytes));
        let mut buffers = written.buffers;
        buffers[..12].rotate_left(3);
        buffers.iter_mut().for_each(|buffer| buffer.fill(0xEE));
        let read = only(&mut ring, FileTransfer::Read { offset: 0, buffers });
        assert_eq!(read.result, Ok(bytes));
        for (buffer, expected) in read.buffers.iter().zip(1..) {
            assert!(buffer.iter().all(|&byte| byte == expected), "{choice:?}, buffer {expected}");
        }
    }
}

#[test]
fn read_past_the_end_returns_bytes_moved() {
    for choice in ALL {
        let mut ring = open(2, choice);
        only(&mut ring, FileTransfer::Write { offset: 0, buffers: vec![buffer(1)] });
        let buffers = vec![buffer(0), buffer(0)];
        assert_eq!(only(&mut ring, FileTransfer::Read { offset: 0, buffers }).result, Ok(1_024));
        let buffers = vec![buffer(0)];
        assert_eq!(only(&mut ring, FileTransfer::Read { offset: 1 << 30, buffers }).result, Ok(0));
    }
}

#[test]
fn failed_transfer_returns_its_buffers() {
    for choice in ALL {
        let path = tempfile::NamedTempFile::new().unwrap();
        let read_only = File::open(path.path()).unwrap();
        let mut ring = open_on(read_only, 4, choice);
        let buffers = vec![buffer(1), buffer(2)];
        let answer = only(&mut ring, FileTransfer::Write { offset: 0, buffers });
        assert_eq!(answer.result, Err(rustix::io::Errno::BADF.raw_os_error()), "{choice:?}");
        assert_eq!(answer.buffers.len(), 2);
    }
}

#[test]
fn full_ring_returns_the_transfer() {
    for choice in ALL {
        let mut ring = open(3, choice);
        for id in 0..3 {
            let buffers = vec![buffer(9)];
            ring.submit(id, FileTransfer::Write { offset: id * 1_024, buffers }).unwrap();
        }
        let rejected = ring.submit(3, FileTransfer::SyncData).unwrap_err();
        assert_eq!(rejected.reason, RejectedReason::Full);
        assert!(drain(&mut ring).iter().map(|finished| finished.id).eq(0..3));
        let buffers = (0..=TRANSFER_BUFFERS_MAX).map(|_| buffer(0)).collect();
        let rejected = ring.submit(4, FileTransfer::Write { offset: 0, buffers }).unwrap_err();
        assert_eq!(rejected.reason, RejectedReason::TooManyBuffers);
        assert_eq!(rejected.transfer.buffer_count(), TRANSFER_BUFFERS_MAX + 1);
    }
}

#[test]
fn dropping_the_ring_waits_for_transfers_in_flight() {
    for choice in ALL {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut ring = open_on(file.reopen().unwrap(), 64, choice);
        for id in 0..64 {
            let buffers = vec![buffer(7)];
            ring.submit(id, FileTransfer::Write { offset: id * 1_024, buffers }).unwrap();
        }
        drop(ring);
        let bytes = std::fs::read(file.path()).unwrap();
        assert_eq!(bytes.len(), 64 * 1_024);
        assert!(bytes.iter().all(|&byte| byte == 7), "{choice:?}");
    }
}

#[test]
fn descriptor_is_readable_exactly_while_completions_wait() {
    for choice in ALL {
        let mut ring = open(4, choice);
        let readable = |ring: &FileRing, millis: i64| {
            let mut fds = [PollFd::from_borrowed_fd(ring.descriptor(), PollFlags::IN)];
            let limit =
                rustix::time::Timespec { tv_sec: millis / 1_000, tv_nsec: millis % 1_000 * 1_000_000 };
            poll(&mut fds, Some(&limit)).unwrap() == 1
        };
        assert!(!readable(&ring, 0));
        ring.submit(1, FileTransfer::Write { offset: 0, buffers: vec![buffer(1)] }).unwrap();
        ring.kick();
        assert!(readable(&ring, 10_000), "{choice:?}");
        assert_eq!(drain(&mut ring).len(), 1);
        assert!(!readable(&ring, 0), "{choice:?}");
    }
}

#[test]
fn rings_report_their_kind_and_zero_entries_are_refused() {
    let ring = open(1, RingUnderTest::Of(UringChoice::Never));
    assert_eq!(ring.kind(), RingKind::Blocking { refused: None });
    assert_eq!(open(1, RingUnderTest::Memory).kind(), RingKind::Memory);
    assert!(matches!(
        FileRing::in_memory(tempfile::tempfile().unwrap(), RING_ENTRIES_MAX + 1),
        Err(RingError::Entries { .. })
    ));
    assert!(matches!(
        FileRing::open(tempfile::tempfile().unwrap(), 0, UringChoice::Auto),
        Err(RingError::Entries { entries: 0 })
    ));
}

#[test]
fn poll_of_a_ring_in_memory_moves_a_part_of_a_long_queue() {
    const TRANSFERS: u64 = 20;
    let buffer_bytes = 2 * SECTOR_BYTES;
    let mut ring = open(64, RingUnderTest::Memory);
    for id in 0..TRANSFERS {
        let buffers: Vec<SectorBuffer> = (0..128).map(|_| buffer(7)).collect();
        ring.submit(id, FileTransfer::Write { offset: id * 131_072, buffers }).unwrap();
    }
    let mut done = Vec::new();
    ring.poll(&mut done);
    assert_eq!(done.iter().map(|finished| finished.id).collect::<Vec<u64>>(), [0, 1]);
    assert!(done.iter().all(|finished| finished.result == Ok(128 * buffer_bytes)));
    let mut fds = [PollFd::from_borrowed_fd(ring.descriptor(), PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1));
    let polls = (0..TRANSFERS).take_while(|_| {
        let before = done.len();
        ring.poll(&mut done);
        done.len() > before
    });
    assert_eq!(polls.count(), 9);
    assert!(done.iter().map(|finished| finished.id).eq(0..TRANSFERS));
}

#[test]
fn ring_moves_between_threads_with_transfers_in_flight() {
    for choice in ALL {
        let mut ring = open(4, choice);
        ring.submit(5, FileTransfer::Write { offset: 0, buffers: vec![buffer(1)] }).unwrap();
        ring.kick();
        let done = std::thread::spawn(move || drain(&mut ring)).join().unwrap();
        assert_eq!(done[0].id, 5);
    }
}
