//! Memory of buffers that is registered with a ring, and the count of the bytes.
//!
//! Input: a table, ranges of mapped memory, and a bound. Output: registrations that end when they are dropped. Invariant: bytes
//! count from before the kernel pins them until after it was asked to unpin them; the bytes that count never exceed the bound.
//!
//! Memory that a caller registers with the table itself does not count here.

use super::BufferTable;
use crate::pinning::{MemoryRange, PinError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Bytes that the rings of this process have registered together.
static PROCESS_BYTES: AtomicU64 = AtomicU64::new(0);

/// Returns the bytes that the rings of this process have registered together.
pub(crate) fn process_registered_bytes() -> u64 {
    PROCESS_BYTES.load(Ordering::Relaxed)
}

/// The bytes that a ring has registered, within a bound that it shares with other rings.
#[derive(Clone, Debug)]
pub(crate) struct RegistrationBudget {
    ring_bytes: Arc<AtomicU64>,
    shared_bytes: &'static AtomicU64,
    /// `None` is no bound.
    bound_bytes: Option<u64>,
}

impl RegistrationBudget {
    /// Returns the budget of a ring that shares the bound with every ring of this process.
    pub(crate) fn of_process(bound_bytes: Option<u64>) -> Self {
        Self::sharing(&PROCESS_BYTES, bound_bytes)
    }

    /// Returns the budget of a ring that shares the bound with the rings of the same count.
    pub(crate) fn sharing(shared_bytes: &'static AtomicU64, bound_bytes: Option<u64>) -> Self {
        Self { ring_bytes: Arc::default(), shared_bytes, bound_bytes }
    }

    /// Returns the bytes that the ring has registered.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.ring_bytes.load(Ordering::Relaxed)
    }

    /// Counts bytes if the bound allows them. Returns true if it does.
    fn take(&self, bytes: u64) -> bool {
        let within = |all: &u64| self.bound_bytes.is_none_or(|bound| *all <= bound);
        let next = |taken: u64| taken.checked_add(bytes).filter(within);
        let is_taken = self.shared_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok();
        if is_taken {
            self.ring_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        is_taken
    }

    fn give_back(&self, bytes: u64) {
        self.ring_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.shared_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A slot of a ring's table with memory. The slot is emptied when this is dropped, which any thread may do.
#[derive(Debug)]
pub(crate) struct SlotRegistration {
    /// The kernel unpins the memory itself once the ring is closed.
    table: Weak<BufferTable>,
    slot: u32,
    bytes: u64,
    budget: RegistrationBudget,
}

impl SlotRegistration {
    /// Registers memory in a free slot.
    ///
    /// # Errors
    /// As [`BufferTable::register`]; `None` if the bound of the budget does not allow the bytes now.
    pub(crate) fn new(
        table: &Arc<BufferTable>,
        memory: MemoryRange,
        budget: &RegistrationBudget,
    ) -> Result<Self, Option<PinError>> {
        let bytes = memory.bytes() as u64;
        if !budget.take(bytes) {
            return Err(None);
        }
        match table.register(&[memory]) {
            Ok(slot) => Ok(Self { table: Arc::downgrade(table), slot, bytes, budget: budget.clone() }),
            Err(error) => {
                budget.give_back(bytes);
                Err(Some(error))
            }
        }
    }

    /// Returns the number of the slot.
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }
}

impl Drop for SlotRegistration {
    fn drop(&mut self) {
        let emptied =
            self.table.upgrade().is_none_or(|table| table.unregister(self.slot..self.slot + 1).is_ok());
        // A slot that the kernel does not empty stays taken, and its bytes count.
        if emptied {
            self.budget.give_back(self.bytes);
        }
    }
}
