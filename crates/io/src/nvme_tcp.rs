//! A device on the other end of a network: NVMe over TCP as a backend.
//!
//! In: an address and the name of a subsystem. Out: a [`Backend`] whose queues are connections. The controller that was
//! connected to lives as long as the backend and its queues; a thread says so by Keep Alive. When it goes away it is looked for,
//! and what was not answered is sent once more ([`Device`](crate::Device) says what that means). Data goes between socket and
//! [`Buffer`] without a stop in between but for the short front of what arrives together with headers.
//!
//! With a key the connections are inside TLS 1.3 (in builds with the feature `tls`); data is then copied on its way.

mod control;
pub mod key_file;
mod link;
mod queue;
mod secure_link;
mod session;

use crate::attach::admin::NamespaceWish;
use crate::backend::{Backend, Transport};
use crate::buffer::Buffer;
use crate::error::IoError;
use crate::facts::NamespaceFacts;
use headwater_dma::pool::Pool;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::fabrics::DISCOVERY_NAME;
use headwater_nvme::tcp::psk::{ConfiguredKey, HostKey};
use headwater_nvme::tcp::{Digests, Lent};
use session::{Again, Session};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

/// Keep Alive timeout of a host that names none.
pub const KEEP_ALIVE: Nanos = Nanos::from_millis(15_000);
/// How long a device that went away is looked for by a host that does not say.
pub const RETRY_FOR: Nanos = Nanos::from_millis(30_000);

/// Which device, and who asks.
#[derive(Clone, Debug)]
pub struct NvmeTcpTarget {
    /// Where it listens.
    pub address: SocketAddr,
    /// SUBNQN of the device.
    pub subsystem_name: String,
    /// HOSTNQN.
    pub host_name: String,
    /// HOSTID.
    pub host_identifier: [u8; 16],
    /// Digests to ask for.
    pub digests: Digests,
    /// How long the device keeps a controller whose host says nothing (KATO); [`Nanos::ZERO`] for ever.
    pub keep_alive: Nanos,
    /// How long to look for a device that went away before giving up; [`Nanos::ZERO`] looks once.
    pub retry_for: Nanos,
    /// The host's pre-shared key: with one the connections are inside TLS, without they are not.
    pub key: Option<ConfiguredKey>,
}

impl NvmeTcpTarget {
    /// A device by address and name, asked for by this process, without digests.
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
            digests: Digests::default(),
            keep_alive: KEEP_ALIVE,
            retry_for: RETRY_FOR,
            key: None,
        }
    }

    /// The same device, asked for by the host that a key is of, inside TLS.
    #[must_use]
    pub fn secured(self, host: HostKey) -> Self {
        Self { host_name: host.host, key: Some(host.key), ..self }
    }
}

/// A controller of a device, connected.
#[derive(Debug)]
pub struct NvmeTcp {
    session: Arc<Session>,
}

impl NvmeTcp {
    /// Connects to a device and enables a controller of it.
    ///
    /// # Errors
    /// [`IoError::Gone`] when nobody answers, [`IoError::Refused`] when the device refuses, with its reason.
    pub fn open(target: NvmeTcpTarget) -> Result<Self, IoError> {
        Ok(Self { session: Session::open(target)? })
    }

    /// The names of the subsystems that a discovery controller at `address` tells of.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn discover(address: SocketAddr) -> Result<Vec<String>, IoError> {
        Self::discover_as(&NvmeTcpTarget::new(address, DISCOVERY_NAME))
    }

    /// As [`discover`](Self::discover), by the host and with the key of a target, whatever its subsystem.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn discover_as(target: &NvmeTcpTarget) -> Result<Vec<String>, IoError> {
        control::discover(&NvmeTcpTarget { subsystem_name: DISCOVERY_NAME.to_owned(), ..target.clone() })
    }
}

impl Backend for NvmeTcp {
    fn namespaces(&mut self) -> Result<Vec<NamespaceFacts>, IoError> {
        self.session.call(Again::May, control::Control::namespaces)
    }

    fn change_namespace(&mut self, id: u8, wish: NamespaceWish) -> Result<u8, IoError> {
        // Not asked again: a namespace that was made and a device that then went away would make two.
        self.session.call(Again::MustNot, |control| control.change_namespace(id, &wish))
    }

    fn region(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        // Nobody but this process touches it.
        Ok(Buffer::pooled(Pool::of_process()?.buffer(bytes.max(1))?))
    }

    fn queue(&mut self, depth: u32) -> Result<Box<dyn Transport>, IoError> {
        Ok(Box::new(queue::TcpQueue::open(Arc::clone(&self.session), depth)?))
    }
}

impl Lent for Buffer {
    fn bytes(&self) -> usize {
        Self::bytes(self)
    }

    fn append_to(&self, range: Range<usize>, text: &mut Vec<u8>) {
        let end = text.len();
        text.resize(end + range.len(), 0);
        let copied = self.read(range.start, &mut text[end..]);
        assert!(copied.is_ok(), "a range of the buffer that was lent");
    }

    fn crc32c(&self, seed: u32, range: Range<usize>) -> u32 {
        let mut part = [0; 4_096];
        let mut crc = seed;
        for start in range.clone().step_by(part.len()) {
            let part = &mut part[..(range.end - start).min(4_096)];
            let copied = self.read(start, part);
            assert!(copied.is_ok(), "a range of the buffer that was lent");
            crc = headwater_host::copy::crc32c(crc, part);
        }
        crc
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let copied = self.write(at, bytes);
        assert!(copied.is_ok(), "a place that was found to lie in the buffer");
    }
}
