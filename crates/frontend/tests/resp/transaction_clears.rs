//! Tests of FLUSHDB and FLUSHALL inside of transactions.

use crate::transaction_databases::{RandomRound, compare_with_redis};
use crate::transaction_device::DeviceBench;
use crate::transaction_differences::{allowed_command, run_script};
use crate::transactions::{bulk, error_of, exec, ok, queued};
use crate::wire::{RespValue, TestNode, encode};
use headwater_ssd::command::NamespaceId;
use headwater_ssd::engine::{DeviceConfig, Durability};
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind};

/// Commands of two clients, `1` and `2`, separated by semicolons.
const SCRIPT: &str = "\
    1 FLUSHALL; 1 SET old 0; 1 MULTI; 1 SET a 1; 1 FLUSHDB; 1 SET b 2; 1 EXEC; 1 MGET old a b; 1 DBSIZE; \
    1 MULTI; 1 FLUSHDB; 1 EXEC; 1 DBSIZE; 1 MULTI; 1 FLUSHALL; 1 EXEC; 1 DBSIZE; \
    1 SET a 1; 1 MULTI; 1 GET a; 1 FLUSHDB; 1 GET a; 1 EXISTS a; 1 STRLEN a; 1 TTL a; 1 TYPE a; 1 DBSIZE; 1 KEYS *; \
    1 RANDOMKEY; 1 SCAN 0; 1 SCAN 5; 1 DEL a; 1 INCR a; 1 GET a; 1 DBSIZE; 1 KEYS *; 1 RANDOMKEY; 1 SCAN 0; 1 EXEC; \
    1 GET a; 1 DBSIZE; 1 SET b x; 1 MULTI; 1 APPEND b y; 1 FLUSHDB; 1 APPEND b z; 1 EXEC; 1 MGET a b; \
    1 MULTI; 1 SET c 1; 1 FLUSHDB; 1 SET c 2 XX; 1 SET c 3 NX; 1 SET c 4 NX; 1 GETSET c 5; 1 FLUSHDB; 1 GET c; 1 SET d 1; \
    1 EXEC; 1 MGET b c d; 1 MULTI; 1 SET e 1; 1 FLUSHDB; 1 SET e 2; 1 DEL e; 1 DBSIZE; 1 EXEC; 1 DBSIZE; \
    1 SET a 1 EX 1000; 1 MULTI; 1 FLUSHDB; 1 SET a 2 KEEPTTL; 1 TTL a; 1 EXPIRE a 500; 1 PERSIST a; 1 EXEC; 1 TTL a; \
    1 SET b 1; 1 MULTI; 1 RENAME b c; 1 FLUSHDB; 1 RENAME c d; 1 COPY b d; 1 RENAME b d; 1 MSET b 1 c 2; 1 RENAME b d; \
    1 MSETNX d 1 e 1; 1 MSETNX f 1 g 1; 1 MGET a b c d e f g; 1 DBSIZE; 1 EXEC; 1 MGET a b c d e f g; 1 DBSIZE; \
    1 MULTI; 1 FLUSHDB SYNC; 1 SET a 1; 1 FLUSHDB ASYNC; 1 SET b 1; 1 FLUSHDB async; 1 FLUSHDB FOO; 1 FLUSHDB SYNC SYNC; \
    1 FLUSHALL sync; 1 FLUSHALL ASYNC; 1 FLUSHALL FOO; 1 SET c 1; 1 EXEC; 1 MGET a b c; \
    1 SET a 1; 1 SELECT 1; 1 SET a 1; 1 SELECT 15; 1 SET a 1; 1 SELECT 0; 1 MULTI; 1 SELECT 1; 1 FLUSHDB; 1 DBSIZE; \
    1 SELECT 15; 1 DBSIZE; 1 KEYS *; 1 SET b 1; 1 SELECT 0; 1 DBSIZE; 1 EXEC; 1 MGET a b; 1 SELECT 1; 1 MGET a b; \
    1 SELECT 15; 1 MGET a b; 1 SELECT 0; 1 MULTI; 1 FLUSHALL; 1 DBSIZE; 1 SELECT 15; 1 DBSIZE; 1 GET a; 1 SET z 1; \
    1 KEYS *; 1 SELECT 1; 1 DBSIZE; 1 SET y 1; 1 COPY y x DB 3; 1 SELECT 3; 1 DBSIZE; 1 KEYS *; 1 EXEC; 1 DBSIZE; 1 GET x; \
    1 SELECT 15; 1 MGET a b z; 1 SELECT 1; 1 GET y; 1 SELECT 0; 1 DBSIZE; \
    1 SET a 1; 1 WATCH a none; 1 MULTI; 1 FLUSHDB; 1 SET a 2; 1 EXEC; 1 GET a; 1 WATCH a; 2 SET a 3; 1 MULTI; 1 FLUSHALL; \
    1 SET b 1; 1 EXEC; 1 MGET a b; 1 WATCH none; 1 MULTI; 1 FLUSHALL; 1 SET none 1; 1 EXEC; 1 GET none; \
    1 SET a 1; 1 WATCH a; 2 MULTI; 2 FLUSHDB; 2 EXEC; 1 MULTI; 1 SET b 1; 1 EXEC; 1 EXISTS a b; \
    1 SET a 1; 1 WATCH a; 2 MULTI; 2 FLUSHALL; 2 SET a 1; 2 EXEC; 1 MULTI; 1 SET b 1; 1 EXEC; 1 MGET a b; \
    1 WATCH a; 1 SELECT 4; 1 WATCH q; 1 SET w 1; 1 MULTI; 1 FLUSHALL; 1 SET q 1; 1 SELECT 0; 1 SET a 1; 1 EXEC; 1 MGET a b; \
    1 SELECT 4; 1 MGET q w; 1 SELECT 0; 1 WATCH a; 1 SELECT 4; 1 WATCH q; 2 SELECT 4; 2 SET q 2; 1 MULTI; 1 FLUSHALL; \
    1 EXEC; 1 DBSIZE; 1 SELECT 0; 1 DBSIZE; 2 SELECT 0; \
    1 MULTI; 1 FLUSHALL; 1 FOO; 1 EXEC; 1 DBSIZE; 1 MULTI; 1 FLUSHALL; 1 DISCARD; 1 DBSIZE; \
    1 MULTI; 1 DBSIZE; 1 KEYS *; 1 FLUSHDB; 1 SETBIT bits 7 1; 1 BITCOUNT bits; 1 SETRANGE r 3 x; 1 GETDEL bits; \
    1 LCS r r LEN; 1 DBSIZE; 1 SCAN 0 MATCH r; 1 SCAN 0 COUNT 1000; 1 EXEC; 1 GET r; 1 DBSIZE; \
    1 MULTI; 1 SET p v PXAT 1; 1 FLUSHDB; 1 SET p v PXAT 1; 1 EXISTS p; 1 SET p w; 1 DBSIZE; 1 EXEC; 1 GET p";

#[test]
fn transactions_that_clear_databases_get_the_replies_of_redis() {
    run_script("HELLO 2", SCRIPT);
    run_script("HELLO 3", SCRIPT);
}

/// Returns a random command of a transaction, which clears databases often.
fn command(random: &mut fastrand::Rng) -> String {
    match random.u8(..12) {
        0 => "FLUSHDB".to_owned(),
        1 if random.bool() => "FLUSHALL ASYNC".to_owned(),
        1 | 2 => format!("SELECT {}", random.u8(..3)),
        3 => format!("COPY a b DB {} REPLACE", random.u8(..4)),
        4 => ["DBSIZE", "KEYS *", "SCAN 0 COUNT 1000"][random.usize(..3)].to_owned(),
        _ => allowed_command(random),
    }
}

#[test]
fn random_transactions_that_clear_databases_get_the_replies_of_redis() {
    compare_with_redis(8, &["MGET a b c d e", "DBSIZE"], |random| {
        let mut before = vec![format!("SELECT {}", random.u8(..3))];
        if random.bool() {
            before.push(["WATCH a", "WATCH a b", "WATCH none"][random.usize(..3)].to_owned());
            before.push(format!("SELECT {}", random.u8(..3)));
        }
        let beside = [
            format!("SELECT {}", random.u8(..3)),
            ["APPEND a x", "APPEND e x", "FLUSHDB", "GET a"][random.usize(..4)].to_owned(),
        ];
        let lines = (0..random.usize(0..30)).map(|_| command(random)).collect();
        RandomRound { before, beside, lines }
    });
}

#[test]
fn other_clients_see_all_of_a_transaction_that_clears_or_nothing() {
    for seed in 0..6 {
        eprintln!("seed {seed}");
        // Few commands in flight, and many.
        let node = TestNode::start(seed, if seed % 2 == 0 { 4 } else { 4_000 });
        let (mut writer, mut reader) = (node.connect(), node.connect());
        let keys: Vec<String> = (0..40).map(|number| format!("key-{number}")).collect();
        let mut sets = vec![b"MSET".to_vec()];
        for key in &keys {
            sets.extend([key.as_bytes().to_vec(), b"v".to_vec()]);
        }
        let sets = encode(&sets.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let (mut writes, mut reads) = (Vec::new(), Vec::new());
        let rounds = 20;
        for _ in 0..rounds {
            writes.extend(encode(&[b"MULTI"]));
            writes.extend(encode(&[b"FLUSHDB"]));
            writes.extend(&sets);
            writes.extend(encode(&[b"EXEC"]));
            reads.extend(encode(&[b"MULTI"]));
            let words = [&b"MGET"[..]].into_iter().chain(keys.iter().map(String::as_bytes));
            reads.extend(encode(&words.collect::<Vec<_>>()));
            reads.extend(encode(&[b"EXEC"]));
        }
        writer.send(&writes);
        reader.send(&reads);
        for _ in 0..rounds {
            (0..3).for_each(|_| drop(writer.receive()));
            assert_eq!(writer.receive(), RespValue::Array(vec![ok(), ok()]), "seed {seed}");
            (0..2).for_each(|_| drop(reader.receive()));
            let reply = reader.receive();
            let RespValue::Array(parts) = &reply else { panic!("seed {seed}: {reply:?}") };
            let RespValue::Array(values) = &parts[0] else { panic!("seed {seed}: {parts:?}") };
            let found = values.iter().filter(|value| **value != RespValue::Null).count();
            assert!(found == 0 || found == keys.len(), "seed {seed}: {found} of {} keys", keys.len());
        }
        assert_eq!(writer.call_line("DBSIZE"), RespValue::Integer(40));
    }
}

#[test]
fn power_cut_leaves_all_of_a_transaction_that_clears_or_nothing() {
    let (mut whole, mut nothing) = (0, 0);
    for seed in 0..160 {
        let mut random = fastrand::Rng::with_seed(seed);
        let batch_part_writes = [1, 2, 512][random.usize(..3)];
        let mut config = DeviceConfig { batch_part_writes, ..DeviceConfig::default() };
        for durability in &mut config.durability[..4] {
            *durability = [Durability::Always, Durability::OnFlush][random.usize(..2)];
        }
        let mut bench = DeviceBench::new(config);
        // In some runs so many keys are cleared that they leave the index in many turns.
        let many = if random.bool() { 4_000 } else { 1 };
        let mut old = "MSET".to_owned();
        (0..many).for_each(|number| old.push_str(&format!(" old-{number} v")));
        bench.last_of(&[
            &old,
            "SET a old",
            "SELECT 1",
            "SET a old",
            "SELECT 2",
            "SET a old",
            "SELECT 0",
            "SAVE",
        ]);
        let long = "v".repeat(9_000);
        let set_long = format!("SET long {long}");
        let clear = ["FLUSHDB", "FLUSHALL"][random.usize(..2)];
        bench.send(&["MULTI", "SET lost 1", "SELECT 1", "SET b lost", "SELECT 0", clear, "APPEND a new"]);
        bench.send(&["SELECT 1", &set_long, "INCR n", "SELECT 3", "SET a new", "DEL a", "SET c new", "EXEC"]);
        for _ in 0..random.usize(1..60) {
            bench.turn();
        }
        let mut bench = bench.cut();
        let mut found = Vec::new();
        for (database, keys) in [(0, "a lost old-0"), (1, "a b long n"), (2, "a"), (3, "a c")] {
            let (select, get) = (format!("SELECT {database}"), format!("MGET {keys}"));
            let RespValue::Array(values) = bench.last_of(&[&select, &get]) else { panic!("no array") };
            found.extend(values);
            found.push(bench.last_of(&["DBSIZE"]));
        }
        let (none, number) = (|| RespValue::Null, RespValue::Integer);
        let old = || bulk("old");
        let before = [
            vec![old(), none(), bulk("v"), number(many + 1)],
            vec![old(), none(), none(), none(), number(1)],
            vec![old(), number(1), none(), none(), number(0)],
        ];
        let is_all = clear == "FLUSHALL";
        let first = |of_all, of_one| if is_all { of_all } else { of_one };
        let after = [
            vec![bulk("new"), none(), none(), number(1)],
            vec![first(none(), old()), first(none(), bulk("lost")), bulk(&long), bulk("1")],
            vec![number(if is_all { 2 } else { 4 })],
            vec![first(none(), old()), number(i64::from(!is_all)), none(), bulk("new"), number(1)],
        ];
        if found == before.concat() {
            nothing += 1;
        } else {
            assert_eq!(found, after.concat(), "seed {seed}: a transaction with {clear} happened in part");
            whole += 1;
        }
    }
    assert!(whole > 10 && nothing > 10, "{whole} transactions happened, and {nothing} did not");
}

#[test]
fn acknowledged_clear_of_a_durable_database_survives_a_power_cut() {
    let mut config = DeviceConfig::default();
    config.durability[0] = Durability::OnFlush;
    let mut bench = DeviceBench::new(config);
    bench.last_of(&["SELECT 1", "SET a old", "SELECT 0", "SET a old"]);
    let replies = bench.last_of(&["MULTI", "SET b 1", "SELECT 1", "FLUSHDB", "EXEC"]);
    assert_eq!(replies, RespValue::Array(vec![ok(), ok(), ok()]));
    let mut bench = bench.cut();
    assert_eq!(bench.last_of(&["MGET b"]), RespValue::Array(vec![bulk("1")]));
    assert_eq!(bench.last_of(&["SELECT 1", "DBSIZE"]), RespValue::Integer(0));
}

#[test]
fn clear_of_all_databases_leaves_block_namespaces_alone() {
    let mut bench = DeviceBench::new(DeviceConfig::default());
    let kind = NamespaceKind::Block(BlockFormat::B4096);
    let blocks = Namespace { kind, size: 100, ..Namespace::IMPLICIT };
    let made = bench.change(NamespaceId::FIRST, NamespaceChange::Create(blocks));
    let select = format!("SELECT {}", made.0 - 1);
    bench.last_of(&["SET a old", "SELECT 9", "SET a old", "SELECT 0"]);
    let replies = bench.last_of(&["MULTI", "FLUSHALL", "SET b 1", &select, "FLUSHDB", "EXEC"]);
    let RespValue::Array(parts) = replies else { panic!("{replies:?}") };
    assert_eq!(parts[..3], [ok(), ok(), ok()]);
    assert!(error_of(parts[3].clone()).contains("namespace"), "{parts:?}");
    assert_eq!(bench.last_of(&["SELECT 0", "MGET a b"]), RespValue::Array(vec![RespValue::Null, bulk("1")]));
    assert_eq!(bench.last_of(&["SELECT 9", "DBSIZE"]), RespValue::Integer(0));
    assert_eq!(bench.device.namespace(made).map(|namespace| namespace.kind), Some(kind));
    // A transaction that also works on the keys of the block namespace is refused whole, and clears nothing.
    bench.last_of(&["SELECT 0"]);
    let text = error_of(bench.last_of(&["MULTI", "FLUSHALL", &select, "SET a 1", "EXEC"]));
    assert!(text.starts_with("EXECABORT"), "{text}");
    assert_eq!(bench.last_of(&["SELECT 0", "GET b"]), bulk("1"));
}

#[test]
fn clear_makes_room_for_the_writes_of_its_transaction() {
    let mut bench = DeviceBench::new(DeviceConfig::default());
    let small = Namespace { size: 4_096, ..Namespace::IMPLICIT };
    let database = bench.change(NamespaceId::FIRST, NamespaceChange::Create(small)).0 - 1;
    let (select, value) = (format!("SELECT {database}"), "v".repeat(3_000));
    let (first, second) = (format!("SET a {value}"), format!("SET b {value}"));
    assert_eq!(bench.last_of(&[&select, &first]), ok());
    assert!(error_of(bench.last_of(&["MULTI", &second, "EXEC"])).starts_with("EXECABORT"));
    assert!(error_of(bench.last_of(&["MULTI", "FLUSHDB", &first, &second, "EXEC"])).starts_with("EXECABORT"));
    assert_eq!(bench.last_of(&["EXISTS a b"]), RespValue::Integer(1));
    assert_eq!(bench.last_of(&["MULTI", "FLUSHDB", &second, "EXEC"]), RespValue::Array(vec![ok(), ok()]));
    assert_eq!(bench.last_of(&["MGET a b"]), RespValue::Array(vec![RespValue::Null, bulk(&value)]));
}

#[test]
fn transaction_that_watches_and_clears_every_database_fits_in_one_batch() {
    let node = TestNode::start(3, 1_000);
    let mut wire = node.connect();
    for database in 0..16 {
        assert_eq!(wire.call_line(&format!("SELECT {database}")), ok());
        assert_eq!(wire.call_line("SET a old"), ok());
        assert_eq!(wire.call_line("WATCH a none"), ok());
    }
    let mut lines = vec!["FLUSHALL".to_owned()];
    for database in 0..16 {
        lines.extend([format!("SELECT {database}"), "SET b new".to_owned(), "DBSIZE".to_owned()]);
    }
    let RespValue::Array(parts) = exec(&mut wire, &lines) else { panic!("no array") };
    assert_eq!(parts.iter().filter(|part| **part == RespValue::Integer(1)).count(), 16, "{parts:?}");
    for database in 0..16 {
        assert_eq!(wire.call_line(&format!("SELECT {database}")), ok());
        assert_eq!(wire.call_line("MGET a b"), RespValue::Array(vec![RespValue::Null, bulk("new")]));
    }
    assert_eq!(wire.call_line("MULTI"), ok());
    assert_eq!(wire.call_line("FLUSHALL"), queued());
    assert_eq!(wire.call_line("DISCARD"), ok());
    assert_eq!(wire.call_line("DBSIZE"), RespValue::Integer(1));
}
