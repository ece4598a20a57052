//! The timed operations of the memory costs.
//!
//! Input: a clock and the time from which on no operation is repeated. Output: one row per size. Cells whose operation
//! the system refuses stay empty.

use super::{MemoryCost, SIZES};
use crate::clock::{Clock, Nanos};
use crate::copy::copy;
use crate::mapped_region::MappedRegion;
use crate::pinning::per_request::{BufferRegistrar, FreshMemory, lock_resident, map_reserved_huge};
use rustix::mm::{Advice, madvise};
use std::ffi::c_void;
use std::hint::black_box;
use std::{fs, io};

const PAGE_BYTES: usize = 4_096;
/// The rounds of one cell, and their time limit.
const ROUNDS: usize = 15;
const CELL_SPAN: Nanos = Nanos::from_micros(350);
/// More than most caches of a core hold, so that memory is cold when it is accessed again.
const COLD_BYTES: usize = 24 << 20;
const LARGEST: usize = SIZES[SIZES.len() - 1];

/// The memory that every operation but mapping works on, resident before anything is timed.
struct CostBench {
    /// Pages of 4 KiB.
    small: MappedRegion,
    /// Transparent huge pages, where the kernel has them.
    huge: Option<MappedRegion>,
    cold: MappedRegion,
    /// The offset in `cold` of the next cold copy.
    at: usize,
    ring: Option<BufferRegistrar>,
    reserved_huge: bool,
}

pub(super) fn rows(clock: &Clock, deadline: Nanos) -> Vec<MemoryCost> {
    let row = |bytes| MemoryCost { bytes: bytes as u64, ..MemoryCost::default() };
    match CostBench::new() {
        Ok(mut bench) => SIZES.iter().map(|&bytes| bench.row(clock, deadline, bytes)).collect(),
        Err(_) => SIZES.iter().map(|&bytes| row(bytes)).collect(),
    }
}

impl CostBench {
    fn new() -> io::Result<Self> {
        let says = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let region = |bytes| MappedRegion::zeroed(bytes).map_err(io::Error::other);
        let transparent = says("/sys/kernel/mm/transparent_hugepage/enabled");
        let mut bench = Self {
            small: region(2 * LARGEST)?,
            huge: (!transparent.is_empty() && !transparent.contains("[never]"))
                .then(|| region(LARGEST))
                .transpose()?,
            cold: region(COLD_BYTES)?,
            at: 0,
            ring: BufferRegistrar::open().ok(),
            reserved_huge: says("/proc/sys/vm/nr_hugepages")
                .trim()
                .parse::<u64>()
                .is_ok_and(|pages| pages > 1),
        };
        let start = bench.small.as_mut_ptr().cast::<c_void>();
        // SAFETY: bounds and alignment: exactly the mapping of a region that starts on a huge page. Lifetime: the
        // region lives. Aliasing: the advice changes how untouched pages are backed, not what they hold.
        let _only_slower_if_refused = unsafe { madvise(start, bench.small.len(), Advice::LinuxNoHugepage) };
        touch(&mut bench.small);
        touch(&mut bench.cold);
        bench.huge.iter_mut().for_each(touch);
        Ok(bench)
    }

    fn row(&mut self, clock: &Clock, deadline: Nanos, bytes: usize) -> MemoryCost {
        let cell = |operation: &mut dyn FnMut() -> io::Result<()>| median_cost(clock, deadline, operation);
        let (from, to) = self.small.split_at_mut(LARGEST);
        let copy_hot_ns = cell(&mut || {
            copy(black_box(&mut to[..bytes]), &from[..bytes]);
            Ok(())
        });
        let (cold, at) = (&mut self.cold, &mut self.at);
        let copy_cold_ns = cell(&mut || {
            copy_cold(cold, at, bytes);
            Ok(())
        });
        let resident = &mut self.small[..bytes];
        let lock_resident_ns = cell(&mut || lock_resident(resident));
        let ring = self.ring.as_ref();
        let register_cell = |memory: &mut [u8]| {
            let ring = ring?;
            cell(&mut || ring.register(memory))
        };
        let register_small_ns = register_cell(resident);
        let register_huge_ns = self.huge.as_mut().and_then(|huge| register_cell(&mut huge[..bytes]));
        MemoryCost {
            bytes: bytes as u64,
            copy_hot_ns,
            copy_cold_ns,
            lock_resident_ns,
            register_small_ns,
            register_huge_ns,
            map_reserved_huge_ns: self
                .reserved_huge
                .then(|| cell(&mut || map_reserved_huge(bytes)))
                .flatten(),
            map_and_lock_ns: cell(&mut || FreshMemory::map_and_lock(bytes).map(drop)),
        }
    }
}

/// Returns the median of a few rounds, or `None` if the system refused one. The first round always runs: a table with
/// empty cells would not compare the operations, and one round of everything takes a few milliseconds.
fn median_cost(clock: &Clock, deadline: Nanos, operation: &mut dyn FnMut() -> io::Result<()>) -> Option<u64> {
    let start = clock.now();
    let until = start.after(CELL_SPAN).min(deadline);
    let mut spans = Vec::with_capacity(ROUNDS);
    let mut before = start;
    while spans.is_empty() || (spans.len() < ROUNDS && before < until) {
        operation().ok()?;
        let now = clock.now();
        spans.push(now.since(before).0);
        before = now;
    }
    spans.sort_unstable();
    spans.get(spans.len() / 2).copied()
}

fn touch(region: &mut MappedRegion) {
    region.chunks_mut(PAGE_BYTES).for_each(|page| page[0] = 1);
}

/// Copies from one half of the memory to the other, at an offset that advances with each call.
fn copy_cold(cold: &mut MappedRegion, at: &mut usize, bytes: usize) {
    let (from, to) = cold.split_at_mut(COLD_BYTES / 2);
    if *at + bytes > from.len() {
        *at = 0;
    }
    copy(black_box(&mut to[*at..*at + bytes]), &from[*at..*at + bytes]);
    *at += bytes;
}
