//! Lookup of an address in the pool.
//!
//! Input: any address. Output: its node, chunk and buffer. Invariant: an address is only compared, never dereferenced;
//! the result was correct at some moment during the call.

use super::budget::PinTier;
use super::error::PoolError;
use super::placement::NodeId;
use super::release::{OWN_CHUNK, ReleaseTarget};
use super::state::PoolState;
use crate::buffer::{DeviceSegment, PoolBuffer};
use headwater_host::reservation::{AdoptError, ClaimState, PAGE_BYTES, PageRun, PageSpan};

/// The owner of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// No owner: the page is free, or has no memory now.
    Free,
    /// A buffer, or a thread's cache.
    Owned,
    /// The holder of the address of a leaked buffer.
    Raw,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLookup {
    /// The node.
    pub node: NodeId,
    /// The chunk, if the address has memory. Page numbers start at the node's first address.
    pub chunk: Option<PageRun>,
    /// The buffer, if the page is not free.
    pub buffer: Option<PageRun>,
    /// Bytes from the start of the buffer.
    pub offset: usize,
    /// The owner of the page.
    pub state: PageState,
}

pub(super) fn find(pool: &'static PoolState, address: *const u8) -> Option<AddressLookup> {
    let node = pool.nodes.iter().find(|node| node.table.contains(address))?;
    let (found, page, offset, chunk) = pool.with_arena(node, |arena| {
        let found = node.table.find(address);
        let bytes = address.addr() - arena.reservation.address();
        let page = u32::try_from(bytes / PAGE_BYTES).ok()?;
        let first = found.map_or(page, |found| found.run.first);
        let offset = bytes - first as usize * PAGE_BYTES;
        Some((found, page, offset, arena.chunks.at(page).map(|chunk| chunk.run)))
    })??;
    let state = match found.map(|found| found.state) {
        None => PageState::Free,
        Some(ClaimState::Raw) => PageState::Raw,
        Some(ClaimState::Owned | ClaimState::Adopted) => PageState::Owned,
    };
    let buffer = found.map(|found| found.run).filter(|run| run.first <= page);
    Some(AddressLookup { node: node.id, chunk, buffer, offset, state })
}

pub(super) fn segment(pool: &'static PoolState, address: *const u8) -> Option<DeviceSegment> {
    if !pool.is_current_process() {
        return None;
    }
    let node = pool.nodes.iter().find(|node| node.table.contains(address))?;
    let run = node.table.find(address)?.run;
    // Buffers start on pages, and do not cross into the next chunk where the device's mapping is not contiguous.
    let within = node.table.offset_in(address, run)?;
    let (page, beyond) = (run.first + u32::try_from(within / PAGE_BYTES).ok()?, within % PAGE_BYTES);
    let iova = node.bindings.iova(page).map(|iova| iova + beyond as u64);
    let slot = node.bindings.slot(page).map(|(slot, offset)| (slot, offset + beyond));
    Some(DeviceSegment { address: address.addr(), bytes: run.bytes() - within, iova, slot })
}

pub(super) fn adopt(pool: &'static PoolState, address: *const u8) -> Result<PoolBuffer, PoolError> {
    let (arena, span) = take(pool, address)?;
    let bytes = span.bytes();
    Ok(PoolBuffer::new(span, bytes, ReleaseTarget::new(pool, arena)))
}

/// Adopts the span that was leaked at an address, and returns it with the arena of its release target.
#[inline]
pub(super) fn take(pool: &'static PoolState, address: *const u8) -> Result<(usize, PageSpan), PoolError> {
    if !pool.is_current_process() {
        return Err(PoolError::Forked);
    }
    let arena = pool.nodes.iter().position(|node| node.table.contains(address));
    let arena = arena.ok_or(PoolError::Adopt(AdoptError::Outside))?;
    let span = pool.nodes[arena].table.adopt(address)?;
    // As long as a large request: it is a chunk by itself, which no cache keeps.
    let is_large = pool.routing.tier(span.pages()) == PinTier::Dynamic;
    Ok((if is_large { arena | OWN_CHUNK } else { arena }, span))
}
