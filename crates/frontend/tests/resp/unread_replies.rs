//! Tests with clients that do not receive their replies: what they make the front end hold is bounded, and a
//! client that receives gets every reply.

use crate::model::KvDeviceModel;
use crate::wire::{RespTestClient, RespValue, TestNode, encode};
use headwater_frontend::resp::RespConfig;
use std::io::Read as _;
use std::net::TcpStream;

type Client = RespTestClient<TcpStream>;

const MIB: usize = 1 << 20;
/// Bytes of the large value.
const LARGE_BYTES: usize = 3 * MIB;
/// A command whose reply is the large value, read whole before it is sent.
const GATHERED: &[&[u8]] = &[b"GETEX", b"large", b"PERSIST"];
/// Bytes of the parts in which a long value is sent.
const PART_BYTES: usize = 256 << 10;

fn ok() -> RespValue {
    RespValue::Simple("OK".to_owned())
}

/// Starts a node with a budget for unread replies, and a client that stored a large and a small value. A client's limit
/// is 8 MiB.
fn start(seed: u64, budget: usize) -> (TestNode, Client) {
    start_on(KvDeviceModel::new(seed, 1_000), seed, budget)
}

fn start_on(device: KvDeviceModel, seed: u64, budget: usize) -> (TestNode, Client) {
    let config = RespConfig {
        listen: vec![([127, 0, 0, 1], 0).into()],
        seed,
        reply_memory_max: budget,
        ..RespConfig::default()
    };
    let node = TestNode::start_with(config, device);
    let mut good = node.connect();
    limit(&mut good, "normal 8mb 64kb 600");
    assert_eq!(good.call(&[b"SET", b"large", &vec![b'v'; LARGE_BYTES]]), ok());
    assert_eq!(good.call_line("SET small s"), ok());
    (node, good)
}

fn limit(client: &mut Client, limits: &str) {
    assert_eq!(client.call(&[b"CONFIG", b"SET", b"client-output-buffer-limit", limits.as_bytes()]), ok());
}

/// Returns a number of INFO.
fn info(client: &mut Client, name: &str) -> usize {
    let RespValue::Bulk(text) = client.call_line("INFO") else { panic!("no INFO") };
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.parse().unwrap()
}

/// Serves a good client until the bytes of unread replies have not changed for a while, and returns the most bytes.
fn most_held(good: &mut Client) -> usize {
    let (mut most, mut last, mut same) = (0, 0, 0);
    while same < 300 {
        assert_eq!(good.call_line("GET small"), RespValue::Bulk(b"s".to_vec()));
        let held = info(good, "mem_unread_replies");
        same = if held == last { same + 1 } else { 0 };
        (most, last) = (most.max(held), held);
    }
    most
}

/// Serves a good client until a number of INFO has a value.
fn until(good: &mut Client, name: &str, wanted: usize) {
    for _ in 0..100_000 {
        if info(good, name) == wanted {
            return;
        }
    }
    panic!("{name} did not become {wanted}");
}

fn is_large(reply: &RespValue) -> bool {
    matches!(reply, RespValue::Bulk(value) if value.len() == LARGE_BYTES && value.iter().all(|&byte| byte == b'v'))
}

#[test]
fn client_receives_every_reply_of_a_pipeline_beyond_its_limit() {
    let (node, mut good) = start(51, 64 * MIB);
    let mut slow = node.connect();
    slow.send(&encode(GATHERED).repeat(20));
    slow.send(&encode(&[b"GETRANGE", b"large", b"1", b"-1"]).repeat(10));
    slow.send(&encode(&[b"ECHO", b"the end"]));
    let most = most_held(&mut good);
    assert!((LARGE_BYTES..=8 * MIB).contains(&most), "{most} bytes were held");
    assert_eq!(info(&mut good, "clients_waiting_for_memory"), 0);
    for at in 0..20 {
        assert!(is_large(&slow.receive()), "reply {at}");
    }
    for _ in 0..10 {
        assert!(matches!(slow.receive(), RespValue::Bulk(value) if value.len() == LARGE_BYTES - 1));
    }
    assert_eq!(slow.receive(), RespValue::Bulk(b"the end".to_vec()));
    until(&mut good, "mem_unread_replies", 0);
}

#[test]
fn clients_that_receive_long_values_slowly_hold_two_parts_at_most_and_keep_no_other_waiting() {
    let (node, mut good) = start(60, 16 * PART_BYTES);
    let mut crowd: Vec<Client> = (0..12).map(|_| node.connect()).collect();
    for slow in &mut crowd {
        slow.send(&encode(&[b"GET", b"large"]).repeat(4));
    }
    let most = most_held(&mut good);
    assert!((PART_BYTES..=2 * 12 * PART_BYTES).contains(&most), "{most} bytes were held");
    assert!(is_large(&good.call_line("GET large")));
    assert_eq!(info(&mut good, "clients_waiting_for_memory"), 0);
    for _ in 0..4 {
        assert!(crowd.iter_mut().all(|slow| is_large(&slow.receive())));
    }
    until(&mut good, "mem_unread_replies", 0);
}

/// Returns a value that is longer than the buffers of a socket.
fn huge() -> Vec<u8> {
    vec![b'h'; 15 * MIB]
}

#[test]
fn long_value_that_is_replaced_while_it_is_sent_arrives_as_it_was() {
    let (node, mut good) = start(61, 64 * MIB);
    assert_eq!(good.call(&[b"SET", b"huge", &huge()]), ok());
    let mut slow = node.connect();
    slow.send(&encode(&[b"GET", b"huge"]).repeat(3));
    most_held(&mut good);
    assert_eq!(good.call(&[b"SET", b"huge", &vec![b'w'; MIB]]), ok());
    assert!(slow.receive() == RespValue::Bulk(huge()), "the value that was being sent changed");
    for _ in 0..2 {
        assert!(slow.receive() == RespValue::Bulk(vec![b'w'; MIB]), "an older value was sent");
    }
}

#[test]
fn replies_of_long_values_keep_their_places_in_a_pipeline() {
    let (node, mut good) = start(62, 64 * MIB);
    let mut client = node.connect();
    let get: &[&[u8]] = &[b"GET", b"new"];
    let long = vec![b'n'; MIB];
    let commands: [&[&[u8]]; 9] = [
        &[b"SET", b"new", &long],
        get,
        &[b"DEL", b"new"],
        get,
        &[b"SET", b"new", b""],
        get,
        &[b"APPEND", b"new", &long],
        get,
        &[b"CLIENT", b"REPLY", b"SKIP"],
    ];
    let mut pipeline: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
    pipeline.extend([encode(get), encode(&[b"PING"])].concat());
    let value = || RespValue::Bulk(long.clone());
    let length = i64::try_from(MIB).unwrap();
    for _ in 0..30 {
        client.send(&pipeline);
        let expected =
            [ok(), value(), RespValue::Integer(1), RespValue::Null, ok(), RespValue::Bulk(Vec::new())];
        let rest = [RespValue::Integer(length), value(), RespValue::Simple("PONG".to_owned())];
        for (at, reply) in expected.into_iter().chain(rest).enumerate() {
            assert!(client.receive() == reply, "reply {at}");
        }
    }
    until(&mut good, "mem_unread_replies", 0);
}

#[test]
fn client_whose_long_value_is_gone_is_closed_in_the_middle_and_answered_anew_before() {
    let mut device = KvDeviceModel::new(63, 1_000);
    device.gives_up_readers = true;
    let (node, mut good) = start_on(device, 63, 64 * MIB);
    assert_eq!(good.call(&[b"SET", b"huge", &huge()]), ok());
    let mut slow = node.connect();
    slow.send(&encode(&[b"GET", b"huge"]));
    most_held(&mut good);
    assert_eq!(good.call(&[b"SET", b"huge", &vec![b'w'; MIB]]), ok());
    let mut received = Vec::new();
    slow.stream.read_to_end(&mut received).unwrap();
    let value = received.strip_prefix(b"$15728640\r\n").unwrap();
    assert!(value.len() < 15 * MIB && value.iter().all(|&byte| byte == b'h'), "{} bytes", value.len());
    // One to which nothing was sent is answered with the new value.
    let mut writer = node.connect();
    for round in 0..200_u8 {
        let mut reader = node.connect();
        reader.send(&encode(&[b"GET", b"huge"]));
        assert_eq!(writer.call(&[b"SET", b"huge", &vec![round; MIB]]), ok());
        let mut start = [0; 10];
        if reader.stream.read_exact(&mut start).is_ok() {
            assert_eq!(&start, b"$1048576\r\n");
        }
    }
}

#[test]
fn many_values_in_one_reply_are_sent_as_they_are_read() {
    let (node, mut good) = start(52, 64 * MIB);
    let mut slow = node.connect();
    let mut keys = vec![&b"MGET"[..], b"missing"];
    keys.extend([&b"large"[..]; 70]);
    keys.push(b"small");
    let long_key = vec![b'k'; 70_000];
    keys.push(&long_key);
    slow.send(&encode(&keys));
    slow.send(&encode(&[b"STRLEN", b"large"]));
    let most = most_held(&mut good);
    assert!(most <= PART_BYTES, "{most} bytes were held");
    let RespValue::Array(values) = slow.receive() else { panic!("no array") };
    assert_eq!(values.len(), 73);
    assert_eq!(values[0], RespValue::Null);
    assert!(values[1..71].iter().all(is_large));
    assert_eq!(values[71], RespValue::Bulk(b"s".to_vec()));
    // The device refuses the last key when the first values have been sent already.
    assert!(matches!(&values[72], RespValue::Error(text) if text.contains("a key has 1 to 65535 bytes")));
    assert_eq!(slow.receive(), RespValue::Integer(3 << 20));
    // A short MGET fails as a whole.
    assert!(matches!(slow.call(&[b"MGET", b"small", &long_key]), RespValue::Error(_)));
    until(&mut good, "mem_unread_replies", 0);
}

#[test]
fn long_values_among_short_and_missing_ones_are_sent_in_their_order() {
    let (node, mut good) = start(64, 64 * MIB);
    let mut client = node.connect();
    let mut random = fastrand::Rng::with_seed(64);
    for round in 0..20 {
        let names: Vec<&[u8]> = (0..random.usize(1..200))
            .map(|_| [&b"small"[..], b"missing", b"large", b"large"][random.usize(0..4)])
            .collect();
        client.send(&encode(&[&[&b"MGET"[..]], &names[..]].concat()));
        client.send(&encode(&[b"PING"]));
        let RespValue::Array(values) = client.receive() else { panic!("no array") };
        assert_eq!(values.len(), names.len(), "round {round}");
        for (at, (name, value)) in names.iter().zip(&values).enumerate() {
            let is_right = match *name {
                b"small" => *value == RespValue::Bulk(b"s".to_vec()),
                b"large" => is_large(value),
                _ => *value == RespValue::Null,
            };
            assert!(is_right, "round {round}, value {at}");
        }
        assert_eq!(client.receive(), RespValue::Simple("PONG".to_owned()));
    }
    until(&mut good, "mem_unread_replies", 0);
}

#[test]
fn ranges_of_a_long_value_are_those_of_its_bytes() {
    let (node, _good) = start(65, 64 * MIB);
    let mut client = node.connect();
    let mut random = fastrand::Rng::with_seed(65);
    let value: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(MIB + 77).collect();
    assert_eq!(client.call(&[b"SET", b"random", &value]), ok());
    let length = i64::try_from(value.len()).unwrap();
    for round in 0..60 {
        let (start, end) = (random.i64(-length - 9..length + 9), random.i64(-length - 9..length + 9));
        let from = if start < 0 { (start + length).max(0) } else { start };
        let to = if end < 0 { (end + length).max(0) } else { end.min(length - 1) };
        let is_empty = from > to || (start < 0 && end < 0 && start > end);
        let range =
            if is_empty { 0..0 } else { usize::try_from(from).unwrap()..usize::try_from(to).unwrap() + 1 };
        let (start, end) = (start.to_string(), end.to_string());
        let reply = client.call(&[b"GETRANGE", b"random", start.as_bytes(), end.as_bytes()]);
        assert!(reply == RespValue::Bulk(value[range].to_vec()), "round {round}: {start} to {end}");
    }
}

#[test]
fn clients_that_receive_nothing_hold_no_more_than_the_budget_together() {
    let budget = 20 * MIB;
    let (node, mut good) = start(53, budget);
    // Values that are not sent in parts, read without a lock: clients that wait are served in the order in which they came.
    let (value, gets) = (vec![b'm'; 3 * PART_BYTES / 4], 160);
    assert_eq!(good.call(&[b"SET", b"medium", &value]), ok());
    let mut crowd: Vec<Client> = (0..12).map(|_| node.connect()).collect();
    for slow in &mut crowd {
        slow.send(&encode(&[b"GET", b"medium"]).repeat(gets));
    }
    let most = most_held(&mut good);
    assert!((budget / 2..=budget).contains(&most), "{most} bytes were held");
    assert!(info(&mut good, "clients_waiting_for_memory") > 0);
    assert_eq!(info(&mut good, "client_output_buffer_limit_disconnections"), 0);
    // The clients that wait are answered in turn as soon as another client receives.
    for _ in 0..gets {
        for slow in &mut crowd {
            assert!(slow.receive() == RespValue::Bulk(value.clone()));
        }
    }
    until(&mut good, "mem_unread_replies", 0);
    assert_eq!(info(&mut good, "clients_waiting_for_memory"), 0);
}

#[test]
fn stalled_clients_are_closed_only_for_one_that_waits() {
    let (node, mut good) = start(54, 2 * LARGE_BYTES);
    limit(&mut good, "normal 8mb 64kb 1");
    let mut crowd: Vec<Client> = (0..2).map(|_| node.connect()).collect();
    for slow in &mut crowd {
        slow.send(&encode(GATHERED).repeat(20));
    }
    most_held(&mut good);
    let mut waits = node.connect();
    assert!(is_large(&waits.call(GATHERED)));
    let closed = info(&mut good, "client_output_buffer_limit_disconnections");
    assert!((1..=2).contains(&closed), "{closed} clients were closed");
    let mut ends = 0;
    for slow in &mut crowd {
        let (mut taken, mut room) = (0, vec![0; MIB]);
        while taken < 20 * LARGE_BYTES {
            match slow.stream.read(&mut room) {
                Ok(bytes @ 1..) => taken += bytes,
                _ => break,
            }
        }
        ends += usize::from(taken < 20 * LARGE_BYTES);
    }
    assert!(ends >= closed, "{ends} of the {closed} closed connections ended early");
    until(&mut good, "mem_unread_replies", 0);
}

#[test]
fn values_still_on_their_way_to_the_device_count_for_the_reads_behind_them() {
    let (node, mut good) = start(55, 64 * MIB);
    let mut slow = node.connect();
    let mut pipeline = encode(&[b"SET", b"new", &vec![b'v'; LARGE_BYTES]]);
    pipeline.extend(encode(&[b"GETEX", b"new", b"PERSIST"]).repeat(20));
    pipeline.extend(encode(&[b"MSET", b"a", &vec![b'v'; LARGE_BYTES], b"b", b"-"]));
    pipeline.extend(encode(&[b"GETEX", b"a", b"PERSIST"]).repeat(20));
    slow.send(&pipeline);
    let most = most_held(&mut good);
    assert!((LARGE_BYTES..=8 * MIB).contains(&most), "{most} bytes were held");
    for _ in 0..2 {
        assert_eq!(slow.receive(), ok());
        assert!((0..20).all(|_| is_large(&slow.receive())));
    }
}

#[test]
fn waiting_client_that_is_killed_leaves_the_queue_to_the_next() {
    // A client that holds as much as it may leaves no room for another large value.
    let (node, mut good) = start(56, 2 * LARGE_BYTES);
    let mut holder = node.connect();
    holder.send(&encode(GATHERED).repeat(20));
    most_held(&mut good);
    let mut first = node.connect();
    let RespValue::Integer(id) = first.call_line("CLIENT ID") else { panic!("no id") };
    first.send(&encode(GATHERED).repeat(2));
    until(&mut good, "clients_waiting_for_memory", 1);
    let mut second = node.connect();
    second.send(&encode(&[b"GETRANGE", b"large", b"0", b"70000"]));
    until(&mut good, "clients_waiting_for_memory", 2);
    assert_eq!(good.call_line(&format!("CLIENT KILL ID {id}")), RespValue::Integer(1));
    // It needs little, but waited behind the first.
    assert!(matches!(second.receive(), RespValue::Bulk(value) if value.len() == 70_001));
    assert!((0..20).all(|_| is_large(&holder.receive())));
    until(&mut good, "clients_waiting_for_memory", 0);
}

#[test]
fn replies_of_commands_without_a_value_are_bounded_too() {
    let (node, mut good) = start(57, 64 * MIB);
    for at in 0..2_000 {
        assert_eq!(good.call(&[b"SET", format!("key {at:0>100}").as_bytes(), b"v"]), ok());
    }
    let mut slow = node.connect();
    let all: Vec<Vec<u8>> =
        [&[&b"KEYS"[..], b"key*"][..], &[b"SCAN", b"0", b"COUNT", b"4000"], &[b"COMMAND", b"DOCS"]]
            .iter()
            .map(|command| encode(command))
            .collect();
    let rounds = 60;
    for _ in 0..rounds {
        all.iter().for_each(|command| slow.send(command));
    }
    let most = most_held(&mut good);
    assert!((MIB..=9 * MIB).contains(&most), "{most} bytes were held");
    for _ in 0..rounds {
        let RespValue::Array(keys) = slow.receive() else { panic!("no keys") };
        assert_eq!(keys.len(), 2_000);
        let RespValue::Array(scanned) = slow.receive() else { panic!("no scan") };
        assert!(matches!(&scanned[1], RespValue::Array(keys) if keys.len() > 1_000));
        assert!(matches!(slow.receive(), RespValue::Array(_)));
    }
}

#[test]
fn output_limit_is_read_and_changed_as_in_redis() {
    let (_node, mut good) = start(58, 64 * MIB);
    limit(&mut good, "normal 0 0 0 slave 256mb 64mb 60 pubsub 32mb 8mb 60");
    let shown = b"normal 67108864 65536 5 slave 0 0 0 pubsub 0 0 0".to_vec();
    let name = b"client-output-buffer-limit".to_vec();
    assert_eq!(
        good.call_line("CONFIG GET client-output-buffer-limit"),
        RespValue::Array(vec![RespValue::Bulk(name), RespValue::Bulk(shown)])
    );
    let refused = good.call(&[b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 1 2 3"]);
    assert!(matches!(refused, RespValue::Error(text) if text.contains("soft limit exceeds the hard limit")));
}

#[test]
fn long_values_are_sent_whole_by_a_device_that_is_often_busy() {
    // The device asserts that no part that it has no room for has a buffer.
    let (node, mut good) = start_on(KvDeviceModel::new(65, 2), 65, 64 * MIB);
    let mut crowd: Vec<Client> = (0..8).map(|_| node.connect()).collect();
    for client in &mut crowd {
        client.send(&encode(&[b"GET", b"large"]).repeat(4));
    }
    for client in &mut crowd {
        for at in 0..4 {
            assert!(is_large(&client.receive()), "reply {at}");
        }
    }
    until(&mut good, "mem_unread_replies", 0);
}
