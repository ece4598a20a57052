//! Differential tests: the same commands to this front end and to redis-server must get the same replies.
//!
//! Skipped, with a message, where no redis-server is installed.

use crate::wire::{self, RespTestClient, RespValue, TestNode};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

/// A redis-server to compare with.
pub(crate) struct RedisServer {
    child: Child,
    directory: tempfile::TempDir,
}

impl RedisServer {
    /// Starts a server; `None`, with a message, where none is installed.
    pub(crate) fn start() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("redis.sock");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Self { child, directory }),
            Err(_) => {
                eprintln!("skipped: redis-server is not installed, nothing to compare with");
                None
            }
        }
    }

    /// Connects a client.
    pub(crate) fn connect(&self) -> RespTestClient<UnixStream> {
        let socket = self.directory.path().join("redis.sock");
        for _ in 0..500 {
            if let Ok(stream) = UnixStream::connect(&socket) {
                return RespTestClient::new(stream);
            }
            headwater_host::clock::Clock::sleep(headwater_host::clock::Nanos::from_millis(10));
        }
        panic!("redis-server did not open its socket within five seconds");
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns true if two replies are equivalent: KEYS in any order, and TTLs, read at different times, within a
/// tolerance.
pub(crate) fn same(words: &[&[u8]], mut left: RespValue, mut right: RespValue) -> bool {
    let is = |name: &[u8]| words[0].eq_ignore_ascii_case(name);
    match (&mut left, &mut right) {
        (RespValue::Array(left), RespValue::Array(right)) if is(b"keys") => {
            left.sort();
            right.sort();
        }
        (RespValue::Integer(left @ 1..), RespValue::Integer(right @ 1..)) if is(b"ttl") => {
            return left.abs_diff(*right) < 60;
        }
        _ => {}
    }
    left == right
}

fn shown(words: &[&[u8]]) -> String {
    words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect::<Vec<_>>().join(" ")
}

/// A script of commands separated by semicolons.
const SCRIPT: &str = "\
    GET; GET a b; get nothing; set a 1; get a; SET a 2 NX; SET b 2 XX; SET b 2 NX; SET a 3 XX GET; \
    SET a 4 NX GET; SET new 4 NX GET; SET a 1 EX 0; SET a 1 EX -1; SET a 1 PX x; SET a 1 EX; \
    SET a 1 EX 10 PX 10; SET a 1 EX 10 KEEPTTL; SET a 1 KEEPTTL EX 10; SET a 1 NX XX; SET a 1 FOO; \
    SET a 1 EX 9223372036854775807; SET a 1 PX 9223372036854775807; SET a 1 EXAT 99999999999; \
    EXPIRETIME a; PEXPIRETIME a; SET a 2 KEEPTTL; EXPIRETIME a; SET a 1 PXAT 99999999999999; \
    EXPIRETIME a; SET a 1; EXPIRETIME a; TTL a; TTL none; PTTL none; EXPIRETIME none; SET a v EXAT 1; \
    GET a; SET a 1; SETNX a 2; SETNX fresh 2; SETEX a 100 v; TTL a; SETEX a 0 v; SETEX a x v; \
    PSETEX a -1 v; GETSET a w; TTL a; GETSET none2 w; GETDEL a; GETDEL a; GETEX none; SET a 5; \
    GETEX a EX 100; TTL a; GETEX a PERSIST; TTL a; GETEX a PERSIST; GETEX a EX 0; GETEX a FOO; \
    GETEX a EX; GETEX a EXAT 1; GET a; MGET a b c; MGET; MSET a 1 b 2 c 3; MSET a 1 b; MSET; \
    MSETNX x 1 a 2; MSETNX x 1 y 2 x 3; MGET x y a b; APPEND a 23; APPEND brand new; STRLEN a; \
    STRLEN none; GETRANGE a 0 -1; GETRANGE a -2 -1; GETRANGE a 5 9; GETRANGE a x 1; SUBSTR brand 0 1; \
    SETRANGE brand 1 XY; GET brand; SETRANGE brand 10 z; GET brand; SETRANGE brand -1 z; \
    SETRANGE brand x z; SETRANGE nokey 5 ab; GET nokey; SETBIT bits 7 1; GET bits; GETBIT bits 7; \
    GETBIT bits 6; GETBIT bits 1000; SETBIT bits 7 0; SETBIT bits 7 2; SETBIT bits -1 1; GETBIT bits x; \
    INCR a; INCR brand; DECR a; INCRBY a 100; DECRBY a 50; INCRBY a x; INCRBY a 9223372036854775807; \
    DECRBY a -9223372036854775808; INCRBYFLOAT a 0.1; INCRBYFLOAT a 5.0e3; INCRBYFLOAT a x; \
    INCRBYFLOAT a inf; INCRBYFLOAT brand 1; INCR a; DEL a b none; DEL a; UNLINK c; UNLINK x y; \
    EXISTS brand; EXISTS brand brand none; TOUCH brand none; EXPIRE brand 100; TTL brand; \
    EXPIRE brand 50 GT; EXPIRE brand 150 LT; EXPIRE brand 150 GT; TTL brand; EXPIRE brand 10 NX; \
    EXPIRE brand 10 XX; EXPIRE brand 10 NX XX; EXPIRE brand 10 GT LT; EXPIRE brand 10 FOO; \
    EXPIRE brand x; EXPIRE brand 9223372036854775807; PEXPIRE brand 9223372036854775807; PERSIST brand; \
    PERSIST brand; PERSIST none; TTL brand; EXPIRE brand 10 GT; EXPIRE brand 10 LT; EXPIRE brand -1; \
    EXISTS brand; EXPIREAT bits 1; EXISTS bits; SET k1 v1; SET k2 v2 EX 500; RENAME k1 k3; \
    RENAME none k3; RENAME k2 k3; TTL k3; GET k3; RENAME k3 k3; RENAMENX k3 k3; RENAMENX k3 k4; \
    SET k5 v; RENAMENX k5 k4; RENAMENX none k4; COPY k4 k6; COPY k4 k6; COPY k4 k6 REPLACE; TTL k6; \
    COPY none k6; COPY k4 k4; COPY k4 k7 DB 1; COPY k4 k4 DB 1; COPY k4 k7 DB 99; COPY k4 k7 DB x; \
    COPY k4 k7 FOO; SELECT 1; GET k7; KEYS *; DBSIZE; SELECT 16; SELECT x; SELECT -1; SELECT 0; \
    TYPE k4; TYPE none; KEYS k*; KEYS k[45]; KEYS ?5; DBSIZE; SCAN x; SCAN 0 COUNT 0; SCAN 0 COUNT x; \
    SCAN 0 FOO 1; SCAN 0 MATCH; SCAN 0 COUNT 1000 MATCH nothing*; SCAN 0 COUNT 1000 TYPE list; \
    OBJECT ENCODING k4; SET n 12345; OBJECT ENCODING n; OBJECT ENCODING none; OBJECT REFCOUNT k4; \
    OBJECT FREQ k4; OBJECT FOO k4; OBJECT ENCODING; SET l1 ohmytext; SET l2 mynewtext; LCS l1 l2; \
    LCS l1 l2 LEN; LCS l1 l2 IDX; LCS l1 l2 IDX MINMATCHLEN 4 WITHMATCHLEN; LCS l1 l2 LEN IDX; \
    LCS l1 none; LCS l1 l2 FOO; PING; PING hello; PING a b; ECHO hello; ECHO; AUTH x; AUTH a b; \
    AUTH a b c; HELLO 4; HELLO x; HELLO 2 FOO; HELLO 2 SETNAME; CLIENT GETNAME; CLIENT SETNAME me; \
    CLIENT GETNAME; CLIENT FOO; CLIENT SETNAME; CLIENT KILL 1.2.3.4:5; CLIENT KILL ID 0; \
    CLIENT NO-EVICT on; CLIENT NO-EVICT x; FOO; FOO a b; SUBSCRIBEX; CONFIG SET nothing 1; \
    CONFIG SET databases 3; CONFIG SET; CONFIG GET; CONFIG GET save; CONFIG GET maxmemory; \
    CONFIG GET databases; CONFIG FOO; SLOWLOG RESET; SLOWLOG GET -2; SLOWLOG FOO; COMMAND FOO; \
    COMMAND GETKEYS GET a; COMMAND GETKEYS MSET a 1 b 2; COMMAND GETKEYS PING; COMMAND INFO foo; \
    WAIT 0 0; WAIT x 0; WAIT 0 -1; FLUSHDB FOO; FLUSHDB ASYNC; DBSIZE; SELECT 1; DBSIZE; FLUSHALL; \
    DBSIZE; SELECT 0; RANDOMKEY; RESET; QUIT";

#[test]
fn scripted_commands_get_the_replies_of_redis() {
    let Some(redis) = RedisServer::start() else { return };
    let node = TestNode::start(1, 1_000);
    let (mut theirs, mut ours) = (redis.connect(), node.connect());
    let mut differences = Vec::new();
    for line in SCRIPT.split(';').map(str::trim) {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let (expected, found) = (theirs.call(&words), ours.call(&words));
        if !same(&words, expected.clone(), found.clone()) {
            differences.push(format!("{line}\n  redis:     {expected:?}\n  headwater: {found:?}"));
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn resp3_replies_equal_those_of_redis() {
    let Some(redis) = RedisServer::start() else { return };
    let node = TestNode::start(2, 1_000);
    let (mut theirs, mut ours) = (redis.connect(), node.connect());
    for wire in [theirs.call_line("HELLO 3"), ours.call_line("HELLO 3")] {
        assert!(matches!(wire, RespValue::Map(_)));
    }
    for line in [
        "GET none",
        "SET a 1",
        "MGET a none",
        "CLIENT GETNAME",
        "CONFIG GET databases",
        "SET l1 ohmytext",
        "SET l2 mynewtext",
        "LCS l1 l2 IDX WITHMATCHLEN",
        "SET a 2 NX",
        "RANDOMKEYX",
        "COMMAND INFO foo",
        "TTL a",
    ] {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        assert_eq!(theirs.call(&words), ours.call(&words), "{line}");
    }
}

#[test]
fn malformed_frames_get_the_error_of_redis_and_close_the_connection() {
    let Some(redis) = RedisServer::start() else { return };
    let node = TestNode::start(3, 1_000);
    for broken in [
        &b"*x\r\n"[..],
        b"*99999999999\r\n",
        b"*1\r\n:3\r\n",
        b"*1\r\n$x\r\n",
        b"*1\r\n$-5\r\n",
        b"set \"a\r\n",
        b"set 'a'b\r\n",
        b"*2\r\n$3\r\nGET\r\nx\r\n",
    ] {
        let (mut theirs, mut ours) = (redis.connect(), node.connect());
        theirs.send(broken);
        ours.send(broken);
        assert_eq!(theirs.receive(), ours.receive(), "{}", String::from_utf8_lossy(broken));
        let mut rest = Vec::new();
        std::io::Read::read_to_end(&mut ours.stream, &mut rest).unwrap();
        assert!(rest.is_empty());
    }
}

fn pick<'a>(random: &mut fastrand::Rng, from: &[&'a str]) -> &'a str {
    from[random.usize(..from.len())]
}

/// Returns a random command that is usually valid.
pub(crate) fn command(random: &mut fastrand::Rng) -> String {
    const KEYS: &[&str] = &["a", "b", "c", "d"];
    const VALUES: &[&str] = &["1", "-7", "hello", "3.5", "9223372036854775807", "longer-than-a-word", "0"];
    const NUMBERS: &[&str] = &["0", "1", "-1", "3", "-3", "7", "100", "x"];
    let (key, other) = (pick(random, KEYS), pick(random, KEYS));
    let (value, number) = (pick(random, VALUES), pick(random, NUMBERS));
    let second = pick(random, NUMBERS);
    // Times hardly ever repeat, so the millisecond in which a command arrives does not change a comparison of times.
    let time = match random.u8(..8) {
        0 => "0".to_owned(),
        1 => "-5".to_owned(),
        2 => "x".to_owned(),
        _ => random.u32(1_000..1_000_000).to_string(),
    };
    match random.u8(..34) {
        0..=2 => format!("SET {key} {value}"),
        3 => format!("SET {key} {value} {} EX {time}", pick(random, &["NX", "XX", "GET"])),
        4 => format!(
            "SET {key} {value} {}",
            pick(random, &["KEEPTTL", "NX GET", "XX GET", "XX", "NX KEEPTTL"])
        ),
        5..=7 => format!("GET {key}"),
        8 => format!("INCRBY {key} {number}"),
        9 => format!("DECR {key}"),
        10 => format!("INCRBYFLOAT {key} {value}"),
        11 => format!("APPEND {key} {value}"),
        12 => format!("SETRANGE {key} {number} {value}"),
        13 => format!("GETRANGE {key} {number} {second}"),
        14 => format!("SETBIT {key} {number} {}", random.u8(..2)),
        15 => format!("GETBIT {key} {number}"),
        16 => format!("DEL {key} {other}"),
        17 => format!("DEL {key}"),
        18 => format!("EXISTS {key} {other}"),
        19 => format!("EXPIRE {key} {time} {}", pick(random, &["NX", "XX", "GT", "LT"])),
        20 => format!("EXPIRE {key} {time}"),
        21 => format!("TTL {key}"),
        22 => format!("PERSIST {key}"),
        23 => format!("RENAME {key} {other}"),
        24 => format!("RENAMENX {key} {other}"),
        25 => format!("COPY {key} {other} {}", pick(random, &["REPLACE", "DB 0"])),
        26 => format!("MSET {key} {value} {other} {number}"),
        27 => format!("MSETNX {key} {value} {other} {number}"),
        28 => format!("MGET {key} {other} none"),
        29 => format!("GETEX {key} EX {time}"),
        30 => format!("GETDEL {key}"),
        31 => format!("GETSET {key} {value}"),
        32 => format!("STRLEN {key}"),
        _ => pick(random, &["DBSIZE", "KEYS *", "FLUSHDB"]).to_owned(),
    }
}

#[test]
fn random_pipelines_get_the_replies_of_redis() {
    let Some(redis) = RedisServer::start() else { return };
    for seed in 0..12 {
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        // A small limit of commands in flight, so that the device is often busy.
        let node = TestNode::start(seed, if seed % 2 == 0 { 3 } else { 1_000 });
        let (mut theirs, mut ours) = (redis.connect(), node.connect());
        theirs.call_line("FLUSHALL");
        for _ in 0..40 {
            let lines: Vec<String> = (0..random.usize(1..40)).map(|_| command(&mut random)).collect();
            let mut bytes = Vec::new();
            for line in &lines {
                bytes.extend(wire::encode(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>()));
            }
            theirs.send(&bytes);
            ours.send(&bytes);
            for line in &lines {
                let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
                let (expected, found) = (theirs.receive(), ours.receive());
                let differ = format!("seed {seed}: {}: {expected:?} and {found:?}", shown(&words));
                assert!(same(&words, expected, found), "{differ}");
            }
        }
    }
}
