//! The builder of data pointers: PRP entries and lists of any length, or SGLs (NVMe Base 2.0 sections 4.1.1 and 4.1.2).
//!
//! Input: address runs in the order of the data, and pages for lists. Output: the data pointer of an entry, and the
//! pages that it needs until the command completes. Invariant: the entry describes exactly the runs; on any error no
//! page is taken and the entry is unchanged.
//!
//! ```text
//!   PRP1 ----> |    data|     PRP2 ----> | page, page, .., next |---> | page, page, .. |
//!   SGL1 ----> | run, run, .., next |---> | run, run |
//! ```

use super::list_pages::{ListPages, PageChain, PageIndex};
use crate::data_pointer::PageBytes;
use crate::spec::command::SubmissionEntry;
use crate::spec::sgl::{SglDescriptor, SglKind};
use headwater_dma::iova::IovaRange;
use headwater_host::ring_memory::RingMemory;
use headwater_host::width::{narrow, to_usize};
use zerocopy::little_endian::U64;
use zerocopy::transmute;

/// Bytes of a PRP entry and of an SGL descriptor, as shifts.
const PRP_SHIFT: u32 = 3;
const SGL_SHIFT: u32 = 4;
/// Alignment that every controller accepts in both data pointers: dwords.
const DWORD: u64 = 4;

/// The use of SGLs beside PRPs (the controller accepts them: SGLS in bits 1:0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SglUse {
    /// PRPs only.
    #[default]
    Never,
    /// SGLs for data that PRPs cannot describe.
    Needed,
    /// SGLs where PRPs would need a list.
    Lists,
}

/// The reason why no data pointer was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataPointerError {
    /// A run is empty or passes the end of the address space.
    #[error("run {run} of the data is empty, or passes the end of the address space")]
    Range {
        /// Index of the run, from 0.
        run: usize,
    },
    /// A run begins or ends inside a dword.
    #[error("run {run} of the data, at {address:#x}, is not dword aligned")]
    Unaligned {
        /// Index of the run, from 0.
        run: usize,
        /// Start address of the run.
        address: u64,
    },
    /// A run begins or ends inside a page next to another run, and the controller accepts no SGLs.
    #[error(
        "run {run} of the data, at {address:#x}, leaves a gap in a page of {page} bytes, which PRPs cannot describe"
    )]
    Gap {
        /// Index of the run, from 0.
        run: usize,
        /// Start address of the run.
        address: u64,
        /// Bytes of a page.
        page: u32,
    },
    /// The data needs more list pages than exist.
    #[error("the data needs {pages} list pages, and the queue has {total}; send less in one command")]
    TooLong {
        /// Pages needed.
        pages: usize,
        /// Pages that exist.
        total: usize,
    },
    /// Too few list pages are free now: reap completions first.
    #[error("all list pages are in use; take completions and submit again")]
    NoListPages,
}

/// Writes the data pointer of an entry. Leaves it unchanged if there are no runs.
///
/// # Errors
/// [`DataPointerError`]; the entry and the list pages are unchanged.
#[inline]
pub fn build_data_pointer<M: RingMemory>(
    entry: &mut SubmissionEntry,
    runs: &[IovaRange],
    sgl: SglUse,
    lists: &mut ListPages<M>,
) -> Result<PageChain, DataPointerError> {
    // The most frequent case: one run in one or two pages.
    if let [only] = runs
        && only.start.0.is_multiple_of(DWORD)
        && only.bytes > 0
    {
        let page = lists.page();
        let in_first = u64::from(page.get()) - page.offset(only.start.0);
        let more = u64::from(only.bytes).saturating_sub(in_first);
        if more <= u64::from(page.get()) && only.start.0.checked_add(u64::from(only.bytes) - 1).is_some() {
            entry.prp1 = U64::new(only.start.0);
            entry.prp2 = U64::new(if more == 0 { 0 } else { only.start.0 + in_first });
            return Ok(PageChain::NONE);
        }
    }
    if runs.is_empty() {
        return Ok(PageChain::NONE);
    }
    build_checked(entry, runs, sgl, lists)
}

fn build_checked<M: RingMemory>(
    entry: &mut SubmissionEntry,
    runs: &[IovaRange],
    sgl: SglUse,
    lists: &mut ListPages<M>,
) -> Result<PageChain, DataPointerError> {
    check(runs)?;
    match prp_entries(runs, lists.page()) {
        Ok(entries) if entries <= 2 || sgl != SglUse::Lists => build_prp(entry, runs, entries, lists),
        Err(gap) if sgl == SglUse::Never => Err(gap),
        _ => build_sgl(entry, runs, lists),
    }
}

/// Checks that each run is not empty, does not wrap and is dword aligned.
fn check(runs: &[IovaRange]) -> Result<(), DataPointerError> {
    for (run, range) in runs.iter().enumerate() {
        let address = range.start.0;
        let last = u64::from(range.bytes).checked_sub(1).and_then(|more| address.checked_add(more));
        if last.is_none() {
            return Err(DataPointerError::Range { run });
        }
        // The last run may end anywhere: no other run follows it.
        let ends_between = run + 1 < runs.len() && !u64::from(range.bytes).is_multiple_of(DWORD);
        if !address.is_multiple_of(DWORD) || ends_between {
            return Err(DataPointerError::Unaligned { run, address });
        }
    }
    Ok(())
}

/// Counts the PRP entries of the runs: every page but the first is used from its start, every page but the last to its
/// end.
fn prp_entries(runs: &[IovaRange], page: PageBytes) -> Result<usize, DataPointerError> {
    let mut entries = 0;
    for (run, range) in runs.iter().enumerate() {
        let address = range.start.0;
        let offset = page.offset(address);
        let end = page.offset(address.wrapping_add(u64::from(range.bytes)));
        if (run > 0 && offset != 0) || (run + 1 < runs.len() && end != 0) {
            return Err(DataPointerError::Gap { run, address, page: page.get() });
        }
        let pages = (offset + u64::from(range.bytes)).div_ceil(u64::from(page.get()));
        entries += to_usize(pages);
    }
    Ok(entries)
}

/// Returns the pages of a list: in every page but the last, one slot links to the next page.
fn list_pages(entries: usize, places: usize) -> usize {
    if entries <= places { 1 } else { (entries - 1).div_ceil(places - 1) }
}

fn take<M: RingMemory>(lists: &mut ListPages<M>, pages: usize) -> Result<PageChain, DataPointerError> {
    if pages > lists.total() {
        return Err(DataPointerError::TooLong { pages, total: lists.total() });
    }
    lists.take(pages).ok_or(DataPointerError::NoListPages)
}

fn build_prp<M: RingMemory>(
    entry: &mut SubmissionEntry,
    runs: &[IovaRange],
    entries: usize,
    lists: &mut ListPages<M>,
) -> Result<PageChain, DataPointerError> {
    let page = lists.page();
    let mut addresses = runs.iter().flat_map(|range| {
        let first = range.start.0 - page.offset(range.start.0);
        let end = range.start.0 + u64::from(range.bytes - 1);
        // The first entry of a run carries its offset in the page.
        (first..=end)
            .step_by(page.get() as usize)
            .enumerate()
            .map(|(number, at)| if number == 0 { range.start.0 } else { at })
    });
    let places = page.get() as usize >> PRP_SHIFT;
    let chain = if entries <= 2 { PageChain::NONE } else { take(lists, list_pages(entries - 1, places))? };
    entry.prp1 = U64::new(addresses.next().unwrap_or(0));
    let Some(mut at) = lists.first(&chain) else {
        entry.prp2 = U64::new(addresses.next().unwrap_or(0));
        return Ok(chain);
    };
    entry.prp2 = U64::new(lists.address(at));
    let (mut place, mut left) = (0, entries - 1);
    for address in addresses {
        if place + 1 == places
            && left > 1
            && let Some(next) = lists.next(at)
        {
            lists.store(at, place, lists.address(next));
            (at, place) = (next, 0);
        }
        lists.store(at, place, address);
        (place, left) = (place + 1, left - 1);
    }
    Ok(chain)
}

fn build_sgl<M: RingMemory>(
    entry: &mut SubmissionEntry,
    runs: &[IovaRange],
    lists: &mut ListPages<M>,
) -> Result<PageChain, DataPointerError> {
    if let [only] = runs {
        *entry = entry.with_sgl(SglDescriptor::new(SglKind::DataBlock, only.start.0, only.bytes));
        return Ok(PageChain::NONE);
    }
    let places = lists.page().get() as usize >> SGL_SHIFT;
    let chain = take(lists, list_pages(runs.len(), places))?;
    let Some(mut at) = lists.first(&chain) else { return Ok(chain) };
    *entry = entry.with_sgl(segment(lists, at, runs.len(), places));
    let (mut place, mut left) = (0, runs.len());
    for range in runs {
        if place + 1 == places
            && left > 1
            && let Some(next) = lists.next(at)
        {
            put(lists, at, place, segment(lists, next, left, places));
            (at, place) = (next, 0);
        }
        put(lists, at, place, SglDescriptor::new(SglKind::DataBlock, range.start.0, range.bytes));
        (place, left) = (place + 1, left - 1);
    }
    Ok(chain)
}

/// Returns the descriptor of a list page at which `left` descriptors remain.
fn segment<M: RingMemory>(
    lists: &ListPages<M>,
    page: PageIndex,
    left: usize,
    places: usize,
) -> SglDescriptor {
    let kind = if left > places { SglKind::Segment } else { SglKind::LastSegment };
    let bytes = narrow(left.min(places) << SGL_SHIFT);
    SglDescriptor::new(kind, lists.address(page), bytes)
}

fn put<M: RingMemory>(lists: &ListPages<M>, page: PageIndex, place: usize, descriptor: SglDescriptor) {
    let halves: [U64; 2] = transmute!(descriptor);
    for (word, half) in (place * 2..).zip(halves) {
        lists.store(page, word, half.get());
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
