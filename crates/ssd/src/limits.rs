//! The limits of the device, each as a named constant.

use crate::namespace::BlockFormat;

/// Longest key, in bytes; the record header's key length is 16 bits.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;
/// Longest key the NVMe KV command set can carry inline.
pub const KV_KEY_BYTES_MAX: usize = 16;
/// Longest value, in bytes: 1,024 extents.
pub const VALUE_BYTES_MAX: usize = 256 << 20;
/// Bytes of an extent, and of the shortest value that has one.
pub const EXTENT_BYTES: usize = 256 << 10;
/// Longest value that lies in the log as a whole, in bytes: one of a batch, or on a medium that has no extents. Longer than a
/// block: such a record is chained over blocks.
pub const LOG_VALUE_BYTES_MAX: usize = 16 << 20;
/// Namespaces of a device.
pub const NAMESPACES: usize = 16;
/// Key spaces that records may name: the namespaces, and the one that holds their table.
pub const SPACES: usize = NAMESPACES + 1;
/// Blocks of the largest block namespace. A namespace may be larger than the medium: blocks take space when written.
pub const NAMESPACE_BLOCKS_MAX: u64 = 1 << 36;
/// Commands in flight in a device.
pub const OPERATIONS_MAX: usize = 8_192;
/// Commands of one namespace that wait for its limits.
pub const THROTTLED_MAX: usize = 256;
/// Bytes of values and keys in completions that no front end has taken yet, from which new commands wait for the front ends.
pub const UNTAKEN_BYTES_MAX: usize = 64 << 20;
/// Writes in one all-or-nothing batch.
pub const BATCH_WRITES_MAX: usize = 65_536;
/// Writes of a batch that one turn carries out, about 1 us each.
pub const BATCH_PART_WRITES: usize = 512;
/// Blocks and settled keys of the map of a checkpoint that one turn encodes, at most 100 ns each.
pub const MAP_PART_ENTRIES: usize = 512;
/// Parts of a batch that one turn checks, about 20 ns a write.
pub const BATCH_CHECKED_PARTS: usize = 16;
/// Bytes of one all-or-nothing batch, headers included.
pub const BATCH_BYTES_MAX: usize = 32 << 20;
/// Runs of namespaces in one batch: each namespace for watched keys, and once more for the rest.
pub const BATCH_RUNS_MAX: usize = 2 * NAMESPACES;
/// Blocks that one removal (write zeroes, deallocate) takes all or nothing; a larger one is split into parts of this
/// size.
pub const DEALLOCATE_BATCH_MAX: usize = 8_192;
/// Ranges of blocks in one deallocate or copy.
pub const LBA_RANGES_MAX: usize = 256;
/// Keys that one List returns.
pub const LIST_KEYS_MAX: u32 = 4_096;
/// Bytes that one command moves between host and controller (MDTS).
pub const TRANSFER_BYTES_MAX: u32 = 16 << 20;
/// Source ranges of one Copy (MSRC, which counts them from 0).
pub const COPY_RANGES_MAX: u16 = 128;
/// Bytes that one Copy writes.
pub const COPY_BYTES_MAX: u32 = 16 << 20;
/// Bits of a key hash that the index keeps.
pub const HASH_BITS: u32 = 60;
/// Reads that recovery keeps in flight.
pub const RECOVERY_FRAMES: usize = 128;
/// Fewest blocks a device works with: active, guard, reserve, checkpoint and something to collect.
pub const BLOCKS_MIN: u32 = 16;

/// Returns the blocks that one Copy may write (MCL), and that one source range of it may have (MSSRL).
#[must_use]
pub const fn copy_blocks_max(format: BlockFormat) -> u32 {
    COPY_BYTES_MAX >> format.shift()
}

/// Returns the bytes of one all-or-nothing batch that a device with so many bytes of DRAM takes: a batch is built whole in
/// DRAM, of which it takes at most half.
#[must_use]
pub const fn batch_bytes_max(dram_bytes: usize) -> usize {
    let half = dram_bytes / 2;
    if half < BATCH_BYTES_MAX { half } else { BATCH_BYTES_MAX }
}

// MSSRL has 16 bits.
const _: () = assert!(copy_blocks_max(BlockFormat::B512) <= u16::MAX as u32);
const _: () = assert!(THROTTLED_MAX * NAMESPACES < OPERATIONS_MAX);
const _: () = assert!(BATCH_BYTES_MAX >= LOG_VALUE_BYTES_MAX + KEY_BYTES_MAX);
const _: () = assert!(TRANSFER_BYTES_MAX as usize <= LOG_VALUE_BYTES_MAX);

/// Bytes of values and blocks that a command copies before other commands run: well below a millisecond.
pub const COPY_PART_BYTES: usize = 512 << 10;

/// Bytes of a record, header included, up to which it is short: the device knows of each namespace if all are.
pub const SHORT_RECORD_BYTES: usize = 512;
