//! Interrupt vectors of a controller: the first belongs to the admin queue, each of the rest to one I/O queue at a
//! time.
//!
//! Input: a device. Output: vectors with a descriptor each. Invariant: a vector belongs to one queue, so no queue
//! consumes the wake-up of another; it is connected to its descriptor only on request, so a polling thread is not
//! interrupted.

use headwater_host::pinning::vfio::AssignedDevice;
use headwater_host::wake::WakeDescriptor;
use headwater_host::width::narrow;
use std::fmt;
use std::io;
use std::sync::Arc;

/// A source of interrupt vectors of a function.
pub trait VectorSource: Send + Sync + fmt::Debug {
    /// Returns the number of vectors for I/O queues, which are numbered from 1 to this.
    fn count(&self) -> u16;

    /// Connects a vector to a descriptor, or disconnects it.
    ///
    /// # Errors
    /// The kernel's error.
    fn connect(&self, vector: u16, wake: Option<&WakeDescriptor>) -> io::Result<()>;
}

/// The vectors of a device.
#[derive(Debug)]
pub(super) struct DeviceVectors {
    device: Arc<AssignedDevice>,
    count: u16,
}

impl DeviceVectors {
    /// Allocates at most `wanted` vectors, as far as the device has them. None is connected yet.
    pub(super) fn allocate(device: Arc<AssignedDevice>, wanted: u32) -> io::Result<Self> {
        let count = device.vector_count()?.min(wanted);
        if count > 0 {
            device.allocate_vectors(count)?;
        }
        // The admin queue is polled while waiting for it, so its vector stays unused.
        Ok(Self { device, count: narrow(count.saturating_sub(1).min(u16::MAX.into())) })
    }
}

impl VectorSource for DeviceVectors {
    fn count(&self) -> u16 {
        self.count
    }

    fn connect(&self, vector: u16, wake: Option<&WakeDescriptor>) -> io::Result<()> {
        self.device.connect_vector(u32::from(vector), wake)
    }
}

/// A function without vectors: queues are polled.
#[derive(Clone, Copy, Debug)]
pub struct NoVectors;

impl VectorSource for NoVectors {
    fn count(&self) -> u16 {
        0
    }

    fn connect(&self, _vector: u16, _bell: Option<&WakeDescriptor>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
