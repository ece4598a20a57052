//! The properties of a channel, and its load.

use super::work_shape::{MoveDirection, OperationSet};
use headwater_host::numa::NodeId;

/// The most channels that a policy scatters over.
pub const CHANNELS_MAX: usize = 16;

/// The way of a channel's writes through the cache: direct cache access, such as DDIO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheWrites {
    /// They allocate lines in the last-level cache, and stay there.
    Allocating,
    /// They pass the cache by.
    NonAllocating,
    /// It is not known: the policy assumes that they stay in the cache.
    #[default]
    Unknown,
}

impl CacheWrites {
    /// Returns this way, or `declared` if it is not known.
    #[must_use]
    pub const fn or(self, declared: Self) -> Self {
        match self {
            Self::Unknown => declared,
            Self::Allocating | Self::NonAllocating => self,
        }
    }

    /// Returns true if bytes that a channel wrote must be flushed before they are persistent.
    #[must_use]
    pub const fn needs_flush(self, direction: MoveDirection) -> bool {
        direction.writes_persistent() && !matches!(self, Self::NonAllocating)
    }
}

/// The properties of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelTraits {
    /// Its NUMA node, if it is known.
    pub node: Option<NodeId>,
    /// The most jobs in flight: with so many, the CPU does the next one.
    pub depth: usize,
    /// The way of its writes through the cache.
    pub cache_writes: CacheWrites,
    /// The operations that it can do.
    pub operations: OperationSet,
}

/// The jobs in flight on a channel. One that is [unavailable](Self::UNAVAILABLE) gets none, and counts as idle otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelLoad {
    /// The jobs.
    pub jobs: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl ChannelLoad {
    /// The load of a channel that takes nothing now, whatever its depth.
    pub const UNAVAILABLE: Self = Self { jobs: usize::MAX, bytes: 0 };
}
