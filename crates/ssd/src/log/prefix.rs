//! Prefixes of the log: a tick and a sequence.
//!
//! Input: pages in the order in which they are filled. Output: numbers that order them over all openings of a medium.
//! Invariant: a tick is given out once in the life of a medium.

use crate::command::Sequence;
use std::fmt;

/// Bits of a tick, and of a block order, below the epoch. Each opening of a device begins a new epoch.
pub const EPOCH_SHIFT: u32 = 40;

/// The number of a page that holds records or the rest of one: its epoch, and from 1 its place in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

/// Highest epoch that a reader believes: there is room for one more.
pub const EPOCH_MAX: u64 = (1 << (u64::BITS - EPOCH_SHIFT)) - 2;
/// Highest sequence, and highest number of a commit record, that a reader believes.
pub const NUMBER_MAX: u64 = 1 << 62;

/// Returns true if an order or a tick may be one of this epoch, or of one before it.
#[must_use]
pub const fn is_up_to_epoch(order: u64, epoch: u64) -> bool {
    order >> EPOCH_SHIFT <= epoch
}

impl Tick {
    /// Returns the tick in front of the first one of an epoch.
    #[must_use]
    pub const fn before_epoch(epoch: u64) -> Self {
        Self(epoch << EPOCH_SHIFT)
    }

    /// Returns the epoch.
    #[must_use]
    pub const fn epoch(self) -> u64 {
        self.0 >> EPOCH_SHIFT
    }

    /// Returns the place in the epoch, from 1; 0 in front of the first page.
    #[must_use]
    pub const fn place(self) -> u64 {
        self.0 & ((1 << EPOCH_SHIFT) - 1)
    }

    /// Returns the tick of the next page of the epoch.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Prefix {
    /// Returns true if a device may have written it in this epoch.
    #[must_use]
    pub const fn is_possible_in(self, epoch: u64) -> bool {
        is_up_to_epoch(self.tick.0, epoch) && self.sequence.0 <= NUMBER_MAX
    }
}

impl fmt::Display for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tick {} of epoch {}", self.place(), self.epoch())
    }
}

/// Everything up to a tick, and up to the last sequence that was given out when its page was filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    /// The last page.
    pub tick: Tick,
    /// The last sequence.
    pub sequence: Sequence,
}
