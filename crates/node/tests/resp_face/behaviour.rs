//! What the face promises, each promise by name.

use crate::model::Model;
use crate::wire::{Node, Value, Wire, encode};
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_node::resp::{RespConfig, RespFace};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

fn ok() -> Value {
    Value::Simple("OK".to_owned())
}

fn bulk(text: &str) -> Value {
    Value::Bulk(text.as_bytes().to_vec())
}

#[test]
fn counters_of_many_clients_lose_no_increment() {
    for seed in 0..6 {
        eprintln!("seed {seed}");
        let node = Node::start(seed, if seed % 2 == 0 { 4 } else { 4_000 });
        let mut wires: Vec<_> = (0..20).map(|_| node.connect()).collect();
        let burst = encode(&[b"INCR", b"counter"]).repeat(30);
        for wire in &mut wires {
            wire.send(&burst);
        }
        let mut seen = Vec::new();
        for wire in &mut wires {
            let mut last = 0;
            for _ in 0..30 {
                let Value::Integer(value) = wire.receive() else {
                    panic!("no number")
                };
                assert!(value > last, "seed {seed}: a pipeline was answered out of order");
                last = value;
                seen.push(value);
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (1..=600).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn a_pipeline_reads_its_own_writes_in_order() {
    for seed in 0..6 {
        eprintln!("seed {seed}");
        let node = Node::start(seed, if seed % 2 == 0 { 5 } else { 4_000 });
        let mut wire = node.connect();
        let mut bytes = Vec::new();
        for round in 0..200 {
            let (key, value) = (format!("k{}", round % 7), format!("v{round}"));
            bytes.extend(encode(&[b"SET", key.as_bytes(), value.as_bytes()]));
            bytes.extend(encode(&[b"APPEND", key.as_bytes(), b"+"]));
            bytes.extend(encode(&[b"GET", key.as_bytes()]));
            bytes.extend(encode(&[b"MGET", key.as_bytes(), b"none"]));
            bytes.extend(encode(&[b"DEL", key.as_bytes(), b"none"]));
            bytes.extend(encode(&[b"EXISTS", key.as_bytes()]));
        }
        wire.send(&bytes);
        for round in 0..200 {
            let value = format!("v{round}+");
            assert_eq!(wire.receive(), ok());
            assert_eq!(
                wire.receive(),
                Value::Integer(i64::try_from(value.len()).unwrap())
            );
            assert_eq!(wire.receive(), bulk(&value));
            assert_eq!(wire.receive(), Value::Array(vec![bulk(&value), Value::Null]));
            assert_eq!(wire.receive(), Value::Integer(1));
            assert_eq!(wire.receive(), Value::Integer(0));
        }
    }
}

#[test]
fn values_of_every_size_come_back_byte_for_byte_however_they_are_cut() {
    let node = Node::start(7, 1_000);
    let mut wire = node.connect();
    let mut random = fastrand::Rng::with_seed(7);
    for length in [0, 1, 4_096, 8_191, 8_192, 65_536, 1 << 20, 16 << 20] {
        let value: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
        let bytes = encode(&[b"SET", b"key", &value]);
        let mut at = 0;
        while at < bytes.len() {
            let end = (at + random.usize(1..200_000)).min(bytes.len());
            wire.send(&bytes[at..end]);
            at = end;
        }
        assert_eq!(wire.receive(), ok());
        assert!(
            wire.ask(&[b"GET", b"key"]) == Value::Bulk(value),
            "a value of {length} bytes came back changed"
        );
    }
    let long = vec![b'x'; (16 << 20) + 1];
    let refused = Value::Error("ERR string exceeds maximum allowed size (proto-max-bulk-len)".to_owned());
    assert_eq!(wire.ask(&[b"SET", b"key", &long]), refused);
    assert_eq!(wire.ask(&[b"APPEND", b"key", b"one more"]), refused);
    assert_eq!(wire.say("STRLEN key"), Value::Integer(16 << 20));
}

#[test]
fn keys_expire_when_the_wall_clock_says_so() {
    let node = Node::start(8, 1_000);
    let mut wire = node.connect();
    assert_eq!(wire.say("SET a 1 EX 1000"), ok());
    assert_eq!(wire.say("SET b 1"), ok());
    assert_eq!(wire.say("TTL a"), Value::Integer(1_000));
    node.ahead.store(1_001_000, Ordering::Relaxed);
    assert_eq!(wire.say("GET a"), Value::Null);
    assert_eq!(wire.say("TTL a"), Value::Integer(-2));
    assert_eq!(wire.say("KEYS *"), Value::Array(vec![bulk("b")]));
    assert_eq!(wire.say("INCR a"), Value::Integer(1));
    assert_eq!(wire.say("TTL a"), Value::Integer(-1));
}

#[test]
fn a_scan_finds_every_key_that_stays_while_others_come_and_go() {
    let node = Node::start(9, 1_000);
    let mut wire = node.connect();
    for number in 0..300 {
        assert_eq!(wire.say(&format!("SET stay{number} x")), ok());
    }
    let mut found = std::collections::BTreeSet::new();
    let mut cursor = "0".to_owned();
    let mut round = 0;
    loop {
        round += 1;
        wire.say(&format!("SET come{round} x"));
        wire.say(&format!("DEL come{}", round / 2));
        let Value::Array(parts) = wire.say(&format!("SCAN {cursor} COUNT 7 MATCH stay*")) else {
            panic!("no scan")
        };
        let (Value::Bulk(next), Value::Array(keys)) = (&parts[0], &parts[1]) else {
            panic!("no scan")
        };
        found.extend(keys.iter().map(|key| format!("{key:?}")));
        cursor = String::from_utf8(next.clone()).unwrap();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found.len(), 300);
    let Value::Bulk(key) = wire.say("RANDOMKEY") else {
        panic!("no key")
    };
    assert!(key.starts_with(b"stay") || key.starts_with(b"come"));
}

#[test]
fn nobody_gets_in_without_the_password() {
    let config = RespConfig {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        password: Some("secret".to_owned()),
        ..RespConfig::default()
    };
    let node = Node::start_with(config, Model::new(1, 100));
    let mut wire = node.connect();
    let error = |text: &str| Value::Error(text.to_owned());
    assert_eq!(wire.say("GET a"), error("NOAUTH Authentication required."));
    assert_eq!(
        wire.say("AUTH wrong"),
        error("WRONGPASS invalid username-password pair or user is disabled.")
    );
    let Value::Error(text) = wire.say("HELLO 3") else {
        panic!("let in")
    };
    assert!(text.starts_with("NOAUTH HELLO"));
    // A pipeline may authenticate and then say something longer than an unknown client may.
    let mut bytes = encode(&[b"AUTH", b"default", b"secret"]);
    let words: Vec<&[u8]> = std::iter::once(&b"MGET"[..])
        .chain(std::iter::repeat_n(&b"k"[..], 30))
        .collect();
    bytes.extend(encode(&words));
    wire.send(&bytes);
    assert_eq!(wire.receive(), ok());
    assert_eq!(wire.receive(), Value::Array(vec![Value::Null; 30]));
    let mut other = node.connect();
    other.send(&encode(&words));
    assert_eq!(
        other.receive(),
        error("ERR Protocol error: unauthenticated multibulk length")
    );
    let mut third = node.connect();
    assert!(matches!(
        third.say("HELLO 3 AUTH default secret SETNAME me"),
        Value::Map(_)
    ));
    assert_eq!(third.say("CLIENT GETNAME"), bulk("me"));
}

#[test]
fn one_broken_client_leaves_the_others_alone() {
    let node = Node::start(11, 1_000);
    let mut good = node.connect();
    assert_eq!(good.say("SET a 1"), ok());
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..50 {
        let mut bad = TcpStream::connect(node.address).unwrap();
        let noise: Vec<u8> = (0..random.usize(1..300))
            .map(|_| b"*$\r\n0123GET ab\"'\\x"[random.usize(..18)])
            .collect();
        // The node may close it before everything is written.
        let _ = bad.write_all(&noise);
        drop(bad);
        assert_eq!(good.say("GET a"), bulk("1"));
    }
}

#[test]
fn a_client_that_leaves_in_the_middle_frees_what_it_held() {
    let node = Node::start(12, 3);
    for _ in 0..30 {
        let mut leaver = TcpStream::connect(node.address).unwrap();
        let mut bytes = encode(&[b"INCR", b"k"]).repeat(20);
        bytes.extend(encode(&[b"MSET", b"k", b"0", b"l", b"0"]));
        leaver.write_all(&bytes).unwrap();
    }
    let mut wire = node.connect();
    assert_eq!(wire.say("SET k 41"), ok());
    // The commands of those who left may still be carried out before this one, never in the middle of it.
    assert!(matches!(wire.say("INCR k"), Value::Integer(_)));
    let Value::Bulk(list) = wire.say("CLIENT LIST") else {
        panic!("no list")
    };
    assert!(!list.is_empty());
}

#[test]
fn a_drain_answers_what_was_asked_and_closes() {
    let mut node = Node::start(13, 1_000);
    let mut wire = node.connect();
    assert_eq!(wire.say("PING"), Value::Simple("PONG".to_owned()));
    wire.send(&encode(&[b"INCR", b"k"]).repeat(100));
    assert_eq!(wire.receive(), Value::Integer(1));
    node.drain.store(true, Ordering::Relaxed);
    node.join();
    let mut rest = Vec::new();
    wire.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty() || rest.starts_with(b":2\r\n"));
    assert!(TcpStream::connect(node.address).is_err());
}

#[test]
fn a_client_that_stops_speaking_still_hears_its_answers() {
    for seed in 0..4 {
        let node = Node::start(seed, 4);
        let mut stream = TcpStream::connect(node.address).unwrap();
        let mut bytes = encode(&[b"INCR", b"k"]).repeat(50);
        bytes.extend(encode(&[b"MGET", b"k", b"l"]));
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        assert!(
            all.ends_with(":50\r\n*2\r\n$2\r\n50\r\n$-1\r\n"),
            "seed {seed}: {all}"
        );
    }
}

#[test]
fn one_client_too_many_is_told_so() {
    let node = Node::start(18, 100);
    let mut wire = node.connect();
    assert_eq!(wire.say("CONFIG SET maxclients 2"), ok());
    let mut second = node.connect();
    assert_eq!(second.say("PING"), Value::Simple("PONG".to_owned()));
    let mut third = node.connect();
    assert_eq!(
        third.receive(),
        Value::Error("ERR max number of clients reached".to_owned())
    );
    drop(second);
    // Its place is free as soon as the node has seen it go.
    loop {
        let mut again = node.connect();
        again.send(&encode(&[b"PING"]));
        if again.receive() == Value::Simple("PONG".to_owned()) {
            break;
        }
    }
}

#[test]
fn idle_clients_are_closed_when_there_is_a_timeout() {
    let mut bench = Bench::start();
    bench
        .stream
        .write_all(&encode(&[b"CONFIG", b"SET", b"timeout", b"3"]))
        .unwrap();
    assert_eq!(bench.wait_for(5), b"+OK\r\n");
    assert_eq!(bench.face.connections(), 1);
    assert!(bench.face.next_deadline().is_some());
    bench.turn += 2_500_000_000;
    bench.turns(2);
    assert_eq!(bench.face.connections(), 1);
    bench.turn += 1_500_000_000;
    bench.turns(2);
    assert_eq!(bench.face.connections(), 0);
}

#[test]
fn every_command_with_subcommands_explains_them() {
    let node = Node::start(19, 100);
    let mut wire = node.connect();
    for command in [
        "CLIENT", "COMMAND", "CONFIG", "DEBUG", "MEMORY", "OBJECT", "SLOWLOG",
    ] {
        let Value::Array(lines) = wire.say(&format!("{command} HELP")) else {
            panic!("no help for {command}")
        };
        assert!(lines.len() > 2, "{command}");
    }
}

#[test]
fn clients_can_be_silent_and_can_be_killed() {
    let node = Node::start(14, 1_000);
    let (mut one, mut two) = (node.connect(), node.connect());
    one.send(b"CLIENT REPLY SKIP\r\nSET a 1\r\nGET a\r\nCLIENT REPLY OFF\r\nSET a 2\r\nGET a\r\nCLIENT REPLY ON\r\nGET a\r\n");
    assert_eq!(one.receive(), bulk("1"));
    assert_eq!(one.receive(), ok());
    assert_eq!(one.receive(), bulk("2"));
    let Value::Integer(id) = two.say("CLIENT ID") else {
        panic!("no id")
    };
    assert_eq!(one.say(&format!("CLIENT KILL ID {id}")), Value::Integer(1));
    let mut rest = Vec::new();
    two.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
}

#[test]
fn a_unix_socket_serves_and_its_file_goes_with_the_face() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.sock");
    let config = RespConfig {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        unix_path: Some(path.clone()),
        ..RespConfig::default()
    };
    let node = Node::start_with(config.clone(), Model::new(15, 100));
    assert_eq!(
        Wire::new(UnixStream::connect(&path).unwrap()).say("SET a 1"),
        ok()
    );
    assert!(RespFace::bind(config).is_err(), "a live socket was taken over");
    drop(node);
    assert!(!path.exists());
}

#[test]
fn info_config_slowlog_and_debug_tell_what_happened() {
    let node = Node::start(16, 1_000);
    let mut wire = node.connect();
    assert_eq!(wire.say("SET a 1"), ok());
    assert_eq!(
        wire.say("CONFIG SET slowlog-log-slower-than 1000 slowlog-max-len 5"),
        ok()
    );
    assert_eq!(wire.say("DEBUG SLEEP 0.01"), ok());
    let Value::Array(entries) = wire.say("SLOWLOG GET") else {
        panic!("no log")
    };
    let Value::Array(entry) = entries.last().unwrap() else {
        panic!("no entry")
    };
    assert_eq!(
        entry[3],
        Value::Array(vec![bulk("debug"), bulk("... (2 more arguments)")])
    );
    let Value::Bulk(info) = wire.say("INFO commandstats keyspace") else {
        panic!("no info")
    };
    let info = String::from_utf8(info).unwrap();
    assert!(info.contains("cmdstat_set:calls=1,"), "{info}");
    assert!(info.contains("db0:keys=1,"), "{info}");
    assert_eq!(wire.say("CONFIG RESETSTAT"), ok());
    assert_eq!(wire.say("MEMORY USAGE a"), Value::Integer(64));
    assert!(matches!(wire.say("DEBUG OBJECT a"), Value::Simple(_)));
    assert_eq!(wire.say("SAVE"), ok());
    let Value::Error(text) = wire.say("CONFIG SET appendfsync no") else {
        panic!("accepted")
    };
    assert!(text.starts_with("ERR CONFIG SET failed"), "{text}");
    let Value::Array(docs) = wire.say("COMMAND DOCS get") else {
        panic!("no docs")
    };
    assert_eq!(docs[0], bulk("get"));
    let Value::Integer(count) = wire.say("COMMAND COUNT") else {
        panic!("no count")
    };
    let Value::Array(all) = wire.say("COMMAND") else {
        panic!("no commands")
    };
    assert_eq!(all.len(), usize::try_from(count).unwrap());
}

/// Runs face and model by hand, so that a test can stop durability.
struct Bench {
    face: RespFace,
    model: Model,
    stream: TcpStream,
    turn: u64,
}

impl Bench {
    fn start() -> Self {
        let config = RespConfig {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            ..RespConfig::default()
        };
        let face = RespFace::bind(config).unwrap();
        let stream = TcpStream::connect(face.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self {
            face,
            model: Model::new(17, 1_000),
            stream,
            turn: 0,
        }
    }

    fn turns(&mut self, count: u64) {
        for _ in 0..count {
            self.turn += 3_000;
            self.face
                .poll(&mut self.model, Nanos(self.turn), UnixMillis(1_000_000));
        }
    }

    fn received(&mut self) -> Vec<u8> {
        let mut buffer = vec![0; 10_000];
        match self.stream.read(&mut buffer) {
            Ok(count) => buffer[..count].to_vec(),
            Err(_) => Vec::new(),
        }
    }

    /// Turns until so many bytes have come.
    fn wait_for(&mut self, bytes: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for _ in 0..1_000_000 {
            self.turns(1);
            all.extend(self.received());
            if all.len() >= bytes {
                return all;
            }
        }
        panic!("{bytes} bytes never came");
    }
}

#[test]
fn nothing_leaves_before_what_it_wrote_or_saw_is_durable() {
    let mut bench = Bench::start();
    bench.stream.write_all(&encode(&[b"SET", b"k", b"text"])).unwrap();
    assert_eq!(bench.wait_for(5), b"+OK\r\n");
    bench.model.flushing = false;
    let mut asked = Vec::new();
    for words in [
        &[&b"INCR"[..], b"n"][..],
        &[b"INCR", b"n"],
        &[b"APPEND", b"k", b"more"],
        // Reads what is not durable and decides not to write.
        &[b"INCR", b"k"],
        &[b"GETEX", b"k", b"PERSIST"],
        &[b"GET", b"n"],
        &[b"DEL", b"n"],
        &[b"PERSIST", b"n"],
        &[b"MGET", b"n", b"k"],
        &[b"RENAME", b"k", b"l"],
    ] {
        asked.extend(encode(words));
    }
    bench.stream.write_all(&asked).unwrap();
    bench.turns(2_000);
    assert_eq!(bench.received(), b"", "a reply left before it was durable");
    bench.model.flushing = true;
    let expected = b":1\r\n:2\r\n:8\r\n-ERR value is not an integer or out of range\r\n$8\r\ntextmore\r\n$1\r\n2\r\n:1\r\n:0\r\n\
        *2\r\n$-1\r\n$8\r\ntextmore\r\n+OK\r\n";
    assert_eq!(
        String::from_utf8_lossy(&bench.wait_for(expected.len())),
        String::from_utf8_lossy(expected)
    );
}

#[test]
fn increments_of_one_pipeline_do_not_wait_for_each_others_durability() {
    let mut bench = Bench::start();
    bench.model.flushing = false;
    bench
        .stream
        .write_all(&encode(&[b"INCR", b"n"]).repeat(50))
        .unwrap();
    bench.turns(2_000);
    // All fifty are written though none is durable: a single flush releases them all.
    bench.model.flush_once();
    let expected: String = (1..=50).map(|value| format!(":{value}\r\n")).collect();
    assert_eq!(
        String::from_utf8(bench.wait_for(expected.len())).unwrap(),
        expected
    );
}
