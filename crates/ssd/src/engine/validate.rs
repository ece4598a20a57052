//! Refuses commands at submission that can never work, regardless of the stored data.
//!
//! Input: a command. Output: nothing, or the status of the limit that it exceeds. Invariant: no length or address of an
//! accepted command overflows; checks that depend on stored data are made when the command runs.

use super::SsdDevice;
use super::batch_keys::{BatchChecks, BatchLimits, check_batch, key_fits};
use super::batch_namespaces::check_runs;
use crate::command::{BatchWrite, Lba, LbaRange, NamespaceId, SsdCommand, ValueSink, ValueSource};
use crate::limits::{
    LBA_RANGES_MAX, LOG_VALUE_BYTES_MAX, NAMESPACE_BLOCKS_MAX, NAMESPACES, TRANSFER_BYTES_MAX,
    VALUE_BYTES_MAX, batch_bytes_max,
};
use crate::log::record::HEADER_BYTES;
use crate::media::{Media, PAGE_DATA_BYTES};
use crate::namespace::BlockFormat;
use headwater_host::width::{narrow, to_usize};
use headwater_nvme::spec::status::Status;

impl<M: Media> SsdDevice<M> {
    /// Checks the command against the limits, and returns the status of the one that it exceeds.
    pub(super) fn check_limits(&self, namespace: NamespaceId, command: &SsdCommand) -> Result<(), Status> {
        if namespace.0 == 0 || namespace.index() >= NAMESPACES {
            return Err(Status::INVALID_NAMESPACE);
        }
        let value_max = self.log_value_bytes_max();
        match command {
            SsdCommand::Store { key, value, .. } => {
                key_fits(key)?;
                let in_extents = self.ftl.extents_for(value.len()) > 0;
                let most = if in_extents { VALUE_BYTES_MAX } else { value_max };
                match value {
                    _ if value.len() > most => Err(Status::INVALID_VALUE_SIZE),
                    ValueSource::Received { receipt, .. } if !self.ftl.is_received(receipt, value.len()) => {
                        Err(Status::INVALID_FIELD)
                    }
                    _ => Ok(()),
                }
            }
            SsdCommand::Retrieve { key, .. }
            | SsdCommand::OpenValue { key, .. }
            | SsdCommand::Exist { key, .. }
            | SsdCommand::Delete { key, .. } => key_fits(key),
            SsdCommand::Batch { writes } => check_batch(writes, self.batch_limits()),
            SsdCommand::BatchAcross { writes, runs } => {
                check_runs(runs, writes.len(), namespace)?;
                check_batch(writes, self.batch_limits())
            }
            SsdCommand::ReadPart { .. }
            | SsdCommand::List { .. }
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

    /// Returns the maximum length of a value that lies in the log as a whole. Its record is built whole in device DRAM before
    /// its pages are written, so DRAM limits it too.
    pub(super) fn log_value_bytes_max(&self) -> usize {
        LOG_VALUE_BYTES_MAX.min(self.ftl.page_cache().frames_max() / 4 * PAGE_DATA_BYTES)
    }

    /// Returns the maximum of bytes that one block command may transfer.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> usize {
        (TRANSFER_BYTES_MAX as usize).min(self.log_value_bytes_max())
    }

    /// Returns the maximum of [`bytes`](BatchWrite::bytes) of all writes of a batch.
    #[must_use]
    pub fn batch_bytes_max(&self) -> usize {
        batch_bytes_max(self.ftl().page_cache().frames_max() * PAGE_DATA_BYTES)
    }

    /// Returns the limits of a batch.
    pub(super) fn batch_limits(&self) -> BatchLimits {
        BatchLimits { value_max: self.log_value_bytes_max(), bytes_max: self.batch_bytes_max() }
    }

    /// Returns what the check of a part of a batch depends on.
    pub(super) fn batch_checks(&self) -> BatchChecks {
        let (hasher, part_writes) = (*self.ftl.hasher(), self.ftl.part_writes());
        BatchChecks { hasher, part_writes, limits: self.batch_limits() }
    }

    /// Checks a command on blocks against the limits of its namespace.
    pub(super) fn check_blocks(&self, format: BlockFormat, command: &SsdCommand) -> Result<(), Status> {
        let inside = |range: &LbaRange| match range.start.0.checked_add(u64::from(range.blocks)) {
            Some(end) if end <= NAMESPACE_BLOCKS_MAX => Ok(()),
            _ => Err(Status::LBA_OUT_OF_RANGE),
        };
        let blocks_max = self.transfer_bytes_max() >> format.shift();
        let moves = |start: Lba, blocks: usize| {
            if blocks == 0 || blocks > blocks_max {
                return Err(Status::INVALID_FIELD);
            }
            inside(&LbaRange { start, blocks: narrow(blocks) })
        };
        let brings = |start: Lba, data: &ValueSource| {
            if !data.len().is_multiple_of(format.bytes()) || matches!(data, ValueSource::Received { .. }) {
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
                let blocks = to_usize(sources.iter().map(|range| u64::from(range.blocks)).sum());
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

impl BatchWrite {
    /// Returns the bytes that count against the limit of a batch: those of the key, the value and the record's header.
    #[must_use]
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.key().len() + to_usize(self.value_bytes())
    }
}
