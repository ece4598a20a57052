//! The device's own thread: polls rings and device, handles requests of other threads, and sleeps when idle.
//!
//! Input: requests from other threads, commands from rings. Output: answers. The loop polls; after an idle period it
//! sleeps until a client rings, the medium completes or a deadline passes. Invariant: it ends with everything durable.

use crate::namespace_request::{client_namespace, namespace_change};
use headwater_dma::iova::{Iova, RegionRevocation, RegisterError};
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_host::shared_memory::SharedMemory;
use headwater_host::wake::WakeDescriptor;
use headwater_host::width::narrow;
use headwater_io::namespace_request::NamespaceRequest;
use headwater_io::ring_queue::ClientPair;
use headwater_io::{ClientNamespace, IoError};
use headwater_nvme::controller::{QueueId, QueueKind};
use headwater_nvme::queue_pair::{QueuePair, SleepDecision, words_for};
use headwater_ssd::command::{FrontEndId, NamespaceId, SsdCommand, SubmitError};
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::media::Media;
use headwater_ssd::namespace::Namespace;
use headwater_ssd::nvme::rings::{ClientId, ClientWakeup, RingError, RingFrontEnd};
use rustix::event::{PollFd, PollFlags, poll};
use std::sync::mpsc::{Receiver, Sender};

/// The identifier of the rings at the device.
const RINGS: FrontEndId = FrontEndId(1);
/// The identifier of namespace changes at the device.
const CONTROL: FrontEndId = FrontEndId(2);
/// Idle polling time before a sleep.
const IDLE_SPIN: Nanos = Nanos::from_micros(50);
/// Longest sleep, which only bounds the delay of a wall-clock deadline when the wall clock is set.
const SLEEP_MAX: Nanos = Nanos::from_millis(60_000);
/// Longest wait for the last answers when the device stops.
const DRAIN_MAX: Nanos = Nanos::from_millis(10_000);
/// Loop turns between two polls for requests while commands keep moving.
const REQUEST_POLL_TURNS: u32 = 64;

/// A request of another thread to the device, with the sender of the answer.
pub(crate) enum CoreRequest {
    /// The list of namespaces.
    ListNamespaces(Sender<Vec<ClientNamespace>>),
    /// A change of a namespace.
    ChangeNamespace { id: u8, request: NamespaceRequest, answer: Sender<Result<u8, IoError>> },
    /// The registration of memory at an address.
    Register { start: Iova, memory: SharedMemory, answer: Sender<Result<(), IoError>> },
    /// The release of memory; answered when no command in flight names it.
    Release { start: Iova, answer: Sender<Result<(), IoError>> },
    /// The creation of a queue pair.
    CreateQueue { depth: u32, answer: Sender<Result<NewQueue, IoError>> },
    /// The removal of a queue that its client dropped.
    DropQueue(QueueId),
    /// The shutdown of the device.
    Stop,
}

/// The client's half of a new queue.
pub(crate) struct NewQueue {
    pub(crate) id: QueueId,
    pub(crate) pair: ClientPair,
    pub(crate) wakeup: WakeDescriptor,
}

/// Creates the rings of a new device.
pub(crate) fn rings() -> Result<RingFrontEnd<SharedMemoryWords>, IoError> {
    Ok(RingFrontEnd::new(RINGS)?)
}

/// A pending change of namespaces.
struct PendingNamespaceChange {
    token: u64,
    /// Number of the namespace, 0 for a new one.
    id: u8,
    answer: Sender<Result<u8, IoError>>,
}

struct CoreThread<M: Media> {
    device: SsdDevice<M>,
    front_end: RingFrontEnd<SharedMemoryWords>,
    client: ClientId,
    clock: Clock,
    releases: Vec<(RegionRevocation, Sender<Result<(), IoError>>)>,
    /// Pending changes of namespaces.
    changes: Vec<PendingNamespaceChange>,
    next_token: u64,
    stopping: Option<Nanos>,
}

/// Runs a device until it receives a request to stop.
pub(crate) fn run<M: Media>(
    device: SsdDevice<M>,
    mut front_end: RingFrontEnd<SharedMemoryWords>,
    requests: &Receiver<CoreRequest>,
    clock: Clock,
) {
    let client = front_end.rings.add_client();
    let mut core = CoreThread {
        device,
        front_end,
        client,
        clock,
        releases: Vec::new(),
        changes: Vec::new(),
        next_token: 0,
        stopping: None,
    };
    core.serve(requests);
    if let Err(error) = core.device.shutdown(clock.now(), clock.wall()) {
        tracing::error!(%error, "the device stopped without its last checkpoint; the next start reads the whole log");
    }
}

impl<M: Media> CoreThread<M> {
    fn serve(&mut self, requests: &Receiver<CoreRequest>) {
        let mut moved_at = self.clock.now();
        let mut turns = 0_u32;
        loop {
            let (now, wall) = (self.clock.now(), self.clock.wall());
            let mut moved = self.front_end.poll(&mut self.device);
            moved |= self.device.poll(now, wall);
            turns = turns.wrapping_add(1);
            if !moved || turns.is_multiple_of(REQUEST_POLL_TURNS) {
                moved |= self.receive_requests(requests, now);
                moved |= self.send_answers();
            }
            if let Some(since) = self.stopping
                && (self.front_end.rings.is_drained() || now.since(since) > DRAIN_MAX)
            {
                return;
            }
            if moved {
                moved_at = now;
            } else if now.since(moved_at) >= IDLE_SPIN
                && self.front_end.rings.prepare_sleep() == SleepDecision::UntilWoken
            {
                self.sleep(now, wall);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn receive_requests(&mut self, requests: &Receiver<CoreRequest>, now: Nanos) -> bool {
        let mut received = false;
        while let Ok(request) = requests.try_recv() {
            received = true;
            self.handle_request(request, now);
        }
        received
    }

    /// Serves a request. A send that fails is ignored: the requesting thread is gone.
    fn handle_request(&mut self, request: CoreRequest, now: Nanos) {
        match request {
            CoreRequest::ListNamespaces(answer) => {
                let _ = answer.send(self.namespaces());
            }
            CoreRequest::ChangeNamespace { id, request, answer } => self.submit_change(id, &request, answer),
            CoreRequest::Register { start, memory, answer } => {
                let stopping = || IoError::Unsupported {
                    reason: format!(
                        "no memory can be registered at {start}: the device is stopping; open it again"
                    ),
                };
                let limit = |error: RegisterError| IoError::Limit { reason: error.to_string() };
                let table = self.front_end.rings.memory(self.client).ok_or_else(stopping);
                let _ = answer.send(table.and_then(|table| table.register(start, memory).map_err(limit)));
            }
            CoreRequest::Release { start, answer } => {
                let table = self.front_end.rings.memory(self.client);
                match table.map(|table| table.revoke(start)) {
                    Some(Ok(revocation)) => self.releases.push((revocation, answer)),
                    _ => {
                        let reason = format!(
                            "the memory at {start} is not registered with this device; release it at its own"
                        );
                        let _ = answer.send(Err(IoError::Unsupported { reason }));
                    }
                }
            }
            CoreRequest::CreateQueue { depth, answer } => {
                let _ = answer.send(self.create_queue(depth));
            }
            CoreRequest::DropQueue(queue) => self.front_end.rings.abandon_queue(queue),
            CoreRequest::Stop => {
                self.front_end.rings.drain();
                self.stopping = Some(now);
            }
        }
    }

    fn namespaces(&self) -> Vec<ClientNamespace> {
        let all = (1..=NAMESPACES).filter_map(|number| u8::try_from(number).ok()).map(NamespaceId);
        all.map(|id| client_namespace(id, &self.device.namespace(id).unwrap_or(Namespace::IMPLICIT)))
            .collect()
    }

    fn submit_change(&mut self, id: u8, request: &NamespaceRequest, answer: Sender<Result<u8, IoError>>) {
        let change = namespace_change(id, request).map_err(|reason| IoError::Unsupported { reason });
        let submitted = change.and_then(|(namespace, change)| {
            let command = SsdCommand::Namespace(change);
            let submitted = self.device.submit(CONTROL, namespace, self.next_token, command);
            submitted.map_err(|error| unsubmitted_change(id, error))
        });
        if let Err(error) = submitted {
            let _ = answer.send(Err(error));
            return;
        }
        let id = if matches!(request, NamespaceRequest::Create(_)) { 0 } else { id };
        self.changes.push(PendingNamespaceChange { token: self.next_token, id, answer });
        self.next_token += 1;
    }

    fn create_queue(&mut self, depth: u32) -> Result<NewQueue, IoError> {
        let words = words_for(depth)?;
        let memory = SharedMemoryWords::new(SharedMemory::anonymous(words * 8)?, 0, words)?;
        let (pair, end) = QueuePair::over(memory, depth)?;
        let bell = WakeDescriptor::new()?;
        let id = self
            .front_end
            .rings
            .add_queue(self.client, end, QueueKind::Uio, ClientWakeup::Descriptor(bell.clone()))
            .map_err(|error| missing_queue(depth, &error))?;
        Ok(NewQueue { id, pair, wakeup: bell })
    }

    /// Sends the answers of requests whose commands completed.
    fn send_answers(&mut self) -> bool {
        let mut moved = false;
        while let Some(completion) = self.device.next_completion(CONTROL) {
            moved = true;
            let Some(at) = self.changes.iter().position(|change| change.token == completion.token) else {
                continue;
            };
            let PendingNamespaceChange { id, answer, .. } = self.changes.swap_remove(at);
            let status = completion.status;
            // The position is the identifier of the namespace that was created.
            let number = || if id == 0 { narrow(completion.position) } else { id };
            let _ =
                answer.send(if status.is_success() { Ok(number()) } else { Err(IoError::Status(status)) });
        }
        self.releases.retain(|(revocation, answer)| {
            let quiet = revocation.is_drained();
            if quiet {
                moved = true;
                let _ = answer.send(Ok(()));
            }
            !quiet
        });
        moved
    }

    fn sleep(&self, now: Nanos, wall: UnixMillis) {
        let expiry = self.device.next_expiry().map(|at| Nanos::from_millis(at.0.saturating_sub(wall.0)));
        let deadline = self.device.next_deadline().map(|at| at.since(now));
        let span = deadline.into_iter().chain(expiry).fold(SLEEP_MAX, Nanos::min);
        let mut descriptors = vec![PollFd::new(self.front_end.rings.wakeup_descriptor(), PollFlags::IN)];
        descriptors.extend(
            self.device
                .media()
                .wake_descriptor()
                .map(|medium| PollFd::from_borrowed_fd(medium, PollFlags::IN)),
        );
        // An interrupted sleep only ends early.
        let _ = poll(&mut descriptors, Some(&span.to_timespec()));
    }
}

/// Returns the error for a change that the device did not accept; namespace 0 is a new one.
fn unsubmitted_change(id: u8, error: SubmitError) -> IoError {
    let reason = format!("namespace {id} is unchanged: {error}");
    match error {
        SubmitError::Busy(_) => IoError::Limit { reason },
        SubmitError::Refused(_) => IoError::Unsupported { reason },
    }
}

/// Returns the error for a queue that was not created.
fn missing_queue(depth: u32, error: &RingError) -> IoError {
    let reason = format!("no queue of depth {depth} was created: {error}");
    match error {
        RingError::NoClient(_) | RingError::Draining => IoError::Unsupported { reason },
        _ => IoError::Limit { reason },
    }
}
