//! Mapped registers of a real device.
//!
//! Input: a device's file and the place of a BAR in it. Output: [`DeviceRegisters`]. Invariant: the mapping stays as long as
//! a handle does, and no reference into it ever exists.

use super::DeviceRegisters;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A BAR mapped into this process.
#[derive(Clone)]
pub struct MappedRegisters {
    window: Arc<RegisterWindow>,
}

struct RegisterWindow {
    start: NonNull<u32>,
    bytes: usize,
}

// SAFETY: bounds and alignment: not concerned. Lifetime: the window belongs to the process, not to a thread, and is
// unmapped once, by the last handle. Aliasing: it is accessed by volatile loads and stores of single words only, which
// a device orders.
unsafe impl Send for RegisterWindow {}

// SAFETY: as for Send.
unsafe impl Sync for RegisterWindow {}

impl MappedRegisters {
    /// Maps `bytes` bytes from `offset` of a device's file on; both must be whole pages.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn map(device: BorrowedFd<'_>, offset: u64, bytes: usize) -> Result<Self, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: bounds: the kernel maps `bytes` bytes or fails; the file is a device's, whose regions do not shrink.
        // Alignment: it chooses an address on a page. Lifetime: ours until `RegisterWindow::drop` unmaps it. Aliasing:
        // a null hint without FIXED replaces no mapping.
        let mapped = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, device, offset) };
        let start = NonNull::new(mapped?.cast::<u32>()).ok_or(Errno::NOMEM)?;
        Ok(Self { window: Arc::new(RegisterWindow { start, bytes }) })
    }

    /// Detaches every handle from the device: from now on stores have no effect on it and loads return zeroes. The
    /// kernel may then give the device to another user. May be called while other threads use the registers.
    ///
    /// # Errors
    /// The kernel has no memory for that; nothing has changed.
    pub fn detach(&self) -> Result<(), Errno> {
        let RegisterWindow { start, bytes } = *self.window;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: bounds and alignment: exactly the range that the kernel returned for this window. Lifetime: it stays
        // mapped, to other pages, until `RegisterWindow::drop`, which cannot run while `self` lives. Aliasing: no
        // reference into it exists; a volatile access of another thread finds one page or the other, for the kernel
        // replaces them at once.
        let mapped = unsafe { mmap_anonymous(start.as_ptr().cast::<c_void>(), bytes, access, flags) };
        mapped.map(drop)
    }

    /// Returns the address of a register, valid for one word while `self` lives.
    #[inline]
    fn register_address(&self, at: usize) -> *mut u32 {
        let RegisterWindow { start, bytes } = *self.window;
        assert!(at.is_multiple_of(4) && at < bytes, "register {at:#x} of {bytes:#x} bytes");
        start.as_ptr().wrapping_byte_add(at)
    }
}

impl DeviceRegisters for MappedRegisters {
    fn bytes(&self) -> usize {
        self.window.bytes
    }

    #[inline]
    fn load32(&self, at: usize) -> u32 {
        let place = self.register_address(at);
        // SAFETY: bounds and alignment: `register_address` checked both; a mapping is whole pages. Lifetime: `self`
        // keeps the mapping. Aliasing: no reference into it exists, and volatile tolerates changes by the device.
        u32::from_le(unsafe { place.read_volatile() })
    }

    #[inline]
    fn store32(&self, at: usize, value: u32) {
        let place = self.register_address(at);
        // SAFETY: as for the load.
        unsafe { place.write_volatile(value.to_le()) };
    }

    #[inline]
    fn store32_release(&self, at: usize, value: u32) {
        store_fence();
        self.store32(at, value);
    }
}

/// Orders stores to memory before a store to a device.
#[inline]
#[cfg(not(target_arch = "aarch64"))]
fn store_fence() {
    // x86: stores to memory and to uncached registers keep their order; only the compiler must not reorder them.
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
}

/// Orders stores to memory before a store to a device.
#[inline]
#[cfg(target_arch = "aarch64")]
fn store_fence() {
    // SAFETY: a barrier touches no memory and no register; it covers the outer shareable domain, where devices are,
    // which the fence of the language does not.
    unsafe { std::arch::asm!("dmb oshst", options(nostack, preserves_flags)) };
}

impl Drop for RegisterWindow {
    fn drop(&mut self) {
        let start = self.start.as_ptr().cast::<c_void>();
        // SAFETY: bounds and alignment: exactly the range that the kernel returned. Lifetime: this is the last handle,
        // so no load or store runs or will. Aliasing: no reference into the range was ever made. A failure leaves the
        // pages mapped, which leaks address space but breaks nothing.
        let _ = unsafe { munmap(start, self.bytes) };
    }
}

impl fmt::Debug for MappedRegisters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedRegisters({} bytes)", self.window.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    fn file() -> (std::fs::File, MappedRegisters) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8_192).unwrap();
        let registers = MappedRegisters::map(file.as_fd(), 4_096, 4_096).unwrap();
        (file, registers)
    }

    #[test]
    fn stores_are_little_endian_at_their_offset() {
        let (file, registers) = file();
        registers.store32(0x14, 0x0102_0304);
        registers.store64(0x28, 0x1112_1314_1516_1718);
        registers.clone().store32_release(0xFFC, 7);
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 4_096 + 0x28).unwrap();
        assert_eq!(bytes, [0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
        assert_eq!((registers.load32(0x14), registers.load64(0x28)), (0x0102_0304, 0x1112_1314_1516_1718));
        assert_eq!((registers.load32(0xFFC), registers.bytes()), (7, 4_096));
        assert_eq!(registers.load32_present(0x14), Some(0x0102_0304));
        registers.store32(0x1C, u32::MAX);
        assert_eq!(registers.load32_present(0x1C), None, "a device that is gone");
    }

    #[test]
    fn detached_device_gets_no_stores_and_its_file_is_unmapped() {
        let (file, registers) = file();
        let other = registers.clone();
        other.store32(0x10, 7);
        registers.detach().unwrap();
        other.store32_release(0x10, 8);
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 4_096 + 0x10).unwrap();
        assert_eq!(bytes, [7, 0, 0, 0]);
        assert_eq!(other.load32(0x14), 0);
        let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.lines().any(|line| line.contains(&format!(" {inode} "))), "{maps}");
    }

    #[test]
    #[should_panic(expected = "register 0x1000 of 0x1000 bytes")]
    fn register_beyond_the_window_panics() {
        let _ = file().1.load32(0x1000);
    }

    #[test]
    #[should_panic(expected = "register 0x2 of")]
    fn unaligned_register_panics() {
        file().1.store32(2, 0);
    }
}
