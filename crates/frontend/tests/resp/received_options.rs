//! Tests of the options of SET behind a long value, which the device receives before they are known.

use crate::received_values::{EXTENT, ReceiptBench, SendingClient, WALL, bulk};
use crate::wire::encode;
use bytes::Bytes;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{FrontEndId, NamespaceId, RecordExpiry, SsdCommand, WriteCondition};

/// A front end beside the RESP one.
const OTHER_FRONT_END: FrontEndId = FrontEndId(9);
/// Bytes of the long values: two extents and a rest.
const LONG: usize = 2 * EXTENT + 100;
const RECEIVED: u64 = 2 * EXTENT as u64;
/// The end of a reply: the answer to an ECHO behind the command.
const END: &[u8] = b"end of the reply";

impl ReceiptBench {
    /// Exchanges bytes with a client and runs turns until `has_ended`. Panics after many turns.
    fn exchange_until(&mut self, client: usize, has_ended: impl Fn(&SendingClient) -> bool) {
        for _ in 0..100_000 {
            self.exchange(client, 70_000);
            self.turn();
            if has_ended(&self.clients[client]) {
                return;
            }
        }
        panic!("client {client} does not end: {} bytes came", self.clients[client].received.len());
    }

    /// Runs a command of a client, and returns its reply.
    fn reply(&mut self, client: usize, arguments: &[&[u8]]) -> Vec<u8> {
        self.clients[client].unsent.extend(encode(arguments));
        self.clients[client].unsent.extend(encode(&[b"ECHO", END]));
        let end = bulk(END);
        self.exchange_until(client, |client| client.unsent.is_empty() && client.received.ends_with(&end));
        let mut reply = std::mem::take(&mut self.clients[client].received);
        assert!(reply.ends_with(&end), "a reply of {} bytes does not end", reply.len());
        reply.truncate(reply.len() - end.len());
        reply
    }

    /// Runs a command with a long value, and returns its reply. Asserts that the device received the value itself.
    fn long_reply(&mut self, client: usize, arguments: &[&[u8]]) -> Vec<u8> {
        let before = self.device.stats().received_bytes;
        let reply = self.reply(client, arguments);
        let received = self.device.stats().received_bytes - before;
        assert_eq!(received, RECEIVED, "bytes that the device received of {}", names(&arguments[3..]));
        reply
    }

    /// Runs turns until what ended commands held is free.
    fn settle(&mut self) {
        (0..200).for_each(|_| self.turn());
    }
}

fn names(options: &[&[u8]]) -> String {
    options.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ")
}

/// Returns a command with options behind it.
fn joined<'a>(command: &[&'a [u8]], options: &[&'a [u8]]) -> Vec<&'a [u8]> {
    [command, options].concat()
}

/// Lists of options, with the right number of arguments and with errors.
const OPTIONS: [&[&[u8]]; 26] = [
    &[],
    &[b"EX", b"1000"],
    &[b"PX", b"5000"],
    &[b"EXAT", b"2000"],
    &[b"PXAT", b"1500000"],
    &[b"PXAT", b"1"],
    &[b"KEEPTTL"],
    &[b"NX"],
    &[b"XX"],
    &[b"GET"],
    &[b"NX", b"GET"],
    &[b"XX", b"GET"],
    &[b"XX", b"KEEPTTL"],
    &[b"NX", b"PX", b"5000"],
    &[b"GET", b"KEEPTTL"],
    &[b"get", b"ex", b"1000"],
    &[b"NX", b"XX"],
    &[b"EX"],
    &[b"EX", b"ten"],
    &[b"EX", b"0"],
    &[b"PX", b"-1"],
    &[b"EX", b"9223372036854775807"],
    &[b"EX", b"10", b"KEEPTTL"],
    &[b"EX", b"10", b"PX", b"10"],
    &[b"GET", b"NOTHING"],
    &[b"1000"],
];

#[test]
fn each_option_has_the_same_effect_behind_a_long_value_as_behind_a_short_one() {
    let mut bench = ReceiptBench::new(128);
    let client = bench.connect();
    let (short, long) = (b"new", vec![5; LONG]);
    let states: [&[&[u8]]; 3] = [&[], &[b"old"], &[b"old", b"EX", b"77"]];
    for options in OPTIONS {
        for state in states {
            let what = format!("{} on {}", names(options), names(state));
            for key in [&b"short"[..], b"long"] {
                bench.reply(client, &[b"DEL", key]);
                if !state.is_empty() {
                    bench.reply(client, &joined(&[b"SET", key], state));
                }
            }
            let asked = bench.reply(client, &joined(&[b"SET", b"short", short], options));
            let answered = bench.long_reply(client, &joined(&[b"SET", b"long", &long], options));
            assert_eq!(answered, asked, "{what}");
            let times = [&b"short"[..], b"long"].map(|key| bench.reply(client, &[b"PTTL", key]));
            assert_eq!(times[1], times[0], "{what}");
            let expected = bench.reply(client, &[b"GET", b"short"]);
            let expected = if expected == bulk(short) { bulk(&long) } else { expected };
            assert!(bench.reply(client, &[b"GET", b"long"]) == expected, "{what}: another value");
        }
    }
    // The reply of GET is a long value too.
    let other = vec![6; LONG];
    bench.long_reply(client, &[b"SET", b"long", &long]);
    assert!(bench.long_reply(client, &[b"SET", b"long", &other, b"GET"]) == bulk(&long));
    assert!(bench.long_reply(client, &[b"GETSET", b"long", &long]) == bulk(&other));
    // A SETNX that will store nothing writes nothing.
    let received = bench.device.stats().received_bytes;
    assert_eq!(bench.reply(client, &[b"SETNX", b"long", &other]), b":0\r\n");
    assert_eq!(bench.device.stats().received_bytes, received);
    assert!(bench.reply(client, &[b"GET", b"long"]) == bulk(&long));
    assert_eq!(bench.long_reply(client, &[b"SETNX", b"absent", &other]), b":1\r\n");
    assert!(bench.reply(client, &[b"GET", b"absent"]) == bulk(&other));
}

#[test]
fn values_that_are_not_stored_give_their_room_back() {
    let mut bench = ReceiptBench::new(64);
    let client = bench.connect();
    let long = vec![7; LONG];
    assert_eq!(bench.reply(client, &[b"SET", b"k", b"stays"]), b"+OK\r\n");
    bench.settle();
    let before = bench.device.stats();
    let refused: [(&[&[u8]], &[u8]); 5] = [
        (&[b"NX"], b"$-1\r\n"),
        (&[b"NX", b"GET"], b"$5\r\nstays\r\n"),
        (&[b"NX", b"EX", b"10"], b"$-1\r\n"),
        (&[b"NX", b"XX"], b"-ERR syntax error\r\n"),
        (&[b"EX"], b"-ERR syntax error\r\n"),
    ];
    // Far more bytes than the medium has.
    for round in 0..20 {
        for (options, reply) in refused {
            let answered = bench.long_reply(client, &joined(&[b"SET", b"k", &long], options));
            assert_eq!(answered, reply, "round {round}: {}", names(options));
        }
    }
    assert_eq!(bench.reply(client, &[b"GET", b"k"]), bulk(b"stays"));
    bench.settle();
    let after = bench.device.stats();
    assert!(after.live_bytes <= before.live_bytes + EXTENT as u64, "{after:?}");
    assert!(after.free_blocks + 6 >= before.free_blocks, "{after:?}");
}

#[test]
fn clients_that_leave_between_a_value_and_its_options_store_nothing() {
    let mut bench = ReceiptBench::new(64);
    let stays = bench.connect();
    let long = vec![8; LONG];
    assert_eq!(bench.reply(stays, &[b"SET", b"k", b"stays"]), b"+OK\r\n");
    bench.settle();
    let before = bench.device.stats().free_blocks;
    let whole = encode(&[b"SET", b"k", &long, b"EX", b"10"]);
    let value_ends = whole.len() - encode(&[b"EX", b"10"]).len() + b"*2\r\n".len();
    // In the middle of the value, in front of its end, behind it, in the options, and in front of the last byte.
    let cuts = [EXTENT, value_ends - 40, value_ends, value_ends + 5, whole.len() - 1];
    for (round, cut) in (0..12).flat_map(|round| cuts.map(|cut| (round, cut))) {
        let leaver = bench.connect();
        bench.clients[leaver].unsent.extend(&whole[..cut]);
        let received = bench.device.stats().received_bytes;
        bench.exchange_until(leaver, |leaver| leaver.unsent.is_empty());
        // What the socket holds is received.
        (0..20).for_each(|_| bench.turn());
        let received = bench.device.stats().received_bytes - received;
        let arrived = RECEIVED.min(cut as u64 - 100);
        assert!(received >= arrived, "round {round}, cut at {cut}: {received} bytes");
        assert!(bench.clients[leaver].received.is_empty(), "round {round}: an answer, cut at {cut}");
        bench.clients.pop();
        (0..20).for_each(|_| bench.turn());
    }
    assert_eq!(bench.reply(stays, &[b"GET", b"k"]), bulk(b"stays"));
    assert_eq!(bench.reply(stays, &[b"TTL", b"k"]), b":-1\r\n");
    bench.settle();
    let after = bench.device.stats().free_blocks;
    assert!(after + 6 >= before, "{before} blocks were free, and {after} are");
}

#[test]
fn a_key_that_another_front_end_changes_is_changed_before_or_behind_the_set() {
    let mut bench = ReceiptBench::new(64);
    let client = bench.connect();
    let long = vec![9; LONG];
    let (mut before_it, mut behind_it) = (0, 0);
    // The command reads the key, and stores its value if the key is as it was read: the change comes at each moment of that.
    for turns in 0..8_u8 {
        assert_eq!(bench.reply(client, &[b"SET", b"k", b"first"]), b"+OK\r\n");
        let whole = encode(&[b"SET", b"k", &long, b"GET"]);
        let received = bench.device.stats().received_bytes;
        bench.clients[client].unsent.extend(&whole[..whole.len() - 1]);
        while bench.device.stats().received_bytes < received + RECEIVED {
            bench.exchange(client, 100_000);
            bench.turn();
        }
        bench.clients[client].unsent.extend(&whole[whole.len() - 1..]);
        bench.exchange(client, 100_000);
        (0..turns).for_each(|_| bench.turn());
        let changed = [turns; 5];
        let store = SsdCommand::Store {
            key: Bytes::from_static(b"k"),
            value: changed.to_vec().into(),
            condition: WriteCondition::Always,
            expiry: RecordExpiry::Never,
        };
        bench.device.submit(OTHER_FRONT_END, NamespaceId::FIRST, u64::from(turns), store).unwrap();
        bench.exchange_until(client, |client| !client.received.is_empty());
        (0..20).for_each(|_| bench.turn());
        let stored = bench.device.next_completion(OTHER_FRONT_END).expect("the other store has ended");
        assert_eq!(stored.status, Status::SUCCESS);
        let reply = std::mem::take(&mut bench.clients[client].received);
        let value = bench.reply(client, &[b"GET", b"k"]);
        if reply == bulk(&changed) {
            assert!(value == bulk(&long), "the change after {turns} turns is not what the SET replaced");
            before_it += 1;
        } else {
            assert_eq!(reply, bulk(b"first"), "after {turns} turns");
            assert!(value == bulk(&changed), "the change after {turns} turns was lost");
            behind_it += 1;
        }
    }
    assert!(before_it > 0 && behind_it > 0, "{before_it} before it, {behind_it} behind it");
}

#[test]
fn a_key_that_expired_while_a_value_arrived_counts_as_absent() {
    let mut bench = ReceiptBench::new(64);
    let client = bench.connect();
    let long = vec![3; LONG];
    bench.reply(client, &[b"SET", b"k", b"old", b"PX", b"50"]);
    let whole = encode(&[b"SET", b"k", &long, b"NX"]);
    let options = whole.len() - encode(&[b"NX"]).len() + b"*1\r\n".len();
    bench.clients[client].unsent.extend(&whole[..options]);
    bench.exchange_until(client, |client| client.unsent.is_empty());
    bench.wall.0 = WALL.0 + 60;
    bench.clients[client].unsent.extend(&whole[options..]);
    bench.exchange_until(client, |client| client.received.len() >= 5);
    assert_eq!(std::mem::take(&mut bench.clients[client].received), b"+OK\r\n");
    assert!(bench.reply(client, &[b"GET", b"k"]) == bulk(&long), "the key has another value");
}
