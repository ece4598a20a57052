//! The dynamic tier: memory pinned for one request (uDMA, section 4.1), or the caller's own memory, used in place.
//!
//! Input: lengths, or memory by value. Output: [`PinnedMemory`] memory, which counts against the pool's cap and is pinned
//! exactly as long as it lives. Invariant: memory that a device may still access is never reused: memory that is lent
//! and not completed, or cannot be unpinned, stays pinned, counted and unused.
//!
//! Imported memory is taken by value, not borrowed: a borrow ends when its value is forgotten, but a device's access
//! does not. So two imports never overlap, and as only whole pages are accepted, their pins do not overlap either.

use super::{CapCharge, MemoryPinner, PinError, PinTier, PinToken, Pool, PoolError};
use crate::buffer::{DeviceSegment, LendableMemory, LentBuffer};
use crate::pool::staging::StagingMemory;
use headwater_host::mapped_region::{MappedRegion, RegionError};
use headwater_host::reservation::PAGE_BYTES;
use headwater_host::shared_memory::SharedMemory;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

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
    /// The request has no bytes.
    #[error("a request for 0 bytes: request at least 1")]
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
    /// The kernel refused memory.
    #[error(transparent)]
    Region(#[from] RegionError),
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
    /// Returns `bytes` zeroed bytes, pinned for one request.
    ///
    /// # Errors
    /// [`DynamicError`]: nothing is pinned, nothing is counted.
    pub fn pin_for_request(&self, bytes: usize) -> Result<PinnedMemory<MappedRegion>, DynamicError> {
        // The cap is checked before the kernel allocates.
        let Some(pin_bytes) = bytes.checked_next_multiple_of(PAGE_BYTES) else {
            return Err(PoolError::Overflow { bytes }.into());
        };
        if bytes == 0 {
            return Err(DynamicError::Empty);
        }
        let charge = self.charge(PinTier::Dynamic, pin_bytes)?;
        Ok(self.pin(MappedRegion::zeroed(bytes)?, charge).map_err(|(_, error)| error)?)
    }

    /// Pins the caller's memory in place. [`PinnedMemory::into_memory`] returns it.
    ///
    /// # Errors
    /// [`DynamicError`] with the memory: nothing is pinned, nothing is counted.
    pub fn import<M: PinnableMemory>(&self, memory: M) -> Result<PinnedMemory<M>, (M, DynamicError)> {
        self.pin_as(PinTier::Dynamic, memory)
    }

    /// Pins memory for a tier.
    pub(super) fn pin_as<M: PinnableMemory>(
        &self,
        tier: PinTier,
        memory: M,
    ) -> Result<PinnedMemory<M>, (M, DynamicError)> {
        let bytes = memory.pin_bytes();
        let off = memory.address() % PAGE_BYTES;
        if bytes == 0 {
            return Err((memory, DynamicError::Empty));
        }
        if off != 0 || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err((memory, DynamicError::Misaligned { bytes, off }));
        }
        match self.charge(tier, bytes) {
            Ok(charge) => self.pin(memory, charge).map_err(|(memory, error)| (memory, error.into())),
            Err(error) => Err((memory, error.into())),
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

impl<M: PinnableMemory> PinnedMemory<M> {
    /// Lends the bytes to a device.
    pub fn lend(self) -> LentBuffer<Self>
    where
        M: Deref<Target = [u8]>,
    {
        LentBuffer::new(self)
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

/// A block of the static tier: accessed by copies only, as devices use other slots of it.
impl StagingMemory for PinnedMemory<SharedMemory> {
    fn bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, SharedMemory::bytes)
    }

    fn copy_to(&self, at: usize, into: &mut [u8]) {
        if let Some(memory) = &self.memory {
            memory.copy_to(at, into);
        }
    }

    fn copy_from(&mut self, at: usize, from: &[u8]) {
        if let Some(memory) = &mut self.memory {
            memory.copy_from(at, from);
        }
    }
}

impl<M: PinnableMemory> fmt::Debug for PinnedMemory<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedMemory({} bytes)", self.hold.as_ref().map_or(0, |hold| hold.token.bytes))
    }
}
