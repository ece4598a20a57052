//! Clients that storm, and clients that take no answers: they harm themselves only.

use crate::wire::{Node, Value, Wire, encode};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

fn ok() -> Value {
    Value::Simple("OK".to_owned())
}

/// How many clients the node says it has.
fn clients(wire: &mut Wire<TcpStream>) -> usize {
    match wire.say("CLIENT LIST") {
        Value::Bulk(text) | Value::Verbatim(text) => text.iter().filter(|&&byte| byte == b'\n').count(),
        other => panic!("no list: {other:?}"),
    }
}

/// Asks until the node has so many clients.
fn until(wire: &mut Wire<TcpStream>, wanted: usize) {
    for _ in 0..100_000 {
        if clients(wire) == wanted {
            return;
        }
    }
    panic!("the node never comes to {wanted} clients");
}

#[test]
fn a_storm_of_connections_is_cut_at_the_limit_and_others_are_served() {
    let node = Node::start(31, 1_000);
    let mut good = node.connect();
    assert_eq!(good.say("CONFIG SET maxclients 100"), ok());
    assert_eq!(good.say("SET k before"), ok());
    for wave in 0..4 {
        let crowd: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(node.address).unwrap()).collect();
        until(&mut good, 100);
        assert_eq!(good.say("INCR through"), Value::Integer(wave + 1));
        drop(crowd);
        until(&mut good, 1);
    }
    let mut late = node.connect();
    assert_eq!(late.say("GET k"), Value::Bulk(b"before".to_vec()));
}

#[test]
fn a_client_that_takes_no_answers_is_closed_at_its_limit_and_others_go_on() {
    let node = Node::start(32, 1_000);
    let mut good = node.connect();
    let (value, times) = (vec![b'v'; 4 << 20], 80);
    assert_eq!(good.ask(&[b"SET", b"large", &value]), ok());
    let mut slow = node.connect();
    for _ in 0..times {
        // In the end the node has closed it, and nothing more can be asked.
        let _ = slow.stream.get_mut().write_all(&encode(&[b"GET", b"large"]));
        assert_eq!(good.say("SET k v"), ok());
    }
    until(&mut good, 1);
    // What the kernel holds may still be read; then it is over, long before every answer.
    let (mut taken, mut room) = (0, vec![0; 1 << 20]);
    while let Ok(bytes @ 1..) = slow.stream.get_mut().read(&mut room) {
        taken += bytes;
    }
    assert!(taken < times * value.len(), "{taken} bytes came");
    assert_eq!(good.say("STRLEN large"), Value::Integer(4 << 20));
}
