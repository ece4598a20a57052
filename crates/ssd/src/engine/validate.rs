//! Refuses commands at submission that can never work, regardless of the stored data.
//!
//! Input: a command. Output: nothing, or the status of the limit that it exceeds. Invariant: no length or address of an
//! accepted command overflows; checks that depend on stored data are made when the command runs.

use super::SsdDevice;
use crate::command::{BatchWrite, Lba, LbaRange, NamespaceId, SsdCommand, ValueSink, ValueSource};
use crate::limits::{
    BATCH_BYTES_MAX, BATCH_WRITES_MAX, KEY_BYTES_MAX, LBA_RANGES_MAX, NAMESPACE_BLOCKS_MAX, NAMESPACES,
    TRANSFER_BYTES_MAX, VALUE_BYTES_MAX,
};
use crate::log::record::HEADER_BYTES;
use crate::media::{Media, PAGE_DATA_BYTES};
use crate::namespace::BlockFormat;
use headwater_nvme::spec::status::Status;

impl<M: Media> SsdDevice<M> {
    /// Checks the command against the limits, and returns the status of the one that it exceeds.
    pub(super) fn check_limits(&self, namespace: NamespaceId, command: &SsdCommand) -> Result<(), Status> {
        if namespace.0 == 0 || namespace.index() >= NAMESPACES {
            return Err(Status::INVALID_NAMESPACE);
        }
        let value_max = self.value_bytes_max();
        match command {
            SsdCommand::Store { key, value, .. } => {
                key_fits(key)?;
                if value.len() > value_max { Err(Status::INVALID_VALUE_SIZE) } else { Ok(()) }
            }
            SsdCommand::Retrieve { key, .. }
            | SsdCommand::Exist { key, .. }
            | SsdCommand::Delete { key, .. } => key_fits(key),
            SsdCommand::Batch { writes } => check_batch(writes, value_max),
            SsdCommand::List { .. }
            | SsdCommand::Flush
            | SsdCommand::Fence { .. }
            | SsdCommand::Clear
            | SsdCommand::Namespace(_) => Ok(()),
            _ => match self.ftl.namespace_table().format(namespace) {
                Some(format) => self.check_blocks(format, command),
                None => Err(Status::INVALID_NAMESPACE),
            },
        }
    }

    /// Returns the maximum length of a value. A record is built whole in device DRAM before its pages are written, so
    /// DRAM limits it too.
    fn value_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX.min(self.ftl.page_cache().frames_max() / 4 * PAGE_DATA_BYTES)
    }

    /// Returns the maximum of bytes that one block command may transfer.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> usize {
        (TRANSFER_BYTES_MAX as usize).min(self.value_bytes_max())
    }

    fn check_blocks(&self, format: BlockFormat, command: &SsdCommand) -> Result<(), Status> {
        let inside = |range: &LbaRange| match range.start.0.checked_add(u64::from(range.blocks)) {
            Some(end) if end <= NAMESPACE_BLOCKS_MAX => Ok(()),
            _ => Err(Status::LBA_OUT_OF_RANGE),
        };
        let blocks_max = self.transfer_bytes_max() >> format.shift();
        let moves = |start: Lba, blocks: usize| {
            if blocks == 0 || blocks > blocks_max {
                return Err(Status::INVALID_FIELD);
            }
            inside(&LbaRange { start, blocks: u32::try_from(blocks).unwrap_or(u32::MAX) })
        };
        let brings = |start: Lba, data: &ValueSource| {
            if !data.len().is_multiple_of(format.bytes()) {
                return Err(Status::INVALID_FIELD);
            }
            moves(start, data.len() >> format.shift())
        };
        match command {
            SsdCommand::Read { range, sink } => {
                let blocks = range.blocks as usize;
                moves(range.start, blocks)?;
                match sink {
                    ValueSink::Client(segments) if segments.bytes() < blocks << format.shift() => {
                        Err(Status::INVALID_FIELD)
                    }
                    _ => Ok(()),
                }
            }
            SsdCommand::Write { start, data, .. } | SsdCommand::Compare { start, data } => {
                brings(*start, data)
            }
            SsdCommand::Verify { range } => inside(range),
            SsdCommand::Deallocate { ranges, .. } if ranges.len() > LBA_RANGES_MAX => {
                Err(Status::INVALID_FIELD)
            }
            SsdCommand::Deallocate { ranges, .. } => ranges.iter().try_for_each(inside),
            SsdCommand::Copy { sources, destination, .. } => {
                let blocks = sources.iter().map(|range| u64::from(range.blocks)).sum::<u64>();
                let blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
                if sources.len() > LBA_RANGES_MAX || blocks > blocks_max {
                    return Err(Status::COMMAND_SIZE_LIMIT);
                }
                sources.iter().try_for_each(inside)?;
                moves(*destination, blocks)
            }
            _ => Ok(()),
        }
    }
}

fn key_fits(key: &[u8]) -> Result<(), Status> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX { Err(Status::INVALID_KEY_SIZE) } else { Ok(()) }
}

/// Checks that a batch is inside the limits and names no key twice.
fn check_batch(writes: &[BatchWrite], value_max: usize) -> Result<(), Status> {
    if writes.len() > BATCH_WRITES_MAX {
        return Err(Status::INVALID_FIELD);
    }
    let mut keys: Vec<&[u8]> = Vec::with_capacity(writes.len());
    let mut bytes = 0;
    for write in writes {
        key_fits(write.key())?;
        let value_bytes = match write {
            BatchWrite::Store { value, .. } => value.len(),
            BatchWrite::Delete { .. } => 0,
        };
        bytes += HEADER_BYTES + write.key().len() + value_bytes;
        keys.push(write.key());
    }
    if bytes > BATCH_BYTES_MAX.min(value_max + value_max / 2) {
        return Err(Status::INVALID_VALUE_SIZE);
    }
    keys.sort_unstable();
    if keys.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Status::COMMAND_SEQUENCE_ERROR);
    }
    Ok(())
}
