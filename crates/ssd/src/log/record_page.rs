//! The page with records: where they start and end, whichever version wrote it.
//!
//! Input: the bytes of a page that was found intact when it was read. Output: where its records start and end. Invariant:
//! a page that lies elsewhere than it says is none.

use super::page::{PageKind, PageSpare};
use super::page_version1;
use crate::media::PageAddress;

/// The fields of a page that readers of its records need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordPage {
    /// The life of its block.
    pub(crate) order: u64,
    /// Offset of the first record that starts in the page, or `NO_RECORD`.
    pub(crate) first: u16,
    /// Data bytes in use.
    pub(crate) used: u16,
    /// Address plus 1 of the chained record that continues at the start of the block, else 0.
    pub(crate) continues: u64,
}

impl RecordPage {
    /// Reads a page; `None` if it holds no records or is not intact.
    pub(crate) fn decode(bytes: &[u8], page: PageAddress, seed: u32) -> Option<Self> {
        if let Some(PageSpare { kind, order, first, used, continues, .. }) =
            PageSpare::decode(bytes, page, seed)
        {
            return (kind == PageKind::Log).then_some(Self { order, first, used, continues });
        }
        let spare = page_version1::PageSpare::decode(bytes, page.page)?;
        let page_version1::PageSpare { kind, order, first, used, continues, .. } = spare;
        (kind == PageKind::Log).then_some(Self { order, first, used, continues })
    }
}
