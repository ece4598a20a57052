//! A device on a network: NVMe over TCP as a backend.
//!
//! Input: an address and the name of a subsystem. Output: a [`DeviceBackend`] whose queues are connections. The controller
//! lives as long as the backend and its queues; a thread sends Keep Alive. After a connection loss the backend
//! reconnects and resubmits commands that had not completed ([`Device`](crate::Device) states the consequences). Data
//! moves directly between socket and [`Buffer`], except for the short start of a payload that arrives together with
//! headers.
//!
//! With a key the connections use TLS 1.3 (in builds with the feature `tls`), which copies the data once more.

mod admin_connection;
mod command_buffers;
pub mod key_file;
mod link;
mod queue;
mod secure_link;
mod session;

use crate::backend::{DeviceBackend, QueueTransport};
use crate::buffer::Buffer;
use crate::buffer_pool::BufferPool;
use crate::client_namespace::ClientNamespace;
use crate::error::IoError;
use crate::namespace_request::NamespaceRequest;
use crate::pool_settings::PoolSettings;
use headwater_dma::pool::Pool;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::fabrics::DISCOVERY_NAME;
use headwater_nvme::tcp::psk::{ConfiguredKey, HostKey};
use headwater_nvme::tcp::{DigestSettings, LentBytes};
use session::{RetryPolicy, TcpSession};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

/// The default Keep Alive timeout.
pub const KEEP_ALIVE: Nanos = Nanos::from_millis(15_000);
/// The default time for reconnecting to a lost device.
pub const RETRY_FOR: Nanos = Nanos::from_millis(30_000);

/// The address of a device and the identity of the host.
#[derive(Clone, Debug)]
pub struct NvmeTcpTarget {
    /// The socket address.
    pub address: SocketAddr,
    /// The SUBNQN of the device.
    pub subsystem_name: String,
    /// The HOSTNQN.
    pub host_name: String,
    /// The HOSTID.
    pub host_identifier: [u8; 16],
    /// The digests to request.
    pub digests: DigestSettings,
    /// The time that the device keeps a controller whose host is silent (KATO); [`Nanos::ZERO`] for no limit.
    pub keep_alive: Nanos,
    /// The time for reconnecting to a lost device; [`Nanos::ZERO`] tries once.
    pub retry_for: Nanos,
    /// The host's pre-shared key: with a key the connections use TLS, without one they do not.
    pub key: Option<ConfiguredKey>,
}

impl NvmeTcpTarget {
    /// Returns a target by address and name, with this process as host, without digests.
    #[must_use]
    pub fn new(address: SocketAddr, subsystem_name: &str) -> Self {
        let mut host_identifier = *b"headwater host\0\0";
        let [a, b, ..] = std::process::id().to_le_bytes();
        host_identifier[14..].copy_from_slice(&[a, b]);
        Self {
            address,
            subsystem_name: subsystem_name.to_owned(),
            host_name: format!("nqn.2026-01.io.headwater:host:{}", std::process::id()),
            host_identifier,
            digests: DigestSettings::default(),
            keep_alive: KEEP_ALIVE,
            retry_for: RETRY_FOR,
            key: None,
        }
    }

    /// Returns the same target with the host and the key of `host`, over TLS.
    #[must_use]
    pub fn secured(self, host: HostKey) -> Self {
        Self { host_name: host.host, key: Some(host.key), ..self }
    }
}

/// A connected controller of a device.
#[derive(Debug)]
pub struct NvmeTcp {
    session: Arc<TcpSession>,
    /// Memory that only this process accesses.
    pool: BufferPool,
}

impl NvmeTcp {
    /// Connects to a device and enables a controller of it.
    ///
    /// # Errors
    /// [`IoError::Gone`] when the device does not respond; [`IoError::Denied`] when it refuses this host or its key,
    /// [`IoError::Limit`] when none of its controllers is free, [`IoError::Unsupported`] for a key in a build without
    /// TLS.
    pub fn open(target: NvmeTcpTarget) -> Result<Self, IoError> {
        Self::open_with(target, &PoolSettings::default())
    }

    /// Connects as [`open`](Self::open), with these settings of the pool.
    ///
    /// # Errors
    /// As for [`open`](Self::open); or impossible settings.
    pub fn open_with(target: NvmeTcpTarget, settings: &PoolSettings) -> Result<Self, IoError> {
        let pool = BufferPool::open_unregistered(settings)?;
        Ok(Self { session: TcpSession::open(target)?, pool })
    }

    /// Returns the names of the subsystems that a discovery controller at `address` lists.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn discover(address: SocketAddr) -> Result<Vec<String>, IoError> {
        Self::discover_as(&NvmeTcpTarget::new(address, DISCOVERY_NAME))
    }

    /// Discovers as [`discover`](Self::discover) does, with the host and key of a target; its subsystem is ignored.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn discover_as(target: &NvmeTcpTarget) -> Result<Vec<String>, IoError> {
        admin_connection::discover(&NvmeTcpTarget {
            subsystem_name: DISCOVERY_NAME.to_owned(),
            ..target.clone()
        })
    }
}

impl DeviceBackend for NvmeTcp {
    fn namespaces(&mut self) -> Result<Vec<ClientNamespace>, IoError> {
        self.session.call(RetryPolicy::Allowed, admin_connection::AdminConnection::namespaces)
    }

    fn change_namespace(&mut self, id: u8, request: NamespaceRequest) -> Result<u8, IoError> {
        // Not retried: if the connection is lost after the namespace was created, a retry would create a second one.
        self.session.call(RetryPolicy::Forbidden, |control| control.change_namespace(id, &request))
    }

    fn region(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        Ok(self.pool.buffer(bytes)?)
    }

    fn pool(&self) -> &Pool {
        self.pool.pool()
    }

    fn queue(&mut self, depth: u32) -> Result<Box<dyn QueueTransport>, IoError> {
        Ok(Box::new(queue::TcpQueue::open(Arc::clone(&self.session), depth)?))
    }
}

impl LentBytes for Buffer {
    fn bytes(&self) -> usize {
        Self::bytes(self)
    }

    fn append_to(&self, range: Range<usize>, text: &mut Vec<u8>) {
        let end = text.len();
        text.resize(end + range.len(), 0);
        let copied = self.read(range.start, &mut text[end..]);
        assert!(copied.is_ok(), "a range outside the lent buffer");
    }

    fn crc32c(&self, seed: u32, range: Range<usize>) -> u32 {
        let mut part = [0; 4_096];
        let mut crc = seed;
        for start in range.clone().step_by(part.len()) {
            let part = &mut part[..(range.end - start).min(4_096)];
            let copied = self.read(start, part);
            assert!(copied.is_ok(), "a range outside the lent buffer");
            crc = headwater_host::copy::crc32c(crc, part);
        }
        crc
    }

    fn write_at(&mut self, at: usize, bytes: &[u8]) {
        let copied = self.write(at, bytes);
        assert!(copied.is_ok(), "a range outside the lent buffer");
    }
}
