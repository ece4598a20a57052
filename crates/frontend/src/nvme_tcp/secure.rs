//! TLS on the way between sockets and the protocol.
//!
//! In: the keys of hosts, received bytes, PDUs. Out: opened bytes to the protocol, sealed bytes to the socket. Invariant: where
//! there are keys no connection is without TLS; what a host does it does under the name that its key is of (TCP transport
//! specification 1.1, section 3.6.1.3).

use super::connection::{Connection, Life};
use super::dispatch::Turn;
use super::limits::CLOSE_WITHIN;
use super::socket::Flushed;
use headwater_host::tls::{TlsEnd, TlsError, TlsKeys};
use headwater_nvme::spec::fabrics::{ConnectData, DISCOVERY_NAME, SecureChannel, name_in};
use headwater_nvme::tcp::Outgoing;
use headwater_nvme::tcp::psk::HostKey;
use headwater_nvme::tcp::secure::{SecureStream, prepare};
use headwater_ssd::media::Media;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use zerocopy::FromBytes as _;

/// Bytes opened at once: a full TLS record.
pub(super) const OPENED_BYTES: usize = 16 << 10;

/// Between whom a key is.
#[derive(Debug)]
struct Names {
    host: String,
    subsystem: String,
}

/// Keys for every host, by identity.
#[derive(Debug)]
pub(super) struct Keyring {
    keys: TlsKeys,
    names: BTreeMap<String, Names>,
}

impl Keyring {
    /// Derives what hosts may offer: each for the subsystem and for discovery.
    pub(super) fn new(hosts: &[HostKey], subsystem: &str) -> Result<Self, String> {
        let mut psks = Vec::new();
        for host in hosts {
            for name in [subsystem, DISCOVERY_NAME] {
                psks.extend(host.tls_psks(name).map_err(|error| format!("{}: {error}", host.host))?);
            }
        }
        let keys = prepare(&psks).map_err(|error| error.to_string())?;
        let names =
            psks.into_iter().map(|psk| (psk.identity, Names { host: psk.host, subsystem: psk.subsystem }));
        Ok(Self { keys, names: names.collect() })
    }

    /// The stream of a connection that was just accepted.
    pub(super) fn stream(&self) -> Result<Box<SecureStream>, TlsError> {
        SecureStream::new(TlsEnd::Server, &self.keys).map(Box::new)
    }
}

/// How a face treats connections.
#[derive(Debug)]
pub(super) enum Security {
    /// They are as they come; only this machine can connect.
    Open,
    /// Every one is inside TLS. Without a keyring none is taken.
    Tls(Option<Keyring>),
}

impl Security {
    /// What discovery tells hosts of it.
    pub(super) fn channel(&self) -> SecureChannel {
        match self {
            Self::Open => SecureChannel::None,
            Self::Tls(_) => SecureChannel::Tls13,
        }
    }
}

impl<M: Media> Turn<'_, M> {
    /// Takes received bytes of a connection, opened if it is inside TLS.
    pub(super) fn receive(&mut self, connection: &mut Connection, bytes: &[u8]) {
        let Some(stream) = &mut connection.secure else {
            return self.take(connection, bytes);
        };
        stream.feed(bytes);
        let mut room = std::mem::take(&mut self.shared.opened);
        while let Some(stream) = &mut connection.secure {
            match stream.open(&mut room) {
                Ok(0) => break,
                Ok(count) => self.take(connection, room.get(..count).unwrap_or(&[])),
                Err(error) => {
                    let identity = stream.identity();
                    tracing::info!(connection = connection.id.0, identity, %error, "NVMe/TCP: TLS ends");
                    connection.life = Life::Closing(self.shared.now.after(CLOSE_WITHIN));
                    break;
                }
            }
        }
        self.shared.opened = room;
    }

    /// Whether the names in a Connect are those that the connection's key is of. Without TLS any name will do.
    pub(super) fn may_connect(&self, connection: &Connection, data: &[u8]) -> bool {
        let (Security::Tls(keyring), Some(stream)) = (&self.shared.security, &connection.secure) else {
            return matches!(self.shared.security, Security::Open);
        };
        let names = stream.identity().and_then(|identity| keyring.as_ref()?.names.get(identity));
        let Some((names, Ok((data, _)))) = names.map(|names| (names, ConnectData::ref_from_prefix(data)))
        else {
            return false;
        };
        name_in(&data.host_name) == Some(&names.host)
            && name_in(&data.subsystem_name) == Some(&names.subsystem)
    }
}

/// Seals as much as may wait, and hands it to the kernel; returns how many bytes that took.
pub(super) fn flush(
    socket: BorrowedFd<'_>,
    stream: &mut SecureStream,
    pdus: &mut Outgoing<Vec<u8>>,
) -> (Flushed, usize) {
    let mut total = 0;
    loop {
        if stream.seal(pdus).is_err() {
            return (Flushed::Gone, total);
        }
        if stream.outgoing().is_empty() {
            return (Flushed::All, total);
        }
        match send(socket, stream.outgoing(), SendFlags::NOSIGNAL) {
            Ok(count) => {
                total += count;
                stream.sent(count);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return (Flushed::Blocked, total),
            Err(_) => return (Flushed::Gone, total),
        }
    }
}
