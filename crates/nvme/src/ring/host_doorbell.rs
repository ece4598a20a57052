//! Where a doorbell of the host arrives at the controller, and how the controller asks for the next one.
//!
//! In: positions, from a word of a pair's own rings, a register, or a cell of shared memory. Out: the same, unjudged, as
//! 64 bits. Invariant: while the controller is awake no host has a reason to leave its own memory; after
//! [`arm`](HostDoorbell::arm) the next step of the host is announced, or was there to see.
//!
//! Cells are NVMe's shadow doorbells and EventIdx (Base 2.0 section 5.8). A host compares 16 bits: it writes the register
//! when its move left the position in EventIdx. So an awake controller keeps the position *before* the last that it saw
//! there: a host would have to go round the whole queue to leave it, and that many entries it has not.

use crate::ring::doorbell::{arm, disarm};
use crate::ring::layout::QueueSlots;
use headwater_host::ring_memory::RingMemory;

/// Where one doorbell arrives.
#[derive(Debug)]
pub(crate) enum HostDoorbell<M> {
    /// Words of the pair's own ring memory: the position, and the position at which the controller wants to be woken.
    Ring {
        /// Written by the host.
        position: usize,
        /// Written by the controller.
        event: usize,
    },
    /// A register: what was written last. Whoever writes it wakes the controller.
    Register {
        /// The last value.
        value: u32,
    },
    /// A cell of memory.
    Cell(DoorbellCell<M>),
}

/// A doorbell in shared memory.
#[derive(Debug)]
pub(crate) struct DoorbellCell<M> {
    /// The host's doorbells.
    pub(crate) doorbells: M,
    /// EventIdx of each. Without it the host never says that it rang.
    pub(crate) events: Option<M>,
    /// Number of the cell in both.
    pub(crate) cell: usize,
}

impl<M: RingMemory> HostDoorbell<M> {
    /// What the host rang last, and what it wrote before it rang. `ring` is the pair's memory.
    #[inline]
    pub(crate) fn load(&self, ring: &M) -> u64 {
        match self {
            Self::Ring { position, .. } => ring.load_acquire(*position),
            Self::Register { value } => u64::from(*value),
            Self::Cell(shared) => u64::from(shared.doorbells.load_cell_acquire(shared.cell)),
        }
    }

    /// Takes what was written to the register. False if the doorbell lives in memory and the write was only a call.
    pub(crate) fn write(&mut self, written: u32) -> bool {
        match self {
            Self::Register { value } => {
                *value = written;
                true
            }
            Self::Ring { .. } | Self::Cell(_) => false,
        }
    }

    /// Moves the doorbell to a cell, which starts with what was rung so far.
    pub(crate) fn share(&mut self, ring: &M, cell: DoorbellCell<M>) {
        // A value that was impossible before stays so.
        let value = u32::try_from(self.load(ring)).unwrap_or(u32::MAX);
        cell.doorbells.store_cell_release(cell.cell, value);
        *self = Self::Cell(cell);
    }

    /// An awake controller saw this position.
    #[inline]
    pub(crate) fn seen(&self, slots: QueueSlots, position: u32) {
        if let Self::Cell(shared) = self {
            shared.store_event(slots.before(position));
        }
    }

    /// Asks to be woken when the position moves on from `seen`. The caller must look once more before it sleeps.
    pub(crate) fn arm(&self, ring: &M, seen: u32) {
        match self {
            Self::Ring { event, .. } => arm(ring, *event, seen),
            Self::Register { .. } => {}
            Self::Cell(shared) => {
                shared.store_event(seen);
                // Between the wish and the last look; the host has one between its move and its look at the wish.
                ring.fence();
            }
        }
    }

    /// Says that the controller, which last saw `seen`, is awake.
    pub(crate) fn disarm(&self, ring: &M, slots: QueueSlots, seen: u32) {
        match self {
            Self::Ring { event, .. } => disarm(ring, *event),
            Self::Register { .. } | Self::Cell(_) => self.seen(slots, seen),
        }
    }

    /// Whether the host, once asked, says that it rang.
    pub(crate) fn announces(&self) -> bool {
        !matches!(self, Self::Cell(DoorbellCell { events: None, .. }))
    }
}

impl<M: RingMemory> DoorbellCell<M> {
    #[inline]
    fn store_event(&self, position: u32) {
        if let Some(events) = &self.events {
            events.store_cell_relaxed(self.cell, position);
        }
    }
}
