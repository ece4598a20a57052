//! Tests of long values that the device receives from the sockets of hosts itself.

use crate::host::TcpTestNode;
use crate::wire::{RawConnection, TcpHarness};
use headwater_frontend::nvme_tcp::limits::IO_QUEUES_MAX;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::fabrics::disconnect_entry;
use headwater_nvme::spec::kv::{DataPointer, InlineKey, StoreOptions, store};
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::{CommandTransfer, DigestMode, DigestSettings, InitiatorParameters};
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadCaching, ReadRelease, SsdCommand, SsdCompletion, ValueSink,
};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;

const OTHER: FrontEndId = FrontEndId(9);
const EXTENT: usize = 262_144;
const MIB: usize = 1 << 20;
/// MDTS.
const LONGEST: usize = 16 << 20;
/// Turns after which a test gives up.
const TURNS_MAX: u32 = 1_000_000;
const DIGESTS: DigestSettings = DigestSettings { header: DigestMode::On, data: DigestMode::On };

fn bytes_of(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

fn store_entry(key: &str, bytes: usize, options: StoreOptions) -> SubmissionEntry {
    let pointer = DataPointer { address: 0, bytes: u32::try_from(bytes).unwrap() };
    store(1, InlineKey::new(key.as_bytes()).unwrap(), pointer, options)
}

/// Sends a Store. Returns its identifier.
fn send_store(queue: &mut RawConnection, key: &str, value: Vec<u8>) -> u16 {
    queue.send(store_entry(key, value.len(), StoreOptions::NONE), CommandTransfer::Out(value))
}

/// Reads a value through another front end.
fn value_of(bench: &mut TcpHarness, key: &str) -> Option<Vec<u8>> {
    let command = SsdCommand::Retrieve {
        key: key.as_bytes().to_vec().into(),
        sink: ValueSink::Bytes(Vec::new()),
        offset: 0,
        bytes_max: u32::MAX,
        caching: ReadCaching::ByLength,
        release: ReadRelease::WhenDurable,
    };
    bench.device.submit(OTHER, NamespaceId::FIRST, 1, command).unwrap();
    for _ in 0..TURNS_MAX {
        bench.turn_both();
        if let Some(SsdCompletion { status, sink, .. }) = bench.device.next_completion(OTHER) {
            return status.is_success().then_some(sink);
        }
    }
    panic!("the value was not read in {TURNS_MAX} turns");
}

/// Opens an I/O queue of a controller.
fn open_queue(
    bench: &mut TcpHarness,
    (number, controller): (u16, u16),
    digests: DigestSettings,
) -> RawConnection {
    let parameters = InitiatorParameters { digests, ..InitiatorParameters::default() };
    let mut queue = RawConnection::open_with(bench, parameters);
    assert!(queue.connect(bench, number, controller).status().is_success());
    queue
}

/// Runs turns until the device has received so many more bytes since `before`.
fn until_received(bench: &mut TcpHarness, queues: &mut [RawConnection], (before, more): (u64, usize)) {
    for _ in 0..TURNS_MAX {
        if bench.device.stats().received_bytes >= before + more as u64 {
            return;
        }
        for queue in queues.iter_mut() {
            assert!(queue.received_completion().is_none(), "a command is answered without its data");
        }
        bench.turn_both();
    }
    let received = bench.device.stats().received_bytes - before;
    panic!("{received} bytes of {more} were received in {TURNS_MAX} turns");
}

#[test]
fn long_values_are_received_into_blocks_and_read_back() {
    for digests in [DigestSettings::default(), DIGESTS] {
        let mut bench = TcpHarness::with_blocks(500);
        let (_admin, controller) = bench.controller();
        let mut queue = open_queue(&mut bench, (1, controller), digests);
        for (seed, length) in (1..).zip([EXTENT, EXTENT + 1, MIB, MIB + 70_001, 4 * MIB - 1, LONGEST]) {
            let value = bytes_of(length, seed);
            let before = bench.device.stats().received_bytes;
            let entry = store_entry("k", length, StoreOptions::NONE);
            let done = queue.call(&mut bench, entry, CommandTransfer::Out(value.clone()));
            assert_eq!(done.status(), Status::SUCCESS, "{length} bytes");
            let received = bench.device.stats().received_bytes - before;
            assert_eq!(received, (length / EXTENT * EXTENT) as u64, "of {length} bytes");
            assert!(value_of(&mut bench, "k").unwrap() == value, "{length} bytes differ");
        }
    }
}

#[test]
fn short_values_are_not_received_by_the_device() {
    let mut bench = TcpHarness::new();
    let (_admin, controller) = bench.controller();
    let mut queue = open_queue(&mut bench, (1, controller), DIGESTS);
    for length in [1, 20_000, EXTENT - 1] {
        let value = bytes_of(length, 3);
        let entry = store_entry("k", length, StoreOptions::NONE);
        assert!(queue.call(&mut bench, entry, CommandTransfer::Out(value.clone())).status().is_success());
        assert!(value_of(&mut bench, "k").unwrap() == value);
    }
    assert_eq!(bench.device.stats().received_bytes, 0);
}

#[test]
fn hosts_store_and_read_values_up_to_the_maximum_transfer() {
    let media = MemoryMedia::erased(FlashGeometry::with_blocks(500)).unwrap();
    let node = TcpTestNode::over(media, ([127, 0, 0, 1], 0).into());
    for digests in [DigestSettings::default(), DIGESTS] {
        let mut client = node.client(digests);
        for (seed, length) in (1..).zip([MIB, 3 * MIB + 5, LONGEST]) {
            let value = bytes_of(length, seed);
            client.put(b"k", &value).unwrap();
            assert!(client.get(b"k").unwrap().unwrap() == value, "{length} bytes differ");
        }
    }
}

#[test]
fn a_store_whose_condition_does_not_hold_leaves_the_old_value_and_no_room_taken() {
    let mut bench = TcpHarness::with_blocks(128);
    let (_admin, controller) = bench.controller();
    let mut queue = open_queue(&mut bench, (1, controller), DIGESTS);
    let old = bytes_of(2 * MIB, 1);
    let entry = store_entry("k", old.len(), StoreOptions::ONLY_IF_ABSENT);
    assert!(queue.call(&mut bench, entry, CommandTransfer::Out(old.clone())).status().is_success());
    let free = bench.device.stats().free_blocks;
    for seed in 0..30 {
        let value = bytes_of(MIB + 9, seed);
        let entry = store_entry("k", value.len(), StoreOptions::ONLY_IF_ABSENT);
        let done = queue.call(&mut bench, entry, CommandTransfer::Out(value));
        assert_eq!(done.status(), Status::KEY_EXISTS);
        (0..20).for_each(|_| bench.turn_both());
    }
    assert!(value_of(&mut bench, "k").unwrap() == old);
    (0..200).for_each(|_| bench.turn_both());
    let left = bench.device.stats().free_blocks;
    assert!(left + 6 >= free, "{free} blocks were free, and {left} are");
}

#[test]
fn values_of_many_hosts_lie_in_the_device_while_they_arrive() {
    const HOSTS: usize = 32;
    const HELD: usize = EXTENT;
    let mut bench = TcpHarness::with_blocks(800);
    let mut queues: Vec<RawConnection> = Vec::new();
    let mut admins = Vec::new();
    while queues.len() < HOSTS {
        let (admin, controller) = bench.controller();
        admins.push(admin);
        for number in 1..=IO_QUEUES_MAX {
            queues.push(open_queue(&mut bench, (number, controller), DigestSettings::default()));
        }
    }
    queues.truncate(HOSTS);
    let value = |host: usize| bytes_of(MIB, host as u64);
    for (host, queue) in queues.iter_mut().enumerate() {
        queue.held_back = HELD;
        send_store(queue, &format!("host {host}"), value(host));
        // The command itself is sent: only data is held back.
        queue.held_back = 0;
        queue.flush();
        queue.held_back = HELD;
    }
    let before = bench.device.stats().received_bytes;
    until_received(&mut bench, &mut queues, (before, HOSTS * (MIB - HELD)));
    // Everything that was sent lies in blocks: no buffer holds any of it.
    let received = bench.device.stats().received_bytes - before;
    assert_eq!(received, (HOSTS * (MIB - HELD)) as u64);
    for queue in &mut queues {
        assert_eq!(queue.unsent(), HELD);
        queue.held_back = 0;
    }
    for (host, queue) in queues.iter_mut().enumerate() {
        assert_eq!(queue.wait_completion(&mut bench).status(), Status::SUCCESS, "host {host}");
    }
    for host in 0..HOSTS {
        assert!(value_of(&mut bench, &format!("host {host}")).unwrap() == value(host), "host {host}");
    }
}

#[test]
fn several_values_of_one_connection_arrive_beside_short_commands() {
    let mut bench = TcpHarness::with_blocks(400);
    let (_admin, controller) = bench.controller();
    for digests in [DigestSettings::default(), DIGESTS] {
        let parameters = InitiatorParameters { digests, r2ts_max: 3, ..InitiatorParameters::default() };
        let mut queue = RawConnection::open_with(&mut bench, parameters);
        assert!(queue.connect(&mut bench, 1, controller).status().is_success());
        let lengths = [MIB, 9, 2 * MIB + 3, 100_000, 3 * MIB, EXTENT];
        for (seed, length) in (0..).zip(lengths) {
            send_store(&mut queue, &format!("key {seed}"), bytes_of(length, seed));
        }
        for _ in lengths {
            assert_eq!(queue.wait_completion(&mut bench).status(), Status::SUCCESS);
        }
        for (seed, length) in (0..).zip(lengths) {
            let found = value_of(&mut bench, &format!("key {seed}")).unwrap();
            assert!(found == bytes_of(length, seed), "{length} bytes differ");
        }
        assert!(queue.call(&mut bench, disconnect_entry(), CommandTransfer::None).status().is_success());
    }
}

#[test]
fn a_connection_that_ends_in_the_middle_leaves_the_old_value_and_no_room_taken() {
    let mut bench = TcpHarness::with_blocks(96);
    let (_admin, controller) = bench.controller();
    let mut queue = open_queue(&mut bench, (1, controller), DigestSettings::default());
    let old = bytes_of(300_000, 1);
    let entry = store_entry("stays", old.len(), StoreOptions::NONE);
    assert!(queue.call(&mut bench, entry, CommandTransfer::Out(old.clone())).status().is_success());
    let open = bench.connections();
    let free = bench.device.stats().free_blocks;
    for seed in 0..40 {
        let mut leaver = open_queue(&mut bench, (2, controller), DigestSettings::default());
        let before = bench.device.stats().received_bytes;
        send_store(&mut leaver, "stays", bytes_of(MIB, seed));
        leaver.held_back = EXTENT + 5_000;
        let mut leavers = [leaver];
        until_received(&mut bench, &mut leavers, (before, 2 * EXTENT));
        drop(leavers);
        let mut turns = 0;
        while bench.connections() > open {
            bench.turn_both();
            turns += 1;
            assert!(turns < TURNS_MAX, "the connection is still open");
        }
        (0..20).for_each(|_| bench.turn_both());
    }
    assert!(value_of(&mut bench, "stays").unwrap() == old);
    (0..200).for_each(|_| bench.turn_both());
    let left = bench.device.stats().free_blocks;
    assert!(left + 6 >= free, "{free} blocks were free, and {left} are");
}

#[test]
fn a_value_with_a_wrong_digest_is_not_stored_and_the_connection_serves_on() {
    let mut bench = TcpHarness::with_blocks(128);
    let (_admin, controller) = bench.controller();
    let mut queue = open_queue(&mut bench, (1, controller), DIGESTS);
    let old = bytes_of(MIB, 1);
    let entry = || store_entry("k", MIB, StoreOptions::NONE);
    assert!(queue.call(&mut bench, entry(), CommandTransfer::Out(old.clone())).status().is_success());
    for seed in 2..20 {
        queue.corrupts_next = true;
        let done = queue.call(&mut bench, entry(), CommandTransfer::Out(bytes_of(MIB, seed)));
        assert_eq!(done.status(), Status::TRANSIENT_TRANSPORT_ERROR);
        assert!(!queue.corrupts_next, "nothing was corrupted");
        (0..20).for_each(|_| bench.turn_both());
        assert!(value_of(&mut bench, "k").unwrap() == old);
    }
    let new = bytes_of(MIB, 99);
    assert!(queue.call(&mut bench, entry(), CommandTransfer::Out(new.clone())).status().is_success());
    assert!(value_of(&mut bench, "k").unwrap() == new);
}

#[test]
fn a_command_whose_value_arrives_is_not_aborted() {
    let mut bench = TcpHarness::with_blocks(128);
    let (mut admin, controller) = bench.controller();
    let mut queue = open_queue(&mut bench, (1, controller), DigestSettings::default());
    let value = bytes_of(2 * MIB, 1);
    let before = bench.device.stats().received_bytes;
    let command = send_store(&mut queue, "k", value.clone());
    queue.held_back = EXTENT;
    let mut queues = [queue];
    until_received(&mut bench, &mut queues, (before, EXTENT));
    let [mut queue] = queues;
    let mut abort = SubmissionEntry { opcode: AdminOpcode::Abort.number(), ..SubmissionEntry::default() };
    abort.cdw10 = (u32::from(command) << 16 | 1).into();
    let answer = admin.call(&mut bench, abort, CommandTransfer::None);
    assert_eq!((answer.status(), answer.result.to_bytes()[0]), (Status::SUCCESS, 1), "not aborted");
    queue.held_back = 0;
    let done = queue.wait_completion(&mut bench);
    assert_eq!((done.command_id.get(), done.status()), (command, Status::SUCCESS));
    assert!(value_of(&mut bench, "k").unwrap() == value);
}

#[test]
fn a_value_without_room_for_a_receipt_is_stored_all_the_same() {
    // Receipts hold a quarter of the free capacity: there is room for some of these values only.
    let mut bench = TcpHarness::with_blocks(128);
    let (_admin, controller) = bench.controller();
    let mut queue = open_queue(&mut bench, (1, controller), DigestSettings::default());
    let before = bench.device.stats().received_bytes;
    for seed in 0..8 {
        send_store(&mut queue, &format!("key {seed}"), bytes_of(2 * MIB, seed));
    }
    for _ in 0..8 {
        assert_eq!(queue.wait_completion(&mut bench).status(), Status::SUCCESS);
    }
    let received = bench.device.stats().received_bytes - before;
    assert!((1..16 * MIB as u64).contains(&received), "{received} bytes were received into blocks");
    for seed in 0..8 {
        assert!(value_of(&mut bench, &format!("key {seed}")).unwrap() == bytes_of(2 * MIB, seed));
    }
}
