//! Edge cases of single commands, compared with redis-server byte for byte, and those that Redis does not have.

use crate::differential::RedisServer;
use crate::wire::{RespTestClient, RespValue, TestNode, encode};
use std::collections::BTreeMap;
use std::io::{BufRead, Read, Write};
use std::sync::atomic::Ordering;

fn ok() -> RespValue {
    RespValue::Simple("OK".to_owned())
}

fn error_of(value: RespValue) -> String {
    match value {
        RespValue::Error(text) => text,
        other => panic!("no error: {other:?}"),
    }
}

/// Returns the first line of a reply, and the line of a bulk string behind it.
fn raw_reply<T: Read + Write>(wire: &mut RespTestClient<T>, words: &[&[u8]]) -> Vec<u8> {
    wire.send(&encode(words));
    let mut line = Vec::new();
    wire.stream.read_until(b'\n', &mut line).unwrap();
    if line.starts_with(b"$") && !line.starts_with(b"$-") {
        wire.stream.read_until(b'\n', &mut line).unwrap();
    }
    line
}

/// Lines of commands of the `key` whose value is the first word.
const FLOATS: &str = "\
    3|1.5e3|1.50|0.1|1e|e1|.5|5.|.|+1|++1|-0|1E2|1e+2|1e-2|inf|-inf|+inf|infinity|INFINITY|nan|NaN|nan(1)|0x10|0x1p3|0x.8|\
    0x|0x1p-3|0xgp1|1p3|1e5000|-1e5000|1e-5000|1e308|-1e308|1e309|1_000|1,5|0.30000000000000004|1e-17|1e-18|\
    123456789012345678901234567890|1e40|-1e40|99999999999999999999|1e4000|-1e4000|1e4931|1e-4000|0e99999|1e99999999999\n\
    1e400|1|-1e400\n1e4932|1e4932\n 1|1\n1 |1\ninf|1\n000001.500|0\n1.00|1\n0x10|0x10\nnone|1\n-0|0\n0.1|0.2|0.3|1e16|-1e16\n\
    179769313486231570000000000000000000000|0.5\n0.00000000000000001|0\n0.000000000000000005|0\n0.0000000000000000049|0\n\
    1e19|1|1|0.5|-1e19";

#[test]
fn sums_of_floats_are_those_of_redis() {
    let Some(redis) = RedisServer::start() else { return };
    let node = TestNode::start(1, 1_000);
    let (mut theirs, mut ours) = (redis.connect(), node.connect());
    let mut differences = Vec::new();
    let mut compare = |old: &[u8], by: &[u8]| {
        if !old.is_empty() {
            theirs.call(&[b"SET", b"key", old]);
            ours.call(&[b"SET", b"key", old]);
        }
        let words: [&[u8]; 3] = [b"INCRBYFLOAT", b"key", by];
        let (expected, found) = (raw_reply(&mut theirs, &words), raw_reply(&mut ours, &words));
        if expected != found {
            let shown = [old, by, &expected, &found].map(|part| String::from_utf8_lossy(part).into_owned());
            differences.push(shown.join(" "));
        }
    };
    for line in FLOATS.split('\n') {
        let mut words = line.split('|').map(|word| word.trim_start_matches("    ").as_bytes());
        compare(words.next().unwrap(), b"0");
        for by in words {
            compare(b"", by);
        }
    }
    for odd in
        [&b" 1"[..], b"1 ", b"", b"\0", b"1\0", b"1\x002", b"1.5\n", b"\xff", &[b'1'; 5_119], &[b'1'; 5_120]]
    {
        compare(b"1", odd);
    }
    let mut random = fastrand::Rng::with_seed(9);
    for _ in 0..3_000 {
        let number = |random: &mut fastrand::Rng| {
            let whole = random.u64(..) >> random.u32(..64);
            let sign = ["", "-"][random.usize(..2)];
            match random.u8(..4) {
                0 => format!("{sign}{whole}"),
                1 => format!("{sign}{whole}.{}", random.u64(..)),
                2 => format!("{sign}{whole}e{}", random.i32(-40..60)),
                _ => format!("{sign}{}.{}e{}", whole % 10, random.u64(..), random.i32(-4950..4950)),
            }
        };
        let (old, by) = (number(&mut random), number(&mut random));
        compare(old.as_bytes(), by.as_bytes());
    }
    assert!(
        differences.is_empty(),
        "{} differ, first: {:?}",
        differences.len(),
        &differences[..differences.len().min(20)]
    );
}

/// Commands whose errors repeat an argument, or whose arguments are odd.
const ODD: &[&[&[u8]]] = &[
    &[b"FOO\xff", b"\xfe\x80"],
    &[b"GET\xff"],
    &[b"FOO", b"a\r\nb"],
    &[b"FOO", b"a\0b"],
    &[b"CLIENT", b"FOO\xff"],
    &[b"CONFIG", b"\xff"],
    &[b"OBJECT", b"\xff", b"a"],
    &[b"COMMAND", b"\xff"],
    &[b"MEMORY", b"\xff"],
    &[b"SLOWLOG", b"\xff"],
    &[b"HELLO", b"2", b"\xff"],
    &[b"EXPIRE", b"e", b"10", b"\xff"],
    &[b"CLIENT", b"KILL", b"TYPE", b"\xff"],
    &[b"CLIENT", b"LIST", b"TYPE", b"\xff\0x"],
    &[b"CONFIG", b"SET", b"\xff", b"1"],
    &[b"SCAN", b"-1"],
    &[b"SCAN", b""],
    &[b"SCAN", b"+0"],
    &[b"SCAN", b"-"],
    &[b"SCAN", b" 0"],
    &[b"SCAN", b"0x"],
    &[b"SCAN", b"0\0x"],
    &[b"SCAN", b"18446744073709551615"],
    &[b"SCAN", b"18446744073709551616"],
    &[b"SCAN", b"x", b"FOO"],
    &[b"SCAN", b"0", b"COUNT", b"9223372036854775808"],
    &[b"SCAN", b"0", b"MATCH", b"a", b"COUNT"],
    &[b"SCAN", b"0", b"TYPE"],
    &[b"SCAN", b"0", b"COUNT", b"10", b"COUNT", b"0"],
    &[b"SET", b"k", b"v", b"EX", b"10", b"EX", b"20"],
    &[b"TTL", b"k"],
    &[b"SET", b"k", b"v", b"EX", b"10", b"PX", b"20"],
    &[b"SET", b"k", b"v", b"KEEPTTL", b"KEEPTTL"],
    &[b"GETEX", b"k", b"PERSIST", b"persist"],
    &[b"TTL", b"k"],
    &[b"GETEX", b"k", b"EX", b"10", b"EX", b"30"],
    &[b"TTL", b"k"],
    &[b"GETEX", b"k", b"EX", b"10", b"PERSIST"],
    &[b"GETEX", b"k", b"PERSIST", b"EX", b"10"],
    &[b"GETEX", b"k", b"EX", b"10", b"EX"],
    &[b"GETEX", b"k", b"EX", b"10", b"PX", b"10"],
    &[b"GETEX", b"k", b"KEEPTTL"],
    &[b"GETEX", b"k", b"EXAT", b"0"],
    &[b"GETEX", b"k", b"PXAT", b"1"],
    &[b"EXISTS", b"k"],
    &[b"GETEX", b"none", b"EX", b"0"],
    &[b"GETEX", b"none", b"FOO"],
    &[b"CLIENT", b"KILL", b"TYPE", b"foo"],
    &[b"CLIENT", b"KILL", b"TYPE", b"pubsub"],
    &[b"CLIENT", b"KILL", b"USER", b"foo"],
    &[b"CLIENT", b"KILL", b"USER", b"default", b"ID", b"99999"],
    &[b"CLIENT", b"KILL", b"SKIPME", b"maybe"],
    &[b"CLIENT", b"KILL", b"ID", b"1", b"2"],
    &[b"CLIENT", b"KILL", b"ADDR"],
    &[b"CLIENT", b"KILL", b"FOO", b"bar"],
    &[b"GETBIT", b"k", b"4294967295"],
    &[b"GETBIT", b"k", b"4294967296"],
    &[b"GETBIT", b"k", b" 1"],
];

#[test]
fn odd_arguments_get_the_replies_of_redis_byte_for_byte() {
    let Some(redis) = RedisServer::start() else { return };
    let node = TestNode::start(2, 1_000);
    let (mut theirs, mut ours) = (redis.connect(), node.connect());
    let mut differences = Vec::new();
    for words in ODD {
        let (expected, found) = (raw_reply(&mut theirs, words), raw_reply(&mut ours, words));
        if words[0] == b"SCAN" && expected.starts_with(b"*") {
            // The keys and their order differ.
            (theirs, ours) = (redis.connect(), node.connect());
        }
        if expected != found {
            let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
            let words: Vec<String> = words.iter().map(|word| shown(word)).collect();
            differences.push(format!("{}: {} {}", words.join(" "), shown(&expected), shown(&found)));
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn expired_keys_are_not_counted() {
    let node = TestNode::start(3, 1_000);
    let mut wire = node.connect();
    for key in 0..200 {
        assert_eq!(wire.call_line(&format!("SET {key} v EX 1000")), ok());
    }
    assert_eq!(wire.call_line("SET stays v"), ok());
    assert_eq!(wire.call_line("DBSIZE"), RespValue::Integer(201));
    node.wall_offset_ms.store(1_001_000, Ordering::Relaxed);
    assert_eq!(wire.call_line("DBSIZE"), RespValue::Integer(1));
}

#[test]
fn time_has_microseconds_and_never_goes_back() {
    let node = TestNode::start(4, 1_000);
    let mut wire = node.connect();
    let (mut last, mut fine) = (0, 0);
    for _ in 0..200 {
        let RespValue::Array(parts) = wire.call_line("TIME") else { panic!("no array") };
        let number = |part: &RespValue| match part {
            RespValue::Bulk(digits) => std::str::from_utf8(digits).unwrap().parse::<u64>().unwrap(),
            other => panic!("no digits: {other:?}"),
        };
        let (seconds, micros) = (number(&parts[0]), number(&parts[1]));
        assert!(micros < 1_000_000);
        let now = seconds * 1_000_000 + micros;
        assert!(now >= last, "{now} after {last}");
        last = now;
        fine += usize::from(!micros.is_multiple_of(1_000));
    }
    assert!(fine > 100, "only {fine} of 200 times have microseconds");
}

#[test]
fn scripts_are_refused_with_the_reason() {
    let node = TestNode::start(5, 1_000);
    let mut wire = node.connect();
    for line in ["EVAL return 0", "evalsha x 0", "EVAL_RO x 0", "SCRIPT LOAD x", "FUNCTION LIST", "FCALL f 0"]
    {
        let text = error_of(wire.call_line(line));
        let name = line.split(' ').next().unwrap();
        assert!(text.starts_with(&format!("ERR unknown command '{name}': scripts")), "{text}");
        assert!(text.contains("MULTI"), "{text}");
    }
}

#[test]
fn killed_client_is_gone_at_once_for_the_commands_behind() {
    let node = TestNode::start(6, 1_000);
    let (mut wire, mut victim) = (node.connect(), node.connect());
    let RespValue::Integer(id) = victim.call_line("CLIENT ID") else { panic!("no number") };
    let kill = format!("CLIENT KILL ID {id}");
    let kill: Vec<&[u8]> = kill.split(' ').map(str::as_bytes).collect();
    wire.send(&[encode(&kill), encode(&kill), encode(&[b"CLIENT", b"LIST"])].concat());
    assert_eq!((wire.receive(), wire.receive()), (RespValue::Integer(1), RespValue::Integer(0)));
    let RespValue::Bulk(list) = wire.receive() else { panic!("no list") };
    assert!(!String::from_utf8(list).unwrap().contains(&format!("id={id} ")));
    let mut rest = Vec::new();
    assert_eq!(victim.stream.read_to_end(&mut rest).unwrap_or(0), 0);
    // An age that no client has, and the errors of the option, which Redis 7.4 has.
    assert_eq!(wire.call_line("CLIENT KILL MAXAGE 100000 SKIPME no"), RespValue::Integer(0));
    assert!(error_of(wire.call_line("CLIENT KILL MAXAGE x")).contains("maxage is not an integer"));
    assert!(error_of(wire.call_line("CLIENT KILL MAXAGE 0")).contains("greater than 0"));
    assert_eq!(wire.call_line("CLIENT KILL SKIPME no TYPE normal"), RespValue::Integer(1));
}

#[test]
fn repeated_keys_of_a_long_mset_have_their_last_values() {
    let mut random = fastrand::Rng::with_seed(73);
    let node = TestNode::start(73, 1_000);
    let mut wire = node.connect();
    for pairs in [15, 16, 17, 4_096, 4_097, 20_000] {
        let words: Vec<Vec<u8>> = (0..pairs)
            .flat_map(|number| [format!("key {}", random.usize(..pairs)), format!("{number}")])
            .map(String::into_bytes)
            .collect();
        let last: BTreeMap<&[u8], &[u8]> = words.chunks(2).map(|pair| (&pair[0][..], &pair[1][..])).collect();
        let call = |name: &'static [u8]| [name].into_iter().chain(words.iter().map(|word| &word[..]));
        for (name, reply) in [(&b"MSET"[..], ok()), (b"MSETNX", RespValue::Integer(0))] {
            assert_eq!(wire.call(&call(name).collect::<Vec<_>>()), reply);
        }
        assert_eq!(wire.call_line("DBSIZE"), RespValue::Integer(i64::try_from(last.len()).unwrap()));
        for (key, value) in last.iter().step_by(1 + pairs / 200) {
            assert_eq!(wire.call(&[b"GET", key]), RespValue::Bulk(value.to_vec()), "{pairs} pairs");
        }
        assert_eq!(wire.call_line("FLUSHALL"), ok());
    }
}

#[test]
fn writes_that_find_no_room_in_the_device_are_made_later() {
    let node = TestNode::start(74, 1);
    let mut wires: Vec<_> = (0..8).map(|_| node.connect()).collect();
    let words: Vec<Vec<Vec<u8>>> = (0..8)
        .map(|client| (0..200).flat_map(move |key| [format!("{client} {key}"), format!("{key}")]))
        .map(|words| words.map(String::into_bytes).collect())
        .collect();
    for (wire, words) in wires.iter_mut().zip(&words) {
        let call = [&b"MSET"[..]].into_iter().chain(words.iter().map(|word| &word[..]));
        wire.send(&encode(&call.collect::<Vec<_>>()));
    }
    for (wire, words) in wires.iter_mut().zip(&words) {
        assert_eq!(wire.receive(), ok());
        for pair in words.chunks(2) {
            assert_eq!(wire.call(&[b"GET", &pair[0]]), RespValue::Bulk(pair[1].clone()));
        }
    }
}
