//! Requests that are given up: cancelled by the caller, or not answered by their deadline.
//!
//! In: a token, or the time. Out: the request's one answer, early where that is possible: with
//! [`ABORT_REQUESTED`](Status::ABORT_REQUESTED) if it was not begun, else with what the device makes of the wish.

use super::Handle;
use super::slots::Kind;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;

/// How far a request was when it was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It waited in the handle: its answer, Abort Requested, is ready, and nothing of it was done.
    Waiting,
    /// It was at a device, which was asked to give it up: its answer says whether it did.
    Asked,
    /// It was at a device that cannot be asked, or one command for others too: it will be answered as if nothing had
    /// happened.
    TooLate,
    /// No request with that token is unanswered.
    Unknown,
}

impl Handle {
    /// Cancels a request. It still has its one answer.
    pub fn cancel(&mut self, token: u64) -> Cancelled {
        match self.slots.find(token) {
            Some(place) => self.give_up(place),
            None => Cancelled::Unknown,
        }
    }

    /// Gives up what was not answered by its deadline.
    pub(super) fn expire(&mut self, now: Nanos) {
        while let Some(&(deadline, place)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            self.give_up(place);
        }
    }

    fn give_up(&mut self, place: u32) -> Cancelled {
        match self.slots.kind(place) {
            Kind::Free | Kind::Part => Cancelled::Unknown,
            Kind::Waiting => {
                self.dissolve(place, place);
                Cancelled::Waiting
            }
            Kind::Member => {
                let head = self.slots.story(place).head;
                match self.slots.kind(head) {
                    Kind::Waiting => {
                        self.dissolve(head, place);
                        Cancelled::Waiting
                    }
                    _ => Cancelled::TooLate,
                }
            }
            Kind::Leading if !self.slots.story(place).members.is_empty() => Cancelled::TooLate,
            Kind::Plain | Kind::Leading => self.ask(place),
            Kind::Divided => self.give_up_divided(place),
        }
    }

    /// A request that waits leaves; the others of its group go on alone.
    fn dissolve(&mut self, head: u32, leaving: u32) {
        self.merger.close(head);
        if !self.scheduler.remove(head) {
            self.outgoing.retain(|&place| place != head);
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

    fn ask(&mut self, place: u32) -> Cancelled {
        let lane = usize::try_from(self.slots.lane(place)).ok().and_then(|lane| self.lanes.get_mut(lane));
        match lane.map(|lane| lane.cancel(place)) {
            Some(Ok(())) => Cancelled::Asked,
            _ => Cancelled::TooLate,
        }
    }

    fn give_up_divided(&mut self, place: u32) -> Cancelled {
        self.slots.story_mut(place).failure.get_or_insert(Status::ABORT_REQUESTED);
        let parts = self.slots.parts_of(place);
        if parts.is_empty() {
            self.outgoing.retain(|&other| other != place);
            let data = std::mem::take(&mut self.slots.story_mut(place).data);
            self.finish(place, Status::ABORT_REQUESTED, 0, data);
            return Cancelled::Waiting;
        }
        for part in parts {
            self.ask(part);
        }
        Cancelled::Asked
    }
}
