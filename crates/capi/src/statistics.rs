//! Numbers of a pool, as C reads them.
//!
//! In: a handle. Out: structs of plain 64-bit numbers. Invariant: a struct only ever grows at its end, and callers say how
//! much of it their header knows.

use crate::border::{self, guarded};
use crate::code::Code;
use crate::fault::Fault;
use crate::handles::{self, PoolHandle};
use headwater_dma::pool::{NodeId, NodeStatistics, PoolError, Statistics};

/// A pool at one moment. All are bytes or counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// M.
    pub cap_bytes: u64,
    /// m of the next chunk.
    pub chunk_bytes: u64,
    /// Taken from the system by the static tier.
    pub static_bytes: u64,
    /// By the pool.
    pub pool_bytes: u64,
    /// By the dynamic tier.
    pub dynamic_bytes: u64,
    /// In the hands of callers and devices.
    pub in_use_bytes: u64,
    /// In the caches of threads.
    pub cached_bytes: u64,
    /// Lent to a device and never taken back.
    pub quarantined_bytes: u64,
    /// Held for good by a device or the kernel.
    pub stuck_bytes: u64,
    /// Requests that a thread's cache served.
    pub served_by_cache: u64,
    /// By a free run.
    pub served_contiguous: u64,
    /// By several free runs.
    pub served_scattered: u64,
    /// By memory taken from the system for it.
    pub served_by_growth: u64,
    /// After waiting in line.
    pub served_after_waiting: u64,
    /// Requests refused.
    pub refused: u64,
    /// Requests in line now.
    pub waiting: u64,
    /// Requests that gave up waiting.
    pub gave_up: u64,
    /// Chunks taken from the system since the pool was opened.
    pub grown_chunks: u64,
    /// Chunks given back since.
    pub retired_chunks: u64,
    /// External fragmentation in thousandths: 1 - longest free run / free bytes.
    pub fragmentation_per_mille: u64,
    /// Half of all chunks were pinned within so many nanoseconds, to the next power of two.
    pub pin_ns_median: u64,
    /// 99 of 100 were.
    pub pin_ns_p99: u64,
    /// Nodes of memory; see hw_pool_node_statistics.
    pub nodes: u64,
}

/// One node of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeTotals {
    /// The kernel's number of it.
    pub node: u64,
    /// Chunks.
    pub chunks: u64,
    /// Bytes of these.
    pub pinned_bytes: u64,
    /// Bytes of chunks of which nothing is given out.
    pub empty_bytes: u64,
    /// Bytes that are neither given out nor in a cache.
    pub free_bytes: u64,
    /// Bytes of the longest free run.
    pub largest_free_bytes: u64,
    /// Bytes in huge pages of 1 GiB.
    pub huge_1g_bytes: u64,
    /// In huge pages of 2 MiB.
    pub huge_2m_bytes: u64,
    /// In memory that the kernel may back by huge pages.
    pub transparent_bytes: u64,
    /// In pages of 4 KiB.
    pub small_bytes: u64,
}

impl Totals {
    fn of(now: &Statistics) -> Self {
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
            gave_up: now.gave_up,
            grown_chunks: now.grown_chunks,
            retired_chunks: now.retired_chunks,
            fragmentation_per_mille: now.fragmentation_per_mille(),
            pin_ns_median: now.pinning.at_most(500).0,
            pin_ns_p99: now.pinning.at_most(990).0,
            nodes: now.nodes.len() as u64,
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

/// Writes as much of a struct of 64-bit numbers as the caller's header knows.
///
/// # Safety
/// `T` consists of `u64` alone, and an `out` that is neither null nor misaligned is valid for writes of `out_bytes` bytes.
unsafe fn write_known<T>(value: &T, out: *mut T, out_bytes: usize) -> Result<(), Fault> {
    border::check(out, "out")?;
    let want = size_of::<T>();
    if out_bytes == 0 || out_bytes > want || !out_bytes.is_multiple_of(size_of::<u64>()) {
        return Err(Fault::Length { got: out_bytes, want });
    }
    let from = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: `out_bytes` bytes are there at both ends: the value is at least so long, and has no gaps, and the caller
    // promises the other; a value of ours does not overlap memory of C's.
    unsafe { std::ptr::copy_nonoverlapping(from, out.cast::<u8>(), out_bytes) };
    Ok(())
}

/// Writes the pool's numbers to `out`. `out_bytes` is sizeof(hw_pool_totals).
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for writes of `out_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_statistics(
    pool: *mut PoolHandle,
    out: *mut Totals,
    out_bytes: usize,
) -> Code {
    guarded(|| {
        let face = handles::find(pool)?.ours()?;
        let totals = Totals::of(&face.pool.statistics());
        // SAFETY: the struct is made of `u64`; the rest is the caller's promise.
        unsafe { write_known(&totals, out, out_bytes) }
    })
}

/// Writes the numbers of node `index`, counted from 0 to hw_pool_totals.nodes, to `out`. `out_bytes` is
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
) -> Code {
    guarded(|| {
        let face = handles::find(pool)?.ours()?;
        let now = face.pool.statistics();
        let node = now.nodes.get(index as usize).ok_or(PoolError::NoSuchNode { node: NodeId(index) })?;
        // SAFETY: the struct is made of `u64`; the rest is the caller's promise.
        unsafe { write_known(&NodeTotals::of(node), out, out_bytes) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_header_gets_what_it_knows_and_not_a_byte_more() {
        let value = NodeTotals { node: 1, chunks: 2, pinned_bytes: 3, ..NodeTotals::default() };
        let mut out = NodeTotals { pinned_bytes: 77, ..NodeTotals::default() };
        // SAFETY: `out` is a whole struct of `u64`.
        let written = unsafe { write_known(&value, &raw mut out, 16) };
        assert!(written.is_ok());
        assert_eq!((out.node, out.chunks, out.pinned_bytes), (1, 2, 77));
        for wrong in [0, 7, size_of::<NodeTotals>() + 8] {
            // SAFETY: nothing is written for a length that is refused.
            let refused = unsafe { write_known(&value, &raw mut out, wrong) };
            assert!(matches!(refused, Err(Fault::Length { .. })));
        }
    }
}
