//! An operation in flight, without its frame.

use headwater_ssd::media::{BlockId, MediaOp, PageAddress};

/// An operation without its frame.
#[derive(Debug)]
pub(super) enum MediaRequest {
    Read(PageAddress),
    Program(PageAddress),
    Erase(BlockId),
    /// With the operations that it covers.
    Flush(Vec<u64>),
}

impl MediaRequest {
    pub(super) fn of(op: &MediaOp) -> Self {
        match op {
            MediaOp::Read { page, .. } => Self::Read(*page),
            MediaOp::Program { page, .. } => Self::Program(*page),
            MediaOp::Erase { block } => Self::Erase(*block),
            MediaOp::Flush => Self::Flush(Vec::new()),
        }
    }

    /// Returns the page that an error names.
    pub(super) fn page(&self) -> PageAddress {
        match self {
            Self::Read(page) | Self::Program(page) => *page,
            Self::Erase(block) => PageAddress::new(*block, 0),
            Self::Flush(_) => PageAddress::new(BlockId(0), 0),
        }
    }
}
