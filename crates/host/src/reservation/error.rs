//! The errors of a reservation.
//!
//! Input: runs of pages and the kernel's numbers. Output: errors. Invariant: after any of them everything is as it was
//! before.

use super::PageRun;
use super::backing::Backing;

/// An error of reserving addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// The length is 0, or more than one reservation holds.
    #[error("{bytes} bytes cannot be reserved: request 1 byte to 4 TiB")]
    Length {
        /// The requested length.
        bytes: usize,
    },
    /// The kernel refused.
    #[error("cannot reserve {bytes} bytes of addresses (error {errno}): request less, or raise ulimit -v")]
    Refused {
        /// The requested length.
        bytes: usize,
        /// The kernel's error number.
        errno: i32,
    },
}

/// An error of committing pages to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The run is empty or reaches beyond the reservation.
    #[error("{run:?} does not lie in a reservation of {pages} pages")]
    OutOfRange {
        /// The run.
        run: PageRun,
        /// The number of pages of the reservation.
        pages: u32,
    },
    /// A part of the run is committed already.
    #[error("{run:?} overlaps {by:?}, which is committed already")]
    Committed {
        /// The run.
        run: PageRun,
        /// The committed run that it overlaps.
        by: PageRun,
    },
    /// Only huge pages are allowed, and the run does not consist of whole ones.
    #[error("{run:?} does not consist of whole huge pages: align it, or allow small pages")]
    Misaligned {
        /// The run.
        run: PageRun,
    },
    /// The kernel has none of the allowed kinds; this reports the last of them.
    #[error(
        "the kernel has no {backing} for {} bytes (error {errno}): free memory, raise the limit of the control group, \
         or for huge pages raise vm.nr_hugepages",
        run.bytes()
    )]
    Refused {
        /// The run.
        run: PageRun,
        /// The last kind that was tried.
        backing: Backing,
        /// The kernel's error number.
        errno: i32,
    },
}

/// An error of decommitting a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecommitError {
    /// The run was not committed as exactly this run.
    #[error("{run:?} was not committed as one run: decommit the runs that were committed")]
    NotCommitted {
        /// The run.
        run: PageRun,
    },
    /// A part of the run is claimed.
    #[error("a page of {run:?} is claimed: release it first")]
    Claimed {
        /// The run.
        run: PageRun,
    },
    /// The kernel refused.
    #[error("the kernel cannot decommit {} bytes (error {errno})", run.bytes())]
    Refused {
        /// The run.
        run: PageRun,
        /// The kernel's error number.
        errno: i32,
    },
}

/// An error of claiming a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The run is empty or reaches beyond the reservation.
    #[error("{run:?} does not lie in a reservation of {pages} pages")]
    OutOfRange {
        /// The run.
        run: PageRun,
        /// The number of pages of the reservation.
        pages: u32,
    },
    /// A page of the run is not committed.
    #[error("page {page} of {run:?} is not committed: commit it first")]
    NotCommitted {
        /// The run.
        run: PageRun,
        /// The first such page.
        page: u32,
    },
    /// A part of the run is claimed already.
    #[error("a page of {run:?} is claimed already")]
    Claimed {
        /// The run.
        run: PageRun,
    },
}
