//! A server that counts RESP commands and sends a fixed reply to each. It stores nothing.
//!
//! Input: RESP commands as redis-benchmark sends them.
//! Output: `+OK` or one fixed bulk string for each, in order.
//! Its cost is the cost of the sockets; no server that parses, looks up and stores can cost less. It is the floor of
//! every RESP figure.

use crate::cpu_account::CpuAccount;
use crate::experiment::LabError;
use rustix::event::epoll;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

const LISTENER: u64 = 0;
const READ_BYTES: usize = 64 << 10;
/// Length of a reply from which it is sent by itself, not joined with further replies.
const COPIED_REPLY_BYTES: usize = 64 << 10;
/// Interval in milliseconds at which the thread checks if it must stop.
const STOP_CHECK_MS: i64 = 20;

/// A running canned-reply server; it stops when this is dropped.
#[derive(Debug)]
pub(crate) struct CannedServer {
    address: SocketAddr,
    thread_id: u32,
    shared: Arc<CannedState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct CannedState {
    stop: AtomicBool,
    value_bytes: AtomicUsize,
}

impl CannedServer {
    /// Starts it on a free port of the loopback.
    pub(crate) fn start() -> Result<Self, LabError> {
        let cannot = |source| LabError::Io { what: "start the canned-reply server", source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let shared = Arc::new(CannedState { stop: AtomicBool::new(false), value_bytes: AtomicUsize::new(0) });
        let (id_sender, id_receiver) = std::sync::mpsc::channel();
        let thread_shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("canned".to_owned())
            .spawn(move || {
                // `start` waits for the id; if it is gone, the server has no client.
                let id = rustix::thread::gettid().as_raw_nonzero().get();
                if id_sender.send(id).is_ok() {
                    // An error of epoll ends the thread; redis-benchmark then reports the closed connection.
                    let _ = serve(&listener, &thread_shared);
                }
            })
            .map_err(cannot)?;
        let id = id_receiver.recv().map_err(|error| cannot(io::Error::other(error)))?;
        Ok(Self { address, thread_id: u32::try_from(id).unwrap_or_default(), shared, thread: Some(thread) })
    }

    /// Returns the address on which it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the account of the CPU time that it uses.
    pub(crate) fn account(&self) -> CpuAccount {
        CpuAccount::Thread(self.thread_id)
    }

    /// Sets the number of bytes in the reply to every GET from now on.
    pub(crate) fn set_value_bytes(&self, value_bytes: usize) {
        self.shared.value_bytes.store(value_bytes, Ordering::Relaxed);
    }
}

impl Drop for CannedServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The runtime has already printed a panic of the thread.
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, shared: &CannedState) -> io::Result<()> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let readable = epoll::EventFlags::IN;
    epoll::add(&poll, listener, epoll::EventData::new_u64(LISTENER), readable)?;
    let mut connections: BTreeMap<u64, CannedConnection> = BTreeMap::new();
    let mut next = LISTENER + 1;
    let mut events = Vec::with_capacity(256);
    let mut input = vec![0; READ_BYTES];
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: STOP_CHECK_MS * 1_000_000 };
    while !shared.stop.load(Ordering::Relaxed) {
        events.clear();
        match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let id = event.data.u64();
            if id == LISTENER {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                epoll::add(&poll, &stream, epoll::EventData::new_u64(next), readable)?;
                connections.insert(next, CannedConnection::new(stream));
                next += 1;
            } else if let Some(connection) = connections.get_mut(&id) {
                let value_bytes = shared.value_bytes.load(Ordering::Relaxed);
                if connection.serve_once(&mut input, value_bytes).is_err() {
                    connections.remove(&id);
                }
            }
        }
    }
    Ok(())
}

#[derive(Debug)]
struct CannedConnection {
    stream: TcpStream,
    counter: CommandCounter,
    replies: Vec<ReplyKind>,
    output: Vec<u8>,
    /// The reply to a GET of [`Self::value_bytes`].
    bulk: Vec<u8>,
    value_bytes: usize,
}

impl CannedConnection {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            counter: CommandCounter::default(),
            replies: Vec::new(),
            output: Vec::new(),
            bulk: bulk(0),
            value_bytes: 0,
        }
    }

    /// Reads once and replies to every complete command. The socket blocks: redis-benchmark always reads.
    fn serve_once(&mut self, input: &mut [u8], value_bytes: usize) -> io::Result<()> {
        let read = self.stream.read(input)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.value_bytes != value_bytes {
            self.bulk = bulk(value_bytes);
            self.value_bytes = value_bytes;
        }
        self.output.clear();
        self.replies.clear();
        let replies = &mut self.replies;
        self.counter.feed(&input[..read], |kind| replies.push(kind))?;
        for kind in &self.replies {
            match kind {
                // A copy of a large reply would be more than the floor.
                ReplyKind::Get if self.bulk.len() > COPIED_REPLY_BYTES => {
                    self.stream.write_all(&self.output)?;
                    self.output.clear();
                    self.stream.write_all(&self.bulk)?;
                }
                ReplyKind::Get => self.output.extend_from_slice(&self.bulk),
                ReplyKind::Other => self.output.extend_from_slice(b"+OK\r\n"),
            }
        }
        self.stream.write_all(&self.output)
    }
}

fn bulk(value_bytes: usize) -> Vec<u8> {
    let mut bulk = format!("${value_bytes}\r\n").into_bytes();
    bulk.resize(bulk.len() + value_bytes, b'x');
    bulk.extend_from_slice(b"\r\n");
    bulk
}

/// The reply that a command requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyKind {
    Get,
    Other,
}

/// A parser that finds the ends of commands and reads only the first letter of their names.
#[derive(Debug, Default)]
struct CommandCounter {
    /// Bytes of the current header line.
    header: Vec<u8>,
    /// Outstanding bytes of the current bulk string, including its line end.
    skip: usize,
    /// Outstanding bulk strings of the current command, including the one being skipped.
    bulks: usize,
    /// The kind of the current command, once its name has begun.
    kind: Option<ReplyKind>,
}

impl CommandCounter {
    /// Consumes bytes; calls `command` once for each command that they complete.
    fn feed(&mut self, mut bytes: &[u8], mut command: impl FnMut(ReplyKind)) -> io::Result<()> {
        while let Some(&byte) = bytes.first() {
            if self.skip > 0 {
                if self.kind.is_none() {
                    let reads = byte.eq_ignore_ascii_case(&b'g');
                    self.kind = Some(if reads { ReplyKind::Get } else { ReplyKind::Other });
                }
                let step = self.skip.min(bytes.len());
                self.skip -= step;
                bytes = &bytes[step..];
                if self.skip == 0 {
                    self.bulks -= 1;
                    if self.bulks == 0 {
                        command(self.kind.take().unwrap_or(ReplyKind::Other));
                    }
                }
                continue;
            }
            bytes = &bytes[1..];
            if byte == b'\n' {
                self.end_header()?;
                self.header.clear();
            } else if byte != b'\r' {
                self.header.push(byte);
                if self.header.len() > 20 {
                    return Err(io::Error::from(io::ErrorKind::InvalidData));
                }
            }
        }
        Ok(())
    }

    fn end_header(&mut self) -> io::Result<()> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let (mark, digits) = self.header.split_first().ok_or_else(invalid)?;
        let number: usize =
            str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or_else(invalid)?;
        match mark {
            b'*' if self.bulks == 0 && number > 0 => self.bulks = number,
            b'$' if self.bulks > 0 => self.skip = number.checked_add(2).ok_or_else(invalid)?,
            _ => return Err(invalid()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n*1\r\n\r\n";
    const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";

    #[test]
    fn commands_are_counted_for_every_split_of_the_stream() {
        let stream = [SET, GET, SET].concat();
        for cut in 0..stream.len() {
            let mut counter = CommandCounter::default();
            let mut seen = Vec::new();
            counter.feed(&stream[..cut], |kind| seen.push(kind)).unwrap();
            counter.feed(&stream[cut..], |kind| seen.push(kind)).unwrap();
            assert_eq!(seen, [ReplyKind::Other, ReplyKind::Get, ReplyKind::Other], "cut at {cut}");
        }
    }

    #[test]
    fn invalid_commands_end_the_connection() {
        for bytes in [&b"hello\r\n"[..], b"*0\r\n", b"$3\r\n", b"*x\r\n", b"*111111111111111111111"] {
            assert!(CommandCounter::default().feed(bytes, |_| {}).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn every_command_receives_its_canned_reply() {
        let canned = CannedServer::start().unwrap();
        canned.set_value_bytes(3);
        let mut client = TcpStream::connect(canned.address()).unwrap();
        client.write_all(&[SET, GET].concat()).unwrap();
        let mut reply = [0; 14];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+OK\r\n$3\r\nxxx\r\n");
        assert!(canned.account().used().is_some());
    }

    #[test]
    fn large_reply_keeps_its_place_among_small_replies() {
        let canned = CannedServer::start().unwrap();
        canned.set_value_bytes(COPIED_REPLY_BYTES);
        let mut client = TcpStream::connect(canned.address()).unwrap();
        client.write_all(&[SET, GET, SET].concat()).unwrap();
        let large = format!("${COPIED_REPLY_BYTES}\r\n{}\r\n", "x".repeat(COPIED_REPLY_BYTES));
        let expected = format!("+OK\r\n{large}+OK\r\n");
        let mut reply = vec![0; expected.len()];
        client.read_exact(&mut reply).unwrap();
        assert!(reply == expected.as_bytes());
    }
}
