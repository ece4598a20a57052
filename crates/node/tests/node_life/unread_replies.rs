//! The memory of a real node beside clients that do not receive their replies, and what clients get that do.
#![expect(clippy::unwrap_used, reason = "a failed unwrap in a test reports its location")]

use crate::running::RunningNode;
use headwater_host::clock::{Clock, Nanos};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

const MIB: usize = 1 << 20;
const LARGE_BYTES: usize = 4 * MIB;
/// The limit of one client in this test.
const LIMIT_BYTES: usize = 16 * MIB;
/// Further bytes that the node may take: buffers of sockets, and free memory of the allocator.
const SLACK_BYTES: usize = 32 * MIB;

fn resident_bytes(node: &RunningNode) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() << 10
}

fn connect(node: &RunningNode) -> BufReader<TcpStream> {
    let stream = node.connect();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(120))).unwrap();
    BufReader::new(stream)
}

fn send(client: &mut BufReader<TcpStream>, arguments: &[&[u8]], times: usize) {
    let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        request.extend_from_slice(argument);
        request.extend_from_slice(b"\r\n");
    }
    client.get_mut().write_all(&request.repeat(times)).unwrap();
}

fn line(client: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Receives one value, and returns it.
fn value(client: &mut BufReader<TcpStream>) -> Vec<u8> {
    let header = line(client);
    let bytes: usize = header.strip_prefix('$').unwrap_or_else(|| panic!("{header:?}")).parse().unwrap();
    let mut value = vec![0; bytes + 2];
    client.read_exact(&mut value).unwrap();
    value.truncate(bytes);
    value
}

/// Returns the largest resident set during a while in which a client is served.
fn most_resident(node: &RunningNode, good: &mut BufReader<TcpStream>) -> usize {
    let samples = (0..150).map(|_| {
        send(good, &[b"GET", b"small"], 1);
        assert_eq!(value(good), b"s");
        Clock::sleep(Nanos::from_millis(10));
        resident_bytes(node)
    });
    samples.max().unwrap()
}

#[test]
fn clients_that_receive_nothing_cost_their_limits_and_receivers_get_every_reply() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &["--durability", "on-flush"]);
    let mut good = connect(&node);
    send(&mut good, &[b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 16mb 64kb 600"], 1);
    let large = vec![b'v'; LARGE_BYTES];
    send(&mut good, &[b"MSET", b"large", &large, b"small", b"s"], 1);
    assert_eq!((line(&mut good), line(&mut good)), ("+OK".to_owned(), "+OK".to_owned()));
    for _ in 0..3 {
        send(&mut good, &[b"GET", b"large"], 1);
        assert!(value(&mut good) == large);
    }
    let idle = resident_bytes(&node);
    // 3,300 bytes of requests for half a gigabyte each, of which the node reads one part for each client.
    let mut silent: Vec<_> = (0..6).map(|_| connect(&node)).collect();
    silent.iter_mut().for_each(|client| send(client, &[b"GET", b"large"], 130));
    let growth = most_resident(&node, &mut good).saturating_sub(idle);
    assert!(growth < SLACK_BYTES / 2, "6 clients cost {growth} bytes");
    drop(silent);
    // A command that may write reads the whole value first.
    let mut silent: Vec<_> = (0..6).map(|_| connect(&node)).collect();
    silent.iter_mut().for_each(|client| send(client, &[b"GETEX", b"large", b"PERSIST"], 130));
    let growth = most_resident(&node, &mut good).saturating_sub(idle);
    assert!(growth > 6 * LARGE_BYTES, "the clients were not served: {growth} bytes");
    assert!(growth < 6 * LIMIT_BYTES + SLACK_BYTES, "6 clients cost {growth} bytes");
    drop(silent);
    // A reply of 80 MiB, and as many bytes in a pipeline: they are read as the client receives them.
    let mut keys = vec![&b"MGET"[..]];
    keys.resize(21, b"large");
    let mut reader = connect(&node);
    send(&mut reader, &keys, 1);
    send(&mut reader, &[b"GET", b"large"], 20);
    let growth = most_resident(&node, &mut good).saturating_sub(idle);
    // The allocator may have kept what the other clients took.
    assert!(growth < 6 * LIMIT_BYTES + SLACK_BYTES, "a long reply cost {growth} bytes");
    assert_eq!(line(&mut reader), "*20");
    for _ in 0..40 {
        assert!(value(&mut reader) == large);
    }
    node.stop();
}

#[test]
fn mset_of_the_documented_size_is_written_with_the_memory_of_a_default_node() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &["--durability", "on-flush"]);
    let mut client = connect(&node);
    let half = vec![b'v'; 16 * MIB - 49];
    send(&mut client, &[b"MSET", b"a", &half, b"b", &half], 1);
    assert_eq!(line(&mut client), "+OK");
    send(&mut client, &[b"MSET", b"a", &half, b"b", &half, b"c", b""], 1);
    let refused = line(&mut client);
    assert!(refused.contains("headers of 33554481 bytes") && refused.contains("(33554432)"), "{refused}");
    send(&mut client, &[b"GET", b"b"], 1);
    assert!(value(&mut client) == half);
    node.stop();
}
