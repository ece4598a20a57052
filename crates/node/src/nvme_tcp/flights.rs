//! Commands that the device has, and what becomes of their completions.
//!
//! In: accepted commands. Out: the same, by the number that the device knows them by. Invariant: a slot is taken exactly
//! while its command is in flight.

use headwater_converged::request::Answer;
use headwater_nvme::fabrics::{ConnectionId, ControllerId};
use headwater_nvme::tcp::Slot;

/// What a completion of the device is for.
#[derive(Debug)]
pub(super) enum Flight {
    /// A command of an I/O queue.
    Io {
        /// Who is answered.
        connection: ConnectionId,
        /// Which command.
        slot: Slot,
        /// How.
        answer: Answer,
        /// Bytes for which room was made.
        owed: usize,
    },
    /// An admin command that changes namespaces.
    Namespace {
        /// Who is answered.
        connection: ConnectionId,
        /// Which command.
        slot: Slot,
    },
    /// The flush of a controller's shutdown.
    Shutdown(ControllerId),
}

/// The slab.
#[derive(Debug, Default)]
pub(super) struct Flights {
    slots: Vec<Option<Flight>>,
    vacant: Vec<usize>,
}

impl Flights {
    #[inline]
    pub(super) fn insert(&mut self, flight: Flight) -> u64 {
        let at = match self.vacant.pop() {
            Some(at) => {
                self.slots[at] = Some(flight);
                at
            }
            None => {
                self.slots.push(Some(flight));
                self.slots.len() - 1
            }
        };
        at as u64
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Flight> {
        self.slots.get_mut(usize::try_from(number).ok()?)?.as_mut()
    }

    #[inline]
    pub(super) fn remove(&mut self, number: u64) -> Option<Flight> {
        let at = usize::try_from(number).ok()?;
        let flight = self.slots.get_mut(at)?.take()?;
        self.vacant.push(at);
        Some(flight)
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }
}
