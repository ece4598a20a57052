//! Administration of the device by its controllers.
//!
//! In: actions under tickets. Out: answers. A turn submits at most one command of the action that is first in line, and
//! moves a sanitize operation on. Invariant: commands of actions go through the same stages as everybody's.

use super::Device;
use crate::administration::{
    ACTIONS_MAX, ADMINISTRATION_FACE, AdminTicket, CONTROLLERS_MAX, Purge, Step, Work, format_of, mark,
    namespace_uuid, steps,
};
use crate::command::{Completion, FaceId, NamespaceId, SubmitError};
use crate::limits::NAMESPACES;
use crate::media::Media;
use crate::namespace::Namespace;
use crate::namespace::sanitize_mark::{FoundMark, SanitizeMark, SanitizePhase};
use crate::record::{LBA_BYTES, UNIT_BYTES, record_units};
use headwater_nvme::controller::AdminAnswer;
use headwater_nvme::controller::admin::{Identity, NamespaceAction, NamespaceFormat, SanitizeState};
use headwater_nvme::spec::identify::LBA_FORMAT_SHIFTS;
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;

/// SPROG counts in parts of this.
const PROGRESS_PARTS: usize = 65_536;

impl<M: Media> Device<M> {
    /// Says who the subsystem is; until then it is nobody in particular.
    pub fn set_identity(&mut self, identity: Identity) {
        self.administration.identity = identity;
    }

    /// What discovery controllers answer to Get Log Page 70h.
    pub fn set_discovery_log(&mut self, page: Vec<u8>) {
        self.administration.discovery_log = page;
    }

    /// A controller is there from now on. False if its number is taken, or there are too many.
    #[must_use]
    pub fn add_controller(&mut self, id: u16) -> bool {
        let controllers = &mut self.administration.controllers;
        controllers.len() < CONTROLLERS_MAX && controllers.insert(id)
    }

    /// A controller is gone. What it asked for is still carried out.
    pub fn remove_controller(&mut self, id: u16) {
        if self.administration.controllers.remove(&id) {
            self.utl.table.forget_controller(id);
            self.administration.touch();
        }
    }

    /// Whether a sanitize operation goes on: until it is done, I/O commands of NVMe hosts are refused
    /// ([`Status::SANITIZE_IN_PROGRESS`]).
    #[must_use]
    pub fn is_sanitizing(&self) -> bool {
        matches!(self.administration.sanitize.state, SanitizeState::Running(_))
    }

    /// Whether a controller has a namespace: what its I/O commands may name.
    #[must_use]
    pub fn is_attached(&self, namespace: NamespaceId, controller: u16) -> bool {
        self.utl.table.is_attached(namespace, controller)
    }

    /// Carries an action out. Exactly one answer follows, by [`next_administered`](Self::next_administered).
    pub fn administer(&mut self, ticket: AdminTicket, action: NamespaceAction) {
        let full = self.administration.works.len() >= ACTIONS_MAX;
        let planned = if full { Err(Status::INTERNAL_ERROR) } else { self.plan_action(&action) };
        let steps = match planned {
            Ok(steps) => steps,
            Err(status) => return self.administration.answer(ticket, AdminAnswer::with_status(status)),
        };
        let work = Work { ticket: Some(ticket), action, steps, in_flight: false, ending: None };
        if let NamespaceAction::Sanitize { command } = work.action {
            self.administration.sanitize.command = command;
            self.administration.sanitize_is(SanitizeState::Running(0));
        }
        self.administration.works.push_back(work);
    }

    /// The next answer for a face, with the token of its ticket.
    pub fn next_administered(&mut self, face: FaceId) -> Option<(u64, AdminAnswer)> {
        self.administration.take_answer(face)
    }

    fn plan_action(&self, action: &NamespaceAction) -> Result<VecDeque<Step>, Status> {
        if let NamespaceAction::Create { format, size } = action
            && self.bytes_for(*format, *size) > self.unallocated_bytes()
        {
            return Err(Status::NAMESPACE_INSUFFICIENT_CAPACITY);
        }
        let uuid = namespace_uuid(self.administration.identity.uuid, 0, self.utl.applied().0 + 1);
        let existing: Vec<_> = self.existing().collect();
        steps(action, &existing, uuid)
    }

    fn existing(&self) -> impl Iterator<Item = (NamespaceId, Namespace)> + '_ {
        let numbers = (1..).take(NAMESPACES).map(NamespaceId);
        numbers.filter_map(|id| Some((id, self.namespace(id)?)))
    }

    /// Bytes of records that a full namespace would take.
    fn bytes_for(&self, format: NamespaceFormat, size: u64) -> u64 {
        match format {
            NamespaceFormat::KeyValue => size,
            NamespaceFormat::Block { index } => {
                let shift = LBA_FORMAT_SHIFTS.get(usize::from(index)).copied().unwrap_or(0);
                let record = u64::from(record_units(LBA_BYTES, 1 << shift)) * UNIT_BYTES as u64;
                size.saturating_mul(record)
            }
        }
    }

    /// Bytes that no namespace was promised.
    pub(super) fn unallocated_bytes(&self) -> u64 {
        let promised = self.existing().map(|(_, namespace)| {
            let format = format_of(namespace.kind);
            self.bytes_for(format, namespace.size)
        });
        self.utl.capacity_with(0).saturating_sub(promised.fold(0, u64::saturating_add))
    }

    /// Moves the action that is first in line, and a sanitize operation. Returns whether anything moved.
    pub(super) fn run_actions(&mut self) -> bool {
        let mut moved = false;
        while let Some(completion) = self.release.pop(ADMINISTRATION_FACE) {
            self.close_step(completion);
            moved = true;
        }
        moved |= self.advance_purge();
        while let Some(work) = self.administration.works.front() {
            // One at a time: what follows may be about what this one makes. Erasing waits for nobody and nobody for it.
            if work.in_flight || (self.administration.purge.is_some() && is_sanitize(&work.action)) {
                break;
            }
            match work.steps.front().cloned() {
                None => self.finish_action(AdminAnswer::SUCCESS),
                Some((namespace, command)) => match self.submit(ADMINISTRATION_FACE, namespace, 0, command) {
                    Ok(()) => {
                        if let Some(work) = self.administration.works.front_mut() {
                            work.in_flight = true;
                        }
                    }
                    Err(SubmitError::Busy(_)) => break,
                    Err(SubmitError::Refused(status)) => self.finish_action(AdminAnswer::with_status(status)),
                },
            }
            moved = true;
        }
        moved
    }

    /// A command of the first action has its completion.
    fn close_step(&mut self, completion: Completion) {
        let Some(work) = self.administration.works.front_mut() else {
            return;
        };
        work.in_flight = false;
        work.steps.pop_front();
        if !completion.status.is_success() {
            let status = match (&work.action, completion.status) {
                (NamespaceAction::Create { .. }, Status::CAPACITY_EXCEEDED) => {
                    Status::NAMESPACE_INSUFFICIENT_CAPACITY
                }
                (_, status) => status,
            };
            return self.finish_action(AdminAnswer::with_status(status));
        }
        match work.action {
            NamespaceAction::Create { .. } => {
                self.finish_action(AdminAnswer::with_result(completion.position));
            }
            // It is marked: whatever happens now, it goes on to its end.
            NamespaceAction::Sanitize { .. } => {
                if let Some(ticket) = work.ticket.take() {
                    self.administration.answer(ticket, AdminAnswer::SUCCESS);
                }
            }
            _ => {}
        }
        self.administration.touch();
    }

    /// The first action is over.
    fn finish_action(&mut self, answer: AdminAnswer) {
        let Some(work) = self.administration.works.pop_front() else {
            return;
        };
        let success = answer.status.is_success();
        match (&work.action, work.ending) {
            (NamespaceAction::Sanitize { .. }, Some(phase)) if success => self.end_sanitize(phase),
            (NamespaceAction::Sanitize { .. }, None) if success => self.begin_purge(),
            (NamespaceAction::Sanitize { .. }, _) => self.end_sanitize(SanitizePhase::Failed),
            (NamespaceAction::LeaveSanitizeFailure, _) if success => {
                self.administration.sanitize_is(SanitizeState::Never);
            }
            _ => {}
        }
        self.administration.touch();
        if let Some(ticket) = work.ticket {
            self.administration.answer(ticket, answer);
        }
    }

    /// Everything is cleared; now the blocks that still hold bytes of it must be erased.
    fn begin_purge(&mut self) {
        let up_to = self.utl.applied();
        self.utl.end_block_for_purge();
        let blocks = self.utl.blocks_opened_by(up_to).max(1);
        self.administration.purge = Some(Purge { up_to, blocks });
    }

    fn advance_purge(&mut self) -> bool {
        let Some(Purge { up_to, blocks }) = self.administration.purge else {
            return false;
        };
        let phase = match self.utl.purge(up_to) {
            _ if self.utl.failed.is_some() => SanitizePhase::Failed,
            Ok(0) => SanitizePhase::Completed,
            Ok(left) => {
                let done = blocks.saturating_sub(left) * PROGRESS_PARTS / blocks;
                self.administration.sanitize.state =
                    SanitizeState::Running(u16::try_from(done).unwrap_or(u16::MAX - 1));
                return false;
            }
            Err(_) => SanitizePhase::Failed,
        };
        self.administration.purge = None;
        self.utl.end_purge();
        // It has ended when that cannot be lost any more: a power cut before makes it go on.
        let command = self.administration.sanitize.command;
        self.administration.works.push_back(Work {
            ticket: None,
            action: NamespaceAction::Sanitize { command },
            steps: VecDeque::from([mark(phase, command)]),
            in_flight: false,
            ending: Some(phase),
        });
        true
    }

    fn end_sanitize(&mut self, phase: SanitizePhase) {
        self.administration.sanitized_at = self.utl.stats.client_bytes;
        self.administration.sanitize_is(phase.state());
    }

    /// After a start: says what the last sanitize operation came to, and goes on with one that did not end.
    pub(super) fn resume_sanitize(&mut self) {
        let Some(FoundMark { mark: SanitizeMark { phase, command }, sequence }) = self.utl.table.sanitize()
        else {
            return;
        };
        self.administration.sanitize.command = command;
        self.administration.sanitize_is(phase.state());
        // No count says what was written since; a later sequence does. Recovery leaves one out, and after several starts
        // this may say that something was written where nothing was, never the other way round.
        let written = self.utl.applied().0 > sequence.0 + 1;
        self.administration.sanitized_at = if written { u64::MAX } else { self.utl.stats.client_bytes };
        if phase == SanitizePhase::Running {
            let action = NamespaceAction::Sanitize { command };
            // The steps of this action are possible whatever there is.
            let steps = self.plan_action(&action).unwrap_or_default();
            self.administration.works.push_back(Work {
                ticket: None,
                action,
                steps,
                in_flight: false,
                ending: None,
            });
        }
    }
}

fn is_sanitize(action: &NamespaceAction) -> bool {
    matches!(action, NamespaceAction::Sanitize { .. })
}
