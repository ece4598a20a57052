//! Why a container cannot be opened, or does not let go of memory.
//!
//! In: the kernel's numbers. Out: errors that say what to change. Invariant: after an [`UnmapError`] but
//! [`UnmapError::Unknown`] the memory counts as the device's for ever.

use std::path::PathBuf;

/// A mapping was not taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnmapError {
    /// Nothing of this container is mapped so.
    #[error("nothing was mapped at {iova:#x} in this container as it is to be unmapped")]
    Unknown {
        /// The device's address.
        iova: u64,
    },
    /// The kernel unmapped another number of bytes.
    #[error(
        "{unmapped} of {bytes} bytes at {iova:#x} were unmapped: a device may still reach the rest, never use it again"
    )]
    Short {
        /// The device's address.
        iova: u64,
        /// Bytes that were mapped.
        bytes: u64,
        /// Bytes that were unmapped.
        unmapped: u64,
    },
    /// The kernel refused.
    #[error("{bytes} bytes at {iova:#x} could not be unmapped (error {errno}): never use them again")]
    Refused {
        /// The device's address.
        iova: u64,
        /// Bytes that were mapped.
        bytes: u64,
        /// The kernel's number.
        errno: i32,
    },
}

/// No container for these devices.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No devices were named.
    #[error("name at least one device, as in 0000:00:04.0")]
    NoDevice,
    /// No PCI device has this address.
    #[error("there is no PCI device {device:?}: give an address as `lspci -D` prints it, as in 0000:00:04.0")]
    NoSuchDevice {
        /// What was asked for.
        device: String,
    },
    /// No IOMMU is in front of the device: it could write to any memory of the machine.
    #[error(
        "{device} has no IOMMU group, and without an IOMMU a device can write to any memory of the machine: \
         switch VT-d or AMD-Vi on in the firmware, add intel_iommu=on to the kernel's command line (AMD needs \
         nothing there), and boot again"
    )]
    NoGroup {
        /// The device.
        device: String,
    },
    /// The kernel was told to let user space drive devices without an IOMMU.
    #[error(
        "{device} has a group that isolates nothing (vfio-noiommu): \
         `echo N > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode`, switch the IOMMU on \
         (intel_iommu=on), and boot again"
    )]
    NotIsolated {
        /// The device.
        device: String,
    },
    /// The device has its kernel driver still, or none.
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
        "{path} cannot be opened: load vfio-pci (modprobe vfio-pci), bind the device to it, and let this user \
         have the file ({source})",
        path = path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another process has the device.
    #[error(
        "{path} is in use: a device is one process's at a time, and its own until the last process with its registers \
         mapped is done; `fuser {path}` names the first",
        path = path.display()
    )]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// Another driver has a device of the group.
    #[error("group {group} has a device of another driver: bind all of its devices to vfio-pci")]
    NotViable {
        /// The group.
        group: String,
    },
    /// The kernel has another VFIO.
    #[error("this kernel's VFIO has no type 1 (version 2) IOMMU: load vfio_iommu_type1")]
    NoType1,
    /// The kernel refused a step.
    #[error("{call} was refused (error {errno})")]
    Refused {
        /// The step.
        call: &'static str,
        /// The kernel's number.
        errno: i32,
    },
    /// What the kernel says of its IOMMU makes no sense.
    #[error("the kernel's description of its IOMMU cannot be read")]
    Description,
}
