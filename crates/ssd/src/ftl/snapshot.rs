//! A snapshot: the state of the medium at one commit, whose pages stay in place while a backup copies them.
//!
//! Input: a request, the seal and the end of a commit, blocks that are due for an erase, and blocks that are copied.
//! Output: the pages and commit records of the snapshot. Invariant: until a block is copied, or the snapshot is released or
//! lost, none of the block's pages in it changes. A medium that holds only these pages and records is one that a power cut
//! at the end of the commit could have left.
//!
//! ```text
//!  None --request--> Requested --a commit seals the log--> Sealed --its flush is answered--> Held --release--> None
//!                                                                                              \--loss--> Lost
//! ```
//!
//! A snapshot never costs a client its room: when the device needs a block that the snapshot keeps, it is lost. What was
//! copied of a lost one is good for the next one: a block with an equal order holds equal pages, and a request names the
//! blocks that need not be kept. So copies converge on a device without a free block too.

use super::Ftl;
use super::evacuated_blocks::EraseLimits;
use crate::log::blocks::{BlockState, is_extent_order};
use crate::log::commit_record::RECORD_BYTES;
use crate::log::prefix::Prefix;
use crate::media::geometry::{BlockId, PAGES_PER_BLOCK};
use crate::media::snapshot::{SnapshotBlock, SnapshotContents};
use crate::media::{CellNumber, Media};
use headwater_host::width::narrow;

/// The state of the medium at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediumSnapshot {
    /// The end of the commit: everything up to it is in the snapshot, and nothing behind it.
    pub end: Prefix,
    /// Its pages and commit records.
    pub contents: SnapshotContents,
}

/// The reason for which a snapshot was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotLoss {
    /// The device needed a block that the snapshot kept.
    NoSpace,
    /// A sanitize erases what the snapshot kept.
    Sanitized,
    /// The medium failed.
    MediumFailed,
}

/// The state of a request for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotStatus<'a> {
    /// There is none.
    None,
    /// A commit is awaited.
    Pending,
    /// Its pages stay in place.
    Held(&'a MediumSnapshot),
    /// It ended without a release.
    Lost(SnapshotLoss),
}

/// A snapshot whose commit has sealed the log.
#[derive(Debug)]
pub(super) struct SealedSnapshot {
    known: Vec<(BlockId, u64)>,
    records: Vec<(CellNumber, Box<[u8]>)>,
    /// The open block, and its pages so far.
    open: Option<(BlockId, u8)>,
    later: LaterBlocks,
}

/// The orders from which on blocks were opened after a commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaterBlocks {
    /// Blocks of the log.
    log: u64,
    extents: u64,
}

impl LaterBlocks {
    /// Returns true if a block of the log or an extent with this order was opened before.
    fn is_before(self, order: u64) -> bool {
        order < if is_extent_order(order) { self.extents } else { self.log }
    }
}

/// A snapshot whose pages stay in place.
#[derive(Debug)]
pub(super) struct HeldSnapshot {
    snapshot: MediumSnapshot,
    later: LaterBlocks,
    /// True for the blocks of the snapshot that are copied, in its order.
    copied: Vec<bool>,
    /// Blocks of older checkpoints that are to be discarded at the end.
    checkpoint_blocks: Vec<BlockId>,
}

/// The snapshot of a device, of which there is at most one.
#[derive(Debug, Default)]
pub(super) enum SnapshotState {
    #[default]
    None,
    /// The blocks that are copied already, with their orders.
    Requested(Vec<(BlockId, u64)>),
    Sealed(SealedSnapshot),
    Held(Box<HeldSnapshot>),
    Lost(SnapshotLoss),
}

impl SnapshotState {
    /// Returns true if a block of the log, or an extent, with this order must not be erased.
    pub(super) fn keeps(&self, block: BlockId, order: u64) -> bool {
        match self {
            Self::Sealed(sealed) => sealed.later.is_before(order),
            Self::Held(held) => held.later.is_before(order) && held.index_of(block).is_some(),
            Self::None | Self::Requested(_) | Self::Lost(_) => false,
        }
    }
}

impl HeldSnapshot {
    /// Returns the index of a block that is to be copied.
    fn index_of(&self, block: BlockId) -> Option<usize> {
        let at = self.snapshot.contents.blocks.binary_search_by_key(&block, |kept| kept.block).ok()?;
        (!self.copied[at]).then_some(at)
    }
}

impl<M: Media> Ftl<M> {
    /// Requests a snapshot, and a commit for it. Whole blocks that are copied already are named with their orders, and not
    /// kept. Returns false if there is a snapshot already.
    pub(crate) fn request_snapshot(&mut self, mut known: Vec<(BlockId, u64)>) -> bool {
        let is_free = matches!(self.snapshot, SnapshotState::None);
        if is_free {
            known.sort_unstable();
            self.snapshot = SnapshotState::Requested(known);
            self.request_sequence(self.last_sequence());
            self.request_commit();
        }
        is_free
    }

    /// Returns the state of the snapshot.
    pub(crate) fn snapshot_status(&self) -> SnapshotStatus<'_> {
        match &self.snapshot {
            SnapshotState::None => SnapshotStatus::None,
            SnapshotState::Lost(loss) => SnapshotStatus::Lost(*loss),
            _ if self.failure().is_some() => SnapshotStatus::Lost(SnapshotLoss::MediumFailed),
            SnapshotState::Requested(_) | SnapshotState::Sealed(_) => SnapshotStatus::Pending,
            SnapshotState::Held(held) => SnapshotStatus::Held(&held.snapshot),
        }
    }

    /// Ends the snapshot, or the request for one.
    pub(crate) fn release_snapshot(&mut self) {
        self.end_snapshot(SnapshotState::None);
    }

    /// Ends the snapshot because what it kept is needed. Returns false if there is none.
    pub(super) fn lose_snapshot(&mut self, loss: SnapshotLoss) -> bool {
        let is_held = matches!(self.snapshot, SnapshotState::Sealed(_) | SnapshotState::Held(_));
        if is_held {
            self.end_snapshot(SnapshotState::Lost(loss));
        }
        is_held
    }

    fn end_snapshot(&mut self, state: SnapshotState) {
        if let SnapshotState::Held(held) = std::mem::replace(&mut self.snapshot, state) {
            held.checkpoint_blocks.into_iter().for_each(|block| self.flash.blocks_mut().discard(block));
        }
    }

    /// Notes that the block with this index in the snapshot is copied: it may be used again. Ignored without a snapshot.
    pub(crate) fn note_snapshot_copied(&mut self, index: usize) {
        let SnapshotState::Held(held) = &mut self.snapshot else {
            return;
        };
        let (Some(copied), Some(kept)) =
            (held.copied.get_mut(index), held.snapshot.contents.blocks.get(index))
        else {
            return;
        };
        *copied = true;
        let block = kept.block;
        if let Some(at) = held.checkpoint_blocks.iter().position(|&waiting| waiting == block) {
            held.checkpoint_blocks.swap_remove(at);
            self.flash.blocks_mut().discard(block);
        }
    }

    /// Notes that a commit sealed the log and queued its records.
    pub(super) fn seal_snapshot(&mut self) {
        if let SnapshotState::Requested(known) = &mut self.snapshot {
            let known = std::mem::take(known);
            self.snapshot = SnapshotState::Sealed(SealedSnapshot {
                known,
                records: self.flash.records().queued(RECORD_BYTES),
                open: self.flash.log().open_pages(),
                later: LaterBlocks {
                    log: self.blocks().order_next(),
                    extents: self.blocks().extents_below(),
                },
            });
        }
    }

    /// Notes that the commit with this end is durable.
    pub(super) fn hold_snapshot(&mut self, end: Prefix) {
        let SnapshotState::Sealed(sealed) = &mut self.snapshot else {
            return;
        };
        let (later, open) = (sealed.later, sealed.open);
        let (known, records) = (std::mem::take(&mut sealed.known), std::mem::take(&mut sealed.records));
        let blocks = self.blocks().iter().filter_map(|(block, entry)| {
            let pages = match entry.state {
                BlockState::Dirty | BlockState::Erasing | BlockState::Ready => return None,
                // Unfinished: no record names it.
                BlockState::Open if !entry.is_of_log() => return None,
                _ if !entry.is_checkpoint() && !later.is_before(entry.order) => return None,
                _ => match open {
                    Some((last, pages)) if last == block => pages,
                    _ => narrow(PAGES_PER_BLOCK),
                },
            };
            Some(SnapshotBlock { block, pages, order: entry.order })
        });
        let snapshot =
            MediumSnapshot { end, contents: SnapshotContents { records, blocks: blocks.collect() } };
        let is_copied = |kept: &SnapshotBlock| {
            usize::from(kept.pages) == PAGES_PER_BLOCK
                && known.binary_search(&(kept.block, kept.order)).is_ok()
        };
        let copied = snapshot.contents.blocks.iter().map(is_copied).collect();
        let held = HeldSnapshot { snapshot, later, copied, checkpoint_blocks: Vec::new() };
        self.snapshot = SnapshotState::Held(Box::new(held));
    }

    /// Keeps a block of an older checkpoint until the snapshot that it belongs to ends. Returns false if there is no such
    /// snapshot.
    pub(super) fn keep_checkpoint_block(&mut self, block: BlockId) -> bool {
        let SnapshotState::Held(held) = &mut self.snapshot else {
            return false;
        };
        let order = self.flash.blocks().get(block).order;
        let is_kept = held.index_of(block).is_some_and(|at| held.snapshot.contents.blocks[at].order == order);
        if is_kept {
            held.checkpoint_blocks.push(block);
        }
        is_kept
    }

    /// Ends the snapshot if the device needs blocks that it keeps from being erased. Returns true if it did.
    pub(super) fn lose_snapshot_for_space(&mut self, limits: EraseLimits) -> bool {
        if !self.is_short_of_blocks() {
            return false;
        }
        let keeps_checkpoint =
            matches!(&self.snapshot, SnapshotState::Held(held) if !held.checkpoint_blocks.is_empty());
        let keeps = |block, order| self.snapshot.keeps(block, order);
        let kept = self.collector.evacuated.kept_from_erase(limits, keeps);
        (keeps_checkpoint || !kept.is_empty()) && self.lose_snapshot(SnapshotLoss::NoSpace)
    }
}
