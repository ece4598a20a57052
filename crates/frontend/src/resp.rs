//! The RESP front end: serves Redis clients over sockets.
//!
//! Input: connections and, once a turn, the device and the time. Output: commands to the device, replies to the
//! sockets. The front end never blocks and has no thread: the core loop polls it and sleeps on its
//! [`descriptor`](RespFrontEnd::descriptor). Invariant: every command of a client gets exactly one reply, in order, and
//! none before the device released it.
//!
//! ```text
//!  sockets -> events -> read -> parse -> dispatch -> device -> completions -> slots in order -> one send a turn
//! ```

mod atomic_writes;
mod bit_operation;
mod bitfield;
mod bitmap;
mod bits;
mod change;
mod client;
mod client_identity;
mod client_lines;
mod client_list;
mod client_memory;
mod clients;
mod command_table;
mod config;
mod connection;
mod decimals;
mod dispatch;
mod drive;
mod edit;
mod errors;
mod expiry;
mod gather;
pub mod glob;
mod help;
mod increment;
mod info;
mod inline;
mod kept_settings;
mod key_count;
mod large_writes;
mod lcs;
mod lcs_operation;
pub mod limits;
mod listener;
mod listing;
mod locks;
mod metrics;
mod operation;
mod operation_step;
mod output_queue;
pub mod parser;
mod password;
mod password_hash;
mod plan;
mod receive_buffers;
mod received_bytes;
mod received_values;
mod relocate;
mod reply;
mod reply_budget;
mod reply_form;
mod reply_gate;
mod reply_limits;
mod request;
mod server;
mod session;
mod settings;
mod slow_commands;
mod slow_work;
mod slowlog;
mod stalled;
mod startup_settings;
mod state;
mod strings;
mod sweep;
mod transaction;
mod transaction_batch;
mod transaction_commands;
mod transaction_databases;
mod transaction_errors;
mod transaction_gate;
mod transaction_run;
mod transaction_step;
mod transaction_view;
mod turn;
mod turn_share;
mod value_stream;
mod wall_estimate;
mod watch;
mod wide_integer;

pub use config::{GivenPassword, PasswordPrecedence, RespConfig, RespError};
pub use kept_settings::{KEPT_SETTINGS_FILE, KeptSettingsError};
pub use password::random_bytes;
pub use password_hash::{SALT_BYTES, SaltedHash, SaltedHashError};

use crate::accept_pause::AcceptPause;
use crate::core_device::CoreDevice;
use crate::counters::FrontEndCounters;
use crate::front_end::FrontEnd;
use clients::ClientTable;
use headwater_host::clock::{Nanos, UnixMillis};
use limits::{READ_BYTES, TURN_EVENTS_MAX};
use listener::RespListener;
use rustix::event::{Timespec, epoll};
use startup_settings::StartupSettings;
use state::{RespCounters, RespState};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The life-cycle stage of the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RespStage {
    Serving,
    Draining,
}

/// The RESP front end of one device.
pub struct RespFrontEnd {
    epoll: OwnedFd,
    listeners: Vec<RespListener>,
    /// One for each listener, in the same order.
    accept_pauses: Vec<AcceptPause>,
    clients: ClientTable,
    shared: RespState,
    stage: RespStage,
    /// The kernel's events of this turn: registration number and flags.
    events: Vec<(u64, epoll::EventFlags)>,
    scratch: Vec<u8>,
    /// Clients whose sockets may hold more bytes than one turn reads.
    unread: Vec<locks::ClientIndex>,
    /// Time of the last `epoll_wait`.
    last_epoll: Nanos,
    /// Time of the last search for idle clients.
    last_sweep: Nanos,
    /// Time of the last search for clients that receive nothing.
    last_stall_search: Nanos,
    started: bool,
}

impl std::fmt::Debug for RespFrontEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RespFrontEnd")
            .field("listeners", &self.listeners)
            .field("clients", &self.clients.len())
            .field("in_flight", &self.shared.in_flight)
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

impl RespFrontEnd {
    /// Binds every address of a configuration.
    ///
    /// # Errors
    /// [`RespError`] names the address that cannot be bound.
    pub fn bind(config: RespConfig) -> Result<Self, RespError> {
        let watch = |source: rustix::io::Errno| RespError::Epoll { source: source.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(watch)?;
        let StartupSettings { mut settings, slowlog, plain } = StartupSettings::of(&config)?;
        let listeners = listener::bind_all(&config, &settings)?;
        let mut accept_pauses = Vec::new();
        for (at, listener) in listeners.iter().enumerate() {
            let data = turn::LISTENER_BIT | at as u64;
            accept_pauses.push(AcceptPause::watch(&epoll, listener, data).map_err(watch)?);
        }
        listener::describe(&listeners, &mut settings);
        let mut front_end = Self {
            epoll,
            listeners,
            accept_pauses,
            clients: ClientTable::default(),
            shared: RespState {
                front_end: config.front_end,
                settings,
                counters: RespCounters::new(),
                counters_at_reset: RespCounters::new(),
                expired_at_reset: 0,
                slowlog,
                locks: locks::KeyLocks::default(),
                gate: transaction_gate::TransactionGate::default(),
                value_buffers: output_queue::ValueBuffers::default(),
                has_received: false,
                awaiting_receipt: Vec::new(),
                receive_buffers: receive_buffers::ReceiveBuffers::default(),
                client_memory: client_memory::ClientMemory::new(config.client_memory_max),
                reply_budget: reply_budget::ReplyBudget::new(
                    config.reply_memory_max.min(config.client_memory_max / 2),
                ),
                large_writes: large_writes::LargeWrites::default(),
                turn: 0,
                in_flight: 0,
                dirty: std::collections::VecDeque::new(),
                flush: Vec::new(),
                flush_long: Vec::new(),
                busy: std::collections::VecDeque::new(),
                busy_operations: std::collections::VecDeque::new(),
                long_operations: std::collections::VecDeque::new(),
                sleepers: Vec::new(),
                random: fastrand::Rng::with_seed(config.seed),
                readers: 0,
                started: Nanos::ZERO,
                started_wall: UnixMillis::default(),
                now: Nanos::ZERO,
                wall: UnixMillis::default(),
                wall_estimate: wall_estimate::WallEstimate::default(),
                last_save: UnixMillis::default(),
                stall_warned_at: None,
                http_warned_at: None,
                wrong_passwords: crate::wrong_passwords::WrongPasswords::default(),
                next_client: 1,
                slow_work: slow_work::SlowWork::default(),
            },
            stage: RespStage::Serving,
            events: Vec::with_capacity(TURN_EVENTS_MAX),
            scratch: vec![0; READ_BYTES],
            unread: Vec::new(),
            last_epoll: Nanos::ZERO,
            last_sweep: Nanos::ZERO,
            last_stall_search: Nanos::ZERO,
            started: false,
        };
        if let Some(password) = plain {
            front_end.shared.hash_password(password);
        }
        Ok(front_end)
    }

    /// Returns the first TCP address the front end listens on; `None` when it has only a Unix socket.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listeners.iter().find_map(RespListener::address)
    }

    /// Returns the descriptor that the core loop sleeps on; it is readable when a socket has an event.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns the number of clients connected now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.clients.len()
    }

    /// Returns the time of the next timed work; `None` when only a socket or a completion can wake the front end.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let sleeper = self.shared.sleepers.iter().map(|(time, _)| *time).min();
        let sweep = (self.shared.settings.timeout_seconds > 0 && self.clients.len() > 0)
            .then(|| self.last_sweep.after(turn::IDLE_SWEEP_INTERVAL));
        let watched = self.listeners.iter().zip(&self.accept_pauses);
        let accept = watched.filter_map(|(_, pause)| pause.deadline()).min();
        let stalled = (self.shared.reply_budget.waiting() > 0)
            .then(|| self.last_stall_search.after(turn::STALL_SEARCH_INTERVAL));
        let slow =
            (self.shared.slow_work.is_running()).then(|| self.shared.now.after(slow_work::LOOK_INTERVAL));
        sleeper.into_iter().chain(sweep).chain(accept).chain(stalled).chain(slow).min()
    }

    /// Stops accepting clients; each client is closed when its accepted commands are answered.
    pub fn begin_drain(&mut self) {
        self.stage = RespStage::Draining;
        for listener in std::mem::take(&mut self.listeners) {
            listener.close(self.epoll.as_fd());
        }
        let all: Vec<_> = self.clients.iter().map(|client| client.index).collect();
        self.shared.dirty.extend(all);
    }

    /// Returns true if a drain has finished: no client is left.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.stage == RespStage::Draining && self.clients.len() == 0
    }

    /// Runs one turn: submits commands that sockets delivered, sends replies that the device released. Polls the device
    /// in between, so that commands answered from memory complete in the same turn. Returns true if there was any work;
    /// if not, the core loop may sleep on [`descriptor`](Self::descriptor), the device's own descriptor and the nearest
    /// deadline.
    pub fn poll<S: CoreDevice>(&mut self, store: &mut S, now: Nanos, wall: UnixMillis) -> bool {
        self.shared.now = now;
        self.shared.wall = wall;
        self.shared.turn += 1;
        self.shared.wall_estimate.update(now, wall);
        if !self.started {
            self.started = true;
            self.shared.started = now;
            self.shared.started_wall = wall;
            self.shared.last_save = wall;
            self.last_sweep = now;
        }
        let mut moved = self.take_completions(store).count > 0;
        moved |= self.retry_busy(store);
        moved |= self.wake_sleepers(store);
        moved |= self.finish_slow_work();
        moved |= self.run_long_operation(store);
        moved |= self.handle_events(store);
        moved |= self.resume_reading(store);
        moved |= self.resume_receipts(store);
        moved |= self.run_dirty(store);
        moved |= self.poll_device(store, now, wall);
        self.sweep_idle(store);
        self.close_stalled(store);
        self.flush_all();
        let rest = !self.unread.is_empty() || !self.shared.long_operations.is_empty();
        let flushing = !self.shared.flush.is_empty() || !self.shared.flush_long.is_empty();
        moved || rest || !self.shared.dirty.is_empty() || flushing
    }

    /// Continues to read from clients for whose values the device had no room. Returns true if it has some now.
    fn resume_receipts<S: CoreDevice>(&mut self, store: &mut S) -> bool {
        self.shared.has_received = false;
        for index in std::mem::take(&mut self.shared.awaiting_receipt) {
            if let Some(received) = self.clients.get_mut(index).and_then(|client| client.received.as_mut()) {
                received.is_queued = false;
            }
            self.read_and_run(store, index);
        }
        self.shared.has_received
    }

    fn poll_epoll(&mut self) {
        let quiet = self.events.is_empty();
        self.events.clear();
        // While device commands are in flight the core loop spins: limit the rate of system calls.
        if quiet && self.shared.in_flight > 0 && self.shared.now.since(self.last_epoll) < turn::EPOLL_INTERVAL
        {
            return;
        }
        self.last_epoll = self.shared.now;
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut buffer = [MaybeUninit::<epoll::Event>::uninit(); TURN_EVENTS_MAX];
        // An interrupted wait returns no events; the next turn waits again.
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut buffer, Some(&nothing)) {
            self.events.extend(events.iter().map(|event| (event.data.u64(), event.flags)));
        }
    }
}

impl<D: CoreDevice> FrontEnd<D> for RespFrontEnd {
    fn poll(&mut self, device: &mut D, now: Nanos, wall: UnixMillis) -> bool {
        Self::poll(self, device, now, wall)
    }

    fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor()
    }

    fn waits_for_device(&self) -> bool {
        self.clients.len() > 0
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

    fn add_counters(&self, into: &mut FrontEndCounters) {
        Self::count(self, into);
    }
}
