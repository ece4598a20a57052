//! Tests of the commands that list keys or compare values inside transactions.

use crate::harness::RespHarness;
use crate::transactions::{bulk, error_of, exec, node_beside_another_front_end, ok, queued};
use crate::wire::{RespValue, TestNode, encode};
use std::io::Write;

/// Returns the sorted keys of a reply of KEYS.
fn keys_of(reply: &RespValue) -> Vec<String> {
    let RespValue::Array(keys) = reply else { panic!("no keys: {reply:?}") };
    let text = |key: &RespValue| match key {
        RespValue::Bulk(key) => String::from_utf8(key.clone()).unwrap(),
        other => panic!("no key: {other:?}"),
    };
    let mut keys: Vec<String> = keys.iter().map(text).collect();
    keys.sort();
    keys
}

#[test]
fn listings_of_many_keys_show_the_changes_of_their_transaction() {
    for room in [3, 1_000] {
        let node = TestNode::start(8, room);
        let mut wire = node.connect();
        let mut expected: Vec<String> = (0..1_500).map(|number| format!("key{number}")).collect();
        for chunk in expected.chunks(500) {
            let words: Vec<String> = chunk.iter().map(|key| format!("{key} v")).collect();
            assert_eq!(wire.call_line(&format!("MSET {}", words.join(" "))), ok());
        }
        let lines = [
            "SET made 1",
            "SET key7 changed",
            "DEL key8",
            "DBSIZE",
            "KEYS *",
            "RANDOMKEY",
            "DEL made",
            "DBSIZE",
        ];
        let RespValue::Array(parts) = exec(&mut wire, &lines.map(str::to_owned)) else { panic!("no array") };
        expected.retain(|key| key != "key8");
        assert_eq!(parts[3], RespValue::Integer(1_500));
        assert_eq!(parts[7], RespValue::Integer(1_499));
        let found = keys_of(&parts[4]);
        expected.push("made".to_owned());
        expected.sort();
        assert_eq!(found, expected);
        assert!(
            matches!(&parts[5], RespValue::Bulk(key) if expected.contains(&String::from_utf8(key.clone()).unwrap()))
        );
        assert_eq!(wire.call_line("DBSIZE"), RespValue::Integer(1_499));
    }
}

/// Iterates with each SCAN in a transaction of its own, which overwrites and deletes keys.
#[test]
fn scan_inside_transactions_returns_every_key_that_stays() {
    let node = TestNode::start(9, 1_000);
    let mut wire = node.connect();
    for number in 0..200 {
        assert_eq!(wire.call_line(&format!("SET key{number} v")), ok());
    }
    let (mut cursor, mut seen, mut rounds) = ("0".to_owned(), Vec::new(), 0);
    loop {
        let lines = [
            format!("SET key{rounds} again"),
            format!("SET made{rounds} v"),
            format!("DEL key{}", 100 + rounds),
            format!("SCAN {cursor} COUNT 10"),
        ];
        let RespValue::Array(parts) = exec(&mut wire, &lines) else { panic!("no array") };
        let RespValue::Array(scan) = &parts[3] else { panic!("{parts:?}") };
        let RespValue::Bulk(next) = &scan[0] else { panic!("{scan:?}") };
        let keys = keys_of(&scan[1]);
        assert!(!keys.contains(&format!("key{}", 100 + rounds)), "a key that was deleted before");
        assert!(rounds > 0 || keys.contains(&"made0".to_owned()), "{keys:?}");
        seen.extend(keys);
        rounds += 1;
        cursor = String::from_utf8(next.clone()).unwrap();
        if cursor == "0" {
            break;
        }
    }
    assert!(rounds > 10, "{rounds} rounds");
    let staying = (0..100).chain(100 + rounds..200).map(|number| format!("key{number}"));
    assert!(staying.into_iter().all(|key| seen.contains(&key)), "{seen:?}");
}

#[test]
fn listing_transactions_lose_no_increment_beside_other_clients() {
    for seed in 0..4 {
        eprintln!("seed {seed}");
        let node =
            if seed % 2 == 0 { TestNode::start(seed, 100) } else { node_beside_another_front_end(seed, 100) };
        let mut wires: Vec<_> = (0..6).map(|_| node.connect()).collect();
        for (at, wire) in wires.iter_mut().enumerate() {
            let commands: [&[&[u8]]; 5] =
                [&[b"MULTI"], &[b"INCR", b"a"], &[b"KEYS", b"*"], &[b"DBSIZE"], &[b"EXEC"]];
            let plain = encode(&[b"INCR", b"a"]);
            let listing: Vec<u8> = commands.iter().flat_map(|words| encode(words)).collect();
            wire.send(&if at < 3 { listing.repeat(15) } else { plain.repeat(15) });
        }
        let mut done = 0;
        for (at, wire) in wires.iter_mut().enumerate() {
            for _ in 0..15 {
                if at >= 3 {
                    match wire.receive() {
                        RespValue::Integer(_) => done += 1,
                        RespValue::Error(text) => {
                            assert!(text.contains("changed by other clients"), "{text}");
                        }
                        other => panic!("seed {seed}: {other:?}"),
                    }
                    continue;
                }
                for wanted in [ok(), queued(), queued(), queued()] {
                    assert_eq!(wire.receive(), wanted);
                }
                match wire.receive() {
                    RespValue::Array(parts) => {
                        assert_eq!(keys_of(&parts[1]), ["a"], "seed {seed}");
                        assert_eq!(parts[2], RespValue::Integer(1), "seed {seed}");
                        done += 1;
                    }
                    // It met other writes each time.
                    RespValue::Error(text) => assert!(text.starts_with("EXECABORT"), "{text}"),
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
        }
        assert_eq!(wires[0].call_line("GET a"), bulk(&done.to_string()), "seed {seed}");
    }
}

#[test]
fn long_comparison_in_a_transaction_is_computed_in_parts() {
    let mut harness = RespHarness::start();
    let value = |byte: u8| (0..6_000).map(|at| if at % 7 == 0 { byte } else { b'x' }).collect::<Vec<u8>>();
    let (left, right) = (value(b'l'), value(b'r'));
    let mut bytes = encode(&[b"MULTI"]);
    bytes.extend(encode(&[b"SET", b"left", &left]));
    bytes.extend(encode(&[b"SET", b"right", &right]));
    bytes.extend(encode(&[b"LCS", b"left", b"right", b"LEN"]));
    bytes.extend(encode(&[b"INCR", b"n"]));
    bytes.extend(encode(&[b"EXEC"]));
    harness.stream.write_all(&bytes).unwrap();
    let before = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n";
    let mut received = harness.wait_for(before.len());
    let began = harness.turn;
    let after = b"*4\r\n+OK\r\n+OK\r\n:5142\r\n:1\r\n";
    received.extend(harness.wait_for(before.len() + after.len() - received.len()));
    assert_eq!(String::from_utf8_lossy(&received), String::from_utf8_lossy(&[&before[..], after].concat()));
    // 36 million steps, 65,536 in a turn.
    let turns = (harness.turn - began) / 3_000;
    assert!(turns > 100, "{turns} turns");
}

#[test]
fn transaction_that_lists_more_than_its_client_may_leave_unread_is_refused_whole() {
    let node = TestNode::start(10, 4_000);
    let mut wire = node.connect();
    let limit = [&b"CONFIG"[..], b"SET", b"client-output-buffer-limit", b"normal 1mb 64kb 5"];
    assert_eq!(wire.call(&limit), ok());
    let long = vec![b'k'; 60_000];
    for number in 10..50 {
        assert_eq!(wire.call(&[b"SET", &[&long[..], number.to_string().as_bytes()].concat(), b"v"]), ok());
    }
    let text = error_of(exec(&mut wire, &["SET a 1".to_owned(), "KEYS *".to_owned()]));
    assert!(text.starts_with("EXECABORT") && text.contains("limit of unread replies"), "{text}");
    assert_eq!(wire.call_line("EXISTS a"), RespValue::Integer(0));
    let few = ["KEYS a*", "DBSIZE", "KEYS *1?"].map(str::to_owned);
    let RespValue::Array(parts) = exec(&mut wire, &few) else { panic!("no array") };
    assert_eq!(parts[..2], [RespValue::Array(Vec::new()), RespValue::Integer(40)]);
    assert_eq!(keys_of(&parts[2]).len(), 10);
}
