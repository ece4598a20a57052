//! Abort (NVMe Base 2.0 section 5.1): completions and their order.

use crate::driver::{DATA, DoorbellMode, admin_entry, start};
use crate::hypervisor::VfioTestNode;
use headwater_nvme::spec::kv::{DataPointer, InlineKey, StoreOptions, exist, store};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{FrontEndId, NamespaceId, RecordExpiry, SsdCommand, WriteCondition};
use headwater_ssd::limits::THROTTLED_MAX;
use headwater_ssd::namespace::{NamespaceChange, NamespaceLimits};

const OTHER: FrontEndId = FrontEndId(9);
const ABORTED: Status = Status::ABORT_REQUESTED;

fn put(name: &str) -> headwater_nvme::spec::command::SubmissionEntry {
    let key = InlineKey::new(name.as_bytes()).unwrap();
    store(1, key, DataPointer { address: DATA, bytes: 9 }, StoreOptions::NONE)
}

fn abort(queue: u32, command: u16) -> headwater_nvme::spec::command::SubmissionEntry {
    admin_entry(0x08, 0, 0, [u32::from(command) << 16 | queue, 0])
}

/// Creates a node whose first namespace executes one command, and then none for an hour of its time.
fn slow_node() -> VfioTestNode {
    let mut node = VfioTestNode::new();
    let limits = NamespaceLimits { iops: 0, bytes_per_second: 1, burst: 1 };
    let change = SsdCommand::Namespace(NamespaceChange::Limits(limits));
    node.device.submit(OTHER, NamespaceId::FIRST, 1, change).unwrap();
    node.run_until_idle();
    assert!(node.device.next_completion(OTHER).unwrap().status.is_success());
    node
}

fn other_put(number: u64) -> SsdCommand {
    SsdCommand::Store {
        key: format!("other-{number}").into_bytes().into(),
        value: vec![0; 9_000].into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    }
}

#[test]
fn a_waiting_command_is_aborted_and_completes_before_the_abort() {
    let mut node = slow_node();
    node.device.submit(OTHER, NamespaceId::FIRST, 2, other_put(0)).unwrap();
    let mut guest = node.guest();
    let (mut admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Shadow);
    let ids: Vec<u16> =
        ["a", "b", "c"].map(|name| queue.submit(&mut node, &mut guest, put(name))).into_iter().collect();
    for id in [ids[1], ids[2], ids[0]] {
        let result = admin.run(&mut node, &mut guest, abort(1, id));
        assert_eq!(result, (Status::SUCCESS, 0), "aborted");
        let answer = queue.reap(&mut node, &mut guest).unwrap();
        assert_eq!((answer.command_id.get(), answer.status()), (id, ABORTED));
        assert_eq!(admin.run(&mut node, &mut guest, abort(1, id)), (Status::SUCCESS, 1), "not again");
    }
    assert!(queue.reap(&mut node, &mut guest).is_none(), "one completion each");
    assert_eq!(node.device.keys(NamespaceId::FIRST), 1, "an aborted command had an effect");
    assert!(node.front_end.is_idle());
}

#[test]
fn an_abort_overtakes_a_command_for_which_the_device_has_no_room() {
    let mut node = slow_node();
    for number in 0..=THROTTLED_MAX as u64 {
        node.device.submit(OTHER, NamespaceId::FIRST, 2 + number, other_put(number)).unwrap();
    }
    let mut guest = node.guest();
    let (mut admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    let held = queue.submit(&mut node, &mut guest, put("held"));
    let behind = queue.submit(&mut node, &mut guest, put("behind"));
    for id in [behind, held] {
        assert_eq!(admin.run(&mut node, &mut guest, abort(1, id)), (Status::SUCCESS, 0));
        let answer = queue.reap(&mut node, &mut guest).unwrap();
        assert_eq!((answer.command_id.get(), answer.status()), (id, ABORTED));
    }
    assert!(node.front_end.is_idle());
}

#[test]
fn a_completed_or_unknown_command_is_not_aborted() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (mut admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    let absent = InlineKey::new(b"absent").unwrap();
    assert_eq!(queue.run(&mut node, &mut guest, exist(1, absent)).0, Status::KEY_DOES_NOT_EXIST);
    for (queue, command) in [(1, 1), (1, 77), (9, 1), (0, 1)] {
        assert_eq!(admin.run(&mut node, &mut guest, abort(queue, command)), (Status::SUCCESS, 1));
    }
}
