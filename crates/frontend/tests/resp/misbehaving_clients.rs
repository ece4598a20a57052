//! Tests with clients that open too many connections or read no replies: other clients are not affected.

use crate::wire::{RespTestClient, RespValue, TestNode, encode};
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
