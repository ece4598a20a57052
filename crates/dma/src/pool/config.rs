//! How a pool is set up: the paper's m, M and t, the borders of its tiers, and what lies beneath.
//!
//! In: numbers of the operator's. Out: a [`PoolConfig`] that contradicts nothing. Invariant: what [`PoolConfig::check`]
//! lets through, a pool can be opened with.

use super::calibration::NotBorders;
use super::pinner::{Pinner, Time, Unpinned};
use super::placement::{Placement, usual_placement};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::reservation::{PAGE_BYTES, Wish};
use std::sync::Arc;

/// Sizes at which requests go to another tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierBorders {
    /// Most bytes of a request that the static tier copies through its blocks.
    pub small_max: usize,
    /// Fewest bytes of a request that the dynamic tier pins for itself.
    pub large_min: usize,
}

impl TierBorders {
    /// Section 4.1 of the paper: small up to 4 KB, big from 4 MB.
    pub const PAPER_4_1: Self = Self { small_max: 4 << 10, large_min: 4 << 20 };
    /// Section 5.2 of the paper: small up to 4 KB, big above 128 KB.
    pub const PAPER_5_2: Self = Self { small_max: 4 << 10, large_min: (128 << 10) + 1 };

    /// The borders that a text names, as `HEADWATER_TIERS` has it: `paper-4.1`, `paper-5.2`, or `SMALL:LARGE` in bytes.
    /// `None` for `calibrated`, which leaves the choice to what was measured.
    ///
    /// # Errors
    /// [`NotBorders`] for any other text.
    pub fn named(text: &str) -> Result<Option<Self>, NotBorders> {
        let not = || NotBorders { text: text.to_owned() };
        match text.trim() {
            "calibrated" => Ok(None),
            "paper-4.1" => Ok(Some(Self::PAPER_4_1)),
            "paper-5.2" => Ok(Some(Self::PAPER_5_2)),
            numbers => {
                let (small, large) = numbers.split_once(':').ok_or_else(not)?;
                let number = |digits: &str| digits.trim().parse::<usize>().map_err(|_| not());
                let borders = Self { small_max: number(small)?, large_min: number(large)? };
                if borders.small_max < borders.large_min { Ok(Some(borders)) } else { Err(not()) }
            }
        }
    }
}

/// Block sizes of section 5.2 of the paper: "32 MB small, 4 MB medium, 32 MB big".
pub const PAPER_BLOCKS: PaperBlocks = PaperBlocks { small: 32 << 20, medium: 4 << 20, large: 32 << 20 };

/// Bytes of a block in each of the paper's tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaperBlocks {
    /// Of the blocks for small requests.
    pub small: usize,
    /// Of a chunk of the pool, m.
    pub medium: usize,
    /// Of the memory for a big request.
    pub large: usize,
}

/// Whether m follows the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkRule {
    /// m stays as configured.
    Fixed,
    /// New chunks are an eighth of the peak of what is in flight, as the next power of two, within these bytes. In flight
    /// is a moving average of the bytes in use, sampled by every tick with a weight of 1/8; its peak fades by 1/32 a tick.
    Adaptive {
        /// Smallest m.
        least: usize,
        /// Largest m.
        most: usize,
    },
}

impl ChunkRule {
    /// Between 2 MiB and 64 MiB.
    pub const DEFAULT: Self = Self::Adaptive { least: 2 << 20, most: 64 << 20 };
}

/// Why a configuration cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// m is no power of two, or too small or large.
    #[error("a chunk of {chunk} bytes is impossible: choose a power of two from {least} to {most}")]
    Chunk {
        /// What was asked for.
        chunk: usize,
        /// Smallest.
        least: usize,
        /// Largest.
        most: usize,
    },
    /// M holds not one chunk's granule, or more than can be reserved.
    #[error("a cap of {cap} bytes is impossible: choose from {least} to {most}")]
    Cap {
        /// What was asked for.
        cap: usize,
        /// Smallest.
        least: usize,
        /// Largest.
        most: usize,
    },
    /// Thread caches may hold a twentieth of the cap, not more.
    #[error("thread caches of {per_mille} thousandths of the cap: choose 0 to 50")]
    CacheShare {
        /// What was asked for.
        per_mille: u32,
    },
    /// There is no node, or one twice.
    #[error("the placement names no node, or one twice: name each node with memory once")]
    Nodes,
    /// Small requests are larger than large ones.
    #[error(
        "small requests up to {small_max} bytes and large ones from {large_min} overlap: lower the first or raise the second"
    )]
    Borders {
        /// Largest small request.
        small_max: usize,
        /// Smallest large request.
        large_min: usize,
    },
}

/// Whether other processes and devices can map the pool's memory by a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Memory of this process alone.
    #[default]
    Private,
    /// One sealed file in memory a node.
    Shared,
}

/// Smallest chunk: one 64 KiB granule.
pub const CHUNK_MIN: usize = 64 << 10;
/// Largest chunk that may be configured; a larger request gets a chunk of its own size.
pub const CHUNK_MAX: usize = 1 << 30;
/// Most bytes that may be reserved for a node.
pub const CAP_MAX: usize = 1 << 40;

/// What a pool is opened with.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// m: bytes of a chunk, a power of two.
    pub chunk: usize,
    /// Whether m follows the load.
    pub chunk_rule: ChunkRule,
    /// M: most bytes pinned at a time, over all tiers and nodes.
    pub cap: usize,
    /// The most that the cap can be raised to while the pool is open; 0 for four times the cap.
    pub cap_max: usize,
    /// t: a chunk that was empty for so long is given back.
    pub idle: Nanos,
    /// Bytes of empty chunks that are kept however long they are empty.
    pub min_idle: usize,
    /// Borders between the tiers. `None`: what `HEADWATER_TIERS` says, else what was measured on this machine; see
    /// [`Choice::of`](super::calibration::Choice::of).
    pub tiers: Option<TierBorders>,
    /// Kinds of pages, in the order to try.
    pub backing: Wish,
    /// Nodes of memory: an arena for each, the closest first. Where several nodes of the machine have memory, that is
    /// [`MachineNodes`](super::MachineNodes) unless somebody chooses otherwise; else [`OneNode`](super::OneNode), which costs nothing.
    pub placement: Arc<dyn Placement>,
    /// How chunks are made visible to devices.
    pub pinner: Arc<dyn Pinner>,
    /// Whether others can map the memory.
    pub sharing: Sharing,
    /// Thousandths of the cap that the caches of all threads may hold together, at most 50.
    pub cache_per_mille: u32,
    /// Where the time is read.
    pub time: Arc<dyn Time>,
}

impl Default for PoolConfig {
    /// Chunks of 4 MiB that adapt, a cap of 256 MiB, an idle time of 10 s, memory that is not pinned and that comes from
    /// the node of whoever asks.
    fn default() -> Self {
        Self {
            chunk: 4 << 20,
            chunk_rule: ChunkRule::DEFAULT,
            cap: 256 << 20,
            cap_max: 0,
            idle: Nanos::from_millis(10_000),
            min_idle: 0,
            tiers: None,
            backing: Wish::default(),
            placement: usual_placement(),
            pinner: Arc::new(Unpinned),
            sharing: Sharing::Private,
            cache_per_mille: 50,
            time: Arc::new(Clock::start()),
        }
    }
}

impl PoolConfig {
    /// Bytes in which chunks are placed and counted: 2 MiB, or the smallest chunk there can be if that is less.
    #[must_use]
    pub fn granule(&self) -> usize {
        let least = match self.chunk_rule {
            ChunkRule::Fixed => self.chunk,
            ChunkRule::Adaptive { least, .. } => self.chunk.min(least),
        };
        least.min(2 << 20)
    }

    /// The most that the cap can be raised to.
    #[must_use]
    pub fn ceiling(&self) -> usize {
        if self.cap_max == 0 { self.cap.saturating_mul(4).min(CAP_MAX) } else { self.cap_max.max(self.cap) }
    }

    /// Whether a pool can be opened with this.
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn check(&self) -> Result<(), ConfigError> {
        let chunks = match self.chunk_rule {
            ChunkRule::Fixed => [self.chunk; 3],
            ChunkRule::Adaptive { least, most } => [self.chunk, least, most.max(least)],
        };
        let possible = |chunk: &usize| chunk.is_power_of_two() && (CHUNK_MIN..=CHUNK_MAX).contains(chunk);
        if let Some(&chunk) = chunks.iter().find(|chunk| !possible(chunk)) {
            return Err(ConfigError::Chunk { chunk, least: CHUNK_MIN, most: CHUNK_MAX });
        }
        let least = self.granule();
        for cap in [self.cap, self.ceiling()] {
            if cap < least || cap > CAP_MAX {
                return Err(ConfigError::Cap { cap, least, most: CAP_MAX });
            }
        }
        if self.cache_per_mille > 50 {
            return Err(ConfigError::CacheShare { per_mille: self.cache_per_mille });
        }
        if let Some(TierBorders { small_max, large_min }) = self.tiers
            && small_max >= large_min
        {
            return Err(ConfigError::Borders { small_max, large_min });
        }
        let mut nodes = self.placement.nodes();
        let named = nodes.len();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.is_empty() || nodes.len() != named { Err(ConfigError::Nodes) } else { Ok(()) }
    }

    /// Largest boundary that a buffer can be asked to start on.
    #[must_use]
    pub fn align_max(&self) -> usize {
        self.granule().max(PAGE_BYTES)
    }
}
