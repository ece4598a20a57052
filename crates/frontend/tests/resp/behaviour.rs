//! Tests of the front end's guarantees for commands and replies.

use crate::harness::RespHarness;
use crate::model::KvDeviceModel;
use crate::wire::{RespValue, TestNode, encode};
use headwater_frontend::counters::{FrontEndCounters, StatusClass};
use headwater_frontend::resp::RespConfig;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

fn ok() -> RespValue {
    RespValue::Simple("OK".to_owned())
}

fn bulk(text: &str) -> RespValue {
    RespValue::Bulk(text.as_bytes().to_vec())
}

#[test]
fn counters_of_many_clients_lose_no_increment() {
    for seed in 0..6 {
        eprintln!("seed {seed}");
        let node = TestNode::start(seed, if seed % 2 == 0 { 4 } else { 4_000 });
        let mut wires: Vec<_> = (0..20).map(|_| node.connect()).collect();
        let burst = encode(&[b"INCR", b"counter"]).repeat(30);
        for wire in &mut wires {
            wire.send(&burst);
        }
        let mut seen = Vec::new();
        for wire in &mut wires {
            let mut last = 0;
            for _ in 0..30 {
                let RespValue::Integer(value) = wire.receive() else { panic!("no number") };
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
fn edits_stay_atomic_while_another_front_end_writes_the_same_keys() {
    for seed in 0..4 {
        eprintln!("seed {seed}");
        let mut model = KvDeviceModel::new(seed, 50);
        model.rewriting = true;
        let config =
            RespConfig { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..RespConfig::default() };
        let node = TestNode::start_with(config, model);
        let mut wires: Vec<_> = (0..8).map(|_| node.connect()).collect();
        let mut seen = Vec::new();
        for round in 0..30 {
            for wire in &mut wires {
                wire.send(&encode(&[b"INCR", b"counter"]));
                wire.send(&encode(&[b"APPEND", b"text", b"x"]));
            }
            for wire in &mut wires {
                let RespValue::Integer(value) = wire.receive() else { panic!("no number") };
                seen.push(value);
                assert!(matches!(wire.receive(), RespValue::Integer(_)));
            }
            let (from, to) = (format!("name{round}"), format!("name{}", round + 1));
            wires[0].call_line(&format!("SET {from} v"));
            assert_eq!(wires[0].call_line(&format!("RENAME {from} {to}")), ok());
            assert_eq!(
                wires[0].call_line(&format!("MGET {from} {to}")),
                RespValue::Array(vec![RespValue::Null, bulk("v")])
            );
        }
        seen.sort_unstable();
        assert_eq!(seen, (1..=240).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(wires[0].call_line("STRLEN text"), RespValue::Integer(240));
    }
}

#[test]
fn bitop_loses_no_bit_that_another_client_sets_in_its_source() {
    for seed in 0..4 {
        eprintln!("seed {seed}");
        let node = TestNode::start(seed, if seed % 2 == 0 { 4 } else { 4_000 });
        let mut wires: Vec<_> = (0..8).map(|_| node.connect()).collect();
        wires[0].call_line("SETBIT one 0 1");
        for (client, wire) in wires.iter_mut().enumerate() {
            for round in 0..40 {
                wire.send(&match client {
                    0..4 => encode(&[b"SETBIT", b"bits", (client * 40 + round).to_string().as_bytes(), b"1"]),
                    _ => encode(&[b"BITOP", b"OR", b"bits", b"one", b"bits"]),
                });
            }
        }
        for wire in &mut wires {
            for _ in 0..40 {
                assert!(matches!(wire.receive(), RespValue::Integer(_)), "seed {seed}");
            }
        }
        assert_eq!(wires[0].call_line("BITCOUNT bits"), RespValue::Integer(160), "seed {seed}");
    }
}

/// Arguments that are valid for some commands and invalid for most.
const ODD: &str = "k k 0 -1 1 3 9223372036854775807 -9223372036854775808 1e400 nan * [ \u{ff}\0\r\n EX PX NX GET KEEPTTL COUNT \
    MATCH IDX LEN DB REPLACE USAGE ENCODING ID LIST INFO SET timeout DOCS help SETNAME AUTH 16777216 134217727";

#[test]
fn any_command_with_any_arguments_gets_exactly_one_reply() {
    for seed in 0..8 {
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let node = TestNode::start(seed, if seed % 2 == 0 { 3 } else { 1_000 });
        let odd: Vec<&[u8]> = ODD.split(' ').map(str::as_bytes).chain([&b""[..]]).collect();
        let RespValue::Array(names) = node.connect().call_line("COMMAND LIST") else { panic!("no names") };
        let mut wire = node.connect();
        for _ in 0..60 {
            let mut bytes = Vec::new();
            let count = random.usize(1..30);
            for _ in 0..count {
                let RespValue::Bulk(name) = &names[random.usize(..names.len())] else { panic!("no name") };
                // These may close the connection or suppress or delay replies.
                let name: &[u8] = if matches!(&name[..], b"quit" | b"debug" | b"client" | b"config") {
                    b"get"
                } else {
                    name
                };
                let mut words = vec![name];
                words.extend((0..random.usize(..6)).map(|_| odd[random.usize(..odd.len())]));
                bytes.extend(encode(&words));
            }
            // A transaction may be open.
            bytes.extend(encode(&[b"DISCARD"]));
            bytes.extend(encode(&[b"ECHO", b"the end of it"]));
            wire.send(&bytes);
            for _ in 0..=count {
                assert_ne!(wire.receive(), bulk("the end of it"), "seed {seed}: a reply was missing");
            }
            assert_eq!(wire.receive(), bulk("the end of it"), "seed {seed}: a reply too many");
        }
    }
}

#[test]
fn a_pipeline_reads_its_own_writes_in_order() {
    for seed in 0..6 {
        eprintln!("seed {seed}");
        let node = TestNode::start(seed, if seed % 2 == 0 { 5 } else { 4_000 });
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
            assert_eq!(wire.receive(), RespValue::Integer(i64::try_from(value.len()).unwrap()));
            assert_eq!(wire.receive(), bulk(&value));
            assert_eq!(wire.receive(), RespValue::Array(vec![bulk(&value), RespValue::Null]));
            assert_eq!(wire.receive(), RespValue::Integer(1));
            assert_eq!(wire.receive(), RespValue::Integer(0));
        }
    }
}

#[test]
fn values_of_every_size_are_read_back_unchanged_under_any_split_of_the_stream() {
    let node = TestNode::start(7, 1_000);
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
            wire.call(&[b"GET", b"key"]) == RespValue::Bulk(value),
            "a value of {length} bytes was read back changed"
        );
    }
    let refused = RespValue::Error("ERR string exceeds maximum allowed size (proto-max-bulk-len)".to_owned());
    assert_eq!(wire.call(&[b"APPEND", b"key", b"one more"]), refused);
    assert_eq!(wire.call_line("STRLEN key"), RespValue::Integer(16 << 20));
    // Longer values are stored and read, and not changed in part.
    let long = vec![b'x'; (16 << 20) + 1];
    assert_eq!(wire.call(&[b"SET", b"key", &long]), ok());
    assert!(wire.call(&[b"GET", b"key"]) == RespValue::Bulk(long.clone()));
    assert_eq!(wire.call_line("STRLEN key"), RespValue::Integer((16 << 20) + 1));
    assert_eq!(wire.call_line("GETRANGE key 16777210 -1"), bulk("xxxxxxx"));
    assert_eq!(wire.call(&[b"APPEND", b"key", b"one more"]), refused);
    let refusal = wire.call(&[b"MSET", b"key", &long, b"other", b"o"]);
    assert!(
        matches!(&refusal, RespValue::Error(text) if text.contains("16777216 where it is written together")),
        "{refusal:?}"
    );
    assert_eq!(wire.call_line("STRLEN key"), RespValue::Integer((16 << 20) + 1));
}

#[test]
fn keys_expire_by_the_wall_clock() {
    let node = TestNode::start(8, 1_000);
    let mut wire = node.connect();
    assert_eq!(wire.call_line("SET a 1 EX 1000"), ok());
    assert_eq!(wire.call_line("SET b 1"), ok());
    assert_eq!(wire.call_line("TTL a"), RespValue::Integer(1_000));
    node.wall_offset_ms.store(1_001_000, Ordering::Relaxed);
    assert_eq!(wire.call_line("GET a"), RespValue::Null);
    assert_eq!(wire.call_line("TTL a"), RespValue::Integer(-2));
    assert_eq!(wire.call_line("KEYS *"), RespValue::Array(vec![bulk("b")]));
    assert_eq!(wire.call_line("INCR a"), RespValue::Integer(1));
    assert_eq!(wire.call_line("TTL a"), RespValue::Integer(-1));
}

#[test]
fn a_scan_returns_every_key_that_exists_throughout_it() {
    let node = TestNode::start(9, 1_000);
    let mut wire = node.connect();
    for number in 0..300 {
        assert_eq!(wire.call_line(&format!("SET stay{number} x")), ok());
    }
    let mut found = std::collections::BTreeSet::new();
    let mut cursor = "0".to_owned();
    let mut round = 0;
    loop {
        round += 1;
        wire.call_line(&format!("SET come{round} x"));
        wire.call_line(&format!("DEL come{}", round / 2));
        let RespValue::Array(parts) = wire.call_line(&format!("SCAN {cursor} COUNT 7 MATCH stay*")) else {
            panic!("no scan")
        };
        let (RespValue::Bulk(next), RespValue::Array(keys)) = (&parts[0], &parts[1]) else {
            panic!("no scan")
        };
        found.extend(keys.iter().map(|key| format!("{key:?}")));
        cursor = String::from_utf8(next.clone()).unwrap();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found.len(), 300);
    let RespValue::Bulk(key) = wire.call_line("RANDOMKEY") else { panic!("no key") };
    assert!(key.starts_with(b"stay") || key.starts_with(b"come"));
}

#[test]
fn every_command_with_subcommands_answers_help() {
    let node = TestNode::start(19, 100);
    let mut wire = node.connect();
    for command in ["CLIENT", "COMMAND", "CONFIG", "DEBUG", "MEMORY", "OBJECT", "SLOWLOG"] {
        let RespValue::Array(lines) = wire.call_line(&format!("{command} HELP")) else {
            panic!("no help for {command}")
        };
        assert!(lines.len() > 2, "{command}");
    }
}

#[test]
fn info_config_slowlog_and_debug_report_state() {
    let node = TestNode::start(16, 1_000);
    let mut wire = node.connect();
    assert_eq!(wire.call_line("SET a 1"), ok());
    assert_eq!(wire.call_line("CONFIG SET slowlog-log-slower-than 1000 slowlog-max-len 5"), ok());
    assert_eq!(wire.call_line("DEBUG SLEEP 0.01"), ok());
    let RespValue::Array(entries) = wire.call_line("SLOWLOG GET") else { panic!("no log") };
    // On a busy machine the log may contain other commands too.
    let words = RespValue::Array(vec![bulk("debug"), bulk("... (2 more arguments)")]);
    let is_sleep = |entry: &RespValue| matches!(entry, RespValue::Array(parts) if parts.contains(&words));
    assert!(entries.iter().any(is_sleep));
    let RespValue::Bulk(info) = wire.call_line("INFO commandstats keyspace") else { panic!("no info") };
    let info = String::from_utf8(info).unwrap();
    assert!(info.contains("cmdstat_set:calls=1,"), "{info}");
    assert!(info.contains("db0:keys=1,"), "{info}");
    assert_eq!(wire.call_line("CONFIG RESETSTAT"), ok());
    assert_eq!(wire.call_line("MEMORY USAGE a"), RespValue::Integer(64));
    assert!(matches!(wire.call_line("DEBUG OBJECT a"), RespValue::Simple(_)));
    assert_eq!(wire.call_line("SAVE"), ok());
    let RespValue::Error(text) = wire.call_line("CONFIG SET appendfsync no") else { panic!("accepted") };
    assert!(text.starts_with("ERR CONFIG SET failed"), "{text}");
    let RespValue::Array(docs) = wire.call_line("COMMAND DOCS get") else { panic!("no docs") };
    assert_eq!(docs[0], bulk("get"));
    let RespValue::Integer(count) = wire.call_line("COMMAND COUNT") else { panic!("no count") };
    let RespValue::Array(all) = wire.call_line("COMMAND") else { panic!("no commands") };
    assert_eq!(all.len(), usize::try_from(count).unwrap());
}

#[test]
fn no_reply_is_sent_before_the_data_it_depends_on_is_durable() {
    let mut bench = RespHarness::start();
    bench.stream.write_all(&encode(&[b"SET", b"k", b"text"])).unwrap();
    assert_eq!(bench.wait_for(5), b"+OK\r\n");
    bench.model.flushing = false;
    let mut asked = Vec::new();
    for words in [
        &[&b"INCR"[..], b"n"][..],
        &[b"INCR", b"n"],
        &[b"APPEND", b"k", b"more"],
        // Reads a value that is not durable and does not write.
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
    assert_eq!(bench.received(), b"", "a reply was sent before its data was durable");
    bench.model.flushing = true;
    let expected = b":1\r\n:2\r\n:8\r\n-ERR value is not an integer or out of range\r\n$8\r\ntextmore\r\n$1\r\n2\r\n:1\r\n:0\r\n\
        *2\r\n$-1\r\n$8\r\ntextmore\r\n+OK\r\n";
    assert_eq!(String::from_utf8_lossy(&bench.wait_for(expected.len())), String::from_utf8_lossy(expected));
}

#[test]
fn increments_of_one_pipeline_share_one_flush() {
    let mut bench = RespHarness::start();
    bench.model.flushing = false;
    bench.stream.write_all(&encode(&[b"INCR", b"n"]).repeat(50)).unwrap();
    bench.turns(2_000);
    // All 50 increments are written though none is durable: a single flush releases them all.
    bench.model.flush_once();
    let expected: String = (1..=50).map(|value| format!(":{value}\r\n")).collect();
    assert_eq!(String::from_utf8(bench.wait_for(expected.len())).unwrap(), expected);
}

/// Checks for a former defect: CONFIG RESETSTAT set the counters of the metrics to zero too: `headwater_commands_total`
/// went backwards.
#[test]
fn resetstat_resets_info_and_leaves_the_metrics() {
    let mut bench = RespHarness::start();
    bench.model.expired = 9;
    bench.stream.write_all(&encode(&[b"SET", b"k", b"text"])).unwrap();
    bench.wait_for(5);
    let counted = |bench: &RespHarness| {
        let mut counters = FrontEndCounters::default();
        bench.front_end.count(&mut counters);
        counters
    };
    let before = counted(&bench);
    assert_eq!(before.commands.get(&("set", StatusClass::Ok)), Some(&1));
    bench.stream.write_all(&encode(&[b"CONFIG", b"RESETSTAT"])).unwrap();
    bench.wait_for(5);
    bench.model.expired = 11;
    let after = counted(&bench);
    assert_eq!(after.commands.get(&("set", StatusClass::Ok)), Some(&1));
    assert_eq!((before.connections_total, after.connections_total), (1, 1));
    assert!(after.bytes_in > before.bytes_in && after.bytes_out > before.bytes_out);
    bench.stream.write_all(&encode(&[b"INFO", b"stats", b"commandstats"])).unwrap();
    let info = String::from_utf8(bench.wait_for(400)).unwrap();
    // The command that resets is counted when it has ended.
    for field in ["total_connections_received:0", "total_commands_processed:1", "expired_keys:2"] {
        assert!(info.lines().any(|line| line == field), "{field} is missing: {info}");
    }
    assert!(!info.contains("cmdstat_set:"), "{info}");
}

#[test]
fn error_of_a_write_that_is_too_large_names_its_bytes_and_the_limit() {
    let node = TestNode::start(61, 1_000);
    let mut wire = node.connect();
    let (fits, half) = (vec![b'v'; 11 << 20], vec![b'v'; 13 << 20]);
    assert_eq!(wire.call(&[b"MSET", b"a", &fits, b"b", &fits]), RespValue::Simple("OK".to_owned()));
    let RespValue::Error(text) = wire.call(&[b"MSET", b"a", b"new", b"b", &half, b"c", &half]) else {
        panic!("the write was taken")
    };
    let bytes = 2 * (13 << 20) + 3 * (1 + 48) + 3;
    assert!(text.contains(&format!("headers of {bytes} bytes")) && text.contains("(25165824)"), "{text}");
    let keys: Vec<Vec<u8>> = (0..65_537).map(|number| number.to_string().into_bytes()).collect();
    let mut many: Vec<&[u8]> = vec![b"MSET"];
    keys.iter().for_each(|key| many.extend([&key[..], b"v"]));
    let RespValue::Error(text) = wire.call(&many) else { panic!("the write was taken") };
    assert!(text.contains("65537 keys") && text.contains("(65536)"), "{text}");
    assert_eq!(wire.call_line("STRLEN a"), RespValue::Integer(11 << 20), "a refused write has an effect");
}

#[test]
fn appends_in_a_row_are_one_write_and_each_has_its_reply() {
    let mut harness = RespHarness::start();
    let mut pipeline = encode(&[b"SET", b"k", b"0"]);
    for _ in 0..50 {
        pipeline.extend(encode(&[b"append", b"k", b"0123456789"]));
    }
    pipeline.extend(encode(&[b"APPEND", b"other", b"abc"]));
    pipeline.extend(encode(&[b"APPEND", b"k", b""]));
    pipeline.extend(encode(&[b"GET", b"k"]));
    harness.stream.write_all(&pipeline).unwrap();
    let lengths: String = (0..50).map(|at| format!(":{}\r\n", 11 + at * 10)).collect();
    let value = format!("0{}", "0123456789".repeat(50));
    let expected = format!("+OK\r\n{lengths}:3\r\n:501\r\n$501\r\n{value}\r\n");
    let received = harness.wait_for(expected.len());
    assert_eq!(String::from_utf8_lossy(&received), expected);
    assert_eq!(harness.model.writes(), 4);
}

#[test]
fn append_beyond_the_longest_value_fails_alone() {
    let node = TestNode::start(62, 1_000);
    let mut wire = node.connect();
    let nearly = vec![b'v'; (16 << 20) - 4];
    assert_eq!(wire.call(&[b"SET", b"k", &nearly]), ok());
    wire.send(&[encode(&[b"APPEND", b"k", b"12"]), encode(&[b"APPEND", b"k", b"345"])].concat());
    wire.send(&[encode(&[b"APPEND", b"k", b"34"]), encode(&[b"APPEND", b"k", b"5"])].concat());
    assert_eq!(wire.receive(), RespValue::Integer((16 << 20) - 2));
    assert!(matches!(wire.receive(), RespValue::Error(text) if text.contains("exceeds maximum")));
    assert_eq!(wire.receive(), RespValue::Integer(16 << 20));
    assert!(matches!(wire.receive(), RespValue::Error(text) if text.contains("exceeds maximum")));
    // An error of the device fails each of them.
    let long_key = vec![b'k'; 70_000];
    wire.send(&encode(&[b"APPEND", &long_key, b"1"]).repeat(3));
    for _ in 0..3 {
        assert!(matches!(wire.receive(), RespValue::Error(text) if text.contains("a key has 1 to")));
    }
    assert_eq!(wire.call_line("PING"), RespValue::Simple("PONG".to_owned()));
}
