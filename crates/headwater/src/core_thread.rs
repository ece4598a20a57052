//! The device's own thread: polls rings and device, handles requests of other threads, and sleeps when idle.
//!
//! Input: requests from other threads, commands from rings. Output: answers. The loop polls; after an idle period it
//! sleeps until a client rings, the medium completes or a deadline passes. Invariant: it ends with everything durable.

use crate::namespace_wish::{change_of, facts_of};
use headwater_dma::iova::{Iova, RegionRevocation};
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_host::shared_memory::SharedMemory;
use headwater_host::wake::WakeDescriptor;
use headwater_io::attach::admin::NamespaceRequest;
use headwater_io::{ClientNamespace, IoError};
use headwater_nvme::controller::{QueueId, QueueKind};
use headwater_nvme::queue_pair::{QueuePair, SleepDecision, words_for};
use headwater_ssd::command::{FrontEndId, NamespaceId, SsdCommand};
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::media::Media;
use headwater_ssd::namespace::Namespace;
use headwater_ssd::nvme::rings::{ClientId, ClientWakeup, RingFrontEnd};
use rustix::event::{PollFd, PollFlags, poll};
use std::sync::mpsc::{Receiver, Sender};

/// The identifier of the rings at the device.
const RINGS: FrontEndId = FrontEndId(1);
/// The identifier of namespace changes at the device.
const CONTROL: FrontEndId = FrontEndId(2);
/// Idle polling time before a sleep.
const SPIN: Nanos = Nanos::from_micros(50);
/// Longest sleep, which only bounds the delay of a wall-clock deadline when the wall clock is set.
const SLEEP_MAX: Nanos = Nanos::from_millis(60_000);
/// Longest wait for the last answers when the device stops.
const DRAIN_MAX: Nanos = Nanos::from_millis(10_000);
/// Loop turns between two polls for requests while commands keep moving.
const WISH_EVERY: u32 = 64;

/// A request of another thread to the device, with the sender of the answer.
pub(crate) enum Wish {
    /// The list of namespaces.
    Namespaces(Sender<Vec<ClientNamespace>>),
    /// A change of a namespace.
    Namespace { id: u8, wish: NamespaceRequest, answer: Sender<Result<u8, IoError>> },
    /// The registration of memory at an address.
    Register { start: Iova, memory: SharedMemory, answer: Sender<Result<(), IoError>> },
    /// The release of memory; answered when no command in flight names it.
    Release { start: Iova, answer: Sender<Result<(), IoError>> },
    /// The creation of a queue pair.
    Queue { depth: u32, answer: Sender<Result<Made, IoError>> },
    /// The removal of a queue that its client dropped.
    Forget(QueueId),
    /// The shutdown of the device.
    Stop,
}

/// The client's half of a new queue.
pub(crate) struct Made {
    pub(crate) id: QueueId,
    pub(crate) pair: QueuePair<SharedMemoryWords>,
    pub(crate) bell: WakeDescriptor,
}

/// Creates the rings of a new device.
pub(crate) fn rings() -> Result<RingFrontEnd<SharedMemoryWords>, IoError> {
    Ok(RingFrontEnd::new(RINGS)?)
}

/// A pending change of namespaces.
struct Change {
    token: u64,
    /// Number of the namespace, 0 for a new one.
    id: u8,
    answer: Sender<Result<u8, IoError>>,
}

struct CoreThread<M: Media> {
    device: SsdDevice<M>,
    face: RingFrontEnd<SharedMemoryWords>,
    client: ClientId,
    clock: Clock,
    releases: Vec<(RegionRevocation, Sender<Result<(), IoError>>)>,
    /// Pending changes of namespaces.
    changes: Vec<Change>,
    next_token: u64,
    stopping: Option<Nanos>,
}

/// Runs a device until it receives a request to stop.
pub(crate) fn run<M: Media>(
    device: SsdDevice<M>,
    mut face: RingFrontEnd<SharedMemoryWords>,
    requests: &Receiver<Wish>,
    clock: Clock,
) {
    let client = face.rings.add_client();
    let mut core = CoreThread {
        device,
        face,
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
    fn serve(&mut self, requests: &Receiver<Wish>) {
        let mut moved_at = self.clock.now();
        let mut turns = 0_u32;
        loop {
            let (now, wall) = (self.clock.now(), self.clock.wall());
            let mut moved = self.face.poll(&mut self.device);
            moved |= self.device.poll(now, wall);
            turns = turns.wrapping_add(1);
            if !moved || turns.is_multiple_of(WISH_EVERY) {
                moved |= self.hear(requests, now);
                moved |= self.settle();
            }
            if let Some(since) = self.stopping
                && (self.face.rings.is_drained() || now.since(since) > DRAIN_MAX)
            {
                return;
            }
            if moved {
                moved_at = now;
            } else if now.since(moved_at) >= SPIN && self.face.rings.prepare_sleep() == SleepDecision::Until {
                self.sleep(now, wall);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn hear(&mut self, requests: &Receiver<Wish>, now: Nanos) -> bool {
        let mut received = false;
        while let Ok(request) = requests.try_recv() {
            received = true;
            self.grant(request, now);
        }
        received
    }

    /// Serves a request. A send that fails is ignored: the requesting thread is gone.
    fn grant(&mut self, request: Wish, now: Nanos) {
        match request {
            Wish::Namespaces(answer) => {
                let _ = answer.send(self.namespaces());
            }
            Wish::Namespace { id, wish, answer } => self.change(id, &wish, answer),
            Wish::Register { start, memory, answer } => {
                let table = self.face.rings.memory(self.client);
                let known = table.ok_or_else(|| refused("the device is stopping")).and_then(|table| {
                    table.register(start, memory).map_err(|error| refused(&error.to_string()))
                });
                let _ = answer.send(known);
            }
            Wish::Release { start, answer } => {
                let table = self.face.rings.memory(self.client);
                match table.map(|table| table.revoke(start)) {
                    Some(Ok(revocation)) => self.releases.push((revocation, answer)),
                    _ => {
                        let _ = answer.send(Err(refused("the buffer belongs to another device")));
                    }
                }
            }
            Wish::Queue { depth, answer } => {
                let _ = answer.send(self.queue(depth));
            }
            Wish::Forget(queue) => self.face.rings.abandon_queue(queue),
            Wish::Stop => {
                self.face.rings.drain();
                self.stopping = Some(now);
            }
        }
    }

    fn namespaces(&self) -> Vec<ClientNamespace> {
        let all = (1..=NAMESPACES).filter_map(|number| u8::try_from(number).ok()).map(NamespaceId);
        all.map(|id| facts_of(id, &self.device.namespace(id).unwrap_or(Namespace::IMPLICIT))).collect()
    }

    fn change(&mut self, id: u8, request: &NamespaceRequest, answer: Sender<Result<u8, IoError>>) {
        let submitted = change_of(id, request).and_then(|(namespace, change)| {
            let command = SsdCommand::Namespace(change);
            self.device
                .submit(CONTROL, namespace, self.next_token, command)
                .map_err(|error| error.to_string())
        });
        if let Err(reason) = submitted {
            let _ = answer.send(Err(refused(&reason)));
            return;
        }
        let id = if matches!(request, NamespaceRequest::Create(_)) { 0 } else { id };
        self.changes.push(Change { token: self.next_token, id, answer });
        self.next_token += 1;
    }

    fn queue(&mut self, depth: u32) -> Result<Made, IoError> {
        let words = words_for(depth)?;
        let memory = SharedMemoryWords::new(SharedMemory::anonymous(words * 8)?, 0, words)?;
        let (pair, end) = QueuePair::over(memory, depth)?;
        let bell = WakeDescriptor::new()?;
        let id = self
            .face
            .rings
            .add_queue(self.client, end, QueueKind::Uio, ClientWakeup::Descriptor(bell.clone()))
            .map_err(|error| refused(&error.to_string()))?;
        Ok(Made { id, pair, bell })
    }

    /// Sends the answers of requests whose commands completed.
    fn settle(&mut self) -> bool {
        let mut moved = false;
        while let Some(completion) = self.device.next_completion(CONTROL) {
            moved = true;
            let Some(at) = self.changes.iter().position(|change| change.token == completion.token) else {
                continue;
            };
            let Change { id, answer, .. } = self.changes.swap_remove(at);
            let made = u8::try_from(completion.position).unwrap_or(0);
            let status = completion.status;
            let number = if id == 0 { made } else { id };
            let _ = answer.send(if status.is_success() { Ok(number) } else { Err(IoError::Status(status)) });
        }
        self.releases.retain(|(revocation, answer)| {
            let quiet = revocation.is_quiet();
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
        let mut descriptors = vec![PollFd::new(self.face.rings.descriptor(), PollFlags::IN)];
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

fn refused(reason: &str) -> IoError {
    IoError::Refused { reason: reason.to_owned() }
}
