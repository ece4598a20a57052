//! The proof of a page that was read: it is the page that was programmed there in the present life of its block.
//!
//! Input: the bytes of a page, its address and the order of its block. Output: true if they are what was programmed.
//! Invariant: on a medium of version 2 no page enters device DRAM without this proof.

use super::page::PageSpare;
use super::page_version1;
use crate::media::{MediaTraits, MediumVersion, PageAddress, PageState};
use crate::mutant::{Mutant, mutant};

/// The check of the pages of a medium.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageProof {
    traits: MediaTraits,
    /// Blocks below this order were written by version 1.
    version_1_below: u64,
}

impl PageProof {
    /// Makes the check for a medium on which version 1 wrote the blocks below an order.
    pub(crate) fn new(traits: MediaTraits, version_1_below: u64) -> Self {
        Self { traits, version_1_below }
    }

    /// Returns true if a page of which a record is read is in this state, with these bytes, as it was programmed in the
    /// life of its block with this order.
    pub(crate) fn holds_read(&self, state: PageState, bytes: &[u8], page: PageAddress, order: u64) -> bool {
        match state {
            PageState::Programmed => self.holds(bytes, page, order),
            // No reader asks for a page behind the last one that was programmed, so its bytes are lost.
            PageState::Blank => self.traits.version == MediumVersion::One,
        }
    }

    /// Returns true if the bytes are those of the page, in the life of its block with this order.
    pub(crate) fn holds(&self, bytes: &[u8], page: PageAddress, order: u64) -> bool {
        match self.traits.version {
            _ if order < self.version_1_below => {
                page_version1::PageSpare::decode(bytes, page.page).is_some_and(|spare| spare.order == order)
            }
            // Version 1 has no such proof: its records are checked one by one.
            MediumVersion::One => true,
            MediumVersion::Two => PageSpare::of_intact(bytes, page, self.traits.checksum_seed)
                .is_some_and(|spare| spare.order == order || mutant(Mutant::OlderLifeAccepted)),
        }
    }

    /// Returns the checksum that the data of a page has if it is what was programmed in the life of the block with this order;
    /// `None` if the spare is not that page's, or proves nothing. For a reader that computes the checksum of what it copies.
    pub(crate) fn data_checksum(&self, bytes: &[u8], page: PageAddress, order: u64) -> Option<u32> {
        if self.traits.version == MediumVersion::One || order < self.version_1_below {
            return None;
        }
        let (spare, crc) = PageSpare::decode_with_crc(bytes, page, self.traits.checksum_seed)?;
        (spare.order == order || mutant(Mutant::OlderLifeAccepted)).then_some(crc)
    }
}

/// Returns true if the bytes are those of the page, in any life of its block; also true if nothing can tell.
pub(crate) fn is_own_page(bytes: &[u8], page: PageAddress, traits: &MediaTraits) -> bool {
    traits.version == MediumVersion::One
        || PageSpare::of_intact(bytes, page, traits.checksum_seed).is_some()
        || page_version1::PageSpare::decode(bytes, page.page).is_some()
}
