//! An operation in flight, without its frame.

use headwater_ssd::media::{BlockId, CellNumber, MediaError, MediaOp, PageAddress};

/// An operation without its frame.
#[derive(Debug)]
pub(super) enum MediaRequest {
    Read(PageAddress),
    Program(PageAddress),
    Erase(BlockId),
    ReadCell(CellNumber),
    WriteCell(CellNumber),
    /// With the operations that it covers.
    Flush(Vec<u64>),
}

impl MediaRequest {
    pub(super) fn of(op: &MediaOp) -> Self {
        match op {
            MediaOp::Read { page, .. } => Self::Read(*page),
            MediaOp::Program { page, .. } => Self::Program(*page),
            MediaOp::Erase { block } => Self::Erase(*block),
            MediaOp::ReadCell { cell, .. } => Self::ReadCell(*cell),
            MediaOp::WriteCell { cell, .. } => Self::WriteCell(*cell),
            MediaOp::Flush => Self::Flush(Vec::new()),
        }
    }

    /// Returns the error with which a medium completes the operation.
    // As from the kernel: only a page that a power cut left unreadable is one that the medium itself calls lost.
    pub(super) fn error(&self, errno: i32) -> MediaError {
        match self {
            Self::ReadCell(cell) | Self::WriteCell(cell) => MediaError::Cell { errno, cell: *cell },
            Self::Read(_) | Self::Program(_) | Self::Erase(_) | Self::Flush(_) => {
                MediaError::Io { errno, page: self.page() }
            }
        }
    }

    /// Returns the page that an error or a misuse names.
    pub(super) fn page(&self) -> PageAddress {
        match self {
            Self::Read(page) | Self::Program(page) => *page,
            Self::Erase(block) => PageAddress::new(*block, 0),
            Self::ReadCell(_) | Self::WriteCell(_) | Self::Flush(_) => PageAddress::new(BlockId(0), 0),
        }
    }
}
