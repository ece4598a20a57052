//! Tests of the NVM command set on a block namespace, from ring to record and back.

use crate::harness::{BASE, HarnessClient, RingHarness, at, key};
use headwater_nvme::controller::QueueKind;
use headwater_nvme::data_pointer::PageBytes;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv::{DataPointer, flush, retrieve, uio_put};
use headwater_nvme::spec::nvm::{
    BlockOptions, BlockRange, CopyRange, DatasetRange, compare, copy, deallocate, read, verify, write,
    write_zeroes,
};
use headwater_nvme::spec::sgl::{SglDescriptor, SglKind};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{NamespaceId, SsdCommand};
use headwater_ssd::engine::Durability;
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind};
use headwater_ssd::nvme::request::AddressMode;
use headwater_ssd::nvme::rings::rights::{AccessLevel, ClientRights, NamespaceRights};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

const BLOCKS: u64 = 10_000;
const NONE: BlockOptions = BlockOptions::NONE;

/// Creates a block namespace, and returns its number.
fn create(bench: &mut RingHarness, format: BlockFormat) -> u32 {
    let made = Namespace { kind: NamespaceKind::Block(format), size: BLOCKS, ..Namespace::IMPLICIT };
    let created = bench.run_direct(SsdCommand::Namespace(NamespaceChange::Create(made)));
    assert_eq!(created.status, Status::SUCCESS);
    created.position
}

fn range(start: u64, blocks: u32) -> BlockRange {
    BlockRange { start, blocks }
}

/// Returns blocks that differ from each other and from those of other seeds.
fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from((at / 512 * 7 + at) % 241).expect("below 241") ^ seed).collect()
}

fn dataset(client: &HarnessClient, ranges: &[(u64, u32)]) -> DataPointer {
    let list: Vec<_> = ranges
        .iter()
        .map(|&(start, blocks)| DatasetRange {
            context: U32::new(0),
            blocks: U32::new(blocks),
            start: U64::new(start),
        })
        .collect();
    client.write(900_000, list.as_bytes())
}

fn sources(client: &HarnessClient, ranges: &[(u64, u16)]) -> DataPointer {
    let list: Vec<_> = ranges
        .iter()
        .map(|&(start, blocks0)| CopyRange {
            start: U64::new(start),
            blocks0: U16::new(blocks0),
            ..CopyRange::default()
        })
        .collect();
    client.write(900_000, list.as_bytes())
}

/// Reads blocks and returns their bytes.
fn content(
    bench: &mut RingHarness,
    client: &mut HarnessClient,
    number: u32,
    blocks: BlockRange,
    bytes: usize,
) -> Vec<u8> {
    client.write(500_000, &vec![0xEE; bytes]);
    assert_eq!(bench.run(client, read(number, blocks, at(500_000, 0).address, NONE)), (Status::SUCCESS, 0));
    client.read(500_000, bytes)
}

#[test]
fn every_block_command_runs_end_to_end_in_every_format() {
    for format in BlockFormat::ALL {
        let mut bench = RingHarness::new();
        let number = create(&mut bench, format);
        let mut client = bench.client(8, QueueKind::Standard);
        let bytes = format.bytes();
        assert_eq!(content(&mut bench, &mut client, number, range(7, 3), 3 * bytes), vec![0; 3 * bytes]);
        let three = pattern(1, 3 * bytes);
        let data = client.write(1, &three).address;
        assert_eq!(bench.run(&mut client, write(number, range(7, 3), data, NONE)), (Status::SUCCESS, 0));
        assert_eq!(content(&mut bench, &mut client, number, range(7, 3), 3 * bytes), three);
        assert_eq!(content(&mut bench, &mut client, number, range(8, 1), bytes), three[bytes..2 * bytes]);
        let same = compare(number, range(7, 3), data, NONE);
        assert_eq!(bench.run(&mut client, same).0, Status::SUCCESS);
        let shifted = compare(number, range(8, 2), data, NONE);
        assert_eq!(bench.run(&mut client, shifted).0, Status::COMPARE_FAILURE);
        assert_eq!(bench.run(&mut client, verify(number, range(0, 20), NONE)).0, Status::SUCCESS);
        let list = sources(&client, &[(9, 0), (7, 1)]);
        assert_eq!(bench.run(&mut client, copy(number, 100, list, NONE)), (Status::SUCCESS, 0));
        let copied = content(&mut bench, &mut client, number, range(100, 3), 3 * bytes);
        assert_eq!(copied, [&three[2 * bytes..], &three[..2 * bytes]].concat());
        let zeroes = write_zeroes(number, range(8, 1), BlockOptions::DEALLOCATE);
        assert_eq!(bench.run(&mut client, zeroes).0, Status::SUCCESS);
        assert_eq!(content(&mut bench, &mut client, number, range(8, 1), bytes), vec![0; bytes]);
        let list = dataset(&client, &[(7, 1), (0, 0), (9, 100)]);
        assert_eq!(bench.run(&mut client, deallocate(number, list)).0, Status::SUCCESS);
        assert_eq!(content(&mut bench, &mut client, number, range(7, 3), 3 * bytes), vec![0; 3 * bytes]);
        assert_eq!(content(&mut bench, &mut client, number, range(100, 3), 3 * bytes)[..10], [0; 10]);
        assert_eq!(bench.run(&mut client, flush(number)).0, Status::SUCCESS);
        assert_eq!(bench.run(&mut client, flush(u32::MAX)).0, Status::SUCCESS);
        assert_eq!(bench.front_end.rings.in_flight(), 0);
    }
}

#[test]
fn key_commands_and_missing_blocks_are_refused() {
    let mut bench = RingHarness::new();
    let number = create(&mut bench, BlockFormat::B512);
    let mut client = bench.client(32, QueueKind::Uio);
    let plain = read(number, range(0, 1), BASE, NONE);
    let with = |bits: u32| SubmissionEntry { cdw12: U32::new(plain.cdw12.get() | bits), ..plain };
    let cases = [
        (read(number, range(BLOCKS, 1), BASE, NONE), Status::LBA_OUT_OF_RANGE),
        (write(number, range(BLOCKS - 1, 2), BASE, NONE), Status::LBA_OUT_OF_RANGE),
        (write_zeroes(number, range(u64::MAX, 1), NONE), Status::LBA_OUT_OF_RANGE),
        (deallocate(number, dataset(&client, &[(0, 1), (9_999, 2)])), Status::LBA_OUT_OF_RANGE),
        (with(1 << 29), Status::INVALID_FIELD),
        (SubmissionEntry { flags: 1, ..plain }, Status::INVALID_FIELD),
        (SubmissionEntry { prp2: U64::new(8), ..plain }, Status::INVALID_FIELD),
        (read(number, range(0, 1), 0, NONE), Status::DATA_TRANSFER_ERROR),
        (write(number, range(0, 8_192), BASE, NONE), Status::DATA_TRANSFER_ERROR),
        (deallocate(number, DataPointer { address: 0, bytes: 16 }), Status::DATA_TRANSFER_ERROR),
        (SubmissionEntry { opcode: 0x14, ..plain }, Status::INVALID_OPCODE),
        (SubmissionEntry { opcode: 0x04, ..plain }, Status::INVALID_OPCODE),
        (uio_put(number, at(0, 8), at(0, 8)), Status::INVALID_OPCODE),
        (SubmissionEntry { namespace: U32::new(1), opcode: 0x05, ..plain }, Status::INVALID_OPCODE),
    ];
    for (entry, status) in cases {
        assert_eq!(bench.run(&mut client, entry), (status, 0), "{entry:?}");
    }
    assert_eq!(content(&mut bench, &mut client, number, range(0, 2), 1_024), vec![0; 1_024]);
    // The same opcodes are other commands on a key space.
    let get = retrieve(1, key(b"k"), at(0, 8));
    assert_eq!(bench.run(&mut client, get).0, Status::KEY_DOES_NOT_EXIST);
}

#[test]
fn copy_outside_a_limit_returns_the_status_of_that_limit() {
    let mut bench = RingHarness::new();
    let number = create(&mut bench, BlockFormat::B4096);
    let mut client = bench.client(8, QueueKind::Standard);
    let mut status = |ranges: &[(u64, u16)], to| {
        let entry = copy(number, to, sources(&client, ranges), NONE);
        bench.run(&mut client, entry).0
    };
    assert_eq!(status(&[(0, 0); 128], 5_000), Status::SUCCESS);
    assert_eq!(status(&[(0, 0); 129], 5_000), Status::COMMAND_SIZE_LIMIT);
    assert_eq!(status(&[(0, 4_095), (0, 0)], 5_000), Status::COMMAND_SIZE_LIMIT);
    assert_eq!(status(&[(BLOCKS, 0)], 0), Status::LBA_OUT_OF_RANGE);
    assert_eq!(status(&[(0, 9)], BLOCKS - 9), Status::LBA_OUT_OF_RANGE);
    assert_eq!(status(&[(0, 0)], BLOCKS), Status::LBA_OUT_OF_RANGE);
}

#[test]
fn guests_read_and_write_blocks_with_prp_lists_and_sgls() {
    let mut bench = RingHarness::new();
    let number = create(&mut bench, BlockFormat::B512);
    let mut client = bench.client(8, QueueKind::Standard);
    bench.front_end.rings.set_address_mode(client.id, AddressMode::Lists(PageBytes::MIN)).unwrap();
    let data = pattern(3, 16 * 512);
    // The data starts in the middle of page 5, continues on page 9, and ends in the first half of page 7.
    client.write(5 * 4_096 + 2_048, &data[..2_048]);
    client.write(9 * 4_096, &data[2_048..6_144]);
    client.write(7 * 4_096, &data[6_144..]);
    client.write(20 * 4_096, [BASE + 9 * 4_096, BASE + 7 * 4_096].map(u64::to_le_bytes).as_flattened());
    let mut entry = write(number, range(40, 16), BASE + 5 * 4_096 + 2_048, NONE);
    entry.prp2 = U64::new(BASE + 20 * 4_096);
    assert_eq!(bench.run(&mut client, entry).0, Status::SUCCESS);
    let block = SglDescriptor::new(SglKind::DataBlock, BASE + 30 * 4_096 + 3, 8_192);
    let entry = read(number, range(40, 16), 0, NONE).with_sgl(block);
    assert_eq!(bench.run(&mut client, entry).0, Status::SUCCESS);
    assert_eq!(client.read(30 * 4_096 + 3, 8_192), data);
    // A range list on two pages.
    let list = [DatasetRange { blocks: U32::new(1), start: U64::new(41), context: U32::new(0) }; 2];
    client.write(31 * 4_096 - 16, list.as_bytes());
    let mut entry = deallocate(number, DataPointer { address: BASE + 31 * 4_096 - 16, bytes: 32 });
    entry.prp2 = U64::new(BASE + 31 * 4_096);
    assert_eq!(bench.run(&mut client, entry).0, Status::SUCCESS);
    let entry = read(number, range(40, 3), BASE + 33 * 4_096, NONE);
    assert_eq!(bench.run(&mut client, entry).0, Status::SUCCESS);
    let read = client.read(33 * 4_096, 1_536);
    assert_eq!(
        [&read[..512], &read[512..1_024], &read[1_024..]],
        [&data[..512], &[0; 512], &data[1_024..1_536]]
    );
}

#[test]
fn forced_reads_return_written_data_and_respect_rights() {
    let mut bench = RingHarness::new();
    let number = create(&mut bench, BlockFormat::B512);
    let namespace = NamespaceId(u8::try_from(number).unwrap());
    bench.device.set_durability(namespace, Durability::OnFlush);
    let mut client = bench.client(8, QueueKind::Standard);
    let block = pattern(5, 512);
    let data = client.write(0, &block).address;
    let forced = BlockOptions::FORCE_UNIT_ACCESS;
    assert_eq!(bench.run(&mut client, write(number, range(9, 1), data, forced)).0, Status::SUCCESS);
    let back = at(5_000, 0).address;
    assert_eq!(bench.run(&mut client, read(number, range(9, 1), back, forced)).0, Status::SUCCESS);
    assert_eq!(client.read(5_000, 512), block);
    assert_eq!(bench.run(&mut client, compare(number, range(9, 1), data, forced)).0, Status::SUCCESS);
    assert_eq!(bench.run(&mut client, verify(number, range(9, 1), forced)).0, Status::SUCCESS);
    let part = NamespaceRights { access: AccessLevel::Read, blocks: Some(0..9) };
    bench
        .front_end
        .rings
        .set_rights(client.id, ClientRights::none().with_namespace(namespace, part))
        .unwrap();
    assert_eq!(bench.run(&mut client, read(number, range(8, 1), back, forced)).0, Status::SUCCESS);
    assert_eq!(bench.run(&mut client, read(number, range(9, 1), back, forced)).0, Status::ACCESS_DENIED);
}

#[test]
fn random_block_commands_match_a_plain_array() {
    const SPACE: usize = 64;
    for seed in 0..8_u64 {
        let mut random = fastrand::Rng::with_seed(seed);
        let format = BlockFormat::ALL[random.usize(..2)];
        let (mut bench, size) = (RingHarness::new(), format.bytes());
        let number = create(&mut bench, format);
        let mut client = bench.client(8, QueueKind::Standard);
        let mut model = vec![0_u8; SPACE * size];
        for step in 0..200_u8 {
            let start = random.usize(..SPACE);
            let count = random.usize(1..=(SPACE - start).min(9));
            let blocks = range(start as u64, u32::try_from(count).unwrap());
            let bytes_range = start * size..(start + count) * size;
            match random.u8(..5) {
                0 | 1 => {
                    let bytes = pattern(step, count * size);
                    let data = client.write(random.usize(..5_000), &bytes).address;
                    assert_eq!(bench.run(&mut client, write(number, blocks, data, NONE)).0, Status::SUCCESS);
                    model[bytes_range].copy_from_slice(&bytes);
                }
                2 => {
                    let zeroes = write_zeroes(number, blocks, NONE);
                    assert_eq!(bench.run(&mut client, zeroes).0, Status::SUCCESS);
                    model[bytes_range].fill(0);
                }
                3 => {
                    let to = random.usize(..=SPACE - count);
                    let list = sources(&client, &[(start as u64, u16::try_from(count - 1).unwrap())]);
                    let entry = copy(number, to as u64, list, NONE);
                    assert_eq!(bench.run(&mut client, entry).0, Status::SUCCESS, "seed {seed} step {step}");
                    model.copy_within(bytes_range, to * size);
                }
                _ => {
                    let seen = content(&mut bench, &mut client, number, blocks, count * size);
                    assert!(
                        seen == model[bytes_range],
                        "seed {seed} step {step}: blocks {start} to {}",
                        start + count
                    );
                }
            }
        }
    }
}
