//! A PCI function with a controller in it, as its driver needs it.
//!
//! In: wishes of the driver. Out: registers, and the two means that stop a function which does not follow its registers
//! any more: bus mastering and function reset. Invariant: after `Ok` of either the function touches no memory.

use headwater_host::pinning::vfio::{Device, Mastering};
use headwater_host::registers::{MappedRegisters, Registers};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// EOPNOTSUPP of Linux.
const NOT_SUPPORTED: i32 = 95;

/// The function could not be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the PCI function does not take it (error {errno})")]
pub struct FunctionError {
    /// The kernel's number.
    pub errno: i32,
}

/// Where BAR0 is, for a process that is to map some of it.
#[derive(Debug)]
pub struct RegistersFile {
    /// The file.
    pub file: OwnedFd,
    /// Offset of the first byte of BAR0.
    pub offset: u64,
}

/// A function.
pub trait Function {
    /// How its registers are reached.
    type Registers: Registers + Clone;

    /// BAR0.
    fn registers(&self) -> &Self::Registers;

    /// BAR0 for another process. Whoever has it can reach every register, and more.
    ///
    /// # Errors
    /// [`FunctionError`]; there may be no file that could be given away.
    fn registers_file(&self) -> Result<RegistersFile, FunctionError> {
        Err(FunctionError { errno: NOT_SUPPORTED })
    }

    /// Lets the function read and write memory of its own accord, or stops it.
    ///
    /// # Errors
    /// [`FunctionError`]; then nothing is known of it.
    fn set_mastering(&mut self, mastering: Mastering) -> Result<(), FunctionError>;

    /// Resets the function as a whole; bus mastering is off afterwards.
    ///
    /// # Errors
    /// [`FunctionError`] when it cannot be, or was not.
    fn reset(&mut self) -> Result<(), FunctionError>;
}

/// A function that VFIO gave us.
#[derive(Clone, Debug)]
pub struct VfioFunction {
    device: Arc<Device>,
    registers: MappedRegisters,
}

impl VfioFunction {
    /// The function behind a device of a container.
    ///
    /// # Errors
    /// BAR0 cannot be mapped.
    pub fn new(device: Arc<Device>) -> std::io::Result<Self> {
        let registers = device.map_bar0()?;
        Ok(Self { device, registers })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Function for VfioFunction {
    type Registers = MappedRegisters;

    fn registers(&self) -> &MappedRegisters {
        &self.registers
    }

    fn registers_file(&self) -> Result<RegistersFile, FunctionError> {
        let (file, offset) = self.device.bar0_file().map_err(failed)?;
        Ok(RegistersFile { file, offset })
    }

    fn set_mastering(&mut self, mastering: Mastering) -> Result<(), FunctionError> {
        self.device.set_mastering(mastering).map_err(failed)
    }

    fn reset(&mut self) -> Result<(), FunctionError> {
        self.device.reset().map_err(failed)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err hands over")]
fn failed(error: std::io::Error) -> FunctionError {
    FunctionError { errno: error.raw_os_error().unwrap_or(0) }
}
