//! Statistics of a pool, as C reads them.
//!
//! Input: a handle. Output: structs of plain 64-bit numbers. Invariant: a struct only grows at its end, and callers
//! pass the length that it has in their header.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::ffi::{self, run_call};
use crate::pool_handles::{self, PoolHandle};
use headwater_dma::pool::{NodeId, NodeStatistics, PoolError, PoolStatistics};

/// The statistics of a pool at one moment. Fields are bytes or counts unless their names have another unit.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolTotals {
    /// M, the cap.
    pub cap_bytes: u64,
    /// m, the size of the next chunk.
    pub chunk_bytes: u64,
    /// Taken from the system by the static tier.
    pub static_bytes: u64,
    /// Taken from the system by the pool tier.
    pub pool_bytes: u64,
    /// Taken from the system by the dynamic tier.
    pub dynamic_bytes: u64,
    /// Held by callers and devices.
    pub in_use_bytes: u64,
    /// Held by the caches of threads.
    pub cached_bytes: u64,
    /// Lent to a device and never returned.
    pub quarantined_bytes: u64,
    /// Held permanently by a device or the kernel.
    pub stuck_bytes: u64,
    /// Requests served by a thread's cache.
    pub served_by_cache: u64,
    /// Requests served by one free run.
    pub served_contiguous: u64,
    /// Requests served by several free runs.
    pub served_scattered: u64,
    /// Requests served by memory taken from the system for them.
    pub served_by_growth: u64,
    /// Requests served after waiting in the wait queue.
    pub served_after_waiting: u64,
    /// Refused requests.
    pub refused: u64,
    /// Requests in the wait queue now.
    pub waiting: u64,
    /// Requests that stopped waiting without memory.
    pub gave_up: u64,
    /// Chunks taken from the system since the pool was opened.
    pub grown_chunks: u64,
    /// Chunks returned to the system since the pool was opened.
    pub retired_chunks: u64,
    /// External fragmentation in thousandths: 1 - longest free run / free bytes.
    pub fragmentation_per_mille: u64,
    /// Nanoseconds to pin a chunk, median, rounded up to a power of two.
    pub pin_ns_median: u64,
    /// Nanoseconds to pin a chunk, 99th percentile, rounded up to a power of two.
    pub pin_ns_p99: u64,
    /// Number of memory nodes; see hw_pool_node_statistics.
    pub nodes: u64,
    /// Requests served by the static tier.
    pub served_static: u64,
    /// Requests served by the pool tier.
    pub served_pool: u64,
    /// Requests served by the dynamic tier.
    pub served_dynamic: u64,
    /// Small requests without a free slot, and large ones for which the cap had no room, served by the pool tier and
    /// counted there.
    pub overflowed: u64,
    /// Pieces of memory of the program that were pinned in place.
    pub imported: u64,
    /// Free slots of the static tier.
    pub static_free_bytes: u64,
}

/// The statistics of one memory node.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeTotals {
    /// The kernel's number of the node.
    pub node: u64,
    /// Number of chunks.
    pub chunks: u64,
    /// Bytes of all chunks.
    pub pinned_bytes: u64,
    /// Bytes of chunks of which nothing is allocated.
    pub empty_bytes: u64,
    /// Bytes that are neither allocated nor in a cache.
    pub free_bytes: u64,
    /// Bytes of the longest free run.
    pub largest_free_bytes: u64,
    /// Bytes in huge pages of 1 GiB.
    pub huge_1g_bytes: u64,
    /// Bytes in huge pages of 2 MiB.
    pub huge_2m_bytes: u64,
    /// Bytes in memory that the kernel may back by huge pages.
    pub transparent_bytes: u64,
    /// Bytes in pages of 4 KiB.
    pub small_bytes: u64,
}

impl PoolTotals {
    pub(crate) fn of(now: &PoolStatistics) -> Self {
        let [served_static, served_pool, served_dynamic] = now.tiers.served;
        let [static_bytes, pool_bytes, dynamic_bytes] = now.tier_bytes;
        Self {
            cap_bytes: now.cap_bytes,
            chunk_bytes: now.chunk_bytes,
            static_bytes,
            pool_bytes,
            dynamic_bytes,
            in_use_bytes: now.in_use_bytes,
            cached_bytes: now.cached_bytes,
            quarantined_bytes: now.quarantined_bytes,
            stuck_bytes: now.stuck_bytes,
            served_by_cache: now.steps.cache,
            served_contiguous: now.steps.contiguous,
            served_scattered: now.steps.scattered,
            served_by_growth: now.steps.grown,
            served_after_waiting: now.steps.waited,
            refused: now.refused,
            waiting: now.waiting,
            gave_up: now.cancelled,
            grown_chunks: now.grown_chunks,
            retired_chunks: now.retired_chunks,
            fragmentation_per_mille: now.fragmentation_per_mille(),
            pin_ns_median: now.pinning.quantile_bound(500).0,
            pin_ns_p99: now.pinning.quantile_bound(990).0,
            nodes: now.nodes.len() as u64,
            served_static,
            served_pool,
            served_dynamic,
            overflowed: now.tiers.overflowed,
            imported: now.tiers.imported,
            static_free_bytes: now.static_free_bytes,
        }
    }
}

impl NodeTotals {
    fn of(now: &NodeStatistics) -> Self {
        let [huge_1g_bytes, huge_2m_bytes, transparent_bytes, small_bytes] = now.backing_bytes;
        Self {
            node: now.node.0.into(),
            chunks: now.chunks as u64,
            pinned_bytes: now.pinned_bytes,
            empty_bytes: now.empty_bytes,
            free_bytes: now.free_bytes,
            largest_free_bytes: now.largest_free_bytes,
            huge_1g_bytes,
            huge_2m_bytes,
            transparent_bytes,
            small_bytes,
        }
    }
}

/// Writes as much of a struct of 64-bit numbers as the caller's header has.
///
/// # Safety
/// `T` consists of `u64` alone, and an `out` that is neither null nor misaligned is valid for writes of `out_bytes`
/// bytes.
pub(crate) unsafe fn write_prefix<T>(value: &T, out: *mut T, out_bytes: usize) -> Result<(), CallError> {
    ffi::check_pointer(out, "out")?;
    let want = size_of::<T>();
    if out_bytes == 0 || out_bytes > want || !out_bytes.is_multiple_of(size_of::<u64>()) {
        return Err(CallError::StructLength { got: out_bytes, want });
    }
    let from = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: `out_bytes` bytes are valid at both ends: the value is at least so long and has no padding, and the
    // caller promises `out`; a value of this library does not overlap memory of C.
    unsafe { std::ptr::copy_nonoverlapping(from, out.cast::<u8>(), out_bytes) };
    Ok(())
}

/// Writes the pool's statistics to `out`. `out_bytes` is sizeof(hw_pool_totals).
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for writes of `out_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_statistics(
    pool: *mut PoolHandle,
    out: *mut PoolTotals,
    out_bytes: usize,
) -> ResultCode {
    run_call(|| {
        let open_pool = pool_handles::find(pool)?.of_this_process()?;
        let totals = PoolTotals::of(&open_pool.pool.statistics());
        // SAFETY: the struct is made of `u64`; the rest is the caller's promise.
        unsafe { write_prefix(&totals, out, out_bytes) }
    })
}

/// Writes the statistics of a node to `out`; `index` is less than hw_pool_totals.nodes. `out_bytes` is
/// sizeof(hw_node_totals).
///
/// # Safety
/// As for hw_pool_statistics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_node_statistics(
    pool: *mut PoolHandle,
    index: u32,
    out: *mut NodeTotals,
    out_bytes: usize,
) -> ResultCode {
    run_call(|| {
        let open_pool = pool_handles::find(pool)?.of_this_process()?;
        let now = open_pool.pool.statistics();
        let node = now.nodes.get(index as usize).ok_or(PoolError::NoSuchNode { node: NodeId(index) })?;
        // SAFETY: the struct is made of `u64`; the rest is the caller's promise.
        unsafe { write_prefix(&NodeTotals::of(node), out, out_bytes) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_header_gets_its_fields_and_not_a_byte_more() {
        let value = NodeTotals { node: 1, chunks: 2, pinned_bytes: 3, ..NodeTotals::default() };
        let mut out = NodeTotals { pinned_bytes: 77, ..NodeTotals::default() };
        // SAFETY: `out` is a whole struct of `u64`.
        let written = unsafe { write_prefix(&value, &raw mut out, 16) };
        assert!(written.is_ok());
        assert_eq!((out.node, out.chunks, out.pinned_bytes), (1, 2, 77));
        for wrong in [0, 7, size_of::<NodeTotals>() + 8] {
            // SAFETY: a refused length writes nothing.
            let refused = unsafe { write_prefix(&value, &raw mut out, wrong) };
            assert!(matches!(refused, Err(CallError::StructLength { .. })));
        }
    }
}
