//! Why the pool refuses, and what to change.
//!
//! In: requests, and what kernel and devices said. Out: errors that carry numbers. Invariant: whoever gets one owns
//! nothing that the pool gave, and the pool is as it was before.

use super::config::ConfigError;
use super::pinner::PinError;
use super::placement::{NodeId, PlaceError};
use headwater_host::clock::Nanos;
use headwater_host::numa::BindError;
use headwater_host::reservation::{AdoptError, CommitError, ReserveError};

/// Why a request was not served or a pool not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// No bytes were asked for.
    #[error("a request of 0 bytes: ask for at least 1")]
    Zero,
    /// The length does not fit the address space once it is rounded up to pages.
    #[error("a request of {bytes} bytes overflows: ask for less")]
    Overflow {
        /// What was asked for.
        bytes: usize,
    },
    /// No buffer can start on such a boundary.
    #[error("an alignment of {align} bytes is impossible: ask for a power of two up to {most}")]
    Align {
        /// What was asked for.
        align: usize,
        /// The largest that this pool has.
        most: usize,
    },
    /// Scatter/gather with no segment at all.
    #[error("scatter/gather in 0 segments: allow at least 1, or ask for contiguous memory")]
    NoSegments,
    /// The request is larger than the pool may ever be.
    #[error(
        "{bytes} bytes are more than the {most} that the cap leaves for requests: raise the cap or ask for less"
    )]
    OverCap {
        /// What was asked for.
        bytes: usize,
        /// The cap, less what the static tier and buffers lost to devices hold for good.
        most: usize,
    },
    /// The cap cannot be raised so far in this pool.
    #[error(
        "a cap of {cap} bytes is more than the {most} that addresses were reserved for: open the pool with a larger cap_max"
    )]
    CapTooHigh {
        /// What was asked for.
        cap: usize,
        /// The most there can be.
        most: usize,
    },
    /// The pool has no memory on such a node.
    #[error("the pool has no arena on node {node}: name one of its nodes, or none")]
    NoSuchNode {
        /// What was asked for.
        node: NodeId,
    },
    /// Not now: buffers must come back first, or others wait already.
    #[error(
        "no {bytes} bytes are free in that shape now ({waiting} requests wait): retry when buffers came back, or wait in line"
    )]
    WouldBlock {
        /// What was asked for.
        bytes: usize,
        /// How many wait in line.
        waiting: u64,
    },
    /// The line did not move in time.
    #[error(
        "{bytes} bytes did not come free within {waited}: wait longer, raise the cap, or return buffers sooner"
    )]
    Timeout {
        /// What was asked for.
        bytes: usize,
        /// How long the request waited.
        waited: Nanos,
    },
    /// The memory could not be made visible to the device.
    #[error("pinning failed: {0}")]
    Pin(#[from] PinError),
    /// The kernel gave no memory.
    #[error("{0}")]
    Commit(#[from] CommitError),
    /// The kernel gave no addresses.
    #[error("{0}")]
    Reserve(#[from] ReserveError),
    /// The pool's addresses could not be bound to a node.
    #[error("{0}")]
    Bind(#[from] BindError),
    /// The node has no memory to spare.
    #[error("{0}")]
    Place(#[from] PlaceError),
    /// The address is not one that this pool gave away.
    #[error("{0}")]
    Adopt(#[from] AdoptError),
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// This process is a child of the one that opened the pool, whose memory it does not have.
    #[error("the pool belongs to the parent of this process: open one after the fork")]
    Forked,
    /// The pool was closed.
    #[error("the pool is closed")]
    Closed,
}
