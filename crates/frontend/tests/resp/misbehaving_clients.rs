//! Tests with clients that open too many connections or send too long arguments: other clients are not affected.

use crate::model::KvDeviceModel;
use crate::wire::{RespTestClient, RespValue, TestNode};
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
