//! The NVMe/TCP face: hosts on sockets, the device behind.
//!
//! In: connections and, once a turn, the device and the time. Out: commands to the device, completions and data to the
//! sockets. The face never blocks, never sleeps and has no thread: the device core polls it and sleeps on its descriptor.
//! Invariant: every command a host sent gets exactly one answer, and none before the device released it; what a connection
//! holds in memory is bounded, whatever its host does.
//!
//! ```text
//!  sockets -> events -> read -> (TLS) -> PDUs -> commands -> device -> completions -> PDUs -> (TLS) -> one write a turn
//! ```

mod abort;
mod admin_queue;
mod answers;
mod connection;
mod connections;
mod dispatch;
mod flight;
pub mod limits;
mod secure;
mod shared;
mod socket;
mod turn;

use connections::Connections;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::tls::TlsError;
use headwater_nvme::fabrics::{Associations, ConnectionId, FabricsConfig};
use headwater_nvme::tcp::psk::HostKey;
use headwater_ssd::command::FaceId;
use headwater_ssd::engine::Device;
use headwater_ssd::media::Media;
use headwater_ssd::nvme::request::Keys;
use limits::{
    CONTROLLERS_MAX, IO_QUEUES_MAX, JOIN_WITHIN, QUEUE_ENTRIES_MAX, SCRATCH_BYTES, TURN_EVENTS_MAX,
};
use rustix::event::epoll;
use secure::{OPENED_BYTES, Security};
use shared::{Counters, Shared};
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::front_end::Face;
use crate::in_flight::Flights;
use crate::numbers::{FaceNumbers, StatusClass};

/// How a face is set up.
#[derive(Clone, Debug)]
pub struct NvmeTcpConfig {
    /// Address to listen on; of the loopback, unless there are keys. Port 0 picks one.
    pub listen: SocketAddr,
    /// Who the face is to the device.
    pub face: FaceId,
    /// Hosts and their keys. With any, every connection is inside TLS and every host one of these.
    pub keys: Vec<HostKey>,
}

/// Why a face could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NvmeTcpError {
    /// An address that others can reach.
    #[error(
        "will not listen for NVMe/TCP on {address}: without TLS anybody who reaches it could read and write everything; \
         give the hosts' keys (--nvme-tcp-psk FILE{built}), or an address of the loopback (127.0.0.1 or ::1) and tunnel to it \
         (ssh -L, WireGuard)", built = if headwater_host::tls::AVAILABLE { "" } else { ", in a build with `--features tls`: this one has no TLS" }
    )]
    NotLoopback {
        /// Which address.
        address: SocketAddr,
    },
    /// Keys, and no TLS to use them for.
    #[error("cannot use keys for NVMe/TCP: {0}; or leave --nvme-tcp-psk out and listen on the loopback")]
    Tls(#[from] TlsError),
    /// The address is taken or not ours.
    #[error("cannot listen for NVMe/TCP on {address}: {source}; choose another address or stop who has it")]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// What the kernel said.
        source: std::io::Error,
    },
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

/// Hosts of one device.
pub struct NvmeTcpFace {
    epoll: OwnedFd,
    listener: Option<TcpListener>,
    connections: Connections,
    shared: Shared,
    keys: Vec<HostKey>,
    stage: Stage,
    events: Vec<(u64, epoll::EventFlags)>,
    scratch: Vec<u8>,
    /// Connections whose sockets may hold more than one turn reads, or that were choked.
    hungry: VecDeque<ConnectionId>,
    /// Connections with something to send.
    flush: Vec<ConnectionId>,
    /// Connections with commands that wait for room.
    parked: Vec<ConnectionId>,
    /// The device has said who it is.
    introduced: bool,
    /// Who spoke last, and when.
    latest: Option<(ConnectionId, Nanos)>,
    /// When the kernel was last asked for events.
    watched: Nanos,
    /// When connections that take too long were last looked for.
    swept: Nanos,
}

impl std::fmt::Debug for NvmeTcpFace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NvmeTcpFace")
            .field("address", &self.shared.address)
            .field("connections", &self.connections.len())
            .field("controllers", &self.shared.associations.len())
            .field("in_flight", &self.shared.flights.len())
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

impl NvmeTcpFace {
    /// Listens.
    ///
    /// # Errors
    /// [`NvmeTcpError`] names the address that cannot be had, or that must not.
    pub fn bind(config: &NvmeTcpConfig) -> Result<Self, NvmeTcpError> {
        let watch = |source: rustix::io::Errno| NvmeTcpError::Watch { source: source.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(watch)?;
        let security = match config.keys.is_empty() {
            true => Security::Open,
            false if headwater_host::tls::AVAILABLE => Security::Tls(None),
            false => return Err(TlsError::NotBuilt.into()),
        };
        let listener = socket::listen(config.listen, security.channel())?;
        let address = listener.local_addr().unwrap_or(config.listen);
        let data = epoll::EventData::new_u64(turn::LISTENER);
        epoll::add(&epoll, listener.as_fd(), data, epoll::EventFlags::IN).map_err(watch)?;
        let associations = Associations::new(FabricsConfig {
            controllers_max: CONTROLLERS_MAX,
            queue_entries_max: QUEUE_ENTRIES_MAX,
            io_queues_max: IO_QUEUES_MAX,
            ..FabricsConfig::default()
        });
        Ok(Self {
            epoll,
            listener: Some(listener),
            connections: Connections::default(),
            shared: Shared {
                face: config.face,
                address,
                opened: if config.keys.is_empty() { Vec::new() } else { vec![0; OPENED_BYTES] },
                security,
                associations,
                flights: Flights::default(),
                keys: Keys::default(),
                counters: Counters::default(),
                doomed: Vec::new(),
                gone: Vec::new(),
                again: VecDeque::new(),
                aborts: VecDeque::new(),
                shutdowns: Vec::new(),
                now: Nanos::ZERO,
            },
            keys: config.keys.clone(),
            stage: Stage::Serving,
            events: Vec::with_capacity(TURN_EVENTS_MAX),
            scratch: vec![0; SCRATCH_BYTES],
            hungry: VecDeque::new(),
            flush: Vec::new(),
            parked: Vec::new(),
            introduced: false,
            latest: None,
            watched: Nanos::ZERO,
            swept: Nanos::ZERO,
        })
    }

    /// Where hosts reach the face.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.address
    }
}

impl<M: Media> Face<Device<M>> for NvmeTcpFace {
    fn poll(&mut self, device: &mut Device<M>, now: Nanos, wall: UnixMillis) -> bool {
        self.turn(device, now, wall)
    }

    fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let keep_alive = self.shared.associations.next_deadline();
        let joining =
            self.connections.iter().filter_map(|connection| match (connection.life, connection.role) {
                (connection::Life::Closing(until), _) => Some(until),
                (_, connection::Role::Stranger) => Some(connection.born.after(JOIN_WITHIN)),
                _ => None,
            });
        joining.chain(keep_alive).min()
    }

    fn drain(&mut self) {
        self.stage = Stage::Draining;
        if let Some(listener) = self.listener.take() {
            // Closing removes it from the queue anyway; a failure here changes nothing.
            let _ = epoll::delete(&self.epoll, listener.as_fd());
        }
        let all: Vec<ConnectionId> = self.connections.iter().map(|connection| connection.id).collect();
        for id in all {
            if let Some(connection) = self.connections.take(id) {
                self.conclude(connection);
            }
        }
    }

    fn is_drained(&self) -> bool {
        self.stage == Stage::Draining && self.connections.len() == 0
    }

    fn count(&self, into: &mut FaceNumbers) {
        let counters = &self.shared.counters;
        into.connections += self.connections.len() as u64;
        into.connections_total += counters.connections;
        into.connections_refused += counters.refused;
        into.bytes_in += counters.bytes_in;
        into.bytes_out += counters.bytes_out;
        let done = counters.answered - counters.failed;
        *into.commands.entry(("nvme-tcp", StatusClass::Ok)).or_default() += done;
        *into.commands.entry(("nvme-tcp", StatusClass::Failed)).or_default() += counters.failed;
        *into.in_flight.entry("nvme-tcp").or_default() += self.shared.flights.len() as u64;
    }
}
