//! A pinner for memory that another process, or a device behind one, maps by descriptor.
//!
//! Input: the address range of a shared pool, and ranges in it. Output: the offset of each in the file, and the list
//! that the other process needs. Invariant: a range is listed exactly while it has memory.
//!
//! # What this does not do
//! It locks nothing: the pages are present, and a process that accesses them waits if they were swapped out. It does
//! not revoke the other process's access; a range no longer listed reads as zeroes there.

use super::{MemoryPinner, NodeRange, PinError, PinToken};
use crate::pool::placement::NodeId;
use headwater_host::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;

/// A range of a node's file that has memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedRange {
    /// The node; each node has its own file.
    pub node: NodeId,
    /// Offset in the file, in bytes; the pool uses it as the device address.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: usize,
}

/// A pinner that pins nothing and records the ranges that other processes have to map. The pool must be opened with
/// [`PoolSharing::Shared`](crate::pool::PoolSharing::Shared).
#[derive(Debug, Default)]
pub struct SharedPinner {
    state: Mutex<SharedPinnerState>,
}

#[derive(Debug, Default)]
struct SharedPinnerState {
    nodes: Vec<SharedNode>,
    /// Ranges by address in this process.
    ranges: BTreeMap<usize, SharedRange>,
}

#[derive(Debug)]
struct SharedNode {
    node: NodeId,
    address: usize,
    bytes: usize,
    file: OwnedFd,
}

impl SharedPinner {
    /// Returns a descriptor of a node's memory for another process, which maps ranges of it
    /// ([`SharedMemory::map_descriptor`](headwater_host::shared_memory::SharedMemory::map_descriptor)). It is sealed: its length cannot change.
    ///
    /// # Errors
    /// The pool has no such node (`NotFound`), or no descriptor is available.
    pub fn descriptor(&self, node: NodeId) -> std::io::Result<OwnedFd> {
        let state = self.locked();
        let found = state.nodes.iter().find(|shared| shared.node == node);
        found.ok_or(std::io::ErrorKind::NotFound)?.file.try_clone()
    }

    /// Returns the ranges that have memory now, in order.
    #[must_use]
    pub fn ranges(&self) -> Vec<SharedRange> {
        let mut ranges: Vec<SharedRange> = self.locked().ranges.values().copied().collect();
        ranges.sort_unstable();
        ranges
    }

    fn locked(&self) -> MutexGuard<'_, SharedPinnerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryPinner for SharedPinner {
    fn name(&self) -> &'static str {
        "shared"
    }

    fn prepare_node(&self, grounds: NodeRange<'_>) -> Result<(), PinError> {
        let NodeRange { node, address, bytes, descriptor } = grounds;
        let file = descriptor.ok_or(PinError::NotShared)?.try_clone_to_owned();
        let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
        let file = file.map_err(|error| PinError::Refused { bytes, errno: errno(error) })?;
        self.locked().nodes.push(SharedNode { node, address, bytes, file });
        Ok(())
    }

    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError> {
        let mut state = self.locked();
        let inside = |shared: &&SharedNode| {
            let offset = address.checked_sub(shared.address);
            offset.and_then(|offset| offset.checked_add(bytes)).is_some_and(|end| end <= shared.bytes)
        };
        let shared = state.nodes.iter().find(inside).ok_or(PinError::NotShared)?;
        let (node, offset) = (shared.node, (address - shared.address) as u64);
        if state.ranges.contains_key(&address) {
            return Err(PinError::Exists { bytes });
        }
        state.ranges.insert(address, SharedRange { node, offset, bytes });
        Ok(PinToken { iova: Some(offset), ..PinToken::at(address, bytes) })
    }

    fn unpin(&self, token: PinToken) -> Result<(), PinError> {
        let mut state = self.locked();
        let known = state.ranges.get(&token.address).is_some_and(|range| range.bytes == token.bytes);
        if !known {
            return Err(PinError::Short { bytes: token.bytes, unpinned: 0 });
        }
        state.ranges.remove(&token.address);
        Ok(())
    }
}
