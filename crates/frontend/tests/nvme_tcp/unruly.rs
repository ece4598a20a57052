//! Hosts that storm, stall, vanish and talk nonsense: they harm themselves only.

use crate::host::Node;
use headwater_frontend::nvme_tcp::limits::{CONNECTIONS_MAX, CONTROLLERS_MAX, JOIN_WITHIN};
use headwater_host::clock::{Clock, Nanos};
use headwater_io::Command;
use headwater_nvme::tcp::Digests;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// ICReq without digests.
fn initialize() -> Vec<u8> {
    let mut bytes = vec![0; 128];
    bytes[2] = 128;
    bytes[4] = 128;
    bytes
}

#[test]
fn a_storm_of_connections_is_cut_at_the_limit_and_others_are_served() {
    let node = Node::start();
    let mut client = node.client(Digests::default());
    client.put(b"k", b"before the storm").unwrap();
    let ours = node.numbers().connections;
    let mut crowd = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        crowd.push(TcpStream::connect(node.address).unwrap());
    }
    node.until("the limit", |numbers| numbers.connections_refused >= ours);
    assert!(node.numbers().connections <= u64::try_from(CONNECTIONS_MAX).unwrap());
    client.put(b"k", b"through the storm").unwrap();
    assert_eq!(client.get(b"k").unwrap().unwrap(), b"through the storm");
    drop(crowd);
    node.until("the end of the storm", |numbers| numbers.connections <= ours + 1);
    let mut late = node.client(Digests::default());
    assert_eq!(late.get(b"k").unwrap().unwrap(), b"through the storm");
}

#[test]
fn controllers_have_a_limit_and_are_given_back() {
    let node = Node::start();
    let target = node.target(Digests::default());
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
    node.until("the crowd's end", |numbers| numbers.connections == 0);
    drop(node.client(Digests::default()));
}

#[test]
fn nonsense_closes_the_connection_it_came_by_and_is_told_why() {
    let node = Node::start();
    let mut client = node.client(Digests::default());
    let mut seed = 7_u32;
    for round in 0..200_u32 {
        let mut stream = TcpStream::connect(node.address).unwrap();
        let mut bytes = if round % 2 == 0 { initialize() } else { Vec::new() };
        for _ in 0..300 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bytes.extend_from_slice(&seed.to_le_bytes()[2..]);
        }
        // The node may have had enough before it took everything.
        let _ = stream.write_all(&bytes);
        let mut answer = Vec::new();
        stream.set_read_timeout(Some(Nanos::from_millis(5_000).to_duration())).unwrap();
        let _ = stream.read_to_end(&mut answer);
        let tail = answer.iter().rev().take(152).rev().copied().collect::<Vec<_>>();
        assert!(tail.contains(&3), "a termination request");
    }
    client.put(b"k", b"unharmed").unwrap();
    assert_eq!(client.get(b"k").unwrap().unwrap(), b"unharmed");
}

#[test]
fn half_open_connections_are_closed_in_time() {
    let node = Node::start();
    let clock = Clock::start();
    let mut silent = TcpStream::connect(node.address).unwrap();
    let mut shy = TcpStream::connect(node.address).unwrap();
    shy.write_all(&initialize()).unwrap();
    let mut answer = [0; 128];
    shy.read_exact(&mut answer).unwrap();
    for stream in [&mut silent, &mut shy] {
        stream.set_read_timeout(Some(JOIN_WITHIN.after(Nanos::from_millis(10_000)).to_duration())).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "closed without a word");
    }
    assert!(clock.now() >= JOIN_WITHIN, "not before its time");
    node.until("an empty table", |numbers| numbers.connections == 0);
}

#[test]
fn a_host_that_takes_no_answers_is_waited_for_with_bounded_memory_and_others_go_on() {
    let node = Node::start();
    let mut client = node.client(Digests::default());
    let value = vec![7; 1 << 20];
    client.put(b"large", &value).unwrap();
    let mut slow = node.client(Digests::default());
    let buffers = slow.buffer(64 << 20).unwrap();
    let mut queue = slow.queue(64).unwrap();
    for place in 0..64_usize {
        let into = buffers.slice(place << 20, 1 << 20).unwrap();
        queue.submit(Command::get(1, b"large", into).unwrap(), place as u64).unwrap();
    }
    queue.ring().unwrap();
    // It rings and does not look: 64 MiB wait, of which the node may keep a few.
    let clock = Clock::start();
    while clock.now() < Nanos::from_millis(300) {
        assert_eq!(client.get(b"large").unwrap().unwrap().len(), value.len());
    }
    let mut answered = [0_u32; 64];
    while let Some(done) = queue.wait(Some(Nanos::from_millis(20_000))).unwrap() {
        assert_eq!(usize::try_from(done.ok().unwrap()).unwrap(), value.len());
        answered[usize::try_from(done.token).unwrap()] += 1;
    }
    assert_eq!(answered, [1; 64], "each read is answered once");
    let mut back = vec![0; value.len()];
    buffers.read(63 << 20, &mut back).unwrap();
    assert!(back == value);
}

#[test]
fn a_host_that_vanishes_in_the_middle_leaves_nothing_behind() {
    let node = Node::start();
    let mut client = node.client(Digests::default());
    client.put(b"k", b"before").unwrap();
    let value = vec![9; 1 << 20];
    for _ in 0..20 {
        let mut gone = node.client(Digests::default());
        let buffer = gone.buffer(8 << 20).unwrap();
        buffer.write(0, &value).unwrap();
        let mut queue = gone.queue(8).unwrap();
        for place in 0..8_usize {
            let slice = buffer.slice(place << 20, 1 << 20).unwrap();
            let command =
                Command::put(1, &[1, u8::try_from(place).unwrap()], slice, headwater_io::Condition::Always);
            queue.submit(command.unwrap(), 0).unwrap();
        }
        queue.ring().unwrap();
        let _ = queue.poll();
        drop(queue);
        drop(gone);
    }
    node.until("the end of all", |numbers| {
        numbers.connections == 2 && numbers.in_flight.values().all(|&count| count == 0)
    });
    client.put(b"k", b"v").unwrap();
    assert_eq!(client.get(b"k").unwrap().unwrap(), b"v");
    let media = node.end();
    drop(media);
}
