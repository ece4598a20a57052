//! A doorbell of the host as the controller receives it, and the controller's request for the next ring.
//!
//! Input: positions, from a word of a pair's own rings, a register, or a cell of shared memory. Output: the same, not
//! validated, as 64 bits. Invariant: while the controller is awake, the handshake gives the host no reason to write a
//! register; after [`arm`](HostDoorbell::arm) the next step of the host is announced, or was visible already.
//!
//! Cells are NVMe's shadow doorbells and EventIdx (Base 2.0 section 5.8). A host compares 16 bits: it writes the
//! register if its move left the position in EventIdx. So an awake controller stores the position *before* the last
//! that it saw there: to leave it, a host would have to go round the whole queue, which needs more entries than the
//! queue holds.

use crate::ring::doorbell::{arm, disarm};
use crate::ring::layout::{DoorbellWords, QueueSlots};
use headwater_host::ring_memory::RingMemory;

/// The place where one doorbell arrives.
#[derive(Debug)]
pub(crate) enum HostDoorbell<M> {
    /// Words of the pair's own ring memory: the position, and the position at which the controller wants to be woken.
    Ring(DoorbellWords),
    /// A register: its last value. The write to the register wakes the controller.
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
    /// EventIdx of each. Without it the host never announces a ring.
    pub(crate) events: Option<M>,
    /// Index of the cell in both.
    pub(crate) cell: usize,
}

impl<M: RingMemory> HostDoorbell<M> {
    /// Returns the host's last position, which may not be announced yet. `ring` is the pair's memory.
    #[inline]
    pub(crate) fn load(&self, ring: &M) -> u64 {
        match self {
            Self::Ring(words) => ring.load_acquire(words.position),
            Self::Register { value } => u64::from(*value),
            Self::Cell(shared) => u64::from(shared.doorbells.load_cell_acquire(shared.cell)),
        }
    }

    /// Stores a value written to the register. Returns false if the doorbell is in memory and the write only a wake-up.
    pub(crate) fn write(&mut self, written: u32) -> bool {
        match self {
            Self::Register { value } => {
                *value = written;
                true
            }
            Self::Ring(_) | Self::Cell(_) => false,
        }
    }

    /// Moves the doorbell to a cell, which starts with the present value.
    pub(crate) fn share(&mut self, ring: &M, cell: DoorbellCell<M>) {
        // An invalid value stays invalid.
        let value = u32::try_from(self.load(ring)).unwrap_or(u32::MAX);
        cell.doorbells.store_cell_release(cell.cell, value);
        *self = Self::Cell(cell);
    }

    /// Stores the position that an awake controller has seen.
    #[inline]
    pub(crate) fn store_seen(&self, slots: QueueSlots, position: u32) {
        if let Self::Cell(shared) = self {
            shared.store_event(slots.before(position));
        }
    }

    /// Arms a wake-up when the position moves on from `store_seen`. The caller must check once more before it sleeps.
    pub(crate) fn arm(&self, ring: &M, seen: u32) {
        match self {
            Self::Ring(words) => arm(ring, words.event, seen),
            Self::Register { .. } => {}
            Self::Cell(shared) => {
                shared.store_event(seen);
                // Between this request and the caller's last check; the host has one between its move and its check for
                // a request.
                ring.fence();
            }
        }
    }

    /// Announces that the controller, which last saw `store_seen`, is awake.
    pub(crate) fn disarm(&self, ring: &M, slots: QueueSlots, seen: u32) {
        match self {
            Self::Ring(words) => disarm(ring, words.event),
            Self::Register { .. } | Self::Cell(_) => self.store_seen(slots, seen),
        }
    }

    /// Returns true if the host, once requested, announces its rings.
    pub(crate) fn sends_notifications(&self) -> bool {
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
