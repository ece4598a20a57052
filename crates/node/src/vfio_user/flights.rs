//! Commands of a guest that the device has, and what becomes of their completions.
//!
//! In: accepted commands. Out: the same, by the number that the device knows them by. Invariant: a slot is taken exactly
//! while its command is in flight.

use headwater_converged::request::Answer;
use headwater_nvme::controller::CommandToken;

/// What a completion of the device is for.
#[derive(Debug)]
pub(super) enum Flight {
    /// A command of an I/O queue.
    Io(CommandToken, Answer),
    /// An admin command that changes namespaces.
    Admin(CommandToken),
    /// The flush of a shutdown.
    Shutdown,
}

impl Flight {
    /// Ends the duty without an answer.
    pub(super) fn abandon(self) {
        match self {
            Self::Io(token, _) | Self::Admin(token) => token.abandon(),
            Self::Shutdown => {}
        }
    }
}

/// The slab.
#[derive(Debug, Default)]
pub(super) struct Flights {
    slots: Vec<Option<Flight>>,
    vacant: Vec<usize>,
}

impl Flights {
    /// The number that the next [`insert`](Self::insert) takes.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.vacant.last().copied().unwrap_or(self.slots.len()) as u64
    }

    /// Takes the slot that [`next`](Self::next) named.
    #[inline]
    pub(super) fn insert(&mut self, flight: Flight) {
        match self.vacant.pop() {
            Some(at) => self.slots[at] = Some(flight),
            None => self.slots.push(Some(flight)),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Flight> {
        self.slots.get_mut(usize::try_from(number).ok()?)?.as_mut()
    }

    /// The number of a command of an I/O queue, by what its host calls it. Of several the first: after a reset, ask whose
    /// token is current.
    pub(super) fn find(&self, is_it: impl Fn(&CommandToken) -> bool) -> Option<u64> {
        let at = self.slots.iter().position(|slot| match slot {
            Some(Flight::Io(token, _)) => is_it(token),
            _ => false,
        });
        at.map(|at| at as u64)
    }

    #[inline]
    pub(super) fn remove(&mut self, number: u64) -> Option<Flight> {
        let at = usize::try_from(number).ok()?;
        let flight = self.slots.get_mut(at)?.take()?;
        self.vacant.push(at);
        Some(flight)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.len() == self.vacant.len()
    }

    /// Ends every duty without an answer.
    pub(super) fn abandon(&mut self) {
        self.slots.drain(..).flatten().for_each(Flight::abandon);
        self.vacant.clear();
    }
}
