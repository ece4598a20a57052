//! Tests of long values that the device receives from the sockets itself, on the device, run by the test turn by turn.

use crate::wire::encode;
use headwater_frontend::resp::{RespConfig, RespFrontEnd};
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

pub(crate) const WALL: UnixMillis = UnixMillis(1_000_000);
pub(crate) const EXTENT: usize = 262_144;
const READ_BYTES: usize = 32_768;

/// A client: what it still sends, what it received, and what it expects.
pub(crate) struct SendingClient {
    stream: TcpStream,
    pub(crate) unsent: VecDeque<u8>,
    pub(crate) received: Vec<u8>,
    expected: Vec<u8>,
}

/// A front end over a device, and its clients.
pub(crate) struct ReceiptBench {
    front_end: RespFrontEnd,
    pub(crate) device: SsdDevice<MemoryMedia>,
    pub(crate) clients: Vec<SendingClient>,
    pub(crate) wall: UnixMillis,
    turn: u64,
}

impl ReceiptBench {
    pub(crate) fn new(blocks: u32) -> Self {
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        let media = MemoryMedia::erased(FlashGeometry::with_blocks(blocks)).unwrap();
        let device = SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        let front_end = RespFrontEnd::bind(RespConfig { listen, ..RespConfig::default() }).unwrap();
        Self { front_end, device, clients: Vec::new(), wall: WALL, turn: 0 }
    }

    pub(crate) fn connect(&mut self) -> usize {
        let stream = TcpStream::connect(self.front_end.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        // The kernel would keep the last bytes of a command until the ones in front are acknowledged.
        stream.set_nodelay(true).unwrap();
        let (unsent, received, expected) = (VecDeque::new(), Vec::new(), Vec::new());
        self.clients.push(SendingClient { stream, unsent, received, expected });
        self.clients.len() - 1
    }

    fn ask(&mut self, client: usize, arguments: &[&[u8]], reply: &[u8]) {
        self.clients[client].unsent.extend(encode(arguments));
        self.clients[client].expected.extend(reply);
    }

    pub(crate) fn turn(&mut self) {
        self.turn += 3_000;
        self.front_end.poll(&mut self.device, Nanos(self.turn), self.wall);
        self.device.poll(Nanos(self.turn), self.wall);
    }

    /// Sends a part of what a client has to send, at most `most` bytes, and receives what is there.
    pub(crate) fn exchange(&mut self, client: usize, most: usize) {
        let SendingClient { stream, unsent, received, .. } = &mut self.clients[client];
        let part: Vec<u8> = unsent.iter().take(most).copied().collect();
        if !part.is_empty() {
            match stream.write(&part) {
                Ok(sent) => drop(unsent.drain(..sent)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        let before = received.len();
        received.resize(before + READ_BYTES, 0);
        let read = stream.read(&mut received[before..]);
        received.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }

    /// Runs until every client received what it expects.
    fn finish(&mut self, random: &mut fastrand::Rng) {
        for _ in 0..30_000 {
            let is_done = |client: &SendingClient| {
                client.unsent.is_empty() && client.received.len() >= client.expected.len()
            };
            if self.clients.iter().all(is_done) {
                break;
            }
            let client = random.usize(..self.clients.len());
            let most = [1, 40, 5_000, 70_000, 900_000][random.usize(..5)];
            self.exchange(client, random.usize(1..=most));
            (0..random.usize(1..4)).for_each(|_| self.turn());
        }
        for (at, client) in self.clients.iter_mut().enumerate() {
            assert!(client.received == client.expected, "client {at}: {}", difference(client));
            client.received.clear();
            client.expected.clear();
        }
    }
}

fn difference(client: &SendingClient) -> String {
    let (received, expected) = (&client.received, &client.expected);
    let at = received.iter().zip(expected).take_while(|(a, b)| a == b).count();
    let text = |bytes: &[u8]| {
        String::from_utf8_lossy(&bytes[at.min(bytes.len())..(at + 60).min(bytes.len())]).into_owned()
    };
    format!(
        "{} of {} bytes, from {at} on {:?} instead of {:?}",
        received.len(),
        expected.len(),
        text(received),
        text(expected)
    )
}

pub(crate) fn bulk(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

fn value(random: &mut fastrand::Rng) -> Vec<u8> {
    let around = [10, 100_000, EXTENT - 2, EXTENT, 2 * EXTENT - 1, 3 * EXTENT, 900_000][random.usize(..7)];
    let mut value = vec![0; around + random.usize(..4)];
    random.fill(&mut value);
    value
}

/// Runs a command of one client, and returns the value of its key behind it.
fn run_one(
    bench: &mut ReceiptBench,
    client: usize,
    (key, old): (&[u8], Option<Vec<u8>>),
    random: &mut fastrand::Rng,
) -> Option<Vec<u8>> {
    let new = value(random);
    let (nil, found) = (b"$-1\r\n".to_vec(), old.as_deref().map(bulk));
    match random.u8(..16) {
        0..=2 => bench.ask(client, &[b"SET", key, &new], b"+OK\r\n"),
        3 => bench.ask(client, &[b"setex", key, b"1000", &new], b"+OK\r\n"),
        4 => bench.ask(client, &[b"PSETEX", key, b"1000000", &new], b"+OK\r\n"),
        5 => bench.ask(client, &[b"SET", key, &new, b"EX", b"1000"], b"+OK\r\n"),
        6 => bench.ask(client, &[b"SET", key, &new, b"GET"], &found.unwrap_or(nil)),
        8 => bench.ask(client, &[b"GETSET", key, &new], &found.unwrap_or(nil)),
        9 => bench.ask(client, &[b"SET", key, &new, b"KEEPTTL"], b"+OK\r\n"),
        10 if old.is_none() => bench.ask(client, &[b"SETNX", key, &new], b":1\r\n"),
        10 => {
            bench.ask(client, &[b"SETNX", key, &new], b":0\r\n");
            return old;
        }
        11 if old.is_none() => bench.ask(client, &[b"SET", key, &new, b"NX"], b"+OK\r\n"),
        11 => {
            bench.ask(client, &[b"SET", key, &new, b"PX", b"1000000", b"NX"], &nil);
            return old;
        }
        12 if old.is_some() => bench.ask(client, &[b"SET", key, &new, b"XX", b"EX", b"1000"], b"+OK\r\n"),
        12 => {
            bench.ask(client, &[b"SET", key, &new, b"XX"], &nil);
            return old;
        }
        13 if old.is_none() => bench.ask(client, &[b"SET", key, &new, b"NX", b"GET"], &nil),
        13 => {
            bench.ask(client, &[b"SET", key, &new, b"NX", b"GET"], &found.unwrap_or(nil));
            return old;
        }
        14 => {
            bench.ask(client, &[b"SET", key, &new, b"NX", b"XX"], b"-ERR syntax error\r\n");
            return old;
        }
        7 => {
            bench.ask(client, &[b"MULTI"], b"+OK\r\n");
            bench.ask(client, &[b"SET", key, &new], b"+QUEUED\r\n");
            bench.ask(client, &[b"EXEC"], b"*1\r\n+OK\r\n");
        }
        _ => {
            let refusal = b"-ERR invalid expire time in 'setex' command\r\n";
            bench.ask(client, &[b"SETEX", key, b"0", &new], refusal);
            return old;
        }
    }
    Some(new)
}

#[test]
fn commands_with_long_values_have_the_effect_of_their_bytes_however_they_arrive() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bench = ReceiptBench::new(256);
    for _ in 0..3 {
        bench.connect();
    }
    let mut values: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for _ in 0..8 {
        for _ in 0..12 {
            let client = random.usize(..3);
            let key = format!("client {client} key {}", random.u8(..3));
            let old = values.remove(&key);
            if let Some(new) = run_one(&mut bench, client, (key.as_bytes(), old), &mut random) {
                values.insert(key.clone(), new);
            }
            if random.bool() {
                let found = values.get(&key).map_or_else(|| b"$-1\r\n".to_vec(), |value| bulk(value));
                bench.ask(client, &[b"GET", key.as_bytes()], &found);
            }
        }
        bench.finish(&mut random);
    }
    assert!(bench.device.stats().received_bytes > 20 * EXTENT as u64, "the device received too little");
}

#[test]
fn clients_that_leave_in_the_middle_of_a_value_leave_nothing_behind() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut bench = ReceiptBench::new(64);
    bench.connect();
    let long = vec![7; 3 * EXTENT];
    bench.ask(0, &[b"SET", b"stays", b"here"], b"+OK\r\n");
    bench.finish(&mut random);
    let free = bench.device.stats().free_blocks;
    for _ in 0..60 {
        let leaver = bench.connect();
        bench.ask(leaver, &[b"SET", b"stays", &long], b"");
        let before = bench.device.stats().received_bytes;
        while bench.device.stats().received_bytes < before + 2 * EXTENT as u64 {
            bench.exchange(leaver, 100_000);
            bench.turn();
        }
        bench.clients.pop();
        (0..20).for_each(|_| bench.turn());
    }
    bench.ask(0, &[b"GET", b"stays"], b"$4\r\nhere\r\n");
    bench.finish(&mut random);
    (0..200).for_each(|_| bench.turn());
    let left = bench.device.stats().free_blocks;
    assert!(left + 6 >= free, "{free} blocks were free, and {left} are");
}

#[test]
fn a_slow_client_holds_no_key_and_delays_no_other_client() {
    let mut random = fastrand::Rng::with_seed(8);
    let mut bench = ReceiptBench::new(128);
    let (slow, quick) = (bench.connect(), bench.connect());
    let long = vec![9; 2 * EXTENT + 10];
    bench.ask(slow, &[b"SET", b"k", &long], b"+OK\r\n");
    while bench.clients[slow].unsent.len() > 5 {
        bench.exchange(slow, 100_000.min(bench.clients[slow].unsent.len() - 5));
        bench.turn();
    }
    bench.ask(quick, &[b"SET", b"k", b"short"], b"+OK\r\n");
    bench.ask(quick, &[b"APPEND", b"k", b"er"], b":7\r\n");
    bench.ask(quick, &[b"GET", b"k"], b"$7\r\nshorter\r\n");
    while bench.clients[quick].received.len() < bench.clients[quick].expected.len() {
        bench.exchange(quick, 1_000);
        bench.turn();
    }
    bench.finish(&mut random);
    bench.ask(quick, &[b"GET", b"k"], &bulk(&long));
    bench.finish(&mut random);
}

#[test]
fn a_client_that_ends_its_side_behind_a_value_gets_its_reply() {
    let mut bench = ReceiptBench::new(64);
    for (round, fill) in (0..20_usize).zip(1_u8..) {
        let client = bench.connect();
        let value = vec![fill; 2 * EXTENT + round];
        bench.ask(client, &[b"SET", b"k", &value], b"+OK\r\n");
        // In some rounds the whole value and the end arrive at once, if the kernel has room for them.
        let alone = if round % 2 == 0 { 0 } else { 100 };
        for exchange in 0.. {
            bench.exchange(client, usize::MAX);
            if bench.clients[client].unsent.is_empty() {
                break;
            }
            if exchange >= alone {
                bench.turn();
            }
        }
        bench.clients[client].stream.shutdown(Shutdown::Write).unwrap();
        while bench.clients[client].received.len() < 5 {
            bench.exchange(client, 0);
            bench.turn();
        }
        assert_eq!(bench.clients.pop().unwrap().received, b"+OK\r\n", "round {round}");
    }
}

#[test]
fn the_longest_value_is_received_and_read() {
    const LONGEST: usize = 256 << 20;
    // Receipts hold a quarter of the free capacity.
    let mut bench = ReceiptBench::new(4_400);
    let mut random = fastrand::Rng::with_seed(4);
    let client = bench.connect();
    let mut value = vec![0; LONGEST];
    random.fill(&mut value);
    bench.ask(client, &[b"SET", b"k", &value], b"+OK\r\n");
    bench.finish(&mut random);
    let received = bench.device.stats().received_bytes;
    assert!(received > (LONGEST - EXTENT) as u64, "{received} bytes were received into blocks");
    bench.ask(client, &[b"STRLEN", b"k"], format!(":{LONGEST}\r\n").as_bytes());
    bench.ask(client, &[b"GET", b"k"], &bulk(&value));
    bench.finish(&mut random);
}
