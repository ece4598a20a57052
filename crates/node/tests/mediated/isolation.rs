//! What one client does is nothing to another: blocks, memory, and the end of either.

use crate::desk::{BASE, BLOCK, Client, Desk, MEMORY_BYTES, NAMESPACE, at, pointing};
use headwater_dma::iova::Iova;
use headwater_frontend::attach::executor::Executor as _;
use headwater_host::foreign::Foreign;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv::DataPointer;
use headwater_nvme::spec::nvm::{self, BlockOptions, BlockRange, DatasetRange};
use headwater_nvme::spec::status::Status;
use headwater_ssd::nvme::rings::rights::Access;
use zerocopy::IntoBytes as _;
use zerocopy::little_endian::{U32, U64};

const NONE: BlockOptions = BlockOptions::NONE;

fn range(start: u64, blocks: u32) -> BlockRange {
    BlockRange { start, blocks }
}

/// Writes a list of ranges into a client's memory; the entry that names it.
fn discard(client: &Client, offset: usize, ranges: &[(u64, u32)]) -> SubmissionEntry {
    let list: Vec<DatasetRange> = ranges
        .iter()
        .map(|&(start, blocks)| DatasetRange {
            context: U32::new(0),
            blocks: U32::new(blocks),
            start: U64::new(start),
        })
        .collect();
    client.memory.copy_out(offset, list.as_bytes()).unwrap();
    let bytes = u32::try_from(list.as_bytes().len()).unwrap();
    nvm::deallocate(NAMESPACE, DataPointer { address: at(offset), bytes })
}

/// Blocks as a client believes them, from its first one on.
struct Belief {
    first: u64,
    bytes: Vec<u8>,
}

impl Belief {
    fn of(&mut self, start: u64, blocks: u32) -> &mut [u8] {
        let from = usize::try_from(start - self.first).unwrap() * BLOCK;
        &mut self.bytes[from..from + blocks as usize * BLOCK]
    }
}

/// One random command and what it must come to.
fn act(desk: &mut Desk, client: &mut Client, belief: &mut Belief, random: &mut fastrand::Rng) {
    let blocks = random.u32(1..=40);
    let last = belief.first + (belief.bytes.len() / BLOCK) as u64 - u64::from(blocks);
    let here = range(random.u64(belief.first..=last), blocks);
    let bytes = blocks as usize * BLOCK;
    let offset = random.usize(..(MEMORY_BYTES - bytes) / 4) * 4;
    let mut data = vec![0; bytes];
    match random.u8(..6) {
        0 | 1 => {
            random.fill(&mut data);
            client.memory.copy_out(offset, &data).unwrap();
            let entry = nvm::write(NAMESPACE, here, at(offset), BlockOptions::FORCE_UNIT_ACCESS);
            assert_eq!(desk.one(client, entry), Status::SUCCESS);
            belief.of(here.start, blocks).copy_from_slice(&data);
        }
        2 => {
            assert_eq!(desk.one(client, nvm::read(NAMESPACE, here, at(offset), NONE)), Status::SUCCESS);
            client.memory.copy_in(offset, &mut data).unwrap();
            assert!(*belief.of(here.start, blocks) == *data, "blocks of another, or none of mine");
        }
        3 => {
            assert_eq!(desk.one(client, nvm::write_zeroes(NAMESPACE, here, NONE)), Status::SUCCESS);
            belief.of(here.start, blocks).fill(0);
        }
        4 => {
            let (first, second) = (range(here.start, 1), range(here.start + u64::from(blocks) - 1, 1));
            let entry = discard(client, offset, &[(first.start, 1), (second.start, 1)]);
            assert_eq!(desk.one(client, entry), Status::SUCCESS);
            belief.of(first.start, 1).fill(0);
            belief.of(second.start, 1).fill(0);
        }
        _ => {
            data.copy_from_slice(belief.of(here.start, blocks));
            let differs = random.bool();
            data[bytes / 2] ^= u8::from(differs);
            client.memory.copy_out(offset, &data).unwrap();
            let entry = nvm::compare(NAMESPACE, here, at(offset), NONE);
            let expected = if differs { Status::COMPARE_FAILURE } else { Status::SUCCESS };
            assert_eq!(desk.one(client, entry), expected);
        }
    }
}

#[test]
fn two_clients_find_their_own_blocks_whatever_the_other_does() {
    let mut desk = Desk::new();
    let mut random = fastrand::Rng::with_seed(11);
    let mut clients: Vec<(Client, Belief)> = [100..300, 300..500]
        .into_iter()
        .map(|blocks: std::ops::Range<u64>| {
            let bytes = vec![0; usize::try_from(blocks.end - blocks.start).unwrap() * BLOCK];
            let belief = Belief { first: blocks.start, bytes };
            (desk.client(Access::Write, blocks, 16), belief)
        })
        .collect();
    for _ in 0..300 {
        let (client, belief) = &mut clients[random.usize(..2)];
        act(&mut desk, client, belief, &mut random);
    }
    let all = desk.blocks();
    for (client, belief) in &mut clients {
        assert_eq!(desk.one(client, nvm_flush()), Status::SUCCESS);
        let first = usize::try_from(belief.first).unwrap() * BLOCK;
        assert!(all[first..first + belief.bytes.len()] == *belief.bytes);
    }
    let theirs = 100 * BLOCK..500 * BLOCK;
    assert!(all.iter().enumerate().all(|(at, byte)| theirs.contains(&at) || *byte == 0));
}

fn nvm_flush() -> SubmissionEntry {
    SubmissionEntry { namespace: U32::new(NAMESPACE), ..SubmissionEntry::default() }
}

#[test]
fn no_write_outside_a_window_reaches_the_controller() {
    let mut desk = Desk::new();
    desk.machine.lock().blocks.get_mut(&NAMESPACE).unwrap().fill(7);
    let before = desk.blocks();
    let mut client = desk.client(Access::Write, 100..200, 64);
    client.memory.copy_out(0, &[9; 16 * BLOCK]).unwrap();
    for (start, blocks) in [(99, 1), (99, 2), (200, 1), (199, 2), (0, 16), (u64::MAX, 1), (1 << 40, 1)] {
        let here = range(start, blocks);
        for entry in [
            nvm::write(NAMESPACE, here, at(0), NONE),
            nvm::write_zeroes(NAMESPACE, here, NONE),
            discard(&client, 1 << 20, &[(100, 1), (start, blocks), (150, 1)]),
            nvm::read(NAMESPACE, here, at(0), NONE),
            nvm::compare(NAMESPACE, here, at(0), NONE),
        ] {
            let status = desk.one(&mut client, entry);
            assert!(
                [Status::ACCESS_DENIED, Status::LBA_OUT_OF_RANGE].contains(&status),
                "{status} at {start}"
            );
        }
    }
    for namespace in [0, 1, 3, 300, u32::MAX] {
        let entry = nvm::write(namespace, range(150, 1), at(0), NONE);
        assert_ne!(desk.one(&mut client, entry), Status::SUCCESS, "namespace {namespace}");
    }
    let mut reader = desk.client(Access::Read, 100..200, 16);
    let entries = [nvm::write(NAMESPACE, range(150, 1), at(0), NONE), discard(&reader, 0, &[(150, 1)])];
    for entry in entries {
        assert_eq!(desk.one(&mut reader, entry), Status::ACCESS_DENIED);
    }
    assert!(desk.blocks() == before, "a block changed");
}

#[test]
fn a_list_that_is_changed_after_it_was_checked_changes_nothing() {
    let mut desk = Desk::new();
    desk.machine.lock().blocks.get_mut(&NAMESPACE).unwrap().fill(7);
    let mut client = desk.client(Access::Write, 100..200, 8);
    desk.machine.lock().faults.holds = true;
    let entry = discard(&client, 0, &[(100, 1)]);
    client.submit(entry);
    desk.turns(3);
    assert_eq!(desk.machine.lock().held.len(), 1);
    discard(&client, 0, &[(0, 100)]);
    desk.machine.lock().release();
    assert_eq!(desk.answers(&mut client, 1).into_values().collect::<Vec<_>>(), [Status::SUCCESS]);
    let zeroes = desk.blocks().iter().filter(|byte| **byte == 0).count();
    assert_eq!(zeroes, BLOCK, "the block that was checked, and no other");
}

#[test]
fn memory_is_found_by_the_clients_own_table_only() {
    let mut desk = Desk::new();
    let mut client = desk.client(Access::Write, 0..100, 8);
    let other = desk.client(Access::Write, 100..200, 8);
    desk.executor.register(other.id, Iova(0x7000_0000), Foreign::anonymous(MEMORY_BYTES).unwrap()).unwrap();
    let write = |address| nvm::write(NAMESPACE, range(0, 4), address, NONE);
    for address in [0x7000_0000, BASE - 4, at(MEMORY_BYTES - 3 * BLOCK), 0, u64::MAX, 0x80_0000_0000] {
        assert_eq!(desk.one(&mut client, write(address)), Status::DATA_TRANSFER_ERROR, "{address:#x}");
    }
    // The controller's own addresses are nothing to a client, nor are lists of theirs.
    assert_eq!(desk.one(&mut client, pointing(write(0), at(0), at(4_096))), Status::INVALID_FIELD);
    assert_eq!(desk.one(&mut client, SubmissionEntry { flags: 0x40, ..write(at(0)) }), Status::INVALID_FIELD);
    assert_eq!(desk.one(&mut client, write(at(2))), Status::PRP_OFFSET_INVALID);
    assert_eq!(desk.one(&mut client, write(at(4))), Status::SUCCESS);
    // Data over the border of two regions that touch for the client, and not for the controller.
    let behind = Foreign::anonymous(MEMORY_BYTES).unwrap();
    desk.executor.register(client.id, Iova(at(MEMORY_BYTES)), behind.clone()).unwrap();
    client.memory.copy_out(MEMORY_BYTES - 2 * BLOCK, &[1; 2 * BLOCK]).unwrap();
    behind.copy_out(0, &[2; 2 * BLOCK]).unwrap();
    assert_eq!(desk.one(&mut client, write(at(MEMORY_BYTES - 2 * BLOCK))), Status::SUCCESS);
    let blocks = desk.blocks();
    assert!(blocks[..2 * BLOCK].iter().all(|byte| *byte == 1));
    assert!(blocks[2 * BLOCK..4 * BLOCK].iter().all(|byte| *byte == 2));
}

#[test]
fn a_client_that_dies_leaves_its_memory_to_the_controller_until_that_has_answered() {
    let mut desk = Desk::new();
    let mut client = desk.client(Access::Write, 0..100, 16);
    let mut other = desk.client(Access::Write, 100..200, 16);
    desk.machine.lock().faults.holds = true;
    for slot in 0..10 {
        client.submit(nvm::read(NAMESPACE, range(slot, 1), at(0), NONE));
    }
    let mine = other.submit(nvm::write(NAMESPACE, range(100, 1), at(0), NONE));
    desk.turns(3);
    desk.executor.rings_mut().remove_client(client.id);
    drop(client);
    desk.turns(3);
    assert_eq!(desk.machine.lock().held.len(), 11);
    assert_eq!(desk.lent(), 2, "ten commands name the memory of the dead");
    desk.machine.lock().release();
    assert_eq!(desk.answers(&mut other, 1)[&mine], Status::SUCCESS);
    assert_eq!(desk.lent(), 1, "nothing names it any more");
    assert_eq!(desk.executor.rings().in_flight(), 0);
    assert_eq!(desk.one(&mut other, nvm_flush()), Status::SUCCESS);
}

#[test]
fn a_region_is_quiet_when_the_controller_has_answered() {
    let mut desk = Desk::new();
    let mut client = desk.client(Access::Write, 0..100, 8);
    desk.machine.lock().faults.holds = true;
    client.submit(nvm::read(NAMESPACE, range(0, 1), at(0), NONE));
    desk.turns(3);
    let revocation = desk.executor.rings_mut().memory(client.id).unwrap().revoke(Iova(BASE)).unwrap();
    let late = client.submit(nvm::read(NAMESPACE, range(0, 1), at(0), NONE));
    desk.turns(3);
    assert!(!revocation.is_quiet());
    assert_eq!(desk.lent(), 1);
    desk.machine.lock().release();
    assert_eq!(desk.answers(&mut client, 1)[&late], Status::DATA_TRANSFER_ERROR);
    assert!(revocation.is_quiet());
    drop(revocation);
    assert_eq!(desk.lent(), 0);
}

#[test]
fn a_client_that_lies_in_its_doorbell_ends_alone() {
    let mut desk = Desk::new();
    let client = desk.client(Access::Write, 0..100, 8);
    let mut other = desk.client(Access::Write, 100..200, 8);
    desk.executor.rings_mut().abandon_queue(client.queue);
    desk.turns(2);
    assert_eq!(desk.executor.rings().queue_state(client.queue), None);
    let mut random = fastrand::Rng::with_seed(5);
    let mut noisy = desk.client(Access::Write, 200..300, 32);
    let before = desk.blocks();
    for _ in 0..2_000 {
        let words = std::array::from_fn(|_| random.u64(..));
        let mut entry = SubmissionEntry::from_words(words);
        if random.bool() {
            entry.opcode = [0, 1, 2, 5, 8, 9][random.usize(..6)];
            entry.namespace = U32::new(NAMESPACE);
            entry.flags = 0;
        }
        desk.one(&mut noisy, entry);
    }
    assert!(desk.blocks() == before, "noise names no block of its window");
    assert_eq!(desk.one(&mut other, nvm::write(NAMESPACE, range(100, 1), at(0), NONE)), Status::SUCCESS);
}
