//! The configuration of a pool: the paper's m, M and t, the tier thresholds, page kinds, placement and pinner.
//!
//! Input: the operator's numbers. Output: a consistent [`PoolConfig`]. Invariant: a pool can be opened with a
//! configuration that passes [`PoolConfig::check`].

use super::calibration::InvalidThresholds;
use super::pinner::{MemoryPinner, NoPinning, PoolClock};
use super::placement::{NodePlacement, default_placement};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::reservation::{BackingOrder, PAGE_BYTES};
use std::sync::Arc;

/// The request sizes at which the tier changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierThresholds {
    /// Largest request that the static tier copies through its blocks, in bytes.
    pub small_max: usize,
    /// Smallest request that the dynamic tier pins separately, in bytes.
    pub large_min: usize,
}

impl TierThresholds {
    /// Section 4.1 of the paper: small up to 4 KB, big from 4 MB.
    pub const PAPER_4_1: Self = Self { small_max: 4 << 10, large_min: 4 << 20 };
    /// Section 5.2 of the paper: small up to 4 KB, big above 128 KB.
    pub const PAPER_5_2: Self = Self { small_max: 4 << 10, large_min: (128 << 10) + 1 };
}

/// The limits of the tiers as an operator names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierSetting {
    /// The measured limits of this machine.
    Calibrated,
    /// These limits.
    Limits(TierThresholds),
}

impl From<TierThresholds> for TierSetting {
    fn from(limits: TierThresholds) -> Self {
        Self::Limits(limits)
    }
}

impl TierSetting {
    /// Parses a value of `HEADWATER_TIERS`: `calibrated`, `paper-4.1`, `paper-5.2`, or `SMALL:LARGE` in bytes.
    ///
    /// # Errors
    /// [`InvalidThresholds`] for any other text.
    pub fn parse(text: &str) -> Result<Self, InvalidThresholds> {
        let not = || InvalidThresholds { text: text.to_owned() };
        match text.trim() {
            "calibrated" => Ok(Self::Calibrated),
            "paper-4.1" => Ok(TierThresholds::PAPER_4_1.into()),
            "paper-5.2" => Ok(TierThresholds::PAPER_5_2.into()),
            numbers => {
                let (small, large) = numbers.split_once(':').ok_or_else(not)?;
                let number = |digits: &str| digits.trim().parse::<usize>().map_err(|_| not());
                let limits = TierThresholds { small_max: number(small)?, large_min: number(large)? };
                if limits.small_max < limits.large_min { Ok(limits.into()) } else { Err(not()) }
            }
        }
    }
}

/// Block sizes of section 5.2 of the paper: "32 MB small, 4 MB medium, 32 MB big".
pub const PAPER_BLOCKS: PaperBlocks = PaperBlocks { small: 32 << 20, medium: 4 << 20, large: 32 << 20 };

/// Bytes of a block in each of the paper's tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaperBlocks {
    /// Bytes of a block for small requests.
    pub small: usize,
    /// Bytes of a chunk of the pool, m.
    pub medium: usize,
    /// Bytes of a block for a big request.
    pub large: usize,
}

/// Rule for the chunk size m.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkRule {
    /// m stays as configured.
    Fixed,
    /// New chunks are an eighth of the peak load, rounded up to a power of two, within these bounds in bytes. The load
    /// is a moving average of the bytes in use, sampled by every tick with a weight of 1/8; its peak decays by 1/32 per
    /// tick.
    Adaptive {
        /// Smallest m.
        min: usize,
        /// Largest m.
        max: usize,
    },
}

impl ChunkRule {
    /// Between 2 MiB and 64 MiB.
    pub const DEFAULT: Self = Self::Adaptive { min: 2 << 20, max: 64 << 20 };
}

/// The reason why a configuration is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// m is not a power of two, or too small or too large.
    #[error("a chunk of {chunk} bytes is not possible: choose a power of two from {min} to {max}")]
    Chunk {
        /// Configured value.
        chunk: usize,
        /// Smallest.
        min: usize,
        /// Largest.
        max: usize,
    },
    /// The bounds of adaptive chunks exclude every size.
    #[error(
        "adaptive chunks of at least {min} and at most {max} bytes are not possible: \
         choose a smallest size that is not above the largest"
    )]
    ChunkBounds {
        /// Smallest m.
        min: usize,
        /// Largest m.
        max: usize,
    },
    /// M is smaller than one granule, or larger than the address space that can be reserved.
    #[error("a cap of {cap} bytes is not possible: choose from {min} to {max}")]
    Cap {
        /// Configured value.
        cap: usize,
        /// Smallest.
        min: usize,
        /// Largest.
        max: usize,
    },
    /// The share of thread caches exceeds a twentieth of the cap.
    #[error("thread caches of {per_mille} thousandths of the cap: choose 0 to 50")]
    CacheShare {
        /// Configured value.
        per_mille: u32,
    },
    /// The placement has no node, or one twice.
    #[error("the placement names no node, or one twice: name each node with memory once")]
    Nodes,
    /// The largest small request is not below the smallest large one.
    #[error(
        "small requests up to {small_max} bytes and large ones from {large_min} overlap: \
         lower the first or raise the second"
    )]
    Thresholds {
        /// Largest small request.
        small_max: usize,
        /// Smallest large request.
        large_min: usize,
    },
    /// The environment variable of the tiers holds no setting.
    #[error(
        "the environment variable HEADWATER_TIERS is not a tier setting: \
         use calibrated, paper-4.1, paper-5.2, or SMALL:LARGE in bytes with SMALL below LARGE, or unset it"
    )]
    TiersVariable,
    /// The text names no limits of tiers.
    #[error(
        "not a tier setting: use calibrated, paper-4.1, paper-5.2, or SMALL:LARGE in bytes with SMALL below LARGE"
    )]
    TiersText,
    /// The blocks of the static tier are not whole pages, or more than half of the cap.
    #[error(
        "a static tier of {bytes} bytes is not possible: choose a multiple of 4,096 up to {max}, or 0 for none"
    )]
    StaticBytes {
        /// Configured value.
        bytes: usize,
        /// Largest.
        max: usize,
    },
}

/// Visibility of the pool's memory to other processes and devices by a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolSharing {
    /// Memory of this process alone.
    #[default]
    Private,
    /// One sealed memory file per node.
    Shared,
}

/// Smallest chunk: one 64 KiB granule.
pub const CHUNK_MIN: usize = 64 << 10;
/// Largest chunk that may be configured; a larger request gets a chunk of its own size.
pub const CHUNK_MAX: usize = 1 << 30;
/// Largest address range that may be reserved for a node, in bytes.
pub const CAP_MAX: usize = 1 << 40;

/// Bytes of the static tier of a device's pool: three blocks of 1 MiB, the paper's number of blocks (section 4.2). They
/// are not divided into blocks for reads and blocks for writes, because each slot is released separately.
pub const STATIC_BYTES_DEFAULT: usize = 3 << 20;

/// The configuration of a pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// m: bytes of a chunk, a power of two.
    pub chunk: usize,
    /// Rule by which m adapts to the load.
    pub chunk_rule: ChunkRule,
    /// M: limit of pinned bytes, over all tiers and nodes.
    pub cap: usize,
    /// Limit to which the cap can be raised while the pool is open; 0 for four times the cap.
    pub cap_max: usize,
    /// t: the time after which an empty chunk is unpinned.
    pub idle: Nanos,
    /// Bytes of empty chunks that are kept regardless of their idle time.
    pub min_idle: usize,
    /// Tier thresholds. `None`: those of `HEADWATER_TIERS`, else the measured ones of this machine; see
    /// [`TierChoice::of`](super::calibration::TierChoice::of).
    pub tiers: Option<TierSetting>,
    /// Bytes of the static tier on each node: blocks for small requests, pinned with the first of these for as long as the
    /// pool is open. 0 for none: small requests are then served as medium ones.
    pub static_bytes: usize,
    /// Kinds of pages, in the order to try.
    pub backing: BackingOrder,
    /// Memory nodes: one arena each, the closest first. The default is [`MachineNodes`](super::MachineNodes) where
    /// several nodes of the machine have memory, else [`OneNode`](super::OneNode), which costs nothing.
    pub placement: Arc<dyn NodePlacement>,
    /// Method by which chunks are made visible to devices.
    pub pinner: Arc<dyn MemoryPinner>,
    /// Visibility of the memory to other processes.
    pub sharing: PoolSharing,
    /// Limit of the memory in all thread caches together, in thousandths of the cap, at most 50.
    pub cache_per_mille: u32,
    /// The clock of the pool.
    pub clock: Arc<dyn PoolClock>,
}

impl Default for PoolConfig {
    /// Returns a configuration with adaptive chunks of 4 MiB, a cap of 256 MiB, an idle time of 10 s, and unpinned
    /// memory from the node of the calling thread.
    fn default() -> Self {
        Self {
            chunk: 4 << 20,
            chunk_rule: ChunkRule::DEFAULT,
            cap: 256 << 20,
            cap_max: 0,
            idle: Nanos::from_millis(10_000),
            min_idle: 0,
            tiers: None,
            static_bytes: 0,
            backing: BackingOrder::default(),
            placement: default_placement(),
            pinner: Arc::new(NoPinning),
            sharing: PoolSharing::Private,
            cache_per_mille: 50,
            clock: Arc::new(Clock::start()),
        }
    }
}

impl PoolConfig {
    /// Returns the unit in which chunks are placed and counted: 2 MiB, or the smallest possible chunk if that is less.
    #[must_use]
    pub fn granule(&self) -> usize {
        let least = match self.chunk_rule {
            ChunkRule::Fixed => self.chunk,
            ChunkRule::Adaptive { min: least, .. } => self.chunk.min(least),
        };
        least.min(2 << 20)
    }

    /// Returns the limit to which the cap can be raised.
    #[must_use]
    pub fn cap_limit(&self) -> usize {
        if self.cap_max == 0 { self.cap.saturating_mul(4).min(CAP_MAX) } else { self.cap_max.max(self.cap) }
    }

    /// Checks that a pool can be opened with this configuration.
    ///
    /// # Errors
    /// The first inconsistency found.
    pub fn check(&self) -> Result<(), ConfigError> {
        let chunks = match self.chunk_rule {
            ChunkRule::Fixed => [self.chunk; 3],
            ChunkRule::Adaptive { min, max } if min > max => {
                return Err(ConfigError::ChunkBounds { min, max });
            }
            ChunkRule::Adaptive { min: least, max: most } => [self.chunk, least, most],
        };
        let possible = |chunk: &usize| chunk.is_power_of_two() && (CHUNK_MIN..=CHUNK_MAX).contains(chunk);
        if let Some(&chunk) = chunks.iter().find(|chunk| !possible(chunk)) {
            return Err(ConfigError::Chunk { chunk, min: CHUNK_MIN, max: CHUNK_MAX });
        }
        let least = self.granule();
        for cap in [self.cap, self.cap_limit()] {
            if cap < least || cap > CAP_MAX {
                return Err(ConfigError::Cap { cap, min: least, max: CAP_MAX });
            }
        }
        if self.cache_per_mille > 50 {
            return Err(ConfigError::CacheShare { per_mille: self.cache_per_mille });
        }
        if let Some(TierSetting::Limits(TierThresholds { small_max, large_min })) = self.tiers
            && small_max >= large_min
        {
            return Err(ConfigError::Thresholds { small_max, large_min });
        }
        let most = self.cap / 2;
        if self.static_bytes > most || !self.static_bytes.is_multiple_of(PAGE_BYTES) {
            return Err(ConfigError::StaticBytes { bytes: self.static_bytes, max: most });
        }
        let mut nodes = self.placement.nodes();
        let named = nodes.len();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.is_empty() || nodes.len() != named { Err(ConfigError::Nodes) } else { Ok(()) }
    }

    /// Returns the largest alignment that a request may have.
    #[must_use]
    pub fn align_max(&self) -> usize {
        self.granule().max(PAGE_BYTES)
    }
}
