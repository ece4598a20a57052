//! A simulated kernel with VFIO type 1, with faults on request.
//!
//! Input: maps and unmaps. Output: the results of `vfio_iommu_type1`, as documented in `linux/vfio.h` (version 2: a
//! range is unmapped only in whole mappings). Invariant: no two mappings overlap in I/O virtual addresses.

use super::{ContainerLimits, IommuBackend, MemoryRange};
use crate::sync::{Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::PoisonError;

/// The kernel's side of a container.
#[derive(Debug)]
pub struct SimulatedIommu {
    limits: ContainerLimits,
    state: Mutex<SimulatedIommuState>,
}

#[derive(Debug, Default)]
struct SimulatedIommuState {
    mapped: BTreeMap<u64, MemoryRange>,
    refusals: VecDeque<i32>,
    ignores_unmaps: bool,
    mappings_peak: usize,
}

impl SimulatedIommu {
    /// Creates a kernel whose containers have these limits.
    #[must_use]
    pub fn new(limits: ContainerLimits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// Makes the next map fail with this number. Several are used in order.
    pub fn fail_next_map(&self, errno: i32) {
        self.locked().refusals.push_back(errno);
    }

    /// Makes every later unmap succeed without unmapping anything, as a kernel did in spdk issue 1705.
    pub fn ignore_unmaps(&self) {
        self.locked().ignores_unmaps = true;
    }

    /// Translates an I/O virtual address to the process's address of that byte.
    #[must_use]
    pub fn translate(&self, iova: u64) -> Option<usize> {
        let state = self.locked();
        let (&start, memory) = state.mapped.range(..=iova).next_back()?;
        let within = usize::try_from(iova - start).ok()?;
        (within < memory.bytes()).then(|| memory.address() + within)
    }

    /// Returns the current number of mappings.
    #[must_use]
    pub fn mappings(&self) -> usize {
        self.locked().mapped.len()
    }

    /// Returns the highest number of mappings so far.
    #[must_use]
    pub fn mappings_peak(&self) -> usize {
        self.locked().mappings_peak
    }

    fn locked(&self) -> MutexGuard<'_, SimulatedIommuState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IommuBackend for SimulatedIommu {
    fn map(&self, memory: MemoryRange, iova: u64) -> Result<(), i32> {
        let mut state = self.locked();
        if let Some(errno) = state.refusals.pop_front() {
            return Err(errno);
        }
        let (page, bytes) = (self.limits.page_bytes(), memory.bytes() as u64);
        let aligned = [iova, bytes, memory.address() as u64].iter().all(|value| value.is_multiple_of(page));
        let last = bytes.checked_sub(1).and_then(|more| iova.checked_add(more));
        let Some(last) = last.filter(|_| aligned) else { return Err(libc::EINVAL) };
        if !self.limits.ranges.iter().any(|range| range.contains(&iova) && range.contains(&last)) {
            return Err(libc::EINVAL);
        }
        let below = state.mapped.range(..=last).next_back();
        if below.is_some_and(|(&start, other)| start + other.bytes() as u64 > iova) {
            return Err(libc::EEXIST);
        }
        if state.mapped.len() >= self.limits.mappings_max as usize {
            return Err(libc::ENOSPC);
        }
        state.mapped.insert(iova, memory);
        state.mappings_peak = state.mappings_peak.max(state.mapped.len());
        Ok(())
    }

    fn unmap(&self, iova: u64, bytes: u64) -> Result<u64, i32> {
        let mut state = self.locked();
        if state.ignores_unmaps {
            return Ok(0);
        }
        let end = iova.checked_add(bytes).ok_or(libc::EINVAL)?;
        let cut = |at: u64| {
            let below = state.mapped.range(..at).next_back();
            below.is_some_and(|(&start, memory)| start + memory.bytes() as u64 > at)
        };
        if bytes == 0 || cut(iova) || cut(end) {
            return Err(libc::EINVAL);
        }
        let inside: Vec<u64> = state.mapped.range(iova..end).map(|(&start, _)| start).collect();
        let gone = inside.iter().filter_map(|start| state.mapped.remove(start));
        Ok(gone.map(|memory| memory.bytes() as u64).sum())
    }
}
