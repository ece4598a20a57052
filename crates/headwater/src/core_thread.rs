//! The device's own thread: rings, device, wishes, and sleep when nothing moves.
//!
//! In: [`Wish`]es from other threads, commands from rings. Out: answers. The loop polls; when nothing has moved for a while
//! it sleeps until a client rings, the medium answers or a deadline passes. Invariant: it ends with everything durable.

use crate::namespace_wish::{change_of, facts_of};
use headwater_dma::iova::{Iova, Revocation};
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use headwater_host::foreign::Foreign;
use headwater_host::ring_memory::ForeignWords;
use headwater_host::wake::WakeDescriptor;
use headwater_io::attach::admin::NamespaceWish;
use headwater_io::{IoError, NamespaceFacts};
use headwater_nvme::controller::{QueueId, QueueKind};
use headwater_nvme::queue_pair::{QueuePair, Sleep, words_for};
use headwater_ssd::command::{Command, FaceId, NamespaceId};
use headwater_ssd::engine::Device;
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::media::Media;
use headwater_ssd::namespace::Namespace;
use headwater_ssd::nvme::rings::{Bell, ClientId, RingFace};
use rustix::event::{PollFd, PollFlags, poll};
use std::sync::mpsc::{Receiver, Sender};

/// How the rings are known to the device.
const RINGS: FaceId = FaceId(1);
/// How changes of namespaces are.
const CONTROL: FaceId = FaceId(2);
/// How long to poll in vain before sleeping.
const SPIN: Nanos = Nanos::from_micros(50);
/// Longest sleep, which only bounds a deadline by the wall clock that was set meanwhile.
const SLEEP_MAX: Nanos = Nanos::from_millis(60_000);
/// Longest wait for the last answers when the device ends.
const DRAIN_MAX: Nanos = Nanos::from_millis(10_000);
/// Turns between two looks for wishes while commands keep moving.
const WISH_EVERY: u32 = 64;

/// What another thread wants of the device, with the place of the answer.
pub(crate) enum Wish {
    /// The namespaces.
    Namespaces(Sender<Vec<NamespaceFacts>>),
    /// A change of them.
    Namespace { id: u8, wish: NamespaceWish, answer: Sender<Result<u8, IoError>> },
    /// Memory to be known at an address.
    Register { start: Iova, memory: Foreign, answer: Sender<Result<(), IoError>> },
    /// Memory to be forgotten; answered when nothing in flight names it.
    Release { start: Iova, answer: Sender<Result<(), IoError>> },
    /// A queue pair.
    Queue { depth: u32, answer: Sender<Result<Made, IoError>> },
    /// A queue that its client has left.
    Forget(QueueId),
    /// The end.
    Stop,
}

/// A new queue, the client's half.
pub(crate) struct Made {
    pub(crate) id: QueueId,
    pub(crate) pair: QueuePair<ForeignWords>,
    pub(crate) bell: WakeDescriptor,
}

/// The rings of a new device.
pub(crate) fn rings() -> Result<RingFace<ForeignWords>, IoError> {
    Ok(RingFace::new(RINGS)?)
}

/// A change of namespaces that the device has not answered yet.
struct Change {
    token: u64,
    /// Number of the namespace, 0 for a new one.
    id: u8,
    answer: Sender<Result<u8, IoError>>,
}

struct CoreThread<M: Media> {
    device: Device<M>,
    face: RingFace<ForeignWords>,
    client: ClientId,
    clock: Clock,
    releases: Vec<(Revocation, Sender<Result<(), IoError>>)>,
    /// Changes of namespaces under way.
    changes: Vec<Change>,
    next_token: u64,
    stopping: Option<Nanos>,
}

/// Runs a device until it is told to stop.
pub(crate) fn run<M: Media>(
    device: Device<M>,
    mut face: RingFace<ForeignWords>,
    wishes: &Receiver<Wish>,
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
    core.serve(wishes);
    if let Err(error) = core.device.shutdown(clock.now(), clock.wall()) {
        tracing::error!(%error, "the device ended without its last checkpoint; the next start reads the whole log");
    }
}

impl<M: Media> CoreThread<M> {
    fn serve(&mut self, wishes: &Receiver<Wish>) {
        let mut moved_at = self.clock.now();
        let mut turns = 0_u32;
        loop {
            let (now, wall) = (self.clock.now(), self.clock.wall());
            let mut moved = self.face.poll(&mut self.device);
            moved |= self.device.poll(now, wall);
            turns = turns.wrapping_add(1);
            if !moved || turns.is_multiple_of(WISH_EVERY) {
                moved |= self.hear(wishes, now);
                moved |= self.settle();
            }
            if let Some(since) = self.stopping
                && (self.face.rings.is_drained() || now.since(since) > DRAIN_MAX)
            {
                return;
            }
            if moved {
                moved_at = now;
            } else if now.since(moved_at) >= SPIN && self.face.rings.prepare_sleep() == Sleep::Until {
                self.sleep(now, wall);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn hear(&mut self, wishes: &Receiver<Wish>, now: Nanos) -> bool {
        let mut heard = false;
        while let Ok(wish) = wishes.try_recv() {
            heard = true;
            self.grant(wish, now);
        }
        heard
    }

    /// Whoever asked may be gone; then nobody misses the answer.
    fn grant(&mut self, wish: Wish, now: Nanos) {
        match wish {
            Wish::Namespaces(answer) => {
                let _ = answer.send(self.namespaces());
            }
            Wish::Namespace { id, wish, answer } => self.change(id, &wish, answer),
            Wish::Register { start, memory, answer } => {
                let table = self.face.rings.memory(self.client);
                let known = table.ok_or_else(|| refused("the device ends")).and_then(|table| {
                    table.register(start, memory).map_err(|error| refused(&error.to_string()))
                });
                let _ = answer.send(known);
            }
            Wish::Release { start, answer } => {
                let table = self.face.rings.memory(self.client);
                match table.map(|table| table.revoke(start)) {
                    Some(Ok(revocation)) => self.releases.push((revocation, answer)),
                    _ => {
                        let _ = answer.send(Err(refused("the buffer is of another device")));
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

    fn namespaces(&self) -> Vec<NamespaceFacts> {
        let all = (1..=NAMESPACES).filter_map(|number| u8::try_from(number).ok()).map(NamespaceId);
        all.map(|id| facts_of(id, &self.device.namespace(id).unwrap_or(Namespace::IMPLICIT))).collect()
    }

    fn change(&mut self, id: u8, wish: &NamespaceWish, answer: Sender<Result<u8, IoError>>) {
        let submitted = change_of(id, wish).and_then(|(namespace, change)| {
            let command = Command::Namespace(change);
            self.device
                .submit(CONTROL, namespace, self.next_token, command)
                .map_err(|error| error.to_string())
        });
        if let Err(reason) = submitted {
            let _ = answer.send(Err(refused(&reason)));
            return;
        }
        let id = if matches!(wish, NamespaceWish::Create(_)) { 0 } else { id };
        self.changes.push(Change { token: self.next_token, id, answer });
        self.next_token += 1;
    }

    fn queue(&mut self, depth: u32) -> Result<Made, IoError> {
        let words = words_for(depth)?;
        let memory = ForeignWords::new(Foreign::anonymous(words * 8)?, 0, words)?;
        let (pair, end) = QueuePair::over(memory, depth)?;
        let bell = WakeDescriptor::new()?;
        let id = self
            .face
            .rings
            .add_queue(self.client, end, QueueKind::Uio, Bell::Descriptor(bell.clone()))
            .map_err(|error| refused(&error.to_string()))?;
        Ok(Made { id, pair, bell })
    }

    /// Answers wishes that waited for commands.
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
        // An interrupted sleep is a short one.
        let _ = poll(&mut descriptors, Some(&span.to_timespec()));
    }
}

fn refused(reason: &str) -> IoError {
    IoError::Refused { reason: reason.to_owned() }
}
