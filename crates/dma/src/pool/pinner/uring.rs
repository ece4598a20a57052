//! A pinner that registers memory with an io_uring ring.
//!
//! Input: ranges. Output: the buffer number of each. Invariant: a number identifies one chunk of the pool from before
//! its first buffer is handed out until after its last one is returned.

use super::{MemoryPinner, PinError, PinToken, within_budget};
use headwater_host::pinning::uring::BufferTable;
use headwater_host::pinning::{MemlockBudget, MemoryRange};
use std::fmt;
use std::sync::Arc;

/// A pinner that registers memory in the buffer table of a ring
/// ([`FileRing::table`](headwater_host::uring::FileRing::table)).
pub struct UringPinner {
    table: Arc<BufferTable>,
}

impl UringPinner {
    /// Creates a pinner for the ring of this table. Each chunk uses one number.
    #[must_use]
    pub fn new(table: Arc<BufferTable>) -> Self {
        Self { table }
    }

    /// Returns the buffer table.
    #[must_use]
    pub fn table(&self) -> &BufferTable {
        &self.table
    }
}

impl MemoryPinner for UringPinner {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    /// Checks the limit of locked memory. Memory that rings of this process have registered counts. Memory that io_uring has
    /// registered for other processes of the user counts too but is not visible, so a size that passes can still end in
    /// [`PinError::LimitReached`].
    fn preflight(&self, bytes: usize) -> Result<(), PinError> {
        within_budget(MemlockBudget::read().of_registrations(), bytes)
    }

    /// Returns false: one transfer names one number.
    fn can_merge(&self) -> bool {
        false
    }

    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError> {
        let slot = self.table.register(&[MemoryRange::at(address, bytes)])?;
        Ok(PinToken { slot: Some(slot), ..PinToken::at(address, bytes) })
    }

    fn unpin(&self, token: PinToken) -> Result<(), PinError> {
        let known =
            |slot: &u32| self.table.slot_memory(*slot) == Some(MemoryRange::at(token.address, token.bytes));
        let Some(slot) = token.slot.filter(known) else {
            return Err(PinError::Short { bytes: token.bytes, unpinned: 0 });
        };
        Ok(self.table.unregister(slot..slot + 1)?)
    }
}

impl fmt::Debug for UringPinner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UringPinner({:?})", self.table)
    }
}
