//! Queues of the controller that clients drive.
//!
//! In: clients, and the controller's driver. Out: queues with memory of their own, made, watched over and taken back. Invariant:
//! a loan keeps its rings and its client's regions mapped until the controller has deleted or forgotten the queue; of a dead
//! controller that is not quiet, for ever.
//!
//! ```text
//!   wanted --(controller ready)--> asked --made--> standing --(line, request, client gone)--> unwanted --deleted--> over
//!     ^                              | reset          | reset, death: forgotten -----------------------------------> over
//!     +------------------------------+                                                       (line hung up, unmapped)
//! ```

use super::device::HardwareDevice;
use super::reach::Mapper;
use crate::attach::lending::{Lent, Made};
use headwater_dma::iova::{Reach, Segments};
use headwater_host::clock::Nanos;
use headwater_host::foreign::Foreign;
use headwater_host::wake::WakeDescriptor;
use headwater_host::wake_line::WakeLine;
use headwater_io::attach::protocol::{LentText, QueueTrouble};
use headwater_io::vfio::VectorSource;
use headwater_nvme::controller::Priority;
use headwater_nvme::driver::{
    Function, HostMemory, LentLayout, LentQueue, QueueError, QueueFault, QueueSpec, RegistersFile,
    RequestError, Ticket, Trouble,
};
use headwater_nvme::queue_pair::CommandId;
use headwater_ssd::nvme::rings::ClientId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// Queues that can be lent at a time, of all clients.
pub const LENT_QUEUES_MAX: u16 = 31;
/// Bytes of a page of this machine, of which mappings are made.
const PAGE_BYTES: u64 = 4_096;
/// Between two looks at a queue that is being made or taken back.
const LOOK: Nanos = Nanos::from_millis(1);

/// Regions of a client, by their first address. Its loans keep them.
type Regions = Arc<Mutex<BTreeMap<u64, Segments>>>;

/// Where a loan is.
#[derive(Debug)]
enum Stage {
    Wanted,
    Asked(Ticket),
    Standing(LentQueue),
}

/// A queue of a client.
#[derive(Debug)]
struct Loan {
    client: ClientId,
    stage: Stage,
    /// Nobody wants it any more.
    unwanted: bool,
    depth: u32,
    layout: LentLayout,
    vector: Option<u16>,
    file: Option<OwnedFd>,
    /// Hung up with the loan.
    _line: WakeLine,
    /// The hardware lets go of both before the memory is unmapped here.
    reach: Box<dyn Reach>,
    _regions: Regions,
    _memory: Foreign,
}

impl Loan {
    /// The queue, when the controller has made it.
    fn queue(&self) -> Option<&LentQueue> {
        match &self.stage {
            Stage::Standing(queue) => Some(queue),
            Stage::Wanted | Stage::Asked(_) => None,
        }
    }
}

/// The loans.
#[derive(Debug)]
pub struct LentQueues {
    interrupts: Box<dyn VectorSource>,
    free_vectors: BTreeSet<u16>,
    loans: BTreeMap<u64, Loan>,
    regions: BTreeMap<ClientId, Regions>,
    next_token: u64,
    made: VecDeque<Made>,
    lost: VecDeque<u16>,
    now: Nanos,
}

impl LentQueues {
    /// None yet. `vectors` are those of the controller that completions of lent queues can have.
    #[must_use]
    pub fn new(interrupts: Box<dyn VectorSource>, vectors: impl IntoIterator<Item = u16>) -> Self {
        Self {
            interrupts,
            free_vectors: vectors.into_iter().collect(),
            loans: BTreeMap::new(),
            regions: BTreeMap::new(),
            next_token: 0,
            made: VecDeque::new(),
            lost: VecDeque::new(),
            now: Nanos::ZERO,
        }
    }

    /// A client's region, which its queues keep.
    pub(super) fn keep(&mut self, client: ClientId, start: u64, region: Segments) {
        let regions = self.regions.entry(client).or_default();
        regions.lock().unwrap_or_else(PoisonError::into_inner).insert(start, region);
    }

    pub(super) fn end_region(&mut self, client: ClientId, start: u64) {
        if let Some(regions) = self.regions.get(&client) {
            regions.lock().unwrap_or_else(PoisonError::into_inner).remove(&start);
        }
    }

    /// A queue that is to be made as soon as the controller takes one.
    pub(super) fn want(
        &mut self,
        client: ClientId,
        depth: u32,
        layout: LentLayout,
        line: WakeLine,
        mapper: &dyn Mapper,
    ) -> Result<u64, String> {
        if self.loans.len() >= usize::from(LENT_QUEUES_MAX) {
            return Err(format!("at most {LENT_QUEUES_MAX} queues are lent at a time"));
        }
        let (memory, file) = Foreign::memfd(layout.bytes).map_err(|error| error.to_string())?;
        let reach = mapper.map(&memory)?;
        self.next_token += 1;
        let loan = Loan {
            client,
            stage: Stage::Wanted,
            unwanted: false,
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

    pub(super) fn next_made(&mut self) -> Option<Made> {
        self.made.pop_front()
    }

    pub(super) fn next_lost(&mut self) -> Option<u16> {
        self.lost.pop_front()
    }

    fn find(&mut self, queue: u16) -> Option<&mut Loan> {
        self.loans.values_mut().find(|loan| loan.queue().is_some_and(|found| found.id == queue))
    }

    pub(super) fn take_back(&mut self, queue: u16) {
        if let Some(loan) = self.find(queue) {
            loan.unwanted = true;
        }
    }

    pub(super) fn take_back_all(&mut self) {
        self.loans.values_mut().for_each(|loan| loan.unwanted = true);
    }

    pub(super) fn has_queue(&self, queue: u16) -> bool {
        self.loans.values().any(|loan| loan.queue().is_some_and(|found| found.id == queue))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.loans.is_empty()
    }

    pub(super) fn remove_client(&mut self, client: ClientId) {
        self.regions.remove(&client);
        self.loans.values_mut().filter(|loan| loan.client == client).for_each(|loan| loan.unwanted = true);
    }

    pub(super) fn connect(&mut self, queue: u16, bell: &WakeDescriptor) -> Result<(), String> {
        let vector = self.find(queue).ok_or("the queue is not there any more")?.vector;
        let vector = vector.ok_or("no interrupt vector is left for this queue; poll it")?;
        self.interrupts
            .connect(vector, Some(bell))
            .map_err(|error| format!("interrupt vector {vector}: {error}"))
    }

    pub(super) fn help<F: Function, H: HostMemory>(
        &self,
        device: &mut HardwareDevice<F, H>,
        queue: u16,
        trouble: QueueTrouble,
    ) -> Result<(), String> {
        let driver = device.driver_mut();
        let trouble = match trouble {
            QueueTrouble::Late(command) => {
                return match driver.abort(queue, CommandId::of(command), self.now) {
                    // A reset that goes on ends the queue.
                    Ok(()) | Err(RequestError::NotReady) => Ok(()),
                    Err(error) => Err(error.to_string()),
                };
            }
            QueueTrouble::Stuck(command) => Trouble::Stuck { queue, command: CommandId::of(command) },
            QueueTrouble::Broken => Trouble::Queue { queue, fault: QueueFault::Strays { count: 1 } },
        };
        tracing::warn!(%trouble, "a client finds its queue in trouble; the controller is reset");
        driver.report(trouble, self.now);
        Ok(())
    }

    /// When there is something to look at again.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        let moves = |loan: &Loan| loan.unwanted || !matches!(loan.stage, Stage::Standing(_));
        let untold = !self.made.is_empty() || !self.lost.is_empty();
        (untold || self.loans.values().any(moves)).then(|| self.now.after(LOOK))
    }

    /// Moves every loan on as far as it can be. Returns whether one moved.
    pub(super) fn poll<F: Function, H: HostMemory>(
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
            if step(token, loan, device, now, &mut self.made) == Step::Over {
                over.push(token);
            }
        }
        for token in &over {
            self.end(*token, device);
        }
        !over.is_empty()
    }

    /// The hardware is done with a loan.
    fn end<F: Function, H: HostMemory>(&mut self, token: u64, device: &HardwareDevice<F, H>) {
        let Some(loan) = self.loans.remove(&token) else { return };
        if let Some(vector) = loan.vector {
            // A vector that stays connected rings a bell that nobody has any more.
            let _ = self.interrupts.connect(vector, None);
            self.free_vectors.insert(vector);
        }
        if let Some(queue) = loan.queue().filter(|_| !loan.unwanted) {
            self.lost.push_back(queue.id);
        }
        if device.death().is_some() && !device.driver().is_quiet() {
            tracing::error!("a dead controller may still write to memory of a client, which stays taken");
            // Its line stays too: a client that is hung up on uses its buffers again.
            Box::leak(Box::new(loan));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Stay,
    Over,
}

/// Moves one loan on.
fn step<F: Function, H: HostMemory>(
    token: u64,
    loan: &mut Loan,
    device: &mut HardwareDevice<F, H>,
    now: Nanos,
    made: &mut VecDeque<Made>,
) -> Step {
    if let Stage::Wanted = loan.stage {
        if loan.unwanted {
            return Step::Over;
        }
        let spec = QueueSpec { depth: loan.depth, vector: loan.vector, priority: Priority::Medium };
        let asked = device.driver_mut().lend_queue(spec, loan.reach.address(), now);
        match asked {
            Ok(ticket) => loan.stage = Stage::Asked(ticket),
            Err(RequestError::NotReady | RequestError::Busy) if device.death().is_none() => {}
            Err(error) => {
                made.push_back((token, Err(error.to_string())));
                return Step::Over;
            }
        }
    }
    if let Stage::Asked(ticket) = loan.stage {
        match device.driver_mut().take_lent(ticket) {
            None => {}
            Some(Ok(queue)) => {
                if !loan.unwanted {
                    made.push_back((token, lent_of(loan, &queue, device)));
                }
                loan.stage = Stage::Standing(queue);
            }
            // What a reset took is asked for again when the controller is back.
            Some(Err(QueueError::Reset)) => loan.stage = Stage::Wanted,
            Some(Err(error)) => {
                made.push_back((token, Err(error.to_string())));
                return Step::Over;
            }
        }
    }
    let Stage::Standing(queue) = &loan.stage else { return Step::Stay };
    if queue.is_over() {
        return Step::Over;
    }
    if loan.unwanted {
        if !device.driver().has_queue(queue.id) {
            return Step::Over;
        }
        // Busy passes, and a reset makes it over.
        let _ = device.driver_mut().delete_queue(queue.id, now);
    }
    Step::Stay
}

/// What the client is told.
fn lent_of<F: Function, H: HostMemory>(
    loan: &mut Loan,
    queue: &LentQueue,
    device: &HardwareDevice<F, H>,
) -> Result<Lent, String> {
    let function = device.driver().function();
    let RegistersFile { file, offset } = function.registers_file().map_err(|error| error.to_string())?;
    let [tail, head] = queue.doorbells.map(|at| at as u64);
    let start = tail.min(head) / PAGE_BYTES * PAGE_BYTES;
    let end = (tail.max(head) + 4).next_multiple_of(PAGE_BYTES);
    let text = LentText {
        address: loan.reach.address(),
        completions: loan.layout.completions as u64,
        lists: loan.layout.lists as u64,
        page_at: offset + start,
        page_bytes: end - start,
        doorbells: [tail - start, head - start],
        interrupts: loan.vector.is_some(),
    };
    let memory = loan.file.take().ok_or("the queue was told before")?;
    Ok(Lent { id: queue.id, bytes: loan.layout.bytes as u64, text, memory, device: file })
}
