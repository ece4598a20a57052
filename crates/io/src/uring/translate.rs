//! The translation between NVMe and the kernel: a command's data to memory extents, and error numbers to statuses.
//!
//! Input: [`TransferData`], error numbers. Output: extents, [`Status`].

use crate::buffer::Buffer;
use crate::command::TransferData;
use headwater_host::device_ring::{MemoryExtent, MemoryExtents};
use headwater_nvme::spec::nvm::DatasetRange;
use headwater_nvme::spec::status::Status;
use headwater_nvme::spec::transfer::CommandTransfer;
use rustix::io::Errno;
use zerocopy::FromBytes as _;

/// Returns the memory of a command without its first `skip` bytes, which are already transferred.
#[inline]
pub(crate) fn extents_of(data: &TransferData, skip: usize) -> MemoryExtents {
    match data {
        TransferData::None => MemoryExtents::None,
        TransferData::ToDevice(buffer) | TransferData::FromDevice(buffer) => {
            MemoryExtents::One(extent_of(buffer, skip))
        }
        TransferData::Gather(buffers) | TransferData::Scatter(buffers) => {
            let mut skip = skip;
            let rest = buffers.iter().filter_map(|buffer| {
                let here = skip.min(buffer.bytes());
                skip -= here;
                (here < buffer.bytes()).then(|| extent_of(buffer, here))
            });
            MemoryExtents::Several(rest.collect())
        }
    }
}

#[inline]
fn extent_of(buffer: &Buffer, skip: usize) -> MemoryExtent {
    let (memory, offset) = buffer.memory();
    let skip = skip.min(buffer.bytes());
    MemoryExtent {
        memory: memory.clone(),
        offset: offset + skip,
        bytes: buffer.bytes() - skip,
        slot: buffer.registration(),
    }
}

/// Returns the ranges of the list that a Dataset Management transfers: first block and count.
pub(crate) fn dataset_ranges(
    transfer: &CommandTransfer,
    data: &TransferData,
) -> Result<Vec<(u64, u64)>, Status> {
    let TransferData::ToDevice(list) = data else {
        return Err(Status::DATA_SGL_LENGTH_INVALID);
    };
    let bytes = usize::try_from(transfer.bytes).map_err(|_| Status::DATA_SGL_LENGTH_INVALID)?;
    let mut bytes = vec![0; bytes];
    list.read(0, &mut bytes).map_err(|_| Status::DATA_SGL_LENGTH_INVALID)?;
    let ranges = <[DatasetRange]>::ref_from_bytes(&bytes).map_err(|_| Status::INTERNAL_ERROR)?;
    Ok(ranges.iter().map(|range| (range.start.get(), range.blocks.get().into())).collect())
}

/// The kind of a failed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandKind {
    Read,
    Change,
}

/// Returns the status for an error number of the kernel.
#[must_use]
pub(crate) fn status_of(errno: i32, way: CommandKind) -> Status {
    match (Errno::from_raw_os_error(errno), way) {
        (Errno::IO, CommandKind::Read) | (Errno::NODATA | Errno::BADMSG | Errno::ILSEQ, _) => {
            Status::UNRECOVERED_READ_ERROR
        }
        (Errno::NOSPC | Errno::DQUOT | Errno::FBIG, _) => Status::CAPACITY_EXCEEDED,
        (Errno::INVAL, _) => Status::INVALID_FIELD,
        (Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY, _) => Status::INVALID_OPCODE,
        (Errno::CANCELED | Errno::INTR, _) => Status::ABORT_REQUESTED,
        (Errno::ROFS | Errno::BADF | Errno::PERM | Errno::ACCESS, CommandKind::Change) => Status::READ_ONLY,
        (Errno::BADF | Errno::PERM | Errno::ACCESS, CommandKind::Read) => Status::ACCESS_DENIED,
        (Errno::FAULT, _) => Status::DATA_TRANSFER_ERROR,
        _ => Status::INTERNAL_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_dma::iova::Iova;
    use headwater_host::shared_memory::SharedMemory;

    #[test]
    fn transferred_bytes_are_skipped_across_buffer_boundaries() {
        let memory = Buffer::from_region(SharedMemory::anonymous(4_096).unwrap(), Iova(0));
        let parts =
            [(0, 10), (100, 0), (200, 20), (300, 5)].map(|(at, bytes)| memory.slice(at, bytes).unwrap());
        let data = TransferData::Scatter(parts.to_vec());
        for skip in 0..=35 {
            let left = extents_of(&data, skip);
            let bytes: usize = left.all().iter().map(|extent| extent.bytes).sum();
            assert_eq!(bytes, 35 - skip);
            if let Some(first) = left.all().first() {
                let wanted = if skip < 10 {
                    skip
                } else if skip < 30 {
                    190 + skip
                } else {
                    270 + skip
                };
                assert_eq!(first.offset, wanted);
            }
        }
        assert_eq!(extents_of(&TransferData::ToDevice(parts[2].clone()), 7).all()[0].offset, 207);
    }

    #[test]
    fn error_numbers_map_to_the_equivalent_status() {
        let status = |errno: Errno, way| status_of(errno.raw_os_error(), way);
        assert_eq!(status(Errno::IO, CommandKind::Read), Status::UNRECOVERED_READ_ERROR);
        assert_eq!(status(Errno::IO, CommandKind::Change), Status::INTERNAL_ERROR);
        assert_eq!(status(Errno::NOSPC, CommandKind::Change), Status::CAPACITY_EXCEEDED);
        assert_eq!(status(Errno::CANCELED, CommandKind::Read), Status::ABORT_REQUESTED);
        assert_eq!(status(Errno::BADF, CommandKind::Change), Status::READ_ONLY);
    }
}
