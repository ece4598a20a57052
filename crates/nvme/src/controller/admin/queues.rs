//! Validation of commands that create and delete I/O queues, as far as possible without the queues (NVMe Base 2.0
//! sections 5.3 to 5.7, and 5.8 "Doorbell Buffer Config").
//!
//! Input: an entry. Output: a request with validated numbers. The owner of the queues checks that a queue exists.

use super::{AdminStep, CompletionQueueRequest, DeviceController, SubmissionQueueRequest};
use crate::controller::queue::QueueId;
use crate::spec::admin::{CreateQueueDwords, halves};
use crate::spec::command::SubmissionEntry;
use crate::spec::priority::QueuePriority;
use crate::spec::register::{COMPLETION_ENTRY_SHIFT, SUBMISSION_ENTRY_SHIFT};
use crate::spec::status::Status;

const PAGE_OFFSET: u64 = 0xFFF;

impl DeviceController {
    pub(super) fn create_completion_queue(&mut self, entry: &SubmissionEntry) -> Result<AdminStep, Status> {
        let fields = CreateQueueDwords::from_entry(entry);
        let chosen = self.configuration().completion_entry_shift() == COMPLETION_ENTRY_SHIFT;
        self.check_queue(&fields, entry, chosen)?;
        let vector = fields.interrupts_enabled.then_some(fields.vector_or_completion_queue);
        if vector.is_some_and(|vector| vector >= self.config.interrupt_vectors) {
            return Err(Status::INVALID_INTERRUPT_VECTOR);
        }
        self.queues_created = true;
        Ok(AdminStep::CreateCompletionQueue(CompletionQueueRequest {
            id: QueueId(fields.id),
            base: entry.prp1.get(),
            slots: fields.slots,
            vector,
        }))
    }

    pub(super) fn create_submission_queue(&mut self, entry: &SubmissionEntry) -> Result<AdminStep, Status> {
        let fields = CreateQueueDwords::from_entry(entry);
        let chosen = self.configuration().submission_entry_shift() == SUBMISSION_ENTRY_SHIFT;
        self.check_queue(&fields, entry, chosen)?;
        if !self.is_io_queue(fields.vector_or_completion_queue) {
            return Err(Status::INVALID_QUEUE_ID);
        }
        self.queues_created = true;
        Ok(AdminStep::CreateSubmissionQueue(SubmissionQueueRequest {
            id: QueueId(fields.id),
            completion: QueueId(fields.vector_or_completion_queue),
            base: entry.prp1.get(),
            slots: fields.slots,
            priority: QueuePriority::from_bits(fields.priority),
        }))
    }

    /// Returns the queue that a delete command names.
    pub(super) fn io_queue(&self, entry: &SubmissionEntry) -> Result<QueueId, Status> {
        let [id, _] = halves(entry.cdw10.get());
        if self.is_io_queue(id) { Ok(QueueId(id)) } else { Err(Status::INVALID_QUEUE_ID) }
    }

    /// Validates the fields of a create command. `entry_size_chosen`: the host has set CC.IOSQES or CC.IOCQES.
    fn check_queue(
        &self,
        fields: &CreateQueueDwords,
        entry: &SubmissionEntry,
        entry_size_chosen: bool,
    ) -> Result<(), Status> {
        if !self.is_io_queue(fields.id) {
            return Err(Status::INVALID_QUEUE_ID);
        }
        if !entry_size_chosen || !(2..=self.config.queue_slots_max).contains(&fields.slots) {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        // CAP.CQR: queues must be contiguous.
        if !fields.is_contiguous {
            return Err(Status::INVALID_FIELD);
        }
        if entry.prp1.get() & PAGE_OFFSET != 0 {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        Ok(())
    }

    fn is_io_queue(&self, id: u16) -> bool {
        (1..=self.io_queues()).contains(&id)
    }
}

/// Validates Doorbell Buffer Config (5.8): both buffers are one page each.
pub(super) fn doorbell_buffer(entry: &SubmissionEntry) -> Result<AdminStep, Status> {
    let (shadow, event_index) = (entry.prp1.get(), entry.prp2.get());
    if (shadow | event_index) & PAGE_OFFSET != 0 || shadow == event_index {
        return Err(Status::INVALID_FIELD);
    }
    Ok(AdminStep::DoorbellBuffer { shadow, event_index })
}
