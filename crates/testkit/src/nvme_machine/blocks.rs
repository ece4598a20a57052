//! The execution of block commands by the machine's controller.
//!
//! Input: entries, blocks, memory that the machine reaches. Output: changed blocks or memory, or a status. Invariant: a
//! range outside the namespace changes nothing.

use super::NvmeMachine;
use headwater_nvme::data_pointer::HostTransfer;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::DatasetRange;
use headwater_nvme::spec::opcode::NvmOpcode;
use headwater_nvme::spec::status::Status;
use std::ops::Range;
use zerocopy::FromBytes as _;

/// Bytes of a descriptor of Dataset Management.
const RANGE_BYTES: u32 = 16;

impl NvmeMachine {
    pub(crate) fn execute_block(&mut self, entry: &SubmissionEntry) -> Result<(), Status> {
        let id = entry.namespace.get();
        if self.faults.failing_namespaces.contains(&id) {
            return Err(Status::UNRECOVERED_READ_ERROR);
        }
        let opcode = NvmOpcode::from_number(entry.opcode).ok_or(Status::INVALID_OPCODE)?;
        let here = |machine: &Self| machine.bytes_of(id, entry.nvm_start(), entry.nvm_blocks());
        match opcode {
            NvmOpcode::Flush => self.bytes_of(id, 0, 0).map(drop),
            NvmOpcode::Write => {
                let here = here(self)?;
                let sent = self.data(entry, here.len())?;
                self.bytes_at(id, here)?.copy_from_slice(&sent);
                Ok(())
            }
            NvmOpcode::Read => {
                let mut rest = here(self)?;
                let count = u32::try_from(rest.len()).map_err(|_| Status::INVALID_FIELD)?;
                for run in self.ranges(entry, HostTransfer::ToHost(count))? {
                    let piece = rest.start..rest.start + run.bytes as usize;
                    self.write_memory(run.start.0, &self.blocks[&id][piece.clone()])?;
                    rest.start = piece.end;
                }
                Ok(())
            }
            NvmOpcode::Compare => {
                let here = here(self)?;
                let sent = self.data(entry, here.len())?;
                if *self.bytes_at(id, here)? == *sent { Ok(()) } else { Err(Status::COMPARE_FAILURE) }
            }
            NvmOpcode::WriteZeroes => {
                let here = here(self)?;
                self.bytes_at(id, here)?.fill(0);
                Ok(())
            }
            NvmOpcode::DatasetManagement => {
                let list = u32::from(entry.nvm_dataset_ranges()) * RANGE_BYTES;
                let list = self.data(entry, list as usize)?;
                let found = list.chunks(RANGE_BYTES as usize).map(|bytes| {
                    let range = DatasetRange::read_from_bytes(bytes).map_err(|_| Status::INTERNAL_ERROR)?;
                    self.bytes_of(id, range.start.get(), range.blocks.get())
                });
                let found = found.collect::<Result<Vec<_>, _>>()?;
                for range in found.into_iter().filter(|_| entry.nvm_dataset_deallocate()) {
                    self.bytes_at(id, range)?.fill(0);
                }
                Ok(())
            }
            NvmOpcode::Verify | NvmOpcode::Copy => Err(Status::INVALID_OPCODE),
        }
    }

    /// Returns the bytes of a range of blocks.
    fn bytes_of(&self, id: u32, start: u64, blocks: u32) -> Result<Range<usize>, Status> {
        let block = match id {
            2 => 4_096,
            3 => 512,
            _ => return Err(Status::INVALID_NAMESPACE),
        };
        let start = usize::try_from(start).ok().and_then(|start| start.checked_mul(block));
        let end = start.and_then(|start| start.checked_add(blocks as usize * block));
        match (start, end) {
            (Some(start), Some(end)) if end <= self.blocks[&id].len() => Ok(start..end),
            _ => Err(Status::LBA_OUT_OF_RANGE),
        }
    }

    fn bytes_at(&mut self, id: u32, range: Range<usize>) -> Result<&mut [u8], Status> {
        let all = self.blocks.get_mut(&id).ok_or(Status::INVALID_NAMESPACE)?;
        all.get_mut(range).ok_or(Status::LBA_OUT_OF_RANGE)
    }

    /// Reads the data that the host sends with a command.
    fn data(&self, entry: &SubmissionEntry, bytes: usize) -> Result<Vec<u8>, Status> {
        let count = u32::try_from(bytes).map_err(|_| Status::INVALID_FIELD)?;
        let mut data = vec![0; bytes];
        let mut at = 0;
        for run in self.ranges(entry, HostTransfer::FromHost(count))? {
            self.read_memory(run.start.0, &mut data[at..at + run.bytes as usize])?;
            at += run.bytes as usize;
        }
        Ok(data)
    }
}
