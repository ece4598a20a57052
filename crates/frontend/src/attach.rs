//! The attach front end: other processes of this machine drive the device through rings in shared memory.
//!
//! Input: connections to a Unix socket, and entries in rings that the daemon created and clients mapped. Output:
//! completions in these rings. The socket is the control plane: it is polled periodically, while rings are polled in
//! every turn of the core loop. Invariant: a dead, silent or malicious client never delays another: every system call
//! is non-blocking, every loop is bounded, and the resources of a client count against its grant.
//!
//! ```text
//!   accept --hello--> served --(disconnects | revoked | stuck | invalid doorbell)--> evicted:
//!                       | regions, queues, administration      rings abandoned, regions unmapped once idle
//! ```

mod accept;
mod admin;
pub mod admission;
mod client;
mod control;
mod direct;
pub mod executor;
pub mod grant_file;
pub mod lending;
mod listener;
pub mod policy;
mod ssd_executor;

use crate::accept_pause::AcceptPause;
use crate::counters::FrontEndCounters;
use crate::front_end::{FrontEnd, PollCost};
use client::{AttachedClient, ClientKey, ControlEventSource};
use executor::EntryExecutor;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::fault_guard::{FaultGuard, LostPages};
use headwater_host::width::{narrow, to_usize};
use headwater_io::attach::protocol::{AttachReply, MESSAGE_BYTES_MAX};
use headwater_nvme::queue_pair::SleepDecision;
use listener::AttachListener;
use policy::GrantPolicy;
use rustix::event::{Timespec, epoll};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

pub use ssd_executor::{AttachFrontEndIds, SsdExecutor};

/// Maximum clients at a time.
pub const CLIENTS_MAX: usize = 512;
/// Maximum connections of the node's own user, and of root; other users share what is left ([`admission`]).
pub const CLIENTS_PER_USER_MAX: usize = 256;
/// Maximum regions of one client.
pub const REGIONS_MAX: usize = 1_024;
/// Maximum regions of all clients: each is a mapping, and the kernel limits a process to 65,530 mappings.
pub const REGIONS_OF_ALL_MAX: usize = 16_384;
/// Minimum time between two polls of the control plane while rings are busy.
const CONTROL_PERIOD: Nanos = Nanos::from_micros(50);
/// Time between two sweeps for clients to reclaim.
const SWEEP_PERIOD: Nanos = Nanos::from_millis(200);
/// Consecutive sweeps with a fault after which a client is reclaimed: less than a second.
const SWEEPS_MAX: u32 = 4;
/// Maximum events of the control plane in one poll.
const EVENTS_MAX: usize = 32;

/// An error that prevented the front end from starting.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The socket cannot be bound.
    #[error("{}: cannot listen for attaching clients: {source}; give another path with --attach", path.display())]
    Listen {
        /// Its path.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The kernel refused a descriptor.
    #[error("the attach front end cannot start: {0}; check the limit of open files")]
    System(#[from] std::io::Error),
}

/// The attach front end. `E` executes the commands of clients.
#[derive(Debug)]
pub struct AttachFrontEnd<E> {
    executor: E,
    path: PathBuf,
    /// `None` while it drains.
    listener: Option<AttachListener>,
    accept_pause: AcceptPause,
    epoll: OwnedFd,
    policy: GrantPolicy,
    clients: BTreeMap<ClientKey, AttachedClient>,
    next_client: u64,
    /// The client whose request ended a poll early last.
    last_long_client: ClientKey,
    /// Maximum descriptors for clients and their queues together: half of the process limit.
    descriptors_max: usize,
    /// The time before which no client is accepted: more came at once than one turn accepts.
    accept_at: Nanos,
    connected: u64,
    refused: u64,
    /// [`FaultGuard::faults`] when the clients were checked last.
    faults: u64,
    last_poll: Nanos,
    last_sweep: Nanos,
    /// The receive buffer for datagrams.
    receive_buffer: Box<[u8]>,
}

impl<E: EntryExecutor> AttachFrontEnd<E> {
    /// Binds the socket and listens.
    ///
    /// # Errors
    /// [`AttachError`] when the path is in use or the system refuses a descriptor.
    pub fn bind(path: &Path, policy: GrantPolicy, executor: E) -> Result<Self, AttachError> {
        let listener = AttachListener::bind(path)
            .map_err(|source| AttachError::Listen { path: path.to_owned(), source })?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let data = ControlEventSource::Listener.to_epoll_data();
        let accept_pause = AcceptPause::watch(&epoll, &listener, data.u64()).map_err(std::io::Error::from)?;
        Ok(Self {
            executor,
            path: path.to_owned(),
            listener: Some(listener),
            accept_pause,
            epoll,
            policy,
            clients: BTreeMap::new(),
            next_client: 0,
            last_long_client: ClientKey(0),
            descriptors_max: descriptors_max(),
            accept_at: Nanos::ZERO,
            connected: 0,
            refused: 0,
            faults: FaultGuard::faults(),
            last_poll: Nanos::ZERO,
            last_sweep: Nanos::ZERO,
            receive_buffer: vec![0; MESSAGE_BYTES_MAX].into_boxed_slice(),
        })
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a descriptor that is readable when the control plane has work or a client rings while the node sleeps.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Counts the resources of clients: connections, queues, regions, commands in flight.
    #[must_use]
    pub fn holdings(&self) -> AttachHoldings {
        AttachHoldings {
            clients: self.clients.len(),
            queues: self.clients.values().map(|client| client.queues.len()).sum(),
            regions: self.clients.values().map(|client| client.regions.len()).sum(),
            in_flight: self.executor.rings().in_flight(),
        }
    }

    /// Polls the control plane and handles its events.
    fn poll_control(&mut self, device: &mut E::Device, now: Nanos) -> bool {
        let mut moved = self.complete_pending(device);
        if let Some(listener) = &self.listener {
            self.accept_pause.is_paused(self.epoll.as_fd(), listener.as_fd(), now);
        }
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut buffer = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        // An interrupted wait returns no events; the next poll repeats it.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut buffer, Some(&nothing)) else {
            return moved;
        };
        let mut places: Vec<ControlEventSource> =
            events.iter().map(|event| ControlEventSource::from_epoll_data(event.data)).collect();
        // Clients after the one that ended the last poll early come first: no client takes every poll.
        let last = self.last_long_client;
        places.sort_by_key(|place| match place {
            ControlEventSource::Listener | ControlEventSource::WakeLine(..) => (false, None),
            ControlEventSource::Control(key) => (*key <= last, Some(*key)),
        });
        let mut enough = false;
        for place in places {
            moved = true;
            match place {
                ControlEventSource::Listener if self.accept_pause.deadline().is_some() => {}
                ControlEventSource::Listener => self.accept(now),
                ControlEventSource::WakeLine(key, queue) => self.take_wake_line(key, queue),
                ControlEventSource::Control(_) if enough => {}
                ControlEventSource::Control(key) => {
                    enough = self.receive(device, key) == control::PollDecision::Stop;
                    if enough {
                        self.last_long_client = key;
                    }
                }
            }
        }
        moved
    }

    /// Reads the wake line of a queue: its client rang, or dropped the queue.
    fn take_wake_line(&mut self, key: ClientKey, queue: u16) {
        use headwater_host::wake_line::WakeEvent;
        let Some(client) = self.clients.get_mut(&key) else {
            return;
        };
        let Some(line) = client.queues.get(&queue).map(|held| held.line.take()) else {
            return;
        };
        if line == WakeEvent::HungUp {
            client.remove_queue(queue, &self.epoll);
            if client.is_direct {
                self.reclaim_queue(queue);
            } else {
                self.executor.rings_mut().abandon_queue(headwater_nvme::controller::QueueId(queue));
            }
        }
    }

    /// Removes a client and all its resources. Completions of its commands in flight are dropped; its regions stay
    /// mapped until no command in flight uses them.
    fn evict(&mut self, key: ClientKey, reason: Option<&str>) {
        let Some(client) = self.clients.remove(&key) else {
            return;
        };
        if let Some(reason) = reason {
            tracing::info!(pid = client.peer.pid, uid = client.peer.uid, reason, "client ended");
            client::send_best_effort(client.socket.as_fd(), &AttachReply::Gone { reason: reason.to_owned() });
        }
        if let Some(rings) = client.rings {
            if let Some(lending) = self.executor.queue_lender() {
                lending.remove_client(rings);
            }
            self.executor.rings_mut().remove_client(rings);
        }
        for held in client.queues.values() {
            // Closing the descriptor removes it anyway.
            let _ = epoll::delete(&self.epoll, &held.line);
        }
        let _ = epoll::delete(&self.epoll, &client.socket);
    }

    /// Gives every client the rights of the current policy, and disconnects clients without a grant. Returns the number
    /// of clients affected.
    fn apply_policy(&mut self) -> u32 {
        let mut gone = Vec::new();
        let mut reached = 0;
        for (&key, client) in &mut self.clients {
            if client.grant.is_none() {
                // It has sent no hello yet; the hello consults the policy.
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
                let changed = self.executor.rings_mut().set_rights(rings, policy::rights_of(grant));
                assert!(changed.is_ok(), "the rings hold a client as long as the table of clients does");
            }
        }
        reached += narrow::<usize, u32>(gone.len());
        gone.into_iter().for_each(|key| self.evict(key, Some("the grant was revoked")));
        reached
    }

    /// Evicts clients that never reap completions, whose rings hold invalid values, or that never sent a hello.
    fn sweep(&mut self, now: Nanos) {
        let mut gone = Vec::new();
        for (&key, client) in &mut self.clients {
            if let Some(reason) = client.eviction_reason(self.executor.rings(), now) {
                gone.push((key, reason));
            }
        }
        gone.into_iter().for_each(|(key, reason)| self.evict(key, Some(reason)));
    }

    /// Evicts clients whose memory lost pages, before a completion of what used them is posted.
    fn evict_lost_clients(&mut self) {
        let faults = FaultGuard::faults();
        if std::mem::replace(&mut self.faults, faults) == faults {
            return;
        }
        let lost = self.clients.iter().filter(|(_, client)| client.lost.is_set());
        let gone: Vec<ClientKey> = lost.map(|(&key, _)| key).collect();
        gone.into_iter().for_each(|key| self.evict(key, Some(LostPages::REASON)));
    }

    fn has_suspects(&self) -> bool {
        self.clients.values().any(|client| client.is_suspect(self.executor.rings()))
    }
}

/// Returns half of the descriptors that this process may open.
fn descriptors_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| to_usize(limit / 2))
}

/// The resources that the front end holds for its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachHoldings {
    /// Connections.
    pub clients: usize,
    /// Queue pairs.
    pub queues: usize,
    /// Regions mapped for clients that are connected.
    pub regions: usize,
    /// Commands fetched and not yet completed.
    pub in_flight: usize,
}

impl<E: EntryExecutor> FrontEnd<E::Device> for AttachFrontEnd<E> {
    fn poll(&mut self, device: &mut E::Device, now: Nanos, _wall: UnixMillis) -> bool {
        self.evict_lost_clients();
        let mut moved = self.executor.poll(device, now);
        if now.since(self.last_poll) >= CONTROL_PERIOD || self.last_poll == Nanos::ZERO {
            self.last_poll = now;
            moved |= self.poll_control(device, now);
            if now.since(self.last_sweep) >= SWEEP_PERIOD {
                self.last_sweep = now;
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

    fn prepare_sleep(&mut self) -> SleepDecision {
        self.executor.rings_mut().prepare_sleep()
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let waited = self.clients.values().any(AttachedClient::has_pending_reply);
        let control = if waited {
            Some(self.last_poll.after(CONTROL_PERIOD))
        } else {
            self.has_suspects().then(|| self.last_sweep.after(SWEEP_PERIOD))
        };
        let accept = self.listener.as_ref().and_then(|_| self.accept_pause.deadline());
        [control, accept, self.executor.next_deadline()].into_iter().flatten().min()
    }

    fn drain(&mut self) {
        self.listener = None;
        self.executor.drain();
    }

    fn is_drained(&self) -> bool {
        self.executor.is_drained() && !self.clients.values().any(AttachedClient::has_pending_reply)
    }

    fn add_counters(&self, into: &mut FrontEndCounters) {
        into.connections += self.clients.len() as u64;
        into.connections_total += self.connected;
        into.connections_refused += self.refused;
        self.accept_pause.count(into);
        into.in_flight.insert("attach", self.executor.rings().in_flight() as u64);
    }
}
