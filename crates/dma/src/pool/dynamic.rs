//! Imports: the caller's own memory, pinned in place by the dynamic tier. Memory that the tier makes for a large request
//! (uDMA, section 4.1) is a chunk of the pool with one owner, as [`Pool::allocate`] and [`Pool::pin_for_request`]
//! return it.
//!
//! Input: memory by value. Output: [`PinnedMemory`], which counts against the pool's cap and is pinned exactly as long
//! as it lives. An import waits in the same queue as every request of the pool. Invariant: memory that a device may still access is never reused: memory that is lent
//! and not completed, or cannot be unpinned, stays pinned, counted and unused.
//!
//! Imported memory is taken by value, not borrowed: a borrow ends when its value is forgotten, but a device's access
//! does not. So two imports never overlap, and as only whole pages are accepted, their pins do not overlap either.

use super::waiter::ChargeWaiter;
use super::{CapCharge, MemoryPinner, Nanos, PinError, PinTier, PinToken, Pool, PoolError};
use crate::buffer::{DeviceSegment, LendableMemory, LentBuffer};
use headwater_host::mapped_region::MappedRegion;
use headwater_host::reservation::PAGE_BYTES;
use headwater_host::shared_memory::SharedMemory;
use headwater_host::sync::Ordering;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Memory whose address is stable when its value is moved, and that has no other user while the value lives.
pub trait PinnableMemory: Send + 'static {
    /// Returns the first address.
    fn address(&self) -> usize;
    /// Returns the bytes to pin: whole pages that belong to the value, if the address is page-aligned.
    fn pin_bytes(&self) -> usize;
}

/// A mapping of whole pages, whatever its length.
impl PinnableMemory for MappedRegion {
    fn address(&self) -> usize {
        self.as_ptr().addr()
    }

    fn pin_bytes(&self) -> usize {
        self.len().next_multiple_of(PAGE_BYTES)
    }
}

impl PinnableMemory for SharedMemory {
    fn address(&self) -> usize {
        Self::address(self)
    }

    fn pin_bytes(&self) -> usize {
        self.bytes().next_multiple_of(PAGE_BYTES)
    }
}

impl PinnableMemory for Vec<u8> {
    fn address(&self) -> usize {
        self.as_ptr().addr()
    }

    fn pin_bytes(&self) -> usize {
        self.len()
    }
}

impl PinnableMemory for Box<[u8]> {
    fn address(&self) -> usize {
        self.as_ptr().addr()
    }

    fn pin_bytes(&self) -> usize {
        self.len()
    }
}

/// The reason why memory was not pinned for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DynamicError {
    /// The memory has no bytes.
    #[error("0 bytes to pin: pass at least one page")]
    Empty,
    /// The memory shares a page with other memory, whose pin would end with this one.
    #[error(
        "{bytes} bytes at offset {off} in a page are not whole pages of 4,096 bytes: align them, or copy"
    )]
    Misaligned {
        /// Bytes to pin.
        bytes: usize,
        /// Offset of the first byte in its page.
        off: usize,
    },
    /// The pool's cap or its pinner refused.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// The state of a pin: its token, its pinner and its charge.
struct PinHold {
    token: PinToken,
    pinner: Arc<dyn MemoryPinner>,
    charge: CapCharge,
}

/// Memory that is pinned as long as this value lives. Derefs to its bytes.
pub struct PinnedMemory<M: PinnableMemory> {
    /// Both fields are `None` only while the value is taken apart.
    memory: Option<M>,
    hold: Option<PinHold>,
}

impl Pool {
    /// Pins the caller's memory in place. [`PinnedMemory::into_memory`] returns it.
    ///
    /// # Errors
    /// [`DynamicError`] with the memory: nothing is pinned, nothing is counted.
    pub fn import<M: PinnableMemory>(&self, memory: M) -> Result<PinnedMemory<M>, (M, DynamicError)> {
        let charge = check_pages(&memory).and_then(|bytes| Ok(self.charge(PinTier::Dynamic, bytes)?));
        self.pin_charged(memory, charge)
    }

    /// Pins as [`import`](Self::import); blocks this thread in the wait queue for at most `span` until the cap has room.
    ///
    /// # Errors
    /// [`PoolError::Timeout`] in a [`DynamicError`] if it had none in time; else as for [`import`](Self::import).
    pub fn import_within<M: PinnableMemory>(
        &self,
        memory: M,
        span: Nanos,
    ) -> Result<PinnedMemory<M>, (M, DynamicError)> {
        let charge =
            check_pages(&memory).and_then(|bytes| Ok(self.charge_within(PinTier::Dynamic, bytes, span)?));
        self.pin_charged(memory, charge)
    }

    /// Returns a future that pins the caller's memory as [`import`](Self::import) does, and waits in the wait queue until
    /// the cap has room. Dropping it cancels the request and drops the memory.
    pub fn import_async<M: PinnableMemory + Unpin>(&self, memory: M) -> ImportFuture<M> {
        ImportFuture { pool: self.clone(), memory: Some(memory), waiter: None }
    }

    /// Charges as [`charge`](Self::charge); blocks this thread in the wait queue for at most `span`.
    ///
    /// # Errors
    /// [`PoolError::Timeout`] if the cap had no room in time; else as for [`charge`](Self::charge).
    pub fn charge_within(&self, tier: PinTier, bytes: usize, span: Nanos) -> Result<CapCharge, PoolError> {
        match self.charge(tier, bytes) {
            Err(PoolError::WouldBlock { .. }) => ChargeWaiter::join(self.state, tier, bytes).wait(span),
            other => other,
        }
    }

    /// Pins memory whose charge was taken.
    fn pin_charged<M: PinnableMemory>(
        &self,
        memory: M,
        charge: Result<CapCharge, DynamicError>,
    ) -> Result<PinnedMemory<M>, (M, DynamicError)> {
        match charge {
            Ok(charge) => {
                let pinned = self.pin(memory, charge).map_err(|(memory, error)| (memory, error.into()))?;
                self.state.imported.fetch_add(1, Ordering::Relaxed);
                Ok(pinned)
            }
            Err(error) => Err((memory, error)),
        }
    }

    fn pin<M: PinnableMemory>(
        &self,
        memory: M,
        charge: CapCharge,
    ) -> Result<PinnedMemory<M>, (M, PoolError)> {
        let pinner = Arc::clone(&self.config().pinner);
        match pinner.pin(memory.address(), charge.bytes()) {
            Ok(token) => {
                Ok(PinnedMemory { memory: Some(memory), hold: Some(PinHold { token, pinner, charge }) })
            }
            Err(error) => Err((memory, error.into())),
        }
    }
}

/// Returns the bytes to pin, if they are whole pages.
fn check_pages(memory: &impl PinnableMemory) -> Result<usize, DynamicError> {
    let (bytes, off) = (memory.pin_bytes(), memory.address() % PAGE_BYTES);
    if bytes == 0 {
        return Err(DynamicError::Empty);
    }
    if off != 0 || !bytes.is_multiple_of(PAGE_BYTES) {
        return Err(DynamicError::Misaligned { bytes, off });
    }
    Ok(bytes)
}

/// A future for an import. Dropping it cancels the request in any state, and drops the memory.
#[must_use = "a future does nothing unless it is polled"]
pub struct ImportFuture<M: PinnableMemory + Unpin> {
    pool: Pool,
    /// `None` once the future is ready.
    memory: Option<M>,
    waiter: Option<ChargeWaiter>,
}

impl<M: PinnableMemory + Unpin> ImportFuture<M> {
    /// Returns the charge, or registers the waker in the wait queue.
    fn poll_charge(&mut self, bytes: usize, context: &Context<'_>) -> Poll<Result<CapCharge, PoolError>> {
        if let Some(waiter) = &mut self.waiter {
            return waiter.poll_wake(context);
        }
        match self.pool.charge(PinTier::Dynamic, bytes) {
            Err(PoolError::WouldBlock { .. }) => {
                let waiter = ChargeWaiter::join(self.pool.state, PinTier::Dynamic, bytes);
                self.waiter.insert(waiter).poll_wake(context)
            }
            other => Poll::Ready(other),
        }
    }
}

impl<M: PinnableMemory + Unpin> Future for ImportFuture<M> {
    type Output = Result<PinnedMemory<M>, (M, DynamicError)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(checked) = self.memory.as_ref().map(check_pages) else { return Poll::Pending };
        let charge = match checked.map(|bytes| self.poll_charge(bytes, context)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(charge)) => charge.map_err(DynamicError::from),
            Err(error) => Err(error),
        };
        match self.memory.take() {
            Some(memory) => Poll::Ready(self.pool.pin_charged(memory, charge)),
            None => Poll::Pending,
        }
    }
}

impl<M: PinnableMemory + Unpin> fmt::Debug for ImportFuture<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImportFuture({} bytes)", self.memory.as_ref().map_or(0, PinnableMemory::pin_bytes))
    }
}

impl<M: PinnableMemory> PinnedMemory<M> {
    /// Lends the bytes to a device.
    pub fn lend(self) -> LentBuffer<Self>
    where
        M: Deref<Target = [u8]>,
    {
        LentBuffer::new(self)
    }

    /// Returns the memory.
    ///
    /// # Panics
    /// Never: the memory is taken only with the value.
    #[must_use]
    pub fn memory(&self) -> &M {
        match &self.memory {
            Some(memory) => memory,
            None => unreachable!("pinned memory is taken apart once, by value"),
        }
    }

    /// Unpins the memory and returns it.
    ///
    /// # Errors
    /// It could not be unpinned. A device may still access it, so it is kept permanently.
    pub fn into_memory(mut self) -> Result<M, PinError> {
        let memory = self.memory.take();
        match self.unpin() {
            Ok(()) => match memory {
                Some(memory) => Ok(memory),
                None => unreachable!("pinned memory is taken apart once, by value"),
            },
            Err(error) => {
                leak_value(memory);
                Err(error)
            }
        }
    }

    /// Returns the device segment of `bytes` bytes from `at` on, which must lie inside.
    #[must_use]
    pub fn segment(&self, at: usize, bytes: usize) -> Option<DeviceSegment> {
        let token = self.hold.as_ref()?.token;
        let offset = u64::try_from(at).ok()?;
        Some(DeviceSegment {
            address: token.address + at,
            bytes,
            iova: token.iova.map(|iova| iova + offset),
            slot: token.slot.map(|slot| (slot, at)),
        })
    }

    fn unpin(&mut self) -> Result<(), PinError> {
        let Some(hold) = self.hold.take() else { return Ok(()) };
        let unpinned = hold.pinner.unpin(hold.token);
        if unpinned.is_err() {
            // Still pinned, so still counted.
            leak_value(hold.charge);
        }
        unpinned
    }
}

/// Leaks a value, so that its memory is never reused.
#[expect(
    clippy::mem_forget,
    reason = "a device may still access the memory, so it must neither be freed nor handed out"
)]
fn leak_value<T>(thing: T) {
    std::mem::forget(thing);
}

impl<M: PinnableMemory> Drop for PinnedMemory<M> {
    fn drop(&mut self) {
        let memory = self.memory.take();
        if self.unpin().is_err() {
            leak_value(memory);
        }
    }
}

impl<M: PinnableMemory + Deref<Target = [u8]>> Deref for PinnedMemory<M> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_deref().unwrap_or_default()
    }
}

impl<M: PinnableMemory + DerefMut<Target = [u8]>> DerefMut for PinnedMemory<M> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_deref_mut().unwrap_or_default()
    }
}

impl<M: PinnableMemory + Deref<Target = [u8]>> LendableMemory for PinnedMemory<M> {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn segments(&self) -> Vec<DeviceSegment> {
        self.segment(0, self.len()).into_iter().collect()
    }

    fn quarantine(mut self) {
        leak_value((self.memory.take(), self.hold.take()));
    }
}

impl<M: PinnableMemory> fmt::Debug for PinnedMemory<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedMemory({} bytes)", self.hold.as_ref().map_or(0, |hold| hold.token.bytes))
    }
}
