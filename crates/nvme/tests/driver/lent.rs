//! A queue that another process drives: rings in memory that is lent to the controller, doorbells in a page that is mapped.

use crate::shop::{Shop, bytes, fill, run, small, spec, succeeded};
use headwater_host::foreign::Foreign;
use headwater_host::registers::{MappedRegisters, Registers as _};
use headwater_host::ring_memory::ForeignWords;
use headwater_nvme::driver::{
    Block, Fate, Function as _, IoQueue, Lease, LentLayout, LentMemory, LentQueue, LentTerms, Phase,
    QueueError, RequestError,
};
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use std::os::fd::AsFd as _;

const PAGE: usize = 4_096;

type Borrowed = IoQueue<ForeignWords, MappedRegisters>;

/// What the owner has of a lent queue.
struct Loan {
    queue: LentQueue,
    memory: Foreign,
    address: u64,
    layout: LentLayout,
}

impl Shop {
    fn try_lend(&mut self, depth: u32) -> Result<Result<Loan, QueueError>, RequestError> {
        let layout = self.driver.lent_layout(depth)?;
        let memory = Foreign::anonymous(layout.bytes).unwrap();
        let address = {
            let lent = &mut self.machine.lock().lent;
            let address = lent.last_key_value().map_or(1 << 40, |(at, memory)| at + memory.bytes() as u64);
            lent.insert(address, memory.clone());
            address
        };
        let ticket = self.driver.lend_queue(spec(depth), address, self.now)?;
        for _ in 0..1_000 {
            self.turn();
            assert!(self.driver.take_queue(ticket).is_none(), "it is none of the owner's");
            if let Some(outcome) = self.driver.take_lent(ticket) {
                return Ok(outcome.map(|queue| Loan { queue, memory, address, layout }));
            }
        }
        panic!("a ticket has no outcome");
    }

    fn lend(&mut self, depth: u32) -> Loan {
        self.try_lend(depth).unwrap().unwrap()
    }

    fn terms(&self, loan: &Loan, depth: u32) -> LentTerms {
        let [tail, head] = loan.queue.doorbells;
        LentTerms {
            id: loan.queue.id,
            depth,
            doorbells: [tail - PAGE, head - PAGE],
            rules: self.driver.queue_rules().unwrap(),
        }
    }

    /// The page with the doorbells, as another process maps it.
    fn page(&self) -> MappedRegisters {
        let found = self.driver.function().registers_file().unwrap();
        MappedRegisters::map(found.file.as_fd(), found.offset + PAGE as u64, PAGE).unwrap()
    }

    fn borrow(&mut self, loan: &Loan, depth: u32) -> (Borrowed, Lease) {
        let terms = self.terms(loan, depth);
        IoQueue::borrowed(&terms, loan.parts(), self.page(), self.now).unwrap()
    }
}

impl Loan {
    fn parts(&self) -> LentMemory<ForeignWords> {
        let LentLayout { completions, lists, bytes } = self.layout;
        let part = |from: usize, end: usize| Block {
            words: ForeignWords::new(self.memory.clone(), from, (end - from) / 8).unwrap(),
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
fn a_borrower_reads_and_writes_through_its_own_rings_beside_the_owners() {
    let mut shop = Shop::ready();
    let mut own = shop.queue(7);
    let loan = shop.lend(31);
    let (mut queue, _lease) = shop.borrow(&loan, 31);
    assert_ne!(queue.id(), own.id());
    let (from, into) = (shop.buffer(1 << 20), shop.buffer(1 << 20));
    fill(&from, 3);
    // With a list of addresses in the lent memory, from an offset in a page.
    for (round, length) in [512, 12_288, 1 << 19].into_iter().enumerate() {
        let start = round as u64 * 1_024;
        succeeded(shop.one(&mut queue, small(true, start, length), &[run(&from, 508, length)]));
        succeeded(shop.one(&mut own, small(false, start, length), &[run(&into, 508, length)]));
        assert_eq!(bytes(&into)[508..508 + length as usize], bytes(&from)[508..508 + length as usize]);
    }
    for _ in 0..5 {
        for block in 0..31 {
            queue.submit(small(false, block, 512), &[run(&into, 0, 512)]).unwrap();
        }
        queue.ring();
        let answers = shop.answers(&mut queue);
        assert_eq!(answers.len(), 31, "the ring goes round");
        answers.into_iter().for_each(succeeded);
    }
}

#[test]
fn a_reset_ends_a_lent_queue_and_its_owner_learns_when_the_memory_is_free() {
    let mut shop = Shop::ready();
    let loan = shop.lend(7);
    let (mut queue, lease) = shop.borrow(&loan, 7);
    let into = shop.buffer(PAGE);
    succeeded(shop.one(&mut queue, small(false, 0, 512), &[run(&into, 0, 512)]));
    shop.machine.lock().faults.holds = true;
    queue.submit(small(false, 1, 512), &[run(&into, 0, 512)]).unwrap();
    queue.ring();
    shop.turns(2);
    assert!(!loan.queue.is_over());
    shop.driver.reset(shop.now);
    assert_eq!(shop.settle(), Phase::Ready);
    assert!(loan.queue.is_over() && !shop.driver.has_queue(loan.queue.id));
    lease.end();
    assert_eq!(queue.fate(), Fate::Lost);
    assert_eq!(queue.abandon().unwrap().len(), 1, "the command that nobody answered");
    // Another life under the same number is another queue.
    shop.machine.lock().faults.holds = false;
    let again = shop.lend(7);
    assert_eq!(again.queue.id, loan.queue.id);
    assert!(loan.queue.is_over() && !again.queue.is_over());
    let (mut queue, lease) = shop.borrow(&again, 7);
    succeeded(shop.one(&mut queue, small(false, 0, 512), &[run(&into, 0, 512)]));
    lease.fail();
    assert_eq!(queue.fate(), Fate::Dead);
}

#[test]
fn a_lent_queue_is_deleted_with_what_it_has_not_answered() {
    let mut shop = Shop::ready();
    let loan = shop.lend(7);
    let (mut queue, _lease) = shop.borrow(&loan, 7);
    let into = shop.buffer(PAGE);
    shop.machine.lock().faults.holds = true;
    queue.submit(small(false, 1, 512), &[run(&into, 0, 512)]).unwrap();
    queue.ring();
    shop.turns(2);
    shop.driver.delete_queue(loan.queue.id, shop.now).unwrap();
    shop.turns(10);
    assert!(!shop.driver.has_queue(loan.queue.id));
    assert_eq!(queue.reap().unwrap().status, Status::ABORTED_SQ_DELETION);
    // A doorbell of a queue that is no more reaches nothing.
    queue.submit(small(false, 1, 512), &[run(&into, 0, 512)]).unwrap();
    queue.ring();
    shop.turns(10);
    assert_eq!((queue.reap(), shop.driver.resets()), (None, 0));
}

#[test]
fn a_lent_queue_that_the_controller_refuses_leaves_nothing_behind() {
    let mut shop = Shop::ready();
    for opcode in [AdminOpcode::CreateCompletionQueue, AdminOpcode::CreateSubmissionQueue] {
        shop.machine.lock().faults.refuses.insert(opcode.number(), Status::INVALID_QUEUE_SIZE);
        let outcome = shop.try_lend(3).unwrap().map(|_| ());
        assert_eq!(outcome, Err(QueueError::Refused(Status::INVALID_QUEUE_SIZE)));
        shop.machine.lock().faults.refuses.clear();
        shop.turns(5);
        assert!((1..=4).all(|queue| !shop.driver.has_queue(queue)));
    }
    let refused = shop.try_lend(1_024).map(|_| ());
    assert_eq!(refused, Err(RequestError::Depth { depth: 1_024, most: 1_023 }));
}

#[test]
fn terms_that_make_no_sense_are_refused_by_name() {
    let mut shop = Shop::ready();
    let loan = shop.lend(7);
    let good = shop.terms(&loan, 7);
    let window = shop.page();
    let refused = |terms: LentTerms| {
        IoQueue::borrowed(&terms, loan.parts(), window.clone(), shop.now).map(|_| ()).unwrap_err().what
    };
    for depth in [0, 65_536, u32::MAX] {
        assert_eq!(refused(LentTerms { depth, ..good }), "no queue is so deep");
    }
    assert_eq!(refused(LentTerms { depth: 4_000, ..good }), "its memory is too short");
    let bytes = window.bytes();
    for doorbells in [[bytes, 0], [0, bytes + 4], [2, 8], [usize::MAX, 0], [8, 8]] {
        assert_eq!(refused(LentTerms { doorbells, ..good }), "its doorbells do not lie in the page");
    }
}
