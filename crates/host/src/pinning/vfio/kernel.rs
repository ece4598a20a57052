//! The system calls of VFIO: groups into a container, maps and unmaps, and the files of devices.
//!
//! In: PCI devices that are bound to vfio-pci. Out: a [`Container`] over the kernel's, and the devices. Invariant: a
//! container has its IOMMU and at least one group from the moment it exists; everything is undone when it is closed.

use super::error::OpenError;
use super::info::{INFO_BYTES_MAX, Limits};
use super::{Container, Memory, TypeOne};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Of `linux/vfio.h`: `_IO(';', 100 + number)`.
const fn call(number: libc::c_ulong) -> libc::c_ulong {
    (0x3B << 8) + 100 + number
}

const VFIO_GET_API_VERSION: libc::c_ulong = call(0);
const VFIO_CHECK_EXTENSION: libc::c_ulong = call(1);
const VFIO_SET_IOMMU: libc::c_ulong = call(2);
const VFIO_GROUP_GET_STATUS: libc::c_ulong = call(3);
const VFIO_GROUP_SET_CONTAINER: libc::c_ulong = call(4);
const VFIO_GROUP_GET_DEVICE_FD: libc::c_ulong = call(6);
const VFIO_DEVICE_GET_REGION_INFO: libc::c_ulong = call(8);
const VFIO_IOMMU_GET_INFO: libc::c_ulong = call(12);
const VFIO_IOMMU_MAP_DMA: libc::c_ulong = call(13);
const VFIO_IOMMU_UNMAP_DMA: libc::c_ulong = call(14);

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

/// `struct vfio_region_info`.
#[repr(C)]
struct RegionInfo {
    size: u32,
    flags: u32,
    index: u32,
    capability: u32,
    bytes: u64,
    offset: u64,
}

/// The first words of an answer that has as much room as it needs.
#[repr(C, align(8))]
struct InfoAnswer([u8; INFO_BYTES_MAX]);

const _: () = assert!(size_of::<MapCall>() == 32 && size_of::<UnmapCall>() == 24);
const _: () = assert!(size_of::<GroupStatus>() == 8 && size_of::<RegionInfo>() == 32);

/// The kernel's container.
#[derive(Debug)]
pub struct Type1 {
    container: OwnedFd,
    groups: Vec<(String, OwnedFd)>,
}

/// A device of a container. Its regions are read and written by offset.
#[derive(Debug)]
pub struct Device {
    file: File,
}

/// Where a region of a device, a BAR or its configuration space, is in the device's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRegion {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes; 0 for a region that the device has not.
    pub bytes: u64,
}

impl Container<Type1> {
    /// A container for PCI devices by their addresses (`0000:00:04.0`), all of which are bound to vfio-pci.
    ///
    /// # Errors
    /// [`OpenError`] says which step was refused, and what to do.
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
                let descriptor = join(&container, &group)?;
                groups.push((group, descriptor));
            }
        }
        // SAFETY: the call takes a number.
        let set = unsafe { ioctl(&container, VFIO_SET_IOMMU, VFIO_TYPE1V2_IOMMU) };
        set.map_err(refused("VFIO_SET_IOMMU"))?;
        let limits = describe(&container)?;
        Ok(Self::new(Type1 { container, groups }, limits))
    }

    /// Opens a device of the container. It may act as soon as its bus mastering is switched on.
    ///
    /// # Errors
    /// [`OpenError`] if the device is of no group here, or the kernel refuses.
    pub fn device(&self, device: &str) -> Result<Device, OpenError> {
        let group = group_of(device)?;
        let found = self.kernel().groups.iter().find(|(known, _)| *known == group);
        let (_, descriptor) = found.ok_or_else(|| OpenError::NoGroup { device: device.into() })?;
        let name: Vec<u8> = device.bytes().chain([0]).collect();
        // SAFETY: bounds and lifetime: the kernel reads a string up to its end, which is borrowed for the call.
        let opened = unsafe { ioctl_at(descriptor, VFIO_GROUP_GET_DEVICE_FD, name.as_ptr()) };
        let opened = opened.map_err(refused("VFIO_GROUP_GET_DEVICE_FD"))?;
        // SAFETY: the kernel has just made this descriptor for us; nobody else knows its number.
        Ok(Device { file: File::from(unsafe { OwnedFd::from_raw_fd(opened) }) })
    }
}

impl Device {
    /// Where a region is, by its index (`VFIO_PCI_BAR0_REGION_INDEX` is 0, the configuration space 7).
    ///
    /// # Errors
    /// The device has no such region.
    pub fn region(&self, index: u32) -> io::Result<DeviceRegion> {
        let mut info = RegionInfo { size: 32, flags: 0, index, capability: 0, bytes: 0, offset: 0 };
        // SAFETY: bounds, alignment and lifetime: the kernel reads and writes one structure of the length that it is told
        // on this stack. Aliasing: nobody else has its address.
        let answer = unsafe { ioctl_at(&self.file, VFIO_DEVICE_GET_REGION_INFO, &raw mut info) };
        answer?;
        Ok(DeviceRegion { offset: info.offset, bytes: info.bytes })
    }

    /// Reads a register: `bytes` is 1, 2, 4 or 8 long.
    ///
    /// # Errors
    /// The offset does not lie in the region, or the kernel refuses.
    pub fn read(&self, region: DeviceRegion, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, place(region, at, bytes.len())?)
    }

    /// Writes a register: `bytes` is 1, 2, 4 or 8 long.
    ///
    /// # Errors
    /// The offset does not lie in the region, or the kernel refuses.
    pub fn write(&self, region: DeviceRegion, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, place(region, at, bytes.len())?)
    }
}

/// Where in the device's file a register is.
fn place(region: DeviceRegion, at: u64, bytes: usize) -> io::Result<u64> {
    let end = at.checked_add(bytes as u64).filter(|&end| end <= region.bytes);
    end.and_then(|_| region.offset.checked_add(at)).ok_or_else(|| Errno::INVAL.into())
}

impl TypeOne for Type1 {
    fn map(&self, memory: Memory, iova: u64) -> Result<(), i32> {
        let (address, bytes) = (memory.address() as u64, memory.bytes() as u64);
        let map = MapCall { size: 32, flags: MAP_READ_WRITE, address, iova, bytes };
        // SAFETY: bounds, alignment and lifetime: the kernel reads one structure of the length that it is told from this
        // stack. Aliasing: it writes nothing; the memory that it names is pinned, and written by a device only when that
        // is told to, by whoever lent the memory to it.
        let answer = unsafe { ioctl_at(&self.container, VFIO_IOMMU_MAP_DMA, &raw const map) };
        answer.map(drop).map_err(Errno::raw_os_error)
    }

    fn unmap(&self, iova: u64, bytes: u64) -> Result<u64, i32> {
        let mut unmap = UnmapCall { size: 24, flags: 0, iova, bytes };
        // SAFETY: as above; the kernel writes the length that it unmapped into the structure, whose address nobody has.
        let answer = unsafe { ioctl_at(&self.container, VFIO_IOMMU_UNMAP_DMA, &raw mut unmap) };
        answer.map(|_| unmap.bytes).map_err(Errno::raw_os_error)
    }
}

fn open_file(path: PathBuf) -> Result<OwnedFd, OpenError> {
    match OpenOptions::new().read(true).write(true).open(&path) {
        Ok(file) => Ok(file.into()),
        Err(source) => Err(OpenError::File { path, source }),
    }
}

/// The name of a device's group.
fn group_of(device: &str) -> Result<String, OpenError> {
    let none = || OpenError::NoGroup { device: device.into() };
    if device.contains('/') || device.contains('\0') {
        return Err(none());
    }
    let link = Path::new("/sys/bus/pci/devices").join(device).join("iommu_group");
    let target = std::fs::read_link(link).map_err(|_| none())?;
    target.file_name().and_then(|name| name.to_str()).map(Into::into).ok_or_else(none)
}

/// Opens a group and puts it into the container.
fn join(container: &OwnedFd, group: &str) -> Result<OwnedFd, OpenError> {
    let descriptor = open_file(Path::new("/dev/vfio").join(group))?;
    let mut status = GroupStatus { size: 8, flags: 0 };
    // SAFETY: bounds, alignment and lifetime: the kernel reads and writes one structure of the length that it is told on
    // this stack. Aliasing: nobody else has its address.
    let answer = unsafe { ioctl_at(&descriptor, VFIO_GROUP_GET_STATUS, &raw mut status) };
    answer.map_err(refused("VFIO_GROUP_GET_STATUS"))?;
    if status.flags & GROUP_VIABLE == 0 {
        return Err(OpenError::NotViable { group: group.into() });
    }
    let number: libc::c_int = container.as_raw_fd();
    // SAFETY: the kernel reads one number from this stack.
    let answer = unsafe { ioctl_at(&descriptor, VFIO_GROUP_SET_CONTAINER, &raw const number) };
    answer.map_err(refused("VFIO_GROUP_SET_CONTAINER"))?;
    Ok(descriptor)
}

fn describe(container: &OwnedFd) -> Result<Limits, OpenError> {
    let mut answer = Box::new(InfoAnswer([0; INFO_BYTES_MAX]));
    let size = u32::try_from(INFO_BYTES_MAX).unwrap_or(0);
    answer.0[..4].copy_from_slice(&size.to_le_bytes());
    // SAFETY: bounds, alignment and lifetime: the kernel reads and writes at most as many bytes as the first word says,
    // which is what there is. Aliasing: nobody else has its address.
    let said = unsafe { ioctl_at(container, VFIO_IOMMU_GET_INFO, answer.0.as_mut_ptr()) };
    said.map_err(refused("VFIO_IOMMU_GET_INFO"))?;
    Limits::read(&answer.0).ok_or(OpenError::Description)
}

fn refused(call: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::Refused { call, errno: errno.raw_os_error() }
}

/// A call that takes the address of something.
///
/// # Safety
/// The call reads and writes what is there and no more, and may.
unsafe fn ioctl_at<T>(file: &impl AsRawFd, call: libc::c_ulong, at: *const T) -> Result<libc::c_int, Errno> {
    // SAFETY: the caller's promise.
    answered(unsafe { libc::ioctl(file.as_raw_fd(), call, at) })
}

/// A call that takes a number.
///
/// # Safety
/// The call takes a number, and no address.
unsafe fn ioctl(
    file: &impl AsRawFd,
    call: libc::c_ulong,
    number: libc::c_ulong,
) -> Result<libc::c_int, Errno> {
    // SAFETY: the caller's promise.
    answered(unsafe { libc::ioctl(file.as_raw_fd(), call, number) })
}

fn answered(answer: libc::c_int) -> Result<libc::c_int, Errno> {
    if answer >= 0 {
        return Ok(answer);
    }
    let errno = io::Error::last_os_error().raw_os_error();
    Err(Errno::from_raw_os_error(errno.unwrap_or(libc::EIO)))
}
