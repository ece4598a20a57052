//! Admin commands of a guest: fetches their data, executes them on queues or namespaces, posts their completions.
//!
//! Input: entries of the admin queue. Output: their completions, immediate or after the requested change.

use super::GuestController;
use super::ring_ranges::RingUse;
use crate::vfio_user::data;
use crate::vfio_user::in_flight_command::GuestCommand;
use crate::vfio_user::layout::VECTORS;
use headwater_dma::iova::{ClientMemory, ClientSegments, Iova};
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_nvme::controller::admin::{CompletionQueueRequest, SubmissionQueueRequest};
use headwater_nvme::controller::{
    AdminCompletion, AdminData, AdminStep, ArbiterError, CommandToken, CompletionQueueSpec, DoorbellCells,
    FetchedCommand, QueueKind, SubmissionQueueSpec,
};
use headwater_nvme::data_pointer::HostTransfer;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::engine::administration::AdminTicket;
use headwater_ssd::media::Media;

/// Words of a buffer of Doorbell Buffer Config: one page.
const BUFFER_WORDS: usize = 512;

impl GuestController {
    /// Executes an admin command.
    pub(super) fn start_admin<M: Media>(
        &mut self,
        device: &mut SsdDevice<M>,
        memory: &ClientMemory,
        fetched: FetchedCommand,
        now: Nanos,
    ) {
        let FetchedCommand { entry, token, .. } = fetched;
        let (buffer, sent) = match self.fetch_data(&entry, memory) {
            Ok(data) => data,
            Err(status) => {
                self.controller.record_error(
                    token.queue(),
                    token.command_id(),
                    entry.namespace.get(),
                    status,
                );
                return self.arbiter.complete(token, 0, status);
            }
        };
        match self.controller.admin(&entry, &sent, device, now) {
            AdminStep::Done(answer) => {
                if entry.opcode == AdminOpcode::SetFeatures.number() {
                    self.apply_features();
                }
                self.complete_admin(token, &answer, &buffer);
            }
            AdminStep::Held => self.event_requests.push(token),
            AdminStep::Namespace(action) => {
                device.administer(
                    AdminTicket { front_end: self.front_end_id, token: self.in_flight.next() },
                    action,
                );
                self.in_flight.insert(GuestCommand::Admin(token));
            }
            AdminStep::Abort { queue, command } => {
                let aborted = self.abort(device, queue, command);
                // Bit 0: not aborted.
                self.arbiter.complete(token, u32::from(!aborted), Status::SUCCESS);
            }
            step => self.change_queues(step, memory, token),
        }
    }

    /// Returns the buffer of a command, and a copy of the data that the guest sends in it.
    fn fetch_data(
        &mut self,
        entry: &SubmissionEntry,
        memory: &ClientMemory,
    ) -> Result<(ClientSegments, Vec<u8>), Status> {
        let (transfer, sent) = match self.controller.admin_data(entry)? {
            AdminData::None => return Ok((ClientSegments::default(), Vec::new())),
            AdminData::FromHost(bytes) => (HostTransfer::FromHost(bytes), bytes),
            AdminData::ToHost(bytes) => (HostTransfer::ToHost(bytes), 0),
        };
        let buffer = self.data_resolver.resolve_entry(entry, transfer, memory)?;
        let mut bytes = vec![0; sent as usize];
        if buffer.copy_in(0, &mut bytes) != bytes.len() {
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        Ok((buffer, bytes))
    }

    fn complete_admin(&mut self, token: CommandToken, answer: &AdminCompletion, buffer: &ClientSegments) {
        let whole = buffer.copy_out(0, &answer.data) == answer.data.len();
        let status = if whole { answer.status } else { Status::DATA_TRANSFER_ERROR };
        self.arbiter.complete(token, answer.result, status);
    }

    /// Executes steps on queues and doorbells.
    fn change_queues(&mut self, step: AdminStep, memory: &ClientMemory, token: CommandToken) {
        let done = match step {
            AdminStep::CreateCompletionQueue(request) => self.create_completion_queue(&request, memory),
            AdminStep::CreateSubmissionQueue(request) => self.create_submission_queue(&request, memory),
            AdminStep::DeleteCompletionQueue(queue) => {
                let deleted = self.arbiter.delete_completion_queue(queue);
                deleted.inspect(|()| self.ring_ranges.remove(RingUse::Completion(queue)))
            }
            AdminStep::DeleteSubmissionQueue(queue) => match self.arbiter.delete_submission_queue(queue) {
                Ok(()) => return self.deletions.push((queue, token)),
                Err(error) => Err(error),
            },
            AdminStep::DoorbellBuffer { shadow, event_index } => {
                let shared = self.share_doorbells(shadow, event_index, memory);
                let status = if shared.is_some() { Status::SUCCESS } else { Status::INVALID_FIELD };
                return self.arbiter.complete(token, 0, status);
            }
            AdminStep::Done(_) | AdminStep::Held | AdminStep::Namespace(_) | AdminStep::Abort { .. } => {
                Ok(())
            }
        };
        let status = done.map_or_else(ArbiterError::status, |()| Status::SUCCESS);
        self.arbiter.complete(token, 0, status);
    }

    fn create_completion_queue(
        &mut self,
        request: &CompletionQueueRequest,
        memory: &ClientMemory,
    ) -> Result<(), ArbiterError> {
        let spec = CompletionQueueSpec { slots: request.slots, vector: request.vector };
        let (usage, mut bytes) = (RingUse::Completion(request.id), 0);
        let place = resolve_ring(memory, request.base, &mut bytes);
        let created = self.arbiter.create_completion_queue(request.id, spec, place);
        created.inspect(|()| self.ring_ranges.record(usage, Iova(request.base), bytes))
    }

    fn create_submission_queue(
        &mut self,
        request: &SubmissionQueueRequest,
        memory: &ClientMemory,
    ) -> Result<(), ArbiterError> {
        let spec = SubmissionQueueSpec {
            slots: request.slots,
            completion: request.completion,
            priority: request.priority,
            kind: QueueKind::Standard,
        };
        let (usage, mut bytes) = (RingUse::Submission(request.id), 0);
        let place = resolve_ring(memory, request.base, &mut bytes);
        let created = self.arbiter.create_submission_queue(request.id, spec, place);
        created.inspect(|()| self.ring_ranges.record(usage, Iova(request.base), bytes))
    }

    /// Executes Doorbell Buffer Config (NVMe Base 2.0 section 5.8); `None` if the pages are not in guest memory.
    fn share_doorbells(&mut self, shadow: u64, event_index: u64, memory: &ClientMemory) -> Option<()> {
        let doorbells = self.ring_at(RingUse::Doorbells, memory, shadow, BUFFER_WORDS)?;
        let events = Some(self.ring_at(RingUse::Events, memory, event_index, BUFFER_WORDS)?);
        self.arbiter.set_doorbell_cells(DoorbellCells { doorbells, events, stride_log2: 0 });
        tracing::info!("the guest's doorbells are in its memory");
        Some(())
    }

    /// Applies the features that concern queues, after Set Features.
    fn apply_features(&mut self) {
        let Self { controller, arbiter, .. } = self;
        arbiter.set_arbitration(controller.arbitration());
        arbiter.set_coalescing(controller.coalescing());
        arbiter.grant_queues(controller.io_queues(), controller.io_queues());
        for vector in 0..VECTORS {
            // The arbiter has every vector of the function.
            let _ = arbiter.set_vector_coalescing(vector, controller.vector_coalescing(vector));
        }
    }
}

/// Returns a function that resolves the memory of a ring and sets its length in bytes.
fn resolve_ring<'a>(
    memory: &'a ClientMemory,
    base: u64,
    bytes: &'a mut u64,
) -> impl FnOnce(usize) -> Option<SharedMemoryWords> + 'a {
    move |words| {
        *bytes = u64::try_from(words).ok()?.checked_mul(8)?;
        data::ring_words(memory, Iova(base), words)
    }
}
