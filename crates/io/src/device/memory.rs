//! The memory of a device's commands: buffers of its pool in three tiers, several pieces for one command, and memory of
//! the caller used in place.
//!
//! Input: lengths, or memory. Output: [`Buffer`]s that the device may access. Invariant: every buffer of a device comes
//! from its pool, by the limits that [`Device::pool`] states, and counts against the pool's cap.

use super::Device;
use crate::buffer::Buffer;
use crate::buffer_pool::allocate;
use crate::error::IoError;
use headwater_dma::pool::{
    AllocationFuture, DynamicError, ImportFuture, PinTier, PinnedMemory, Pool, PoolRequest,
};
use headwater_host::clock::Nanos;
use headwater_host::shared_memory::SharedMemory;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

impl Device {
    /// Allocates memory for commands: contiguous, page-aligned, from this device's pool. Small requests get a slot of
    /// blocks that stay pinned, medium ones memory of the pool, large ones memory pinned for them alone
    /// ([`tier`](Self::tier)). It returns to the pool when its last handle is dropped, commands in flight included, and
    /// holds whatever this process last had there.
    ///
    /// # Errors
    /// [`IoError`] when memory is exhausted or a limit is reached.
    pub fn buffer(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        self.backend.region(bytes)
    }

    /// Allocates memory for one command in up to `segments_max` pieces, each of whole pages but for the end of the last:
    /// in one where a contiguous run is free. So a fragmented pool serves the request. A queue's
    /// [`limits`](crate::Queue::limits) state how many pieces its commands can name.
    ///
    /// # Errors
    /// As for [`buffer`](Self::buffer).
    pub fn buffers(&mut self, bytes: usize, segments_max: u32) -> Result<Vec<Buffer>, IoError> {
        let request = PoolRequest::bytes(bytes.max(1)).scattered(segments_max);
        let found = allocate(self.backend.pool(), &request, None);
        Ok(Buffer::from_allocation(found.map_err(|error| self.backend.pool_error(error))?))
    }

    /// Allocates as [`buffer`](Self::buffer); if no memory is free, waits for at most `span` in the pool's queue, which is
    /// first in, first out over all tiers.
    ///
    /// # Errors
    /// [`PoolError::Timeout`](headwater_dma::pool::PoolError::Timeout) when none became free in time; else as for
    /// [`buffer`](Self::buffer).
    pub fn buffer_within(&mut self, bytes: usize, span: Nanos) -> Result<Buffer, IoError> {
        let found = allocate(self.backend.pool(), &PoolRequest::bytes(bytes.max(1)), Some(span));
        let found = found.map_err(|error| self.backend.pool_error(error))?;
        single(Buffer::from_allocation(found))
    }

    /// Returns a future for a buffer, which waits as [`buffer_within`](Self::buffer_within) does, without a limit.
    /// Dropping it cancels the request.
    pub fn buffer_async(&mut self, bytes: usize) -> BufferFuture {
        BufferFuture(self.backend.pool().allocate_async(&PoolRequest::bytes(bytes.max(1))))
    }

    /// Pins memory of the caller in place, for commands without a copy. It stays pinned until the last handle to the
    /// buffer is dropped. [`TierChoice::import_min`](headwater_dma::pool::calibration::TierChoice::import_min) states the
    /// length from which on this was measured to be cheaper than a copy.
    ///
    /// # Errors
    /// The memory, with the reason: the cap, the kernel or the device refused. A device in another process, or on a
    /// thread of this one, accepts only memory of its pool.
    pub fn import(&mut self, memory: SharedMemory) -> Result<Buffer, (SharedMemory, IoError)> {
        self.imported(self.backend.pool().import(memory))
    }

    /// Pins memory as [`import`](Self::import); waits as [`buffer_within`](Self::buffer_within) does.
    ///
    /// # Errors
    /// As for [`import`](Self::import), or a timeout.
    pub fn import_within(
        &mut self,
        memory: SharedMemory,
        span: Nanos,
    ) -> Result<Buffer, (SharedMemory, IoError)> {
        self.imported(self.backend.pool().import_within(memory, span))
    }

    /// Returns a future that pins memory as [`import`](Self::import) does, and waits as
    /// [`buffer_async`](Self::buffer_async) does. Dropping it cancels the request and drops the memory.
    pub fn import_async(&mut self, memory: SharedMemory) -> ImportedBuffer {
        ImportedBuffer(self.backend.pool().import_async(memory))
    }

    fn imported(
        &self,
        pinned: Result<PinnedMemory<SharedMemory>, (SharedMemory, DynamicError)>,
    ) -> Result<Buffer, (SharedMemory, IoError)> {
        pinned.map(Buffer::from_import).map_err(|(memory, error)| match error {
            DynamicError::Pool(error) => (memory, self.backend.pool_error(error)),
            error => (memory, IoError::Unsupported { reason: error.to_string() }),
        })
    }

    /// Returns the tier that serves a buffer of this length, if it has room.
    #[must_use]
    pub fn tier(&self, bytes: usize) -> PinTier {
        self.backend.pool().tier(bytes)
    }

    /// Returns the pool of the device's memory: its limits, its statistics by tier, and its wait queue.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        self.backend.pool()
    }

    /// Maps memory that a daemon makes and lends to this client, contiguous and page-aligned, all zeroes. The daemon
    /// counts it against the client's grant. It stays registered until this device is dropped, also if every handle to
    /// it is dropped before, and keeps its bytes when the daemon is restarted.
    ///
    /// # Errors
    /// [`IoError::Unsupported`] for a device that is not in a daemon; [`IoError`] when memory is exhausted or a limit is
    /// reached.
    pub fn lent_buffer(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        self.backend.lent_region(bytes)
    }
}

/// Returns the only buffer of a contiguous allocation.
fn single(mut buffers: Vec<Buffer>) -> Result<Buffer, IoError> {
    match (buffers.pop(), buffers.len()) {
        (Some(buffer), 0) => Ok(buffer),
        _ => unreachable!("scatter/gather was not allowed"),
    }
}

/// A future for a buffer of a device's pool. Dropping it cancels the request.
#[must_use = "a future does nothing unless it is polled"]
pub struct BufferFuture(AllocationFuture);

impl Future for BufferFuture {
    type Output = Result<Buffer, IoError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.0).poll(context);
        polled.map(|found| single(Buffer::from_allocation(found?)))
    }
}

impl fmt::Debug for BufferFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BufferFuture")
    }
}

/// A future for memory of the caller, pinned in place. Dropping it cancels the request and drops the memory.
#[must_use = "a future does nothing unless it is polled"]
#[derive(Debug)]
pub struct ImportedBuffer(ImportFuture<SharedMemory>);

impl Future for ImportedBuffer {
    type Output = Result<Buffer, (SharedMemory, IoError)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.0).poll(context);
        polled.map(|pinned| {
            pinned.map(Buffer::from_import).map_err(|(memory, error)| match error {
                DynamicError::Pool(error) => (memory, error.into()),
                error => (memory, IoError::Unsupported { reason: error.to_string() }),
            })
        })
    }
}
