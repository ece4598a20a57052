//! The configuration of a device and its statistics.
//!
//! Input: the operator's choices. Output: the same, with a default for each field. Invariant: every default is usable
//! as it is.

use crate::limits::NAMESPACES;
use headwater_dma::mover::ChannelCounters;
use headwater_dma::mover::policy::DecisionCounters;
use headwater_dma::pool::Pool;
use headwater_host::clock::Nanos;
use headwater_host::uring::RegisteredCounters;
use std::fmt;
use std::io;
use std::num::ParseIntError;
use std::str::FromStr;

/// The point from which an acknowledged write of a namespace survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Before it is acknowledged. No acknowledged write is ever lost.
    Always,
    /// At most this long after it is acknowledged.
    Interval(Nanos),
    /// After the next Flush command of the namespace.
    OnFlush,
}

/// The rule by which a collection victim is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimPolicy {
    /// The block that was opened first (the UIO paper's).
    Fifo,
    /// The block with the fewest live bytes.
    Greedy,
}

/// The digest of one loss on one state of one medium: an operator who accepts it accepts nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LossDigest(pub u64);

impl fmt::Display for LossDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for LossDigest {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

/// The [`commit_gathering`](DeviceConfig::commit_gathering) of a device whose commands wait for a flush of a file: about the
/// duration of one.
pub const COMMIT_GATHERING: Nanos = Nanos(100_000);

/// The configuration of a device. Every field has a default that suits a laptop.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Durability of each namespace.
    pub durability: [Durability; NAMESPACES],
    /// The rule by which collection victims are chosen.
    pub victim: VictimPolicy,
    /// Frames of device DRAM (4,608 bytes each): open pages, reads in flight and the page cache.
    pub frames_max: usize,
    /// The pool that frames are taken from when needed; `None` is the pool of the process. Its cap should leave room
    /// for all frames: with fewer the device is slower, and the longest values may wait forever.
    pub pool: Option<Pool>,
    /// Seed of the key hash; any value, kept for the lifetime of the process.
    pub hash_seed: u64,
    /// Bits of the key hash in use: 60, fewer only in tests that provoke collisions.
    pub hash_bits: u32,
    /// Writes of a batch that one turn carries out: [`BATCH_PART_WRITES`](crate::limits::BATCH_PART_WRITES), fewer only in
    /// tests that provoke batches of many turns.
    pub batch_part_writes: usize,
    /// Blocks and settled keys of the map of a checkpoint that one turn encodes:
    /// [`MAP_PART_ENTRIES`](crate::limits::MAP_PART_ENTRIES), fewer only in tests that provoke maps of many turns.
    pub map_part_entries: usize,
    /// Bytes from which the whole blocks of a value lie outside of the log; at least 262,144. `usize::MAX` keeps every value in
    /// the log, where it has at most 16 MiB.
    pub extents_from: usize,
    /// Time after the end of a commit for which the next one waits at most, while fewer commands wait for it than there were
    /// active clients: one flush serves more of them. Zero begins each commit at once.
    pub commit_gathering: Nanos,
    /// The loss that an opening may accept, by the digest of its report; without it an opening that cannot read a page
    /// which it needs is refused.
    pub accept_loss: Option<LossDigest>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            durability: [Durability::Always; NAMESPACES],
            victim: VictimPolicy::Greedy,
            frames_max: 16_384,
            pool: None,
            hash_seed: 0x6865_6164,
            hash_bits: crate::limits::HASH_BITS,
            batch_part_writes: crate::limits::BATCH_PART_WRITES,
            map_part_entries: crate::limits::MAP_PART_ENTRIES,
            extents_from: crate::limits::EXTENT_BYTES,
            commit_gathering: Nanos::ZERO,
            accept_loss: None,
        }
    }
}

/// A failed read of a page of the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRead {
    /// The flash block.
    pub block: u32,
    /// The page of the block.
    pub page: u8,
    /// The kernel's error number; `None` if the page was read and holds other bytes than were written to it, or the medium
    /// itself says that they are lost.
    pub errno: Option<i32>,
}

impl fmt::Display for FailedRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} page {}", self.block, self.page)?;
        match self.errno {
            Some(errno) => write!(f, " (errno {errno})"),
            None => f.write_str(" (not the bytes that were written to it)"),
        }
    }
}

/// The operation on the medium that failed, after which a device refuses every write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedOperation {
    /// The program of a page of the log or of a checkpoint.
    Program,
    /// A flush; the page of the failure says nothing.
    Flush,
    /// The erase of a block.
    Erase,
    /// The write of a commit record; the page of the failure says nothing.
    CommitRecord,
}

/// The first failure of a medium after which nothing more becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedWrite {
    /// The operation.
    pub operation: FailedOperation,
    /// The flash block.
    pub block: u32,
    /// The page of the block.
    pub page: u8,
    /// The kernel's error number; `None` if the medium itself reported the failure.
    pub errno: Option<i32>,
}

impl fmt::Display for FailedWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block, page, .. } = self;
        match self.operation {
            FailedOperation::Program => write!(f, "the write of block {block} page {page} failed")?,
            FailedOperation::Flush => f.write_str("a flush failed")?,
            FailedOperation::Erase => write!(f, "the erase of block {block} failed")?,
            FailedOperation::CommitRecord => write!(f, "a commit record could not be written")?,
        }
        match self.errno {
            Some(errno) => write!(f, ": {}", io::Error::from_raw_os_error(errno)),
            None => Ok(()),
        }
    }
}

/// Counters of a running device; monotonic unless the name says otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceStats {
    /// Keys of each namespace now.
    pub keys: [u64; NAMESPACES],
    /// Written blocks of each namespace with blocks.
    pub blocks: [u64; NAMESPACES],
    /// Commands completed.
    pub completed: u64,
    /// Bytes of records that clients wrote, headers included.
    pub client_bytes: u64,
    /// Bytes of pages programmed, data part.
    pub programmed_bytes: u64,
    /// Bytes of records that collection moved.
    pub moved_bytes: u64,
    /// Blocks that collection emptied.
    pub collected: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Flushes sent to the media.
    pub flushes: u64,
    /// Blocks free now.
    pub free_blocks: u32,
    /// Bytes of live records now.
    pub live_bytes: u64,
    /// Bytes of tombstones among them.
    pub tombstone_bytes: u64,
    /// Bytes of DRAM the index takes now.
    pub index_bytes: u64,
    /// Bytes of values that the device received itself ([`SsdDevice::receive`](crate::engine::SsdDevice::receive)).
    pub received_bytes: u64,
    /// Bytes that the mover moved in jobs of at least 16 KiB ([`headwater_dma::mover::LARGE_JOB_BYTES`]).
    pub moved_in_large_jobs: u64,
    /// Bytes that the mover moved in smaller jobs.
    pub moved_in_small_jobs: u64,
    /// Jobs that the channels of the mover did.
    pub move_channels: ChannelCounters,
    /// Jobs that had not ended when they were started: their operations waited for them.
    pub moves_waited: u64,
    /// The decisions of the mover's policy, by their reasons.
    pub move_decisions: DecisionCounters,
    /// Operations whose pages were all in device memory.
    pub cache_hits: u64,
    /// Pages that operations had to wait for.
    pub cache_misses: u64,
    /// Keys that expired.
    pub expired: u64,
    /// Records whose checksum did not match.
    pub damaged: u64,
    /// Blocks that are quarantined now, because a page or a live record in them cannot be read.
    pub quarantined: u64,
    /// Reads of pages that failed, also those that succeeded when they were repeated.
    pub read_errors: u64,
    /// The last of them.
    pub last_read_error: Option<FailedRead>,
    /// Reads of pages that hold other bytes than were written to them, also when they are read again.
    pub damaged_pages: u64,
    /// The failure after which the device refuses every write, if there was one.
    pub failed_write: Option<FailedWrite>,
    /// The write that found no space beneath the medium and is repeated, while there is one; commands that write fail.
    pub lack_of_space: Option<FailedWrite>,
    /// Pages of the log that were durable, and that the opening found lost.
    pub lost_pages: u64,
    /// Namespaces of which records may be lost now: some of their keys are answered with errors.
    pub namespaces_in_doubt: u64,
    /// Commit cells, pages of the checkpoint and copies of the superblock that the opening found damaged, and of which other
    /// copies hold the same.
    pub damaged_copies: u64,
    /// Memory of frames that the medium has registered with a ring, and its use. The bytes are those of now.
    pub registered_memory: RegisteredCounters,
    /// Unreadable pages whose loss was accepted when the device was opened.
    pub unreadable_pages: u64,
    /// True if collection cannot free a block although a write waits for one.
    pub collection_stuck: bool,
    /// Commits that made something durable.
    pub commits: u64,
    /// Bytes of live records that the medium may hold.
    pub capacity_bytes: u64,
    /// Commands completed with "capacity exceeded" because collection found nothing to free.
    pub no_room: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Pages of checkpoints programmed.
    pub checkpoint_pages: u64,
    /// Completions waiting for durability now.
    pub gated: u64,
    /// Operations in flight now.
    pub in_flight: u64,
}
