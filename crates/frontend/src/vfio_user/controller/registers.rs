//! BAR0 of a guest's controller: registers, and the side effects of writes.
//!
//! Input: register accesses and doorbells. Output: values; queues created and removed. Invariant: the controller
//! reports that it is disabled (CSTS.RDY 0) only when no command in flight accesses the guest's memory.

use super::GuestController;
use super::ring_ranges::RingUse;
use crate::vfio_user::data;
use crate::vfio_user::function;
use headwater_dma::iova::{ClientMemory, Iova};
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_nvme::controller::{AdminQueueAddresses, AdminQueues, QueueId, RegisterEffect};
use headwater_nvme::ring::QueueSlots;
use headwater_nvme::spec::command::SUBMISSION_WORDS;
use headwater_nvme::spec::completion::COMPLETION_WORDS;

/// The registers behind BAR0, at a point in time.
#[derive(Debug)]
pub struct GuestRegisters<'a> {
    guest: &'a mut GuestController,
    now: Nanos,
}

impl GuestController {
    /// Returns its registers.
    pub fn registers(&mut self, now: Nanos) -> GuestRegisters<'_> {
        GuestRegisters { guest: self, now }
    }

    /// Creates the admin queues; `None` if they are not in guest memory.
    fn enable(&mut self, places: &AdminQueueAddresses, memory: &ClientMemory) -> Option<()> {
        self.arbiter.reset(self.controller.queue_arbitration());
        let submission_slots = QueueSlots::new(places.submission_slots).ok()?;
        let completion_slots = QueueSlots::new(places.completion_slots).ok()?;
        let submission_words = usize::try_from(submission_slots.get()).ok()? * SUBMISSION_WORDS;
        let completion_words = usize::try_from(completion_slots.get()).ok()? * COMPLETION_WORDS;
        let pair = AdminQueues {
            submission: self.ring_at(
                RingUse::Submission(QueueId::ADMIN),
                memory,
                places.submission_base,
                submission_words,
            )?,
            submission_slots,
            completion: self.ring_at(
                RingUse::Completion(QueueId::ADMIN),
                memory,
                places.completion_base,
                completion_words,
            )?,
            completion_slots,
            vector: Some(0),
        };
        self.arbiter.create_admin_queues(pair).ok()
    }

    /// Resolves the memory of a queue and records its range.
    pub(super) fn ring_at(
        &mut self,
        usage: RingUse,
        memory: &ClientMemory,
        base: u64,
        words: usize,
    ) -> Option<SharedMemoryWords> {
        let ring = data::ring_words(memory, Iova(base), words)?;
        self.ring_ranges.record(usage, Iova(base), u64::try_from(words).ok()?.checked_mul(8)?);
        Some(ring)
    }
}

impl function::BarRegisters for GuestRegisters<'_> {
    fn read(&mut self, offset: u16, bytes: usize) -> u64 {
        self.guest.controller.read_register(u32::from(offset), width(bytes))
    }

    fn write(&mut self, offset: u16, bytes: usize, value: u64, memory: &ClientMemory) {
        let guest = &mut *self.guest;
        match guest.controller.write_register(u32::from(offset), width(bytes), value, self.now) {
            RegisterEffect::None | RegisterEffect::InterruptMask => {}
            RegisterEffect::Enable(places) => match guest.enable(&places, memory) {
                Some(()) => guest.controller.complete_enable(),
                None => {
                    guest.remove_queues();
                    guest.controller.fail();
                }
            },
            RegisterEffect::Disable => {
                guest.remove_queues();
                guest.resetting = true;
            }
            RegisterEffect::SubsystemReset => {
                guest.controller.reset_with_subsystem(self.now);
                guest.remove_queues();
                guest.resetting = true;
            }
            RegisterEffect::Shutdown(_) => guest.shutting_down = true,
        }
    }

    fn submission_tail(&mut self, queue: u16, value: u32) {
        if self.guest.controller.is_ready()
            && let Err(error) = self.guest.arbiter.write_submission_doorbell(QueueId(queue), value)
        {
            self.guest.report_doorbell_error(error);
        }
    }

    fn completion_head(&mut self, queue: u16, value: u32) {
        if self.guest.controller.is_ready()
            && let Err(error) = self.guest.arbiter.write_completion_doorbell(QueueId(queue), value)
        {
            self.guest.report_doorbell_error(error);
        }
    }

    fn reset(&mut self) {
        self.guest.abandon();
    }

    fn is_quiet(&self) -> bool {
        self.guest.is_quiet()
    }

    fn unmapped(&mut self, start: Iova, bytes: u64) {
        if self.guest.ring_ranges.overlaps(start, bytes) {
            tracing::warn!(
                start = start.0,
                bytes,
                "the guest unmapped memory of its queues; its controller fails"
            );
            self.guest.remove_queues();
            self.guest.controller.fail();
        }
    }
}

/// Returns the access width: 4 or 8 bytes.
fn width(bytes: usize) -> u32 {
    if bytes == 8 { 8 } else { 4 }
}
