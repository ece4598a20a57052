//! Errors of a cache that cannot be built, changed or used as requested.

use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;

/// A refusal of a cache, which had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// An invalid device shape.
    #[error(
        "cannot cache {device_bytes} bytes in blocks of {block_bytes}; use blocks of a power of two up to 4096 bytes"
    )]
    Shape {
        /// The device's length.
        device_bytes: u64,
        /// The device's block size.
        block_bytes: u32,
    },
    /// Too few or too many pages.
    #[error("the cache has {pages} pages; set {least} to {most}")]
    Pages {
        /// The pages given.
        pages: usize,
        /// The fewest.
        least: usize,
        /// The most.
        most: usize,
    },
    /// A block of memory that is not a power of two.
    #[error("a memory block has {block_pages} pages; set a power of two")]
    BlockPages {
        /// The pages given.
        block_pages: usize,
    },
    /// Limits of dirty pages that contradict each other, or no write-backs.
    #[error(
        "dirty limits of {dirty_background} and {dirty_most} percent with {write_backs} write-backs; set at most 90, \
         the first at most the second, and at least one write-back"
    )]
    Dirty {
        /// The background limit.
        dirty_background: u8,
        /// The limit of dirty pages.
        dirty_most: u8,
        /// The write-backs in flight.
        write_backs: u32,
    },
    /// A buffer too short for a block of memory.
    #[error("a memory block has {bytes} bytes and needs {needed}; allocate as many as requested")]
    Memory {
        /// The bytes given.
        bytes: usize,
        /// The bytes needed.
        needed: usize,
    },
    /// A range beyond the end of the device.
    #[error("{bytes} bytes at offset {offset} exceed the device of {device_bytes} bytes; stay inside it")]
    Range {
        /// The start of the range.
        offset: u64,
        /// The length of the range.
        bytes: u64,
        /// The length of the device.
        device_bytes: u64,
    },
    /// A direct request that is not whole blocks.
    #[error(
        "{bytes} bytes at offset {offset} are not whole blocks of {block_bytes} bytes; use the cached path"
    )]
    Misaligned {
        /// The start of the range.
        offset: u64,
        /// The length of the range.
        bytes: u64,
        /// The bytes of a block.
        block_bytes: u32,
    },
    /// Another shrink in progress.
    #[error("the cache is already shrinking; wait until it has finished")]
    Shrinking,
    /// A cache that cannot be removed while other handles use it.
    #[error("other handles use the cache, so it stays; drop them, then remove it")]
    InUse,
    /// A handle with other blocks than those of the cache that it joins.
    #[error(
        "the handle's blocks are not those of the cache: {device_bytes} bytes from byte {first} on; make it for the same \
         namespace and range"
    )]
    OtherRange {
        /// The first byte of the cache's range.
        first: u64,
        /// The bytes of the cache's range.
        device_bytes: u64,
    },
    /// A user whose number is too large for a handle of its own.
    #[error("user {user} of the cache can have no handle of its own; join without one")]
    UserNumber {
        /// The number of the user.
        user: u32,
    },
    /// Dirty pages that were not written back in time when the cache was closed; they are lost.
    #[error(
        "{dirty_bytes} bytes of dirty pages were not on the device after {waited}; wait longer, or flush before"
    )]
    CloseTimeout {
        /// The bytes of dirty pages.
        dirty_bytes: u64,
        /// The time waited.
        waited: Nanos,
    },
    /// A user that has left the cache.
    #[error("this user has left the cache; join again")]
    Left,
    /// The device is gone.
    #[error("the device is gone: {0}; open it again")]
    Gone(Status),
}
