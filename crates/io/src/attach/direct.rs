//! Hardware queues that a daemon lends: this process rings the controller's doorbells itself, and the daemon sees nothing of a
//! command.
//!
//! In: a session with a daemon that trusts this user. Out: the [`Keeper`] of a queue. Who resets the controller, aborts and
//! deletes is the daemon. Invariant: a queue is told lost only when the controller touches none of its memory: the daemon
//! says so by closing its line, or another daemon has the controller, which it gets when nobody has it mapped any more.
//!
//! ```text
//!   Borrower --doorbells, rings--> controller
//!      |  lease, registers
//!   Borrowing <--(line hung up: doorbells taken away, lease suspended)-- Watch, a thread of the session
//!      |
//!      +--look--> daemon answers: the queue is lost, make another
//!                 a new daemon answers: likewise | nobody answers: dead, and nobody knows what the controller does
//! ```

mod addresses;
mod watch;

pub(super) use addresses::Addresses;
pub(super) use watch::{Borrowing, Watch};

use super::connection::nonsense;
use super::protocol::{DirectRules, LentText, QueueTrouble, Reply, Request};
use super::session::{Session, expect_done, lock};
use crate::error::{IoError, SubmitError};
use crate::facts::NamespaceFacts;
use crate::vfio::{Keeper, Kept};
use addresses::KnownAddresses;
use headwater_dma::iova::IovaRange;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::foreign::Foreign;
use headwater_host::registers::MappedRegisters;
use headwater_host::ring_memory::ForeignWords;
use headwater_host::wake::WakeDescriptor;
use headwater_host::wake_line::WakeLine;
use headwater_nvme::data_pointer::PageBytes;
use headwater_nvme::driver::{
    Block, Fate, IoQueue, LentMemory, LentTerms, Overdue, QueueFault, QueueRules, SglUse,
};
use headwater_nvme::queue_pair::CommandId;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex};

/// A queue as the daemon lent it.
#[derive(Debug)]
pub(super) struct LentReply {
    pub(super) id: u16,
    pub(super) bytes: u64,
    pub(super) text: LentText,
    pub(super) rules: DirectRules,
    pub(super) memory: OwnedFd,
    pub(super) line: OwnedFd,
    pub(super) device: OwnedFd,
}

/// The end of a borrower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quietness {
    /// The controller is done with it.
    Quiet,
    /// Nobody knows.
    Unknown,
}

/// It looks after one lent queue.
#[derive(Debug)]
pub(super) struct Borrower {
    session: Arc<Mutex<Session>>,
    clock: Clock,
    addresses: KnownAddresses,
    /// The session's epoch in which the queue was lent.
    epoch: u64,
    borrowing: Option<Arc<Borrowing>>,
    has_interrupts: bool,
    given_up: Option<Quietness>,
}

impl Borrower {
    pub(super) fn new(session: &Arc<Mutex<Session>>, addresses: &Arc<Addresses>) -> Self {
        Self {
            session: Arc::clone(session),
            clock: Clock::start(),
            addresses: KnownAddresses::of(addresses),
            epoch: 0,
            borrowing: None,
            has_interrupts: false,
            given_up: None,
        }
    }

    /// A request about the queue to the daemon that lent it.
    fn ask(&self, request: &Request, bell: Option<&WakeDescriptor>) -> Result<(), IoError> {
        let mut session = lock(&self.session);
        if session.epoch() != self.epoch {
            return Err(IoError::Refused { reason: "the daemon that lent the queue is gone".to_owned() });
        }
        let bell = bell.map(|bell| bell.as_fd());
        expect_done(&session.call_with(request, bell.as_slice())?.0)
    }

    fn tell(&self, queue: u16, trouble: QueueTrouble) -> Result<(), IoError> {
        self.ask(&Request::Trouble { queue, trouble }, None)
    }

    /// What became of a queue whose line is hung up.
    fn resolve(&mut self, borrowing: &Borrowing) {
        let mut session = lock(&self.session);
        let found = match session.epoch() == self.epoch {
            true => session.call_with(&Request::Namespaces, &[]).map(drop),
            false => Ok(()),
        };
        let found = match found {
            Err(IoError::Gone { .. }) => session.reconnect(self.epoch),
            other => other,
        };
        self.given_up = match found {
            Ok(()) => None,
            // Whoever answers has the controller, and has ended what was lent, or could not have it.
            Err(IoError::Refused { .. }) => Some(Quietness::Quiet),
            Err(_) => Some(Quietness::Unknown),
        };
        match self.given_up {
            None => borrowing.end(),
            Some(_) => borrowing.fail(),
        }
    }
}

impl LentReply {
    /// The queue over what came with the reply.
    fn into_queue(
        self,
        depth: u32,
        now: Nanos,
    ) -> Result<(Box<IoQueue<ForeignWords, MappedRegisters>>, Borrowing), IoError> {
        let protocol = |reason: &str| IoError::Protocol { reason: format!("a lent queue: {reason}") };
        let LentText { address, completions, lists, page_at, page_bytes, doorbells, .. } = self.text;
        let bytes = usize::try_from(self.bytes).map_err(|_| protocol("its memory is too long"))?;
        let memory = Foreign::take(self.memory.as_fd(), 0, bytes)?;
        let part = |from: u64, end: u64| {
            let place = |at: u64| usize::try_from(at).ok().filter(|at| at.is_multiple_of(8));
            let (from_place, end_place) = (place(from)?, place(end)?);
            let words =
                ForeignWords::new(memory.clone(), from_place, end_place.checked_sub(from_place)? / 8).ok()?;
            Some(Block { words, address: address.checked_add(from)? })
        };
        let parts = (part(0, completions), part(completions, lists), part(lists, self.bytes));
        let (Some(submissions), Some(completions), Some(lists)) = parts else {
            return Err(protocol("its parts do not lie in its memory"));
        };
        let window = usize::try_from(page_bytes).ok().filter(|&bytes| (8..=1 << 20).contains(&bytes));
        let window = window.ok_or_else(|| protocol("its doorbells lie in no page"))?;
        let registers = MappedRegisters::map(self.device.as_fd(), page_at, window).map_err(|errno| {
            IoError::Device { reason: format!("the doorbells cannot be mapped: {errno}") }
        })?;
        let page = PageBytes::of_bytes(self.rules.page).ok_or_else(|| protocol("the page has no length"))?;
        let rules = QueueRules {
            page,
            sgl: if self.rules.sgl { SglUse::Needed } else { SglUse::Never },
            transfer_bytes_max: self.rules.transfer,
            timeout: Nanos::from_millis(self.rules.timeout_ms),
        };
        let terms = LentTerms {
            id: self.id,
            depth,
            doorbells: doorbells.map(|at| usize::try_from(at).unwrap_or(usize::MAX)),
            rules,
        };
        let memory = LentMemory { submissions, completions, lists };
        let (queue, lease) = IoQueue::borrowed(&terms, memory, registers.clone(), now)
            .map_err(|fault| protocol(&fault.to_string()))?;
        Ok((Box::new(queue), Borrowing::new(WakeLine::from(self.line), registers, lease)))
    }
}

impl Keeper for Borrower {
    type Words = ForeignWords;
    type Registers = MappedRegisters;

    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn namespaces(&mut self) -> Vec<NamespaceFacts> {
        // A daemon that does not say knows none.
        lock(&self.session).namespaces().unwrap_or_default()
    }

    fn make_queue(&mut self, depth: u32) -> Result<Box<Kept<Self>>, IoError> {
        if self.given_up.is_some() {
            return Err(SubmitError::Gone.into());
        }
        self.borrowing = None;
        let mut session = lock(&self.session);
        let lent = session.lent_queue(depth)?;
        self.epoch = session.epoch();
        self.has_interrupts = lent.text.interrupts;
        let (queue, borrowing) = lent.into_queue(depth, self.clock.now())?;
        let borrowing = Arc::new(borrowing);
        session.watch(&borrowing)?;
        self.borrowing = Some(borrowing);
        Ok(queue)
    }

    #[inline]
    fn device_addresses(&mut self, runs: &mut [IovaRange]) -> Result<(), SubmitError> {
        self.addresses.translate(runs)
    }

    fn look(&mut self, _now: Nanos) {
        if let Some(borrowing) = self.borrowing.clone().filter(|borrowing| borrowing.is_suspended()) {
            self.resolve(&borrowing);
        }
    }

    fn overdue(&mut self, queue: u16, overdue: Overdue, _now: Nanos) {
        let trouble = match overdue {
            Overdue::Abort(command) => QueueTrouble::Late(command.number()),
            Overdue::Stuck(command) => QueueTrouble::Stuck(command.number()),
        };
        // A daemon that cannot be told is gone, which the line says too.
        let _ = self.tell(queue, trouble);
    }

    fn broken(&mut self, queue: u16, _fault: QueueFault, _now: Nanos) {
        let _ = self.tell(queue, QueueTrouble::Broken);
    }

    fn abort(&mut self, queue: u16, command: CommandId) -> Result<(), IoError> {
        self.tell(queue, QueueTrouble::Late(command.number()))
    }

    fn is_quiet(&self) -> bool {
        self.given_up != Some(Quietness::Unknown)
    }

    fn delete_queue(&mut self, queue: &Kept<Self>) -> bool {
        match queue.fate() {
            Fate::Lost => true,
            Fate::Dead => self.is_quiet(),
            Fate::Live | Fate::Waiting => self.ask(&Request::DeleteQueue { id: queue.id() }, None).is_ok(),
        }
    }

    fn has_interrupts(&self) -> bool {
        self.has_interrupts
    }

    fn connect(&mut self, queue: u16, bell: &WakeDescriptor) -> Result<(), IoError> {
        match self.ask(&Request::Interrupts { queue }, Some(bell)) {
            // The queue is over, or its vector cannot be had: whoever waits looks now and then.
            Err(IoError::Gone { .. } | IoError::Refused { .. }) => {
                self.has_interrupts = false;
                Ok(())
            }
            other => other,
        }
    }
}

/// The queue of a reply to a request for one.
pub(super) fn lent_of(
    reply: Reply,
    descriptors: Vec<OwnedFd>,
    rules: Option<DirectRules>,
) -> Result<LentReply, IoError> {
    let missing = |what: &str| IoError::Protocol { reason: format!("a lent queue came without {what}") };
    let Reply::Queue { id, bytes, lent } = reply else {
        return Err(nonsense("a queue", &reply));
    };
    let text = lent.ok_or_else(|| missing("its places"))?;
    let rules = rules.ok_or_else(|| missing("its rules"))?;
    let [memory, line, device] =
        <[OwnedFd; 3]>::try_from(descriptors).map_err(|_| missing("its memory, its line and its device"))?;
    Ok(LentReply { id, bytes, text, rules, memory, line, device })
}
