//! Carries out administrative actions, one command at a time.
//!
//! Input: actions with their steps. Output: commands to the engine, and one answer an action. A turn submits the next
//! command of the first action in the queue, and advances a sanitize operation. Invariant: commands of actions pass
//! through the same stages as commands of clients.

use super::{ADMINISTRATION_FRONT_END, PendingAction, SanitizePurge, sanitize_mark_step, sanitize_steps};
use crate::command::{NamespaceId, SsdCompletion, SubmitError};
use crate::engine::SsdDevice;
use crate::ftl::sanitize_mark::FoundMark;
use crate::limits::NAMESPACES;
use crate::media::Media;
use crate::namespace::Namespace;
use crate::namespace::sanitize::{SanitizeMark, SanitizePhase};
use headwater_host::width::narrow;
use headwater_nvme::controller::AdminCompletion;
use headwater_nvme::controller::admin::{NamespaceAction, SanitizeState};
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;

/// Denominator of SPROG.
const PROGRESS_PARTS: usize = 65_536;
/// The largest progress that is reported: FFFFh means that no sanitize operation is in progress.
const PROGRESS_MAX: usize = 0xFFFE;

impl<M: Media> SsdDevice<M> {
    /// Iterates over the namespaces that exist, in the order of their numbers.
    pub(crate) fn existing_namespaces(&self) -> impl Iterator<Item = (NamespaceId, Namespace)> + '_ {
        let numbers = (1..).take(NAMESPACES).map(NamespaceId);
        numbers.filter_map(|id| Some((id, self.namespace(id)?)))
    }

    /// Advances the first action in the queue, and a sanitize operation. Returns true if any state changed.
    pub(in crate::engine) fn run_actions(&mut self) -> bool {
        let mut moved = false;
        while let Some(completion) = self.release_queue.pop(ADMINISTRATION_FRONT_END) {
            self.complete_step(completion);
            moved = true;
        }
        moved |= self.advance_purge();
        while let Some(work) = self.administration.actions.front() {
            // One action at a time: the next may depend on what this one creates. A purge delays only sanitize actions.
            if work.in_flight || (self.administration.purge.is_some() && is_sanitize(&work.action)) {
                break;
            }
            match work.steps.front().cloned() {
                None => self.finish_action(AdminCompletion::SUCCESS),
                Some((namespace, command)) => {
                    match self.submit(ADMINISTRATION_FRONT_END, namespace, 0, command) {
                        Ok(()) => {
                            let work = self.administration.actions.front_mut();
                            let work = work.expect("the action whose step was submitted is in the queue");
                            work.in_flight = true;
                        }
                        Err(SubmitError::Busy(_)) => break,
                        Err(SubmitError::Refused(status)) => {
                            self.finish_action(AdminCompletion::with_status(status));
                        }
                    }
                }
            }
            moved = true;
        }
        moved
    }

    /// Takes the completion of the first action's current step.
    fn complete_step(&mut self, completion: SsdCompletion) {
        let work = self.administration.actions.front_mut();
        let work = work.filter(|work| work.in_flight).expect("a step completed that no action waits for");
        work.in_flight = false;
        work.steps.pop_front();
        if !completion.status.is_success() {
            let status = match (&work.action, completion.status) {
                (NamespaceAction::Create { .. }, Status::CAPACITY_EXCEEDED) => {
                    Status::NAMESPACE_INSUFFICIENT_CAPACITY
                }
                (_, status) => status,
            };
            return self.finish_action(AdminCompletion::with_status(status));
        }
        match work.action {
            NamespaceAction::Create { .. } => {
                self.finish_action(AdminCompletion::with_result(completion.position));
            }
            // Its mark is durable: the operation now runs to its end even across a restart.
            NamespaceAction::Sanitize { .. } => {
                if let Some(ticket) = work.ticket.take() {
                    self.administration.complete(ticket, AdminCompletion::SUCCESS);
                }
            }
            _ => {}
        }
        self.administration.count_change();
    }

    /// Ends the first action and queues its answer.
    fn finish_action(&mut self, answer: AdminCompletion) {
        let work = self.administration.actions.pop_front().expect("the action that ends is in the queue");
        let success = answer.status.is_success();
        match (&work.action, work.final_phase) {
            (NamespaceAction::Sanitize { .. }, Some(phase)) if success => self.end_sanitize(phase),
            (NamespaceAction::Sanitize { .. }, None) if success => self.begin_purge(),
            (NamespaceAction::Sanitize { .. }, _) => self.end_sanitize(SanitizePhase::Failed),
            (NamespaceAction::LeaveSanitizeFailure, _) if success => {
                self.administration.set_sanitize_state(SanitizeState::Never);
            }
            _ => {}
        }
        self.administration.count_change();
        if let Some(ticket) = work.ticket {
            self.administration.complete(ticket, answer);
        }
    }

    /// Starts to erase the blocks that still hold bytes of the cleared namespaces.
    fn begin_purge(&mut self) {
        let up_to = self.ftl.last_sequence();
        self.ftl.end_block_for_purge();
        let blocks = self.ftl.blocks_opened_by(up_to).max(1);
        self.administration.purge = Some(SanitizePurge { up_to, initial_blocks: blocks });
    }

    fn advance_purge(&mut self) -> bool {
        let Some(SanitizePurge { up_to, initial_blocks: blocks }) = self.administration.purge else {
            return false;
        };
        let phase = match self.ftl.purge(up_to) {
            _ if self.ftl.failure().is_some() => SanitizePhase::Failed,
            Ok(0) => SanitizePhase::Completed,
            Ok(left) => {
                let done = blocks.saturating_sub(left) * PROGRESS_PARTS / blocks;
                self.administration.sanitize.state = SanitizeState::Running(narrow(done.min(PROGRESS_MAX)));
                return false;
            }
            Err(_) => SanitizePhase::Failed,
        };
        self.administration.purge = None;
        self.ftl.end_purge();
        // The operation ends when this mark is durable: after an earlier power cut it resumes.
        let command = self.administration.sanitize.command;
        self.administration.actions.push_back(PendingAction {
            ticket: None,
            action: NamespaceAction::Sanitize { command },
            steps: VecDeque::from([sanitize_mark_step(phase, command)]),
            in_flight: false,
            final_phase: Some(phase),
        });
        true
    }

    fn end_sanitize(&mut self, phase: SanitizePhase) {
        self.administration.client_bytes_at_sanitize = self.ftl.client_bytes();
        self.administration.set_sanitize_state(phase.sanitize_state());
    }

    /// Restores the state of the last sanitize operation after a start, and resumes an unfinished one.
    pub(in crate::engine) fn resume_sanitize(&mut self) {
        let Some(FoundMark { mark: SanitizeMark { phase, command }, sequence }) =
            self.ftl.namespace_table().sanitize()
        else {
            return;
        };
        self.administration.sanitize.command = command;
        self.administration.set_sanitize_state(phase.sanitize_state());
        // No counter of written bytes survives a restart, but a later sequence shows that something was written.
        // Recovery skips one sequence, so after several starts this may report a write where there was none.
        let written = self.ftl.last_sequence() > sequence;
        self.administration.client_bytes_at_sanitize =
            if written { u64::MAX } else { self.ftl.client_bytes() };
        if phase == SanitizePhase::Running {
            let action = NamespaceAction::Sanitize { command };
            let steps = sanitize_steps(self.existing_namespaces().map(|(id, _)| id), command);
            self.administration.actions.push_back(PendingAction {
                ticket: None,
                action,
                steps,
                in_flight: false,
                final_phase: None,
            });
        }
    }
}

fn is_sanitize(action: &NamespaceAction) -> bool {
    matches!(action, NamespaceAction::Sanitize { .. })
}
