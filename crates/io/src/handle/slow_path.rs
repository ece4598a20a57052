//! The slow path of a request: selector, scheduler, merging, window, division, and completion.
//!
//! Input: validated requests, completions of queues. Output: commands, and completions for the caller. Invariant: a
//! slot is freed exactly when its request's completion is made.

use super::attached_queue::AttachedQueue;
use super::request::{IoRequest, RequestOperation, into_data, slice_data};
use super::request_table::{NO_SLOT, RequestTable, SlotState};
use super::{HANDLE_TOKEN, Handle, NamespaceGeometry, RefusedRequest};
use crate::backend::CompletedCommand;
use crate::command::{Command, TransferData};
use crate::completion::CompletionPolicy;
use crate::error::RequestError;
use crate::error::{IoError, SubmitError};
use crate::queue::Completion;
use crate::scheduler::{
    MergeExtent, MergePolicy, MergeSide, SchedulerDecision, SchedulingPolicy, WaitingRequest,
};
use crate::selector::SelectionContext;
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;

/// The minimum cost of a request, in bytes, where bandwidth is shared; it applies to requests that move no data.
const COST_BYTES_MIN: u64 = 4_096;

/// The result of a dispatch.
enum DispatchOutcome {
    /// The whole request is submitted or completed.
    Done,
    /// The queue or the window has no room.
    NoRoom,
}

impl Handle {
    /// Returns true if a policy or a deadline needs the time.
    pub(super) fn is_timed(&self) -> bool {
        !matches!(self.scheduler.scheduling(), SchedulingPolicy::Fifo)
            || !matches!(self.completion, CompletionPolicy::Inline)
            || !self.deadlines.is_empty()
    }

    #[cold]
    pub(super) fn submit_slow(&mut self, request: IoRequest, token: u64) -> Result<(), RefusedRequest> {
        self.submit_slow_as(request, token, false)
    }

    pub(super) fn submit_slow_as(
        &mut self,
        request: IoRequest,
        token: u64,
        awaited: bool,
    ) -> Result<(), RefusedRequest> {
        let unanswered = self.slots.used() - self.parts + self.plain_in_flight;
        let most = self.capacity();
        if unanswered >= most {
            return Err(NamespaceGeometry::refuse(
                request,
                RequestError::Full { outstanding: unanswered, max: most },
            ));
        }
        let queue = match self.choose_queue(&request) {
            Ok(queue) => queue,
            Err(error) => return Err(NamespaceGeometry::refuse(request, error)),
        };
        let Some(slot) = self.slots.take(token, SlotState::Waiting, queue) else {
            return Err(NamespaceGeometry::refuse(
                request,
                RequestError::Full { outstanding: unanswered, max: most },
            ));
        };
        let timed = self.is_timed() || request.timeout.is_some();
        let now = if timed { self.clock.now() } else { Nanos::ZERO };
        self.slots.init_pending(slot, request, now);
        self.slots.pending_mut(slot).awaited = awaited;
        if let Some(deadline) = self.slots.pending(slot).deadline {
            self.deadlines.insert((deadline, slot));
        }
        self.slow_requests += 1;
        self.enqueue(slot);
        Ok(())
    }

    /// Returns the index of the queue that the selector names.
    fn choose_queue(&mut self, request: &IoRequest) -> Result<u32, RequestError> {
        let loads: Vec<_> =
            self.queues.iter().filter(|queue| !queue.detaching).map(AttachedQueue::load).collect();
        let choice = SelectionContext {
            direction: request.operation.direction(),
            class: request.class,
            offset: request.offset,
            bytes: request.bytes,
            queues: &loads,
        };
        let name = self.selector.choose(&choice).ok_or(RequestError::NoQueue)?;
        let index = self.queues.iter().position(|queue| queue.name == name && !queue.detaching);
        let unknown = RequestError::NoSuchQueue { name: name.0, queues: narrow(loads.len()) };
        index.map(narrow).ok_or(unknown)
    }

    /// Makes a request wait for the scheduler, merged into a group if possible.
    pub(super) fn enqueue(&mut self, slot: u32) {
        let extent = self.extent_of(slot);
        if let Some(extent) = &extent {
            if let Some(joined) = self.merger.join(extent, self.command_bytes_max, self.limits.segments_max) {
                self.slots.set_state(slot, SlotState::Member);
                self.slots.pending_mut(slot).head = joined.group;
                let members = &mut self.slots.pending_mut(joined.group).members;
                if members.is_empty() {
                    members.push(joined.group);
                }
                let at = if joined.side == MergeSide::Front { 0 } else { members.len() };
                members.insert(at, slot);
                self.scheduler.charge_class(extent.class, extent.bytes);
                return;
            }
            self.merger.open(slot, *extent);
        }
        self.slots.set_state(slot, SlotState::Waiting);
        let pending = self.slots.pending(slot);
        self.scheduler.push(WaitingRequest {
            slot,
            class: pending.class,
            bytes: pending.bytes.max(COST_BYTES_MIN),
            arrived_at: pending.arrived_at,
            deadline: pending.deadline,
        });
    }

    /// Returns the extent of a request that may be merged.
    fn extent_of(&self, slot: u32) -> Option<MergeExtent> {
        let pending = self.slots.pending(slot);
        let sort = pending.operation.merge_key()?;
        let single = matches!(pending.data, TransferData::FromDevice(_) | TransferData::ToDevice(_));
        if self.merging == MergePolicy::Off || self.limits.segments_max < 2 || pending.unmergeable || !single
        {
            return None;
        }
        // A request with its own deadline may have to be cancelled alone, which is impossible for a part of a command.
        if pending.deadline.is_some() || pending.awaited || pending.bytes >= self.command_bytes_max {
            return None;
        }
        let queue = u8::try_from(self.slots.queue(slot)).ok().filter(|&queue| queue < 64)?;
        Some(MergeExtent {
            key: sort | queue << 2,
            class: pending.class,
            start: pending.offset,
            bytes: pending.bytes,
            segments: 1,
            deadline: None,
        })
    }

    /// Submits to the queues what policies and room allow.
    pub(super) fn dispatch_waiting(&mut self, now: Nanos) {
        let mut kept = 0;
        while let Some(&slot) = self.outgoing.get(kept) {
            match self.dispatch(slot, now) {
                DispatchOutcome::Done => {
                    self.outgoing.remove(kept);
                }
                DispatchOutcome::NoRoom => kept += 1,
            }
        }
        // A full queue holds back only its own requests.
        while self.outgoing.len() < self.queues.len() && self.in_flight() < self.window.limit() {
            let slot = match self.scheduler.pop(now) {
                None => return,
                Some(SchedulerDecision::Cancel(slot)) => {
                    self.merger.close(slot);
                    self.complete_group(slot, Status::ABORT_REQUESTED);
                    continue;
                }
                Some(SchedulerDecision::Serve(slot)) => slot,
            };
            self.merger.close(slot);
            if let DispatchOutcome::NoRoom = self.dispatch(slot, now) {
                self.outgoing.push_back(slot);
            }
        }
    }

    fn in_flight(&self) -> u32 {
        self.queues.iter().map(AttachedQueue::in_flight).fold(0, u32::saturating_add)
    }

    /// Submits one request as far as there is room.
    fn dispatch(&mut self, slot: u32, now: Nanos) -> DispatchOutcome {
        if self.slots.state(slot) == SlotState::Divided || self.must_divide(slot) {
            return self.dispatch_parts(slot, now);
        }
        let members = std::mem::take(&mut self.slots.pending_mut(slot).members);
        let (command, _) = self.build_command(slot, &members);
        let taken = self.submit_command(slot, command, now);
        self.slots.pending_mut(slot).members = members;
        match taken {
            Ok(()) => {
                self.slots.set_state(slot, SlotState::Leading);
                DispatchOutcome::Done
            }
            Err((data, reason)) => {
                self.return_buffers(slot, data);
                self.queue_rejected(slot, reason)
            }
        }
    }

    fn must_divide(&self, slot: u32) -> bool {
        let pending = self.slots.pending(slot);
        pending.members.is_empty()
            && (pending.bytes > self.geometry.command_bytes_max(pending.operation, &self.limits)
                || pending.data.buffers().len() > self.limits.segments_max.max(1))
    }

    /// Builds the one command of a request or of a group.
    fn build_command(&mut self, slot: u32, members: &[u32]) -> (Command, u64) {
        let (operation, offset) = (self.slots.pending(slot).operation, self.slots.pending(slot).offset);
        if members.is_empty() {
            let bytes = self.slots.pending(slot).bytes;
            let data = std::mem::take(&mut self.slots.pending_mut(slot).data);
            if let (RequestOperation::Discard, Some(list)) = (operation, data.buffers().first())
                && let Ok(command) = self.geometry.discard(offset, bytes, list)
            {
                // The command holds a slice of the list; the caller gets the whole list back.
                self.slots.pending_mut(slot).data = data;
                return (command, bytes);
            }
            return (Command { entry: self.geometry.entry(operation, offset, bytes), data }, bytes);
        }
        let (mut start, mut bytes, mut buffers) = (u64::MAX, 0, Vec::with_capacity(members.len()));
        for &member in members {
            let pending = self.slots.pending_mut(member);
            start = start.min(pending.offset);
            bytes += pending.bytes;
            if let TransferData::FromDevice(buffer) | TransferData::ToDevice(buffer) =
                std::mem::take(&mut pending.data)
            {
                buffers.push(buffer);
            }
        }
        let data = into_data(buffers, operation == RequestOperation::Read);
        (Command { entry: self.geometry.entry(operation, start, bytes), data }, bytes)
    }

    fn submit_command(
        &mut self,
        slot: u32,
        command: Command,
        now: Nanos,
    ) -> Result<(), (TransferData, SubmitError)> {
        let queue = usize::try_from(self.slots.queue(slot)).ok().and_then(|queue| self.queues.get_mut(queue));
        let Some(queue) = queue else {
            return Err((command.data, SubmitError::Gone));
        };
        queue.submit(command, slot).map_err(|rejected| (rejected.command.data, rejected.reason))?;
        self.slots.pending_mut(slot).submitted_at = now;
        Ok(())
    }

    /// Returns the buffers of a command to its request or to the members of its group.
    fn return_buffers(&mut self, slot: u32, data: TransferData) {
        let pending = self.slots.pending_mut(slot);
        if pending.members.is_empty() {
            if pending.operation != RequestOperation::Discard || matches!(pending.data, TransferData::None) {
                pending.data = data;
            }
            return;
        }
        let members = std::mem::take(&mut pending.members);
        let from_device = pending.operation == RequestOperation::Read;
        if let TransferData::Scatter(buffers) | TransferData::Gather(buffers) = data {
            for (&member, buffer) in members.iter().zip(buffers) {
                self.slots.pending_mut(member).data = into_data(vec![buffer], from_device);
            }
        }
        self.slots.pending_mut(slot).members = members;
    }

    fn queue_rejected(&mut self, slot: u32, reason: SubmitError) -> DispatchOutcome {
        let status = match reason {
            SubmitError::Full => return DispatchOutcome::NoRoom,
            SubmitError::Unsupported { .. } => Status::INVALID_FIELD,
            SubmitError::BlocksOutOfRange { .. } => Status::LBA_OUT_OF_RANGE,
            SubmitError::NoThread { .. } => Status::INTERNAL_ERROR,
            SubmitError::Gone => Status::ABORT_REQUESTED,
        };
        self.complete_group(slot, status);
        DispatchOutcome::Done
    }

    /// Submits the next parts of a divided request.
    fn dispatch_parts(&mut self, slot: u32, now: Nanos) -> DispatchOutcome {
        self.slots.set_state(slot, SlotState::Divided);
        loop {
            let pending = self.slots.pending(slot);
            if pending.failure.is_some() || pending.submitted_bytes == pending.bytes {
                return self.complete_if_done(slot);
            }
            if self.in_flight() >= self.window.limit() {
                return DispatchOutcome::NoRoom;
            }
            let (operation, offset, queue) =
                (pending.operation, pending.offset + pending.submitted_bytes, self.slots.queue(slot));
            let bytes_max = self.geometry.command_bytes_max(operation, &self.limits);
            let (data, bytes) = match &pending.data {
                TransferData::None => {
                    (TransferData::None, bytes_max.min(pending.bytes - pending.submitted_bytes))
                }
                data => slice_data(data, pending.submitted_bytes, bytes_max, self.limits.segments_max.max(1)),
            };
            let size = pending.size;
            let Some(part) = self.slots.take(0, SlotState::Part, queue) else {
                return DispatchOutcome::NoRoom;
            };
            let command = Command { entry: self.geometry.entry(operation, offset, bytes), data };
            let taken = self.submit_command(part, command, now);
            let pending = self.slots.pending_mut(slot);
            match taken {
                Ok(()) => {
                    pending.submitted_bytes += bytes;
                    pending.parts_in_flight += 1;
                    self.parts += 1;
                    let part = self.slots.pending_mut(part);
                    (part.head, part.size) = (slot, size);
                }
                Err((_, SubmitError::Full)) => {
                    self.slots.release(part);
                    return DispatchOutcome::NoRoom;
                }
                Err(_) => {
                    pending.failure = Some(Status::ABORT_REQUESTED);
                    self.slots.release(part);
                }
            }
        }
    }

    /// Completes a divided request when its last part has completed.
    fn complete_if_done(&mut self, slot: u32) -> DispatchOutcome {
        let pending = self.slots.pending_mut(slot);
        if pending.parts_in_flight == 0 {
            let status = pending.failure.unwrap_or(Status::SUCCESS);
            let data = std::mem::take(&mut pending.data);
            self.complete(slot, status, 0, data);
        }
        DispatchOutcome::Done
    }

    /// Polls every queue, and submits what has room.
    #[cold]
    pub(super) fn poll_slow(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        if let Some(answer) = self.take_ready() {
            return Ok(Some(answer));
        }
        self.poll_queues()?;
        Ok(self.take_ready())
    }

    pub(super) fn take_ready(&mut self) -> Option<CompletedCommand> {
        let answer = self.completed.pop_front()?;
        self.slow_requests -= 1;
        Some(answer)
    }

    /// Polls every queue once.
    pub(super) fn poll_queues(&mut self) -> Result<(), IoError> {
        let now = self.now();
        self.cancel_expired(now);
        self.dispatch_waiting(now);
        for index in 0..self.queues.len() {
            while let Some(queue) = self.queues.get_mut(index)
                && let Some(answer) = queue.poll()?
            {
                self.process_completion(answer, now);
            }
        }
        self.period.observe_poll();
        self.dispatch_waiting(now);
        self.queues.iter_mut().try_for_each(AttachedQueue::ring)
    }

    /// Processes a completion of a queue.
    fn process_completion(&mut self, answer: CompletedCommand, now: Nanos) {
        if answer.completion.token & HANDLE_TOKEN == 0 {
            self.plain_in_flight -= 1;
            self.slow_requests += 1;
            self.completed.push_back(answer);
            return;
        }
        let CompletedCommand { completion, data } = answer;
        let slot = u32::try_from(completion.token & !HANDLE_TOKEN).unwrap_or(NO_SLOT);
        let kind = self.slots.state(slot);
        assert!(kind != SlotState::Free, "a completion for slot {slot}, which holds no request");
        if now > Nanos::ZERO && kind != SlotState::FastPath {
            let pending = self.slots.pending(slot);
            let latency = now.since(pending.submitted_at);
            let size = pending.size;
            self.window.observe(latency);
            self.period.observe_completion(size, latency);
        }
        match kind {
            SlotState::Part => self.part_completed(slot, completion.status, data),
            SlotState::Leading => self.leader_completed(slot, completion, data),
            _ => self.complete(slot, completion.status, completion.result, data),
        }
    }

    fn part_completed(&mut self, part: u32, status: Status, data: TransferData) {
        let slot = self.slots.pending(part).head;
        drop(data);
        self.slots.release(part);
        self.parts -= 1;
        let pending = self.slots.pending_mut(slot);
        pending.parts_in_flight -= 1;
        if !status.is_success() {
            pending.failure.get_or_insert(status);
        }
        if pending.parts_in_flight == 0 && !self.outgoing.contains(&slot) {
            self.complete_if_done(slot);
        }
    }

    /// Processes the completion of a request or a group that is one command. The members of a failed group are retried
    /// one by one, so that each gets its own status.
    fn leader_completed(&mut self, slot: u32, completion: Completion, data: TransferData) {
        self.return_buffers(slot, data);
        if self.slots.pending(slot).members.is_empty() {
            let data = std::mem::take(&mut self.slots.pending_mut(slot).data);
            return self.complete(slot, completion.status, completion.result, data);
        }
        if completion.status.is_success() {
            return self.complete_group(slot, completion.status);
        }
        for member in std::mem::take(&mut self.slots.pending_mut(slot).members) {
            self.slots.pending_mut(member).unmergeable = true;
            self.enqueue(member);
        }
    }

    /// Completes a request that still holds its buffers, and the members of its group.
    pub(super) fn complete_group(&mut self, slot: u32, status: Status) {
        let mut members = std::mem::take(&mut self.slots.pending_mut(slot).members);
        if members.is_empty() {
            members.push(slot);
        }
        for member in members {
            let data = std::mem::take(&mut self.slots.pending_mut(member).data);
            self.complete(member, status, 0, data);
        }
    }

    /// Completes a request.
    pub(super) fn complete(&mut self, slot: u32, status: Status, result: u32, data: TransferData) {
        let awaited = self.slots.state(slot) != SlotState::FastPath
            && clear_pending(&mut self.slots, slot, &mut self.deadlines);
        let token = self.slots.release(slot);
        let answer = CompletedCommand { completion: Completion { token, result, status }, data };
        if awaited {
            self.slow_requests -= 1;
            self.awaited = Some(answer);
        } else {
            self.completed.push_back(answer);
        }
    }
}

/// Clears the state of a pending request, and returns true if a blocking call waits for it.
fn clear_pending(
    slots: &mut RequestTable,
    slot: u32,
    deadlines: &mut std::collections::BTreeSet<(Nanos, u32)>,
) -> bool {
    let pending = slots.pending_mut(slot);
    if let Some(deadline) = pending.deadline.take() {
        deadlines.remove(&(deadline, slot));
    }
    std::mem::take(&mut pending.awaited)
}
