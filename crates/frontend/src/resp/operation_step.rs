//! One step of an operation: the state that the step may use, and its result.
//!
//! Input: the device, the shared state and the counts of one connection. Output: submitted device commands, and a
//! [`DriveResult`]. Every operation is driven by this interface; it knows none of them. Invariant: each submitted command
//! is counted in the connection and in the front end.

use super::large_writes::{LargeWrites, LongValue};
use super::limits::{ARGUMENTS_MAX, IN_FLIGHT_MAX};
use super::locks::ClientIndex;
use super::reply::{RespReply, RespVersion};
use super::reply_budget::{ReplyAccount, ReplyVerdict};
use super::state::{OperationRef, RespState};
use super::transaction::WatchedKeys;
use crate::core_device::CoreDevice;
use headwater_host::clock::Nanos;
use headwater_ssd::command::{NamespaceId, SsdCommand, SubmitError};
use headwater_ssd::engine::KeyedBatch;

/// The largest number of a part: what a token has room for beside the connection and the slot.
const PART_MAX: u32 = 0xFF_FFFF;
const _: () = assert!(ARGUMENTS_MAX <= PART_MAX as usize, "a command of many keys has a part for each");

/// The result of driving an operation.
#[derive(Debug)]
pub(crate) enum DriveResult {
    /// A completion is outstanding.
    Waiting,
    /// The device has no room; drive again later.
    Busy,
    /// The next step waits until the clients have received replies.
    NoRoom,
    /// A part of a long computation is done; drive again in a later turn.
    Again,
    /// There is no work before this time.
    Until(Nanos),
    /// The operation is finished.
    Done(RespReply),
    /// The connection must be closed, for this reason.
    Broken(&'static str),
}

/// The state that an operation may use while it is driven.
pub(crate) struct OperationContext<'a, S> {
    pub(crate) device: &'a mut S,
    pub(crate) shared: &'a mut RespState,
    pub(crate) in_flight: &'a mut u32,
    pub(crate) locks: &'a mut u32,
    /// The keys that the connection watches.
    pub(crate) watched: &'a mut WatchedKeys,
    pub(crate) token: u64,
    pub(crate) protocol: RespVersion,
    /// The connection and its account of unread replies; `None` for a command of a transaction, which has taken the memory.
    pub(crate) replies: Option<(ClientIndex, &'a mut ReplyAccount)>,
    /// Bytes of the connection's unread replies without those of this operation.
    pub(crate) own_replies: usize,
    /// Bytes of replies that were not sent yet.
    pub(crate) unsent: usize,
    /// The reference by which this operation is driven again.
    pub(crate) operation: OperationRef,
}

impl<S: CoreDevice> OperationContext<'_, S> {
    /// Returns true if a command that is submitted now is not refused as [`SubmitError::Busy`].
    pub(crate) fn has_room(&self, namespace: NamespaceId, command: &SsdCommand) -> bool {
        self.shared.in_flight < IN_FLIGHT_MAX && self.device.has_room(namespace, command)
    }

    /// Submits one part of the operation; the token of its completion contains the part's number.
    pub(crate) fn submit(
        &mut self,
        part: u32,
        namespace: NamespaceId,
        command: SsdCommand,
    ) -> Result<(), SubmitError> {
        if self.shared.in_flight >= IN_FLIGHT_MAX {
            return Err(SubmitError::Busy(IN_FLIGHT_MAX));
        }
        assert!(part <= PART_MAX, "part {part} of an operation does not fit in the token of its command");
        let token = self.token | u64::from(part);
        let long = LargeWrites::of(namespace, &command);
        self.device.submit(self.shared.front_end, namespace, token, command)?;
        self.note_submitted(token, long);
        Ok(())
    }

    /// Submits a batch as the only part of the operation. Takes the writes, unless the device has no room.
    pub(crate) fn submit_batch(&mut self, batch: &mut KeyedBatch) -> Result<(), SubmitError> {
        let namespace = batch.namespace();
        // There is room for every batch or for none.
        if !self.has_room(namespace, &SsdCommand::Batch { writes: Vec::new() }) {
            return Err(SubmitError::Busy(IN_FLIGHT_MAX));
        }
        let long = LargeWrites::of_batch(batch);
        let batch = std::mem::replace(batch, KeyedBatch::with_room(namespace, 0));
        self.device.submit_batch(self.shared.front_end, self.token, batch)?;
        self.note_submitted(self.token, long);
        Ok(())
    }

    /// Counts a submitted command, which writes these long values.
    #[inline]
    fn note_submitted(&mut self, token: u64, long: Vec<LongValue>) {
        self.shared.large_writes.begin(token, long);
        self.shared.in_flight += 1;
        *self.in_flight += 1;
    }

    /// Returns true if an operation that holds `held` bytes of its reply may take `more`. If not, the connection is run
    /// again when it may.
    pub(crate) fn admits_reply(&mut self, held: usize, more: usize) -> bool {
        let bytes = (self.own_replies + held, more);
        let Some((index, account)) = &mut self.replies else { return true };
        let limits = &self.shared.settings.reply_limits;
        self.shared.reply_budget.request(limits, (*index, account), bytes) == ReplyVerdict::Starts
    }

    /// Ends the wait of an operation that takes no more memory.
    pub(crate) fn stop_waiting(&mut self) {
        if let Some((index, account)) = &mut self.replies {
            self.shared.reply_budget.leave_queue(*index, account);
        }
    }

    /// Unlocks a key that was locked for this operation.
    pub(crate) fn unlock(&mut self, namespace: NamespaceId, key: &[u8]) {
        assert!(*self.locks > 0, "a connection unlocks a key, and it has locked none");
        *self.locks -= 1;
        self.shared.unlock(namespace, key);
    }
}
