//! Tests of both implementations.

use super::*;
use crate::pinning::MemoryRange;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::AsFd as _;

const BOTH: [UringChoice; 2] = [UringChoice::Auto, UringChoice::Never];
const PAGE: usize = 4_096;

fn open(file: File, depth: usize, choice: UringChoice) -> DeviceRing<BlockWork> {
    let options = RingOptions { depth, polled: false, choice, registration_slots: 16 };
    DeviceRing::open(Arc::new(file), options).unwrap()
}

fn extent(memory: &SharedMemory, offset: usize, bytes: usize, slot: Option<u32>) -> MemoryExtent {
    MemoryExtent { memory: memory.clone(), offset, bytes, slot }
}

fn only(ring: &mut DeviceRing<BlockWork>, work: BlockWork) -> Result<u32, i32> {
    ring.submit(77, work).unwrap();
    loop {
        if let Some(done) = ring.reap() {
            assert_eq!((done.token, ring.in_flight()), (77, 0));
            return done.result;
        }
        ring.wait(None);
    }
}

fn byte_at(memory: &SharedMemory, offset: usize) -> u8 {
    let mut byte = [0];
    memory.copy_in(offset, &mut byte).unwrap();
    byte[0]
}

#[test]
fn gathered_write_reads_back_scattered_with_and_without_registration() {
    for choice in BOTH {
        let mut ring = open(tempfile::tempfile().unwrap(), 4, choice);
        let memory = SharedMemory::anonymous(16 * PAGE).unwrap();
        let slot = ring.table().map(|table| {
            let whole = MemoryRange::at(memory.address(), memory.bytes());
            table.register(&[whole]).unwrap()
        });
        assert_eq!(slot.is_some(), choice == UringChoice::Auto && ring.kind() == RingKind::Uring);
        for page in 0..4_u8 {
            memory.copy_out(usize::from(page) * PAGE, &[page + 1; PAGE]).unwrap();
        }
        let from = MemoryExtents::Several(
            (0..4).rev().map(|page| extent(&memory, page * PAGE, PAGE, slot)).collect(),
        );
        assert_eq!(only(&mut ring, BlockWork::Write { offset: 512, from, durable: true }), Ok(4 * 4_096));
        assert_eq!(only(&mut ring, BlockWork::Sync), Ok(0));
        // A slot that holds other memory is not used: the bytes go where the extent says.
        for slot in [slot, None, Some(7)] {
            memory.copy_out(8 * PAGE, &[0xEE; 2 * PAGE]).unwrap();
            let into = MemoryExtents::One(extent(&memory, 8 * PAGE, 2 * PAGE, slot));
            assert_eq!(only(&mut ring, BlockWork::Read { offset: 512, into }), Ok(8_192));
            assert_eq!((byte_at(&memory, 8 * PAGE), byte_at(&memory, 9 * PAGE)), (4, 3), "{choice:?}");
        }
        let into =
            MemoryExtents::Several(vec![extent(&memory, 10, 3, None), extent(&memory, 12_000, 9_000, None)]);
        let short = only(&mut ring, BlockWork::Read { offset: 512 + 3 * 4_096, into });
        assert_eq!(short, Ok(4_096), "a read past the end returns the bytes moved");
    }
}

#[test]
fn punched_and_zeroed_ranges_read_as_zero() {
    for choice in BOTH {
        let file = tempfile::tempfile().unwrap();
        let mut ring = open(file.try_clone().unwrap(), 4, choice);
        let memory = SharedMemory::anonymous(4 * PAGE).unwrap();
        memory.copy_out(0, &[9; 4 * PAGE]).unwrap();
        let from = MemoryExtents::One(extent(&memory, 0, 4 * PAGE, None));
        only(&mut ring, BlockWork::Write { offset: 0, from, durable: false }).unwrap();
        assert_eq!(only(&mut ring, BlockWork::Punch { offset: 4_096, bytes: 4_096 }), Ok(0));
        let zeroed = only(&mut ring, BlockWork::Zero { offset: 12_288, bytes: 4_096 });
        assert!(zeroed == Ok(0) || zeroed == Err(libc::EOPNOTSUPP));
        let into = MemoryExtents::One(extent(&memory, 0, 4 * PAGE, None));
        assert_eq!(only(&mut ring, BlockWork::Read { offset: 0, into }), Ok(4 * 4_096));
        let last = if zeroed.is_ok() { 0 } else { 9 };
        assert_eq!([0, 1, 2, 3].map(|page| byte_at(&memory, page * PAGE)), [9, 0, 9, last], "{choice:?}");
        assert!(
            only(&mut ring, BlockWork::Discard { offset: 0, bytes: 4_096 }).is_err(),
            "not a block device"
        );
    }
}

#[test]
fn unfit_command_is_refused_with_its_numbers() {
    for choice in BOTH {
        let mut ring = open(tempfile::tempfile().unwrap(), 2, choice);
        let memory = SharedMemory::anonymous(PAGE).unwrap();
        let read = |offset, bytes| BlockWork::Read {
            offset: 0,
            into: MemoryExtents::One(extent(&memory, offset, bytes, None)),
        };
        for (offset, bytes) in [(1, PAGE), (PAGE, 1), (usize::MAX, 2)] {
            let refused = OutOfRegion { offset, bytes, region_bytes: PAGE };
            assert_eq!(ring.submit(1, read(offset, bytes)), Err(RingSubmitError::OutOfRegion(refused)));
        }
        let many = MemoryExtents::Several((0..=EXTENTS_MAX).map(|_| extent(&memory, 0, 1, None)).collect());
        let refused = RingSubmitError::TooLong { extents: EXTENTS_MAX + 1, bytes: EXTENTS_MAX + 1 };
        assert_eq!(ring.submit(1, BlockWork::Read { offset: 0, into: many }), Err(refused));
        ring.submit(1, read(0, 8)).unwrap();
        ring.submit(2, read(0, 8)).unwrap();
        assert_eq!(ring.submit(3, read(0, 8)), Err(RingSubmitError::Full));
        assert_eq!(ring.in_flight(), 2);
    }
    let none = RingOptions { depth: 0, polled: false, choice: UringChoice::Auto, registration_slots: 0 };
    let refused = DeviceRing::<BlockWork>::open(Arc::new(tempfile::tempfile().unwrap()), none);
    assert!(matches!(refused, Err(RingError::Entries { entries: 0 })));
}

#[test]
fn kernel_errors_come_as_completions() {
    for choice in BOTH {
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut ring = open(File::open(path.path()).unwrap(), 2, choice);
        let memory = SharedMemory::anonymous(PAGE).unwrap();
        let from = MemoryExtents::One(extent(&memory, 0, PAGE, None));
        let refused = only(&mut ring, BlockWork::Write { offset: 0, from, durable: false });
        assert_eq!(refused, Err(libc::EBADF), "{choice:?}");
    }
}

/// Returns the numbers of the commands in a batch of reads into a new ring after which the kernel was called.
fn starts(depth: usize) -> Vec<u64> {
    let mut ring = open(tempfile::tempfile().unwrap(), depth, UringChoice::Auto);
    let memory = SharedMemory::anonymous(PAGE).unwrap();
    let mut starts = Vec::new();
    for number in 1..=depth as u64 {
        let into = MemoryExtents::One(extent(&memory, 0, PAGE, None));
        ring.submit(number, BlockWork::Read { offset: 0, into }).unwrap();
        let RingBackend::Kernel(engine) = &mut ring.backend else {
            panic!("this kernel refuses io_uring");
        };
        if engine.pending_entries() == 0 {
            starts.push(number);
        }
    }
    starts
}

#[test]
fn idle_device_starts_before_a_long_batch_is_complete() {
    if open(tempfile::tempfile().unwrap(), 1, UringChoice::Auto).kind() != RingKind::Uring {
        return;
    }
    // An eighth of the ring starts early, and the rest with the call that the caller makes.
    assert_eq!(starts(32), [4]);
    assert_eq!(starts(256), [32]);
    assert_eq!(starts(8), [4]);
    // A batch that one call starts soon enough is not divided.
    assert!(starts(1).is_empty() && starts(4).is_empty());
}

#[test]
fn polling_alone_finds_every_completion() {
    for choice in BOTH {
        let mut ring = open(tempfile::tempfile().unwrap(), 16, choice);
        let memory = SharedMemory::anonymous(PAGE).unwrap();
        let mut tokens = Vec::new();
        for round in 0..20 {
            for token in round * 16..(round + 1) * 16 {
                let from = MemoryExtents::One(extent(&memory, 0, PAGE, None));
                ring.submit(token, BlockWork::Write { offset: token * 4_096, from, durable: true }).unwrap();
            }
            ring.kick();
            while ring.in_flight() > 0 {
                tokens.extend(ring.reap().map(|done| done.token));
            }
        }
        tokens.sort_unstable();
        assert!(tokens.into_iter().eq(0..320), "{choice:?}");
    }
}

#[test]
fn dropping_the_ring_waits_for_commands_in_flight() {
    for choice in BOTH {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut ring = open(file.reopen().unwrap(), 64, choice);
        let memory = SharedMemory::anonymous(PAGE).unwrap();
        memory.copy_out(0, &[7; PAGE]).unwrap();
        for page in 0..64 {
            let from = MemoryExtents::One(extent(&memory, 0, PAGE, None));
            ring.submit(page, BlockWork::Write { offset: page * 4_096, from, durable: false }).unwrap();
        }
        drop(ring);
        let bytes = std::fs::read(file.path()).unwrap();
        assert!(bytes.len() == 64 * PAGE && bytes.iter().all(|&byte| byte == 7), "{choice:?}");
    }
}

#[test]
fn ring_moves_between_threads_and_descriptor_signals_completions() {
    for choice in BOTH {
        let mut ring = open(tempfile::tempfile().unwrap(), 4, choice);
        let memory = SharedMemory::anonymous(PAGE).unwrap();
        let from = MemoryExtents::One(extent(&memory, 0, PAGE, None));
        ring.submit(5, BlockWork::Write { offset: 0, from, durable: false }).unwrap();
        ring.kick();
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        let descriptor = ring.descriptor().unwrap().as_fd().try_clone_to_owned().unwrap();
        let readable = |limit: Option<&Timespec>| {
            poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], limit).unwrap() == 1
        };
        assert!(readable(Some(&limit)), "{choice:?}");
        let mut ring = std::thread::spawn(move || {
            while ring.reap().is_none() {}
            ring
        })
        .join()
        .unwrap();
        assert_eq!((ring.in_flight(), ring.reap()), (0, None));
        assert!(!readable(Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), "{choice:?}");
        ring.wait(None);
        ring.wait(Some(Nanos::from_millis(1)));
        assert!(!ring.cancel(5), "it has completed");
    }
}

#[test]
fn cancel_ends_a_read_that_never_completes() {
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut ring = open(File::from(std::os::fd::OwnedFd::from(reader)), 2, UringChoice::Auto);
    if ring.kind() != RingKind::Uring {
        return;
    }
    let memory = SharedMemory::anonymous(PAGE).unwrap();
    let into = MemoryExtents::One(extent(&memory, 0, PAGE, None));
    ring.submit(9, BlockWork::Read { offset: u64::MAX, into }).unwrap();
    ring.wait(Some(Nanos::from_millis(5)));
    assert_eq!(ring.reap(), None);
    assert!(ring.cancel(9));
    let done = loop {
        if let Some(done) = ring.reap() {
            break done;
        }
        ring.wait(None);
    };
    assert!(matches!(done.result, Err(libc::ECANCELED | libc::EINTR)), "{done:?}");
}

/// Checks for a former defect: the failed start of a thread was reported as a full ring, so that callers waited for a
/// completion that never came.
#[test]
fn refused_thread_is_reported_with_its_error() {
    const IN_CHILD: &str = "HEADWATER_TEST_WITHOUT_DESCRIPTORS";
    if std::env::var_os(IN_CHILD).is_none() {
        // The limit applies to a whole process, so a second one runs the test.
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "device_ring::tests::refused_thread_is_reported_with_its_error"])
            .env(IN_CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let options = RingOptions { depth: 2, polled: true, choice: UringChoice::Auto, registration_slots: 0 };
    let Ok(mut ring) = DeviceRing::open(Arc::new(tempfile::tempfile().unwrap()), options) else {
        return;
    };
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum }).unwrap();
    // A polled ring does not take a sync.
    let refused = ring.submit(1, BlockWork::Sync);
    assert_eq!(refused, Err(RingSubmitError::Thread { errno: libc::EMFILE }));
    assert_eq!(ring.in_flight(), 0);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    assert_eq!(only(&mut ring, BlockWork::Sync), Ok(0));
}
