//! The controller side of one submission queue: fetches commands and tracks those that are not completed.
//!
//! Input: what a host wrote into its ring, valid or not. Output: commands with their tokens; completions for the
//! completion queue that it was created with. Invariant: a command id is live at most once, and each live command has
//! one token.
//!
//! ```text
//!             begin_delete                    nothing live, nothing waiting
//!   Serving ---------------> Draining -------------------------------> Drain::Done, removed
//!      |                        |                                          ^
//!      | invalid doorbell       | invalid doorbell, abandon                | nothing live
//!      +--------> Failed <------+------------------> Abandoned ------------+
//! ```

use crate::controller::completion_queue::{CompletionQueue, CompletionState};
use crate::controller::live_ids::LiveIds;
use crate::controller::queue::{DrainProgress, FetchOutcome, FetchedCommand, QueueId, QueueKind, QueueState};
use crate::controller::token::CommandToken;
use crate::ring::DoorbellCell;
use crate::ring::doorbell::DoorbellFault;
use crate::ring::submission::SubmissionConsumer;
use crate::spec::command::SubmissionEntry;
use crate::spec::completion::{CompletionEntry, CompletionWords};
use crate::spec::status::Status;
use headwater_host::ring_memory::RingMemory;
use std::collections::VecDeque;
use zerocopy::little_endian::{U16, U32};

/// The controller side of a submission queue. Each method that fetches or completes takes the completion queue that
/// this one was created with.
#[derive(Debug)]
pub(crate) struct SubmissionQueue<M> {
    id: QueueId,
    completion: QueueId,
    kind: QueueKind,
    state: QueueState,
    /// A fault that was not reported yet.
    unreported_fault: Option<DoorbellFault>,
    consumer: SubmissionConsumer<M>,
    /// Entries taken from the ring before their turn because a command behind them was aborted. At most the ring's
    /// capacity.
    early_entries: VecDeque<SubmissionEntry>,
    live: LiveIds,
    /// The controller's generation when the queue was created; its tokens carry it.
    generation: u32,
}

impl<M: RingMemory> SubmissionQueue<M> {
    pub(crate) fn new(
        id: QueueId,
        completion: QueueId,
        kind: QueueKind,
        consumer: SubmissionConsumer<M>,
    ) -> Self {
        Self {
            id,
            completion,
            kind,
            state: QueueState::Serving,
            unreported_fault: None,
            consumer,
            early_entries: VecDeque::new(),
            live: LiveIds::new(),
            generation: 0,
        }
    }

    pub(crate) fn id(&self) -> QueueId {
        self.id
    }

    /// Returns the number of its completion queue.
    #[inline]
    pub(crate) fn completion(&self) -> QueueId {
        self.completion
    }

    /// Returns the state of the queue; a fault of its completion queue counts as its own.
    pub(crate) fn state(&self, to: &CompletionQueue<M>) -> QueueState {
        match (self.state, to.state()) {
            (QueueState::Serving | QueueState::Draining, CompletionState::Failed(fault)) => {
                QueueState::Failed(fault)
            }
            (state, _) => state,
        }
    }

    pub(crate) fn live(&self) -> u32 {
        self.live.count()
    }

    pub(crate) fn is_live(&self, command_id: u16) -> bool {
        self.live.contains(command_id)
    }

    /// Sets the controller's generation that new tokens carry.
    pub(crate) fn set_generation(&mut self, generation: u32) {
        self.generation = generation;
    }

    /// Returns true if [`fetch`](Self::fetch) would return an entry. Reads the doorbell after all entries it covered
    /// are fetched.
    #[inline]
    fn is_ready(&mut self, to: &mut CompletionQueue<M>) -> bool {
        to.post_waiting();
        if self.state != QueueState::Serving || !to.may_fetch() {
            return false;
        }
        if self.has_entry() {
            return true;
        }
        match self.consumer.refresh() {
            Ok(()) => self.consumer.has_seen(),
            Err(fault) => {
                self.fail(fault);
                false
            }
        }
    }

    /// Returns true if an entry is available that the last doorbell value read covers.
    #[inline]
    fn has_entry(&self) -> bool {
        self.consumer.has_seen() || !self.early_entries.is_empty()
    }

    /// Returns the next entry that the last doorbell value read covers.
    #[inline]
    fn next_entry(&mut self) -> Option<SubmissionEntry> {
        if self.early_entries.is_empty() {
            self.consumer.fetch_seen()
        } else {
            self.early_entries.pop_front()
        }
    }

    /// Fetches at most one entry. Never allocates.
    #[inline]
    pub(crate) fn fetch(&mut self, to: &mut CompletionQueue<M>) -> FetchOutcome {
        if !self.is_ready(to) {
            return FetchOutcome::Empty;
        }
        let Some(entry) = self.next_entry() else {
            return FetchOutcome::Empty;
        };
        let command_id = entry.command_id.get();
        if !self.live.insert(command_id) {
            to.post_uncounted(self.words_of(command_id, 0, Status::COMMAND_ID_CONFLICT));
            return FetchOutcome::Completed;
        }
        to.count_fetched();
        let token = CommandToken::new(self.id, command_id, self.generation);
        FetchOutcome::Command(FetchedCommand { kind: self.kind, entry, token })
    }

    /// Fetches every available entry and completes each at once with what `post_uncounted` returns. No such command becomes
    /// live.
    #[inline]
    pub(crate) fn complete_each(
        &mut self,
        to: &mut CompletionQueue<M>,
        mut answer: impl FnMut(&SubmissionEntry) -> (u32, Status),
    ) {
        while self.is_ready(to) {
            let Some(entry) = self.next_entry() else {
                return;
            };
            let command_id = entry.command_id.get();
            let (result, status) = if self.live.contains(command_id) {
                (0, Status::COMMAND_ID_CONFLICT)
            } else {
                answer(&entry)
            };
            to.count_fetched();
            to.post_counted(self.words_of(command_id, result, status));
        }
    }

    /// Aborts a command that waits in the ring (Base 2.0 section 5.1): completes it with [`Status::ABORT_REQUESTED`]
    /// and never fetches it. Entries before it leave the ring too, so that the head in the completion is correct, and
    /// keep their order. Returns false if there is no such command, or no room to take it out.
    pub(crate) fn abort(&mut self, to: &mut CompletionQueue<M>, command_id: u16) -> bool {
        to.post_waiting();
        if self.state != QueueState::Serving || !to.may_fetch() {
            return false;
        }
        if let Some(at) = self.early_entries.iter().position(|entry| entry.command_id.get() == command_id) {
            self.early_entries.remove(at);
        } else if !self.take_from_ring(command_id) {
            return false;
        }
        to.post_uncounted(self.words_of(command_id, 0, Status::ABORT_REQUESTED));
        true
    }

    fn take_from_ring(&mut self, command_id: u16) -> bool {
        if let Err(fault) = self.consumer.refresh() {
            self.fail(fault);
            return false;
        }
        let Some(before) = self.consumer.commands_before(command_id) else {
            return false;
        };
        let room = (self.consumer.entries_max() as usize).saturating_sub(self.early_entries.len());
        if before as usize >= room {
            return false;
        }
        for _ in 0..before {
            self.early_entries.extend(self.consumer.fetch_seen());
        }
        // The host may have overwritten the entry since it was read; then it is a command like any other.
        let entry = self.consumer.fetch_seen();
        let changed = entry.filter(|entry| entry.command_id.get() != command_id);
        self.early_entries.extend(changed);
        entry.is_some() && changed.is_none()
    }

    /// Completes a command. Panics if the token belongs to another queue or was completed before.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        to: &mut CompletionQueue<M>,
        token: CommandToken,
        result: u32,
        status: Status,
    ) {
        assert_eq!(token.queue(), self.id, "a token was completed on a queue that it did not come from");
        let command_id = token.into_command_id();
        assert!(self.live.remove(command_id), "a command was completed twice");
        to.post_counted(self.words_of(command_id, result, status));
    }

    #[inline]
    fn words_of(&self, command_id: u16, result: u32, status: Status) -> CompletionWords {
        let entry = CompletionEntry {
            result: U32::new(result),
            reserved: U32::new(0),
            submission_head: U16::new(self.consumer.head()),
            submission_queue: U16::new(self.id.0),
            command_id: U16::new(command_id),
            status_and_phase: U16::new(status.to_field()),
        };
        entry.into()
    }

    #[cold]
    fn fail(&mut self, fault: DoorbellFault) {
        self.state = QueueState::Failed(fault);
        self.unreported_fault = Some(fault);
    }

    /// Stops accepting commands. Each command that the host submitted before still gets a completion: live commands
    /// from their token holders, the rest [`Status::ABORTED_SQ_DELETION`].
    pub(crate) fn begin_delete(&mut self) {
        if self.state != QueueState::Serving {
            return;
        }
        match self.consumer.refresh() {
            Ok(()) => self.state = QueueState::Draining,
            Err(fault) => self.fail(fault),
        }
    }

    /// Stops accepting commands because the host is gone. Live commands must still be completed.
    pub(crate) fn abandon(&mut self) {
        self.state = QueueState::Abandoned;
    }

    /// Advances a deletion as far as the completion queue has room.
    pub(crate) fn drain(&mut self, to: &mut CompletionQueue<M>) -> DrainProgress {
        to.post_waiting();
        // A failed completion queue accepts completions and discards them.
        while self.state == QueueState::Draining && to.waiting() == 0 {
            let Some(entry) = self.next_entry() else {
                break;
            };
            let command_id = entry.command_id.get();
            to.post_uncounted(self.words_of(command_id, 0, Status::ABORTED_SQ_DELETION));
        }
        let unposted = to.waiting_of(self.id);
        // Entries that were not fetched for lack of room still need a completion.
        let owes_entries = self.state == QueueState::Draining && self.has_entry();
        if self.live.count() == 0 && unposted == 0 && !owes_entries {
            return DrainProgress::Done;
        }
        DrainProgress::Waiting { live: self.live.count(), unposted }
    }

    /// Returns true if a fetch would return an entry, or a waiting completion can be posted.
    pub(crate) fn has_work(&self, to: &CompletionQueue<M>) -> bool {
        if to.waiting() > 0 {
            return to.has_work();
        }
        self.state == QueueState::Serving
            && to.may_fetch()
            && (!self.early_entries.is_empty() || self.consumer.has_work())
    }

    /// Applies a write to the tail doorbell register.
    pub(crate) fn write_doorbell(&mut self, value: u32) -> Result<(), DoorbellFault> {
        if self.state != QueueState::Serving {
            return Ok(());
        }
        self.consumer.write_doorbell(value).inspect_err(|&fault| self.state = QueueState::Failed(fault))
    }

    /// Moves the tail doorbell to a memory cell.
    pub(crate) fn set_doorbell_cell(&mut self, cell: DoorbellCell<M>) {
        self.consumer.set_doorbell_cell(cell);
    }

    /// Returns a fault that was found while fetching and not reported yet.
    pub(crate) fn take_fault(&mut self) -> Option<DoorbellFault> {
        self.unreported_fault.take()
    }

    /// Arms a notification from the host for its next command.
    pub(crate) fn arm(&self) {
        self.consumer.arm();
    }

    /// Withdraws the request for a notification.
    pub(crate) fn disarm(&self) {
        self.consumer.disarm();
    }

    /// Returns true if an armed host sends a notification for its next command.
    pub(crate) fn sends_notifications(&self) -> bool {
        self.consumer.sends_notifications()
    }
}
