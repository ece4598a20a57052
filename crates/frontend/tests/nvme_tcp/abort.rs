//! Abort (NVMe Base 2.0 section 5.1): completions and their order.

use crate::wire::{RawConnection, TcpHarness};
use headwater_host::clock::UnixMillis;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::completion::CompletionEntry;
use headwater_nvme::spec::kv::{DataPointer, InlineKey, StoreOptions, delete, retrieve, store};
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::CommandTransfer;
use headwater_ssd::command::{FrontEndId, NamespaceId, RecordExpiry, SsdCommand, WriteCondition};
use headwater_ssd::namespace::{NamespaceChange, NamespaceLimits};

const OTHER: FrontEndId = FrontEndId(9);
const ABORTED: Status = Status::ABORT_REQUESTED;
const KEYS: [&str; 3] = ["a", "b", "c"];

fn key(name: &str) -> InlineKey {
    InlineKey::new(name.as_bytes()).unwrap()
}

fn admin_entry(opcode: AdminOpcode, dword: u32) -> SubmissionEntry {
    let mut entry = SubmissionEntry { opcode: opcode.number(), ..SubmissionEntry::default() };
    entry.cdw10 = dword.into();
    entry
}

fn abort(queue: u16, command: u16) -> SubmissionEntry {
    admin_entry(AdminOpcode::Abort, u32::from(command) << 16 | u32::from(queue))
}

/// Executes a command of another front end.
fn run_other(bench: &mut TcpHarness, command: SsdCommand) {
    bench.device.submit(OTHER, NamespaceId::FIRST, 1, command).unwrap();
    let done = loop {
        bench.turn();
        bench.device.poll(headwater_host::clock::Nanos::ZERO, UnixMillis(1));
        if let Some(done) = bench.device.next_completion(OTHER) {
            break done;
        }
    };
    assert!(done.status.is_success(), "{}", done.status);
}

fn put(name: &str, bytes: usize) -> SsdCommand {
    SsdCommand::Store {
        key: name.as_bytes().to_vec().into(),
        value: vec![0; bytes].into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    }
}

/// Creates a host of a namespace that holds three keys and executes no command for an hour: its admin queue and an I/O
/// queue.
fn slow_bench() -> (TcpHarness, RawConnection, RawConnection) {
    let mut bench = TcpHarness::new();
    for name in KEYS {
        run_other(&mut bench, put(name, 10));
    }
    let limits = NamespaceLimits { iops: 0, bytes_per_second: 1, burst: 1 };
    run_other(&mut bench, SsdCommand::Namespace(NamespaceChange::Limits(limits)));
    run_other(&mut bench, put("other", 9_000));
    let (admin, controller) = bench.controller();
    let mut queue = RawConnection::open(&mut bench);
    assert!(queue.connect(&mut bench, 1, controller).status().is_success());
    (bench, admin, queue)
}

/// Sends a Store that must wait. Returns its identifier.
fn send_put(queue: &mut RawConnection, name: &str) -> u16 {
    let entry = store(1, key(name), DataPointer { address: 0, bytes: 9 }, StoreOptions::NONE);
    queue.send(entry, CommandTransfer::Out(vec![1; 9]))
}

/// Returns the result of an Abort: 0 for aborted, 1 for not aborted.
fn abort_result(answer: &CompletionEntry) -> u8 {
    assert_eq!(answer.status(), Status::SUCCESS);
    answer.result.to_bytes()[0]
}

/// Aborts a command of queue 1, and asserts that it is completed before the Abort.
fn assert_aborts(bench: &mut TcpHarness, admin: &mut RawConnection, queue: &mut RawConnection, id: u16) {
    assert_eq!(abort_result(&admin.call(bench, abort(1, id), CommandTransfer::None)), 0, "aborted");
    let answer = queue.received_completion().unwrap();
    assert_eq!((answer.command_id.get(), answer.status()), (id, ABORTED));
    assert_eq!(abort_result(&admin.call(bench, abort(1, id), CommandTransfer::None)), 1, "not again");
    assert!(queue.received_completion().is_none(), "one completion each");
}

#[test]
fn a_waiting_command_is_aborted_and_completes_before_the_abort() {
    let (mut bench, mut admin, mut queue) = slow_bench();
    let ids = ["x", "y", "z"].map(|name| send_put(&mut queue, name));
    for id in [ids[1], ids[2], ids[0]] {
        assert_aborts(&mut bench, &mut admin, &mut queue, id);
    }
    assert_eq!(bench.device.keys(NamespaceId::FIRST), 4, "an aborted command had an effect");
    assert_eq!(bench.device.in_flight(), 0);
    let flush = headwater_nvme::spec::kv::flush(1);
    let status = queue.call(&mut bench, flush, CommandTransfer::None).status();
    assert_eq!(status, Status::SUCCESS, "the queue remains usable");
}

#[test]
fn a_command_that_waits_for_connection_room_is_aborted_and_later_ones_continue() {
    const LARGE: u32 = 3 << 20;
    let (mut bench, mut admin, mut queue) = slow_bench();
    let large = |name| retrieve(1, key(name), DataPointer { address: 0, bytes: LARGE });
    // Two such responses exceed the connection's limit: the second waits outside the device, and the third behind it.
    let ids = KEYS.map(|name| queue.send(large(name), CommandTransfer::In(vec![0; LARGE as usize])));
    bench.turn();
    assert_eq!(bench.device.in_flight(), 1);
    assert_aborts(&mut bench, &mut admin, &mut queue, ids[1]);
    assert_eq!(bench.device.in_flight(), 1);
    assert_aborts(&mut bench, &mut admin, &mut queue, ids[0]);
    bench.turn();
    assert_eq!(bench.device.in_flight(), 1, "the third has room now");
    assert_aborts(&mut bench, &mut admin, &mut queue, ids[2]);
    assert_eq!(bench.device.in_flight(), 0);
}

#[test]
fn a_completed_or_unknown_command_is_not_aborted() {
    let mut bench = TcpHarness::new();
    let (mut admin, controller) = bench.controller();
    let mut queue = RawConnection::open(&mut bench);
    assert!(queue.connect(&mut bench, 1, controller).status().is_success());
    let id = queue.send(delete(1, key("absent")), CommandTransfer::None);
    assert_eq!(queue.wait_completion(&mut bench).command_id.get(), id);
    for (number, command) in [(1, id), (1, 77), (9, id), (0, 77), (u16::MAX, u16::MAX)] {
        assert_eq!(abort_result(&admin.call(&mut bench, abort(number, command), CommandTransfer::None)), 1);
    }
}

#[test]
fn the_commands_of_another_controller_cannot_be_aborted() {
    let (mut bench, _admin, mut queue) = slow_bench();
    let id = send_put(&mut queue, "x");
    bench.turn();
    let (mut other_admin, _) = bench.controller();
    assert_eq!(abort_result(&other_admin.call(&mut bench, abort(1, id), CommandTransfer::None)), 1);
    assert_eq!(bench.device.in_flight(), 1);
}

#[test]
fn an_event_request_is_completed_before_its_abort() {
    let mut bench = TcpHarness::new();
    let (mut admin, _) = bench.controller();
    let id = admin.send(admin_entry(AdminOpcode::AsyncEventRequest, 0), CommandTransfer::None);
    let own = admin.send(abort(0, id), CommandTransfer::None);
    let first = admin.wait_completion(&mut bench);
    assert_eq!((first.command_id.get(), first.status()), (id, ABORTED));
    let second = admin.wait_completion(&mut bench);
    assert_eq!((second.command_id.get(), abort_result(&second)), (own, 0));
}
