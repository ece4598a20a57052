//! A PCI function that holds a controller, as its driver uses it.
//!
//! Input: calls of the driver. Output: registers, and two means to stop a function that does not react to its registers
//! any more: bus mastering and function reset. Invariant: after `Ok` of either the function accesses no memory.

use headwater_host::pinning::vfio::{AssignedDevice, BusMastering};
use headwater_host::registers::{DeviceRegisters, MappedRegisters};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// EOPNOTSUPP of Linux.
const NOT_SUPPORTED: i32 = 95;

/// A failed operation on a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operation on the PCI function failed (errno {errno})")]
pub struct PciFunctionError {
    /// The kernel's errno.
    pub errno: i32,
}

/// The file that holds BAR0, for a process that maps part of it.
#[derive(Debug)]
pub struct RegistersFile {
    /// The file.
    pub file: OwnedFd,
    /// Offset of the first byte of BAR0.
    pub offset: u64,
}

/// A PCI function with a controller.
pub trait PciFunction {
    /// The access to its registers.
    type Registers: DeviceRegisters + Clone;

    /// Returns the registers of BAR0.
    fn registers(&self) -> &Self::Registers;

    /// Returns BAR0 for another process. A process that holds the file can access every register, and more.
    ///
    /// # Errors
    /// [`PciFunctionError`]; some functions have no file to pass on.
    fn registers_file(&self) -> Result<RegistersFile, PciFunctionError> {
        Err(PciFunctionError { errno: NOT_SUPPORTED })
    }

    /// Enables or disables bus mastering: reads and writes of memory by the function.
    ///
    /// # Errors
    /// [`PciFunctionError`]; then the state of bus mastering is unknown.
    fn set_mastering(&mut self, mastering: BusMastering) -> Result<(), PciFunctionError>;

    /// Resets the whole function; bus mastering is off afterwards.
    ///
    /// # Errors
    /// [`PciFunctionError`] if the reset is not supported or failed.
    fn reset(&mut self) -> Result<(), PciFunctionError>;
}

/// A function opened through VFIO.
#[derive(Clone, Debug)]
pub struct VfioFunction {
    device: Arc<AssignedDevice>,
    registers: MappedRegisters,
}

impl VfioFunction {
    /// Maps BAR0 of a device of a container.
    ///
    /// # Errors
    /// BAR0 cannot be mapped.
    pub fn new(device: Arc<AssignedDevice>) -> std::io::Result<Self> {
        let registers = device.map_bar0()?;
        Ok(Self { device, registers })
    }

    /// Returns the VFIO device.
    #[must_use]
    pub fn device(&self) -> &AssignedDevice {
        &self.device
    }
}

impl PciFunction for VfioFunction {
    type Registers = MappedRegisters;

    fn registers(&self) -> &MappedRegisters {
        &self.registers
    }

    fn registers_file(&self) -> Result<RegistersFile, PciFunctionError> {
        let (file, offset) = self.device.bar0_file().map_err(failed)?;
        Ok(RegistersFile { file, offset })
    }

    fn set_mastering(&mut self, mastering: BusMastering) -> Result<(), PciFunctionError> {
        self.device.set_bus_mastering(mastering).map_err(failed)
    }

    fn reset(&mut self) -> Result<(), PciFunctionError> {
        self.device.reset().map_err(failed)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "map_err passes the error by value")]
fn failed(error: std::io::Error) -> PciFunctionError {
    PciFunctionError { errno: error.raw_os_error().unwrap_or(0) }
}
