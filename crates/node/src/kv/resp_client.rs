//! A blocking RESP2 client for the `kv` and `bench` commands on a live node.
//!
//! Input: commands as byte strings, collected and then sent together. Output: one [`DecodedReply`] a command, in order. Every
//! wait has a time limit. Invariant: replies are read in the order of the commands; after an error the connection is
//! not used again.

pub mod reply;

pub use reply::DecodedReply;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

const READ_BYTES: usize = 64 * 1024;

/// The address of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEndpoint {
    /// Host and port.
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
}

impl std::str::FromStr for NodeEndpoint {
    type Err = std::convert::Infallible;

    /// Parses an address: `unix:PATH` or a text with a slash is a Unix socket, every other text HOST:PORT.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.strip_prefix("unix:") {
            Some(path) => Self::Unix(PathBuf::from(path)),
            None if text.contains('/') => Self::Unix(PathBuf::from(text)),
            None => Self::Tcp(text.to_owned()),
        })
    }
}

impl std::fmt::Display for NodeEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The error of a command to a node.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address cannot be resolved.
    #[error("{endpoint}: no such address: {source}; write HOST:PORT or unix:PATH")]
    Address {
        /// The given address.
        endpoint: NodeEndpoint,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No process listens at the address.
    #[error(
        "{endpoint}: no node listens here ({source}); start one with `headwater serve`, or name it with --resp"
    )]
    Connect {
        /// The node.
        endpoint: NodeEndpoint,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The connection failed.
    #[error("{endpoint}: the connection failed ({source}); writes without an acknowledgement may be lost")]
    ConnectionFailed {
        /// The node.
        endpoint: NodeEndpoint,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No reply arrived within the time limit.
    #[error(
        "{endpoint}: no reply within {limit:?}; the node may be overloaded or stopped: see its log, or raise --timeout"
    )]
    Timeout {
        /// The node.
        endpoint: NodeEndpoint,
        /// The limit.
        limit: Duration,
    },
    /// The received bytes are not RESP.
    #[error("{endpoint}: {source}")]
    NotResp {
        /// The node.
        endpoint: NodeEndpoint,
        /// The fault.
        source: reply::ReplyFormatError,
    },
    /// The node replied with an error.
    #[error("the node refused the command: {0}{hint}", hint = password_hint(.0))]
    Refused(String),
    /// The reply has an unexpected type.
    #[error("{endpoint}: unexpected reply to {command}: {reply:?}; is this a Headwater node?")]
    Unexpected {
        /// The node.
        endpoint: NodeEndpoint,
        /// The command.
        command: &'static str,
        /// The reply.
        reply: DecodedReply,
    },
}

/// Returns what to do about a refusal, if it is for want of a password.
fn password_hint(refusal: &str) -> &'static str {
    if refusal.starts_with("NOAUTH") { "; name the file of its password with --resp-password" } else { "" }
}

/// A connected socket.
#[derive(Debug)]
pub enum ClientStream {
    /// TCP.
    Tcp(TcpStream),
    /// Unix.
    Unix(UnixStream),
}

impl ClientStream {
    /// Makes reads and writes nonblocking.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn set_nonblocking(&self) -> std::io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(true),
            Self::Unix(stream) => stream.set_nonblocking(true),
        }
    }
}

impl Read for ClientStream {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for ClientStream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl AsFd for ClientStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// A client with one connection.
#[derive(Debug)]
pub struct RespClient {
    endpoint: NodeEndpoint,
    stream: ClientStream,
    limit: Duration,
    out: Vec<u8>,
    input: ReplyBuffer,
}

/// A buffer of received bytes from which replies are decoded.
#[derive(Debug, Default)]
pub struct ReplyBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl RespClient {
    /// Connects; `limit` also applies to every later wait.
    ///
    /// # Errors
    /// [`ClientError::Connect`] when no process listens.
    pub fn connect(endpoint: &NodeEndpoint, limit: Duration) -> Result<Self, ClientError> {
        let refused = |source| ClientError::Connect { endpoint: endpoint.clone(), source };
        let stream = match endpoint {
            NodeEndpoint::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(refused)?;
                stream.set_read_timeout(Some(limit)).map_err(refused)?;
                stream.set_write_timeout(Some(limit)).map_err(refused)?;
                ClientStream::Unix(stream)
            }
            NodeEndpoint::Tcp(address) => {
                let stream = connect_tcp(endpoint, address, limit)?;
                stream.set_nodelay(true).map_err(refused)?;
                stream.set_read_timeout(Some(limit)).map_err(refused)?;
                stream.set_write_timeout(Some(limit)).map_err(refused)?;
                ClientStream::Tcp(stream)
            }
        };
        Ok(Self { endpoint: endpoint.clone(), stream, limit, out: Vec::new(), input: ReplyBuffer::default() })
    }

    /// Returns the address of the node.
    #[must_use]
    pub fn endpoint(&self) -> &NodeEndpoint {
        &self.endpoint
    }

    /// Returns the socket, for a caller that does its own waiting. Only between calls: commands not yet sent and
    /// replies not yet returned are lost.
    #[must_use]
    pub fn into_stream(self) -> ClientStream {
        self.stream
    }

    /// Appends a command to what [`send`](Self::send) will send.
    pub fn push(&mut self, parts: &[&[u8]]) {
        encode(parts, &mut self.out);
    }

    /// Sends all pushed commands.
    ///
    /// # Errors
    /// When the connection fails or the peer reads nothing within the limit.
    pub fn send(&mut self) -> Result<(), ClientError> {
        let sent = self.stream.write_all(&self.out);
        self.out.clear();
        sent.map_err(|source| self.connection_error(source))
    }

    /// Receives the next reply.
    ///
    /// # Errors
    /// When the connection fails, nothing arrives within the limit, or the received bytes are not RESP.
    pub fn receive(&mut self) -> Result<DecodedReply, ClientError> {
        loop {
            let next = self.input.next_reply();
            match next.map_err(|source| ClientError::NotResp { endpoint: self.endpoint.clone(), source })? {
                Some(reply) => return Ok(reply),
                None => self.fill()?,
            }
        }
    }

    /// Sends one command and waits for its reply; an error reply is an error.
    ///
    /// # Errors
    /// As [`send`](Self::send) and [`receive`](Self::receive), and [`ClientError::Refused`].
    pub fn call(&mut self, parts: &[&[u8]]) -> Result<DecodedReply, ClientError> {
        self.push(parts);
        self.send()?;
        match self.receive()? {
            DecodedReply::Error(text) => Err(ClientError::Refused(text)),
            reply => Ok(reply),
        }
    }

    /// Returns the error for an unexpected reply.
    #[must_use]
    pub fn unexpected(&self, command: &'static str, reply: DecodedReply) -> ClientError {
        match reply {
            DecodedReply::Error(text) => ClientError::Refused(text),
            reply => ClientError::Unexpected { endpoint: self.endpoint.clone(), command, reply },
        }
    }

    fn fill(&mut self) -> Result<(), ClientError> {
        match self.input.fill(&mut self.stream) {
            Ok(0) => Err(self.connection_error(std::io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
            Err(source) => Err(self.connection_error(source)),
        }
    }

    fn connection_error(&self, source: std::io::Error) -> ClientError {
        let endpoint = self.endpoint.clone();
        match source.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                ClientError::Timeout { endpoint, limit: self.limit }
            }
            _ => ClientError::ConnectionFailed { endpoint, source },
        }
    }
}

impl ReplyBuffer {
    /// Reads once and keeps the bytes. Returns their number; 0 is the end of the stream.
    ///
    /// # Errors
    /// When the read fails.
    pub fn fill(&mut self, stream: &mut impl Read) -> std::io::Result<usize> {
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        } else if self.start > READ_BYTES {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        let old = self.bytes.len();
        // The room doubles with the bytes not yet decoded, so that large values arrive in large reads.
        let room = READ_BYTES.max(old - self.start).min(4 << 20);
        self.bytes.resize(old + room, 0);
        let read = stream.read(self.bytes.get_mut(old..).unwrap_or_default());
        self.bytes.truncate(old + read.as_ref().copied().unwrap_or(0));
        read
    }

    /// Returns the next reply, or `None` if it is incomplete.
    ///
    /// # Errors
    /// When the bytes are not RESP2.
    pub fn next_reply(&mut self) -> Result<Option<DecodedReply>, reply::ReplyFormatError> {
        let waiting = self.bytes.get(self.start..).unwrap_or_default();
        Ok(reply::decode(waiting)?.map(|(reply, used)| {
            self.start += used;
            reply
        }))
    }
}

/// Appends one command, as an array of bulk strings.
pub fn encode(parts: &[&[u8]], out: &mut Vec<u8>) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "*{}\r\n", parts.len());
    for part in parts {
        let _ = write!(out, "${}\r\n", part.len());
        out.extend_from_slice(part);
        out.extend_from_slice(b"\r\n");
    }
}

fn connect_tcp(endpoint: &NodeEndpoint, address: &str, limit: Duration) -> Result<TcpStream, ClientError> {
    let addresses: Vec<SocketAddr> = address
        .to_socket_addrs()
        .map_err(|source| ClientError::Address { endpoint: endpoint.clone(), source })?
        .collect();
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => return Ok(stream),
            Err(source) => last = source,
        }
    }
    Err(ClientError::Connect { endpoint: endpoint.clone(), source: last })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn tcp_and_unix_addresses_are_distinguished() {
        assert_eq!("127.0.0.1:7".parse(), Ok(NodeEndpoint::Tcp("127.0.0.1:7".into())));
        assert_eq!("unix:s".parse(), Ok(NodeEndpoint::Unix("s".into())));
        assert_eq!("/run/s".parse(), Ok(NodeEndpoint::Unix("/run/s".into())));
    }

    #[test]
    fn pipelined_replies_are_received_in_order_across_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = NodeEndpoint::Tcp(listener.local_addr().unwrap().to_string());
        let server = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            let mut request = vec![0; 28];
            peer.read_exact(&mut request).unwrap();
            for piece in [&b"+PO"[..], b"NG\r\n$5\r\nhel", b"lo\r\n"] {
                peer.write_all(piece).unwrap();
            }
            request
        });
        let mut client = RespClient::connect(&endpoint, Duration::from_secs(20)).unwrap();
        client.push(&[b"PING"]);
        client.push(&[b"PING"]);
        client.send().unwrap();
        assert_eq!(client.receive().unwrap(), DecodedReply::Simple("PONG".into()));
        assert_eq!(client.receive().unwrap(), DecodedReply::Bulk(b"hello".to_vec()));
        assert_eq!(server.join().unwrap(), b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n");
        assert!(
            matches!(client.receive(), Err(ClientError::ConnectionFailed { .. })),
            "the server has closed the connection"
        );
    }

    #[test]
    fn error_without_a_node_names_the_remedy() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error =
            RespClient::connect(&NodeEndpoint::Tcp(address.to_string()), Duration::from_secs(5)).unwrap_err();
        assert!(error.to_string().contains("headwater serve"), "{error}");
    }

    #[test]
    fn wait_for_a_reply_ends_at_the_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = NodeEndpoint::Tcp(listener.local_addr().unwrap().to_string());
        let mut client = RespClient::connect(&endpoint, Duration::from_millis(20)).unwrap();
        assert!(matches!(client.call(&[b"PING"]), Err(ClientError::Timeout { .. })));
    }
}
