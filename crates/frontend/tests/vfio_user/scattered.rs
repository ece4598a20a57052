//! A guest behind a virtual IOMMU: memory that is contiguous for its driver is mapped page by page, in any order.

use crate::driver::{DATA, DoorbellMode, DriverQueuePair, admin_entry, start};
use crate::hypervisor::{TestGuest, VfioTestNode};
use crate::wire::{dma_map, dma_unmap};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::completion::CompletionEntry;
use headwater_nvme::spec::kv::{DataPointer, InlineKey, StoreOptions, flush, retrieve, store};
use headwater_nvme::spec::status::Status;
use rustix::fs::fstat;
use std::os::fd::AsFd as _;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes as _, IntoBytes as _};

const PAGE: u64 = 0x1000;
/// The driver's address of its pages, and the offset of the last one in guest memory.
const BASE: u64 = 0x4000_0000;
const PAGES: u64 = 4;
const LAST: u64 = 0x8_0000;
/// Slots of the queues: two pages of entries, two pages of completions.
const ENTRIES: u32 = 128;
const COMPLETIONS: u32 = 512;

/// Converts an address in the driver's pages to an offset in guest memory, where the pages are in reverse order.
fn memory_offset(address: u64) -> usize {
    let (page, offset) = ((address - BASE) / PAGE, address % PAGE);
    usize::try_from(LAST + (PAGES - 1 - page) * PAGE + offset).unwrap()
}

/// Maps the pages and creates queue 2 in them. Returns the admin queue.
fn queue(node: &mut VfioTestNode, guest: &mut TestGuest) -> DriverQueuePair {
    let memory = guest.descriptor.try_clone().unwrap();
    for page in 0..PAGES {
        let address = BASE + page * PAGE;
        let offset = u64::try_from(memory_offset(address)).unwrap();
        guest.ask_with(node, &dma_map(3, address, PAGE, offset), &[memory.as_fd()]).unwrap();
    }
    let (mut admin, _queue) = start(node, guest, DoorbellMode::Registers);
    let completions = admin_entry(0x05, 0, BASE + 2 * PAGE, [(COMPLETIONS - 1) << 16 | 2, 1]);
    assert_eq!(admin.run(node, guest, completions).0, Status::SUCCESS);
    let entries = admin_entry(0x01, 0, BASE, [(ENTRIES - 1) << 16 | 2, 2 << 16 | 1]);
    assert_eq!(admin.run(node, guest, entries).0, Status::SUCCESS);
    admin
}

#[test]
fn queues_across_several_mappings_work() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    queue(&mut node, &mut guest);
    let (mut tail, mut answered) = (0, 0);
    for round in 0..4_u16 {
        for id in 0..100_u16 {
            let mut entry = flush(1);
            entry.command_id = U16::new(round * 100 + id);
            guest.memory.copy_out(memory_offset(BASE + u64::from(tail) * 64), entry.as_bytes()).unwrap();
            tail = (tail + 1) % ENTRIES;
        }
        guest.set_register(&mut node, 0x1000 + 4 * 4, tail);
        node.run_until_idle();
        for id in 0..100_u16 {
            let mut bytes = [0; 16];
            guest.memory.copy_in(memory_offset(BASE + 2 * PAGE + answered * 16), &mut bytes).unwrap();
            let answer = CompletionEntry::read_from_bytes(&bytes).unwrap();
            assert_eq!((answer.command_id.get(), answer.status()), (round * 100 + id, Status::SUCCESS));
            answered += 1;
        }
    }
    guest.ask(&mut node, &dma_unmap(0, BASE + PAGE, PAGE)).unwrap();
    assert_eq!(guest.register(&mut node, 0x1C) & 2, 2, "CSTS.CFS: a part of a queue is unmapped");
}

/// Checks for a former defect: the memory of a deleted queue counted as in use until the next reset, and a guest behind
/// an IOMMU that unmapped it lost its controller.
#[test]
fn memory_of_deleted_queues_can_be_unmapped_and_its_addresses_reused() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let mut admin = queue(&mut node, &mut guest);
    // The entries of queue 2 are in the first two pages, its completions in the last two.
    for (opcode, first) in [(0x00, BASE), (0x04, BASE + 2 * PAGE)] {
        assert_eq!(admin.run(&mut node, &mut guest, admin_entry(opcode, 0, 0, [2, 0])).0, Status::SUCCESS);
        for page in [first, first + PAGE] {
            guest.ask(&mut node, &dma_unmap(0, page, PAGE)).unwrap();
        }
    }
    assert_eq!(guest.register(&mut node, 0x1C) & 2, 0, "CSTS.CFS");
    // A queue that the controller refused occupies nothing either.
    let memory = guest.descriptor.try_clone().unwrap();
    guest.ask_with(&mut node, &dma_map(3, BASE, PAGE, LAST), &[memory.as_fd()]).unwrap();
    let refused = admin_entry(0x01, 0, BASE, [7 << 16 | 2, 9 << 16 | 1]);
    assert_ne!(
        admin.run(&mut node, &mut guest, refused).0,
        Status::SUCCESS,
        "its completion queue is missing"
    );
    guest.ask(&mut node, &dma_unmap(0, BASE, PAGE)).unwrap();
    assert_eq!(guest.register(&mut node, 0x1C) & 2, 0, "CSTS.CFS");
}

fn stored(pointer: u64, bytes: u32) -> SubmissionEntry {
    let key = InlineKey::new(b"key").unwrap();
    store(1, key, DataPointer { address: pointer, bytes }, StoreOptions::NONE)
}

#[test]
fn remapped_addresses_name_their_new_page_at_once() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (_admin, mut io) = start(&mut node, &mut guest, DoorbellMode::Registers);
    let memory = guest.descriptor.try_clone().unwrap();
    for round in 0..50_u64 {
        let (one, other) = (0x2_0000 + round * PAGE, 0x8_0000 + round * PAGE);
        for (at, byte) in [(one, round + 1), (other, round + 101)] {
            let byte = u8::try_from(byte).unwrap();
            guest.memory.copy_out(usize::try_from(at).unwrap(), &[byte; 4_096]).unwrap();
            // The same address each time, with a command after each mapping.
            guest.ask_with(&mut node, &dma_map(1, BASE, PAGE, at), &[memory.as_fd()]).unwrap();
            assert_eq!(
                guest.ask_with(&mut node, &dma_map(3, BASE, PAGE, at), &[memory.as_fd()]),
                Err(17),
                "EEXIST"
            );
            assert_eq!(io.run(&mut node, &mut guest, stored(BASE, 4_096)).0, Status::SUCCESS);
            // Half a page is no mapping, and a value cannot be written to memory that is mapped for reading.
            assert_eq!(guest.ask(&mut node, &dma_unmap(0, BASE, PAGE / 2)), Err(22), "EINVAL");
            let key = InlineKey::new(b"key").unwrap();
            let read_only = retrieve(1, key, DataPointer { address: BASE, bytes: 4_096 });
            assert_eq!(io.run(&mut node, &mut guest, read_only).0, Status::DATA_TRANSFER_ERROR);
            guest.ask(&mut node, &dma_unmap(0, BASE, PAGE)).unwrap();
            assert_eq!(io.run(&mut node, &mut guest, stored(BASE, 16)).0, Status::DATA_TRANSFER_ERROR);
            let back = retrieve(1, key, DataPointer { address: DATA, bytes: 4_096 });
            assert_eq!(io.run(&mut node, &mut guest, back), (Status::SUCCESS, 4_096));
            let mut found = [0; 4_096];
            guest.memory.copy_in(usize::try_from(DATA).unwrap(), &mut found).unwrap();
            assert_eq!(found, [byte; 4_096], "round {round}");
        }
    }
}

/// Checks for a former defect: the completion of an admin command whose data the guest sends from memory that is mapped
/// for reading ended the node.
#[test]
fn admin_commands_read_their_data_from_memory_that_is_mapped_for_reading() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let (mut admin, _io) = start(&mut node, &mut guest, DoorbellMode::Registers);
    let memory = guest.descriptor.try_clone().unwrap();
    guest.ask_with(&mut node, &dma_map(1, BASE, PAGE, LAST), &[memory.as_fd()]).unwrap();
    // Set Features, Timestamp.
    let timestamp = admin_entry(0x09, 0, BASE, [0x0E, 0]);
    assert_eq!(admin.run(&mut node, &mut guest, timestamp).0, Status::SUCCESS);
    let identify = admin_entry(0x06, 0, BASE, [1, 0]);
    assert_eq!(admin.run(&mut node, &mut guest, identify).0, Status::DATA_TRANSFER_ERROR);
}

/// Checks that a guest's memory in tens of thousands of pages costs this process one mapping, not one each.
#[test]
fn pages_of_one_file_are_one_mapping() {
    let mut node = VfioTestNode::new();
    let mut guest = node.guest();
    let memory = guest.descriptor.try_clone().unwrap();
    // The line of a mapping names the inode of its file.
    let inode = format!(" {} ", fstat(&memory).unwrap().st_ino);
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().matches(&inode).count();
    assert_eq!(mappings(), 2, "the guest's own mapping, and one for all its memory");
    for page in 0..2_000 {
        let offset = page % 256 * PAGE;
        guest.ask_with(&mut node, &dma_map(3, BASE + page * PAGE, PAGE, offset), &[memory.as_fd()]).unwrap();
    }
    assert_eq!(mappings(), 2);
    guest.ask(&mut node, &dma_unmap(2, 0, 0)).unwrap();
    assert_eq!(mappings(), 1, "the node still maps the file");
}
