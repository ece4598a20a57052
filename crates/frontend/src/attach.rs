//! The attach face: other processes of this machine drive the device through rings in shared memory.
//!
//! In: connections to a Unix socket, and entries in rings that the daemon made and clients mapped. Out: completions there.
//! The socket is the control plane; it is looked at now and then, while rings are looked at in every turn. Invariant: no
//! client, dead, silent or lying, keeps this face from another one: every call into the kernel says that it does not wait,
//! every loop is bounded, and what a client holds is counted against its grant.
//!
//! ```text
//!   accept --hello--> served --(hangs up | revoked | stuck | impossible doorbell)--> forgotten:
//!                       | regions, queues, administration         rings abandoned, regions unmapped when quiet
//! ```

mod admin;
mod client;
mod control;
mod direct;
pub mod executor;
pub mod grant_file;
pub mod lending;
mod listener;
pub mod policy;
mod ssd_executor;

use crate::front_end::{Face, PollCost};
use crate::numbers::FaceNumbers;
use client::{AttachedClient, ClientKey, Place};
use executor::Executor;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_io::attach::protocol::{MESSAGE_BYTES_MAX, Reply};
use headwater_nvme::queue_pair::Sleep;
use listener::Listener;
use policy::Policy;
use rustix::event::{Timespec, epoll};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

pub use ssd_executor::{AttachFaces, ConvergedExecutor};

/// Clients at a time.
pub const CLIENTS_MAX: usize = 512;
/// Of these, connections of one user.
pub const CLIENTS_PER_USER_MAX: usize = 256;
/// Regions of one client.
pub const REGIONS_MAX: usize = 1_024;
/// Regions of all clients: each is a mapping, of which the kernel gives a process 65,530.
pub const REGIONS_OF_ALL_MAX: usize = 16_384;
/// Least time between two looks at the control plane while rings are busy.
const CONTROL_EVERY: Nanos = Nanos::from_micros(50);
/// Time between two looks for clients that are in trouble.
const SWEEP_EVERY: Nanos = Nanos::from_millis(200);
/// Looks in trouble after which a client is reclaimed: less than a second.
const SWEEPS_MAX: u32 = 4;
/// Events of the control plane in one look.
const EVENTS_MAX: usize = 32;

/// Why the face could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The socket.
    #[error("{}: cannot listen for attaching clients: {source}; give another path with --attach", path.display())]
    Listen {
        /// Its path.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The kernel refused a descriptor.
    #[error("the attach face cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// The face. What clients ring for is carried out by `E`.
#[derive(Debug)]
pub struct AttachFace<E> {
    executor: E,
    path: PathBuf,
    /// `None` once it drains.
    listener: Option<Listener>,
    epoll: OwnedFd,
    policy: Policy,
    clients: BTreeMap<ClientKey, AttachedClient>,
    next_client: u64,
    /// Who had something done last that takes long.
    long_look: ClientKey,
    /// Most descriptors that clients and their queues may take together: half of what the process may have.
    descriptors_max: usize,
    connected: u64,
    refused: u64,
    looked: Nanos,
    swept: Nanos,
    /// Where datagrams arrive.
    room: Box<[u8]>,
}

impl<E: Executor> AttachFace<E> {
    /// Listens.
    ///
    /// # Errors
    /// [`AttachError`] when the path is taken or the system refuses.
    pub fn bind(path: &Path, policy: Policy, executor: E) -> Result<Self, AttachError> {
        let listener =
            Listener::bind(path).map_err(|source| AttachError::Listen { path: path.to_owned(), source })?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let flags = epoll::EventFlags::IN;
        epoll::add(&epoll, listener.as_fd(), Place::Listener.data(), flags).map_err(std::io::Error::from)?;
        Ok(Self {
            executor,
            path: path.to_owned(),
            listener: Some(listener),
            epoll,
            policy,
            clients: BTreeMap::new(),
            next_client: 0,
            long_look: ClientKey(0),
            descriptors_max: descriptors_max(),
            connected: 0,
            refused: 0,
            looked: Nanos::ZERO,
            swept: Nanos::ZERO,
            room: vec![0; MESSAGE_BYTES_MAX].into_boxed_slice(),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Readable when the control plane or a sleeping client's rings have something to do.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// What the face holds for its clients: connections, queues, regions, commands in flight.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        Holdings {
            clients: self.clients.len(),
            queues: self.clients.values().map(|client| client.queues.len()).sum(),
            regions: self.clients.values().map(|client| client.regions.len()).sum(),
            in_flight: self.executor.rings().in_flight(),
        }
    }

    /// Takes what has come to the control plane.
    fn look(&mut self, device: &mut E::Device, now: Nanos) -> bool {
        let mut moved = self.settle(device);
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut buffer = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        // An interrupted look has found nothing; the next one asks again.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut buffer, Some(&nothing)) else {
            return moved;
        };
        let mut places: Vec<Place> = events.iter().map(|event| Place::of(event.data)).collect();
        // Whoever is behind the one that took the last look comes first, so that nobody takes every look.
        let last = self.long_look;
        places.sort_by_key(|place| match place {
            Place::Listener | Place::Line(..) => (false, None),
            Place::Control(key) => (*key <= last, Some(*key)),
        });
        let mut enough = false;
        for place in places {
            moved = true;
            match place {
                Place::Listener => self.accept(now),
                Place::Line(key, queue) => self.take_line(key, queue),
                Place::Control(_) if enough => {}
                Place::Control(key) => {
                    enough = self.receive(device, key) == control::Look::Enough;
                    if enough {
                        self.long_look = key;
                    }
                }
            }
        }
        moved
    }

    /// Lets in who has come.
    fn accept(&mut self, now: Nanos) {
        for _ in 0..EVENTS_MAX {
            let Some(Ok((socket, peer))) = self.listener.as_ref().map(Listener::accept) else {
                return;
            };
            let alike = self.clients.values().filter(|client| client.peer.uid == peer.uid).count();
            let full = self.clients.len() >= CLIENTS_MAX || !self.has_descriptors();
            if full || alike >= CLIENTS_PER_USER_MAX {
                self.refused += 1;
                client::say(socket.as_fd(), &Reply::Gone { reason: "too many clients".to_owned() });
                continue;
            }
            let key = ClientKey(self.next_client);
            self.next_client += 1;
            let place = Place::Control(key).data();
            if epoll::add(&self.epoll, &socket, place, epoll::EventFlags::IN).is_err() {
                self.refused += 1;
                continue;
            }
            self.connected += 1;
            self.clients.insert(key, AttachedClient::new(socket, peer, now));
        }
    }

    /// Whether a client or a queue more leaves enough descriptors for everybody else.
    fn has_descriptors(&self) -> bool {
        let queues: usize = self.clients.values().map(|client| client.queues.len()).sum();
        self.clients.len() + queues < self.descriptors_max
    }

    /// A client rang, or dropped a queue.
    fn take_line(&mut self, key: ClientKey, queue: u16) {
        use headwater_host::wake_line::Line;
        let Some(client) = self.clients.get_mut(&key) else {
            return;
        };
        let Some(line) = client.queues.get(&queue).map(|held| held.line.take()) else {
            return;
        };
        if line == Line::HungUp {
            client.forget_queue(queue, &self.epoll);
            if client.is_direct {
                self.take_back(queue);
            } else {
                self.executor.rings_mut().abandon_queue(headwater_nvme::controller::QueueId(queue));
            }
        }
    }

    /// Forgets a client and everything it had. Answers still under way go nowhere; regions stay mapped until nothing in
    /// flight names them.
    fn evict(&mut self, key: ClientKey, reason: Option<&str>) {
        let Some(client) = self.clients.remove(&key) else {
            return;
        };
        if let Some(reason) = reason {
            tracing::info!(pid = client.peer.pid, uid = client.peer.uid, reason, "client ended");
            client::say(client.socket.as_fd(), &Reply::Gone { reason: reason.to_owned() });
        }
        if let Some(rings) = client.rings {
            if let Some(lending) = self.executor.lending() {
                lending.remove_client(rings);
            }
            self.executor.rings_mut().remove_client(rings);
        }
        for held in client.queues.values() {
            // Closing removes it anyway.
            let _ = epoll::delete(&self.epoll, &held.line);
        }
        let _ = epoll::delete(&self.epoll, &client.socket);
    }

    /// Gives every client the rights that the policy says now; those it does not know any more are disconnected.
    /// Returns how many the change reached.
    fn apply_policy(&mut self) -> u32 {
        let mut gone = Vec::new();
        let mut reached = 0;
        for (&key, client) in &mut self.clients {
            if client.grant.is_none() {
                // It has not said hello: the policy is asked when it does.
                continue;
            }
            let Some(grant) = self.policy.find(client.peer) else {
                gone.push(key);
                continue;
            };
            if client.grant.as_ref() == Some(grant) {
                continue;
            }
            if client.is_direct && !grant.direct {
                gone.push(key);
                continue;
            }
            reached += 1;
            client.grant = Some(grant.clone());
            if let Some(rings) = client.rings {
                // It is there as long as the client is.
                let _ = self.executor.rings_mut().set_rights(rings, policy::rights_of(grant));
            }
        }
        reached += u32::try_from(gone.len()).unwrap_or(u32::MAX);
        gone.into_iter().for_each(|key| self.evict(key, Some("the grant was taken away")));
        reached
    }

    /// Reclaims what clients in trouble hold: those who never reap, whose rings hold garbage, who never said hello.
    fn sweep(&mut self, now: Nanos) {
        let mut gone = Vec::new();
        for (&key, client) in &mut self.clients {
            if let Some(reason) = client.trouble(self.executor.rings(), now) {
                gone.push((key, reason));
            }
        }
        gone.into_iter().for_each(|(key, reason)| self.evict(key, Some(reason)));
    }

    fn is_anyone_in_trouble(&self) -> bool {
        self.clients.values().any(|client| client.is_suspect(self.executor.rings()))
    }
}

/// Half of the descriptors that this process may open.
fn descriptors_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit / 2).unwrap_or(usize::MAX))
}

/// What a face holds for its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Connections.
    pub clients: usize,
    /// Queue pairs.
    pub queues: usize,
    /// Regions mapped for clients that are connected.
    pub regions: usize,
    /// Commands taken and not yet answered.
    pub in_flight: usize,
}

impl<E: Executor> Face<E::Device> for AttachFace<E> {
    fn poll(&mut self, device: &mut E::Device, now: Nanos, _wall: UnixMillis) -> bool {
        let mut moved = self.executor.poll(device, now);
        if now.since(self.looked) >= CONTROL_EVERY || self.looked == Nanos::ZERO {
            self.looked = now;
            moved |= self.look(device, now);
            if now.since(self.swept) >= SWEEP_EVERY {
                self.swept = now;
                self.sweep(now);
            }
        }
        moved
    }

    fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn poll_cost(&self) -> PollCost {
        if self.clients.values().any(|client| !client.queues.is_empty()) {
            PollCost::Memory
        } else {
            PollCost::Kernel
        }
    }

    fn prepare_sleep(&mut self) -> Sleep {
        self.executor.rings_mut().prepare_sleep()
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let waited = self.clients.values().any(AttachedClient::is_waited_for);
        let control = if waited {
            Some(self.looked.after(CONTROL_EVERY))
        } else {
            self.is_anyone_in_trouble().then(|| self.swept.after(SWEEP_EVERY))
        };
        [control, self.executor.next_deadline()].into_iter().flatten().min()
    }

    fn drain(&mut self) {
        self.listener = None;
        self.executor.drain();
    }

    fn is_drained(&self) -> bool {
        self.executor.is_drained() && !self.clients.values().any(AttachedClient::is_waited_for)
    }

    fn count(&self, into: &mut FaceNumbers) {
        into.connections += u64::try_from(self.clients.len()).unwrap_or(u64::MAX);
        into.connections_total += self.connected;
        into.connections_refused += self.refused;
        into.in_flight.insert("attach", u64::try_from(self.executor.rings().in_flight()).unwrap_or(u64::MAX));
    }
}
