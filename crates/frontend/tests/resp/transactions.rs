//! Tests of the guarantees of transactions: atomic, isolated, bounded, durable before they are answered.

use crate::harness::RespHarness;
use crate::model::{KvDeviceModel, ModelReads};
use crate::wire::{RespTestClient, RespValue, TestNode, encode};
use headwater_frontend::resp::RespConfig;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;

pub(crate) fn ok() -> RespValue {
    RespValue::Simple("OK".to_owned())
}

pub(crate) fn queued() -> RespValue {
    RespValue::Simple("QUEUED".to_owned())
}

pub(crate) fn bulk(text: &str) -> RespValue {
    RespValue::Bulk(text.as_bytes().to_vec())
}

pub(crate) fn error_of(value: RespValue) -> String {
    match value {
        RespValue::Error(text) => text,
        other => panic!("no error: {other:?}"),
    }
}

/// Sends a transaction as one pipeline, and returns the reply of EXEC.
pub(crate) fn exec(wire: &mut RespTestClient<TcpStream>, lines: &[String]) -> RespValue {
    let mut bytes = encode(&[b"MULTI"]);
    for line in lines {
        bytes.extend(encode(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>()));
    }
    bytes.extend(encode(&[b"EXEC"]));
    wire.send(&bytes);
    assert_eq!(wire.receive(), ok());
    for line in lines {
        assert_eq!(wire.receive(), queued(), "{line}");
    }
    wire.receive()
}

/// Starts a node on a model in which another front end writes between the commands of this one.
pub(crate) fn node_beside_another_front_end(seed: u64, room: usize) -> TestNode {
    let mut model = KvDeviceModel::new(seed, room);
    model.rewriting = true;
    let config = RespConfig { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..RespConfig::default() };
    TestNode::start_with(config, model)
}

/// Starts a node with little room, with much, or beside another front end, by the seed.
pub(crate) fn node_of_a_kind(seed: u64) -> TestNode {
    match seed % 3 {
        0 => TestNode::start(seed, 4),
        1 => TestNode::start(seed, 4_000),
        _ => node_beside_another_front_end(seed, 100),
    }
}

#[test]
fn transactions_of_many_clients_are_isolated_and_lose_no_increment() {
    for seed in 0..6 {
        eprintln!("seed {seed}");
        let node = node_of_a_kind(seed);
        let mut wires: Vec<_> = (0..8).map(|_| node.connect()).collect();
        let burst: Vec<u8> = [&[&b"MULTI"[..]][..], &[b"INCR", b"a"], &[b"APPEND", b"b", b"x"], &[b"EXEC"]]
            .iter()
            .flat_map(|words| encode(words))
            .collect();
        let look: Vec<u8> = [&[&b"MULTI"[..]][..], &[b"GET", b"a"], &[b"STRLEN", b"b"], &[b"EXEC"]]
            .iter()
            .flat_map(|words| encode(words))
            .collect();
        for (at, wire) in wires.iter_mut().enumerate() {
            wire.send(&if at < 6 { burst.repeat(20) } else { look.repeat(20) });
        }
        let mut seen = Vec::new();
        for (at, wire) in wires.iter_mut().enumerate() {
            for _ in 0..20 {
                assert_eq!((wire.receive(), wire.receive(), wire.receive()), (ok(), queued(), queued()));
                let RespValue::Array(parts) = wire.receive() else { panic!("seed {seed}: no array") };
                let count = match &parts[0] {
                    RespValue::Integer(count) => *count,
                    RespValue::Bulk(count) => std::str::from_utf8(count).unwrap().parse().unwrap(),
                    RespValue::Null => 0,
                    other => panic!("seed {seed}: {other:?}"),
                };
                assert_eq!(parts[1], RespValue::Integer(count), "seed {seed}: a transaction was divided");
                if at < 6 {
                    seen.push(count);
                }
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (1..=120).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn transaction_whose_reads_wait_does_not_keep_other_clients_waiting() {
    let mut harness = RespHarness::start();
    let mut neighbour = TcpStream::connect(harness.front_end.local_addr().unwrap()).unwrap();
    neighbour.set_nonblocking(true).unwrap();
    harness.stream.write_all(&encode(&[b"SET", b"k", b"1"])).unwrap();
    harness.wait_for(5);
    // The batch finds a changed key; the second run is inside the gate, and its read waits.
    harness.model.reads = ModelReads::OneMore;
    let lines = [&[&b"MULTI"[..]][..], &[b"INCR", b"k"], &[b"EXEC"]];
    harness.stream.write_all(&lines.iter().flat_map(|words| encode(words)).collect::<Vec<_>>()).unwrap();
    let mut replies = harness.wait_for(14);
    while harness.model.reads != ModelReads::Held {
        harness.turns(1);
    }
    harness.turns(100);
    neighbour.write_all(&encode(&[b"PING"])).unwrap();
    let mut reply = [0; 7];
    let answered = (0..100_000).any(|_| {
        harness.turns(1);
        matches!(std::io::Read::read(&mut neighbour, &mut reply), Ok(7))
    });
    assert!(answered, "a client waits for the gate of another client's transaction");
    replies.extend(harness.received());
    assert_eq!(replies, b"+OK\r\n+QUEUED\r\n");
    harness.model.reads = ModelReads::Free;
    assert_eq!(harness.wait_for(8), b"*1\r\n:2\r\n");
}

#[test]
fn watched_counter_loses_no_increment_beside_transactions_and_plain_writes() {
    for seed in 0..4 {
        eprintln!("seed {seed}");
        let node =
            if seed % 2 == 0 { TestNode::start(seed, 100) } else { node_beside_another_front_end(seed, 100) };
        let mut wires: Vec<_> = (0..4).map(|_| node.connect()).collect();
        let (mut done, mut failed) = (0, 0);
        while done < 60 {
            // Every client reads the counter before any of them writes it.
            let mut values = Vec::new();
            for wire in &mut wires {
                assert_eq!(wire.call_line("WATCH counter"), ok());
                values.push(match wire.call_line("GET counter") {
                    RespValue::Bulk(value) => std::str::from_utf8(&value).unwrap().parse::<u64>().unwrap(),
                    _ => 0,
                });
            }
            for (wire, value) in wires.iter_mut().zip(values) {
                match exec(wire, &[format!("SET counter {}", value + 1)]) {
                    RespValue::Array(_) => done += 1,
                    RespValue::NullArray | RespValue::Null => failed += 1,
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
        }
        assert_eq!(wires[0].call_line("GET counter"), bulk(&done.to_string()), "seed {seed}");
        assert!(failed >= done, "seed {seed}: {failed} of {done} failed");
    }
}

#[test]
fn transaction_whose_watched_key_expired_does_nothing() {
    let node = TestNode::start(8, 1_000);
    let mut wire = node.connect();
    assert_eq!(wire.call_line("SET a 1 EX 1000"), ok());
    assert_eq!(wire.call_line("WATCH a"), ok());
    node.wall_offset_ms.store(1_001_000, Ordering::Relaxed);
    assert_eq!(exec(&mut wire, &["SET b 1".to_owned()]), RespValue::NullArray);
    assert_eq!(wire.call_line("EXISTS a b"), RespValue::Integer(0));
    // A key that had expired before is watched as a missing one.
    assert_eq!(wire.call_line("WATCH a"), ok());
    assert_eq!(exec(&mut wire, &["SET b 1".to_owned()]), RespValue::Array(vec![ok()]));
}

#[test]
fn transaction_is_not_answered_before_what_it_wrote_and_read_is_durable() {
    let mut bench = RespHarness::start();
    bench.model.flushing = false;
    let mut asked = encode(&[b"SET", b"seen", b"x"]);
    bench.stream.write_all(&asked).unwrap();
    bench.turns(2_000);
    assert_eq!(bench.received(), b"");
    for words in [
        &[&b"MULTI"[..]][..],
        &[b"SET", b"k", b"v"],
        &[b"EXEC"],
        // Writes nothing, and reads what is not durable.
        &[b"MULTI"],
        &[b"GET", b"k"],
        &[b"EXEC"],
    ] {
        asked = encode(words);
        bench.stream.write_all(&asked).unwrap();
    }
    bench.turns(2_000);
    assert_eq!(bench.received(), b"", "a transaction was answered before its data was durable");
    bench.model.flushing = true;
    let expected = b"+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n$1\r\nv\r\n";
    assert_eq!(String::from_utf8_lossy(&bench.wait_for(expected.len())), String::from_utf8_lossy(expected));
}

#[test]
fn transaction_ends_with_its_connection() {
    let node = TestNode::start(3, 1_000);
    let mut wire = node.connect();
    let mut gone = node.connect();
    assert_eq!(gone.call_line("WATCH a"), ok());
    assert_eq!(gone.call_line("MULTI"), ok());
    assert_eq!(gone.call_line("SET a 1"), queued());
    drop(gone);
    assert_eq!(wire.call_line("EXISTS a"), RespValue::Integer(0));
    // The client does not wait for the replies: the transaction happens as a whole or not at all.
    for round in 0..200 {
        let mut hasty = node.connect();
        let mut bytes = encode(&[b"MULTI"]);
        for key in [&b"x"[..], b"y", b"z"] {
            bytes.extend(encode(&[b"INCR", key]));
        }
        bytes.extend(encode(&[b"EXEC"]));
        hasty.send(&bytes);
        if round % 2 == 0 {
            assert_eq!(hasty.receive(), ok());
        }
        drop(hasty);
    }
    let RespValue::Array(counts) = wire.call_line("MGET x y z") else { panic!("no array") };
    assert!(counts[0] == counts[1] && counts[1] == counts[2], "{counts:?}");
}

#[test]
fn client_list_shows_transactions_and_watched_keys() {
    let node = TestNode::start(4, 1_000);
    let (mut wire, mut other) = (node.connect(), node.connect());
    let info = |wire: &mut RespTestClient<TcpStream>| match wire.call_line("CLIENT LIST") {
        RespValue::Bulk(text) => String::from_utf8(text).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(other.call_line("WATCH a b a"), ok());
    let list = info(&mut wire);
    assert!(list.contains(" multi=-1 watch=2 "), "{list}");
    assert_eq!(other.call_line("MULTI"), ok());
    assert_eq!(other.call_line("GET a"), queued());
    let list = info(&mut wire);
    assert!(list.contains(" flags=x ") && list.contains(" multi=1 watch=2 "), "{list}");
    assert_eq!(other.call_line("DISCARD"), ok());
    assert!(!info(&mut wire).contains("watch=2"));
}

#[test]
fn commands_that_cannot_be_in_a_transaction_are_refused_when_they_are_queued() {
    let node = TestNode::start(5, 1_000);
    let mut wire = node.connect();
    for line in [
        "SAVE",
        "BGSAVE",
        "DEBUG SLEEP 0",
        "HELLO 3",
        "AUTH x",
        "CLIENT REPLY OFF",
        "CLIENT KILL ID 1",
        "CONFIG SET timeout 1",
        "SLOWLOG RESET",
    ] {
        assert_eq!(wire.call_line("MULTI"), ok());
        assert_eq!(wire.call_line("SET a 1"), queued());
        let text = error_of(wire.call_line(line));
        assert!(text.starts_with("ERR Command not allowed inside a transaction"), "{line}: {text}");
        assert_eq!(wire.call_line("SET b 1"), queued());
        assert!(error_of(wire.call_line("EXEC")).starts_with("EXECABORT"), "{line}");
        assert_eq!(wire.call_line("EXISTS a b"), RespValue::Integer(0), "{line}");
    }
    let allowed =
        ["CLIENT ID", "CLIENT GETNAME", "CONFIG GET timeout", "SLOWLOG LEN", "TIME", "SELECT 1", "INFO"];
    let RespValue::Array(parts) = exec(&mut wire, &allowed.map(str::to_owned)) else { panic!("no array") };
    assert!(parts.iter().all(|part| !matches!(part, RespValue::Error(_))), "{parts:?}");
}

#[test]
fn transaction_beyond_a_limit_is_refused_whole() {
    let node = TestNode::start(6, 4_000);
    let mut wire = node.connect();
    // More bytes than a queue holds.
    let value = vec![b'v'; 12 << 20];
    assert_eq!(wire.call_line("MULTI"), ok());
    assert_eq!(wire.call(&[b"SET", b"a", &value]), queued());
    assert_eq!(wire.call(&[b"SET", b"b", &value]), queued());
    assert!(error_of(wire.call(&[b"SET", b"c", &value])).contains("32 MiB"));
    assert_eq!(
        error_of(wire.call_line("EXEC")),
        "EXECABORT Transaction discarded because of previous errors."
    );
    assert_eq!(wire.call_line("EXISTS a b c"), RespValue::Integer(0));
    // More keys than one batch of the device has.
    let pairs = |first: u32| {
        let mut words = vec![b"MSET".to_vec()];
        for key in first..first + 40_000 {
            words.extend([key.to_string().into_bytes(), b"v".to_vec()]);
        }
        words
    };
    assert_eq!(wire.call_line("MULTI"), ok());
    for first in [0, 40_000] {
        let words = pairs(first);
        assert_eq!(wire.call(&words.iter().map(Vec::as_slice).collect::<Vec<_>>()), queued());
    }
    let text = error_of(wire.call_line("EXEC"));
    assert!(text.starts_with("EXECABORT") && text.contains("80000 keys") && text.contains("65536"), "{text}");
    assert_eq!(wire.call_line("DBSIZE"), RespValue::Integer(0));
    // Values that together are too long for one reply.
    assert_eq!(wire.call(&[b"SET", b"a", &value]), ok());
    let reads: Vec<String> = (0..6).map(|_| "GET a".to_owned()).collect();
    let text = error_of(exec(&mut wire, &[&reads[..], &["SET b 1".to_owned()]].concat()));
    assert!(text.starts_with("EXECABORT") && text.contains("64 MiB"), "{text}");
    assert_eq!(wire.call_line("EXISTS b"), RespValue::Integer(0));
    let RespValue::Array(parts) = exec(&mut wire, &reads[..4]) else { panic!("no array") };
    assert_eq!(parts.len(), 4);
    // The same, by one command that would need 12 GiB.
    let many = format!("MGET{}", " a".repeat(1_000));
    let text = error_of(exec(&mut wire, &[many]));
    assert!(text.starts_with("EXECABORT") && text.contains("64 MiB"), "{text}");
    // Watched keys.
    let long = vec![b'k'; 60_000];
    let mut text = String::new();
    for number in 0..100 {
        let key = [&long[..], number.to_string().as_bytes()].concat();
        if let RespValue::Error(refused) = wire.call(&[b"WATCH", &key]) {
            text = refused;
            break;
        }
    }
    assert!(text.contains("4 MiB"), "{text}");
}

#[test]
fn long_transaction_is_run_in_slices_and_sees_its_own_writes() {
    for room in [3, 4_000] {
        let node = TestNode::start(7, room);
        let mut wire = node.connect();
        let lines: Vec<String> = (0..3_000)
            .map(|at| match at % 3 {
                0 => format!("SET k{} {at}", at / 3),
                1 => format!("INCR k{}", at / 3),
                _ => "INCR total".to_owned(),
            })
            .collect();
        let RespValue::Array(parts) = exec(&mut wire, &lines) else { panic!("no array") };
        for (at, part) in (0..).zip(&parts) {
            let expected = match at % 3 {
                0 => ok(),
                1 => RespValue::Integer(at),
                _ => RespValue::Integer(at / 3 + 1),
            };
            assert_eq!(*part, expected, "{}", lines[usize::try_from(at).unwrap()]);
        }
        assert_eq!(wire.call_line("GET k999"), bulk("2998"));
    }
}
