//! The kernel's container: its groups, maps and unmaps, and the files of devices.
//!
//! Input: PCI devices that are bound to vfio-pci. Output: a [`VfioContainer`] over the kernel's, and the devices.
//! Invariant: a container has its IOMMU and at least one group from its creation on; closing it undoes everything.

use super::container_limits::{ContainerLimits, INFO_BYTES_MAX};
use super::device::AssignedDevice;
use super::error::OpenError;
use super::ioctls::{
    VFIO_CHECK_EXTENSION, VFIO_GET_API_VERSION, VFIO_GROUP_GET_DEVICE_FD, VFIO_GROUP_GET_STATUS,
    VFIO_GROUP_SET_CONTAINER, VFIO_IOMMU_GET_INFO, VFIO_IOMMU_MAP_DMA, VFIO_IOMMU_UNMAP_DMA, VFIO_SET_IOMMU,
    call_error, ioctl, ioctl_at,
};
use super::{IommuBackend, MemoryRange, VfioContainer};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

const VFIO_API_VERSION: libc::c_int = 0;
const VFIO_TYPE1V2_IOMMU: libc::c_ulong = 3;
const GROUP_VIABLE: u32 = 1;
const MAP_READ_WRITE: u32 = 1 | 2;

/// `struct vfio_iommu_type1_dma_map`.
#[repr(C)]
struct MapCall {
    size: u32,
    flags: u32,
    address: u64,
    iova: u64,
    bytes: u64,
}

/// `struct vfio_iommu_type1_dma_unmap`.
#[repr(C)]
struct UnmapCall {
    size: u32,
    flags: u32,
    iova: u64,
    bytes: u64,
}

/// `struct vfio_group_status`.
#[repr(C)]
struct GroupStatus {
    size: u32,
    flags: u32,
}

/// An aligned buffer for the longest result.
#[repr(C, align(8))]
struct InfoAnswer([u8; INFO_BYTES_MAX]);

const _: () = assert!(size_of::<MapCall>() == 32 && size_of::<UnmapCall>() == 24);
const _: () = assert!(size_of::<GroupStatus>() == 8);

/// The kernel's container.
#[derive(Debug)]
pub struct KernelIommu {
    container: OwnedFd,
    groups: Vec<(String, OwnedFd)>,
}

impl VfioContainer<KernelIommu> {
    /// Opens a container for PCI devices by their addresses (`0000:00:04.0`), all of which are bound to vfio-pci.
    ///
    /// # Errors
    /// [`OpenError`] names the step that failed, and the remedy.
    pub fn open(devices: &[&str]) -> Result<Self, OpenError> {
        if devices.is_empty() {
            return Err(OpenError::NoDevice);
        }
        let container = open_file(PathBuf::from("/dev/vfio/vfio"))?;
        // SAFETY: the call takes no argument.
        let version = unsafe { ioctl(&container, VFIO_GET_API_VERSION, 0) };
        // SAFETY: the call takes a number.
        let known = unsafe { ioctl(&container, VFIO_CHECK_EXTENSION, VFIO_TYPE1V2_IOMMU) };
        if version != Ok(VFIO_API_VERSION) || known != Ok(1) {
            return Err(OpenError::NoType1);
        }
        let mut groups: Vec<(String, OwnedFd)> = Vec::new();
        for device in devices {
            let group = group_of(device)?;
            if groups.iter().all(|(known, _)| *known != group) {
                let descriptor = join_group(&container, &group, device)?;
                groups.push((group, descriptor));
            }
        }
        // SAFETY: the call takes a number.
        let set = unsafe { ioctl(&container, VFIO_SET_IOMMU, VFIO_TYPE1V2_IOMMU) };
        set.map_err(call_error("VFIO_SET_IOMMU"))?;
        let limits = read_limits(&container)?;
        Ok(Self::new(KernelIommu { container, groups }, limits))
    }

    /// Opens a device of the container. It can access memory as soon as its bus mastering is enabled.
    ///
    /// # Errors
    /// [`OpenError`] if the device is in no group of this container, or the kernel refuses.
    pub fn device(&self, device: &str) -> Result<AssignedDevice, OpenError> {
        let group = group_of(device)?;
        let found = self.kernel().groups.iter().find(|(known, _)| *known == group);
        let (_, descriptor) = found.ok_or_else(|| OpenError::NoGroup { device: device.into() })?;
        let name: Vec<u8> = device.bytes().chain([0]).collect();
        // SAFETY: bounds and lifetime: the kernel reads a string up to its end, which is borrowed for the call.
        let opened = unsafe { ioctl_at(descriptor, VFIO_GROUP_GET_DEVICE_FD, name.as_ptr()) };
        let opened = opened.map_err(call_error("VFIO_GROUP_GET_DEVICE_FD"))?;
        // SAFETY: the kernel has just created this descriptor for this call; no other code has its number.
        Ok(AssignedDevice::of(File::from(unsafe { OwnedFd::from_raw_fd(opened) })))
    }
}

impl IommuBackend for KernelIommu {
    fn map(&self, memory: MemoryRange, iova: u64) -> Result<(), i32> {
        let (address, bytes) = (memory.address() as u64, memory.bytes() as u64);
        let map = MapCall { size: 32, flags: MAP_READ_WRITE, address, iova, bytes };
        // SAFETY: bounds, alignment and lifetime: the kernel reads one structure, whose length it is given, from this
        // stack. Aliasing: it writes nothing; the memory that it names is pinned, and a device writes it only on a
        // command of the code that lent it the memory.
        let answer = unsafe { ioctl_at(&self.container, VFIO_IOMMU_MAP_DMA, &raw const map) };
        answer.map(drop).map_err(Errno::raw_os_error)
    }

    fn unmap(&self, iova: u64, bytes: u64) -> Result<u64, i32> {
        let mut unmap = UnmapCall { size: 24, flags: 0, iova, bytes };
        // SAFETY: as above; the kernel writes the length that it unmapped into the structure, whose address no other
        // code has.
        let answer = unsafe { ioctl_at(&self.container, VFIO_IOMMU_UNMAP_DMA, &raw mut unmap) };
        answer.map(|_| unmap.bytes).map_err(Errno::raw_os_error)
    }
}

fn open_file(path: PathBuf) -> Result<OwnedFd, OpenError> {
    match OpenOptions::new().read(true).write(true).open(&path) {
        Ok(file) => Ok(file.into()),
        Err(source) if source.kind() == ErrorKind::ResourceBusy => Err(OpenError::Busy { path }),
        Err(source) => Err(OpenError::File { path, source }),
    }
}

/// Returns the name of a device's group.
fn group_of(device: &str) -> Result<String, OpenError> {
    let missing = || OpenError::NoSuchDevice { device: device.into() };
    if device.is_empty() || device.contains('/') || device.contains('\0') {
        return Err(missing());
    }
    let entry = Path::new("/sys/bus/pci/devices").join(device);
    if !entry.exists() {
        return Err(missing());
    }
    let link = entry.join("iommu_group");
    // A kernel configured to work without an IOMMU creates a group of this name.
    if std::fs::read_to_string(link.join("name")).is_ok_and(|name| name.trim() == "vfio-noiommu") {
        return Err(OpenError::NotIsolated { device: device.into() });
    }
    let none = || OpenError::NoGroup { device: device.into() };
    let target = std::fs::read_link(link).map_err(|_| none())?;
    target.file_name().and_then(|name| name.to_str()).map(Into::into).ok_or_else(none)
}

/// Opens a group and adds it to the container.
fn join_group(container: &OwnedFd, group: &str, device: &str) -> Result<OwnedFd, OpenError> {
    let descriptor = open_file(Path::new("/dev/vfio").join(group)).map_err(|error| match error {
        OpenError::File { source, .. } if source.kind() == ErrorKind::NotFound => {
            OpenError::NotBound { device: device.into() }
        }
        other => other,
    })?;
    let mut status = GroupStatus { size: 8, flags: 0 };
    // SAFETY: bounds, alignment and lifetime: the kernel reads and writes one structure, whose length it is given, on
    // this stack. Aliasing: no other code has its address.
    let answer = unsafe { ioctl_at(&descriptor, VFIO_GROUP_GET_STATUS, &raw mut status) };
    answer.map_err(call_error("VFIO_GROUP_GET_STATUS"))?;
    if status.flags & GROUP_VIABLE == 0 {
        return Err(OpenError::NotViable { group: group.into() });
    }
    let number: libc::c_int = container.as_raw_fd();
    // SAFETY: the kernel reads one number from this stack.
    let answer = unsafe { ioctl_at(&descriptor, VFIO_GROUP_SET_CONTAINER, &raw const number) };
    answer.map_err(call_error("VFIO_GROUP_SET_CONTAINER"))?;
    Ok(descriptor)
}

fn read_limits(container: &OwnedFd) -> Result<ContainerLimits, OpenError> {
    let mut answer = Box::new(InfoAnswer([0; INFO_BYTES_MAX]));
    let size = u32::try_from(INFO_BYTES_MAX).unwrap_or(0);
    answer.0[..4].copy_from_slice(&size.to_le_bytes());
    // SAFETY: bounds, alignment and lifetime: the kernel reads and writes at most as many bytes as the first word says,
    // which is the buffer's size. Aliasing: no other code has its address.
    let result = unsafe { ioctl_at(container, VFIO_IOMMU_GET_INFO, answer.0.as_mut_ptr()) };
    result.map_err(call_error("VFIO_IOMMU_GET_INFO"))?;
    ContainerLimits::read(&answer.0).ok_or(OpenError::Description)
}
