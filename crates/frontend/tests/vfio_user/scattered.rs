//! A guest behind a virtual IOMMU: memory that is contiguous for its driver is mapped page by page, in any order.

use crate::driver::{DoorbellMode, admin_entry, start};
use crate::hypervisor::{TestGuest, VfioTestNode};
use crate::wire::{dma_map, dma_unmap};
use headwater_nvme::spec::completion::CompletionEntry;
use headwater_nvme::spec::kv::flush;
use headwater_nvme::spec::status::Status;
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

/// Maps the pages and creates queue 2 in them.
fn queue(node: &mut VfioTestNode, guest: &mut TestGuest) {
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
