//! Tests of transactions over several databases.

use crate::differential::{RedisServer, same};
use crate::transaction_differences::{allowed_command, comparable, run_script};
use crate::transactions::{bulk, error_of, exec, node_of_a_kind, ok, queued};
use crate::wire::{RespTestClient, RespValue, TestNode, encode};
use std::net::TcpStream;

/// Commands of two clients, `1` and `2`, separated by semicolons.
const SCRIPT: &str = "\
    1 FLUSHALL; 1 SET a 0; 1 MULTI; 1 SET a 1; 1 SELECT 1; 1 GET a; 1 SET a 2; 1 SELECT 2; 1 SET a 3; 1 SELECT 0; \
    1 GET a; 1 EXEC; 1 GET a; 1 SELECT 1; 1 GET a; 1 SELECT 2; 1 GET a; 1 DBSIZE; 1 SELECT 0; \
    1 MULTI; 1 SELECT 1; 1 INCR a; 1 SELECT 2; 1 INCR a; 1 EXEC; 1 GET a; 1 SELECT 1; 1 GET a; \
    1 MULTI; 1 SELECT 0; 1 SET a x; 1 SELECT 2; 1 INCR a; 1 SELECT 99; 1 SELECT x; 1 INCR a; 1 EXEC; 1 GET a; \
    1 MULTI; 1 SELECT 0; 1 SET a y; 1 DISCARD; 1 GET a; 1 MULTI; 1 SELECT 0; 1 SET a z; 1 FOO; 1 EXEC; 1 GET a; \
    1 WATCH a; 2 SELECT 2; 2 SET a 9; 1 MULTI; 1 SELECT 0; 1 SET a w; 1 EXEC; 1 GET a; 1 DBSIZE; \
    1 SELECT 0; 1 WATCH a; 1 SELECT 1; 1 WATCH a none; 1 SELECT 2; 1 MULTI; 1 GET a; 1 EXEC; \
    1 SELECT 0; 1 WATCH a; 1 SELECT 1; 1 WATCH a none; 2 SELECT 1; 2 SET none 1; 1 MULTI; 1 SET b 1; 1 EXEC; 1 EXISTS b; \
    1 SELECT 0; 1 WATCH a; 1 SELECT 1; 2 SELECT 0; 2 SET b 1; 2 DEL none; 1 MULTI; 1 SET b 2; 1 EXEC; 1 GET b; \
    1 SELECT 0; 1 WATCH a; 1 SELECT 1; 2 SET a 1; 1 MULTI; 1 SET b 3; 1 EXEC; 1 GET b; \
    1 WATCH a; 1 SELECT 0; 2 SELECT 1; 2 SET a 1; 1 MULTI; 1 EXEC; 1 MULTI; 1 GET a; 1 EXEC; \
    1 WATCH a; 1 SELECT 1; 2 FLUSHDB; 1 MULTI; 1 GET a; 1 EXEC; 1 SELECT 0; 1 SET a 1; 1 WATCH a; 1 SELECT 1; 2 SELECT 0; \
    2 FLUSHDB; 1 MULTI; 1 GET a; 1 EXEC; 1 SELECT 0; 1 SET a 1; 1 WATCH a; 1 SELECT 1; 2 SELECT 3; 2 FLUSHALL; 1 MULTI; \
    1 GET a; 1 EXEC; 1 SELECT 0; 1 WATCH a; 1 SELECT 1; 1 UNWATCH; 2 SELECT 0; 2 SET a 5; 1 MULTI; 1 GET a; 1 EXEC; \
    1 SELECT 0; 1 MULTI; 1 COPY a b DB 1; 1 COPY a b DB 1; 1 COPY a b DB 1 REPLACE; 1 COPY a c; 1 COPY none x DB 1; \
    1 COPY a a DB 0; 1 COPY a a DB 1; 1 COPY a b DB 99; 1 SELECT 1; 1 GET a; 1 GET b; 1 DEL b; 1 COPY a d DB 0; 1 SELECT 0; \
    1 GET d; 1 EXEC; 1 MGET a b c d; 1 SELECT 1; 1 MGET a b c d; \
    1 SELECT 0; 1 SET t v EX 1000; 1 MULTI; 1 COPY t t DB 5; 1 DEL t; 1 SELECT 5; 1 TTL t; 1 DBSIZE; 1 KEYS *; 1 SELECT 0; \
    1 DBSIZE; 1 EXEC; 1 EXISTS t; 1 SELECT 5; 1 EXISTS t; 1 SELECT 0; 1 FLUSHALL; \
    1 MULTI; 1 SET k 1; 1 SELECT 1; 1 KEYS *; 1 DBSIZE; 1 RANDOMKEY; 1 SET l 1; 1 RANDOMKEY; 1 SCAN 0; 1 SELECT 0; 1 KEYS *; \
    1 SCAN 0; 1 DBSIZE; 1 RENAME k m; 1 SELECT 1; 1 RENAME l k; 1 KEYS *; 1 SELECT 0; 1 KEYS *; 1 EXEC; 1 GET k; 1 GET m; \
    1 MULTI; 1 SELECT 4; 1 RESET; 1 GET m; 1 CLIENT GETNAME; 1 SELECT 15; 1 MULTI; 1 SET z 1; 1 SELECT 0; 1 SET z 2; 1 EXEC; \
    1 GET z; 1 SELECT 15; 1 GET z";

#[test]
fn transactions_over_databases_get_the_replies_of_redis() {
    run_script("HELLO 2", SCRIPT);
    run_script("HELLO 3", SCRIPT);
}

/// Returns a random command that a transaction over databases may have.
fn command(random: &mut fastrand::Rng) -> String {
    let mut pick = |from: &[&str]| from[random.usize(..from.len())].to_owned();
    let (key, other) = (pick(&["a", "b", "c", "d"]), pick(&["a", "b", "c", "d"]));
    match random.u8(..8) {
        0 | 1 => format!("SELECT {}", random.u8(..3)),
        2 => format!("COPY {key} {other} DB {}", random.u8(..4)),
        3 => format!("COPY {key} {other} DB {} REPLACE", random.u8(..4)),
        _ => allowed_command(random),
    }
}

/// A random transaction with what precedes it: commands of its client, and of another client.
pub(crate) struct RandomRound {
    pub(crate) before: Vec<String>,
    pub(crate) beside: [String; 2],
    pub(crate) lines: Vec<String>,
}

/// Runs random transactions beside redis-server and compares all replies; after each one, also those of the commands
/// `looks` in the selected database and in every other one.
pub(crate) fn compare_with_redis(
    seeds: u64,
    looks: &[&str],
    draw_round: impl Fn(&mut fastrand::Rng) -> RandomRound,
) {
    let Some(redis) = RedisServer::start() else { return };
    let (mut happened, mut failed) = (0, 0);
    for seed in 0..seeds {
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let node = TestNode::start(seed, if seed % 2 == 0 { 3 } else { 1_000 });
        let (mut theirs, mut ours) = (redis.connect(), node.connect());
        let (mut theirs_other, mut ours_other) = (redis.connect(), node.connect());
        theirs.call_line("FLUSHALL");
        for round in 0..60 {
            let RandomRound { before, beside, lines } = draw_round(&mut random);
            let context = format!("seed {seed} round {round}: {before:?}; {beside:?}; {lines:?}");
            for line in &before {
                assert_eq!(ours.call_line(line), theirs.call_line(line), "{context}");
            }
            for line in &beside {
                assert_eq!(ours_other.call_line(line), theirs_other.call_line(line), "{context}");
            }
            for line in ["MULTI"].into_iter().chain(lines.iter().map(String::as_str)) {
                let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
                assert!(same(&words, theirs.call_line(line), ours.call_line(line)), "{line} of {context}");
            }
            let (expected, found) = (theirs.call_line("EXEC"), ours.call_line("EXEC"));
            match &expected {
                RespValue::Array(_) => happened += 1,
                _ => failed += 1,
            }
            assert_eq!(comparable(&lines, found), comparable(&lines, expected), "{context}");
            for database in ["", "SELECT 0", "SELECT 1", "SELECT 2", "SELECT 3"] {
                if !database.is_empty() {
                    assert_eq!(ours.call_line(database), theirs.call_line(database));
                }
                for look in looks {
                    assert_eq!(ours.call_line(look), theirs.call_line(look), "{database} after {context}");
                }
            }
        }
    }
    assert!(happened > 50 && failed > 5, "{happened} transactions happened, {failed} failed");
}

#[test]
fn random_transactions_over_databases_get_the_replies_of_redis() {
    compare_with_redis(6, &["MGET a b c d"], |random| {
        let mut before: Vec<String> = Vec::new();
        for _ in 0..random.usize(..3) {
            before.push(format!("SELECT {}", random.u8(..3)));
            before.push(["WATCH a", "WATCH a b", "WATCH none"][random.usize(..3)].to_owned());
        }
        before.push(format!("SELECT {}", random.u8(..3)));
        let beside = [
            format!("SELECT {}", random.u8(..3)),
            format!("APPEND {} x", ["a", "e", "f"][random.usize(..3)]),
        ];
        let lines = (0..random.usize(0..30)).map(|_| command(random)).collect();
        RandomRound { before, beside, lines }
    });
}

fn lines(all: &[&str]) -> Vec<String> {
    all.iter().map(|line| (*line).to_owned()).collect()
}

fn select(wire: &mut RespTestClient<TcpStream>, database: u8) {
    assert_eq!(wire.call_line(&format!("SELECT {database}")), ok());
}

#[test]
fn watched_keys_of_other_databases_decide_on_the_transaction() {
    let node = TestNode::start(2, 1_000);
    let (mut wire, mut other) = (node.connect(), node.connect());
    for database in [1, 2] {
        select(&mut wire, database);
        assert_eq!(wire.call_line("WATCH a b"), ok());
    }
    select(&mut wire, 0);
    select(&mut other, 2);
    let commands = lines(&["SET a 1", "SELECT 1", "SET a 2", "GET a"]);
    assert_eq!(other.call_line("SET b 1"), ok());
    assert_eq!(exec(&mut wire, &commands), RespValue::NullArray);
    // The failed EXEC selected nothing, and watches nothing any more.
    assert_eq!(wire.call_line("EXISTS a"), RespValue::Integer(0));
    assert_eq!(exec(&mut wire, &commands), RespValue::Array(vec![ok(), ok(), ok(), bulk("2")]));
    assert_eq!(wire.call_line("GET a"), bulk("2"));
    select(&mut wire, 0);
    assert_eq!(wire.call_line("GET a"), bulk("1"));
}

#[test]
fn transactions_over_databases_are_isolated_and_lose_no_increment() {
    for seed in 0..6 {
        eprintln!("seed {seed}");
        let node = node_of_a_kind(seed);
        let mut wires: Vec<_> = (0..6).map(|_| node.connect()).collect();
        let mut transaction = Vec::new();
        for line in ["MULTI", "SELECT 1", "INCR a", "SELECT 2", "APPEND a x", "STRLEN a", "SELECT 0", "EXEC"]
        {
            transaction.extend(encode(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>()));
        }
        for wire in &mut wires {
            wire.send(&transaction.repeat(20));
        }
        let mut seen = Vec::new();
        for wire in &mut wires {
            for _ in 0..20 {
                assert_eq!(wire.receive(), ok());
                (0..6).for_each(|_| assert_eq!(wire.receive(), queued()));
                let RespValue::Array(parts) = wire.receive() else { panic!("seed {seed}: no array") };
                let RespValue::Integer(count) = parts[1] else { panic!("seed {seed}: {parts:?}") };
                assert_eq!(parts[4], RespValue::Integer(count), "seed {seed}: a transaction was divided");
                seen.push(count);
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (1..=120).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn keys_of_all_databases_count_against_the_limit_of_a_transaction() {
    let node = TestNode::start(7, 4_000);
    let mut wire = node.connect();
    assert_eq!(wire.call_line("MULTI"), ok());
    for database in ["0", "1"] {
        assert_eq!(wire.call(&[b"SELECT", database.as_bytes()]), queued());
        let mut words = vec![b"MSET".to_vec()];
        for key in 0..40_000_u32 {
            words.extend([key.to_string().into_bytes(), b"v".to_vec()]);
        }
        assert_eq!(wire.call(&words.iter().map(Vec::as_slice).collect::<Vec<_>>()), queued());
    }
    let text = error_of(wire.call_line("EXEC"));
    assert!(text.starts_with("EXECABORT") && text.contains("80000 keys") && text.contains("65536"), "{text}");
    assert_eq!(wire.call_line("DBSIZE"), RespValue::Integer(0));
}
