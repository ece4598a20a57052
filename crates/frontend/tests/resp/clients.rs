//! Tests of the front end's guarantees for connections: authentication, limits, draining and closing.

use crate::harness::RespHarness;
use crate::model::KvDeviceModel;
use crate::wire::{RespTestClient, RespValue, TestNode, encode};
use headwater_frontend::resp::{GivenPassword, PasswordPrecedence, RespConfig, RespFrontEnd};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

fn ok() -> RespValue {
    RespValue::Simple("OK".to_owned())
}

fn bulk(text: &str) -> RespValue {
    RespValue::Bulk(text.as_bytes().to_vec())
}

/// Returns a password of the command line.
fn given(text: &str) -> GivenPassword {
    GivenPassword { text: text.to_owned().into(), precedence: PasswordPrecedence::Given }
}

/// Starts a node whose clients need the password `secret`.
fn node_with_password() -> TestNode {
    let config = RespConfig {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        password: Some(given("secret")),
        ..RespConfig::default()
    };
    TestNode::start_with(config, KvDeviceModel::new(1, 100))
}

#[test]
fn address_that_other_machines_reach_is_served_with_a_password_only() {
    let everywhere = |password: Option<&str>| {
        let listen = vec![SocketAddr::from(([0, 0, 0, 0], 0))];
        RespConfig { listen, password: password.map(given), ..RespConfig::default() }
    };
    let refused = RespFrontEnd::bind(everywhere(None)).unwrap_err();
    assert!(refused.to_string().contains("--resp-password"), "{refused}");
    let node = TestNode::start_with(everywhere(Some("secret")), KvDeviceModel::new(1, 100));
    let mut wire = RespTestClient::new(TcpStream::connect(("127.0.0.1", node.address.port())).unwrap());
    assert_eq!(wire.call_line("AUTH secret"), ok());
    let RespValue::Error(text) = wire.call(&[b"CONFIG", b"SET", b"requirepass", b""]) else {
        panic!("the password was taken away")
    };
    assert!(text.contains("without a password"), "{text}");
    assert_eq!(wire.call_line("CONFIG SET requirepass another"), ok());
}

#[test]
fn client_that_tries_passwords_is_told_to_wait_before_it_finds_one() {
    let node = node_with_password();
    let mut open = node.connect();
    assert_eq!(open.call_line("AUTH secret"), ok());
    for number in 0..10 {
        let mut guess = node.connect();
        let RespValue::Error(text) = guess.call_line(&format!("AUTH {number}")) else { panic!("accepted") };
        assert!(text.starts_with("WRONGPASS"), "{text}");
    }
    let mut guess = node.connect();
    let RespValue::Error(text) = guess.call_line("AUTH secret") else { panic!("the guess was looked at") };
    assert!(text.contains("wait 10 seconds"), "{text}");
    assert_eq!(open.call_line("SET k v"), ok(), "a client that has authenticated is served on");
}

#[test]
fn commands_require_the_configured_password() {
    let node = node_with_password();
    let mut wire = node.connect();
    let error = |text: &str| RespValue::Error(text.to_owned());
    assert_eq!(wire.call_line("GET a"), error("NOAUTH Authentication required."));
    assert_eq!(
        wire.call_line("AUTH wrong"),
        error("WRONGPASS invalid username-password pair or user is disabled.")
    );
    let RespValue::Error(text) = wire.call_line("HELLO 3") else { panic!("accepted without the password") };
    assert!(text.starts_with("NOAUTH HELLO"));
    // A pipeline may authenticate and then exceed the limits of an unauthenticated client.
    let mut bytes = encode(&[b"AUTH", b"default", b"secret"]);
    let words: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(std::iter::repeat_n(&b"k"[..], 30)).collect();
    bytes.extend(encode(&words));
    wire.send(&bytes);
    assert_eq!(wire.receive(), ok());
    assert_eq!(wire.receive(), RespValue::Array(vec![RespValue::Null; 30]));
    let mut other = node.connect();
    other.send(&encode(&words));
    assert_eq!(other.receive(), error("ERR Protocol error: unauthenticated multibulk length"));
    let mut third = node.connect();
    assert!(matches!(third.call_line("HELLO 3 AUTH default secret SETNAME me"), RespValue::Map(_)));
    assert_eq!(third.call_line("CLIENT GETNAME"), bulk("me"));
}

#[test]
fn malformed_input_affects_only_its_own_client() {
    let node = TestNode::start(11, 1_000);
    let mut good = node.connect();
    assert_eq!(good.call_line("SET a 1"), ok());
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..50 {
        let mut bad = TcpStream::connect(node.address).unwrap();
        let noise: Vec<u8> =
            (0..random.usize(1..300)).map(|_| b"*$\r\n0123GET ab\"'\\x"[random.usize(..18)]).collect();
        // The node may close the connection before all bytes are written.
        let _ = bad.write_all(&noise);
        drop(bad);
        assert_eq!(good.call_line("GET a"), bulk("1"));
    }
}

#[test]
fn a_client_that_disconnects_releases_its_key_locks() {
    let node = TestNode::start(12, 3);
    for _ in 0..30 {
        let mut leaver = TcpStream::connect(node.address).unwrap();
        let mut bytes = encode(&[b"INCR", b"k"]).repeat(20);
        bytes.extend(encode(&[b"MSET", b"k", b"0", b"l", b"0"]));
        leaver.write_all(&bytes).unwrap();
    }
    let mut wire = node.connect();
    assert_eq!(wire.call_line("SET k 41"), ok());
    // Commands of disconnected clients may still execute before this INCR, but not between its read and its write.
    assert!(matches!(wire.call_line("INCR k"), RespValue::Integer(_)));
    let RespValue::Bulk(list) = wire.call_line("CLIENT LIST") else { panic!("no list") };
    assert!(!list.is_empty());
}

#[test]
fn list_of_many_clients_has_each_of_them_once_and_in_order_with_other_replies() {
    let node = TestNode::start(32, 1_000);
    let mut crowd: Vec<_> = (0..400).map(|_| node.connect()).collect();
    for (number, client) in crowd.iter_mut().enumerate() {
        assert_eq!(client.call_line(&format!("CLIENT SETNAME n{number}")), ok());
    }
    let mut wire = node.connect();
    let RespValue::Integer(id) = wire.call_line("CLIENT ID") else { panic!("no number") };
    let by_id = encode(&[b"CLIENT", b"LIST", b"ID", id.to_string().as_bytes()]);
    let list = encode(&[b"CLIENT", b"LIST"]);
    wire.send(&[&encode(&[b"SET", b"k", b"v"])[..], &list, &encode(&[b"GET", b"k"]), &by_id, &list].concat());
    assert_eq!(wire.receive(), ok());
    let lines = |list: RespValue| {
        let RespValue::Bulk(list) = list else { panic!("no list") };
        String::from_utf8(list).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let all = lines(wire.receive());
    assert_eq!(wire.receive(), bulk("v"));
    let own = lines(wire.receive());
    assert!(own.len() == 1 && own[0].starts_with(&format!("id={id} ")), "{own:?}");
    assert_eq!(lines(wire.receive()).len(), 401);
    for number in 0..400 {
        let name = format!(" name=n{number} ");
        assert_eq!(all.iter().filter(|line| line.contains(&name)).count(), 1, "{name}");
    }
    assert_eq!(all.len(), 401);
    // A transaction lists them at once.
    assert_eq!(wire.call_line("MULTI"), ok());
    wire.call_line("CLIENT LIST");
    let RespValue::Array(replies) = wire.call_line("EXEC") else { panic!("no array") };
    assert_eq!(lines(replies[0].clone()).len(), 401);
    // Clients that leave in between end no list.
    wire.send(&list.repeat(20));
    drop(crowd);
    for _ in 0..20 {
        assert!(!lines(wire.receive()).is_empty());
    }
}

#[test]
fn a_drain_finishes_accepted_commands_and_closes_connections() {
    let mut node = TestNode::start(13, 1_000);
    let mut wire = node.connect();
    assert_eq!(wire.call_line("PING"), RespValue::Simple("PONG".to_owned()));
    wire.send(&encode(&[b"INCR", b"k"]).repeat(100));
    assert_eq!(wire.receive(), RespValue::Integer(1));
    node.drain.store(true, Ordering::Relaxed);
    node.join();
    let mut rest = Vec::new();
    wire.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty() || rest.starts_with(b":2\r\n"));
    assert!(TcpStream::connect(node.address).is_err());
}

#[test]
fn replies_are_sent_after_a_client_shuts_down_its_write_side() {
    for seed in 0..4 {
        let node = TestNode::start(seed, 4);
        let mut stream = TcpStream::connect(node.address).unwrap();
        let mut bytes = encode(&[b"INCR", b"k"]).repeat(50);
        bytes.extend(encode(&[b"MGET", b"k", b"l"]));
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        assert!(all.ends_with(":50\r\n*2\r\n$2\r\n50\r\n$-1\r\n"), "seed {seed}: {all}");
    }
}

#[test]
fn a_client_over_the_limit_receives_an_error() {
    let node = TestNode::start(18, 100);
    let mut wire = node.connect();
    assert_eq!(wire.call_line("CONFIG SET maxclients 2"), ok());
    let mut second = node.connect();
    assert_eq!(second.call_line("PING"), RespValue::Simple("PONG".to_owned()));
    let mut third = node.connect();
    assert_eq!(third.receive(), RespValue::Error("ERR max number of clients reached".to_owned()));
    drop(second);
    // The slot is free as soon as the node has processed the disconnect.
    loop {
        let mut again = node.connect();
        again.send(&encode(&[b"PING"]));
        if again.receive() == RespValue::Simple("PONG".to_owned()) {
            break;
        }
    }
}

#[test]
fn idle_clients_are_closed_after_the_timeout() {
    let mut bench = RespHarness::start();
    bench.stream.write_all(&encode(&[b"CONFIG", b"SET", b"timeout", b"3"])).unwrap();
    assert_eq!(bench.wait_for(5), b"+OK\r\n");
    assert_eq!(bench.front_end.connections(), 1);
    assert!(bench.front_end.next_deadline().is_some());
    bench.turn += 2_500_000_000;
    bench.turns(2);
    assert_eq!(bench.front_end.connections(), 1);
    bench.turn += 1_500_000_000;
    bench.turns(2);
    assert_eq!(bench.front_end.connections(), 0);
}

#[test]
fn client_reply_suppresses_replies_and_client_kill_closes_a_client() {
    let node = TestNode::start(14, 1_000);
    let (mut one, mut two) = (node.connect(), node.connect());
    one.send(b"CLIENT REPLY SKIP\r\nSET a 1\r\nGET a\r\nCLIENT REPLY OFF\r\nSET a 2\r\nGET a\r\nCLIENT REPLY ON\r\nGET a\r\n");
    assert_eq!(one.receive(), bulk("1"));
    assert_eq!(one.receive(), ok());
    assert_eq!(one.receive(), bulk("2"));
    let RespValue::Integer(id) = two.call_line("CLIENT ID") else { panic!("no id") };
    assert_eq!(one.call_line(&format!("CLIENT KILL ID {id}")), RespValue::Integer(1));
    let mut rest = Vec::new();
    two.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
}

#[test]
fn a_unix_socket_serves_and_its_file_is_removed_on_drop() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.sock");
    let config = RespConfig {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        unix_path: Some(path.clone()),
        ..RespConfig::default()
    };
    let node = TestNode::start_with(config.clone(), KvDeviceModel::new(15, 100));
    assert_eq!(RespTestClient::new(UnixStream::connect(&path).unwrap()).call_line("SET a 1"), ok());
    assert!(RespFrontEnd::bind(config).is_err(), "the second front end replaced a socket in use");
    drop(node);
    assert!(!path.exists());
}
