//! A RESP client, and a thread that runs a front end over the model.

use super::model::KvDeviceModel;
use headwater_frontend::core_device::CoreWork as _;
use headwater_frontend::resp::{RespConfig, RespFrontEnd};
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RespValue {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    NullArray,
    Array(Vec<RespValue>),
    Map(Vec<RespValue>),
    Set(Vec<RespValue>),
    Verbatim(Vec<u8>),
}

/// A connection that speaks RESP.
pub(crate) struct RespTestClient<T> {
    pub(crate) stream: BufReader<T>,
}

/// Encodes one command.
pub(crate) fn encode(arguments: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
    out
}

impl<T: Read + Write> RespTestClient<T> {
    pub(crate) fn new(stream: T) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    pub(crate) fn call(&mut self, arguments: &[&[u8]]) -> RespValue {
        self.send(&encode(arguments));
        self.receive()
    }

    /// Sends a command of words separated by blanks and returns the reply.
    pub(crate) fn call_line(&mut self, line: &str) -> RespValue {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.call(&words)
    }

    pub(crate) fn receive(&mut self) -> RespValue {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).unwrap();
        assert!(line.ends_with(b"\r\n"), "the connection ended inside a reply");
        let text = String::from_utf8_lossy(&line[1..line.len() - 2]).into_owned();
        let number = || text.parse::<i64>().unwrap();
        match line[0] {
            b'+' => RespValue::Simple(text),
            b'-' => RespValue::Error(text),
            b':' => RespValue::Integer(number()),
            b'_' => RespValue::Null,
            b'$' if number() < 0 => RespValue::Null,
            b'*' if number() < 0 => RespValue::NullArray,
            b'$' => RespValue::Bulk(self.bytes(number())),
            b'=' => RespValue::Verbatim(self.bytes(number())),
            b'*' => RespValue::Array((0..number()).map(|_| self.receive()).collect()),
            b'~' => RespValue::Set((0..number()).map(|_| self.receive()).collect()),
            b'%' => RespValue::Map((0..number() * 2).map(|_| self.receive()).collect()),
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

/// A thread that runs a front end over a model.
pub(crate) struct TestNode {
    pub(crate) address: SocketAddr,
    /// Milliseconds by which the node's wall clock is ahead.
    pub(crate) wall_offset_ms: Arc<AtomicU64>,
    pub(crate) drain: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TestNode {
    pub(crate) fn start(seed: u64, room: usize) -> Self {
        Self::start_with(
            RespConfig { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], seed, ..RespConfig::default() },
            KvDeviceModel::new(seed, room),
        )
    }

    pub(crate) fn start_with(config: RespConfig, mut model: KvDeviceModel) -> Self {
        let mut front_end = RespFrontEnd::bind(config).unwrap();
        let address = front_end.local_addr().unwrap();
        let (stop, drain) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let wall_offset_ms = Arc::new(AtomicU64::new(0));
        let (their_stop, their_drain, their_ahead) = (stop.clone(), drain.clone(), wall_offset_ms.clone());
        let thread = std::thread::spawn(move || {
            let clock = Clock::start();
            let mut draining = false;
            while !their_stop.load(Ordering::Relaxed) && !front_end.is_drained() {
                if their_drain.load(Ordering::Relaxed) && !draining {
                    front_end.begin_drain();
                    draining = true;
                }
                let wall = UnixMillis(clock.wall().0 + their_ahead.load(Ordering::Relaxed));
                let moved = front_end.poll(&mut model, clock.now(), wall);
                // The device has work of its own: the removal of expired keys.
                if !(model.poll(clock.now(), wall) | moved) {
                    Clock::sleep(Nanos::from_micros(20));
                }
            }
        });
        Self { address, wall_offset_ms, drain, stop, thread: Some(thread) }
    }

    pub(crate) fn connect(&self) -> RespTestClient<TcpStream> {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        RespTestClient::new(stream)
    }

    /// Waits until the thread ends by itself.
    pub(crate) fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the node panicked");
        }
    }
}
