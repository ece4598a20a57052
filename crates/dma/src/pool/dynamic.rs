//! The dynamic tier: memory that is pinned for one request (uDMA, section 4.1), or the caller's own, used in place.
//!
//! In: lengths, or memory by value. Out: [`Pinned`] memory: counted against the pool's cap and pinned for exactly as long
//! as it lives. Invariant: memory that a device may still reach is never used again: what is lent and not completed, or
//! cannot be unpinned, stays pinned, counted, and nobody's.
//!
//! Imported memory is taken by value, not borrowed: a borrow ends when its value is forgotten, and a device does not
//! notice. So two imports never overlap, and as only whole pages are taken, neither do their pins.

use super::{Charge, PinError, PinToken, Pinner, Pool, PoolError, Tier};
use crate::buffer::{DeviceSegment, Lendable, Lent};
use crate::pool::staging::StagingMemory;
use headwater_host::foreign::Foreign;
use headwater_host::region::{Region, RegionError};
use headwater_host::reservation::PAGE_BYTES;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Memory that keeps its place when its value is moved, and that nobody else uses as long as the value is there.
pub trait Pinnable: Send + 'static {
    /// First address.
    fn address(&self) -> usize;
    /// Bytes to pin: whole pages that belong to the value, if the address is on a page.
    fn pin_bytes(&self) -> usize;
}

/// Its mapping is made of whole pages, whatever its length.
impl Pinnable for Region {
    fn address(&self) -> usize {
        self.as_ptr().addr()
    }

    fn pin_bytes(&self) -> usize {
        self.len().next_multiple_of(PAGE_BYTES)
    }
}

impl Pinnable for Foreign {
    fn address(&self) -> usize {
        Self::address(self)
    }

    fn pin_bytes(&self) -> usize {
        self.bytes().next_multiple_of(PAGE_BYTES)
    }
}

impl Pinnable for Vec<u8> {
    fn address(&self) -> usize {
        self.as_ptr().addr()
    }

    fn pin_bytes(&self) -> usize {
        self.len()
    }
}

impl Pinnable for Box<[u8]> {
    fn address(&self) -> usize {
        self.as_ptr().addr()
    }

    fn pin_bytes(&self) -> usize {
        self.len()
    }
}

/// Why memory was not pinned for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DynamicError {
    /// No bytes.
    #[error("no bytes to pin: leave the request out")]
    Empty,
    /// The memory shares a page with somebody else's, whose pin would end with this one.
    #[error(
        "{bytes} bytes that start {off} bytes behind a page border are no whole pages of 4,096 bytes: align them, or copy"
    )]
    Misaligned {
        /// Bytes to pin.
        bytes: usize,
        /// How far the first is behind a page border.
        off: usize,
    },
    /// The kernel gave no memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The pool's cap, or its pinner, says no.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// What of a pin stands.
struct Hold {
    token: PinToken,
    pinner: Arc<dyn Pinner>,
    charge: Charge,
}

/// Memory that is pinned as long as this value lives. Derefs to its bytes.
pub struct Pinned<M: Pinnable> {
    /// Both are empty only while the value is taken apart.
    memory: Option<M>,
    hold: Option<Hold>,
}

impl Pool {
    /// Memory of so many zeroed bytes, pinned for one request.
    ///
    /// # Errors
    /// [`DynamicError`]: nothing is pinned, nothing is counted.
    pub fn pin_for_request(&self, bytes: usize) -> Result<Pinned<Region>, DynamicError> {
        // The cap is asked before the kernel is.
        let Some(pin_bytes) = bytes.checked_next_multiple_of(PAGE_BYTES) else {
            return Err(PoolError::Overflow { bytes }.into());
        };
        if bytes == 0 {
            return Err(DynamicError::Empty);
        }
        let charge = self.charge(Tier::Dynamic, pin_bytes)?;
        Ok(self.pin(Region::zeroed(bytes)?, charge).map_err(|(_, error)| error)?)
    }

    /// Pins the caller's memory where it is. It comes back by [`Pinned::into_memory`].
    ///
    /// # Errors
    /// [`DynamicError`] with the memory: nothing is pinned, nothing is counted.
    pub fn import<M: Pinnable>(&self, memory: M) -> Result<Pinned<M>, (M, DynamicError)> {
        self.pin_as(Tier::Dynamic, memory)
    }

    /// Pins memory for a tier.
    pub(super) fn pin_as<M: Pinnable>(&self, tier: Tier, memory: M) -> Result<Pinned<M>, (M, DynamicError)> {
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

    fn pin<M: Pinnable>(&self, memory: M, charge: Charge) -> Result<Pinned<M>, (M, PoolError)> {
        let pinner = Arc::clone(&self.config().pinner);
        match pinner.pin(memory.address(), charge.bytes()) {
            Ok(token) => Ok(Pinned { memory: Some(memory), hold: Some(Hold { token, pinner, charge }) }),
            Err(error) => Err((memory, error.into())),
        }
    }
}

impl<M: Pinnable> Pinned<M> {
    /// Gives the bytes into a device's hands.
    pub fn lend(self) -> Lent<Self>
    where
        M: Deref<Target = [u8]>,
    {
        Lent::new(self)
    }

    /// Unpins the memory and gives it back.
    ///
    /// # Errors
    /// It could not be unpinned. A device may still reach it, so that it is kept for good.
    pub fn into_memory(mut self) -> Result<M, PinError> {
        let memory = self.memory.take();
        match self.unpin() {
            Ok(()) => match memory {
                Some(memory) => Ok(memory),
                None => unreachable!("pinned memory is taken apart once, by value"),
            },
            Err(error) => {
                keep_for_good(memory);
                Err(error)
            }
        }
    }

    /// Where a device finds `bytes` of it, from `at` on. They lie in it.
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
            keep_for_good(hold.charge);
        }
        unpinned
    }
}

/// Lets nobody have a thing again.
#[expect(
    clippy::mem_forget,
    reason = "a device may still reach it, so it must neither be freed nor given out"
)]
fn keep_for_good<T>(thing: T) {
    std::mem::forget(thing);
}

impl<M: Pinnable> Drop for Pinned<M> {
    fn drop(&mut self) {
        let memory = self.memory.take();
        if self.unpin().is_err() {
            keep_for_good(memory);
        }
    }
}

impl<M: Pinnable + Deref<Target = [u8]>> Deref for Pinned<M> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_deref().unwrap_or_default()
    }
}

impl<M: Pinnable + DerefMut<Target = [u8]>> DerefMut for Pinned<M> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_deref_mut().unwrap_or_default()
    }
}

impl<M: Pinnable + Deref<Target = [u8]>> Lendable for Pinned<M> {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn segments(&self) -> Vec<DeviceSegment> {
        self.segment(0, self.len()).into_iter().collect()
    }

    fn abandon(mut self) {
        keep_for_good((self.memory.take(), self.hold.take()));
    }
}

/// A block of the static tier: touched by copies only, as devices work on other slots of it.
impl StagingMemory for Pinned<Foreign> {
    fn bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, Foreign::bytes)
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

impl<M: Pinnable> fmt::Debug for Pinned<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} bytes)", self.hold.as_ref().map_or(0, |hold| hold.token.bytes))
    }
}
