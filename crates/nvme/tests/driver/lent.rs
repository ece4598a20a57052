//! Tests of a queue that another process drives: rings in lent memory, doorbells in a mapped page.

use crate::host_harness::{HostHarness, bytes, fill, run, small, spec, succeeded};
use headwater_host::registers::{DeviceRegisters as _, MappedRegisters};
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::driver::{
    DmaBlock, DriverPhase, IoQueue, IoQueueState, LentLayout, LentMemory, LentQueue, LentTerms,
    PciFunction as _, QueueError, QueueLease, RequestError,
};
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use std::os::fd::AsFd as _;

const PAGE: usize = 4_096;

type BorrowedQueue = IoQueue<SharedMemoryWords, MappedRegisters>;

/// The owner's side of a lent queue.
struct OwnedLentQueue {
    queue: LentQueue,
    memory: SharedMemory,
    address: u64,
    layout: LentLayout,
}

impl HostHarness {
    fn try_lend(&mut self, depth: u32) -> Result<Result<OwnedLentQueue, QueueError>, RequestError> {
        let layout = self.driver.lent_layout(depth)?;
        let memory = SharedMemory::anonymous(layout.bytes).unwrap();
        let address = {
            let lent = &mut self.machine.lock().lent;
            let address = lent.last_key_value().map_or(1 << 40, |(at, memory)| at + memory.bytes() as u64);
            lent.insert(address, memory.clone());
            address
        };
        let ticket = self.driver.lend_queue(spec(depth), address, self.now)?;
        for _ in 0..1_000 {
            self.turn();
            assert!(self.driver.take_queue(ticket).is_none(), "a lent queue is not the owner's");
            if let Some(outcome) = self.driver.take_lent(ticket) {
                return Ok(outcome.map(|queue| OwnedLentQueue { queue, memory, address, layout }));
            }
        }
        panic!("the ticket has no outcome");
    }

    fn lend(&mut self, depth: u32) -> OwnedLentQueue {
        self.try_lend(depth).unwrap().unwrap()
    }

    fn terms(&self, loan: &OwnedLentQueue, depth: u32) -> LentTerms {
        let [tail, head] = loan.queue.doorbells;
        LentTerms {
            id: loan.queue.id,
            depth,
            doorbells: [tail - PAGE, head - PAGE],
            rules: self.driver.queue_rules().unwrap(),
        }
    }

    /// Maps the page with the doorbells as another process does.
    fn page(&self) -> MappedRegisters {
        let found = self.driver.function().registers_file().unwrap();
        MappedRegisters::map(found.file.as_fd(), found.offset + PAGE as u64, PAGE).unwrap()
    }

    fn borrow(&mut self, loan: &OwnedLentQueue, depth: u32) -> (BorrowedQueue, QueueLease) {
        let terms = self.terms(loan, depth);
        IoQueue::borrowed(&terms, loan.parts(), self.page(), self.now).unwrap()
    }
}

impl OwnedLentQueue {
    fn parts(&self) -> LentMemory<SharedMemoryWords> {
        let LentLayout { completions, lists, bytes } = self.layout;
        let part = |from: usize, end: usize| DmaBlock {
            words: SharedMemoryWords::new(self.memory.clone(), from, (end - from) / 8).unwrap(),
            address: self.address + from as u64,
        };
        LentMemory {
            submissions: part(0, completions),
            completions: part(completions, lists),
            lists: part(lists, bytes),
        }
    }
}

#[test]
fn borrower_reads_and_writes_through_its_own_rings_beside_the_owners() {
    let mut host = HostHarness::ready();
    let mut own = host.queue(7);
    let loan = host.lend(31);
    let (mut queue, _lease) = host.borrow(&loan, 31);
    assert_ne!(queue.id(), own.id());
    let (from, into) = (host.buffer(1 << 20), host.buffer(1 << 20));
    fill(&from, 3);
    // With a list of addresses in the lent memory, from an offset in a page.
    for (round, length) in [512, 12_288, 1 << 19].into_iter().enumerate() {
        let start = round as u64 * 1_024;
        succeeded(host.execute(&mut queue, small(true, start, length), &[run(&from, 508, length)]));
        succeeded(host.execute(&mut own, small(false, start, length), &[run(&into, 508, length)]));
        assert_eq!(bytes(&into)[508..508 + length as usize], bytes(&from)[508..508 + length as usize]);
    }
    for _ in 0..5 {
        for block in 0..31 {
            queue.submit(small(false, block, 512), &[run(&into, 0, 512)], ()).unwrap();
        }
        queue.ring();
        let answers = host.drain_completions(&mut queue);
        assert_eq!(answers.len(), 31, "the ring wraps");
        answers.into_iter().for_each(succeeded);
    }
}

#[test]
fn a_reset_invalidates_a_lent_queue_and_reports_when_its_memory_is_free() {
    let mut host = HostHarness::ready();
    let loan = host.lend(7);
    let (mut queue, lease) = host.borrow(&loan, 7);
    let into = host.buffer(PAGE);
    succeeded(host.execute(&mut queue, small(false, 0, 512), &[run(&into, 0, 512)]));
    host.machine.lock().faults.holds_commands = true;
    queue.submit(small(false, 1, 512), &[run(&into, 0, 512)], ()).unwrap();
    queue.ring();
    host.turns(2);
    assert!(!loan.queue.is_invalidated());
    host.driver.reset(host.now);
    assert_eq!(host.settle(), DriverPhase::Ready);
    assert!(loan.queue.is_invalidated() && !host.driver.has_queue(loan.queue.id));
    lease.invalidate();
    assert_eq!(queue.state(), IoQueueState::Lost);
    assert_eq!(queue.abandon().unwrap().len(), 1, "the command in flight");
    // A new queue with the same id is a different queue.
    host.machine.lock().faults.holds_commands = false;
    let again = host.lend(7);
    assert_eq!(again.queue.id, loan.queue.id);
    assert!(loan.queue.is_invalidated() && !again.queue.is_invalidated());
    let (mut queue, lease) = host.borrow(&again, 7);
    succeeded(host.execute(&mut queue, small(false, 0, 512), &[run(&into, 0, 512)]));
    lease.mark_dead();
    assert_eq!(queue.state(), IoQueueState::Dead);
}

#[test]
fn deleting_a_lent_queue_aborts_its_commands_in_flight() {
    let mut host = HostHarness::ready();
    let loan = host.lend(7);
    let (mut queue, _lease) = host.borrow(&loan, 7);
    let into = host.buffer(PAGE);
    host.machine.lock().faults.holds_commands = true;
    queue.submit(small(false, 1, 512), &[run(&into, 0, 512)], ()).unwrap();
    queue.ring();
    host.turns(2);
    host.driver.delete_queue(loan.queue.id, host.now).unwrap();
    host.turns(10);
    assert!(!host.driver.has_queue(loan.queue.id));
    assert_eq!(queue.reap().unwrap().status, Status::ABORTED_SQ_DELETION);
    // A doorbell of a deleted queue has no effect.
    queue.submit(small(false, 1, 512), &[run(&into, 0, 512)], ()).unwrap();
    queue.ring();
    host.turns(10);
    assert_eq!((queue.reap(), host.driver.resets()), (None, 0));
}

#[test]
fn a_lent_queue_that_the_controller_refuses_leaves_no_state() {
    let mut host = HostHarness::ready();
    for opcode in [AdminOpcode::CreateCompletionQueue, AdminOpcode::CreateSubmissionQueue] {
        host.machine.lock().faults.refused_opcodes.insert(opcode.number(), Status::INVALID_QUEUE_SIZE);
        let outcome = host.try_lend(3).unwrap().map(|_| ());
        assert_eq!(outcome, Err(QueueError::Refused(Status::INVALID_QUEUE_SIZE)));
        host.machine.lock().faults.refused_opcodes.clear();
        host.turns(5);
        assert!((1..=4).all(|queue| !host.driver.has_queue(queue)));
    }
    let refused = host.try_lend(1_024).map(|_| ());
    assert_eq!(refused, Err(RequestError::Depth { depth: 1_024, max: 1_023 }));
}

#[test]
fn invalid_terms_are_refused_with_the_contradiction() {
    let mut host = HostHarness::ready();
    let loan = host.lend(7);
    let good = host.terms(&loan, 7);
    let window = host.page();
    let refused = |terms: LentTerms| {
        IoQueue::borrowed(&terms, loan.parts(), window.clone(), host.now)
            .map(|_| ())
            .unwrap_err()
            .contradiction
    };
    for depth in [0, 65_536, u32::MAX] {
        assert_eq!(refused(LentTerms { depth, ..good }), "the depth is out of range");
    }
    assert_eq!(refused(LentTerms { depth: 4_000, ..good }), "its memory is too short");
    let bytes = window.bytes();
    for doorbells in [[bytes, 0], [0, bytes + 4], [2, 8], [usize::MAX, 0], [8, 8]] {
        assert_eq!(refused(LentTerms { doorbells, ..good }), "its doorbells do not lie in the window");
    }
}
