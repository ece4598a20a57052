//! Accepted pages that are not started yet, gathered into long transfers.
//!
//! Input: programs, or reads, in the order they were accepted. Output: batches of consecutive pages of one block.
//! Invariant: the pages of a block leave in the order they were accepted.

use crate::media::{MediaToken, PAGES_PER_BLOCK, PageAddress};
use headwater_host::mapped_region::SectorBuffer;
use std::collections::VecDeque;

/// A transfer of consecutive pages of one block.
#[derive(Debug)]
pub(super) struct PageBatch {
    pub(super) first: PageAddress,
    pub(super) tokens: Vec<MediaToken>,
    pub(super) slots: Vec<SectorBuffer>,
}

/// The batches that wait for the next poll.
#[derive(Debug, Default)]
pub(super) struct PageBatches {
    waiting: VecDeque<PageBatch>,
    spare_tokens: Vec<Vec<MediaToken>>,
    spare_slots: Vec<Vec<SectorBuffer>>,
}

impl PageBatches {
    /// Adds a page, to the last batch if the page follows its last page.
    pub(super) fn push(&mut self, token: MediaToken, page: PageAddress, slot: SectorBuffer) {
        if let Some(last) = self.waiting.back_mut()
            && last.first.block == page.block
            && usize::from(last.first.page) + last.slots.len() == usize::from(page.page)
            && last.slots.len() < PAGES_PER_BLOCK
        {
            last.tokens.push(token);
            last.slots.push(slot);
            return;
        }
        let mut batch = PageBatch {
            first: page,
            tokens: self.spare_tokens.pop().unwrap_or_default(),
            slots: self.spare_slots.pop().unwrap_or_default(),
        };
        batch.tokens.push(token);
        batch.slots.push(slot);
        self.waiting.push_back(batch);
    }

    /// Puts batches back in front of the waiting ones, in their order.
    pub(super) fn put_back(&mut self, batches: Vec<PageBatch>) {
        batches.into_iter().rev().for_each(|batch| self.waiting.push_front(batch));
    }

    /// Returns true if a batch waits.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the oldest batch that may start. Batches that may not start are passed over: blocks do not wait for each
    /// other.
    pub(super) fn take(&mut self, may_start: impl Fn(&PageBatch) -> bool) -> Option<PageBatch> {
        let index = self.waiting.iter().position(may_start)?;
        self.waiting.remove(index)
    }

    /// Takes the vectors of a finished batch back for later batches.
    pub(super) fn recycle(&mut self, mut tokens: Vec<MediaToken>, mut slots: Vec<SectorBuffer>) {
        tokens.clear();
        slots.clear();
        self.spare_tokens.push(tokens);
        self.spare_slots.push(slots);
    }
}
