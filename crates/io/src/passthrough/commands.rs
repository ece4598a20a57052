//! Commands to a namespace that the kernel drives: each is one step.
//!
//! Input: commands. Output: NVMe commands for a ring, and the device's status. Invariant: a command is sent exactly as
//! it was validated, with its list of ranges in memory that only this queue can write.

use super::device_file::DeviceFile;
use super::validation::{ValidatedCommand, validate};
use crate::backend::IoLimits;
use crate::buffer::Buffer;
use crate::command::{Command, TransferData};
use crate::uring::queue::{CommandSteps, StepOutcome, UnsentReason};
use crate::uring::translate::{CommandKind, extents_of, status_of};
use headwater_dma::pool::Pool;
use headwater_host::device_ring::{MemoryExtents, NvmeWork, RingCompletion};
use headwater_nvme::spec::opcode::DataTransfer;
use headwater_nvme::spec::status::Status;
use std::sync::Arc;

/// Alignment of data pointers, in bytes.
const MEMORY_ALIGN: usize = 4;

/// The namespace, and memory for lists of ranges.
#[derive(Debug)]
pub(super) struct PassthroughCommands {
    pub(super) file: Arc<DeviceFile>,
    pub(super) pool: Pool,
}

impl PassthroughCommands {
    /// Returns the data extents of a validated command.
    #[inline]
    fn extents(&self, fit: &ValidatedCommand, data: &TransferData) -> Result<MemoryExtents, Status> {
        let Some(ranges) = &fit.ranges else {
            return Ok(if data.bytes() == 0 { MemoryExtents::None } else { extents_of(data, 0) });
        };
        let bytes = ranges.concat();
        let list =
            self.pool.buffer(bytes.len()).map(Buffer::from_pool).map_err(|_| Status::INTERNAL_ERROR)?;
        list.write(0, &bytes).map_err(|_| Status::INTERNAL_ERROR)?;
        Ok(extents_of(&TransferData::ToDevice(list), 0))
    }
}

impl CommandSteps for PassthroughCommands {
    type Work = NvmeWork;
    /// The kind of the command.
    type CommandProgress = CommandKind;
    const CANCELS: bool = false;

    #[inline]
    fn limits(&self) -> IoLimits {
        IoLimits {
            transfer_bytes_max: self.file.transfer_bytes_max,
            segments_max: self.file.segments_max,
            memory_align: MEMORY_ALIGN,
        }
    }

    #[inline]
    fn start(
        &self,
        command: &Command,
        send: impl FnOnce(NvmeWork) -> Result<(), UnsentReason>,
    ) -> Result<CommandKind, UnsentReason> {
        self.limits().check(&command.data)?;
        let fit = validate(command, &self.file.facts, self.file.window)?;
        send(NvmeWork { command: fit.command, data: self.extents(&fit, &command.data)? })?;
        let reads = DataTransfer::of_opcode(command.entry.opcode) == DataTransfer::ControllerToHost;
        Ok(if reads { CommandKind::Read } else { CommandKind::Change })
    }

    #[inline]
    fn next(
        &mut self,
        kind: &mut CommandKind,
        _: &TransferData,
        done: &RingCompletion,
    ) -> StepOutcome<NvmeWork> {
        let [a, b, c, d, ..] = done.value.to_le_bytes();
        let status = done.result.map_or_else(|errno| status_of(errno, *kind), decoded);
        StepOutcome::Complete(u32::from_le_bytes([a, b, c, d]), status)
    }
}

/// Decodes the status field as the driver returns it: without the phase bit.
#[inline]
fn decoded(field: u32) -> Status {
    let [code, kind, ..] = field.to_le_bytes();
    Status { code, code_type: kind & 0b111, do_not_retry: kind & 0x40 != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_status_field_decodes_to_the_devices_status() {
        assert_eq!(decoded(0), Status::SUCCESS);
        assert_eq!(decoded(0x4080), Status::LBA_OUT_OF_RANGE);
        assert_eq!(decoded(0x0285), Status::COMPARE_FAILURE);
        assert_eq!(decoded(0x4087), Status::KEY_DOES_NOT_EXIST);
        assert_eq!(decoded(0x1 << 13 | 0x0006), Status::INTERNAL_ERROR, "the More bit is not decoded");
    }
}
