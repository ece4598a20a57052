//! The room for appends: what the medium may hold, and the blocks and frames that an append needs now.
//!
//! Input: lengths of appends. Output: yes, a stall until there is room, or a status. Invariant: a write is refused only if no
//! collection could make room for it.

use super::{Ftl, StallReason};
use crate::log::flash_log::AppendSize;
use crate::media::Media;
use headwater_nvme::spec::status::Status;

impl<M: Media> Ftl<M> {
    /// Returns the bytes of live records that the medium may hold, with room for a new record of `bytes`.
    pub(crate) fn capacity_with(&self, bytes: usize) -> u64 {
        self.capacity_without(self.quarantined_with_records(), bytes)
    }

    /// Returns the capacity with this number of quarantined blocks.
    pub(super) fn capacity_without(&self, quarantined: u64, bytes: usize) -> u64 {
        self.space.capacity(bytes, self.geometry().blocks, quarantined, self.index_size())
    }

    /// Notes that collection freed no block for a write, and returns the status of the write: it tells whether blocks that
    /// cannot be read are in the way.
    pub(crate) fn note_stuck(&mut self) -> Status {
        self.stuck_at_erases = Some(self.stats.erases);
        if !self.collector.quarantined.is_empty() { Status::WRITE_FAULT } else { Status::CAPACITY_EXCEEDED }
    }

    /// Checks that the collector can append this many bytes now. It leaves a checkpoint its blocks if that makes more room
    /// than the collector can, and requests it.
    pub(crate) fn check_room(&mut self, bytes: usize) -> Result<(), StallReason> {
        self.flash.check_room(AppendSize::of(bytes), 0, 0).map_err(|blocks| StallReason::Room { blocks })?;
        if self.needs_checkpoint_first(self.flash.log().blocks_for(bytes)) {
            // One that is being written will do.
            if self.space.checkpoint_opened() == 0 {
                self.collector.request_checkpoint();
            }
            return Err(StallReason::Room { blocks: 1 });
        }
        Ok(())
    }

    /// Requests room for a stalled append that needs this many ready blocks.
    pub(crate) fn request_room(&mut self, blocks: usize) {
        self.collector.request_blocks(blocks);
        self.space.request_ready(blocks);
    }

    /// Ends the request for room, after the first stalled append ran.
    pub(crate) fn clear_room_request(&mut self) {
        self.space.clear_ready_request();
    }
}
