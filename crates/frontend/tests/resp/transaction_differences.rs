//! Differential tests of transactions: the same commands to this front end and to redis-server must get the same replies.

use crate::differential::{RedisServer, command, same};
use crate::wire::{RespValue, TestNode};

/// Commands of two clients, `1` and `2`, separated by semicolons.
const SCRIPT: &str = "\
    1 EXEC; 1 DISCARD; 1 MULTI; 1 EXEC; 1 MULTI; 1 DISCARD; 1 MULTI x; 1 EXEC x; 1 EXEC; \
    1 MULTI; 1 SET a 1; 1 GET a; 1 INCR a; 1 GET a; 1 EXEC; 2 GET a; \
    1 MULTI; 1 SET a x; 1 INCR a; 1 SET a 7; 1 EXEC; 1 GET a; \
    1 MULTI; 1 SET a 9; 1 FOO; 1 SET b 9; 1 EXEC; 1 GET a; 1 EXISTS b; \
    1 MULTI; 1 SET a 9; 1 GET; 1 EXEC; 1 GET a; 1 MULTI; 1 SET a 9; 1 EXEC x; 1 EXEC; 1 GET a; \
    1 MULTI; 1 MULTI; 1 SET a 10; 1 EXEC; 1 GET a; 1 MULTI; 1 WATCH a; 1 SET a 11; 1 EXEC; 1 GET a; \
    1 MULTI; 1 PING; 1 ECHO x; 1 MGET a none; 1 TTL a; 1 EXEC; \
    1 MULTI; 1 DEL a; 1 GET a; 1 SET a 3 NX; 1 SET a 4 NX; 1 SET a 5 XX GET; 1 EXEC; 1 GET a; \
    1 MULTI; 1 SET t v EX 100; 1 TTL t; 1 PERSIST t; 1 TTL t; 1 EXPIRE t 50; 1 SET t w KEEPTTL; 1 TTL t; 1 EXEC; \
    1 TTL t; 1 MULTI; 1 SET t v PXAT 1; 1 GET t; 1 EXISTS t; 1 EXEC; 1 GET t; \
    1 MULTI; 1 SET m 1; 1 RENAME m n; 1 GET m; 1 GET n; 1 COPY n o; 1 RENAMENX n o; 1 RENAME none o; 1 EXEC; \
    1 MGET m n o; 1 MULTI; 1 MSET x 1 y 2; 1 MSETNX x 5 z 5; 1 MGET x y z; 1 DEL x y z none; 1 EXISTS x y; 1 EXEC; \
    1 MULTI; 1 APPEND p ab; 1 APPEND p cd; 1 SETRANGE p 6 x; 1 GETRANGE p 1 2; 1 STRLEN p; 1 SETBIT p 3 1; \
    1 GETBIT p 3; 1 EXEC; 1 GET p; 1 MULTI; 1 INCRBYFLOAT f 1.5; 1 GETSET f 2; 1 GETDEL f; 1 GETEX f; 1 EXEC; \
    1 MULTI; 1 SET del 1; 1 DEL del; 1 EXEC; 1 EXISTS del; \
    1 WATCH a; 1 MULTI; 1 SET a 1; 1 EXEC; 1 WATCH a; 2 SET a 2; 1 MULTI; 1 SET a 3; 1 EXEC; 1 GET a; \
    1 WATCH a; 2 SET a 2; 1 UNWATCH; 1 MULTI; 1 SET a 4; 1 EXEC; 1 GET a; \
    1 WATCH a; 2 SET a 2; 1 MULTI; 1 DISCARD; 1 MULTI; 1 SET a 5; 1 EXEC; 1 GET a; \
    1 WATCH a; 2 SET a 5; 1 MULTI; 1 EXEC; 1 MULTI; 1 GET a; 1 EXEC; \
    1 WATCH w; 2 SET w 1; 1 MULTI; 1 GET w; 1 EXEC; 1 WATCH w; 2 DEL w; 1 MULTI; 1 GET w; 1 EXEC; \
    1 WATCH w a; 2 GET a; 2 EXISTS w; 2 DEL w; 1 MULTI; 1 GET a; 1 EXEC; \
    1 WATCH a; 1 SET a 6; 1 MULTI; 1 GET a; 1 EXEC; 1 WATCH a; 2 EXPIRE a 1000; 1 MULTI; 1 GET a; 1 EXEC; \
    1 WATCH a; 2 PERSIST a; 1 MULTI; 1 GET a; 1 EXEC; 1 WATCH a; 2 PERSIST a; 1 MULTI; 1 GET a; 1 EXEC; \
    1 WATCH a; 2 INCR a; 1 WATCH a; 1 MULTI; 1 GET a; 1 EXEC; 1 WATCH a; 2 SELECT 1; 2 SET a 1; 1 MULTI; 1 GET a; \
    1 EXEC; 2 SELECT 0; 1 WATCH a; 2 RENAME a b; 1 MULTI; 1 GET a; 1 EXEC; 1 WATCH a; 2 FLUSHALL; 1 MULTI; 1 PING; \
    1 EXEC; 1 SET a 1; 1 WATCH a; 2 FLUSHALL; 1 MULTI; 1 PING; 1 EXEC; 1 WATCH; 1 UNWATCH x; \
    1 WATCH a; 1 MULTI; 1 UNWATCH; 1 SET a 1; 1 EXEC; 1 WATCH a; 2 SET a 2; 1 MULTI; 1 FOO; 1 EXEC; 1 GET a; \
    1 WATCH a; 2 SET a 3; 1 RESET; 1 MULTI; 1 SET a 4; 1 EXEC; 1 GET a; 1 MULTI; 1 SET a 5; 1 RESET; 1 GET a; 1 EXEC; \
    1 MULTI; 1 SELECT 0; 1 SELECT x; 1 GET a; 1 EXEC; 1 MULTI; 1 SET a; 1 MULTI; 1 SET b 1; 1 EXEC; 1 EXISTS b; \
    1 MULTI; 1 TYPE a; 1 OBJECT ENCODING a; 1 TOUCH a none; 1 UNLINK a; 1 EXEC; 1 COMMAND GETKEYS WATCH a b; \
    1 FLUSHALL; 1 RANDOMKEY; 1 MULTI; 1 DBSIZE; 1 KEYS *; 1 RANDOMKEY; 1 SCAN 0; 1 SET k1 ohmytext; 1 RANDOMKEY; \
    1 DBSIZE; 1 KEYS *; 1 SCAN 0; 1 SET k2 mynewtext; 1 LCS k1 k2; 1 LCS k1 k2 LEN; 1 LCS k1 k2 IDX; 1 DBSIZE; 1 DEL k1; \
    1 KEYS k*; 1 DBSIZE; 1 LCS k1 k2; 1 EXEC; 1 DBSIZE; 1 MULTI; 1 SET k2 x; 1 DBSIZE; 1 KEYS k?; 1 SET k2 y PXAT 1; \
    1 DBSIZE; 1 KEYS *; 1 RANDOMKEY; 1 SET k3 z EX 100; 1 DBSIZE; 1 KEYS *; 1 SCAN 0 MATCH k3; 1 SCAN x; 1 KEYS; 1 EXEC; \
    1 MULTI; 1 RENAME k2 k4; 1 RENAME k3 k5; 1 KEYS *; 1 DBSIZE; 1 SCAN 0 TYPE list; 1 SCAN x; 1 LCS k5; 1 EXEC; \
    1 MULTI; 1 RENAME k3 k5; 1 KEYS *; 1 DBSIZE; 1 SCAN 0 TYPE list; 1 SCAN x; 1 LCS k5 k5 FOO; 1 EXEC; 1 DBSIZE; \
    1 WATCH k5; 2 SET k5 2; 1 MULTI; 1 DBSIZE; 1 KEYS *; 1 EXEC; 1 MULTI; 1 DEL k5; 1 DBSIZE; 1 RANDOMKEY; 1 EXEC; \
    1 MULTI; 1 SELECT 1; 1 SET s 1; 1 GET s; 1 DBSIZE; 1 KEYS *; 1 SELECT 16; 1 EXEC; 1 GET s; 1 SELECT 0; 1 GET s; \
    1 MULTI; 1 SELECT 1; 1 SELECT 2; 1 EXEC; 1 DBSIZE; 1 SELECT 0; 1 MULTI; 1 SELECT 1; 1 DISCARD; 1 EXISTS s; \
    1 WATCH s; 2 SET s 0; 1 MULTI; 1 GET s; 1 SELECT 1; 1 EXEC; 1 GET s; 1 MULTI; 1 SELECT 1; 1 FOO; 1 EXEC; 1 GET s; \
    1 MULTI; 1 DEL s; 1 SELECT 1; 1 EXEC; 1 GET s; 1 MULTI; 1 SELECT 0; 1 SELECT 1; 1 DEL s; 1 SELECT 0; 1 EXEC; \
    1 EXISTS s; 1 MULTI; 1 WAIT 0 0; 1 EXEC; 1 MULTI; 1 SET a 1; 1 QUIT";

/// Runs a script of commands of two clients on both servers, and compares the replies.
pub(crate) fn run_script(hello: &str, script: &str) {
    let Some(redis) = RedisServer::start() else { return };
    let node = TestNode::start(1, 1_000);
    let mut theirs = [redis.connect(), redis.connect()];
    let mut ours = [node.connect(), node.connect()];
    for client in &mut theirs {
        client.call_line(hello);
    }
    for client in &mut ours {
        client.call_line(hello);
    }
    let mut differences = Vec::new();
    for line in script.split(';').map(str::trim) {
        let mut words = line.split(' ');
        let client = usize::from(words.next() == Some("2"));
        let words: Vec<&[u8]> = words.map(str::as_bytes).collect();
        let (expected, found) = (theirs[client].call(&words), ours[client].call(&words));
        if !same(&words, expected.clone(), found.clone()) {
            differences.push(format!("{line}\n  redis:     {expected:?}\n  headwater: {found:?}"));
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn transactions_get_the_replies_of_redis() {
    run_script("HELLO 2", SCRIPT);
}

#[test]
fn transactions_get_the_replies_of_redis_in_resp3() {
    run_script("HELLO 3", SCRIPT);
}

/// Returns a random command on keys of one database that a transaction may have.
pub(crate) fn allowed_command(random: &mut fastrand::Rng) -> String {
    if random.u8(..12) == 0 {
        let lists =
            ["SCAN 0 COUNT 1000", "SCAN 0 COUNT 1000 MATCH [ab]", "LCS a b", "LCS b c LEN", "LCS a d IDX"];
        return lists[random.usize(..lists.len())].to_owned();
    }
    key_command(random)
}

/// Returns a random command that reads or changes single keys, or lists all of them.
fn key_command(random: &mut fastrand::Rng) -> String {
    loop {
        let line = command(random);
        if line != "FLUSHDB" {
            return line;
        }
    }
}

fn sorted(keys: RespValue) -> RespValue {
    let RespValue::Array(mut keys) = keys else { return keys };
    keys.sort();
    RespValue::Array(keys)
}

/// Returns a copy in which TTLs, read at different times, are equal, and keys are sorted.
pub(crate) fn comparable(lines: &[String], value: RespValue) -> RespValue {
    let RespValue::Array(parts) = value else { return value };
    let alike = parts.into_iter().zip(lines).map(|(part, line)| match part {
        RespValue::Integer(1..) if line.starts_with("TTL") => RespValue::Integer(1),
        part if line.starts_with("KEYS") => sorted(part),
        RespValue::Array(parts) if line.starts_with("SCAN") => {
            RespValue::Array(parts.into_iter().map(sorted).collect())
        }
        part => part,
    });
    RespValue::Array(alike.collect())
}

#[test]
fn random_transactions_get_the_replies_of_redis() {
    let Some(redis) = RedisServer::start() else { return };
    let (mut happened, mut failed) = (0, 0);
    for seed in 0..8 {
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let node = TestNode::start(seed, if seed % 2 == 0 { 3 } else { 1_000 });
        let (mut theirs, mut ours) = (redis.connect(), node.connect());
        let (mut theirs_other, mut ours_other) = (redis.connect(), node.connect());
        theirs.call_line("FLUSHALL");
        for _ in 0..60 {
            let watched = ["", "WATCH a", "WATCH a b", "WATCH none"][random.usize(..4)];
            let other = if random.bool() { key_command(&mut random) } else { "GET a".to_owned() };
            let lines: Vec<String> = (0..random.usize(0..30)).map(|_| allowed_command(&mut random)).collect();
            let run = |line: &str,
                       theirs: &mut dyn FnMut(&str) -> RespValue,
                       ours: &mut dyn FnMut(&str) -> RespValue| {
                let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
                let (expected, found) = (theirs(line), ours(line));
                let differ = format!("seed {seed}: {line}: {expected:?} and {found:?}");
                assert!(same(&words, expected, found), "{differ}");
            };
            let (mut their_line, mut our_line) =
                (|line: &str| theirs.call_line(line), |line: &str| ours.call_line(line));
            if !watched.is_empty() {
                run(watched, &mut their_line, &mut our_line);
            }
            run(&other, &mut |line| theirs_other.call_line(line), &mut |line| ours_other.call_line(line));
            run("MULTI", &mut their_line, &mut our_line);
            for line in &lines {
                run(line, &mut their_line, &mut our_line);
            }
            let (expected, found) = (theirs.call_line("EXEC"), ours.call_line("EXEC"));
            match &expected {
                RespValue::Array(_) => happened += 1,
                _ => failed += 1,
            }
            let (expected, found) = (comparable(&lines, expected), comparable(&lines, found));
            assert_eq!(found, expected, "seed {seed}: {watched}; {other}; {lines:?}");
            for key in ["a", "b", "c", "d"] {
                let get = format!("GET {key}");
                assert_eq!(
                    ours.call_line(&get),
                    theirs.call_line(&get),
                    "seed {seed}: {key} after {lines:?}"
                );
            }
        }
    }
    assert!(happened > 50 && failed > 5, "{happened} transactions happened, {failed} failed");
}
