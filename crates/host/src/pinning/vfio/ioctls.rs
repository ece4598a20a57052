//! The system calls of VFIO: their numbers, structures and results.
//!
//! Input: descriptors and structures of `linux/vfio.h`. Output: results, or the kernel's error numbers. Invariant:
//! every structure carries its own length, so that no kernel writes beyond it.

use super::error::OpenError;
use rustix::io::Errno;
use std::io;
use std::os::fd::AsRawFd;

/// Computes a number of `linux/vfio.h`: `_IO(';', 100 + number)`.
const fn ioctl_number(number: libc::c_ulong) -> libc::c_ulong {
    (0x3B << 8) + 100 + number
}

pub(super) const VFIO_GET_API_VERSION: libc::c_ulong = ioctl_number(0);
pub(super) const VFIO_CHECK_EXTENSION: libc::c_ulong = ioctl_number(1);
pub(super) const VFIO_SET_IOMMU: libc::c_ulong = ioctl_number(2);
pub(super) const VFIO_GROUP_GET_STATUS: libc::c_ulong = ioctl_number(3);
pub(super) const VFIO_GROUP_SET_CONTAINER: libc::c_ulong = ioctl_number(4);
pub(super) const VFIO_GROUP_GET_DEVICE_FD: libc::c_ulong = ioctl_number(6);
pub(super) const VFIO_DEVICE_GET_INFO: libc::c_ulong = ioctl_number(7);
pub(super) const VFIO_DEVICE_GET_REGION_INFO: libc::c_ulong = ioctl_number(8);
pub(super) const VFIO_DEVICE_GET_IRQ_INFO: libc::c_ulong = ioctl_number(9);
pub(super) const VFIO_DEVICE_SET_IRQS: libc::c_ulong = ioctl_number(10);
pub(super) const VFIO_DEVICE_RESET: libc::c_ulong = ioctl_number(11);
pub(super) const VFIO_IOMMU_GET_INFO: libc::c_ulong = ioctl_number(12);
pub(super) const VFIO_IOMMU_MAP_DMA: libc::c_ulong = ioctl_number(13);
pub(super) const VFIO_IOMMU_UNMAP_DMA: libc::c_ulong = ioctl_number(14);

/// `struct vfio_group_status` and `struct vfio_device_info` up to the fields used here, and `struct vfio_irq_info`.
#[repr(C)]
pub(super) struct SizedWords {
    pub(super) size: u32,
    pub(super) words: [u32; 3],
}

/// `struct vfio_region_info`.
#[repr(C)]
pub(super) struct RegionInfo {
    pub(super) size: u32,
    pub(super) flags: u32,
    pub(super) index: u32,
    pub(super) capability: u32,
    pub(super) bytes: u64,
    pub(super) offset: u64,
}

const _: () = assert!(size_of::<SizedWords>() == 16 && size_of::<RegionInfo>() == 32);

pub(super) fn call_error(call: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::Refused { call, errno: errno.raw_os_error() }
}

/// Executes a call that takes an address.
///
/// # Safety
/// The call accesses only the value at the address, and may do so.
pub(super) unsafe fn ioctl_at<T>(
    file: &impl AsRawFd,
    call: libc::c_ulong,
    at: *const T,
) -> Result<libc::c_int, Errno> {
    // SAFETY: the caller's promise.
    ioctl_result(unsafe { libc::ioctl(file.as_raw_fd(), call, at) })
}

/// Executes a call that takes a number.
///
/// # Safety
/// The call takes a number, and no address.
pub(super) unsafe fn ioctl(
    file: &impl AsRawFd,
    call: libc::c_ulong,
    number: libc::c_ulong,
) -> Result<libc::c_int, Errno> {
    // SAFETY: the caller's promise.
    ioctl_result(unsafe { libc::ioctl(file.as_raw_fd(), call, number) })
}

fn ioctl_result(answer: libc::c_int) -> Result<libc::c_int, Errno> {
    if answer >= 0 {
        return Ok(answer);
    }
    let errno = io::Error::last_os_error().raw_os_error();
    Err(Errno::from_raw_os_error(errno.unwrap_or(libc::EIO)))
}
