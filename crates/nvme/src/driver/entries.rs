//! Admin submission entries that a host builds (NVMe Base 2.0 section 5).
//!
//! Input: numbers. Output: entries without a command id. The controller side reads the same fields in
//! [`spec::admin`](crate::spec::admin).

use crate::spec::command::SubmissionEntry;
use crate::spec::feature::FeatureId;
use crate::spec::identify::IdentifyView;
use crate::spec::opcode::AdminOpcode;
use crate::spec::priority::QueuePriority;
use zerocopy::little_endian::{U32, U64};

/// PC: the queue is physically contiguous. IEN: the completion queue interrupts.
const CONTIGUOUS: u32 = 1;
const INTERRUPTS: u32 = 1 << 1;

fn entry(opcode: AdminOpcode, namespace: u32, dwords: [u32; 2]) -> SubmissionEntry {
    SubmissionEntry {
        opcode: opcode.number(),
        namespace: U32::new(namespace),
        cdw10: U32::new(dwords[0]),
        cdw11: U32::new(dwords[1]),
        ..SubmissionEntry::default()
    }
}

/// Builds Identify (5.17).
pub(super) fn identify(view: IdentifyView, namespace: u32, command_set: u8) -> SubmissionEntry {
    entry(AdminOpcode::Identify, namespace, [u32::from(view.number()), u32::from(command_set) << 24])
}

/// Builds Identify with controller identifier FFFFh: the controller that processes the command.
pub(super) fn identify_own(view: IdentifyView) -> SubmissionEntry {
    entry(AdminOpcode::Identify, 0, [u32::from(view.number()) | 0xFFFF << 16, 0])
}

/// Builds Set Features (5.27) without the save bit.
pub(super) fn set_feature(feature: FeatureId, value: u32) -> SubmissionEntry {
    entry(AdminOpcode::SetFeatures, 0, [u32::from(feature.number()), value])
}

/// Builds Get Log Page (5.16) with RAE 0, which clears the page's event.
pub(super) fn log_page(page: u8, bytes: u32) -> SubmissionEntry {
    entry(AdminOpcode::GetLogPage, u32::MAX, [u32::from(page) | (bytes / 4 - 1) << 16, 0])
}

/// Builds Asynchronous Event Request (5.2).
pub(super) fn event_request() -> SubmissionEntry {
    entry(AdminOpcode::AsyncEventRequest, 0, [0, 0])
}

/// Builds Abort (5.1).
pub(super) fn abort(queue: u16, command: u16) -> SubmissionEntry {
    entry(AdminOpcode::Abort, 0, [u32::from(command) << 16 | u32::from(queue), 0])
}

/// Builds Create I/O Completion Queue (5.4).
pub(super) fn create_completion_queue(
    queue: u16,
    slots: u32,
    base: u64,
    vector: Option<u16>,
) -> SubmissionEntry {
    let interrupts = vector.map_or(0, |vector| u32::from(vector) << 16 | INTERRUPTS);
    let mut entry = entry(
        AdminOpcode::CreateCompletionQueue,
        0,
        [(slots - 1) << 16 | u32::from(queue), interrupts | CONTIGUOUS],
    );
    entry.prp1 = U64::new(base);
    entry
}

/// Builds Create I/O Submission Queue (5.5) on the completion queue of the same number.
pub(super) fn create_submission_queue(
    queue: u16,
    slots: u32,
    base: u64,
    priority: QueuePriority,
) -> SubmissionEntry {
    let cdw11 = u32::from(queue) << 16 | priority.to_bits() << 1 | CONTIGUOUS;
    let mut entry =
        entry(AdminOpcode::CreateSubmissionQueue, 0, [(slots - 1) << 16 | u32::from(queue), cdw11]);
    entry.prp1 = U64::new(base);
    entry
}

/// Builds Delete I/O Submission Queue (5.7).
pub(super) fn delete_submission_queue(queue: u16) -> SubmissionEntry {
    entry(AdminOpcode::DeleteSubmissionQueue, 0, [u32::from(queue), 0])
}

/// Builds Delete I/O Completion Queue (5.6).
pub(super) fn delete_completion_queue(queue: u16) -> SubmissionEntry {
    entry(AdminOpcode::DeleteCompletionQueue, 0, [u32::from(queue), 0])
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::spec::admin::{CreateQueueDwords, IdentifyDwords, LogDwords, halves};

    #[test]
    fn controller_decodes_every_entry_that_the_host_builds() {
        let create = CreateQueueDwords::from_entry(&create_completion_queue(7, 65_536, 0x1000, Some(5)));
        assert_eq!((create.id, create.slots, create.vector_or_completion_queue), (7, 65_536, 5));
        assert!(create.is_contiguous && create.interrupts_enabled);
        assert!(!CreateQueueDwords::from_entry(&create_completion_queue(7, 2, 0, None)).interrupts_enabled);
        for priority in
            [QueuePriority::Urgent, QueuePriority::High, QueuePriority::Medium, QueuePriority::Low]
        {
            let create = CreateQueueDwords::from_entry(&create_submission_queue(3, 2, 0x2000, priority));
            assert_eq!((create.id, create.vector_or_completion_queue, create.slots), (3, 3, 2));
            assert_eq!(QueuePriority::from_bits(create.priority), priority);
        }
        let log = LogDwords::from_entry(&log_page(4, 4_096));
        assert_eq!((log.page, log.dwords, log.retains_event), (4, 1_024, false));
        let own = IdentifyDwords::from_entry(&identify_own(IdentifyView::CommandSetCombinations));
        assert_eq!((own.view, own.controller), (0x1C, 0xFFFF));
        assert_eq!(
            IdentifyDwords::from_entry(&identify(IdentifyView::CommandSetNamespace, 1, 1)).command_set,
            1
        );
        assert_eq!(halves(abort(3, 9).cdw10.get()), [3, 9]);
    }
}
