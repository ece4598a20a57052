//! The RESP face: Redis clients on sockets, the device behind.
//!
//! In: connections and, once a turn, the device and the time. Out: commands to the device, replies to the sockets. The face never
//! blocks, never sleeps and has no thread: the device core polls it and sleeps on its [`descriptor`](RespFace::descriptor).
//! Invariant: every command a client sent gets exactly one reply, in order, and none before the device released it.
//!
//! ```text
//!  sockets -> events -> read -> parse -> dispatch -> device -> completions -> slots in order -> one send a turn
//! ```

mod bits;
mod change;
mod client;
mod clients;
mod command_table;
mod connection;
mod counters;
mod decimals;
mod dispatch;
mod edit;
mod errors;
mod expiry;
mod gather;
pub mod glob;
mod help;
mod info;
mod inline;
mod lcs;
pub mod limits;
mod listener;
mod listing;
mod locks;
mod numbers;
mod operation;
mod output;
mod pair;
pub mod parser;
mod plan;
mod relocate;
mod reply;
mod request;
mod server;
mod session;
mod settings;
mod shared;
mod slowlog;
mod strings;
mod sweep;
mod turn;
mod wait;
mod writes;

use crate::core_device::CoreDevice;
use crate::front_end::Face;
use crate::numbers::FaceNumbers;
use clients::Clients;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_ssd::command::FaceId;
use headwater_ssd::engine::Durability;
use limits::{READ_BYTES, TURN_EVENTS_MAX};
use listener::Listener;
use rustix::event::{Timespec, epoll};
use shared::{Counters, Shared};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// How a face is set up.
#[derive(Clone, Debug)]
pub struct RespConfig {
    /// TCP addresses to listen on; port 0 picks one.
    pub listen: Vec<SocketAddr>,
    /// Path of a Unix socket to listen on as well.
    pub unix_path: Option<PathBuf>,
    /// What clients must say in AUTH, if anything.
    pub password: Option<String>,
    /// What the device promises, for CONFIG and INFO to tell.
    pub durability: Durability,
    /// Who the face is to the device.
    pub face: FaceId,
    /// Seed of what is picked at random (RANDOMKEY).
    pub seed: u64,
}

impl Default for RespConfig {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 6379))],
            unix_path: None,
            password: None,
            durability: Durability::Always,
            face: FaceId(1),
            seed: 0,
        }
    }
}

/// Why a face could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RespError {
    /// A TCP address is taken or not ours.
    #[error("cannot listen on {address}: {source}; choose another address or stop who has it")]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The Unix socket's path cannot be used.
    #[error("cannot listen on {}: {source}; choose another path or stop who has it", path.display())]
    ListenUnix {
        /// Which path.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// Neither an address nor a path was given.
    #[error("the RESP face has nowhere to listen: give it an address or the path of a Unix socket")]
    Nowhere,
    /// The kernel gave no event queue.
    #[error("cannot watch sockets: {source}; raise the limit of open files")]
    Watch {
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// Where a face stands between serving and gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    Draining,
}

/// Redis clients of one device.
pub struct RespFace {
    epoll: OwnedFd,
    listeners: Vec<Listener>,
    clients: Clients,
    shared: Shared,
    stage: Stage,
    /// What the kernel said this turn: whose event, and which.
    events: Vec<(u64, epoll::EventFlags)>,
    scratch: Vec<u8>,
    /// Clients whose sockets may hold more than one turn reads.
    hungry: Vec<locks::ClientIndex>,
    /// When the kernel was last asked for events.
    watched: Nanos,
    /// When idle clients were last looked for.
    swept: Nanos,
    begun: bool,
}

impl std::fmt::Debug for RespFace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RespFace")
            .field("listeners", &self.listeners)
            .field("clients", &self.clients.len())
            .field("in_flight", &self.shared.in_flight)
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

impl RespFace {
    /// Binds every address of a configuration.
    ///
    /// # Errors
    /// [`RespError`] names the address that cannot be had.
    pub fn bind(config: RespConfig) -> Result<Self, RespError> {
        let watch = |source: rustix::io::Errno| RespError::Watch { source: source.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(watch)?;
        let listeners = listener::bind_all(&config)?;
        for (place, listener) in listeners.iter().enumerate() {
            let data = epoll::EventData::new_u64(turn::LISTENER_BIT | place as u64);
            epoll::add(&epoll, listener.as_fd(), data, epoll::EventFlags::IN).map_err(watch)?;
        }
        let mut settings = settings::Settings::new(&config);
        listener::describe(&listeners, &mut settings);
        Ok(Self {
            epoll,
            listeners,
            clients: Clients::default(),
            shared: Shared {
                face: config.face,
                settings,
                counters: Counters::new(),
                slowlog: slowlog::SlowLog::default(),
                locks: locks::KeyLocks::default(),
                sinks: output::Sinks::default(),
                in_flight: 0,
                dirty: std::collections::VecDeque::new(),
                flush: Vec::new(),
                busy: std::collections::VecDeque::new(),
                busy_operations: std::collections::VecDeque::new(),
                sleepers: Vec::new(),
                random: fastrand::Rng::with_seed(config.seed),
                started: Nanos::ZERO,
                started_wall: UnixMillis::default(),
                now: Nanos::ZERO,
                wall: UnixMillis::default(),
                last_save: UnixMillis::default(),
                next_client: 1,
            },
            stage: Stage::Serving,
            events: Vec::with_capacity(TURN_EVENTS_MAX),
            scratch: vec![0; READ_BYTES],
            hungry: Vec::new(),
            watched: Nanos::ZERO,
            swept: Nanos::ZERO,
            begun: false,
        })
    }

    /// The first TCP address the face listens on; `None` when it has only a Unix socket.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listeners.iter().find_map(Listener::address)
    }

    /// Readable when a socket has something for the face. What the core sleeps on.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Clients connected now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.clients.len()
    }

    /// Client commands answered since the face was bound.
    #[must_use]
    pub fn commands_done(&self) -> u64 {
        self.shared.counters.commands_done
    }

    /// When the face next has work of its own; `None` when only a socket or a completion can wake it.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let sleeper = self.shared.sleepers.iter().map(|(time, _)| *time).min();
        let sweep = (self.shared.settings.timeout_seconds > 0 && self.clients.len() > 0)
            .then(|| self.swept.after(turn::SWEEP_EVERY));
        sleeper.into_iter().chain(sweep).min()
    }

    /// Stops accepting; every client is closed when what it asked for has been answered.
    pub fn begin_drain(&mut self) {
        self.stage = Stage::Draining;
        for listener in std::mem::take(&mut self.listeners) {
            listener.close(self.epoll.as_fd());
        }
        let all: Vec<_> = self.clients.iter().map(|client| client.index).collect();
        self.shared.dirty.extend(all);
    }

    /// Whether a drain has come to its end: no client is left.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.stage == Stage::Draining && self.clients.len() == 0
    }

    /// One turn: what sockets brought goes to the device, what the device released goes to the sockets. Runs the device's stages
    /// in between, so that what it can answer from memory is answered in the same turn. Returns whether anything moved; if not,
    /// the core may sleep on [`descriptor`](Self::descriptor), the device's own descriptor and the nearest deadline.
    pub fn poll<S: CoreDevice>(&mut self, store: &mut S, now: Nanos, wall: UnixMillis) -> bool {
        self.shared.now = now;
        self.shared.wall = wall;
        if !self.begun {
            self.begun = true;
            self.shared.started = now;
            self.shared.started_wall = wall;
            self.shared.last_save = wall;
            self.swept = now;
        }
        let mut moved = self.take_completions(store);
        moved |= self.retry_busy(store);
        moved |= self.wake_sleepers(store);
        moved |= self.take_events(store);
        moved |= self.feed_hungry(store);
        moved |= self.go_on(store);
        moved |= self.settle(store, now, wall);
        self.sweep_idle(store);
        self.flush_all();
        moved || !self.hungry.is_empty() || !self.shared.dirty.is_empty()
    }

    fn take_kernel_events(&mut self) {
        let quiet = self.events.is_empty();
        self.events.clear();
        // A core that turns while it waits for the device need not ask the kernel each time round.
        if quiet && self.shared.in_flight > 0 && self.shared.now.since(self.watched) < turn::WATCH_EVERY {
            return;
        }
        self.watched = self.shared.now;
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut buffer = [MaybeUninit::<epoll::Event>::uninit(); TURN_EVENTS_MAX];
        // An interrupted wait has found nothing; the next turn asks again.
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut buffer, Some(&nothing)) {
            self.events.extend(events.iter().map(|event| (event.data.u64(), event.flags)));
        }
    }
}

impl<D: CoreDevice> Face<D> for RespFace {
    fn poll(&mut self, device: &mut D, now: Nanos, wall: UnixMillis) -> bool {
        Self::poll(self, device, now, wall)
    }

    fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor()
    }

    fn next_deadline(&self) -> Option<Nanos> {
        Self::next_deadline(self)
    }

    fn drain(&mut self) {
        self.begin_drain();
    }

    fn is_drained(&self) -> bool {
        Self::is_drained(self)
    }

    fn count(&self, into: &mut FaceNumbers) {
        Self::count(self, into);
    }
}
