//! Translates the commands of block namespaces, with the range lists that Dataset Management and Copy have as data.
//!
//! Input: a decoded operation and its data. Output: a command of the device, whose ranges the namespace has. Invariant:
//! a list is copied out of client memory once and checked in the copy: later writes of the client have no effect.

use super::{RequestData, payload, sink};
use crate::command::{Fua, Lba, LbaRange, Sequence, SsdCommand, ValueSource};
use crate::limits::copy_blocks_max;
use crate::nvme::decoder::{BlockOperation, BlockSpace, DataNeed, DatasetUse};
use bytes::Bytes;
use headwater_nvme::spec::nvm::{CopyRange, DatasetRange};
use headwater_nvme::spec::status::Status;
use zerocopy::FromBytes;

/// Returns the command, and whether its data must be durable before it is read (Force Unit Access of reading commands).
#[inline]
pub(super) fn block_command(
    operation: BlockOperation,
    need: DataNeed,
    data: RequestData,
) -> Result<(SsdCommand, Fua), Status> {
    let write = |command| (command, Fua::No);
    Ok(match operation {
        BlockOperation::Read { range, fua } => (SsdCommand::Read { range, sink: sink(data, need)? }, fua),
        BlockOperation::Compare { range, fua } => {
            (SsdCommand::Compare { start: range.start, data: payload(data, need)? }, fua)
        }
        BlockOperation::Verify { range, fua } => (SsdCommand::Verify { range }, fua),
        BlockOperation::Write { start, fua } => {
            write(SsdCommand::Write { start, data: payload(data, need)?, fua })
        }
        BlockOperation::WriteZeroes { range, fua } => {
            write(SsdCommand::Deallocate { ranges: vec![range], fua })
        }
        BlockOperation::DatasetManagement { purpose: DatasetUse::Deallocate, space } => {
            let ranges = dataset_ranges(data, need, space)?;
            write(SsdCommand::Deallocate { ranges, fua: Fua::No })
        }
        BlockOperation::DatasetManagement { purpose: DatasetUse::Hint, .. } => {
            payload(data, need)?;
            // A fence up to sequence 0 has no effect and completes immediately.
            write(SsdCommand::Fence { up_to: Sequence(0) })
        }
        BlockOperation::Copy { destination, fua, space } => {
            let sources = copy_sources(data, need, space, destination)?;
            write(SsdCommand::Copy { sources, destination, fua })
        }
    })
}

/// Decodes the ranges that a Dataset Management command deallocates, without empty ones.
fn dataset_ranges(data: RequestData, need: DataNeed, space: BlockSpace) -> Result<Vec<LbaRange>, Status> {
    let list = range_list(data, need)?;
    let ranges = <[DatasetRange]>::ref_from_bytes(&list).map_err(|_| Status::INVALID_FIELD)?;
    ranges
        .iter()
        .filter(|range| range.blocks.get() > 0)
        .map(|range| space.check_range(range.start.get(), range.blocks.get()))
        .collect()
}

/// Decodes the source ranges of a Copy to `destination`.
fn copy_sources(
    data: RequestData,
    need: DataNeed,
    space: BlockSpace,
    destination: Lba,
) -> Result<Vec<LbaRange>, Status> {
    let list = range_list(data, need)?;
    let ranges = <[CopyRange]>::ref_from_bytes(&list).map_err(|_| Status::INVALID_FIELD)?;
    let mut sources = Vec::with_capacity(ranges.len());
    let mut blocks = 0;
    for range in ranges {
        let source = space.check_range(range.start.get(), u32::from(range.blocks0.get()) + 1)?;
        // One limit holds for each range and for their sum (MSSRL equals MCL), so the sum cannot overflow.
        blocks += source.blocks;
        if blocks > copy_blocks_max(space.format) {
            return Err(Status::COMMAND_SIZE_LIMIT);
        }
        sources.push(source);
    }
    space.check_range(destination.0, blocks)?;
    Ok(sources)
}

fn range_list(data: RequestData, need: DataNeed) -> Result<Bytes, Status> {
    match payload(data, need)? {
        ValueSource::Bytes(bytes) => Ok(bytes),
        // Only a store receives a value.
        ValueSource::Received { .. } => Err(Status::INVALID_FIELD),
        ValueSource::Client(segments) => {
            let mut bytes = vec![0; segments.bytes()];
            if segments.copy_in(0, &mut bytes) != bytes.len() {
                return Err(Status::DATA_TRANSFER_ERROR);
            }
            Ok(bytes.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::BlockFormat;
    use zerocopy::IntoBytes;
    use zerocopy::little_endian::{U16, U32, U64};

    const SPACE: BlockSpace = BlockSpace { blocks: 100_000, format: BlockFormat::B4096 };

    fn deallocated(ranges: &[(u64, u32)]) -> Result<Vec<LbaRange>, Status> {
        let list: Vec<DatasetRange> = ranges
            .iter()
            .map(|&(start, blocks)| DatasetRange {
                context: U32::new(0xFFFF_FFFF),
                blocks: U32::new(blocks),
                start: U64::new(start),
            })
            .collect();
        let used = DatasetUse::Deallocate;
        let need = DataNeed::FromHost(u32::try_from(ranges.len() * 16).unwrap());
        let operation = BlockOperation::DatasetManagement { purpose: used, space: SPACE };
        match block_command(operation, need, RequestData::Bytes(Bytes::copy_from_slice(list.as_bytes())))? {
            (SsdCommand::Deallocate { ranges, fua: Fua::No }, Fua::No) => Ok(ranges),
            other => panic!("a dataset management command became {other:?}"),
        }
    }

    fn copied(ranges: &[(u64, u16)], destination: u64) -> Result<Vec<LbaRange>, Status> {
        let list: Vec<CopyRange> = ranges
            .iter()
            .map(|&(start, blocks0)| CopyRange {
                start: U64::new(start),
                blocks0: U16::new(blocks0),
                ..CopyRange::default()
            })
            .collect();
        let need = DataNeed::FromHost(u32::try_from(ranges.len() * 32).unwrap());
        let destination = Lba(destination);
        let operation = BlockOperation::Copy { destination, fua: Fua::Yes, space: SPACE };
        match block_command(operation, need, RequestData::Bytes(Bytes::copy_from_slice(list.as_bytes())))? {
            (SsdCommand::Copy { sources, destination: to, fua: Fua::Yes }, Fua::No) => {
                assert_eq!(to, destination);
                Ok(sources)
            }
            other => panic!("a copy became {other:?}"),
        }
    }

    fn range(start: u64, blocks: u32) -> LbaRange {
        LbaRange { start: Lba(start), blocks }
    }

    #[test]
    fn deallocated_ranges_are_the_nonempty_ones_of_the_list() {
        let ranges = deallocated(&[(5, 10), (99_999, 1), (7, 0), (u64::MAX, 0), (0, 100_000)]).unwrap();
        assert_eq!(ranges, [range(5, 10), range(99_999, 1), range(0, 100_000)]);
        for outside in [(99_999, 2), (100_000, 1), (u64::MAX, 1), (u64::MAX, u32::MAX)] {
            assert_eq!(deallocated(&[(0, 1), outside]), Err(Status::LBA_OUT_OF_RANGE));
        }
    }

    #[test]
    fn copy_sources_are_counted_from_zero_and_kept_in_order() {
        let sources = copied(&[(9, 0), (2, 99), (9, 0)], 99_898).unwrap();
        assert_eq!(sources, [range(9, 1), range(2, 100), range(9, 1)]);
        for (sources, to) in [(&[(99_999, 1)][..], 0), (&[(u64::MAX, 0)], 0), (&[(9, 0), (2, 99)], 99_900)] {
            assert_eq!(copied(sources, to), Err(Status::LBA_OUT_OF_RANGE));
        }
    }

    #[test]
    fn copy_above_its_limits_is_refused() {
        // 16 MiB of 4 KiB blocks are 4,096 blocks, in one range or in all.
        assert_eq!(copied(&[(0, 4_095)], 50_000), Ok(vec![range(0, 4_096)]));
        assert!(copied(&[(0, 2_047), (0, 2_047)], 50_000).is_ok());
        for sources in [&[(0, 4_096)][..], &[(0, u16::MAX)], &[(0, 4_095), (9, 0)], &[(0, u16::MAX); 128]] {
            let result = copied(sources, 50_000);
            assert!(
                matches!(result, Err(Status::COMMAND_SIZE_LIMIT | Status::LBA_OUT_OF_RANGE)),
                "{result:?}"
            );
        }
        assert_eq!(copied(&[(0, 4_095), (9, 0)], 50_000), Err(Status::COMMAND_SIZE_LIMIT));
    }

    #[test]
    fn data_of_another_length_than_the_command_is_refused() {
        let block = DataNeed::FromHost(4_096);
        let operation = BlockOperation::Write { start: Lba(0), fua: Fua::No };
        for data in
            [RequestData::None, RequestData::Returned, RequestData::Bytes(Bytes::from_static(&[1; 4_095]))]
        {
            assert_eq!(block_command(operation, block, data).err(), Some(Status::DATA_SGL_LENGTH_INVALID));
        }
        let two = DataNeed::FromHost(2 * 16);
        let list = BlockOperation::DatasetManagement { purpose: DatasetUse::Hint, space: SPACE };
        for bytes in [0, 16, 33] {
            let data = RequestData::Bytes(vec![0; bytes].into());
            assert_eq!(block_command(list, two, data).err(), Some(Status::DATA_SGL_LENGTH_INVALID));
        }
        let block = DataNeed::ToHost(4_096);
        let read = BlockOperation::Read { range: range(0, 1), fua: Fua::No };
        assert_eq!(
            block_command(read, block, RequestData::None).err(),
            Some(Status::DATA_SGL_LENGTH_INVALID)
        );
        let returned = block_command(read, block, RequestData::Returned);
        assert!(matches!(returned, Ok((SsdCommand::Read { .. }, Fua::No))));
    }

    #[test]
    fn dataset_hints_have_no_effect() {
        let hint = BlockOperation::DatasetManagement { purpose: DatasetUse::Hint, space: SPACE };
        let list = RequestData::Bytes(vec![0xFF; 16].into());
        let (command, _) = block_command(hint, DataNeed::FromHost(16), list).unwrap();
        assert!(matches!(command, SsdCommand::Fence { up_to: Sequence(0) }));
    }
}
