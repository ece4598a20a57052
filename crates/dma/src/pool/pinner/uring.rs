//! Memory that a ring of the kernel's knows by number.
//!
//! In: ranges. Out: the number of each. Invariant: a number stands for one chunk of the pool from before its first buffer is
//! given out until after its last one is back.

use super::{PinError, PinToken, Pinner, within_memlock};
use headwater_host::pinning::Memory;
use headwater_host::pinning::uring::BufferTable;
use std::fmt;
use std::sync::Arc;

/// Registers memory with the table of a ring ([`FileRing::table`](headwater_host::uring::FileRing::table)).
pub struct UringBuffers {
    table: Arc<BufferTable>,
}

impl UringBuffers {
    /// A pinner for the ring of this table. One number is used for each chunk.
    #[must_use]
    pub fn new(table: Arc<BufferTable>) -> Self {
        Self { table }
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &BufferTable {
        &self.table
    }
}

impl Pinner for UringBuffers {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    /// What io_uring has registered already counts for the user and is shown nowhere, so a plan that passes can still end
    /// in [`PinError::LimitReached`].
    fn preflight(&self, bytes: usize) -> Result<(), PinError> {
        within_memlock(bytes)
    }

    /// One transfer names one number.
    fn joins(&self) -> bool {
        false
    }

    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError> {
        let slot = self.table.register(&[Memory::at(address, bytes)])?;
        Ok(PinToken { slot: Some(slot), ..PinToken::at(address, bytes) })
    }

    fn unpin(&self, token: PinToken) -> Result<(), PinError> {
        let known = |slot: &u32| self.table.at(*slot) == Some(Memory::at(token.address, token.bytes));
        let Some(slot) = token.slot.filter(known) else {
            return Err(PinError::Short { bytes: token.bytes, unpinned: 0 });
        };
        Ok(self.table.unregister(slot..slot + 1)?)
    }
}

impl fmt::Debug for UringBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UringBuffers({:?})", self.table)
    }
}
