//! Isolation of clients: blocks, memory, and the end of a client.

use crate::harness::{BASE, BLOCK, MEMORY_BYTES, MediatedClient, MediatedHarness, NAMESPACE, at, pointing};
use headwater_dma::iova::Iova;
use headwater_frontend::attach::executor::EntryExecutor as _;
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv::DataPointer;
use headwater_nvme::spec::nvm::{self, BlockOptions, BlockRange, DatasetRange};
use headwater_nvme::spec::status::Status;
use headwater_ssd::nvme::rings::rights::AccessLevel;
use zerocopy::IntoBytes as _;
use zerocopy::little_endian::{U32, U64};

const NONE: BlockOptions = BlockOptions::NONE;

fn range(start: u64, blocks: u32) -> BlockRange {
    BlockRange { start, blocks }
}

/// Writes a list of ranges to a client's memory; returns the entry that names it.
fn discard(client: &MediatedClient, offset: usize, ranges: &[(u64, u32)]) -> SubmissionEntry {
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

/// The expected content of a client's blocks.
struct ExpectedBlocks {
    first: u64,
    bytes: Vec<u8>,
}

impl ExpectedBlocks {
    fn of(&mut self, start: u64, blocks: u32) -> &mut [u8] {
        let from = usize::try_from(start - self.first).unwrap() * BLOCK;
        &mut self.bytes[from..from + blocks as usize * BLOCK]
    }
}

/// Runs one random command and checks its result.
fn run_random_command(
    harness: &mut MediatedHarness,
    client: &mut MediatedClient,
    belief: &mut ExpectedBlocks,
    random: &mut fastrand::Rng,
) {
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
            assert_eq!(harness.run_one(client, entry), Status::SUCCESS);
            belief.of(here.start, blocks).copy_from_slice(&data);
        }
        2 => {
            assert_eq!(
                harness.run_one(client, nvm::read(NAMESPACE, here, at(offset), NONE)),
                Status::SUCCESS
            );
            client.memory.copy_in(offset, &mut data).unwrap();
            assert!(
                *belief.of(here.start, blocks) == *data,
                "a read returned other blocks than the client's"
            );
        }
        3 => {
            assert_eq!(harness.run_one(client, nvm::write_zeroes(NAMESPACE, here, NONE)), Status::SUCCESS);
            belief.of(here.start, blocks).fill(0);
        }
        4 => {
            let (first, second) = (range(here.start, 1), range(here.start + u64::from(blocks) - 1, 1));
            let entry = discard(client, offset, &[(first.start, 1), (second.start, 1)]);
            assert_eq!(harness.run_one(client, entry), Status::SUCCESS);
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
            assert_eq!(harness.run_one(client, entry), expected);
        }
    }
}

#[test]
fn each_of_two_clients_reads_its_own_blocks_whatever_the_other_does() {
    let mut harness = MediatedHarness::new();
    let mut random = fastrand::Rng::with_seed(11);
    let mut clients: Vec<(MediatedClient, ExpectedBlocks)> = [100..300, 300..500]
        .into_iter()
        .map(|blocks: std::ops::Range<u64>| {
            let bytes = vec![0; usize::try_from(blocks.end - blocks.start).unwrap() * BLOCK];
            let belief = ExpectedBlocks { first: blocks.start, bytes };
            (harness.client(AccessLevel::Write, blocks, 16), belief)
        })
        .collect();
    for _ in 0..300 {
        let (client, belief) = &mut clients[random.usize(..2)];
        run_random_command(&mut harness, client, belief, &mut random);
    }
    let all = harness.blocks();
    for (client, belief) in &mut clients {
        assert_eq!(harness.run_one(client, nvm_flush()), Status::SUCCESS);
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
fn no_command_outside_a_block_window_reaches_the_controller() {
    let mut harness = MediatedHarness::new();
    harness.machine.lock().blocks.get_mut(&NAMESPACE).unwrap().fill(7);
    let before = harness.blocks();
    let mut client = harness.client(AccessLevel::Write, 100..200, 64);
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
            let status = harness.run_one(&mut client, entry);
            assert!(
                [Status::ACCESS_DENIED, Status::LBA_OUT_OF_RANGE].contains(&status),
                "{status} at {start}"
            );
        }
    }
    for namespace in [0, 1, 3, 300, u32::MAX] {
        let entry = nvm::write(namespace, range(150, 1), at(0), NONE);
        assert_ne!(harness.run_one(&mut client, entry), Status::SUCCESS, "namespace {namespace}");
    }
    let mut reader = harness.client(AccessLevel::Read, 100..200, 16);
    let entries = [nvm::write(NAMESPACE, range(150, 1), at(0), NONE), discard(&reader, 0, &[(150, 1)])];
    for entry in entries {
        assert_eq!(harness.run_one(&mut reader, entry), Status::ACCESS_DENIED);
    }
    assert!(harness.blocks() == before, "a refused command changed a block");
}

#[test]
fn changing_a_range_list_after_validation_has_no_effect() {
    let mut harness = MediatedHarness::new();
    harness.machine.lock().blocks.get_mut(&NAMESPACE).unwrap().fill(7);
    let mut client = harness.client(AccessLevel::Write, 100..200, 8);
    harness.machine.lock().faults.holds_commands = true;
    let entry = discard(&client, 0, &[(100, 1)]);
    client.submit(entry);
    harness.turns(3);
    assert_eq!(harness.machine.lock().held.len(), 1);
    discard(&client, 0, &[(0, 100)]);
    harness.machine.lock().complete_held();
    assert_eq!(harness.wait_completions(&mut client, 1).into_values().collect::<Vec<_>>(), [Status::SUCCESS]);
    let zeroes = harness.blocks().iter().filter(|byte| **byte == 0).count();
    assert_eq!(zeroes, BLOCK, "another block than the validated one was discarded");
}

#[test]
fn addresses_are_resolved_by_the_clients_own_table_only() {
    let mut harness = MediatedHarness::new();
    let mut client = harness.client(AccessLevel::Write, 0..100, 8);
    let other = harness.client(AccessLevel::Write, 100..200, 8);
    harness
        .executor
        .register(other.id, Iova(0x7000_0000), SharedMemory::anonymous(MEMORY_BYTES).unwrap())
        .unwrap();
    let write = |address| nvm::write(NAMESPACE, range(0, 4), address, NONE);
    for address in [0x7000_0000, BASE - 4, at(MEMORY_BYTES - 3 * BLOCK), 0, u64::MAX, 0x80_0000_0000] {
        assert_eq!(harness.run_one(&mut client, write(address)), Status::DATA_TRANSFER_ERROR, "{address:#x}");
    }
    // Clients cannot use PRP lists or SGLs, nor addresses of the controller.
    assert_eq!(harness.run_one(&mut client, pointing(write(0), at(0), at(4_096))), Status::INVALID_FIELD);
    assert_eq!(
        harness.run_one(&mut client, SubmissionEntry { flags: 0x40, ..write(at(0)) }),
        Status::INVALID_FIELD
    );
    assert_eq!(harness.run_one(&mut client, write(at(2))), Status::PRP_OFFSET_INVALID);
    assert_eq!(harness.run_one(&mut client, write(at(4))), Status::SUCCESS);
    // Data across two regions that are adjacent for the client, and not for the controller.
    let behind = SharedMemory::anonymous(MEMORY_BYTES).unwrap();
    harness.executor.register(client.id, Iova(at(MEMORY_BYTES)), behind.clone()).unwrap();
    client.memory.copy_out(MEMORY_BYTES - 2 * BLOCK, &[1; 2 * BLOCK]).unwrap();
    behind.copy_out(0, &[2; 2 * BLOCK]).unwrap();
    assert_eq!(harness.run_one(&mut client, write(at(MEMORY_BYTES - 2 * BLOCK))), Status::SUCCESS);
    let blocks = harness.blocks();
    assert!(blocks[..2 * BLOCK].iter().all(|byte| *byte == 1));
    assert!(blocks[2 * BLOCK..4 * BLOCK].iter().all(|byte| *byte == 2));
}

#[test]
fn memory_of_a_dead_client_stays_mapped_until_its_commands_complete() {
    let mut harness = MediatedHarness::new();
    let mut client = harness.client(AccessLevel::Write, 0..100, 16);
    let mut other = harness.client(AccessLevel::Write, 100..200, 16);
    harness.machine.lock().faults.holds_commands = true;
    for slot in 0..10 {
        client.submit(nvm::read(NAMESPACE, range(slot, 1), at(0), NONE));
    }
    let mine = other.submit(nvm::write(NAMESPACE, range(100, 1), at(0), NONE));
    harness.turns(3);
    harness.executor.rings_mut().remove_client(client.id);
    drop(client);
    harness.turns(3);
    assert_eq!(harness.machine.lock().held.len(), 11);
    assert_eq!(harness.mapped_regions(), 2, "ten commands use the memory of the dead client");
    harness.machine.lock().complete_held();
    assert_eq!(harness.wait_completions(&mut other, 1)[&mine], Status::SUCCESS);
    assert_eq!(harness.mapped_regions(), 1, "the memory of the dead client is still mapped");
    assert_eq!(harness.executor.rings().in_flight(), 0);
    assert_eq!(harness.run_one(&mut other, nvm_flush()), Status::SUCCESS);
}

#[test]
fn a_revoked_region_is_quiet_after_its_commands_complete() {
    let mut harness = MediatedHarness::new();
    let mut client = harness.client(AccessLevel::Write, 0..100, 8);
    harness.machine.lock().faults.holds_commands = true;
    client.submit(nvm::read(NAMESPACE, range(0, 1), at(0), NONE));
    harness.turns(3);
    let revocation = harness.executor.rings_mut().memory(client.id).unwrap().revoke(Iova(BASE)).unwrap();
    let late = client.submit(nvm::read(NAMESPACE, range(0, 1), at(0), NONE));
    harness.turns(3);
    assert!(!revocation.is_drained());
    assert_eq!(harness.mapped_regions(), 1);
    harness.machine.lock().complete_held();
    assert_eq!(harness.wait_completions(&mut client, 1)[&late], Status::DATA_TRANSFER_ERROR);
    assert!(revocation.is_drained());
    drop(revocation);
    assert_eq!(harness.mapped_regions(), 0);
}

#[test]
fn an_abandoned_queue_and_random_entries_harm_no_other_client() {
    let mut harness = MediatedHarness::new();
    let client = harness.client(AccessLevel::Write, 0..100, 8);
    let mut other = harness.client(AccessLevel::Write, 100..200, 8);
    harness.executor.rings_mut().abandon_queue(client.queue);
    harness.turns(2);
    assert_eq!(harness.executor.rings().queue_state(client.queue), None);
    let mut random = fastrand::Rng::with_seed(5);
    let mut noisy = harness.client(AccessLevel::Write, 200..300, 32);
    let before = harness.blocks();
    for _ in 0..2_000 {
        let words = std::array::from_fn(|_| random.u64(..));
        let mut entry = SubmissionEntry::from_words(words);
        if random.bool() {
            entry.opcode = [0, 1, 2, 5, 8, 9][random.usize(..6)];
            entry.namespace = U32::new(NAMESPACE);
            entry.flags = 0;
        }
        harness.run_one(&mut noisy, entry);
    }
    assert!(harness.blocks() == before, "a random entry changed a block");
    assert_eq!(
        harness.run_one(&mut other, nvm::write(NAMESPACE, range(100, 1), at(0), NONE)),
        Status::SUCCESS
    );
}
