//! Cancellation of requests, by the caller or at their deadline.
//!
//! Input: a token, or the time. Output: the request's one completion, early where possible: with
//! [`ABORT_REQUESTED`](Status::ABORT_REQUESTED) if the request was not submitted, else with the status of the device.

use super::request_table::SlotState;
use super::{HANDLE_TOKEN, Handle};
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;

/// The progress of a request when it was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestCancellation {
    /// The request waited in the handle: its completion, Abort Requested, is ready, and it had no effect.
    NotSubmitted,
    /// The request was at a device, which received an abort; the completion tells whether the device aborted it.
    AbortSent,
    /// The device supports no abort, or the command serves several requests: the request completes normally.
    TooLate,
    /// No outstanding request has this token.
    Unknown,
}

impl Handle {
    /// Cancels a request. It still completes exactly once.
    pub fn cancel(&mut self, token: u64) -> RequestCancellation {
        match self.slots.find(token) {
            Some(slot) => self.cancel_slot(slot),
            None if token & HANDLE_TOKEN == 0 && self.plain_in_flight > 0 => self.cancel_plain(token),
            None => RequestCancellation::Unknown,
        }
    }

    /// Cancels a request of the fast path, which only its queue knows.
    fn cancel_plain(&mut self, token: u64) -> RequestCancellation {
        for queue in &mut self.queues {
            let mut found = false;
            queue.visit_own_tokens(&mut |held| found |= *held == token);
            if found {
                return match queue.cancel_token(token) {
                    Ok(()) => RequestCancellation::AbortSent,
                    Err(_) => RequestCancellation::TooLate,
                };
            }
        }
        RequestCancellation::Unknown
    }

    /// Cancels the requests whose deadline has passed.
    pub(super) fn cancel_expired(&mut self, now: Nanos) {
        while let Some(&(deadline, slot)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            self.cancel_slot(slot);
        }
    }

    fn cancel_slot(&mut self, slot: u32) -> RequestCancellation {
        match self.slots.state(slot) {
            SlotState::Free | SlotState::Part => RequestCancellation::Unknown,
            SlotState::Waiting => {
                self.split_group(slot, slot);
                RequestCancellation::NotSubmitted
            }
            SlotState::Member => {
                let head = self.slots.pending(slot).head;
                match self.slots.state(head) {
                    SlotState::Waiting => {
                        self.split_group(head, slot);
                        RequestCancellation::NotSubmitted
                    }
                    _ => RequestCancellation::TooLate,
                }
            }
            SlotState::Leading if !self.slots.pending(slot).members.is_empty() => {
                RequestCancellation::TooLate
            }
            SlotState::FastPath | SlotState::Leading => self.send_abort(slot),
            SlotState::Divided => self.cancel_divided(slot),
        }
    }

    /// Removes a waiting request from its group and completes it; the remaining members wait alone.
    fn split_group(&mut self, head: u32, leaving: u32) {
        self.merger.close(head);
        if !self.scheduler.remove(head) {
            self.outgoing.retain(|&slot| slot != head);
        }
        for member in std::mem::take(&mut self.slots.pending_mut(head).members) {
            if member != leaving {
                self.slots.pending_mut(member).unmergeable = true;
                self.enqueue(member);
            }
        }
        let data = std::mem::take(&mut self.slots.pending_mut(leaving).data);
        self.complete(leaving, Status::ABORT_REQUESTED, 0, data);
    }

    fn send_abort(&mut self, slot: u32) -> RequestCancellation {
        let queue = usize::try_from(self.slots.queue(slot)).ok().and_then(|queue| self.queues.get_mut(queue));
        match queue.map(|queue| queue.cancel(slot)) {
            Some(Ok(())) => RequestCancellation::AbortSent,
            _ => RequestCancellation::TooLate,
        }
    }

    fn cancel_divided(&mut self, slot: u32) -> RequestCancellation {
        self.slots.pending_mut(slot).failure.get_or_insert(Status::ABORT_REQUESTED);
        let parts = self.slots.parts_of(slot);
        if parts.is_empty() {
            self.outgoing.retain(|&other| other != slot);
            let data = std::mem::take(&mut self.slots.pending_mut(slot).data);
            self.complete(slot, Status::ABORT_REQUESTED, 0, data);
            return RequestCancellation::NotSubmitted;
        }
        for part in parts {
            self.send_abort(part);
        }
        RequestCancellation::AbortSent
    }
}
