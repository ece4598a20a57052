//! Pages that the kernel must keep in memory.
//!
//! In: ranges. Out: locked ranges. Invariant: what could not be locked whole is not locked in part.
//!
//! # What this does not do
//! The kernel may still move locked pages: a device needs a pinner that knows it.

use super::{PinError, PinToken, Pinner, within_memlock};
use headwater_host::pinning::{Memory, lock, unlock};

/// Locks memory by `mlock`, so that nothing waits for a fault or for swap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mlock;

impl Pinner for Mlock {
    fn name(&self) -> &'static str {
        "mlock"
    }

    fn preflight(&self, bytes: usize) -> Result<(), PinError> {
        within_memlock(bytes)
    }

    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError> {
        let memory = Memory::at(address, bytes);
        match lock(memory) {
            Ok(()) => Ok(PinToken::at(address, bytes)),
            Err(error) => {
                // Pages before the one that failed may be locked. If they stay so, they count, and do no other harm.
                let _ = unlock(memory);
                Err(error.into())
            }
        }
    }

    fn unpin(&self, token: PinToken) -> Result<(), PinError> {
        Ok(unlock(Memory::at(token.address, token.bytes))?)
    }
}
