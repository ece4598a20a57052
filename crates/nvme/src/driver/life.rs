//! How a controller is, as its queues see it from other threads: one word.
//!
//! In: what the driver finds. Out: whether a queue may ring, and whether its commands are lost. Invariant: the epoch moves
//! on only when the controller certainly touches no memory of the epoch before, so a command that is lost by it may be
//! answered and its buffer used again.

use headwater_host::sync::{AtomicU32, Ordering};
use std::sync::Arc;

/// Where a driver is with its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It comes up, for the first time or after a reset that is done.
    Starting,
    /// It takes commands.
    Ready,
    /// It is being reset or shut down: answers may come still, new commands must wait.
    Recovering,
    /// It is given up, removed or closed, and touches no memory.
    Dead,
}

/// What became of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stands.
    Live,
    /// Its controller is being reset: wait.
    Waiting,
    /// It was forgotten by a reset: its commands are lost, and it can be made again.
    Lost,
    /// The controller is dead.
    Dead,
}

const PHASE_BITS: u32 = 2;

/// The word. A clone is another handle to it.
#[derive(Clone, Debug)]
pub struct Life {
    word: Arc<AtomicU32>,
}

impl Life {
    pub(super) fn new() -> Self {
        Self { word: Arc::new(AtomicU32::new(encode(0, Phase::Starting))) }
    }

    /// Where the driver is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        decode(self.word.load(Ordering::Acquire)).1
    }

    pub(super) fn epoch(&self) -> u32 {
        decode(self.word.load(Ordering::Acquire)).0
    }

    /// Whether a queue of that epoch may ring.
    #[inline]
    pub(super) fn is_live(&self, epoch: u32) -> bool {
        self.word.load(Ordering::Acquire) == encode(epoch, Phase::Ready)
    }

    /// What became of a queue of that epoch.
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

    /// The controller is certainly quiet: everything of the epoch so far is lost.
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
    fn a_queue_is_lost_only_when_the_epoch_moved_on_and_dead_queues_stay_dead() {
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
