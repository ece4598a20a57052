//! Hosts that flood, stall, disappear or send malformed data: they harm only themselves.

use crate::host::TcpTestNode;
use crate::wire::{RawConnection, TcpHarness};
use headwater_frontend::nvme_tcp::limits::{CONNECT_TIMEOUT, CONNECTIONS_MAX, CONTROLLERS_MAX};
use headwater_host::clock::{Clock, Nanos};
use headwater_io::Command;
use headwater_nvme::tcp::DigestSettings;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// Builds an ICReq without digests.
fn initialize() -> Vec<u8> {
    let mut bytes = vec![0; 128];
    bytes[2] = 128;
    bytes[4] = 128;
    bytes
}

#[test]
fn a_flood_of_connections_is_limited_and_other_hosts_are_served() {
    let node = TcpTestNode::start();
    let mut client = node.client(DigestSettings::default());
    client.put(b"k", b"before the flood").unwrap();
    let ours = node.numbers().connections;
    let mut crowd = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        crowd.push(TcpStream::connect(node.address).unwrap());
    }
    node.until("the limit", |numbers| numbers.connections_refused >= ours);
    assert!(node.numbers().connections <= u64::try_from(CONNECTIONS_MAX).unwrap());
    client.put(b"k", b"during the flood").unwrap();
    assert_eq!(client.get(b"k").unwrap().unwrap(), b"during the flood");
    drop(crowd);
    node.until("the end of the flood", |numbers| numbers.connections <= ours + 1);
    let mut late = node.client(DigestSettings::default());
    assert_eq!(late.get(b"k").unwrap().unwrap(), b"during the flood");
}

#[test]
fn controllers_are_limited_and_released() {
    let node = TcpTestNode::start();
    let target = node.target(DigestSettings::default());
    let mut crowd = Vec::new();
    let refused = loop {
        match headwater_io::NvmeTcp::open(target.clone()) {
            Ok(backend) => crowd.push(backend),
            Err(error) => break error.to_string(),
        }
        assert!(crowd.len() <= CONTROLLERS_MAX);
    };
    assert!(refused.contains("code 81h"), "Connect Controller Busy, not: {refused}");
    assert_eq!(crowd.len(), CONTROLLERS_MAX);
    drop(crowd);
    node.until("the release of all controllers", |numbers| numbers.connections == 0);
    drop(node.client(DigestSettings::default()));
}

#[test]
fn malformed_data_closes_its_connection_with_a_termination_request() {
    let node = TcpTestNode::start();
    let mut client = node.client(DigestSettings::default());
    let mut seed = 7_u32;
    for round in 0..200_u32 {
        let mut stream = TcpStream::connect(node.address).unwrap();
        let mut bytes = if round % 2 == 0 { initialize() } else { Vec::new() };
        for _ in 0..300 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bytes.extend_from_slice(&seed.to_le_bytes()[2..]);
        }
        // The node may close the connection before it has received everything.
        let _ = stream.write_all(&bytes);
        let mut answer = Vec::new();
        stream.set_read_timeout(Some(Nanos::from_millis(5_000).to_duration())).unwrap();
        let _ = stream.read_to_end(&mut answer);
        let tail = answer.iter().rev().take(152).rev().copied().collect::<Vec<_>>();
        assert!(tail.contains(&3), "no termination request was received");
    }
    client.put(b"k", b"unharmed").unwrap();
    assert_eq!(client.get(b"k").unwrap().unwrap(), b"unharmed");
}

#[test]
fn connections_without_a_connect_are_closed_at_the_time_limit() {
    let node = TcpTestNode::start();
    let clock = Clock::start();
    let mut silent = TcpStream::connect(node.address).unwrap();
    let mut shy = TcpStream::connect(node.address).unwrap();
    shy.write_all(&initialize()).unwrap();
    let mut answer = [0; 128];
    shy.read_exact(&mut answer).unwrap();
    for stream in [&mut silent, &mut shy] {
        stream
            .set_read_timeout(Some(CONNECT_TIMEOUT.after(Nanos::from_millis(10_000)).to_duration()))
            .unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "closed without further data");
    }
    assert!(clock.now() >= CONNECT_TIMEOUT, "closed before the time limit");
    node.until("an empty table", |numbers| numbers.connections == 0);
}

/// Checks for a former defect: the end of a connection that arrived together with its last bytes was never noticed, so that
/// a host without a Keep Alive timer kept a connection and its controller for ever.
#[test]
fn a_host_that_sends_half_a_pdu_and_is_gone_leaves_no_connection() {
    let mut bench = TcpHarness::new();
    let (admin, id) = bench.controller();
    let mut queue = RawConnection::open(&mut bench);
    assert!(queue.connect(&mut bench, 1, id).status().is_success());
    assert_eq!(bench.connections(), 2);
    for (vanishing, left) in [(queue, 1), (admin, 0)] {
        vanishing.vanish();
        let mut turns = 0;
        while bench.connections() > left {
            // For a while after its last bytes, a socket is read without an event.
            Clock::sleep(Nanos::from_millis(1));
            bench.turn();
            turns += 1;
            assert!(turns < 1_000, "the connection is still open");
        }
    }
}

#[test]
fn a_host_that_reads_no_responses_uses_bounded_memory_and_other_hosts_are_served() {
    let node = TcpTestNode::start();
    let mut client = node.client(DigestSettings::default());
    let value = vec![7; 1 << 20];
    client.put(b"large", &value).unwrap();
    let mut slow = node.client(DigestSettings::default());
    let buffers = slow.buffer(64 << 20).unwrap();
    let mut queue = slow.queue(64).unwrap();
    for slot in 0..64_usize {
        let into = buffers.slice(slot << 20, 1 << 20).unwrap();
        queue.submit(Command::get(1, b"large", into).unwrap(), slot as u64).unwrap();
    }
    queue.ring().unwrap();
    // It submits and does not read: 64 MiB wait, of which the node may buffer a few.
    let clock = Clock::start();
    while clock.now() < Nanos::from_millis(300) {
        assert_eq!(client.get(b"large").unwrap().unwrap().len(), value.len());
    }
    let mut answered = [0_u32; 64];
    while let Some(done) = queue.wait(Some(Nanos::from_millis(20_000))).unwrap() {
        assert_eq!(usize::try_from(done.into_result().unwrap()).unwrap(), value.len());
        answered[usize::try_from(done.token).unwrap()] += 1;
    }
    assert_eq!(answered, [1; 64], "each read is completed once");
    let mut back = vec![0; value.len()];
    buffers.read(63 << 20, &mut back).unwrap();
    assert!(back == value);
}

#[test]
fn a_host_that_disappears_during_commands_leaks_nothing() {
    let node = TcpTestNode::start();
    let mut client = node.client(DigestSettings::default());
    client.put(b"k", b"before").unwrap();
    let value = vec![9; 1 << 20];
    for _ in 0..20 {
        let mut gone = node.client(DigestSettings::default());
        let buffer = gone.buffer(8 << 20).unwrap();
        buffer.write(0, &value).unwrap();
        let mut queue = gone.queue(8).unwrap();
        for slot in 0..8_usize {
            let slice = buffer.slice(slot << 20, 1 << 20).unwrap();
            let command = Command::put(
                1,
                &[1, u8::try_from(slot).unwrap()],
                slice,
                headwater_io::StoreCondition::Always,
            );
            queue.submit(command.unwrap(), 0).unwrap();
        }
        queue.ring().unwrap();
        let _ = queue.poll();
        drop(queue);
        drop(gone);
    }
    node.until("the release of all hosts", |numbers| {
        numbers.connections == 2 && numbers.in_flight.values().all(|&count| count == 0)
    });
    client.put(b"k", b"v").unwrap();
    assert_eq!(client.get(b"k").unwrap().unwrap(), b"v");
    let media = node.end();
    drop(media);
}
