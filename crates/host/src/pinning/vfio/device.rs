//! A device of a container: its regions, its configuration space, its reset.
//!
//! Input: the descriptor of a device. Output: reads and writes of registers, BARs as [`MappedRegisters`]. Invariant:
//! nothing is read or written outside the region that the kernel described.

use super::ioctls::{
    RegionInfo, SizedWords, VFIO_DEVICE_GET_INFO, VFIO_DEVICE_GET_REGION_INFO, VFIO_DEVICE_RESET, ioctl,
    ioctl_at,
};
use crate::registers::MappedRegisters;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Region indices (`linux/vfio.h`).
const REGION_BAR0: u32 = 0;
const REGION_CONFIGURATION: u32 = 7;
/// `VFIO_REGION_INFO_FLAG_MMAP` and `VFIO_DEVICE_FLAGS_RESET`.
const REGION_CAN_BE_MAPPED: u32 = 1 << 2;
const DEVICE_CAN_BE_RESET: u32 = 1;
/// The command register and its bits, and the class code (PCI 3.0 section 6.2).
const COMMAND: u64 = 0x04;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;
const REVISION_AND_CLASS: u64 = 0x08;

/// A device of a container. Its regions are read and written by offset.
#[derive(Debug)]
pub struct AssignedDevice {
    file: File,
}

/// The position of a region (a BAR or the configuration space) in the device's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRegion {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes; 0 for a region that the device lacks.
    pub bytes: u64,
}

/// The device's right to access memory on its own (bus mastering).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusMastering {
    /// Access to what its container maps.
    On,
    /// No access: every access that the device had begun is complete once this was read back.
    Off,
}

/// The class code of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciClass {
    /// Base class: 01h mass storage.
    pub base: u8,
    /// Sub class: 08h non-volatile memory.
    pub sub: u8,
    /// Programming interface: 02h NVM Express.
    pub interface: u8,
}

impl PciClass {
    /// The class of an NVM Express function with I/O queues (NVMe over PCIe Transport 1.0 section 3.8.1.5).
    pub const NVME: Self = Self { base: 0x01, sub: 0x08, interface: 0x02 };
}

impl AssignedDevice {
    pub(super) fn of(file: File) -> Self {
        Self { file }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the position of a region by its index (`VFIO_PCI_BAR0_REGION_INDEX` is 0, the configuration space 7).
    ///
    /// # Errors
    /// The device has no such region.
    pub fn region(&self, index: u32) -> io::Result<DeviceRegion> {
        let info = self.region_info(index)?;
        Ok(DeviceRegion { offset: info.offset, bytes: info.bytes })
    }

    fn region_info(&self, index: u32) -> io::Result<RegionInfo> {
        let mut info = RegionInfo { size: 32, flags: 0, index, capability: 0, bytes: 0, offset: 0 };
        // SAFETY: bounds, alignment and lifetime: the kernel reads and writes one structure, whose length it is given,
        // on this stack. Aliasing: no other code has its address.
        let answer = unsafe { ioctl_at(&self.file, VFIO_DEVICE_GET_REGION_INFO, &raw mut info) };
        answer?;
        Ok(info)
    }

    /// Reads a register: `bytes` is 1, 2, 4 or 8 long.
    ///
    /// # Errors
    /// The offset does not lie in the region, or the kernel refuses.
    pub fn read(&self, region: DeviceRegion, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, register_offset(region, at, bytes.len())?)
    }

    /// Writes a register: `bytes` is 1, 2, 4 or 8 long.
    ///
    /// # Errors
    /// The offset does not lie in the region, or the kernel refuses.
    pub fn write(&self, region: DeviceRegion, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, register_offset(region, at, bytes.len())?)
    }

    /// Maps BAR0. The mapping outlives this handle.
    ///
    /// # Errors
    /// The device has no BAR0 of memory, or the kernel cannot map it.
    pub fn map_bar0(&self) -> io::Result<MappedRegisters> {
        let DeviceRegion { offset, bytes } = self.bar0()?;
        let bytes = usize::try_from(bytes).map_err(|_| io::Error::from(Errno::OVERFLOW))?;
        Ok(MappedRegisters::map(self.file.as_fd(), offset, bytes)?)
    }

    /// Returns the device's file and the offset of BAR0 in it, for another process to map. A process that has the file
    /// has the same control of the device as this one, and the kernel keeps the device with its mappings until the last
    /// of them is gone.
    ///
    /// # Errors
    /// The device has no BAR0 of memory, or the process has no descriptor left.
    pub fn bar0_file(&self) -> io::Result<(OwnedFd, u64)> {
        let DeviceRegion { offset, .. } = self.bar0()?;
        Ok((self.file.as_fd().try_clone_to_owned()?, offset))
    }

    fn bar0(&self) -> io::Result<DeviceRegion> {
        let info = self.region_info(REGION_BAR0)?;
        if info.flags & REGION_CAN_BE_MAPPED == 0 || info.bytes == 0 {
            return Err(Errno::NODEV.into());
        }
        Ok(DeviceRegion { offset: info.offset, bytes: info.bytes })
    }

    /// Returns the class code of the function; `None` when it is gone, which reads as all ones.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn class(&self) -> io::Result<Option<PciClass>> {
        let mut bytes = [0; 4];
        self.read(self.region(REGION_CONFIGURATION)?, REVISION_AND_CLASS, &mut bytes)?;
        let [_, interface, sub, base] = bytes;
        Ok((bytes != [0xFF; 4]).then_some(PciClass { base, sub, interface }))
    }

    /// Enables or disables the device's own memory accesses. Its registers are accessible either way.
    ///
    /// # Errors
    /// The kernel refuses, or the device did not accept the change.
    pub fn set_bus_mastering(&self, mastering: BusMastering) -> io::Result<()> {
        let configuration = self.region(REGION_CONFIGURATION)?;
        let mut bytes = [0; 2];
        self.read(configuration, COMMAND, &mut bytes)?;
        let before = u16::from_le_bytes(bytes) | COMMAND_MEMORY;
        let wanted = match mastering {
            BusMastering::On => before | COMMAND_BUS_MASTER,
            BusMastering::Off => before & !COMMAND_BUS_MASTER,
        };
        self.write(configuration, COMMAND, &wanted.to_le_bytes())?;
        // Reading back flushes the device's earlier writes ahead of the reply (PCI ordering rules).
        self.read(configuration, COMMAND, &mut bytes)?;
        let gone = bytes == [0xFF; 2];
        let took = u16::from_le_bytes(bytes) & COMMAND_BUS_MASTER == wanted & COMMAND_BUS_MASTER;
        match mastering {
            // A device that is gone does not write either.
            BusMastering::Off if gone => Ok(()),
            _ if took && !gone => Ok(()),
            _ => Err(Errno::IO.into()),
        }
    }

    /// Resets the function: it loses all state and accesses no memory. Takes a tenth of a second or more. The caller
    /// must enable bus mastering again afterwards.
    ///
    /// # Errors
    /// The device does not support a reset of its own, or the kernel refuses.
    pub fn reset(&self) -> io::Result<()> {
        let mut info = SizedWords { size: 16, words: [0; 3] };
        // SAFETY: bounds, alignment and lifetime: the kernel reads and writes one structure, whose length it is given,
        // on this stack. Aliasing: no other code has its address.
        let answer = unsafe { ioctl_at(&self.file, VFIO_DEVICE_GET_INFO, &raw mut info) };
        answer?;
        if info.words[0] & DEVICE_CAN_BE_RESET == 0 {
            return Err(Errno::OPNOTSUPP.into());
        }
        // SAFETY: the call takes no argument.
        let answer = unsafe { ioctl(&self.file, VFIO_DEVICE_RESET, 0) };
        answer?;
        Ok(())
    }
}

/// Returns the offset of a register in the device's file.
fn register_offset(region: DeviceRegion, at: u64, bytes: usize) -> io::Result<u64> {
    let end = at.checked_add(bytes as u64).filter(|&end| end <= region.bytes);
    end.and_then(|_| region.offset.checked_add(at)).ok_or_else(|| Errno::INVAL.into())
}
