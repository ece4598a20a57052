//! Why a reservation refuses, and what to do about it.
//!
//! In: runs of pages and the kernel's numbers. Out: errors. Invariant: after any of them everything is as it was before.

use super::PageRun;
use super::backing::Backing;

/// Why no address space could be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// Nothing at all, or more than one reservation holds.
    #[error("{bytes} bytes cannot be reserved: ask for 1 byte to 4 TiB")]
    Length {
        /// What was asked for.
        bytes: usize,
    },
    /// The kernel refused.
    #[error(
        "the kernel would not reserve {bytes} bytes of addresses (error {errno}): ask for less, or raise ulimit -v"
    )]
    Refused {
        /// What was asked for.
        bytes: usize,
        /// The kernel's number.
        errno: i32,
    },
}

/// Why no pages were put behind a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The run is empty or reaches beyond the reservation.
    #[error("{run:?} is no run of a reservation of {pages} pages")]
    OutOfReach {
        /// The run.
        run: PageRun,
        /// How many pages there are.
        pages: u32,
    },
    /// There are pages behind a part of it.
    #[error("{run:?} overlaps {by:?}, which is committed already")]
    Committed {
        /// The run.
        run: PageRun,
        /// What it overlaps.
        by: PageRun,
    },
    /// Only huge pages were wished for, and the run does not consist of whole ones.
    #[error("{run:?} is not made of whole huge pages: align it, or allow small pages")]
    Misaligned {
        /// The run.
        run: PageRun,
    },
    /// The kernel had none of the kinds that were wished for; this is about the last of them.
    #[error(
        "the kernel gave no {backing} for {} bytes (error {errno}): free memory, raise the limit of the control group, \
         or for huge pages raise vm.nr_hugepages",
        run.bytes()
    )]
    Refused {
        /// The run.
        run: PageRun,
        /// The last kind that was tried.
        backing: Backing,
        /// The kernel's number.
        errno: i32,
    },
}

/// Why pages were not taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecommitError {
    /// Exactly this run was not committed.
    #[error("{run:?} was not committed as one run")]
    NotCommitted {
        /// The run.
        run: PageRun,
    },
    /// Somebody has a span over a part of it.
    #[error("a page of {run:?} is claimed: release it first")]
    Claimed {
        /// The run.
        run: PageRun,
    },
    /// The kernel refused.
    #[error("the kernel would not take back {} bytes (error {errno})", run.bytes())]
    Refused {
        /// The run.
        run: PageRun,
        /// The kernel's number.
        errno: i32,
    },
}

/// Why a run cannot be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The run is empty or reaches beyond the reservation.
    #[error("{run:?} is no run of a reservation of {pages} pages")]
    OutOfReach {
        /// The run.
        run: PageRun,
        /// How many pages there are.
        pages: u32,
    },
    /// There is nothing behind a page of it.
    #[error("page {page} of {run:?} is not committed")]
    NotCommitted {
        /// The run.
        run: PageRun,
        /// The first such page.
        page: u32,
    },
    /// Somebody has a span over a part of it.
    #[error("a page of {run:?} is claimed already")]
    Claimed {
        /// The run.
        run: PageRun,
    },
}
