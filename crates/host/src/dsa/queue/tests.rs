//! Work on a software portal: every operation, and memory that stays with the device as long as it may write to it.

use super::*;
use crate::copy::crc32c;
use crate::dsa::completion::RECORD_BYTES;
use crate::dsa::descriptor::{DsaFlags, DsaOpcode};
use crate::dsa::discovery::{DsaOpcodeSet, WorkQueueMode};
use crate::dsa::software_portal::{FaultSource, NoFaults, PortalFault, PortalKind};
use crate::dsa::work::{CacheTarget, DsaOperation};
use crate::sync::Ordering;
use crate::work_memory::{WorkBytes, WorkPlace};
use std::io::ErrorKind;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, mpsc};

/// Memories of a test, and a count of those that were freed.
#[derive(Debug)]
struct TestMemories {
    own: Vec<Vec<u8>>,
    shared: Option<SharedMemory>,
    freed: Arc<AtomicUsize>,
}

impl TestMemories {
    fn new(lengths: &[usize]) -> Self {
        let mut random = fastrand::Rng::with_seed(7);
        let own = lengths.iter().map(|bytes| (0..*bytes).map(|_| random.u8(..)).collect()).collect();
        Self { own, shared: None, freed: Arc::default() }
    }
}

impl WorkMemory for TestMemories {
    fn for_each_piece<'a>(&'a mut self, each: &mut dyn FnMut(WorkPlace, WorkBytes<'a>)) {
        let memories = self.own.len();
        for (memory, bytes) in self.own.iter_mut().enumerate() {
            each(WorkPlace { memory, offset: 0 }, WorkBytes::Writable(bytes));
        }
        if let Some(region) = &self.shared {
            let bytes = region.bytes();
            each(WorkPlace { memory: memories, offset: 0 }, WorkBytes::Shared { region, offset: 0, bytes });
        }
    }
}

impl Drop for TestMemories {
    fn drop(&mut self) {
        self.freed.fetch_add(1, Ordering::SeqCst);
    }
}

const KIND: PortalKind = PortalKind {
    mode: WorkQueueMode::Dedicated,
    size: 8,
    transfer_bytes_max: 1 << 16,
    batch_max: 16,
    opcodes: DsaOpcodeSet::ALL,
};

fn queue(kind: PortalKind, faults: impl FaultSource) -> DsaQueue<TestMemories> {
    DsaQueue::software(SoftwarePortal::start(kind, faults).unwrap())
}

fn place(memory: usize, offset: usize) -> WorkPlace {
    WorkPlace { memory, offset }
}

fn queued(operation: DsaOperation) -> QueuedOperation {
    QueuedOperation { operation, fence: OperationFence::Unordered, cache: CacheTarget::Cache }
}

fn wait(queue: &mut DsaQueue<TestMemories>) -> EndedWork<TestMemories> {
    loop {
        if let Some(ended) = queue.poll() {
            return ended;
        }
        std::thread::yield_now();
    }
}

/// Faults by the number of a descriptor.
struct PlannedFaults(Vec<(u64, PortalFault)>);

impl FaultSource for PlannedFaults {
    fn fault(&mut self, nth: u64, _opcode: Option<DsaOpcode>) -> PortalFault {
        self.0.iter().find(|(planned, _)| *planned == nth).map_or(PortalFault::None, |(_, fault)| *fault)
    }
}

#[test]
fn records_are_aligned_as_the_device_wants_them() {
    assert_eq!((size_of::<RecordCell>(), align_of::<RecordCell>()), (RECORD_BYTES, RECORD_BYTES));
}

#[test]
fn each_operation_does_what_a_byte_loop_does_alone_and_in_a_batch() {
    let bytes = 9_000_u32;
    let long = 9_000_usize;
    let operations = [
        DsaOperation::Move { from: place(0, 0), to: place(1, 8), bytes },
        DsaOperation::MoveCrc { from: place(0, 0), to: place(2, 0), bytes, seed: 0 },
        DsaOperation::Crc { of: place(0, 5), bytes: bytes - 5, seed: 0xABCD },
        DsaOperation::Fill { to: place(3, 1), bytes, value: 0x5A },
        DsaOperation::Compare { one: place(0, 0), other: place(4, 0), bytes },
        DsaOperation::Flush { of: place(0, 0), bytes },
        DsaOperation::Move { from: place(0, 1), to: place(5, 0), bytes: bytes - 1 },
    ];
    let forms: [Vec<Vec<usize>>; 2] =
        [(0..operations.len()).map(|nth| vec![nth]).collect(), vec![(0..operations.len()).collect()]];
    for form in forms {
        let mut queue = queue(KIND, NoFaults);
        let mut work = TestMemories::new(&[long, long + 8, long, long + 1, long]);
        work.shared = Some(SharedMemory::anonymous(16_384).unwrap());
        let source = work.own[0].clone();
        work.own[4].copy_from_slice(&source);
        work.own[4][8_191] ^= 0x80;
        let mut outcomes = Vec::new();
        for group in form {
            let group: Vec<QueuedOperation> = group.iter().map(|nth| queued(operations[*nth])).collect();
            queue.submit(1, work, &group).unwrap();
            let ended = wait(&mut queue);
            outcomes.extend(ended.outcomes.iter().map(|outcome| *outcome.success().unwrap()));
            work = ended.work;
        }
        assert_eq!(work.own[1][8..], source[..]);
        assert_eq!(work.own[2], source);
        assert_eq!(outcomes[1].crc, crc32c(0, &source), "seed 0 is the usual CRC-32C");
        assert_eq!(outcomes[2].crc, crc32c(0xABCD, &source[5..]), "a result continues");
        assert!(work.own[3][1..].iter().all(|byte| *byte == 0x5A));
        assert_eq!((outcomes[4].result, outcomes[4].completed), (1, 8_191));
        let mut copied = vec![0; long - 1];
        work.shared.as_ref().unwrap().copy_in(0, &mut copied).unwrap();
        assert_eq!(copied, source[1..]);
    }
}

#[test]
fn crc_of_the_portal_is_the_usual_one_and_that_of_our_kernels() {
    let mut queue = queue(KIND, NoFaults);
    let mut work = TestMemories::new(&[9]);
    work.own[0].copy_from_slice(b"123456789");
    let whole = DsaOperation::Crc { of: place(0, 0), bytes: 9, seed: 0 };
    let first = DsaOperation::Crc { of: place(0, 0), bytes: 4, seed: 0 };
    queue.submit(1, work, &[queued(whole), queued(first)]).unwrap();
    let ended = wait(&mut queue);
    let [whole, first] = ended.outcomes[..] else { panic!("two outcomes") };
    // The check value of CRC-32C (iSCSI), RFC 3720.
    assert_eq!(whole.success().unwrap().crc, 0xE306_9283);
    let seed = first.success().unwrap().crc;
    queue.submit(2, ended.work, &[queued(DsaOperation::Crc { of: place(0, 4), bytes: 5, seed })]).unwrap();
    assert_eq!(wait(&mut queue).outcomes[0].success().unwrap().crc, 0xE306_9283);
}

#[test]
fn dualcast_writes_both_targets_and_refuses_unequal_alignment() {
    let mut queue = queue(KIND, NoFaults);
    let mut work = TestMemories::new(&[100]);
    work.shared = Some(SharedMemory::anonymous(16_384).unwrap());
    let cast = |second| DsaOperation::Dualcast {
        from: place(0, 0),
        to: [place(1, 64), place(1, second)],
        bytes: 100,
    };
    queue.submit(1, work, &[queued(cast(8_192 + 64)), queued(cast(8_192))]).unwrap();
    let ended = wait(&mut queue);
    assert!(ended.outcomes[0].success().is_some());
    let OperationOutcome::Ended(refused) = ended.outcomes[1] else { panic!("a record") };
    assert_eq!(refused.status, DsaStatus::DualcastAlignment);
    for offset in [64, 8_192 + 64] {
        let mut copied = vec![0; 100];
        ended.work.shared.as_ref().unwrap().copy_in(offset, &mut copied).unwrap();
        assert_eq!(copied, ended.work.own[0]);
    }
}

#[test]
fn copies_and_fills_to_memory_ask_for_a_readback_where_it_is_wanted() {
    let mut work = TestMemories::new(&[100, 100]);
    let addresses = WorkAddresses::of(&mut work);
    let (from, to, bytes) = (place(0, 0), place(1, 0), 100);
    let operations = [
        (DsaOperation::Move { from, to, bytes }, true),
        (DsaOperation::Fill { to, bytes, value: 1 }, true),
        (DsaOperation::MoveCrc { from, to, bytes, seed: 0 }, false),
        (DsaOperation::Compare { one: from, other: to, bytes }, false),
        (DsaOperation::Crc { of: from, bytes, seed: 0 }, false),
        (DsaOperation::Flush { of: from, bytes }, false),
    ];
    for (operation, is_written) in operations {
        for cache in [CacheTarget::Cache, CacheTarget::Memory, CacheTarget::MemoryReadBack] {
            let queued = QueuedOperation { cache, ..queued(operation) };
            let flags = descriptor_of(&addresses, 0, &queued).unwrap().flags();
            let expected = is_written && cache == CacheTarget::MemoryReadBack;
            assert_eq!(flags.has(DsaFlags::DESTINATION_READBACK), expected, "{queued:?}");
            assert!(cache == CacheTarget::Cache || !flags.has(DsaFlags::CACHE_CONTROL), "{queued:?}");
        }
    }
}

#[test]
fn operations_outside_their_memory_are_refused_and_the_work_returns() {
    let mut queue = queue(KIND, NoFaults);
    let cases = [
        DsaOperation::Fill { to: place(0, 90), bytes: 11, value: 1 },
        DsaOperation::Fill { to: place(0, 101), bytes: 1, value: 1 },
        DsaOperation::Fill { to: place(0, 0), bytes: 0, value: 1 },
        DsaOperation::Move { from: place(0, 0), to: place(3, 0), bytes: 1 },
        DsaOperation::Crc { of: place(0, usize::MAX), bytes: 1, seed: 0 },
    ];
    for operation in cases {
        let refused = queue.submit(1, TestMemories::new(&[100]), &[queued(operation)]).unwrap_err();
        assert!(matches!(refused.reason, WorkRefusal::Operation(_)), "{operation:?}");
        assert_eq!(refused.work.own[0].len(), 100);
    }
    let refused = queue.submit(1, TestMemories::new(&[1]), &[]).unwrap_err();
    assert_eq!(refused.reason, WorkRefusal::Empty);
    assert!(queue.is_idle());
}

#[test]
fn work_of_a_late_descriptor_is_owned_until_the_drain_and_the_late_write_reaches_it() {
    for fault in [PortalFault::Late, PortalFault::Reordered] {
        let mut queue = queue(KIND, PlannedFaults(vec![(0, fault)]));
        let work = TestMemories::new(&[64, 64]);
        let (freed, source) = (Arc::clone(&work.freed), work.own[0].clone());
        let copy = DsaOperation::Move { from: place(0, 0), to: place(1, 0), bytes: 64 };
        queue.submit(1, work, &[queued(copy)]).unwrap();
        queue.drain().unwrap();
        let ended = wait(&mut queue);
        assert!(ended.outcomes[0].success().is_some(), "the drain waited for it");
        assert_eq!(ended.work.own[1], source);
        assert_eq!(freed.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn lost_work_returns_after_a_drain_and_that_of_a_dead_device_after_its_stop() {
    for (fault, dies) in [(PortalFault::Lost, false), (PortalFault::Dies, true)] {
        let mut queue = queue(KIND, PlannedFaults(vec![(0, fault)]));
        let fill = queued(DsaOperation::Fill { to: place(0, 0), bytes: 10, value: 1 });
        queue.submit(5, TestMemories::new(&[10]), &[fill]).unwrap();
        queue.drain().unwrap();
        if dies {
            assert!(queue.poll().is_none());
            queue.stop();
        }
        let ended = wait(&mut queue);
        assert_eq!((ended.token, &ended.outcomes[..]), (5, &[OperationOutcome::NoRecord][..]));
        let again = queue.submit(6, ended.work, &[fill]);
        assert_eq!(again.is_err(), dies);
    }
}

#[test]
fn a_queue_that_is_dropped_frees_its_work_only_after_the_device_was_stopped() {
    for fault in
        [PortalFault::None, PortalFault::Late, PortalFault::Lost, PortalFault::Dies, PortalFault::Reordered]
    {
        let mut queue = queue(KIND, PlannedFaults(vec![(0, fault)]));
        let work = TestMemories::new(&[60_000, 60_000]);
        let freed = Arc::clone(&work.freed);
        let copy = queued(DsaOperation::Move { from: place(0, 0), to: place(1, 0), bytes: 60_000 });
        queue.submit(1, work, &[copy, copy]).unwrap();
        assert_eq!(freed.load(Ordering::SeqCst), 0);
        drop(queue);
        assert_eq!(freed.load(Ordering::SeqCst), 1, "{fault:?}");
    }
}

/// A device that hangs in front of each descriptor until the other end is dropped.
struct HangingDevice(mpsc::Receiver<()>);

impl FaultSource for HangingDevice {
    fn fault(&mut self, _nth: u64, _opcode: Option<DsaOpcode>) -> PortalFault {
        let _ = self.0.recv();
        PortalFault::None
    }
}

#[test]
fn a_hanging_device_is_stopped_beside_its_owner_and_keeps_its_work_until_then() {
    let (sender, hang) = mpsc::channel();
    let mut queue = queue(KIND, HangingDevice(hang));
    // Dropped before the queue, whose end waits for the device.
    let release = sender;
    let work = TestMemories::new(&[10]);
    let freed = Arc::clone(&work.freed);
    let fill = queued(DsaOperation::Fill { to: place(0, 0), bytes: 10, value: 1 });
    queue.submit(5, work, &[fill]).unwrap();
    queue.begin_stop();
    queue.begin_stop();
    assert!(queue.is_stopped() && !queue.is_idle());
    for _ in 0..1_000 {
        assert!(queue.poll().is_none(), "the device may still write");
    }
    assert_eq!(freed.load(Ordering::SeqCst), 0);
    assert_eq!(queue.submit(6, TestMemories::new(&[10]), &[fill]).unwrap_err().reason, WorkRefusal::Stopped);
    assert_eq!(queue.drain(), Err(WorkRefusal::Stopped));
    drop(release);
    let ended = wait(&mut queue);
    assert_eq!((ended.token, &ended.work.own[0][..]), (5, &[1; 10][..]));
    assert!(queue.is_idle());
}

#[test]
fn a_queue_that_is_dropped_while_it_stops_frees_its_work_behind_the_stop() {
    for fault in [PortalFault::None, PortalFault::Late, PortalFault::Lost, PortalFault::Dies] {
        let mut queue = queue(KIND, PlannedFaults(vec![(0, fault)]));
        let work = TestMemories::new(&[60_000]);
        let freed = Arc::clone(&work.freed);
        let fill = queued(DsaOperation::Fill { to: place(0, 0), bytes: 60_000, value: 1 });
        queue.submit(1, work, &[fill]).unwrap();
        queue.drain().unwrap();
        queue.begin_stop();
        drop(queue);
        assert_eq!(freed.load(Ordering::SeqCst), 1, "{fault:?}");
    }
}

#[test]
fn a_device_that_no_thread_can_stop_is_stopped_when_the_call_returns() {
    for fault in [PortalFault::None, PortalFault::Late, PortalFault::Lost, PortalFault::Dies] {
        let mut queue = queue(KIND, PlannedFaults(vec![(0, fault)]));
        let work = TestMemories::new(&[60_000]);
        let fill = queued(DsaOperation::Fill { to: place(0, 0), bytes: 60_000, value: 1 });
        queue.submit(1, work, &[fill]).unwrap();
        queue.portal.begin_stop_by(|stop| {
            drop(stop);
            Err(ErrorKind::OutOfMemory.into())
        });
        assert!(queue.is_stopped(), "{fault:?}");
        let ended = queue.poll().unwrap();
        let is_filled = ended.work.own[0].iter().all(|byte| *byte == 1);
        assert_eq!(is_filled, matches!(fault, PortalFault::None | PortalFault::Late), "{fault:?}");
        assert!(queue.is_idle(), "{fault:?}");
    }
}

#[test]
fn a_dedicated_queue_is_never_overfilled_and_a_shared_one_answers() {
    let fill = queued(DsaOperation::Fill { to: place(0, 0), bytes: 10, value: 1 });
    let mut dedicated = queue(
        PortalKind { size: 4, ..KIND },
        PlannedFaults((0..3).map(|nth| (nth, PortalFault::Late)).collect()),
    );
    let mut accepted = 0;
    let refused = loop {
        match dedicated.submit(accepted, TestMemories::new(&[10]), &[fill]) {
            Ok(()) => accepted += 1,
            Err(refused) => break refused.reason,
        }
        assert!(accepted < 8, "the device holds 4");
    };
    assert_eq!((accepted, refused), (3, WorkRefusal::Full), "one entry is kept for the drain");
    dedicated.drain().unwrap();
    for _ in 0..accepted {
        let ended = wait(&mut dedicated);
        assert!(ended.outcomes[0].success().is_some());
    }
    assert!(format!("{dedicated:?}").contains("is_stopped: false"));
    struct AlwaysFull;
    impl FaultSource for AlwaysFull {
        fn refuses(&mut self, nth: u64) -> bool {
            nth < 2
        }
    }
    let mut shared = queue(PortalKind { mode: WorkQueueMode::Shared, ..KIND }, AlwaysFull);
    let mut work = TestMemories::new(&[10]);
    for _ in 0..2 {
        let refused = shared.submit(1, work, &[fill]).unwrap_err();
        assert_eq!(refused.reason, WorkRefusal::Full);
        work = refused.work;
    }
    shared.submit(1, work, &[fill]).unwrap();
    assert!(wait(&mut shared).outcomes[0].success().is_some());
}

#[test]
fn a_fence_orders_a_batch_and_ends_it_behind_a_failure() {
    let copy = |from, to| DsaOperation::Move { from: place(from, 0), to: place(to, 0), bytes: 64 };
    let fenced = QueuedOperation { fence: OperationFence::AfterEarlier, ..queued(copy(1, 2)) };
    for (fault, ends) in
        [(PortalFault::Reordered, true), (PortalFault::Status(0x20), false), (PortalFault::Lost, false)]
    {
        // The batch itself is descriptor 0.
        let mut queue = queue(KIND, PlannedFaults(vec![(1, fault)]));
        let work = TestMemories::new(&[64, 64, 64]);
        let before = work.own.clone();
        queue.submit(1, work, &[queued(copy(0, 1)), fenced]).unwrap();
        let ended = wait(&mut queue);
        let is_done = ended.outcomes[1].success().is_some();
        assert_eq!(is_done, ends, "{fault:?}");
        assert_eq!(ended.work.own[2], if ends { &before[0][..] } else { &before[2][..] });
        assert_eq!(ended.outcomes[1] == OperationOutcome::NoRecord, !ends);
    }
}
