//! A pinner that locks pages in memory.
//!
//! Input: ranges. Output: locked ranges. Invariant: a range that cannot be locked completely is not left locked in
//! part.
//!
//! # What this does not do
//! The kernel may still migrate locked pages: a device needs a pinner that maps them for it.

use super::{MemoryPinner, PinError, PinToken, within_memlock};
use headwater_host::pinning::{MemoryRange, lock, unlock};

/// A pinner that locks memory by `mlock`, so that no access waits for a fault or for swap.
#[derive(Clone, Copy, Debug, Default)]
pub struct MlockPinner;

impl MemoryPinner for MlockPinner {
    fn name(&self) -> &'static str {
        "mlock"
    }

    fn preflight(&self, bytes: usize) -> Result<(), PinError> {
        within_memlock(bytes)
    }

    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError> {
        let memory = MemoryRange::at(address, bytes);
        match lock(memory) {
            Ok(()) => Ok(PinToken::at(address, bytes)),
            Err(error) => {
                // Pages before the one that failed may be locked. If the unlock fails they count, without other harm.
                let _ = unlock(memory);
                Err(error.into())
            }
        }
    }

    fn unpin(&self, token: PinToken) -> Result<(), PinError> {
        Ok(unlock(MemoryRange::at(token.address, token.bytes))?)
    }
}
