//! The NVMe/TCP front end.
//!
//! Input: connections and, once a turn, the device and the time. Output: commands to the device, completions and data
//! to the sockets. The front end never blocks and has no thread: the core loop polls it and sleeps on its descriptor.
//! Invariant: every command of a host gets exactly one response, and none before the device completed it; the memory of
//! a connection is bounded, whatever its host sends.
//!
//! ```text
//!  sockets -> events -> read -> (TLS) -> PDUs -> commands -> device -> completions -> PDUs -> (TLS) -> write
//!              |  data of long values                       |
//!              +--------------------------------------------+
//! ```

mod abort;
mod admin_queue;
mod completions;
mod connection;
mod connection_receipts;
mod connections;
mod dispatch;
mod in_flight_command;
pub mod limits;
mod received_parts;
mod secure;
mod shared;
mod socket;
mod turn;

use connections::ConnectionTable;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::tls::TlsError;
use headwater_nvme::fabrics::{AssociationTable, ConnectionId, FabricsConfig};
use headwater_nvme::tcp::psk::HostKey;
use headwater_ssd::command::FrontEndId;
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::media::Media;
use headwater_ssd::nvme::request::KeyBuffer;
use limits::{
    CONNECT_TIMEOUT, CONTROLLERS_MAX, IO_QUEUES_MAX, QUEUE_ENTRIES_MAX, SCRATCH_BYTES, TURN_EVENTS_MAX,
};
use rustix::event::epoll;
use secure::{ConnectionSecurity, PLAINTEXT_BYTES};
use shared::{NvmeTcpCounters, NvmeTcpState};
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::accept_pause::AcceptPause;
use crate::counters::{FrontEndCounters, StatusClass};
use crate::front_end::FrontEnd;
use crate::in_flight::InFlightTable;

/// The configuration of the front end.
#[derive(Clone, Debug)]
pub struct NvmeTcpConfig {
    /// Address to listen on; a loopback address unless there are keys. Port 0 selects a free port.
    pub listen: SocketAddr,
    /// The front end's identifier in the device.
    pub front_end_id: FrontEndId,
    /// Hosts and their keys. If there are any, every connection uses TLS and only these hosts connect.
    pub keys: Vec<HostKey>,
}

/// An error that prevented the front end from starting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NvmeTcpError {
    /// An address that other machines can reach, without TLS.
    #[error(
        "refuses to listen for NVMe/TCP on {address}: without TLS every client that reaches it could read and write \
         all data; give the hosts' keys (--nvme-tcp-psk FILE{built}), or a loopback address (127.0.0.1 or ::1) and \
         tunnel to it (ssh -L, WireGuard)", built = if headwater_host::tls::AVAILABLE { "" } else { ", in a build with `--features tls`: this one has no TLS" }
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// There are keys, but TLS is not available.
    #[error("cannot use keys for NVMe/TCP: {0}; or leave --nvme-tcp-psk out and listen on the loopback")]
    Tls(#[from] TlsError),
    /// The address is in use or not local.
    #[error(
        "cannot listen for NVMe/TCP on {address}: {source}; choose another address or stop the process that uses it"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The kernel refused an epoll descriptor.
    #[error("cannot watch sockets with epoll: {source}; raise the limit of open files")]
    Watch {
        /// The system's reason.
        source: std::io::Error,
    },
}

/// The state of the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NvmeTcpStage {
    Serving,
    Draining,
}

/// The NVMe/TCP front end of one device.
pub struct NvmeTcpFrontEnd {
    epoll: OwnedFd,
    listener: Option<TcpListener>,
    accept_pause: AcceptPause,
    connections: ConnectionTable,
    shared: NvmeTcpState,
    keys: Vec<HostKey>,
    stage: NvmeTcpStage,
    events: Vec<(u64, epoll::EventFlags)>,
    scratch: Vec<u8>,
    /// Connections whose sockets may hold unread bytes.
    unread: VecDeque<ConnectionId>,
    /// Connections with something to send.
    to_flush: Vec<ConnectionId>,
    /// Connections with commands that wait for room.
    parked: Vec<ConnectionId>,
    /// Connections with values for which the device had no room.
    awaiting_room: Vec<ConnectionId>,
    /// True once the device's identity was read.
    identity_read: bool,
    /// The connection that received bytes last, and the time.
    latest_sender: Option<(ConnectionId, Nanos)>,
    /// Time of the last poll for kernel events.
    last_event_poll: Nanos,
    /// Time of the last sweep for connections past their time limit.
    last_sweep: Nanos,
}

impl std::fmt::Debug for NvmeTcpFrontEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NvmeTcpFrontEnd")
            .field("address", &self.shared.address)
            .field("connections", &self.connections.len())
            .field("controllers", &self.shared.associations.len())
            .field("in_flight", &self.shared.in_flight.len())
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

impl NvmeTcpFrontEnd {
    /// Binds the address and listens.
    ///
    /// # Errors
    /// [`NvmeTcpError`] for an address that is in use or not allowed, or when the system refuses a descriptor.
    pub fn bind(config: &NvmeTcpConfig) -> Result<Self, NvmeTcpError> {
        let watch = |source: rustix::io::Errno| NvmeTcpError::Watch { source: source.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(watch)?;
        let security = match config.keys.is_empty() {
            true => ConnectionSecurity::Plain,
            false if headwater_host::tls::AVAILABLE => ConnectionSecurity::Tls(None),
            false => return Err(TlsError::NotBuilt.into()),
        };
        let listener = socket::listen(config.listen, security.channel())?;
        let address = listener.local_addr().unwrap_or(config.listen);
        let accept_pause = AcceptPause::watch(&epoll, &listener, turn::LISTENER).map_err(watch)?;
        let associations = AssociationTable::new(FabricsConfig {
            controllers_max: CONTROLLERS_MAX,
            queue_entries_max: QUEUE_ENTRIES_MAX,
            io_queues_max: IO_QUEUES_MAX,
            ..FabricsConfig::default()
        });
        Ok(Self {
            epoll,
            listener: Some(listener),
            accept_pause,
            connections: ConnectionTable::default(),
            shared: NvmeTcpState {
                front_end_id: config.front_end_id,
                address,
                plaintext: if config.keys.is_empty() { Vec::new() } else { vec![0; PLAINTEXT_BYTES] },
                security,
                associations,
                in_flight: InFlightTable::default(),
                keys: KeyBuffer::default(),
                counters: NvmeTcpCounters::default(),
                to_close: Vec::new(),
                removed_controllers: Vec::new(),
                waiting_commands: VecDeque::new(),
                aborts: VecDeque::new(),
                shutdowns: Vec::new(),
                now: Nanos::ZERO,
            },
            keys: config.keys.clone(),
            stage: NvmeTcpStage::Serving,
            events: Vec::with_capacity(TURN_EVENTS_MAX),
            scratch: vec![0; SCRATCH_BYTES],
            unread: VecDeque::new(),
            to_flush: Vec::new(),
            parked: Vec::new(),
            awaiting_room: Vec::new(),
            identity_read: false,
            latest_sender: None,
            last_event_poll: Nanos::ZERO,
            last_sweep: Nanos::ZERO,
        })
    }

    /// Returns the address on which the front end listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.address
    }
}

impl<M: Media> FrontEnd<SsdDevice<M>> for NvmeTcpFrontEnd {
    fn poll(&mut self, device: &mut SsdDevice<M>, now: Nanos, wall: UnixMillis) -> bool {
        self.run_turn(device, now, wall)
    }

    fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn waits_for_device(&self) -> bool {
        self.connections.iter().next().is_some() || !self.shared.in_flight.is_empty()
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let keep_alive = self.shared.associations.next_deadline();
        let joining =
            self.connections.iter().filter_map(|connection| match (connection.life, connection.role) {
                (connection::NvmeTcpConnectionLife::Closing(until), _) => Some(until),
                (_, connection::ConnectionRole::Unconnected) => {
                    Some(connection.accepted_at.after(CONNECT_TIMEOUT))
                }
                _ => None,
            });
        let accept = self.listener.as_ref().and_then(|_| self.accept_pause.deadline());
        joining.chain(keep_alive).chain(accept).min()
    }

    fn drain(&mut self) {
        self.stage = NvmeTcpStage::Draining;
        if let Some(listener) = self.listener.take() {
            // Closing removes it from epoll anyway; a failure here changes nothing.
            let _ = epoll::delete(&self.epoll, listener.as_fd());
        }
        let all: Vec<ConnectionId> = self.connections.iter().map(|connection| connection.id).collect();
        for id in all {
            if let Some(connection) = self.connections.take_out(id) {
                self.finish_step(connection);
            }
        }
    }

    fn is_drained(&self) -> bool {
        self.stage == NvmeTcpStage::Draining && self.connections.len() == 0
    }

    fn add_counters(&self, into: &mut FrontEndCounters) {
        let counters = &self.shared.counters;
        into.connections += self.connections.len() as u64;
        into.connections_total += counters.connections;
        into.connections_refused += counters.refused;
        self.accept_pause.count(into);
        into.bytes_in += counters.bytes_in;
        into.bytes_out += counters.bytes_out;
        let done = counters.answered - counters.failed;
        *into.commands.entry(("nvme-tcp", StatusClass::Ok)).or_default() += done;
        *into.commands.entry(("nvme-tcp", StatusClass::Failed)).or_default() += counters.failed;
        *into.in_flight.entry("nvme-tcp").or_default() += self.shared.in_flight.len() as u64;
    }
}
