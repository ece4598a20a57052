//! TLS between sockets and the protocol.
//!
//! Input: the keys of hosts, received bytes, PDUs. Output: decrypted bytes to the protocol, encrypted bytes to the
//! socket. Invariant: if there are keys, every connection uses TLS, and a host connects only under the name of its key
//! (TCP transport specification 1.1, section 3.6.1.3).

use super::connection::{NvmeTcpConnection, NvmeTcpConnectionLife};
use super::dispatch::NvmeTcpTurn;
use super::limits::CLOSE_TIMEOUT;
use super::socket::SendResult;
use headwater_host::tls::{TlsError, TlsKeys, TlsRole};
use headwater_nvme::spec::fabrics::{ConnectData, DISCOVERY_NAME, SecureChannel, parse_name};
use headwater_nvme::tcp::SendQueue;
use headwater_nvme::tcp::psk::HostKey;
use headwater_nvme::tcp::secure::{SecureStream, prepare_tls_keys};
use headwater_ssd::media::Media;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use zerocopy::FromBytes as _;

/// Bytes decrypted at once: a full TLS record.
pub(super) const PLAINTEXT_BYTES: usize = 16 << 10;

/// The host and the subsystem that share a key.
#[derive(Debug)]
struct KeyNames {
    host: String,
    subsystem: String,
}

/// The keys of all hosts, by identity.
#[derive(Debug)]
pub(super) struct HostKeyring {
    keys: TlsKeys,
    names: BTreeMap<String, KeyNames>,
}

impl HostKeyring {
    /// Derives the keys that hosts may offer: each for the subsystem and for discovery.
    pub(super) fn new(hosts: &[HostKey], subsystem: &str) -> Result<Self, String> {
        let mut psks = Vec::new();
        for host in hosts {
            for name in [subsystem, DISCOVERY_NAME] {
                psks.extend(host.tls_psks(name).map_err(|error| format!("{}: {error}", host.host))?);
            }
        }
        let keys = prepare_tls_keys(&psks).map_err(|error| error.to_string())?;
        let names =
            psks.into_iter().map(|psk| (psk.identity, KeyNames { host: psk.host, subsystem: psk.subsystem }));
        Ok(Self { keys, names: names.collect() })
    }

    /// Creates the stream of a new connection.
    pub(super) fn stream(&self) -> Result<Box<SecureStream>, TlsError> {
        SecureStream::new(TlsRole::Server, &self.keys).map(Box::new)
    }
}

/// The security of connections.
#[derive(Debug)]
pub(super) enum ConnectionSecurity {
    /// Without TLS; only this machine can connect.
    Plain,
    /// With TLS. Without a keyring, every connection is refused.
    Tls(Option<HostKeyring>),
}

impl ConnectionSecurity {
    /// Returns the secure channel that the discovery log reports.
    pub(super) fn channel(&self) -> SecureChannel {
        match self {
            Self::Plain => SecureChannel::None,
            Self::Tls(_) => SecureChannel::Tls13,
        }
    }
}

impl<M: Media> NvmeTcpTurn<'_, M> {
    /// Processes received bytes of a connection, decrypted if it uses TLS.
    pub(super) fn receive(&mut self, connection: &mut NvmeTcpConnection, bytes: &[u8]) {
        let Some(stream) = &mut connection.secure else {
            let plain = matches!(self.shared.security, ConnectionSecurity::Plain);
            assert!(plain, "a connection without TLS was accepted although hosts have keys");
            return self.process_bytes(connection, bytes);
        };
        stream.feed(bytes);
        self.process_records(connection);
    }

    /// Decrypts what a connection with TLS has received, and processes it until the connection waits for room in the device.
    pub(super) fn process_records(&mut self, connection: &mut NvmeTcpConnection) {
        let mut room = std::mem::take(&mut self.shared.plaintext);
        while !connection.receipts.is_stalled()
            && let Some(stream) = &mut connection.secure
        {
            match stream.open(&mut room) {
                Ok(0) => break,
                Ok(count) => self.process_bytes(connection, room.get(..count).unwrap_or(&[])),
                Err(error) => {
                    let identity = stream.identity();
                    tracing::info!(connection = connection.id.0, identity, %error, "NVMe/TCP: a TLS connection failed");
                    connection.life = NvmeTcpConnectionLife::Closing(self.shared.now.after(CLOSE_TIMEOUT));
                    break;
                }
            }
        }
        self.shared.plaintext = room;
    }

    /// Returns true if the names in a Connect are those of the connection's key. Without TLS every name is accepted.
    pub(super) fn may_connect(&self, connection: &NvmeTcpConnection, data: &[u8]) -> bool {
        let (ConnectionSecurity::Tls(keyring), Some(stream)) = (&self.shared.security, &connection.secure)
        else {
            return matches!(self.shared.security, ConnectionSecurity::Plain);
        };
        let names = stream.identity().and_then(|identity| keyring.as_ref()?.names.get(identity));
        let Some((names, Ok((data, _)))) = names.map(|names| (names, ConnectData::ref_from_prefix(data)))
        else {
            return false;
        };
        parse_name(&data.host_name) == Some(&names.host)
            && parse_name(&data.subsystem_name) == Some(&names.subsystem)
    }
}

/// Encrypts pending PDUs and writes them to the socket; returns the number of bytes written.
pub(super) fn flush(
    socket: BorrowedFd<'_>,
    stream: &mut SecureStream,
    pdus: &mut SendQueue<Vec<u8>>,
) -> (SendResult, usize) {
    let mut total = 0;
    loop {
        if stream.seal(pdus).is_err() {
            return (SendResult::Gone, total);
        }
        if stream.outgoing().is_empty() {
            return (SendResult::All, total);
        }
        match send(socket, stream.outgoing(), SendFlags::NOSIGNAL) {
            Ok(count) => {
                total += count;
                stream.sent(count);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return (SendResult::Blocked, total),
            Err(_) => return (SendResult::Gone, total),
        }
    }
}
