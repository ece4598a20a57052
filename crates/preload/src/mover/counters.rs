//! Counters of what the library did, and of what it left to the kernel and why.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// The counters of this process.
        #[derive(Debug)]
        pub(super) struct PreloadCounters {
            $($(#[doc = $doc])+ pub(super) $name: AtomicU64,)+
        }

        /// The counters.
        pub(super) static COUNTERS: PreloadCounters = PreloadCounters {
            $($name: AtomicU64::new(0),)+
        };

        impl PreloadCounters {
            /// Calls `each` with the name and the value of every counter.
            pub(super) fn for_each(&self, mut each: impl FnMut(&str, u64)) {
                $(each(stringify!($name), self.$name.load(Ordering::Relaxed));)+
            }
        }
    };
}

counters! {
    /// Copies past the cache.
    moves,
    /// Their bytes.
    moved_bytes,
    /// Long copies between ranges that overlap, which the C library did.
    moves_overlapping,
    /// Fills past the cache.
    fills,
    /// Their bytes.
    filled_bytes,
    /// Calls that made absent pages present before a copy or a fill.
    prefaults,
    /// Their bytes.
    prefaulted_bytes,
    /// Such calls that the kernel refused: the copy took the faults.
    prefaults_refused,
    /// Long comparisons.
    compares,
    /// Their bytes.
    compared_bytes,
    /// Reads through a mapping.
    mapped_reads,
    /// Their bytes.
    mapped_read_bytes,
    /// Writes through a mapping.
    mapped_writes,
    /// Their bytes.
    mapped_write_bytes,
    /// Mappings of files, with MAP_SYNC.
    maps_sync,
    /// Mappings of files without it, which only a setting allows.
    maps_plain,
    /// Mappings that the kernel refused.
    maps_refused,
    /// Mappings that were removed, at a close or for another file.
    maps_removed,
    /// Transfers of the kernel because the program handles bus or segmentation errors, or blocks them.
    kernel_signals,
    /// Transfers of the kernel because of the flags of the descriptor.
    kernel_flags,
    /// Transfers of the kernel because of the file: not regular, not DAX, immutable, with a set-uid bit, owned by another user.
    kernel_file,
    /// Transfers of the kernel because the range is not inside the file.
    kernel_range,
    /// Transfers of the kernel because all places for mappings were taken.
    kernel_full,
    /// Transfers that the kernel repeated because a page was gone: of the file, or of the program's buffer.
    kernel_faults,
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}
