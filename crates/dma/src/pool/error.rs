//! Errors of the pool, and what to change.
//!
//! Input: requests, and errors of kernel and devices. Output: errors with their values. Invariant: a caller that
//! receives one owns no memory of the failed request, and the pool is unchanged.

use super::config::ConfigError;
use super::pinner::PinError;
use super::placement::{AdmitError, NodeId};
use headwater_host::clock::Nanos;
use headwater_host::numa::BindError;
use headwater_host::reservation::{AdoptError, CommitError, ReserveError};

/// The reason why a request was not served or a pool not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The request is for 0 bytes.
    #[error("a request for 0 bytes: request at least 1")]
    Zero,
    /// The length overflows the address space when rounded up to pages.
    #[error("a request of {bytes} bytes overflows: request fewer")]
    Overflow {
        /// Requested bytes.
        bytes: usize,
    },
    /// No buffer can have this alignment.
    #[error("an alignment of {align} bytes is not supported: request a power of two up to {max}")]
    Align {
        /// Requested alignment.
        align: usize,
        /// The largest alignment of this pool.
        max: usize,
    },
    /// Scatter/gather without a segment.
    #[error("scatter/gather in 0 segments: allow at least 1, or request contiguous memory")]
    NoSegments,
    /// The request is larger than the cap can ever allow.
    #[error(
        "{bytes} bytes exceed the {max} that the cap leaves for requests: raise the cap or request fewer"
    )]
    OverCap {
        /// Requested bytes.
        bytes: usize,
        /// The cap, less the bytes of the static tier and the bytes permanently lost.
        max: usize,
    },
    /// The cap exceeds the reserved address space.
    #[error(
        "a cap of {cap} bytes exceeds the {max} bytes of reserved address space: \
         open the pool with a larger cap_max"
    )]
    CapTooHigh {
        /// Requested cap.
        cap: usize,
        /// The largest possible cap.
        max: usize,
    },
    /// The pool has no memory on such a node.
    #[error("the pool has no arena on node {node}: name one of its nodes, or none")]
    NoSuchNode {
        /// Requested node.
        node: NodeId,
    },
    /// The request must wait: no memory is free now, or other requests wait already.
    #[error(
        "no {bytes} bytes are free in that shape now ({waiting} requests wait): \
         return buffers and retry, or wait in the queue"
    )]
    WouldBlock {
        /// Requested bytes.
        bytes: usize,
        /// Number of waiting requests.
        waiting: u64,
    },
    /// The request was not served in time.
    #[error(
        "{bytes} bytes did not become free within {waited}: wait longer, raise the cap, or return buffers sooner"
    )]
    Timeout {
        /// Requested bytes.
        bytes: usize,
        /// Time that the request waited.
        waited: Nanos,
    },
    /// The memory could not be pinned for the device.
    #[error("pinning failed: {0}")]
    Pin(#[from] PinError),
    /// The kernel refused memory.
    #[error("{0}")]
    Commit(#[from] CommitError),
    /// The kernel refused address space.
    #[error("{0}")]
    Reserve(#[from] ReserveError),
    /// The pool's addresses could not be bound to a node.
    #[error("{0}")]
    Bind(#[from] BindError),
    /// The node has no memory available.
    #[error("{0}")]
    Place(#[from] AdmitError),
    /// The address is not one that this pool leaked.
    #[error("{0}")]
    Adopt(#[from] AdoptError),
    /// The configuration is inconsistent.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// This process is a forked child of the one that opened the pool, and does not have its memory.
    #[error("the pool belongs to the parent of this process: open one after the fork")]
    Forked,
    /// The pool was closed.
    #[error("the pool is closed")]
    Closed,
}
