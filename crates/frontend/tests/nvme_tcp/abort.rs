//! Abort (NVMe Base 2.0 section 5.1): what a host is told, and in which order.

use crate::wire::{Bench, Wire};
use headwater_host::clock::UnixMillis;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::completion::CompletionEntry;
use headwater_nvme::spec::kv::{DataPointer, InlineKey, StoreOptions, delete, retrieve, store};
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::Transfer;
use headwater_ssd::command::{Command, Condition, Expiry, FaceId, NamespaceId};
use headwater_ssd::namespace::{NamespaceChange, NamespaceLimits};

const OTHER: FaceId = FaceId(9);
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

/// Carries out a command of somebody else.
fn other(bench: &mut Bench, command: Command) {
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

fn put(name: &str, bytes: usize) -> Command {
    Command::Store {
        key: name.as_bytes().to_vec().into(),
        value: vec![0; bytes].into(),
        condition: Condition::Always,
        expiry: Expiry::Never,
    }
}

/// A host of a namespace that holds three keys and takes nothing for an hour: its admin queue, and one more.
fn slow() -> (Bench, Wire, Wire) {
    let mut bench = Bench::new();
    for name in KEYS {
        other(&mut bench, put(name, 10));
    }
    let limits = NamespaceLimits { iops: 0, bytes_per_second: 1, burst: 1 };
    other(&mut bench, Command::Namespace(NamespaceChange::Limits(limits)));
    other(&mut bench, put("other", 9_000));
    let (admin, controller) = bench.controller();
    let mut queue = Wire::open(&mut bench);
    assert!(queue.connect(&mut bench, 1, controller).status().is_success());
    (bench, admin, queue)
}

/// A store that has to wait. Its identifier.
fn send_put(queue: &mut Wire, name: &str) -> u16 {
    let entry = store(1, key(name), DataPointer { address: 0, bytes: 9 }, StoreOptions::NONE);
    queue.send(entry, Transfer::Out(vec![1; 9]))
}

/// What an Abort was answered: 0 for aborted, 1 for not.
fn told(answer: &CompletionEntry) -> u8 {
    assert_eq!(answer.status(), Status::SUCCESS);
    answer.result.to_bytes()[0]
}

/// Aborts a command of queue 1, and expects that it was answered before the Abort was.
fn aborts(bench: &mut Bench, admin: &mut Wire, queue: &mut Wire, id: u16) {
    assert_eq!(told(&admin.call(bench, abort(1, id), Transfer::None)), 0, "aborted");
    let answer = queue.already().unwrap();
    assert_eq!((answer.command_id.get(), answer.status()), (id, ABORTED));
    assert_eq!(told(&admin.call(bench, abort(1, id), Transfer::None)), 1, "not again");
    assert!(queue.already().is_none(), "one completion each");
}

#[test]
fn a_command_that_waits_is_aborted_and_its_completion_comes_before_that_of_the_abort() {
    let (mut bench, mut admin, mut queue) = slow();
    let ids = ["x", "y", "z"].map(|name| send_put(&mut queue, name));
    for id in [ids[1], ids[2], ids[0]] {
        aborts(&mut bench, &mut admin, &mut queue, id);
    }
    assert_eq!(bench.device.keys(NamespaceId::FIRST), 4, "nothing of what was aborted is done");
    assert_eq!(bench.device.in_flight(), 0);
    let flush = headwater_nvme::spec::kv::flush(1);
    assert_eq!(queue.call(&mut bench, flush, Transfer::None).status(), Status::SUCCESS, "the queue goes on");
}

#[test]
fn a_command_that_waits_for_room_in_its_connection_is_aborted_and_those_behind_it_go_on() {
    const LARGE: u32 = 3 << 20;
    let (mut bench, mut admin, mut queue) = slow();
    let large = |name| retrieve(1, key(name), DataPointer { address: 0, bytes: LARGE });
    // Two such answers are more than a connection holds: the second waits outside the device, and the third behind it.
    let ids = KEYS.map(|name| queue.send(large(name), Transfer::In(vec![0; LARGE as usize])));
    bench.turn();
    assert_eq!(bench.device.in_flight(), 1);
    aborts(&mut bench, &mut admin, &mut queue, ids[1]);
    assert_eq!(bench.device.in_flight(), 1);
    aborts(&mut bench, &mut admin, &mut queue, ids[0]);
    bench.turn();
    assert_eq!(bench.device.in_flight(), 1, "the third has its place now");
    aborts(&mut bench, &mut admin, &mut queue, ids[2]);
    assert_eq!(bench.device.in_flight(), 0);
}

#[test]
fn a_command_that_is_done_or_never_was_is_not_aborted() {
    let mut bench = Bench::new();
    let (mut admin, controller) = bench.controller();
    let mut queue = Wire::open(&mut bench);
    assert!(queue.connect(&mut bench, 1, controller).status().is_success());
    let id = queue.send(delete(1, key("absent")), Transfer::None);
    assert_eq!(queue.answer(&mut bench).command_id.get(), id);
    for (number, command) in [(1, id), (1, 77), (9, id), (0, 77), (u16::MAX, u16::MAX)] {
        assert_eq!(told(&admin.call(&mut bench, abort(number, command), Transfer::None)), 1);
    }
}

#[test]
fn the_commands_of_another_controller_are_not_to_be_had() {
    let (mut bench, _admin, mut queue) = slow();
    let id = send_put(&mut queue, "x");
    bench.turn();
    let (mut stranger, _) = bench.controller();
    assert_eq!(told(&stranger.call(&mut bench, abort(1, id), Transfer::None)), 1);
    assert_eq!(bench.device.in_flight(), 1);
}

#[test]
fn an_event_request_is_aborted_before_the_abort_is_answered() {
    let mut bench = Bench::new();
    let (mut admin, _) = bench.controller();
    let id = admin.send(admin_entry(AdminOpcode::AsyncEventRequest, 0), Transfer::None);
    let own = admin.send(abort(0, id), Transfer::None);
    let first = admin.answer(&mut bench);
    assert_eq!((first.command_id.get(), first.status()), (id, ABORTED));
    let second = admin.answer(&mut bench);
    assert_eq!((second.command_id.get(), told(&second)), (own, 0));
}
