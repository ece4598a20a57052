//! A guest's driver against the whole front end.

use crate::driver::{
    ADMIN_ONLY, DATA, DoorbellMode, SLOTS, admin_entry, create_queue, disable, enable, enable_as, start,
};
use crate::hypervisor::VfioTestNode;
use crate::wire::{dma_unmap, read, set_irqs, version};
use headwater_host::wake::WaitOutcome;
use headwater_nvme::queue_pair::SleepDecision;
use headwater_nvme::spec::kv::{DataPointer, InlineKey, StoreOptions, exist, flush, list, retrieve, store};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, ValueSink, WriteCondition,
};
use std::os::fd::AsFd as _;

const VALUE: &[u8] = b"from a guest";

fn key(name: &str) -> InlineKey {
    InlineKey::new(name.as_bytes()).unwrap()
}

fn data(bytes: usize) -> DataPointer {
    DataPointer { address: DATA, bytes: u32::try_from(bytes).unwrap() }
}

fn data_offset() -> usize {
    usize::try_from(DATA).unwrap()
}

#[test]
fn a_value_stored_by_a_guest_is_visible_to_every_other_front_end() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    guest.memory.copy_out(data_offset(), VALUE).unwrap();
    let stored =
        queue.run(&mut node, &mut guest, store(1, key("guest"), data(VALUE.len()), StoreOptions::NONE));
    assert_eq!(stored.0, Status::SUCCESS);
    assert_eq!(guest.eventfds[1].take(), Ok(WaitOutcome::Signalled), "its vector was not signalled");
    let other = FrontEndId(9);
    let get = SsdCommand::retrieve_whole(
        b"guest"[..].into(),
        ValueSink::Bytes(Vec::new()),
        ReadRelease::WhenDurable,
    );
    node.device.submit(other, NamespaceId::FIRST, 7, get).unwrap();
    node.run_until_idle();
    assert_eq!(node.device.next_completion(other).unwrap().sink, VALUE);
}

/// Checks for a former defect: a write to a full eventfd, from which the hypervisor had taken the non-blocking flag,
/// stopped the core loop for ever.
#[test]
fn full_and_blocking_interrupt_descriptors_stop_no_client() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    // A pipe that is full, and the rest of an assignment that is refused, change nothing.
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while rustix::io::write(&writer, &[0; 4_096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    let refused = guest.ask_with(&mut node, &set_irqs(0x24, 2, 1, 1), &[writer.as_fd()]);
    assert_eq!(refused, Err(22), "a pipe is no eventfd");
    // The counter is full, and a write to this file would block.
    let full = guest.eventfds[1].clone();
    full.take().unwrap();
    rustix::io::write(full.as_fd(), &(u64::MAX - 1).to_le_bytes()).unwrap();
    rustix::io::ioctl_fionbio(full.as_fd(), false).unwrap();
    for _ in 0..3 * SLOTS {
        let found = queue.run(&mut node, &mut guest, exist(1, key("absent")));
        assert_eq!(found.0, Status::KEY_DOES_NOT_EXIST);
    }
    // Other front ends go on.
    let other = FrontEndId(9);
    let exists = SsdCommand::Exist { key: b"absent"[..].into(), release: ReadRelease::WhenDurable };
    node.device.submit(other, NamespaceId::FIRST, 7, exists).unwrap();
    node.run_until_idle();
    assert!(node.device.next_completion(other).is_some());
    // The interrupt of the full counter is pending, and the next one is delivered.
    assert_eq!(full.take(), Ok(WaitOutcome::Signalled));
    assert_eq!(queue.run(&mut node, &mut guest, exist(1, key("absent"))).0, Status::KEY_DOES_NOT_EXIST);
    assert_eq!(full.take(), Ok(WaitOutcome::Signalled));
    drop(reader);
}

#[test]
fn a_guest_reads_its_value_back_through_scattered_pages() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    let value: Vec<u8> = (0..=u8::MAX).cycle().take(10_000).collect();
    // A first page from its middle on, the rest by a list with pages in descending order.
    let pages = [DATA + 0x800, DATA + 0x5000, DATA + 0x3000];
    let mut rest = &value[..];
    for (page, bytes) in pages.iter().zip([0x800, 0x1000, 0x1000]) {
        let (now, later) = rest.split_at(bytes.min(rest.len()));
        guest.memory.copy_out(usize::try_from(*page).unwrap(), now).unwrap();
        rest = later;
    }
    let list: Vec<u8> = pages[1..].iter().flat_map(|page| page.to_le_bytes()).collect();
    guest.memory.copy_out(0x8000, &list).unwrap();
    let pointer = DataPointer { address: pages[0], bytes: 10_000 };
    let mut entry = store(1, key("pages"), pointer, StoreOptions::NONE);
    entry.prp2.set(0x8000);
    assert_eq!(queue.run(&mut node, &mut guest, entry).0, Status::SUCCESS);
    // Read back to contiguous pages, the second entry again points to a list.
    let list: Vec<u8> = [0x2_1000_u64, 0x2_2000].iter().flat_map(|page| page.to_le_bytes()).collect();
    guest.memory.copy_out(0x9000, &list).unwrap();
    let mut entry = retrieve(1, key("pages"), DataPointer { address: 0x2_0000, bytes: 10_000 });
    entry.prp2.set(0x9000);
    assert_eq!(queue.run(&mut node, &mut guest, entry), (Status::SUCCESS, 10_000));
    let mut back = vec![0; 10_000];
    guest.memory.copy_in(0x2_0000, &mut back).unwrap();
    assert!(back == value, "the value read differs from the value stored");
}

#[test]
fn addresses_outside_guest_memory_are_a_data_transfer_error() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    let nowhere = DataPointer { address: 0x7000_0000, bytes: 64 };
    let stored = queue.run(&mut node, &mut guest, store(1, key("nowhere"), nowhere, StoreOptions::NONE));
    assert_eq!(stored.0, Status::DATA_TRANSFER_ERROR);
    assert_eq!(queue.run(&mut node, &mut guest, flush(1)).0, Status::SUCCESS, "the queue remains usable");
}

#[test]
fn with_shadow_doorbells_messages_are_sent_only_to_a_sleeping_core() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Shadow);
    for _ in 0..3 * SLOTS {
        let found = queue.run(&mut node, &mut guest, exist(1, key("absent")));
        assert_eq!(found.0, Status::KEY_DOES_NOT_EXIST);
    }
    let while_awake = queue.messages;
    assert!(while_awake <= 1, "{while_awake} messages while the core was awake");
    node.run_until_idle();
    assert_eq!(node.front_end.prepare_sleep(), SleepDecision::UntilWoken);
    queue.submit(&mut node, &mut guest, exist(1, key("absent")));
    assert_eq!(queue.messages, while_awake + 1, "the sleeping core was not notified");
    node.run_until_idle();
    assert!(queue.reap(&mut node, &mut guest).is_some());
}

#[test]
fn disabling_waits_for_commands_in_flight_and_the_controller_can_be_enabled_again() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    for round in 0..3 {
        let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Shadow);
        let stored = queue.run(&mut node, &mut guest, store(1, key("round"), data(9), StoreOptions::NONE));
        assert_eq!(stored.0, Status::SUCCESS, "round {round}");
        queue.submit(&mut node, &mut guest, store(1, key("late"), data(9), StoreOptions::NONE));
        disable(&mut node, &mut guest);
        assert!(node.front_end.is_idle(), "a command is in flight though CSTS.RDY is 0");
    }
}

#[test]
fn without_a_command_set_every_io_command_is_an_invalid_opcode() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let mut admin = enable_as(&mut node, &mut guest, ADMIN_ONLY);
    let mut queue = create_queue(&mut node, &mut guest, &mut admin, DoorbellMode::Registers);
    for entry in [store(1, key("never"), data(9), StoreOptions::NONE), flush(1)] {
        assert_eq!(queue.run(&mut node, &mut guest, entry).0, Status::INVALID_OPCODE);
    }
    disable(&mut node, &mut guest);
    let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    assert_eq!(queue.run(&mut node, &mut guest, flush(1)).0, Status::SUCCESS);
}

#[test]
fn a_shutdown_completes_after_a_flush() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let _admin = enable(&mut node, &mut guest);
    guest.set_register(&mut node, 0x14, 1 | 6 << 4 | 6 << 16 | 4 << 20 | 1 << 14);
    node.run_until_idle();
    assert_eq!(guest.register(&mut node, 0x1C) & 0xC, 8, "CSTS.SHST");
}

#[test]
fn a_device_reset_restores_the_power_on_state() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    queue.submit(&mut node, &mut guest, exist(1, key("absent")));
    guest.reset(&mut node);
    assert!(node.front_end.is_idle());
    assert_eq!(guest.register(&mut node, 0x1C), 0, "CSTS");
    assert_eq!(guest.register(&mut node, 0x14), 0, "CC");
    guest.config_write(&mut node, 4, &[6, 4]);
    let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    assert_eq!(queue.run(&mut node, &mut guest, exist(1, key("absent"))).0, Status::KEY_DOES_NOT_EXIST);
}

#[test]
fn a_subsystem_reset_removes_the_queues_and_sets_nssro() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    queue.submit(&mut node, &mut guest, store(1, key("late"), data(9), StoreOptions::NONE));
    guest.set_register(&mut node, 0x20, 0x4E56_4D64);
    assert_eq!(guest.register(&mut node, 0x1C), 1, "CSTS.RDY: a wrong signature must have no effect");
    guest.set_register(&mut node, 0x20, 0x4E56_4D65);
    node.run_until_idle();
    assert!(node.front_end.is_idle(), "a command is in flight after the reset");
    assert_eq!(guest.register(&mut node, 0x1C), 1 << 4, "CSTS.NSSRO, and not ready");
    assert_eq!(guest.register(&mut node, 0x14) & 1, 0, "CC.EN");
    guest.set_register(&mut node, 0x1C, 1 << 4);
    let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    assert_eq!(queue.run(&mut node, &mut guest, flush(1)).0, Status::SUCCESS);
}

#[test]
fn unmapping_memory_of_queues_fails_the_controller() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (_admin, _queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    guest.ask(&mut node, &dma_unmap(2, 0, 0)).unwrap();
    assert_eq!(guest.register(&mut node, 0x1C) & 2, 2, "CSTS.CFS");
}

#[test]
fn queues_outside_guest_memory_are_refused() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let mut admin = enable(&mut node, &mut guest);
    let size = (SLOTS - 1) << 16 | 1;
    let nowhere = admin_entry(0x05, 0, 0x7000_0000, [size, 3]);
    assert!(!admin.run(&mut node, &mut guest, nowhere).0.is_success());
    let orphan = admin_entry(0x01, 0, 0x2000, [size, 1 << 16 | 1]);
    assert_eq!(admin.run(&mut node, &mut guest, orphan).0, Status::COMPLETION_QUEUE_INVALID);
    disable(&mut node, &mut guest);
    guest.set_register(&mut node, 0x28, 0x7000_0000);
    guest.set_register(&mut node, 0x14, 1 | 6 << 4 | 6 << 16 | 4 << 20);
    assert_eq!(guest.register(&mut node, 0x1C) & 3, 2, "CSTS.CFS: the admin queue is outside guest memory");
}

#[test]
fn without_bus_mastering_no_command_is_fetched() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    guest.config_write(&mut node, 4, &[2, 4]);
    queue.submit(&mut node, &mut guest, exist(1, key("absent")));
    node.run_until_idle();
    assert!(queue.reap(&mut node, &mut guest).is_none());
    guest.config_write(&mut node, 4, &[6, 4]);
    node.run_until_idle();
    assert!(queue.reap(&mut node, &mut guest).is_some());
}

#[test]
fn a_deleted_queue_completes_fetched_commands_and_can_be_created_again() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (mut admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    queue.submit(&mut node, &mut guest, exist(1, key("absent")));
    let in_use = admin.run(&mut node, &mut guest, admin_entry(0x04, 0, 0, [1, 0]));
    assert_eq!(in_use.0, Status::INVALID_QUEUE_DELETION);
    assert_eq!(admin.run(&mut node, &mut guest, admin_entry(0x00, 0, 0, [1, 0])).0, Status::SUCCESS);
    assert!(queue.reap(&mut node, &mut guest).is_some(), "the command has no completion");
    assert_eq!(admin.run(&mut node, &mut guest, admin_entry(0x04, 0, 0, [1, 0])).0, Status::SUCCESS);
    let size = (SLOTS - 1) << 16 | 1;
    assert_eq!(admin.run(&mut node, &mut guest, admin_entry(0x05, 0, 0x3000, [size, 1])).0, Status::SUCCESS);
}

#[test]
fn one_guest_at_a_time_is_served_and_the_next_after_it_disconnects() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Shadow);
    let mut second = node.connect();
    node.run_until_idle();
    assert!(!second.is_connected(), "the second client was not disconnected");
    queue.submit(&mut node, &mut guest, store(1, key("last"), data(9), StoreOptions::NONE));
    drop(guest);
    node.run_until_idle();
    let mut next = node.guest();
    assert_eq!(next.register(&mut node, 0x14), 0, "state of the first guest is left");
    let (_admin, mut queue) = start(&mut node, &mut next, DoorbellMode::Registers);
    assert_eq!(queue.run(&mut node, &mut next, flush(1)).0, Status::SUCCESS);
}

/// Repeats what a hypervisor that restarts does: it connects again before the node has seen that it left.
#[test]
fn client_that_connects_when_the_guest_has_just_left_is_the_next_guest() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    for time in 0..100 {
        drop(guest);
        guest = node.connect();
        assert!(guest.ask(&mut node, &version()).is_ok(), "turned away the {time}th time");
    }
}

#[test]
fn client_waits_until_the_last_messages_of_the_guest_before_it_are_served() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Shadow);
    queue.submit(&mut node, &mut guest, store(1, key("last"), data(9), StoreOptions::NONE));
    guest.send(&dma_unmap(2, 0, 0), &[]);
    drop(guest);
    let mut next = node.connect();
    assert!(next.ask(&mut node, &version()).is_ok());
}

#[test]
fn malformed_messages_end_only_their_connection() {
    let mut node = VfioTestNode::new();
    for garbage in [&[0xFF; 64][..], &[0; 16], &[1, 0, 1, 0, 15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
        let mut client = node.connect();
        client.send(garbage, &[]);
        node.run_until_idle();
        assert!(!client.is_connected());
    }
    let mut guest = node.guest();
    assert!(guest.ask(&mut node, &read(0, 0, 8)).is_ok());
}

#[test]
fn a_message_may_arrive_byte_by_byte() {
    let mut node = VfioTestNode::new();
    let mut client = node.connect();
    for byte in version() {
        assert!(client.reply().is_none());
        client.send(&[byte], &[]);
        node.run_until_idle();
    }
    assert!(client.reply().is_some());
}

#[test]
fn too_many_descriptors_end_the_connection() {
    let mut node = VfioTestNode::new();
    let mut client = node.connect();
    let memory = client.descriptor.try_clone().unwrap();
    let many = [std::os::fd::AsFd::as_fd(&memory); 9];
    client.send(&version(), &many);
    node.run_until_idle();
    assert!(!client.is_connected());
}

#[test]
fn a_list_of_several_turns_ends_with_a_reset_and_with_a_drain() {
    let mut node = VfioTestNode::new();
    let other = FrontEndId(9);
    for number in 0..3_000_u64 {
        let key = format!("key-{number:04}").into_bytes().into();
        let put = SsdCommand::Store {
            key,
            value: VALUE.into(),
            condition: WriteCondition::Always,
            expiry: RecordExpiry::Never,
        };
        node.device.submit(other, NamespaceId::FIRST, number, put).unwrap();
        node.run_until_idle();
        while node.device.next_completion(other).is_some() {}
    }
    let mut guest = node.guest();
    let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    // Sixteen pages and a list of them: more keys than the device returns at once.
    let pages: Vec<u8> = (1..16_u64).flat_map(|page| (DATA + page * 4_096).to_le_bytes()).collect();
    guest.memory.copy_out(0x8000, &pages).unwrap();
    let mut entry = list(1, None, DataPointer { address: DATA, bytes: 65_536 });
    entry.prp2.set(0x8000);
    assert_eq!(queue.run(&mut node, &mut guest, entry).0, Status::SUCCESS);
    let mut count = [0; 4];
    guest.memory.copy_in(data_offset(), &mut count).unwrap();
    assert_eq!(u32::from_le_bytes(count), 3_000);
    for turns in 0..6 {
        let mut entry = list(1, None, DataPointer { address: DATA, bytes: 65_536 });
        entry.prp2.set(0x8000);
        queue.submit(&mut node, &mut guest, entry);
        for _ in 0..turns {
            node.turn();
        }
        guest.reset(&mut node);
        assert!(node.front_end.is_idle(), "a list of {turns} turns");
        guest.config_write(&mut node, 4, &[6, 4]);
        (_, queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    }
    queue.submit(&mut node, &mut guest, entry);
    node.front_end.begin_drain();
    node.run_until_idle();
    assert!(node.front_end.is_drained());
}

#[test]
fn a_drained_front_end_has_completed_every_command() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Registers);
    queue.submit(&mut node, &mut guest, store(1, key("drain"), data(9), StoreOptions::NONE));
    node.front_end.begin_drain();
    node.run_until_idle();
    assert!(node.front_end.is_drained());
    assert!(queue.reap(&mut node, &mut guest).is_some());
}
