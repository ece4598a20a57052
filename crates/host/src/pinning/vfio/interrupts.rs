//! Message signalled interrupts of a device, delivered to eventfds.
//!
//! Input: one eventfd per vector. Output: the kernel signals it when the device sends the vector's message. Invariant:
//! all vectors are allocated at once, and none fires until it has a descriptor; so connecting or disconnecting one
//! vector does not affect the rest.

use super::device::AssignedDevice;
use super::ioctls::{SizedWords, VFIO_DEVICE_GET_IRQ_INFO, VFIO_DEVICE_SET_IRQS, ioctl_at};
use crate::wake::WakeDescriptor;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `VFIO_PCI_MSIX_IRQ_INDEX`.
const MSIX: u32 = 2;
/// `VFIO_IRQ_SET_DATA_EVENTFD` and `VFIO_IRQ_SET_ACTION_TRIGGER`.
const DATA_EVENTFD: u32 = 1 << 2;
const ACTION_TRIGGER: u32 = 1 << 5;
/// The value for no descriptor.
const NO_DESCRIPTOR: i32 = -1;

/// The maximum number of vectors.
const VECTORS_MAX: usize = 64;

/// `struct vfio_irq_set` followed by its descriptors.
#[repr(C)]
struct IrqSet {
    size: u32,
    flags: u32,
    index: u32,
    start: u32,
    count: u32,
    descriptors: [i32; VECTORS_MAX],
}

const HEAD_BYTES: usize = 20;
const _: () = assert!(size_of::<IrqSet>() == HEAD_BYTES + 4 * VECTORS_MAX);

impl AssignedDevice {
    /// Returns the number of MSI-X vectors of the device; 0 if it has none.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn vector_count(&self) -> io::Result<u32> {
        let mut info = SizedWords { size: 16, words: [0, MSIX, 0] };
        // SAFETY: bounds, alignment and lifetime: the kernel reads and writes one structure, whose length it is given,
        // on this stack. Aliasing: no other code has its address.
        let answer = unsafe { ioctl_at(self.file(), VFIO_DEVICE_GET_IRQ_INFO, &raw mut info) };
        answer?;
        Ok(info.words[2])
    }

    /// Allocates the first `count` vectors. None has a descriptor.
    ///
    /// # Errors
    /// More vectors than the device has, or than 64; or the kernel refuses.
    pub fn allocate_vectors(&self, count: u32) -> io::Result<()> {
        let descriptors = [NO_DESCRIPTOR; VECTORS_MAX];
        let some = usize::try_from(count).ok().and_then(|count| descriptors.get(..count));
        self.set_irqs(0, some.ok_or(Errno::INVAL)?)
    }

    /// Connects a vector to an eventfd that is signalled whenever it fires, or disconnects it.
    ///
    /// # Errors
    /// The vector was not allocated, or the kernel refuses.
    pub fn connect_vector(&self, vector: u32, wake: Option<&WakeDescriptor>) -> io::Result<()> {
        self.set_irqs(vector, &[wake.map_or(NO_DESCRIPTOR, |wake| wake.as_fd().as_raw_fd())])
    }

    fn set_irqs(&self, start: u32, some: &[i32]) -> io::Result<()> {
        let mut set = IrqSet {
            size: u32::try_from(HEAD_BYTES + 4 * some.len()).map_err(|_| Errno::INVAL)?,
            flags: DATA_EVENTFD | ACTION_TRIGGER,
            index: MSIX,
            start,
            count: u32::try_from(some.len()).map_err(|_| Errno::INVAL)?,
            descriptors: [NO_DESCRIPTOR; VECTORS_MAX],
        };
        set.descriptors.get_mut(..some.len()).ok_or(Errno::INVAL)?.copy_from_slice(some);
        // SAFETY: bounds, alignment and lifetime: the kernel reads as many bytes as the first word says, which cover
        // the given descriptors and lie on this stack. Aliasing: no code writes there. The kernel takes its own
        // reference to each descriptor.
        let answer = unsafe { ioctl_at(self.file(), VFIO_DEVICE_SET_IRQS, &raw const set) };
        answer?;
        Ok(())
    }
}
