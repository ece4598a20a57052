//! Tests of well-formed key-value commands over rings.

use crate::harness::{RingHarness, at, key};
use bytes::Bytes;
use headwater_nvme::controller::QueueKind;
use headwater_nvme::spec::kv::{
    StoreOptions, delete, exist, flush, list, retrieve, retrieve_part, store, uio_get, uio_put,
};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{ReadRelease, RecordExpiry, SsdCommand, WriteCondition};

/// Decodes the keys of a List answer.
fn listed(answer: &[u8]) -> Vec<Vec<u8>> {
    let count = u32::from_le_bytes(answer[..4].try_into().expect("four bytes"));
    let mut rest = &answer[4..];
    (0..count)
        .map(|_| {
            let bytes = usize::from(u16::from_le_bytes(rest[..2].try_into().expect("two bytes")));
            let key = rest[2..2 + bytes].to_vec();
            rest = &rest[(2 + bytes).next_multiple_of(4)..];
            key
        })
        .collect()
}

#[test]
fn every_kv_command_runs_end_to_end() {
    let mut bench = RingHarness::new();
    let mut client = bench.client(8, QueueKind::Standard);
    let value = client.write(0, b"the value");
    let put = |options| store(1, key(b"k"), value, options);
    assert_eq!(bench.run(&mut client, put(StoreOptions::ONLY_IF_EXISTS)).0, Status::KEY_DOES_NOT_EXIST);
    assert_eq!(bench.run(&mut client, put(StoreOptions::NONE)).0, Status::SUCCESS);
    assert_eq!(bench.run(&mut client, put(StoreOptions::ONLY_IF_ABSENT)).0, Status::KEY_EXISTS);
    assert_eq!(bench.run(&mut client, retrieve(1, key(b"k"), at(100, 64))), (Status::SUCCESS, 9));
    assert_eq!(client.read(100, 10), b"the value\0");
    assert_eq!(
        bench.run(&mut client, retrieve(1, key(b"k"), at(200, 3))),
        (Status::SUCCESS, 9),
        "not the full length for a short buffer"
    );
    assert_eq!(client.read(200, 4), b"the\0");
    assert_eq!(bench.run(&mut client, retrieve(1, key(b"k"), at(200, 0))).1, 9);
    assert_eq!(bench.run(&mut client, exist(1, key(b"k"))).0, Status::SUCCESS);
    assert_eq!(
        bench.run(&mut client, exist(2, key(b"k"))).0,
        Status::KEY_DOES_NOT_EXIST,
        "the key exists in another namespace"
    );
    assert_eq!(bench.run(&mut client, flush(1)).0, Status::SUCCESS);
    assert_eq!(bench.run(&mut client, delete(1, key(b"k"))).0, Status::SUCCESS);
    assert_eq!(
        bench.run(&mut client, delete(1, key(b"k"))).0,
        Status::SUCCESS,
        "the delete of a missing key failed"
    );
    assert_eq!(bench.run(&mut client, retrieve(1, key(b"k"), at(0, 8))), (Status::KEY_DOES_NOT_EXIST, 0));
    assert_eq!(bench.front_end.rings.in_flight(), 0);
}

#[test]
fn a_part_of_a_value_lands_at_the_start_of_the_buffer() {
    let mut bench = RingHarness::new();
    let mut client = bench.client(8, QueueKind::Standard);
    let value = client.write(0, b"the value");
    let put = store(1, key(b"k"), value, StoreOptions::NONE);
    assert_eq!(bench.run(&mut client, put).0, Status::SUCCESS);
    let keep = StoreOptions::RETRIEVE_KEEP;
    let part = |buffer, offset, options| retrieve_part(1, key(b"k"), buffer, (offset, options));
    assert_eq!(bench.run(&mut client, part(at(100, 3), 4, StoreOptions::NONE)), (Status::SUCCESS, 9));
    assert_eq!(client.read(100, 4), b"val\0");
    assert_eq!(bench.run(&mut client, part(at(200, 64), 4, keep)), (Status::SUCCESS, 9));
    assert_eq!(client.read(200, 6), b"value\0");
    for (offset, bytes) in [(9, 64), (10, 64), (u32::MAX, 64), (4, 0)] {
        let nothing = part(at(300, bytes), offset, StoreOptions::NONE);
        assert_eq!(bench.run(&mut client, nothing), (Status::SUCCESS, 9), "from {offset} on");
    }
    assert_eq!(client.read(300, 4), [0; 4], "nothing is behind the end of a value");
    // An offset in dword 12 counts only with its option.
    let mut entry = retrieve(1, key(b"k"), at(400, 3));
    entry.cdw12 = 4_u32.into();
    assert_eq!(bench.run(&mut client, entry), (Status::SUCCESS, 9));
    assert_eq!(client.read(400, 4), b"the\0");
}

#[test]
fn uio_put_and_get_take_long_keys_by_address() {
    let mut bench = RingHarness::new();
    let mut client = bench.client(8, QueueKind::Uio);
    let name = vec![b'n'; 3_000];
    let long = client.write(0, &name);
    let value = client.write(5_000, &[7; 10_000]);
    assert_eq!(bench.run(&mut client, uio_put(1, long, value)).0, Status::SUCCESS);
    assert_eq!(bench.run(&mut client, uio_get(1, long, at(20_000, 20_000))), (Status::SUCCESS, 10_000));
    assert_eq!(client.read(20_000, 10_000), [7; 10_000]);
    let mut plain = bench.client(8, QueueKind::Standard);
    assert_eq!(
        bench.run(&mut plain, uio_get(1, long, at(0, 8))).0,
        Status::INVALID_OPCODE,
        "a standard queue accepted a UIO command"
    );
}

#[test]
fn lists_return_the_complete_keys_that_fit_and_continue_from_a_key() {
    let mut bench = RingHarness::new();
    let mut client = bench.client(8, QueueKind::Uio);
    let mut wanted = Vec::new();
    for number in 0..5_000_u32 {
        let name = number.to_le_bytes();
        assert_eq!(
            bench.run(&mut client, store(1, key(&name), at(0, 1), StoreOptions::NONE)).0,
            Status::SUCCESS
        );
        wanted.push(name.to_vec());
    }
    let long = client.write(0, &[1; 17]);
    bench.run(&mut client, uio_put(1, long, at(0, 1)));
    // More keys than the device returns in one completion; all of them fit the buffer.
    assert_eq!(bench.run(&mut client, list(1, None, at(1_000, 100_000))).0, Status::SUCCESS);
    let mut all = listed(&client.read(1_000, 100_000));
    let order = all.clone();
    all.sort();
    wanted.sort();
    assert_eq!(all, wanted, "not every key once, without the one that is too long");

    let mut walked = vec![order[0].clone()];
    while let Some(last) = walked.last().cloned() {
        client.write(1_000, &[0xAA; 128]);
        // Room for the count and ten keys of four bytes, and two bytes more.
        bench.run(&mut client, list(1, Some(key(&last)), at(1_000, 4 + 10 * 8 + 2)));
        assert_eq!(client.read(1_084, 2), [0xAA; 2], "bytes after the last key were written");
        let page = listed(&client.read(1_000, 84));
        assert_eq!(page[0], last, "the list does not start with the given key");
        if page.len() == 1 {
            break;
        }
        walked.extend_from_slice(&page[1..]);
    }
    assert_eq!(walked, order, "the pages are not in the order of the full list");
}

#[test]
fn rings_and_direct_commands_see_the_same_key() {
    let mut bench = RingHarness::new();
    let mut client = bench.client(8, QueueKind::Standard);
    let value = client.write(0, b"by ring");
    bench.run(&mut client, store(1, key(b"k"), value, StoreOptions::NONE));
    let seen = bench.run_direct(SsdCommand::retrieve_whole(
        Bytes::from_static(b"k"),
        Vec::new().into(),
        ReadRelease::WhenDurable,
    ));
    assert_eq!(seen.sink, b"by ring");
    bench.run_direct(SsdCommand::Store {
        key: Bytes::from_static(b"k"),
        value: Bytes::from_static(b"by hand").into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    });
    assert_eq!(bench.run(&mut client, retrieve(1, key(b"k"), at(50, 50))), (Status::SUCCESS, 7));
    assert_eq!(client.read(50, 7), b"by hand");
}
