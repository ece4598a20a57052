//! The state of a controller, shared with its queues on other threads: one atomic word.
//!
//! Input: state changes by the driver. Output: whether a queue may ring, and whether its commands are lost. Invariant:
//! the epoch advances only when the controller certainly accesses no memory of the previous epoch, so commands of that
//! epoch may be failed and their buffers reused.

use headwater_host::sync::{AtomicU32, Ordering};
use std::sync::Arc;

/// The phase of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverPhase {
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
pub enum IoQueueState {
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
pub struct SharedLifecycle {
    word: Arc<AtomicU32>,
}

impl SharedLifecycle {
    pub(super) fn new() -> Self {
        Self { word: Arc::new(AtomicU32::new(encode(0, DriverPhase::Starting))) }
    }

    /// Returns the phase of the controller.
    #[must_use]
    pub fn phase(&self) -> DriverPhase {
        decode(self.word.load(Ordering::Acquire)).1
    }

    pub(super) fn epoch(&self) -> u32 {
        decode(self.word.load(Ordering::Acquire)).0
    }

    /// Returns true if a queue of that epoch may ring.
    #[inline]
    pub(super) fn is_live(&self, epoch: u32) -> bool {
        self.word.load(Ordering::Acquire) == encode(epoch, DriverPhase::Ready)
    }

    /// Returns the state of a queue of that epoch.
    pub(super) fn queue_state(&self, epoch: u32) -> IoQueueState {
        match decode(self.word.load(Ordering::Acquire)) {
            (_, DriverPhase::Dead) => IoQueueState::Dead,
            (now, _) if now != epoch => IoQueueState::Lost,
            (_, DriverPhase::Ready) => IoQueueState::Live,
            (_, DriverPhase::Starting | DriverPhase::Recovering) => IoQueueState::Waiting,
        }
    }

    pub(super) fn set(&self, phase: DriverPhase) {
        self.word.store(encode(self.epoch(), phase), Ordering::Release);
    }

    /// Starts a new epoch: the controller certainly accesses no memory, and all commands of the previous epoch are
    /// lost.
    pub(super) fn next_epoch(&self) {
        let next = self.epoch().wrapping_add(1) << PHASE_BITS >> PHASE_BITS;
        self.word.store(encode(next, DriverPhase::Starting), Ordering::Release);
    }
}

#[inline]
const fn encode(epoch: u32, phase: DriverPhase) -> u32 {
    epoch << PHASE_BITS
        | match phase {
            DriverPhase::Starting => 0,
            DriverPhase::Ready => 1,
            DriverPhase::Recovering => 2,
            DriverPhase::Dead => 3,
        }
}

const fn decode(word: u32) -> (u32, DriverPhase) {
    let phase = match word & 3 {
        0 => DriverPhase::Starting,
        1 => DriverPhase::Ready,
        2 => DriverPhase::Recovering,
        _ => DriverPhase::Dead,
    };
    (word >> PHASE_BITS, phase)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn queue_is_lost_only_when_the_epoch_advances_and_dead_queues_stay_dead() {
        let life = SharedLifecycle::new();
        assert_eq!(life.queue_state(0), IoQueueState::Waiting);
        life.set(DriverPhase::Ready);
        assert_eq!((life.queue_state(0), life.is_live(0)), (IoQueueState::Live, true));
        life.set(DriverPhase::Recovering);
        assert_eq!((life.queue_state(0), life.is_live(0)), (IoQueueState::Waiting, false));
        life.next_epoch();
        assert_eq!((life.queue_state(0), life.queue_state(1)), (IoQueueState::Lost, IoQueueState::Waiting));
        life.set(DriverPhase::Ready);
        assert_eq!(
            (life.queue_state(0), life.queue_state(1), life.is_live(0)),
            (IoQueueState::Lost, IoQueueState::Live, false)
        );
        life.set(DriverPhase::Dead);
        assert_eq!(
            (life.queue_state(0), life.queue_state(1), life.phase()),
            (IoQueueState::Dead, IoQueueState::Dead, DriverPhase::Dead)
        );
    }
}
