//! The reason why a medium cannot be recovered.
//!
//! Input: what recovery found. Output: one line that says what is wrong and what to do. Invariant: nothing was changed on
//! a medium that cannot be recovered.

use crate::media::MediaError;

/// The reason why a medium cannot be recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// Pages were written, and no commit record says what counts.
    #[error(
        "{pages} blocks hold data, but no commit cell holds an intact record: the medium is damaged beyond what can be \
         proven; restore it from a copy"
    )]
    NoCommitRecord {
        /// Number of blocks with pages.
        pages: usize,
    },
    /// Commit cells on both sides cannot be read, so that both records of the newest commit may be among them.
    #[error(
        "{cells} commit cells on both sides of the medium cannot be read, and they may hold what says which pages count; \
         nothing was changed: check the disk and start again"
    )]
    CellsUnreadable {
        /// Number of cells that cannot be read.
        cells: usize,
    },
    /// Pages of two blocks say that they are the same part of the log, or pages of one block that they are two parts.
    #[error(
        "two pages contradict each other about the block with the order {order:#x}: no device writes that; restore \
         the medium from a copy"
    )]
    TwoBlocks {
        /// Their order.
        order: u64,
    },
    /// Neither copy of the checkpoint's map is whole.
    #[error(
        "checkpoint {number}: a page is intact in neither copy of its map: the medium is damaged beyond what can be \
         proven; restore it from a copy"
    )]
    MapDamaged {
        /// Number of the checkpoint.
        number: u64,
    },
    /// The index is damaged, and blocks of version 1 cannot be scanned for it.
    #[error(
        "checkpoint {number}: its index is damaged, and it cannot be built again from blocks that version 1 wrote; restore \
         the medium from a copy"
    )]
    IndexDamaged {
        /// Number of the checkpoint.
        number: u64,
    },
}
