//! Differential tests of the commands on bits: the same commands to this front end and to redis-server must get the same
//! replies.

use crate::differential::RedisServer;
use crate::model::KvDeviceModel;
use crate::wire::{RespValue, TestNode};
use headwater_frontend::resp::RespConfig;
use std::net::SocketAddr;

/// Commands separated by semicolons.
const SCRIPT: &str = "\
    BITCOUNT none; BITPOS none 0; BITPOS none 1; SET s foobar; BITCOUNT s; BITCOUNT s 0 0; BITCOUNT s 1 1; \
    BITCOUNT s 1 1 BYTE; BITCOUNT s 5 30 BIT; BITCOUNT s -2 -1; BITCOUNT s -1 -2; BITCOUNT s 5 3; BITCOUNT s 100 200; \
    BITCOUNT s 0; BITCOUNT s 0 x; BITCOUNT s x 0; BITCOUNT s 0 1 FOO; BITCOUNT s 0 1 BIT x; BITCOUNT; BITCOUNT s -100 100 BIT; \
    BITCOUNT s 0 -1 bit; BITCOUNT s -9223372036854775808 9223372036854775807; BITPOS s 1; BITPOS s 0; BITPOS s 2; \
    BITPOS s x; BITPOS s -1; BITPOS s 1 2; BITPOS s 0 2 3; BITPOS s 1 8 16 BIT; BITPOS s 0 7 15 bit; BITPOS s 1 5 3; \
    BITPOS s 1 -1; BITPOS s 1 -3 -2 BYTE; BITPOS s 1 0 0 FOO; BITPOS s 1 0 0 BIT 1; BITPOS s 1 x; BITPOS s; \
    SETBIT f 23 0; BITPOS f 1; BITPOS f 0; BITPOS f 1 1; DEL f; SET empty x; SETRANGE empty 0 y; GETDEL empty; \
    BITFIELD f SET u8 0 255 SET u8 8 255 SET u8 16 255; BITPOS f 0; BITPOS f 0 0; BITPOS f 0 0 -1; BITPOS f 0 0 -1 BIT; \
    BITPOS f 0 1 2; BITPOS f 0 3; BITPOS f 1 3; BITCOUNT f; \
    BITOP AND d s f; GET d; BITOP OR d s f; GET d; BITOP XOR d s f; GET d; BITOP NOT d s; GET d; BITOP NOT d s f; \
    BITOP FOO d s; BITOP AND d; BITOP AND d none; EXISTS d; BITOP OR d none s; GET d; BITOP AND d none s; GET d; \
    BITOP XOR d s s; GET d; BITOP XOR d s s s; GET d; SET d x EX 100; BITOP OR d d s; TTL d; GET d; BITOP NOT d d; GET d; \
    BITOP not d d; GET d; BITOP XOR none2 none3 none4; EXISTS none2; \
    BITFIELD b; BITFIELD b GET u8 0; EXISTS b; BITFIELD b SET i8 0 -1; BITFIELD b GET u8 0 GET i8 0 GET i4 2 GET u63 1; \
    BITFIELD b SET u8 #1 200 GET u8 #1 GET u8 8; BITFIELD b INCRBY u8 8 100; BITFIELD b OVERFLOW SAT INCRBY u8 8 300; \
    BITFIELD b OVERFLOW FAIL INCRBY u8 8 1; BITFIELD b OVERFLOW FAIL INCRBY u8 8 1 OVERFLOW WRAP INCRBY u8 8 1; \
    BITFIELD b OVERFLOW SAT SET i8 16 200 SET i8 16 -200 SET u8 16 -1; BITFIELD b OVERFLOW FAIL SET i8 16 200; \
    BITFIELD b OVERFLOW WRAP SET i8 16 200 GET i8 16; BITFIELD b SET i64 0 9223372036854775807 INCRBY i64 0 1; \
    BITFIELD b OVERFLOW SAT INCRBY i64 0 -9223372036854775808 INCRBY i64 0 -9223372036854775808; \
    BITFIELD b SET u63 3 9223372036854775807 INCRBY u63 3 9223372036854775807; BITFIELD b SET u64 0 1; BITFIELD b GET u64 0; \
    BITFIELD b GET i65 0; BITFIELD b GET i0 0; BITFIELD b GET x8 0; BITFIELD b GET U8 0; BITFIELD b GET u 0; BITFIELD b GET u08 0; \
    BITFIELD b GET u8 -1; BITFIELD b GET u8 x; BITFIELD b GET u8 #x; BITFIELD b GET u8 #; BITFIELD b GET u8 4294967296; \
    BITFIELD b GET u8 4294967295; BITFIELD b GET u8 #536870911; BITFIELD b GET u8 #536870912; \
    BITFIELD b GET u8; BITFIELD b SET u8 0; BITFIELD b SET u8 0 x; \
    BITFIELD b FOO; BITFIELD b OVERFLOW FOO GET u8 0; BITFIELD b OVERFLOW; BITFIELD b overflow sat incrby i5 3 100 get i5 3; \
    BITFIELD b GET u8 4000; BITFIELD_RO b GET u8 0 GET i3 1; BITFIELD_RO b SET u8 0 1; BITFIELD_RO b OVERFLOW SAT GET u8 0; \
    BITFIELD_RO none GET u8 0; BITFIELD_RO b; STRLEN b; BITFIELD new OVERFLOW FAIL SET u8 32 256; STRLEN new; GET new; \
    GETBIT s 4294967295; GETBIT s 4294967296; GETBIT s -1; GETBIT s 134217728; SETBIT s 4294967296 1; GETBIT none 7; \
    COMMAND GETKEYS BITOP AND a b c; COMMAND GETKEYS BITFIELD a GET u8 0; MULTI; BITOP AND x s f; BITCOUNT x; BITFIELD x SET u8 0 9; \
    BITPOS x 1; BITOP XOR y x x; EXEC; GET x; GET y";

#[test]
fn commands_on_bits_get_the_replies_of_redis() {
    let Some(redis) = RedisServer::start() else { return };
    for hello in ["HELLO 2", "HELLO 3"] {
        let node = TestNode::start(1, 1_000);
        let (mut theirs, mut ours) = (redis.connect(), node.connect());
        theirs.call_line("FLUSHALL");
        theirs.call_line(hello);
        ours.call_line(hello);
        let mut differences = Vec::new();
        for line in SCRIPT.split(';').map(str::trim) {
            let (expected, found) = (theirs.call_line(line), ours.call_line(line));
            let close = |left: &RespValue, right: &RespValue| match (left, right) {
                (RespValue::Integer(left), RespValue::Integer(right)) if line.starts_with("TTL") => {
                    left.abs_diff(*right) < 60
                }
                _ => left == right,
            };
            if !close(&expected, &found) {
                differences.push(format!("{line}\n  redis:     {expected:?}\n  headwater: {found:?}"));
            }
        }
        assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
    }
}

fn pick<'a>(random: &mut fastrand::Rng, from: &[&'a str]) -> &'a str {
    from[random.usize(..from.len())]
}

fn number(random: &mut fastrand::Rng) -> i64 {
    match random.u8(..5) {
        0 => i64::MIN,
        1 => i64::MAX,
        2 => random.i64(..),
        _ => random.i64(-300..300),
    }
}

/// Returns a random operation of BITFIELD.
fn field_operation(random: &mut fastrand::Rng) -> String {
    let kind =
        if random.bool() { format!("i{}", random.u32(1..=64)) } else { format!("u{}", random.u32(1..=63)) };
    let offset = if random.bool() { format!("#{}", random.u8(..6)) } else { random.u8(..200).to_string() };
    match random.u8(..4) {
        0 => format!("GET {kind} {offset}"),
        // Redis saturates numbers below this one at the wrong end: an intermediate result overflows.
        1 => format!("SET {kind} {offset} {}", number(random).max(i64::MIN / 2)),
        2 => format!("INCRBY {kind} {offset} {}", number(random)),
        _ => format!(
            "OVERFLOW {} INCRBY {kind} {offset} {}",
            pick(random, &["WRAP", "SAT", "FAIL"]),
            number(random)
        ),
    }
}

/// Returns a random command on bits.
fn command(random: &mut fastrand::Rng) -> String {
    const KEYS: &[&str] = &["a", "b", "c", "none"];
    let key = pick(random, &KEYS[..3]);
    let mut position = || random.i8(-40..40);
    let (start, end) = (position(), position());
    let unit = pick(random, &["", " BYTE", " BIT"]);
    match random.u8(..8) {
        0 => format!("SETBIT {key} {} {}", random.u8(..), random.u8(..2)),
        1 => format!("GETBIT {key} {}", random.u8(..)),
        2 => format!("BITCOUNT {key} {start} {end}{unit}"),
        3 => format!("BITPOS {key} {} {start} {end}{unit}", random.u8(..2)),
        4 => match random.u8(..3) {
            0 => format!("BITPOS {key} {} {start}", random.u8(..2)),
            1 => format!("BITPOS {key} {}", random.u8(..2)),
            _ => format!("BITCOUNT {key}"),
        },
        5 => {
            let sources: Vec<&str> = (0..random.usize(1..5)).map(|_| pick(random, KEYS)).collect();
            match random.u8(..4) {
                0 => format!("BITOP NOT {key} {}", sources[0]),
                _ => format!("BITOP {} {key} {}", pick(random, &["AND", "OR", "XOR"]), sources.join(" ")),
            }
        }
        6 => pick(random, &["GET a", "GET b", "GET c", "DEL a", "STRLEN b"]).to_owned(),
        _ => {
            let operations: Vec<String> = (0..random.usize(1..4)).map(|_| field_operation(random)).collect();
            format!("BITFIELD {key} {}", operations.join(" "))
        }
    }
}

#[test]
fn random_commands_on_bits_get_the_replies_of_redis() {
    let Some(redis) = RedisServer::start() else { return };
    for seed in 0..10 {
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut model = KvDeviceModel::new(seed, if seed % 2 == 0 { 3 } else { 1_000 });
        // Another front end stores the same values again between the commands.
        model.rewriting = seed % 3 == 0;
        let config =
            RespConfig { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..RespConfig::default() };
        let node = TestNode::start_with(config, model);
        let (mut theirs, mut ours) = (redis.connect(), node.connect());
        theirs.call_line("FLUSHALL");
        for _ in 0..600 {
            let line = command(&mut random);
            assert_eq!(ours.call_line(&line), theirs.call_line(&line), "seed {seed}: {line}");
            assert_eq!(
                ours.call_line("MGET a b c"),
                theirs.call_line("MGET a b c"),
                "seed {seed}: the values after {line}"
            );
        }
    }
}

/// Checks the limit of a value's length, which is lower than that of Redis.
#[test]
fn bits_behind_the_longest_value_are_read_as_zeroes_and_not_written() {
    let node = TestNode::start(2, 1_000);
    let mut wire = node.connect();
    let too_long =
        |value: RespValue| matches!(value, RespValue::Error(text) if text.contains("maximum allowed size"));
    let behind = 8 * (16 << 20);
    assert_eq!(wire.call_line(&format!("SETBIT a {} 1", behind - 1)), RespValue::Integer(0));
    assert_eq!(wire.call_line("STRLEN a"), RespValue::Integer(16 << 20));
    assert_eq!(wire.call_line("BITCOUNT a"), RespValue::Integer(1));
    assert_eq!(wire.call_line("BITPOS a 1"), RespValue::Integer(behind - 1));
    assert_eq!(wire.call_line(&format!("GETBIT a {behind}")), RespValue::Integer(0));
    assert!(too_long(wire.call_line(&format!("SETBIT a {behind} 1"))));
    assert!(too_long(wire.call_line(&format!("BITFIELD a SET u8 {} 1", behind - 4))));
    assert_eq!(
        wire.call_line(&format!("BITFIELD a GET u8 {}", behind - 8)),
        RespValue::Array(vec![RespValue::Integer(1)])
    );
    assert_eq!(wire.call_line("STRLEN a"), RespValue::Integer(16 << 20));
}
