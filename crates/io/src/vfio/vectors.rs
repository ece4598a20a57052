//! Interrupt vectors of a controller: the first is the admin queue's, each of the others one I/O queue's at a time.
//!
//! In: a device. Out: vectors with a descriptor each. Invariant: a vector belongs to one queue, so nobody takes another's
//! wake-up; it is connected to its descriptor only once somebody asked for that, so who polls is not interrupted.

use headwater_host::pinning::vfio::Device;
use headwater_host::wake::WakeDescriptor;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Whoever has the vectors of a function.
pub trait VectorSource: Send + Sync + fmt::Debug {
    /// How many vectors I/O queues can have: numbers 1 to this.
    fn count(&self) -> u16;

    /// Lets a vector write a descriptor, or none.
    ///
    /// # Errors
    /// The kernel refuses.
    fn connect(&self, vector: u16, bell: Option<&WakeDescriptor>) -> io::Result<()>;
}

/// Vectors of a device.
#[derive(Debug)]
pub(super) struct Vectors {
    device: Arc<Device>,
    count: u16,
}

impl Vectors {
    /// As many as are wanted and the device has, none connected.
    pub(super) fn allocate(device: Arc<Device>, wanted: u32) -> io::Result<Self> {
        let count = device.vectors()?.min(wanted);
        if count > 0 {
            device.allocate_vectors(count)?;
        }
        // The admin queue is looked at when it is waited for.
        Ok(Self { device, count: u16::try_from(count.saturating_sub(1)).unwrap_or(0) })
    }
}

impl VectorSource for Vectors {
    fn count(&self) -> u16 {
        self.count
    }

    fn connect(&self, vector: u16, bell: Option<&WakeDescriptor>) -> io::Result<()> {
        self.device.connect_vector(u32::from(vector), bell)
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
