//! Cancellation of requests, by the caller or at their deadline.
//!
//! Input: a token, or the time. Output: the request's one completion, early where possible: with
//! [`ABORT_REQUESTED`](Status::ABORT_REQUESTED) if the request was not submitted, else with the status of the device.

use super::{HANDLE_TOKEN, Handle};
use super::request_table::SlotState;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;

/// The progress of a request when it was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestCancellation {
    /// The request waited in the handle: its completion, Abort Requested, is ready, and it had no effect.
    Waiting,
    /// The request was at a device, which received an abort; the completion tells whether the device aborted it.
    Asked,
    /// The device supports no abort, or the command serves several requests: the request completes normally.
    TooLate,
    /// No outstanding request has this token.
    Unknown,
}

impl Handle {
    /// Cancels a request. It still completes exactly once.
    pub fn cancel(&mut self, token: u64) -> RequestCancellation {
        match self.slots.find(token) {
            Some(slot) => self.give_up(slot),
            None if token & HANDLE_TOKEN == 0 && self.plain_in_flight > 0 => self.cancel_plain(token),
            None => RequestCancellation::Unknown,
        }
    }

    /// Cancels a request of the fast path, which only its queue knows.
    fn cancel_plain(&mut self, token: u64) -> RequestCancellation {
        for lane in &mut self.lanes {
            let mut found = false;
            lane.visit_own_tokens(&mut |held| found |= *held == token);
            if found {
                return match lane.cancel_token(token) {
                    Ok(()) => RequestCancellation::Asked,
                    Err(_) => RequestCancellation::TooLate,
                };
            }
        }
        RequestCancellation::Unknown
    }

    /// Cancels the requests whose deadline has passed.
    pub(super) fn expire(&mut self, now: Nanos) {
        while let Some(&(deadline, slot)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            self.give_up(slot);
        }
    }

    fn give_up(&mut self, slot: u32) -> RequestCancellation {
        match self.slots.kind(slot) {
            SlotState::Free | SlotState::Part => RequestCancellation::Unknown,
            SlotState::Waiting => {
                self.dissolve(slot, slot);
                RequestCancellation::Waiting
            }
            SlotState::Member => {
                let head = self.slots.story(slot).head;
                match self.slots.kind(head) {
                    SlotState::Waiting => {
                        self.dissolve(head, slot);
                        RequestCancellation::Waiting
                    }
                    _ => RequestCancellation::TooLate,
                }
            }
            SlotState::Leading if !self.slots.story(slot).members.is_empty() => RequestCancellation::TooLate,
            SlotState::Plain | SlotState::Leading => self.ask(slot),
            SlotState::Divided => self.give_up_divided(slot),
        }
    }

    /// Removes a waiting request from its group and completes it; the remaining members wait alone.
    fn dissolve(&mut self, head: u32, leaving: u32) {
        self.merger.close(head);
        if !self.scheduler.remove(head) {
            self.outgoing.retain(|&slot| slot != head);
        }
        for member in std::mem::take(&mut self.slots.story_mut(head).members) {
            if member != leaving {
                self.slots.story_mut(member).alone = true;
                self.enqueue(member);
            }
        }
        let data = std::mem::take(&mut self.slots.story_mut(leaving).data);
        self.finish(leaving, Status::ABORT_REQUESTED, 0, data);
    }

    fn ask(&mut self, slot: u32) -> RequestCancellation {
        let lane = usize::try_from(self.slots.lane(slot)).ok().and_then(|lane| self.lanes.get_mut(lane));
        match lane.map(|lane| lane.cancel(slot)) {
            Some(Ok(())) => RequestCancellation::Asked,
            _ => RequestCancellation::TooLate,
        }
    }

    fn give_up_divided(&mut self, slot: u32) -> RequestCancellation {
        self.slots.story_mut(slot).failure.get_or_insert(Status::ABORT_REQUESTED);
        let parts = self.slots.parts_of(slot);
        if parts.is_empty() {
            self.outgoing.retain(|&other| other != slot);
            let data = std::mem::take(&mut self.slots.story_mut(slot).data);
            self.finish(slot, Status::ABORT_REQUESTED, 0, data);
            return RequestCancellation::Waiting;
        }
        for part in parts {
            self.ask(part);
        }
        RequestCancellation::Asked
    }
}
