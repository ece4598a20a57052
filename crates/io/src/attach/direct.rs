//! Hardware queues that a daemon lends: this process rings the controller's doorbells itself, and the daemon takes no
//! part in a command.
//!
//! Input: a session with a daemon that trusts this user. Output: the [`QueueOwner`] of a queue. The daemon resets the
//! controller, aborts commands and deletes queues. Invariant: a queue is reported lost only once the controller
//! accesses none of its memory: the daemon signals that by closing its end of the wake line, or another daemon has
//! acquired the controller, which requires that no process has it mapped.
//!
//! ```text
//!   Borrower --doorbells, rings--> controller
//!      |  lease, registers
//!   Borrowing <--(line hung up: doorbells unmapped, lease suspended)-- Watch, a thread of the session
//!      |
//!      +--poll--> daemon answers: the queue is lost, create another
//!                 a new daemon answers: likewise | no daemon answers: dead, the controller's state is unknown
//! ```

mod loan_watcher;
mod region_addresses;

pub(super) use loan_watcher::{LoanWatcher, QueueLoan};
pub(super) use region_addresses::RegionAddresses;

use super::connection::unexpected_reply;
use super::protocol::{AttachReply, AttachRequest, DirectRules, LentQueueLayout, QueueTrouble};
use super::session::{AttachSession, expect_done, lock};
use crate::client_namespace::ClientNamespace;
use crate::error::{IoError, SubmitError};
use crate::vfio::{OwnedQueue, QueueOwner};
use headwater_dma::iova::IovaRange;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::registers::MappedRegisters;
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_host::shared_memory::SharedMemory;
use headwater_host::wake::WakeDescriptor;
use headwater_host::wake_line::WakeLine;
use headwater_host::width::to_usize;
use headwater_nvme::data_pointer::PageBytes;
use headwater_nvme::driver::{
    DmaBlock, IoQueue, IoQueueState, LentMemory, LentTerms, OverdueCommand, QueueFault, QueueRules, SglUse,
};
use headwater_nvme::queue_pair::CommandId;
use region_addresses::AddressCache;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex};

/// The daemon's reply that lends a queue.
#[derive(Debug)]
pub(super) struct LentQueueReply {
    pub(super) id: u16,
    pub(super) bytes: u64,
    pub(super) text: LentQueueLayout,
    pub(super) rules: DirectRules,
    pub(super) memory: OwnedFd,
    pub(super) line: OwnedFd,
    pub(super) device: OwnedFd,
}

/// The controller's activity on a lent queue that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControllerActivity {
    /// The controller no longer accesses the queue.
    Quiet,
    /// The controller may still access the queue.
    Unknown,
}

/// The owner of one lent queue.
#[derive(Debug)]
pub(super) struct LentQueueOwner {
    session: Arc<Mutex<AttachSession>>,
    clock: Clock,
    addresses: AddressCache,
    /// The session's epoch in which the queue was lent.
    epoch: u64,
    loan: Option<Arc<QueueLoan>>,
    has_interrupts: bool,
    final_activity: Option<ControllerActivity>,
}

impl LentQueueOwner {
    pub(super) fn new(session: &Arc<Mutex<AttachSession>>, addresses: &Arc<RegionAddresses>) -> Self {
        Self {
            session: Arc::clone(session),
            clock: Clock::start(),
            addresses: AddressCache::of(addresses),
            epoch: 0,
            loan: None,
            has_interrupts: false,
            final_activity: None,
        }
    }

    /// Sends a request about the queue to the daemon that lent it.
    fn call_daemon(&self, request: &AttachRequest, wake: Option<&WakeDescriptor>) -> Result<(), IoError> {
        let mut session = lock(&self.session);
        if session.epoch() != self.epoch {
            return Err(session.gone("the one that lent the queue has ended"));
        }
        let wake = wake.map(|wake| wake.as_fd());
        expect_done(&session.call_with(request, wake.as_slice())?.0)
    }

    fn report_trouble(&self, queue: u16, trouble: QueueTrouble) -> Result<(), IoError> {
        self.call_daemon(&AttachRequest::Trouble { queue, trouble }, None)
    }

    /// Determines the state of a queue whose wake line is hung up, and ends or fails its lease.
    fn resolve(&mut self, borrowing: &QueueLoan) {
        let mut session = lock(&self.session);
        let found = match session.epoch() == self.epoch {
            true => session.call_with(&AttachRequest::Namespaces, &[]).map(drop),
            false => Ok(()),
        };
        let found = match found {
            Err(IoError::Gone { .. }) => session.reconnect(self.epoch),
            other => other,
        };
        self.final_activity = match found {
            Ok(()) => None,
            // A daemon that answers has the controller, and acquires it only after all lent queues have ended.
            Err(IoError::Daemon { .. }) => Some(ControllerActivity::Quiet),
            Err(_) => Some(ControllerActivity::Unknown),
        };
        match self.final_activity {
            None => borrowing.end(),
            Some(_) => borrowing.fail(),
        }
    }
}

impl LentQueueReply {
    /// Creates the queue over the descriptors of the reply.
    fn into_queue(
        self,
        depth: u32,
        now: Nanos,
    ) -> Result<(Box<IoQueue<SharedMemoryWords, MappedRegisters>>, QueueLoan), IoError> {
        let protocol = |reason: &str| IoError::Protocol { reason: format!("a lent queue: {reason}") };
        let LentQueueLayout { address, completions, lists, page_at, page_bytes, doorbells, .. } = self.text;
        let bytes = usize::try_from(self.bytes).map_err(|_| protocol("its memory is too long"))?;
        let memory = SharedMemory::map_descriptor(self.memory.as_fd(), 0, bytes)?;
        let part = |from: u64, end: u64| {
            let offset = |at: u64| usize::try_from(at).ok().filter(|at| at.is_multiple_of(8));
            let (from_byte, end_byte) = (offset(from)?, offset(end)?);
            let words =
                SharedMemoryWords::new(memory.clone(), from_byte, end_byte.checked_sub(from_byte)? / 8)
                    .ok()?;
            Some(DmaBlock { words, address: address.checked_add(from)? })
        };
        let parts = (part(0, completions), part(completions, lists), part(lists, self.bytes));
        let (Some(submissions), Some(completions), Some(lists)) = parts else {
            return Err(protocol("its parts do not lie in its memory"));
        };
        let window = usize::try_from(page_bytes).ok().filter(|&bytes| (8..=1 << 20).contains(&bytes));
        let window = window.ok_or_else(|| protocol("its doorbell page has an invalid length"))?;
        let registers = MappedRegisters::map(self.device.as_fd(), page_at, window).map_err(|errno| {
            IoError::Device { reason: format!("cannot map the doorbells of a lent queue: {errno}") }
        })?;
        let page = PageBytes::of_bytes(self.rules.page);
        let page = page.ok_or_else(|| protocol("the controller's page size is invalid"))?;
        let rules = QueueRules {
            page,
            sgl: if self.rules.sgl { SglUse::Needed } else { SglUse::Never },
            transfer_bytes_max: self.rules.transfer,
            timeout: Nanos::from_millis(self.rules.timeout_ms),
        };
        let terms = LentTerms { id: self.id, depth, doorbells: doorbells.map(to_usize), rules };
        let memory = LentMemory { submissions, completions, lists };
        let (queue, lease) = IoQueue::borrowed(&terms, memory, registers.clone(), now)
            .map_err(|fault| protocol(&fault.to_string()))?;
        Ok((Box::new(queue), QueueLoan::new(WakeLine::from(self.line), registers, lease)))
    }
}

impl QueueOwner for LentQueueOwner {
    type Words = SharedMemoryWords;
    type Registers = MappedRegisters;

    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn namespaces(&mut self) -> Vec<ClientNamespace> {
        // A daemon that does not answer offers none.
        lock(&self.session).namespaces().unwrap_or_default()
    }

    fn create_queue(&mut self, depth: u32) -> Result<Box<OwnedQueue<Self>>, IoError> {
        if self.final_activity.is_some() {
            return Err(SubmitError::Gone.into());
        }
        self.loan = None;
        let mut session = lock(&self.session);
        let lent = session.lent_queue(depth)?;
        self.epoch = session.epoch();
        self.has_interrupts = lent.text.interrupts;
        let (queue, borrowing) = lent.into_queue(depth, self.clock.now())?;
        let borrowing = Arc::new(borrowing);
        session.watch(&borrowing)?;
        self.loan = Some(borrowing);
        Ok(Box::new(queue.carrying()))
    }

    #[inline]
    fn translate_addresses(&mut self, runs: &mut [IovaRange]) -> Result<(), SubmitError> {
        self.addresses.translate(runs)
    }

    fn poll_controller(&mut self, _now: Nanos) {
        if let Some(borrowing) = self.loan.clone().filter(|borrowing| borrowing.is_suspended()) {
            self.resolve(&borrowing);
        }
    }

    fn report_overdue(&mut self, queue: u16, overdue: OverdueCommand, _now: Nanos) {
        let trouble = match overdue {
            OverdueCommand::Abort(command) => QueueTrouble::Late(command.number()),
            OverdueCommand::Stuck(command) => QueueTrouble::Stuck(command.number()),
        };
        // A daemon that cannot be notified is gone, which the wake line reports too.
        let _ = self.report_trouble(queue, trouble);
    }

    fn report_fault(&mut self, queue: u16, _fault: QueueFault, _now: Nanos) {
        let _ = self.report_trouble(queue, QueueTrouble::Broken);
    }

    fn abort(&mut self, queue: u16, command: CommandId) -> Result<(), IoError> {
        self.report_trouble(queue, QueueTrouble::Late(command.number()))
    }

    fn is_quiet(&self) -> bool {
        self.final_activity != Some(ControllerActivity::Unknown)
    }

    fn delete_queue(&mut self, queue: &OwnedQueue<Self>) -> bool {
        match queue.state() {
            IoQueueState::Lost => true,
            IoQueueState::Dead => self.is_quiet(),
            IoQueueState::Live | IoQueueState::Waiting => {
                self.call_daemon(&AttachRequest::DeleteQueue { id: queue.id() }, None).is_ok()
            }
        }
    }

    fn has_interrupts(&self) -> bool {
        self.has_interrupts
    }

    fn connect_interrupt(&mut self, queue: u16, wake: &WakeDescriptor) -> Result<(), IoError> {
        match self.call_daemon(&AttachRequest::Interrupts { queue }, Some(wake)) {
            // The queue has ended, or its vector is unavailable: waiters poll at intervals.
            Err(IoError::Gone { .. } | IoError::Daemon { .. }) => {
                self.has_interrupts = false;
                Ok(())
            }
            other => other,
        }
    }
}

/// Returns the lent queue of a reply to [`AttachRequest::Queue`].
pub(super) fn parse_lent_reply(
    reply: AttachReply,
    descriptors: Vec<OwnedFd>,
    rules: Option<DirectRules>,
) -> Result<LentQueueReply, IoError> {
    let missing = |what: &str| IoError::Protocol { reason: format!("a lent queue came without {what}") };
    let AttachReply::Queue { id, bytes, lent } = reply else {
        return Err(unexpected_reply("a queue", &reply));
    };
    let text = lent.ok_or_else(|| missing("its layout"))?;
    let rules = rules.ok_or_else(|| missing("its rules"))?;
    let [memory, line, device] = <[OwnedFd; 3]>::try_from(descriptors)
        .map_err(|_| missing("its memory, wake line and device file"))?;
    Ok(LentQueueReply { id, bytes, text, rules, memory, line, device })
}
