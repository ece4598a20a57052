//! A small blocking RESP2 client for the command line: `kv` and `bench` against a live node.
//!
//! In: commands as byte strings, pushed and then sent together. Out: one [`Reply`] a command, in order. Every wait has a
//! time limit. Invariant: replies are read in the order of the commands; after an error the connection is not used again.

pub mod reply;

pub use reply::Reply;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

const READ_BYTES: usize = 64 * 1024;

/// Where a node listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Host and port.
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
}

impl std::str::FromStr for Endpoint {
    type Err = std::convert::Infallible;

    /// `unix:PATH` or anything with a slash is a Unix socket, the rest HOST:PORT.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.strip_prefix("unix:") {
            Some(path) => Self::Unix(PathBuf::from(path)),
            None if text.contains('/') => Self::Unix(PathBuf::from(text)),
            None => Self::Tcp(text.to_owned()),
        })
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why a node could not be asked or did not answer well.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address means nothing.
    #[error("{endpoint}: no such address: {source}; write HOST:PORT or unix:PATH")]
    Address {
        /// What was given.
        endpoint: Endpoint,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Nobody answers there.
    #[error(
        "{endpoint}: no node answers here ({source}); start one with `headwater serve`, or name it with --resp"
    )]
    Connect {
        /// The node.
        endpoint: Endpoint,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The connection broke.
    #[error("{endpoint}: the connection broke ({source}); what was not acknowledged may be missing")]
    Broken {
        /// The node.
        endpoint: Endpoint,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No answer within the time limit.
    #[error(
        "{endpoint}: no answer within {limit:?}; the node may be overloaded or stopped: see its log, or raise --timeout"
    )]
    Timeout {
        /// The node.
        endpoint: Endpoint,
        /// The limit.
        limit: Duration,
    },
    /// The bytes are no RESP.
    #[error("{endpoint}: {source}")]
    NotResp {
        /// The node.
        endpoint: Endpoint,
        /// What was wrong.
        source: reply::NotAReply,
    },
    /// The node answered with an error.
    #[error("the node refused the command: {0}")]
    Refused(String),
    /// The node answered something this client does not expect.
    #[error("{endpoint}: unexpected answer to {command}: {reply:?}; is this a Headwater node?")]
    Unexpected {
        /// The node.
        endpoint: Endpoint,
        /// What was asked.
        command: &'static str,
        /// What came.
        reply: Reply,
    },
}

/// A connected socket.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// Unix.
    Unix(UnixStream),
}

impl Stream {
    /// Makes reads and writes return at once.
    ///
    /// # Errors
    /// The system's own.
    pub fn set_nonblocking(&self) -> std::io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(true),
            Self::Unix(stream) => stream.set_nonblocking(true),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
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

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// One connection.
#[derive(Debug)]
pub struct RespClient {
    endpoint: Endpoint,
    stream: Stream,
    limit: Duration,
    out: Vec<u8>,
    input: Input,
}

/// Bytes that arrived and the replies that can be cut from them.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
}

impl RespClient {
    /// Connects, with a limit on every later wait too.
    ///
    /// # Errors
    /// [`ClientError::Connect`] when nobody answers.
    pub fn connect(endpoint: &Endpoint, limit: Duration) -> Result<Self, ClientError> {
        let refused = |source| ClientError::Connect { endpoint: endpoint.clone(), source };
        let stream = match endpoint {
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(refused)?;
                stream.set_read_timeout(Some(limit)).map_err(refused)?;
                stream.set_write_timeout(Some(limit)).map_err(refused)?;
                Stream::Unix(stream)
            }
            Endpoint::Tcp(address) => {
                let stream = connect_tcp(endpoint, address, limit)?;
                stream.set_nodelay(true).map_err(refused)?;
                stream.set_read_timeout(Some(limit)).map_err(refused)?;
                stream.set_write_timeout(Some(limit)).map_err(refused)?;
                Stream::Tcp(stream)
            }
        };
        Ok(Self { endpoint: endpoint.clone(), stream, limit, out: Vec::new(), input: Input::default() })
    }

    /// The node at the other end.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The socket, for a caller that does its own waiting. What was pushed and not sent, and what was received and not
    /// taken, is gone: only for a connection between calls.
    #[must_use]
    pub fn into_stream(self) -> Stream {
        self.stream
    }

    /// Appends a command to what [`send`](Self::send) will send.
    pub fn push(&mut self, parts: &[&[u8]]) {
        encode(parts, &mut self.out);
    }

    /// Sends everything pushed.
    ///
    /// # Errors
    /// When the connection breaks or the peer takes nothing within the limit.
    pub fn send(&mut self) -> Result<(), ClientError> {
        let sent = self.stream.write_all(&self.out);
        self.out.clear();
        sent.map_err(|source| self.broken(source))
    }

    /// The next reply.
    ///
    /// # Errors
    /// When the connection breaks, nothing comes within the limit, or what comes is no RESP.
    pub fn receive(&mut self) -> Result<Reply, ClientError> {
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
    pub fn call(&mut self, parts: &[&[u8]]) -> Result<Reply, ClientError> {
        self.push(parts);
        self.send()?;
        match self.receive()? {
            Reply::Error(text) => Err(ClientError::Refused(text)),
            reply => Ok(reply),
        }
    }

    /// An answer that this client did not expect, as an error.
    #[must_use]
    pub fn unexpected(&self, command: &'static str, reply: Reply) -> ClientError {
        match reply {
            Reply::Error(text) => ClientError::Refused(text),
            reply => ClientError::Unexpected { endpoint: self.endpoint.clone(), command, reply },
        }
    }

    fn fill(&mut self) -> Result<(), ClientError> {
        match self.input.fill(&mut self.stream) {
            Ok(0) => Err(self.broken(std::io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
            Err(source) => Err(self.broken(source)),
        }
    }

    fn broken(&self, source: std::io::Error) -> ClientError {
        let endpoint = self.endpoint.clone();
        match source.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                ClientError::Timeout { endpoint, limit: self.limit }
            }
            _ => ClientError::Broken { endpoint, source },
        }
    }
}

impl Input {
    /// Reads once and keeps what came; 0 is the end of the stream.
    ///
    /// # Errors
    /// The stream's own.
    pub fn fill(&mut self, stream: &mut impl Read) -> std::io::Result<usize> {
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        } else if self.start > READ_BYTES {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        let old = self.bytes.len();
        // Large values arrive in large reads: as much again as is waiting already.
        let room = READ_BYTES.max(old - self.start).min(4 << 20);
        self.bytes.resize(old + room, 0);
        let read = stream.read(self.bytes.get_mut(old..).unwrap_or_default());
        self.bytes.truncate(old + read.as_ref().copied().unwrap_or(0));
        read
    }

    /// Cuts off the next reply if it is all there.
    ///
    /// # Errors
    /// When the bytes are no RESP2.
    pub fn next_reply(&mut self) -> Result<Option<Reply>, reply::NotAReply> {
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

fn connect_tcp(endpoint: &Endpoint, address: &str, limit: Duration) -> Result<TcpStream, ClientError> {
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
    fn endpoints_are_told_apart() {
        assert_eq!("127.0.0.1:7".parse(), Ok(Endpoint::Tcp("127.0.0.1:7".into())));
        assert_eq!("unix:s".parse(), Ok(Endpoint::Unix("s".into())));
        assert_eq!("/run/s".parse(), Ok(Endpoint::Unix("/run/s".into())));
    }

    #[test]
    fn pipelined_replies_come_in_order_across_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::Tcp(listener.local_addr().unwrap().to_string());
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
        assert_eq!(client.receive().unwrap(), Reply::Simple("PONG".into()));
        assert_eq!(client.receive().unwrap(), Reply::Bulk(b"hello".to_vec()));
        assert_eq!(server.join().unwrap(), b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n");
        assert!(matches!(client.receive(), Err(ClientError::Broken { .. })), "the server is gone");
    }

    #[test]
    fn nobody_there_says_what_to_do() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error =
            RespClient::connect(&Endpoint::Tcp(address.to_string()), Duration::from_secs(5)).unwrap_err();
        assert!(error.to_string().contains("headwater serve"), "{error}");
    }

    #[test]
    fn silence_ends_at_the_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::Tcp(listener.local_addr().unwrap().to_string());
        let mut client = RespClient::connect(&endpoint, Duration::from_millis(20)).unwrap();
        assert!(matches!(client.call(&[b"PING"]), Err(ClientError::Timeout { .. })));
    }
}
