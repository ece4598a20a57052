//! Every block command decodes to its operation, every malformed one to the status of the specification.

use super::super::{DataNeed, IoCommand, IoOperation, decode};
use super::*;
use crate::command::NamespaceId;
use crate::namespace::{Namespace, NamespaceKind};
use headwater_nvme::controller::QueueKind;
use headwater_nvme::spec::kv::{self, DataPointer};
use headwater_nvme::spec::nvm::{self, BlockOptions, BlockRange};
use zerocopy::little_endian::{U32, U64};

const BLOCKS: u64 = 1_000_000;
const RANGE: BlockRange = BlockRange { start: 7, blocks: 8 };
const HERE: LbaRange = LbaRange { start: Lba(7), blocks: 8 };

fn space(format: BlockFormat) -> BlockSpace {
    BlockSpace { blocks: BLOCKS, format }
}

fn command(entry: &SubmissionEntry, format: BlockFormat) -> Result<IoCommand, Status> {
    let namespace = Namespace { kind: NamespaceKind::Block(format), size: BLOCKS, ..Namespace::IMPLICIT };
    decode(entry, QueueKind::Standard, |id| (id == NamespaceId(2)).then_some(namespace))
}

fn operation(entry: &SubmissionEntry) -> Result<BlockOperation, Status> {
    match command(entry, BlockFormat::B512)?.operation {
        IoOperation::Block(operation) => Ok(operation),
        other => panic!("a block namespace took {other:?}"),
    }
}

fn list(bytes: u32) -> DataPointer {
    DataPointer { address: 0x1000, bytes }
}

/// Returns one valid entry of each opcode except Flush.
fn valid() -> Vec<SubmissionEntry> {
    let none = BlockOptions::NONE;
    vec![
        nvm::read(2, RANGE, 0x1000, none),
        nvm::write(2, RANGE, 0x1000, none),
        nvm::compare(2, RANGE, 0x1000, none),
        nvm::write_zeroes(2, RANGE, none),
        nvm::verify(2, RANGE, none),
        nvm::deallocate(2, list(32)),
        nvm::copy(2, 7, list(64), none),
    ]
}

fn set(entry: &SubmissionEntry, bit: u32) -> SubmissionEntry {
    SubmissionEntry { cdw12: U32::new(entry.cdw12.get() | 1 << bit), ..*entry }
}

#[test]
fn every_command_decodes_to_its_operation() {
    let expected = |fua| {
        let space = space(BlockFormat::B512);
        [
            (BlockOperation::Read { range: HERE, fua }, DataNeed::ToHost(4_096)),
            (BlockOperation::Write { start: Lba(7), fua }, DataNeed::FromHost(4_096)),
            (BlockOperation::Compare { range: HERE, fua }, DataNeed::FromHost(4_096)),
            (BlockOperation::WriteZeroes { range: HERE, fua }, DataNeed::None),
            (BlockOperation::Verify { range: HERE, fua }, DataNeed::None),
            (
                BlockOperation::DatasetManagement { purpose: DatasetUse::Deallocate, space },
                DataNeed::FromHost(32),
            ),
            (BlockOperation::Copy { destination: Lba(7), fua, space }, DataNeed::FromHost(64)),
        ]
    };
    for (entry, (meant, need)) in valid().iter().zip(expected(Fua::No)) {
        assert_eq!(operation(entry), Ok(meant));
        assert_eq!(command(entry, BlockFormat::B512).unwrap().data(), need);
    }
    for (entry, (meant, _)) in valid().iter().zip(expected(Fua::Yes)) {
        if entry.opcode != NvmOpcode::DatasetManagement.number() {
            assert_eq!(operation(&set(entry, 30)), Ok(meant), "force unit access");
        }
    }
    let read = nvm::read(2, RANGE, 0, BlockOptions::NONE);
    assert_eq!(command(&read, BlockFormat::B4096).unwrap().data(), DataNeed::ToHost(32_768));
    let flush = SubmissionEntry { opcode: 0, ..read };
    assert_eq!(command(&flush, BlockFormat::B512).unwrap().operation, IoOperation::Flush);
}

#[test]
fn opcodes_are_those_of_the_namespace_kind() {
    for opcode in 0..=u8::MAX {
        let entry = SubmissionEntry { opcode, ..nvm::read(2, RANGE, 0, BlockOptions::NONE) };
        let taken = command(&entry, BlockFormat::B512);
        assert_eq!(taken.is_ok(), NvmOpcode::from_number(opcode).is_some(), "{opcode:02x}h");
        if taken.is_err() {
            assert_eq!(taken, Err(Status::INVALID_OPCODE));
        }
    }
    let exist = kv::exist(2, kv::InlineKey::new(b"key").unwrap());
    assert_eq!(command(&exist, BlockFormat::B512), Err(Status::INVALID_OPCODE), "a key on blocks");
    let elsewhere = nvm::read(3, RANGE, 0, BlockOptions::NONE);
    assert_eq!(command(&elsewhere, BlockFormat::B512), Err(Status::INVALID_FIELD), "not active");
    let broadcast = nvm::read(u32::MAX, RANGE, 0, BlockOptions::NONE);
    assert_eq!(command(&broadcast, BlockFormat::B512), Err(Status::INVALID_NAMESPACE));
}

#[test]
fn blocks_after_the_end_are_out_of_range() {
    for entry in &valid()[..5] {
        let at = |start: u64, blocks: u32| {
            let [low, high]: [U32; 2] = zerocopy::transmute!(U64::new(start));
            let cdw12 = U32::new(blocks - 1);
            operation(&SubmissionEntry { cdw10: low, cdw11: high, cdw12, ..*entry })
        };
        assert!(at(BLOCKS - 1, 1).is_ok());
        assert!(at(BLOCKS - 32_768, 32_768).is_ok());
        for (start, blocks) in
            [(BLOCKS, 1), (BLOCKS - 1, 2), (BLOCKS - 100, 101), (u64::MAX, 1), (u64::MAX, 65_536)]
        {
            assert_eq!(at(start, blocks), Err(Status::LBA_OUT_OF_RANGE), "{entry:?} at {start}");
        }
    }
    let to = |start| operation(&nvm::copy(2, start, list(32), BlockOptions::NONE));
    assert!(to(BLOCKS - 1).is_ok());
    assert_eq!(to(BLOCKS), Err(Status::LBA_OUT_OF_RANGE));
    assert_eq!(to(u64::MAX), Err(Status::LBA_OUT_OF_RANGE));
}

#[test]
fn transfer_above_the_limit_is_an_invalid_field() {
    let blocks = |blocks| BlockRange { start: 0, blocks };
    for transfer in [nvm::read, nvm::write, nvm::compare] {
        for (format, max) in [(BlockFormat::B512, 32_768), (BlockFormat::B4096, 4_096)] {
            let decoded = |count| command(&transfer(2, blocks(count), 0, BlockOptions::NONE), format);
            assert_eq!(decoded(max).unwrap().data().bytes(), TRANSFER_BYTES_MAX);
            assert_eq!(decoded(max + 1), Err(Status::INVALID_FIELD));
            assert_eq!(decoded(65_536), Err(Status::INVALID_FIELD));
        }
    }
    // These transfer no data.
    for idle in [nvm::write_zeroes, nvm::verify] {
        assert!(command(&idle(2, blocks(65_536), BlockOptions::NONE), BlockFormat::B4096).is_ok());
    }
}

#[test]
fn protection_information_is_refused_in_commands_that_can_have_it() {
    for entry in valid() {
        let has_none = entry.opcode == NvmOpcode::DatasetManagement.number();
        for bit in [24, 26, 27, 28, 29] {
            let refused = (!has_none).then_some(Status::INVALID_FIELD);
            assert_eq!(operation(&set(&entry, bit)).err(), refused, "{entry:?} bit {bit}");
        }
        // Tags without a request to check them, the metadata pointer and reserved dwords are ignored.
        let noise = U32::new(0x1234_5678);
        let mut tags = SubmissionEntry { cdw2: noise, cdw3: noise, cdw14: noise, cdw15: noise, ..entry };
        tags.cdw13 = U32::new(0xFF);
        tags.metadata_pointer = U64::new(0xDEAD_BEEF);
        assert_eq!(operation(&tags), operation(&entry));
    }
    let copy = nvm::copy(2, 0, list(32), BlockOptions::NONE);
    for bit in [12, 13, 14, 15, 25] {
        assert_eq!(operation(&set(&copy, bit)), Err(Status::INVALID_FIELD));
    }
}

#[test]
fn limited_retry_and_deallocate_bits_are_ignored() {
    for entry in &valid()[..5] {
        assert_eq!(operation(&set(entry, 31)), operation(entry));
    }
    let zeroes = nvm::write_zeroes(2, RANGE, BlockOptions::NONE);
    assert_eq!(operation(&set(&zeroes, 25)), operation(&zeroes));
}

#[test]
fn directives_are_refused_on_writes() {
    for entry in [nvm::write(2, RANGE, 0, BlockOptions::NONE), nvm::copy(2, 0, list(32), BlockOptions::NONE)]
    {
        for bit in 20..24 {
            assert_eq!(operation(&set(&entry, bit)), Err(Status::INVALID_FIELD));
        }
    }
}

#[test]
fn copy_accepts_one_descriptor_format_and_a_limited_number_of_ranges() {
    let copy = nvm::copy(2, 0, list(32), BlockOptions::NONE);
    for bit in 8..12 {
        assert_eq!(operation(&set(&copy, bit)), Err(Status::INVALID_FIELD));
    }
    let ranges = |count: u32| operation(&nvm::copy(2, 0, list(count * 32), BlockOptions::NONE));
    assert!(ranges(1).is_ok());
    assert!(ranges(128).is_ok());
    assert_eq!(ranges(129), Err(Status::COMMAND_SIZE_LIMIT));
    assert_eq!(ranges(256), Err(Status::COMMAND_SIZE_LIMIT));
}

#[test]
fn dataset_management_without_deallocate_is_a_hint() {
    let entry = nvm::deallocate(2, list(16 * 256));
    for attributes in 0..8 {
        let cdw11 = U32::new(attributes);
        let command = command(&SubmissionEntry { cdw11, ..entry }, BlockFormat::B512).unwrap();
        let IoOperation::Block(BlockOperation::DatasetManagement { purpose: used, .. }) = command.operation
        else {
            panic!("not a dataset management command");
        };
        assert_eq!(command.data(), DataNeed::FromHost(256 * 16));
        assert_eq!(used == DatasetUse::Deallocate, attributes & 4 != 0);
    }
}
