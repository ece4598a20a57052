//! The state of a controller, shared with its queues on other threads: one atomic word.
//!
//! Input: state changes by the driver. Output: whether a queue may ring, and whether its commands are lost. Invariant:
//! the epoch advances only when the controller certainly accesses no memory of the previous epoch, so commands of that
//! epoch may be failed and their buffers reused.

use headwater_host::sync::{AtomicU32, Ordering};
use std::sync::Arc;

/// The phase of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It is being enabled, for the first time or after a reset.
    Starting,
    /// It accepts commands.
    Ready,
    /// It is being reset or shut down: completions may still arrive, new commands must wait.
    Recovering,
    /// It failed, was removed or was closed, and accesses no memory.
    Dead,
}

/// The state of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It accepts commands.
    Live,
    /// Its controller is being reset: wait.
    Waiting,
    /// A reset invalidated it: its commands are lost, and it can be created again.
    Lost,
    /// The controller is dead.
    Dead,
}

const PHASE_BITS: u32 = 2;

/// The epoch and phase of a controller in one atomic word. A clone is another handle to it.
#[derive(Clone, Debug)]
pub struct Life {
    word: Arc<AtomicU32>,
}

impl Life {
    pub(super) fn new() -> Self {
        Self { word: Arc::new(AtomicU32::new(encode(0, Phase::Starting))) }
    }

    /// Returns the phase of the controller.
    #[must_use]
    pub fn phase(&self) -> Phase {
        decode(self.word.load(Ordering::Acquire)).1
    }

    pub(super) fn epoch(&self) -> u32 {
        decode(self.word.load(Ordering::Acquire)).0
    }

    /// Returns true if a queue of that epoch may ring.
    #[inline]
    pub(super) fn is_live(&self, epoch: u32) -> bool {
        self.word.load(Ordering::Acquire) == encode(epoch, Phase::Ready)
    }

    /// Returns the state of a queue of that epoch.
    pub(super) fn fate(&self, epoch: u32) -> Fate {
        match decode(self.word.load(Ordering::Acquire)) {
            (_, Phase::Dead) => Fate::Dead,
            (now, _) if now != epoch => Fate::Lost,
            (_, Phase::Ready) => Fate::Live,
            (_, Phase::Starting | Phase::Recovering) => Fate::Waiting,
        }
    }

    pub(super) fn set(&self, phase: Phase) {
        self.word.store(encode(self.epoch(), phase), Ordering::Release);
    }

    /// Starts a new epoch: the controller certainly accesses no memory, and all commands of the previous epoch are
    /// lost.
    pub(super) fn next_epoch(&self) {
        let next = self.epoch().wrapping_add(1) << PHASE_BITS >> PHASE_BITS;
        self.word.store(encode(next, Phase::Starting), Ordering::Release);
    }
}

#[inline]
const fn encode(epoch: u32, phase: Phase) -> u32 {
    epoch << PHASE_BITS
        | match phase {
            Phase::Starting => 0,
            Phase::Ready => 1,
            Phase::Recovering => 2,
            Phase::Dead => 3,
        }
}

const fn decode(word: u32) -> (u32, Phase) {
    let phase = match word & 3 {
        0 => Phase::Starting,
        1 => Phase::Ready,
        2 => Phase::Recovering,
        _ => Phase::Dead,
    };
    (word >> PHASE_BITS, phase)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn queue_is_lost_only_when_the_epoch_advances_and_dead_queues_stay_dead() {
        let life = Life::new();
        assert_eq!(life.fate(0), Fate::Waiting);
        life.set(Phase::Ready);
        assert_eq!((life.fate(0), life.is_live(0)), (Fate::Live, true));
        life.set(Phase::Recovering);
        assert_eq!((life.fate(0), life.is_live(0)), (Fate::Waiting, false));
        life.next_epoch();
        assert_eq!((life.fate(0), life.fate(1)), (Fate::Lost, Fate::Waiting));
        life.set(Phase::Ready);
        assert_eq!((life.fate(0), life.fate(1), life.is_live(0)), (Fate::Lost, Fate::Live, false));
        life.set(Phase::Dead);
        assert_eq!((life.fate(0), life.fate(1), life.phase()), (Fate::Dead, Fate::Dead, Phase::Dead));
    }
}
