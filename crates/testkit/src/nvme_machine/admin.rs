//! The execution of admin commands by the machine's controller.
//!
//! Input: fetched entries, memory that the machine reaches. Output: created or deleted queues, data in memory, a
//! completion. Invariant: a command that is held back completes with an abort, an event or a reset.

use super::NvmeMachine;
use headwater_dma::iova::IovaRange;
use headwater_nvme::controller::{
    AdminCompletion, AdminData, AdminStep, ArbiterError, CommandToken, CompletionQueueSpec, FetchedCommand,
    QueueId, QueueKind, SubmissionQueueSpec,
};
use headwater_nvme::data_pointer::HostTransfer;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;

impl NvmeMachine {
    pub(crate) fn admin(&mut self, fetched: FetchedCommand) {
        let FetchedCommand { entry, token, .. } = fetched;
        if let Some(&status) = self.faults.refused_opcodes.get(&entry.opcode) {
            return self.arbiter.complete(token, 0, status);
        }
        if entry.opcode == AdminOpcode::Abort.number() && self.faults.ignores_aborts {
            return self.held.push(FetchedCommand { entry, token, kind: QueueKind::Standard });
        }
        let data = match self.controller.admin_data(&entry) {
            Ok(AdminData::ToHost(bytes)) => Ok((self.ranges(&entry, HostTransfer::ToHost(bytes)), 0)),
            Ok(AdminData::FromHost(bytes)) => Ok((self.ranges(&entry, HostTransfer::FromHost(bytes)), bytes)),
            Ok(AdminData::None) => Ok((Ok(Vec::new()), 0)),
            Err(status) => Err(status),
        };
        let (ranges, sent) = match data {
            Ok((Ok(ranges), sent)) => (ranges, sent),
            Ok((Err(status), _)) | Err(status) => return self.arbiter.complete(token, 0, status),
        };
        let mut bytes = Vec::new();
        for range in ranges.iter().filter(|_| sent > 0) {
            let mut here = vec![0; range.bytes as usize];
            self.read_memory(range.start.0, &mut here).unwrap();
            bytes.append(&mut here);
        }
        let step = self.controller.admin(&entry, &bytes, &self.subsystem, self.now);
        self.step(step, &entry, token, &ranges);
    }

    fn step(&mut self, step: AdminStep, entry: &SubmissionEntry, token: CommandToken, ranges: &[IovaRange]) {
        let done = match step {
            AdminStep::Done(answer) => return self.answer(entry, token, &answer, ranges),
            AdminStep::Held => return self.events.push(token),
            AdminStep::CreateCompletionQueue(request) => {
                self.page.clear(request.id);
                let memory = self.ring_at(request.base, request.slots as usize * 2);
                let spec = CompletionQueueSpec { slots: request.slots, vector: request.vector };
                self.arbiter.create_completion_queue(request.id, spec, |_| memory)
            }
            AdminStep::CreateSubmissionQueue(request) => {
                let memory = self.ring_at(request.base, request.slots as usize * 8);
                let spec = SubmissionQueueSpec {
                    slots: request.slots,
                    completion: request.completion,
                    priority: request.priority,
                    kind: QueueKind::Standard,
                };
                self.arbiter.create_submission_queue(request.id, spec, |_| memory)
            }
            AdminStep::DeleteCompletionQueue(queue) => self.arbiter.delete_completion_queue(queue),
            AdminStep::DeleteSubmissionQueue(queue) => match self.arbiter.delete_submission_queue(queue) {
                Ok(()) => {
                    // Held commands are aborted, as a real device aborts commands that it has not begun.
                    let (of_queue, rest): (Vec<_>, Vec<_>) =
                        self.held.drain(..).partition(|held| held.token.queue() == queue);
                    self.held = rest;
                    for held in of_queue {
                        self.arbiter.complete(held.token, 0, Status::ABORTED_SQ_DELETION);
                    }
                    return self.deletions.push((queue, token));
                }
                Err(error) => Err(error),
            },
            AdminStep::Abort { queue, command } => {
                let aborted = self.abort(queue, command);
                return self.arbiter.complete(token, u32::from(!aborted), Status::SUCCESS);
            }
            other => panic!("the driver sends no command that leads to {other:?}"),
        };
        let status = done.map_or_else(ArbiterError::status, |()| Status::SUCCESS);
        self.arbiter.complete(token, 0, status);
    }

    fn answer(
        &mut self,
        entry: &SubmissionEntry,
        token: CommandToken,
        answer: &AdminCompletion,
        ranges: &[IovaRange],
    ) {
        if entry.opcode == AdminOpcode::SetFeatures.number() {
            self.arbiter.set_arbitration(self.controller.arbitration());
            self.arbiter.grant_queues(self.controller.io_queues(), self.controller.io_queues());
        }
        let mut rest = &answer.data[..];
        for range in ranges {
            let (here, next) = rest.split_at(rest.len().min(range.bytes as usize));
            self.write_memory(range.start.0, here).unwrap();
            rest = next;
        }
        self.arbiter.complete(token, answer.result, answer.status);
    }

    fn abort(&mut self, queue: QueueId, command: u16) -> bool {
        let is_it = |held: &FetchedCommand| held.token.queue() == queue && held.token.command_id() == command;
        match self.held.iter().position(is_it) {
            Some(at) => {
                let held = self.held.swap_remove(at);
                self.arbiter.complete(held.token, 0, Status::ABORT_REQUESTED);
                true
            }
            None => self.arbiter.abort(queue, command),
        }
    }
}
