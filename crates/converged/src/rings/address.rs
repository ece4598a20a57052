//! From the addresses of a command to its bytes.
//!
//! In: an entry, its command, and the memory table of the client that sent it. Out: [`Data`], or the status that refuses
//! it. Invariant: every address is resolved whole before the command starts.
//!
//! # The data pointer of rings in this process
//! Their client memory has addresses of its own ([`dma::iova`](headwater_dma::iova)), in which every buffer is one run. So
//! PRP Entry 1 is the address of the first byte, of any alignment, and PRP Entry 2 is zero. SGLs are refused.

use crate::interpreter::{DataNeed, IoCommand, IoOperation};
use crate::request::Data;
use headwater_dma::iova::{ClientMemory, Iova, IovaRange, Segments};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;

/// Finds the bytes of a command.
#[inline]
pub(super) fn resolve(
    command: &IoCommand,
    entry: &SubmissionEntry,
    memory: &ClientMemory,
) -> Result<Data, Status> {
    if let IoOperation::Put { key, value } | IoOperation::Get { key, buffer: value } = command.operation {
        return Ok(Data::Keyed { key: segments(memory, key)?, value: segments(memory, value)? });
    }
    let bytes = match command.data() {
        DataNeed::None => return Ok(Data::None),
        DataNeed::FromHost(bytes) | DataNeed::ToHost(bytes) => bytes,
    };
    if entry.has_special_flags() || entry.prp2.get() != 0 {
        return Err(Status::INVALID_FIELD);
    }
    segments(memory, IovaRange { start: Iova(entry.prp1.get()), bytes }).map(Data::Client)
}

#[inline]
fn segments(memory: &ClientMemory, range: IovaRange) -> Result<Segments, Status> {
    memory.resolve(range.start, u64::from(range.bytes)).map_err(|_| Status::DATA_TRANSFER_ERROR)
}
