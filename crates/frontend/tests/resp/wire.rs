//! The client's end: commands to bytes, bytes to values, and a node of face and model on a thread.

use super::model::Model;
use headwater_frontend::resp::{RespConfig, RespFace};
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Value {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Value>),
    Map(Vec<Value>),
    Set(Vec<Value>),
    Verbatim(Vec<u8>),
}

/// A connection that speaks RESP.
pub(crate) struct Wire<T> {
    pub(crate) stream: BufReader<T>,
}

/// One command in bytes.
pub(crate) fn encode(arguments: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
    out
}

impl<T: Read + Write> Wire<T> {
    pub(crate) fn new(stream: T) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    pub(crate) fn ask(&mut self, arguments: &[&[u8]]) -> Value {
        self.send(&encode(arguments));
        self.receive()
    }

    /// A command of words without blanks.
    pub(crate) fn say(&mut self, line: &str) -> Value {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask(&words)
    }

    pub(crate) fn receive(&mut self) -> Value {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).unwrap();
        assert!(line.ends_with(b"\r\n"), "the connection ended inside a reply");
        let text = String::from_utf8_lossy(&line[1..line.len() - 2]).into_owned();
        let number = || text.parse::<i64>().unwrap();
        match line[0] {
            b'+' => Value::Simple(text),
            b'-' => Value::Error(text),
            b':' => Value::Integer(number()),
            b'_' => Value::Null,
            b'$' if number() < 0 => Value::Null,
            b'*' if number() < 0 => Value::Null,
            b'$' => Value::Bulk(self.bytes(number())),
            b'=' => Value::Verbatim(self.bytes(number())),
            b'*' => Value::Array((0..number()).map(|_| self.receive()).collect()),
            b'~' => Value::Set((0..number()).map(|_| self.receive()).collect()),
            b'%' => Value::Map((0..number() * 2).map(|_| self.receive()).collect()),
            other => panic!("a reply of unknown kind {other}"),
        }
    }

    fn bytes(&mut self, length: i64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(length).unwrap() + 2];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes.truncate(bytes.len() - 2);
        bytes
    }
}

/// A face over a model, on a thread of its own.
pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    /// Milliseconds that the node's wall clock is ahead.
    pub(crate) ahead: Arc<AtomicU64>,
    pub(crate) drain: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    pub(crate) fn start(seed: u64, room: usize) -> Self {
        Self::start_with(
            RespConfig { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], seed, ..RespConfig::default() },
            Model::new(seed, room),
        )
    }

    pub(crate) fn start_with(config: RespConfig, mut model: Model) -> Self {
        let mut face = RespFace::bind(config).unwrap();
        let address = face.local_addr().unwrap();
        let (stop, drain) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let ahead = Arc::new(AtomicU64::new(0));
        let (their_stop, their_drain, their_ahead) = (stop.clone(), drain.clone(), ahead.clone());
        let thread = std::thread::spawn(move || {
            let clock = Clock::start();
            let mut draining = false;
            while !their_stop.load(Ordering::Relaxed) && !face.is_drained() {
                if their_drain.load(Ordering::Relaxed) && !draining {
                    face.begin_drain();
                    draining = true;
                }
                let wall = UnixMillis(clock.wall().0 + their_ahead.load(Ordering::Relaxed));
                if !face.poll(&mut model, clock.now(), wall) {
                    Clock::sleep(Nanos::from_micros(20));
                }
            }
        });
        Self { address, ahead, drain, stop, thread: Some(thread) }
    }

    pub(crate) fn connect(&self) -> Wire<TcpStream> {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        Wire::new(stream)
    }

    /// Waits for the node to end by itself.
    pub(crate) fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the node panicked");
        }
    }
}
