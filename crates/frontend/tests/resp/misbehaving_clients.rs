//! Tests with clients that open too many connections or read no replies: other clients are not affected.

use crate::model::KvDeviceModel;
use crate::wire::{RespTestClient, RespValue, TestNode, encode};
use headwater_frontend::resp::RespConfig;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

fn ok() -> RespValue {
    RespValue::Simple("OK".to_owned())
}

/// Returns the number of clients in CLIENT LIST.
fn clients(wire: &mut RespTestClient<TcpStream>) -> usize {
    match wire.call_line("CLIENT LIST") {
        RespValue::Bulk(text) | RespValue::Verbatim(text) => {
            text.iter().filter(|&&byte| byte == b'\n').count()
        }
        other => panic!("no list: {other:?}"),
    }
}

/// Polls CLIENT LIST until it has `wanted` clients.
fn until(wire: &mut RespTestClient<TcpStream>, wanted: usize) {
    for _ in 0..100_000 {
        if clients(wire) == wanted {
            return;
        }
    }
    panic!("the number of clients did not become {wanted}");
}

#[test]
fn a_storm_of_connections_is_capped_and_connected_clients_are_served() {
    let node = TestNode::start(31, 1_000);
    let mut good = node.connect();
    assert_eq!(good.call_line("CONFIG SET maxclients 100"), ok());
    assert_eq!(good.call_line("SET k before"), ok());
    for wave in 0..4 {
        let crowd: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(node.address).unwrap()).collect();
        until(&mut good, 100);
        assert_eq!(good.call_line("INCR through"), RespValue::Integer(wave + 1));
        drop(crowd);
        until(&mut good, 1);
    }
    let mut late = node.connect();
    assert_eq!(late.call_line("GET k"), RespValue::Bulk(b"before".to_vec()));
}

/// Sends what a page of a browser can send to a port of this machine.
#[test]
fn http_requests_close_the_connection_and_their_bodies_are_not_executed() {
    let node = TestNode::start(33, 1_000);
    let mut good = node.connect();
    assert_eq!(good.call_line("SET k kept"), ok());
    for request in [
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nFLUSHALL\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nFLUSHALL\r\n",
        "*1\r\n$4\r\npost\r\n*1\r\n$8\r\nFLUSHALL\r\n",
    ] {
        let mut page = TcpStream::connect(node.address).unwrap();
        page.write_all(request.as_bytes()).unwrap();
        let mut replies = Vec::new();
        // A reset says that it was closed with commands unread.
        let _ = page.read_to_end(&mut replies);
        assert!(!replies.starts_with(b"+"), "{request:?} was answered: {replies:?}");
        assert_eq!(good.call_line("GET k"), RespValue::Bulk(b"kept".to_vec()), "{request:?}");
    }
}

#[test]
fn a_client_that_reads_no_replies_is_closed_at_its_output_limit() {
    let node = TestNode::start(32, 1_000);
    let mut good = node.connect();
    let (value, times) = (vec![b'v'; 4 << 20], 80);
    assert_eq!(good.call(&[b"SET", b"large", &value]), ok());
    let mut slow = node.connect();
    for _ in 0..times {
        // The write fails once the node has closed the connection.
        let _ = slow.stream.get_mut().write_all(&encode(&[b"GET", b"large"]));
        assert_eq!(good.call_line("SET k v"), ok());
    }
    until(&mut good, 1);
    // Bytes in the kernel's buffers can still be read; the stream then ends long before the last reply.
    let (mut taken, mut room) = (0, vec![0; 1 << 20]);
    while let Ok(bytes @ 1..) = slow.stream.get_mut().read(&mut room) {
        taken += bytes;
    }
    assert!(taken < times * value.len(), "the client received all {taken} bytes");
    assert_eq!(good.call_line("STRLEN large"), RespValue::Integer(4 << 20));
}

const LARGE_BYTES: usize = 4 << 20;

/// Returns a node whose clients may hold three large values together, and a client that stored one.
fn tight_node(seed: u64) -> (TestNode, RespTestClient<TcpStream>) {
    let config = RespConfig {
        listen: vec![([127, 0, 0, 1], 0).into()],
        seed,
        client_memory_max: 3 * LARGE_BYTES + (1 << 20),
        ..RespConfig::default()
    };
    let node = TestNode::start_with(config, KvDeviceModel::new(seed, 1_000));
    let mut good = node.connect();
    assert_eq!(good.call(&[b"SET", b"large", &vec![b'v'; LARGE_BYTES]]), ok());
    assert_eq!(good.call_line("SET small s"), ok());
    (node, good)
}

fn assert_out_of_memory(reply: &RespValue) {
    let RespValue::Error(text) = reply else { panic!("no error: {reply:?}") };
    assert!(text.starts_with("OOM the clients of the node hold too much memory"), "{text}");
}

#[test]
fn client_that_reads_no_replies_gets_errors_instead_of_the_memory_of_other_clients() {
    const TIMES: usize = 20;
    let (node, mut good) = tight_node(33);
    let mut slow = node.connect();
    slow.send(&encode(&[b"GET", b"large"]).repeat(TIMES));
    for _ in 0..1_000 {
        assert_eq!(good.call_line("GET small"), RespValue::Bulk(b"s".to_vec()));
    }
    let replies: Vec<RespValue> = (0..TIMES).map(|_| slow.receive()).collect();
    let (values, refused): (Vec<_>, Vec<_>) = replies
        .into_iter()
        .partition(|reply| matches!(reply, RespValue::Bulk(value) if value.len() == LARGE_BYTES));
    assert!(!values.is_empty() && !refused.is_empty(), "{} values, {} errors", values.len(), refused.len());
    refused.iter().for_each(assert_out_of_memory);
    // The connection goes on, and what it held is free again.
    assert!(matches!(slow.call_line("GET large"), RespValue::Bulk(_)));
    assert!(matches!(good.call_line("GET large"), RespValue::Bulk(_)));
}

#[test]
fn command_with_too_many_values_fails_as_a_whole_and_releases_them() {
    let (_node, mut good) = tight_node(34);
    for _ in 0..5 {
        let many: Vec<&[u8]> =
            [&b"MGET"[..]].into_iter().chain(std::iter::repeat_n(&b"large"[..], 6)).collect();
        assert_out_of_memory(&good.call(&many));
        let RespValue::Array(values) = good.call_line("MGET large small") else { panic!("no array") };
        assert_eq!(values.len(), 2);
    }
}

#[test]
fn argument_beyond_the_memory_of_clients_ends_only_its_own_client() {
    let (node, mut good) = tight_node(35);
    let mut greedy = node.connect();
    greedy.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16777216\r\nbeginning");
    assert_out_of_memory(&greedy.receive());
    let mut rest = Vec::new();
    greedy.stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
    assert_eq!(good.call_line("GET small"), RespValue::Bulk(b"s".to_vec()));
    // A crowd of clients, each within its allowance, is served while one holds nearly everything.
    let mut holder = node.connect();
    holder.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$12000000\r\nbeginning");
    for number in 0..50 {
        let mut client = node.connect();
        assert_eq!(client.call(&[b"SET", format!("{number}").as_bytes(), &vec![b'x'; 500_000]]), ok());
    }
}

#[test]
fn values_beyond_the_limit_of_one_reply_are_refused_before_they_are_collected() {
    let node = TestNode::start(36, 1_000);
    let mut client = node.connect();
    assert_eq!(client.call(&[b"SET", b"large", &vec![b'v'; LARGE_BYTES]]), ok());
    let many: Vec<&[u8]> = [&b"MGET"[..]].into_iter().chain(std::iter::repeat_n(&b"large"[..], 80)).collect();
    let RespValue::Error(text) = client.call(&many) else { panic!("no error") };
    assert!(text.starts_with("ERR the values exceed the limit of one reply"), "{text}");
    assert_eq!(client.call_line("STRLEN large"), RespValue::Integer(4 << 20));
}
