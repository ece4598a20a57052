//! Queues of the controller that clients drive.
//!
//! Input: requests of clients, and the controller's driver. Output: queues with their own memory, created, monitored
//! and reclaimed. Invariant: a loan keeps its rings and its client's regions mapped until the controller has deleted
//! the queue or lost it in a reset; if a dead controller may still write, for ever.
//!
//! ```text
//!   wanted --(ready)--> asked --created--> standing --(line, request, client gone)--> unwanted --deleted--> over
//!     ^                   | reset             | reset, death: lost -------------------------------------> over
//!     +-------------------+                                                     (line closed, unmapped)
//! ```

use super::client_mapping::MemoryMapper;
use super::device::HardwareDevice;
use crate::attach::lending::{LendResult, LentQueueHandover};
use headwater_dma::iova::{ClientSegments, DeviceMapping};
use headwater_host::clock::Nanos;
use headwater_host::shared_memory::SharedMemory;
use headwater_host::wake::WakeDescriptor;
use headwater_host::wake_line::WakeLine;
use headwater_io::attach::protocol::{LentQueueLayout, QueueTrouble};
use headwater_io::vfio::VectorSource;
use headwater_nvme::driver::{
    HostMemory, LentLayout, LentQueue, PciFunction, QueueError, QueueFault, QueueSpec, RegistersFile,
    RequestError, RequestTicket, ResetCause,
};
use headwater_nvme::queue_pair::CommandId;
use headwater_nvme::spec::priority::QueuePriority;
use headwater_ssd::nvme::rings::ClientId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum queues lent at a time, of all clients.
pub const LENT_QUEUES_MAX: u16 = 31;
/// Bytes of a page of this machine, the granularity of mappings.
const PAGE_BYTES: u64 = 4_096;
/// Poll period for a queue that is being created or deleted.
const POLL_PERIOD: Nanos = Nanos::from_millis(1);

/// Regions of a client, by their first address. Its loans keep them mapped.
type ClientRegions = Arc<Mutex<BTreeMap<u64, ClientSegments>>>;

/// The state of a loan.
#[derive(Debug)]
enum LoanStage {
    Wanted,
    Requested(RequestTicket),
    Live(LentQueue),
}

/// A queue lent to a client.
#[derive(Debug)]
struct ClientLoan {
    client: ClientId,
    stage: LoanStage,
    /// True if the queue must be deleted.
    to_delete: bool,
    depth: u32,
    layout: LentLayout,
    vector: Option<u16>,
    file: Option<OwnedFd>,
    /// The wake line; dropping the loan closes it.
    _line: WakeLine,
    /// Dropped in this order: the hardware's mappings of rings and regions end before the memory is unmapped here.
    reach: Box<dyn DeviceMapping>,
    _regions: ClientRegions,
    _memory: SharedMemory,
}

impl ClientLoan {
    /// Returns the queue, if the controller has created it.
    fn queue(&self) -> Option<&LentQueue> {
        match &self.stage {
            LoanStage::Live(queue) => Some(queue),
            LoanStage::Wanted | LoanStage::Requested(_) => None,
        }
    }
}

/// The lent queues of all clients.
#[derive(Debug)]
pub struct LentQueues {
    interrupts: Box<dyn VectorSource>,
    free_vectors: BTreeSet<u16>,
    loans: BTreeMap<u64, ClientLoan>,
    regions: BTreeMap<ClientId, ClientRegions>,
    next_token: u64,
    results: VecDeque<LendResult>,
    lost: VecDeque<u16>,
    now: Nanos,
}

impl LentQueues {
    /// Creates a lender without loans. `vectors` are the controller's interrupt vectors for lent queues.
    #[must_use]
    pub fn new(interrupts: Box<dyn VectorSource>, vectors: impl IntoIterator<Item = u16>) -> Self {
        Self {
            interrupts,
            free_vectors: vectors.into_iter().collect(),
            loans: BTreeMap::new(),
            regions: BTreeMap::new(),
            next_token: 0,
            results: VecDeque::new(),
            lost: VecDeque::new(),
            now: Nanos::ZERO,
        }
    }

    /// Keeps a client's region mapped for its queues.
    pub(super) fn keep_region(&mut self, client: ClientId, start: u64, region: ClientSegments) {
        let regions = self.regions.entry(client).or_default();
        regions.lock().unwrap_or_else(PoisonError::into_inner).insert(start, region);
    }

    pub(super) fn end_region(&mut self, client: ClientId, start: u64) {
        if let Some(regions) = self.regions.get(&client) {
            regions.lock().unwrap_or_else(PoisonError::into_inner).remove(&start);
        }
    }

    /// Adds a queue that is created as soon as the controller is ready. Returns its token.
    pub(super) fn request_queue(
        &mut self,
        client: ClientId,
        depth: u32,
        layout: LentLayout,
        line: WakeLine,
        mapper: &dyn MemoryMapper,
    ) -> Result<u64, String> {
        if self.loans.len() >= usize::from(LENT_QUEUES_MAX) {
            return Err(format!("all {LENT_QUEUES_MAX} queues that can be lent are in use; try again later"));
        }
        let (memory, file) = SharedMemory::memfd(layout.bytes).map_err(|error| error.to_string())?;
        let reach = mapper.map(&memory)?;
        self.next_token += 1;
        let loan = ClientLoan {
            client,
            stage: LoanStage::Wanted,
            to_delete: false,
            depth,
            layout,
            vector: self.free_vectors.pop_first(),
            file: Some(file),
            _line: line,
            reach,
            _regions: Arc::clone(self.regions.entry(client).or_default()),
            _memory: memory,
        };
        self.loans.insert(self.next_token, loan);
        Ok(self.next_token)
    }

    pub(super) fn next_lend_result(&mut self) -> Option<LendResult> {
        self.results.pop_front()
    }

    pub(super) fn next_lost_queue(&mut self) -> Option<u16> {
        self.lost.pop_front()
    }

    fn find(&mut self, queue: u16) -> Option<&mut ClientLoan> {
        self.loans.values_mut().find(|loan| loan.queue().is_some_and(|found| found.id == queue))
    }

    pub(super) fn reclaim_queue(&mut self, queue: u16) {
        if let Some(loan) = self.find(queue) {
            loan.to_delete = true;
        }
    }

    pub(super) fn reclaim_all(&mut self) {
        self.loans.values_mut().for_each(|loan| loan.to_delete = true);
    }

    pub(super) fn has_queue(&self, queue: u16) -> bool {
        self.loans.values().any(|loan| loan.queue().is_some_and(|found| found.id == queue))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.loans.is_empty()
    }

    pub(super) fn remove_client(&mut self, client: ClientId) {
        self.regions.remove(&client);
        self.loans.values_mut().filter(|loan| loan.client == client).for_each(|loan| loan.to_delete = true);
    }

    pub(super) fn connect_interrupt(&mut self, queue: u16, eventfd: &WakeDescriptor) -> Result<(), String> {
        let vector = self.find(queue).ok_or("the queue no longer exists")?.vector;
        let vector = vector.ok_or("no interrupt vector is free for this queue; poll it")?;
        self.interrupts
            .connect(vector, Some(eventfd))
            .map_err(|error| format!("interrupt vector {vector}: {error}"))
    }

    pub(super) fn correct_fault<F: PciFunction, H: HostMemory>(
        &self,
        device: &mut HardwareDevice<F, H>,
        queue: u16,
        trouble: QueueTrouble,
    ) -> Result<(), String> {
        let driver = device.driver_mut();
        let trouble = match trouble {
            QueueTrouble::Late(command) => {
                return match driver.abort(queue, CommandId::of(command), self.now) {
                    // NotReady: the reset in progress ends the queue.
                    Ok(()) | Err(RequestError::NotReady) => Ok(()),
                    Err(error) => Err(error.to_string()),
                };
            }
            QueueTrouble::Stuck(command) => {
                ResetCause::CommandTimeout { queue, command: CommandId::of(command) }
            }
            QueueTrouble::Broken => {
                ResetCause::QueueViolation { queue, fault: QueueFault::StrayCompletions { count: 1 } }
            }
        };
        tracing::warn!(%trouble, "a client reports a fault of its queue; the controller is reset");
        driver.reset_for(trouble, self.now);
        Ok(())
    }

    /// Returns the time of the next poll, if a loan changes state or a result waits for delivery.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        let moves = |loan: &ClientLoan| loan.to_delete || !matches!(loan.stage, LoanStage::Live(_));
        let undelivered = !self.results.is_empty() || !self.lost.is_empty();
        (undelivered || self.loans.values().any(moves)).then(|| self.now.after(POLL_PERIOD))
    }

    /// Advances every loan. Returns true if one ended.
    pub(super) fn poll<F: PciFunction, H: HostMemory>(
        &mut self,
        device: &mut HardwareDevice<F, H>,
        now: Nanos,
    ) -> bool {
        self.now = now;
        if self.loans.is_empty() {
            return false;
        }
        let mut over = Vec::new();
        for (&token, loan) in &mut self.loans {
            if advance_loan(token, loan, device, now, &mut self.results) == LoanStep::Over {
                over.push(token);
            }
        }
        for token in &over {
            self.release_loan(*token, device);
        }
        !over.is_empty()
    }

    /// Releases a loan that the hardware no longer uses.
    fn release_loan<F: PciFunction, H: HostMemory>(&mut self, token: u64, device: &HardwareDevice<F, H>) {
        let Some(loan) = self.loans.remove(&token) else { return };
        if let Some(vector) = loan.vector {
            // If this fails, the vector signals an eventfd that no client uses: harmless.
            let _ = self.interrupts.connect(vector, None);
            self.free_vectors.insert(vector);
        }
        if let Some(queue) = loan.queue().filter(|_| !loan.to_delete) {
            self.lost.push_back(queue.id);
        }
        if device.death().is_some() && !device.driver().is_dma_stopped() {
            tracing::error!("the dead controller may still write to a client's memory, which is leaked");
            // Its line is leaked too: a client whose line is closed would reuse its buffers.
            Box::leak(Box::new(loan));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoanStep {
    Stay,
    Over,
}

/// Advances one loan.
fn advance_loan<F: PciFunction, H: HostMemory>(
    token: u64,
    loan: &mut ClientLoan,
    device: &mut HardwareDevice<F, H>,
    now: Nanos,
    results: &mut VecDeque<LendResult>,
) -> LoanStep {
    if let LoanStage::Wanted = loan.stage {
        if loan.to_delete {
            return LoanStep::Over;
        }
        let spec = QueueSpec { depth: loan.depth, vector: loan.vector, priority: QueuePriority::Medium };
        let asked = device.driver_mut().lend_queue(spec, loan.reach.address(), now);
        match asked {
            Ok(ticket) => loan.stage = LoanStage::Requested(ticket),
            Err(RequestError::NotReady | RequestError::Busy) if device.death().is_none() => {}
            Err(error) => {
                results.push_back((token, Err(error.to_string())));
                return LoanStep::Over;
            }
        }
    }
    if let LoanStage::Requested(ticket) = loan.stage {
        match device.driver_mut().take_lent(ticket) {
            None => {}
            Some(Ok(queue)) => {
                if !loan.to_delete {
                    results.push_back((token, describe_queue(loan, &queue, device)));
                }
                loan.stage = LoanStage::Live(queue);
            }
            // A request lost in a reset is repeated when the controller is ready again.
            Some(Err(QueueError::Reset)) => loan.stage = LoanStage::Wanted,
            Some(Err(error)) => {
                results.push_back((token, Err(error.to_string())));
                return LoanStep::Over;
            }
        }
    }
    let LoanStage::Live(queue) = &loan.stage else { return LoanStep::Stay };
    if queue.is_invalidated() {
        return LoanStep::Over;
    }
    if loan.to_delete {
        if !device.driver().has_queue(queue.id) {
            return LoanStep::Over;
        }
        // Busy is temporary, and a reset ends the queue.
        let _ = device.driver_mut().delete_queue(queue.id, now);
    }
    LoanStep::Stay
}

/// Builds the description of a queue for its client.
fn describe_queue<F: PciFunction, H: HostMemory>(
    loan: &mut ClientLoan,
    queue: &LentQueue,
    device: &HardwareDevice<F, H>,
) -> Result<LentQueueHandover, String> {
    let function = device.driver().function();
    let RegistersFile { file, offset } = function.registers_file().map_err(|error| error.to_string())?;
    let [tail, head] = queue.doorbells.map(|at| at as u64);
    let start = tail.min(head) / PAGE_BYTES * PAGE_BYTES;
    let end = (tail.max(head) + 4).next_multiple_of(PAGE_BYTES);
    let text = LentQueueLayout {
        address: loan.reach.address(),
        completions: loan.layout.completions as u64,
        lists: loan.layout.lists as u64,
        page_at: offset + start,
        page_bytes: end - start,
        doorbells: [tail - start, head - start],
        interrupts: loan.vector.is_some(),
    };
    let memory = loan.file.take().ok_or("the memfd of the queue was delivered before")?;
    Ok(LentQueueHandover {
        id: queue.id,
        bytes: loan.layout.bytes as u64,
        layout: text,
        memory,
        device: file,
    })
}
