//! The errors of opening a container and of unmapping memory.
//!
//! Input: the kernel's numbers. Output: errors that name the remedy. Invariant: after an [`UnmapError`] other than
//! [`UnmapError::Unknown`] the memory counts as the device's for ever.

use std::path::PathBuf;

/// An error of unmapping a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnmapError {
    /// This container has no such mapping.
    #[error("this container has no such mapping at {iova:#x}: unmap exactly what was mapped")]
    Unknown {
        /// The I/O virtual address.
        iova: u64,
    },
    /// The kernel unmapped another number of bytes.
    #[error(
        "{unmapped} of {bytes} bytes at {iova:#x} were unmapped: a device may still access the rest, never use it again"
    )]
    Short {
        /// The I/O virtual address.
        iova: u64,
        /// Bytes that were mapped.
        bytes: u64,
        /// Bytes that were unmapped.
        unmapped: u64,
    },
    /// The kernel refused.
    #[error("cannot unmap {bytes} bytes at {iova:#x} (error {errno}): never use them again")]
    Refused {
        /// The I/O virtual address.
        iova: u64,
        /// Bytes that were mapped.
        bytes: u64,
        /// The kernel's error number.
        errno: i32,
    },
}

/// An error of opening a container.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The list of devices is empty.
    #[error("name at least one device, as in 0000:00:04.0")]
    NoDevice,
    /// No PCI device has this address.
    #[error(
        "PCI device {device:?} does not exist: give an address as `lspci -D` prints it, as in 0000:00:04.0"
    )]
    NoSuchDevice {
        /// The requested address.
        device: String,
    },
    /// The device has no IOMMU in front of it: it could write to any memory of the machine.
    #[error(
        "{device} has no IOMMU group, and without an IOMMU a device can write to any memory of the machine: \
         switch VT-d or AMD-Vi on in the firmware, add intel_iommu=on to the kernel's command line (AMD needs \
         nothing there), and boot again"
    )]
    NoGroup {
        /// The device.
        device: String,
    },
    /// The kernel is configured to let user space drive devices without an IOMMU.
    #[error(
        "{device} is in a group without isolation (vfio-noiommu): \
         `echo N > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode`, switch the IOMMU on \
         (intel_iommu=on), and boot again"
    )]
    NotIsolated {
        /// The device.
        device: String,
    },
    /// The device is bound to its kernel driver, or to none.
    #[error(
        "{device} is not bound to vfio-pci: `modprobe vfio-pci; \
         echo vfio-pci > /sys/bus/pci/devices/{device}/driver_override; \
         echo {device} > /sys/bus/pci/devices/{device}/driver/unbind; echo {device} > /sys/bus/pci/drivers_probe` \
         (the kernel must not be using it)"
    )]
    NotBound {
        /// The device.
        device: String,
    },
    /// A device file of VFIO could not be opened.
    #[error(
        "cannot open {path}: load vfio-pci (modprobe vfio-pci), bind the device to it, and give this user \
         access to the file ({source})",
        path = path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Another process uses the device.
    #[error(
        "{path} is in use: only one process at a time can open a device, until the last process with its registers \
         mapped has ended; `fuser {path}` names the process that opened it",
        path = path.display()
    )]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// Another driver is bound to a device of the group.
    #[error("group {group} has a device bound to another driver: bind all of its devices to vfio-pci")]
    NotViable {
        /// The group.
        group: String,
    },
    /// The kernel lacks the required VFIO interface.
    #[error("this kernel's VFIO has no type 1 (version 2) IOMMU: load vfio_iommu_type1")]
    NoType1,
    /// A system call failed.
    #[error("{call} failed (error {errno})")]
    Refused {
        /// The system call.
        call: &'static str,
        /// The kernel's error number.
        errno: i32,
    },
    /// The kernel's description of its IOMMU is malformed.
    #[error("the kernel's description of its IOMMU is malformed")]
    Description,
}
