//! Validation of commands that create and delete I/O queues (NVMe Base 2.0 sections 5.4 to 5.8) by the controller
//! alone.

use crate::host::{AdminHost, ENABLE_ALL_SETS, command};
use headwater_nvme::controller::admin::{CompletionQueueRequest, SubmissionQueueRequest};
use headwater_nvme::controller::{AdminStep, ControllerConfig, QueueId};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::priority::QueuePriority;
use headwater_nvme::spec::status::Status;
use zerocopy::little_endian::U64;

const CQ: AdminOpcode = AdminOpcode::CreateCompletionQueue;
const SQ: AdminOpcode = AdminOpcode::CreateSubmissionQueue;

fn create(opcode: AdminOpcode, dwords: [u32; 2], base: u64) -> SubmissionEntry {
    SubmissionEntry { prp1: U64::new(base), ..command(opcode, 0, dwords) }
}

#[test]
fn valid_queue_commands_become_steps() {
    let mut host = AdminHost::new();
    let step = host.step(&create(CQ, [0x001F_0003, 0x0002_0003], 0x7000), &[]);
    let request = CompletionQueueRequest { id: QueueId(3), base: 0x7000, slots: 32, vector: Some(2) };
    assert_eq!(step, AdminStep::CreateCompletionQueue(request));
    let step = host.step(&create(CQ, [0x001F_0003, 0x0002_0001], 0x7000), &[]);
    assert_eq!(step, AdminStep::CreateCompletionQueue(CompletionQueueRequest { vector: None, ..request }));
    let step = host.step(&create(SQ, [0x000F_0005, 0x0003_0005], 0x9000), &[]);
    assert_eq!(
        step,
        AdminStep::CreateSubmissionQueue(SubmissionQueueRequest {
            id: QueueId(5),
            completion: QueueId(3),
            base: 0x9000,
            slots: 16,
            priority: QueuePriority::Medium,
        })
    );
    let step = host.step(&command(AdminOpcode::DeleteSubmissionQueue, 0, [5, 0]), &[]);
    assert_eq!(step, AdminStep::DeleteSubmissionQueue(QueueId(5)));
    let step = host.step(&command(AdminOpcode::DeleteCompletionQueue, 0, [3, 0]), &[]);
    assert_eq!(step, AdminStep::DeleteCompletionQueue(QueueId(3)));
}

#[test]
fn invalid_queue_commands_are_refused_with_their_status() {
    let mut host = AdminHost::new();
    for opcode in [CQ, SQ] {
        let companion = 0x0001_0001;
        for (dwords, base, status) in [
            ([0x000F_0000, companion], 0, Status::INVALID_QUEUE_ID),
            ([0x000F_0021, companion], 0, Status::INVALID_QUEUE_ID),
            ([0x0000_0001, companion], 0, Status::INVALID_QUEUE_SIZE),
            ([0x0400_0001, companion], 0, Status::INVALID_QUEUE_SIZE),
            ([0x000F_0001, companion & !1], 0, Status::INVALID_FIELD),
            ([0x000F_0001, companion], 0x7004, Status::PRP_OFFSET_INVALID),
        ] {
            assert_eq!(host.status(&create(opcode, dwords, base), &[]), status, "{opcode:?} {dwords:x?}");
        }
    }
    let vector_33 = create(CQ, [0x000F_0001, 0x0021_0003], 0);
    assert_eq!(host.status(&vector_33, &[]), Status::INVALID_INTERRUPT_VECTOR);
    for completion in [0, 33] {
        let entry = create(SQ, [0x000F_0001, completion << 16 | 1], 0);
        assert_eq!(host.status(&entry, &[]), Status::INVALID_QUEUE_ID);
    }
    for opcode in [AdminOpcode::DeleteSubmissionQueue, AdminOpcode::DeleteCompletionQueue] {
        for id in [0, 33] {
            assert_eq!(host.status(&command(opcode, 0, [id, 0]), &[]), Status::INVALID_QUEUE_ID);
        }
    }
}

#[test]
fn queues_cannot_be_created_before_entry_sizes_are_set() {
    let mut host = AdminHost::with(ControllerConfig::pcie(1), 0x0000_0061);
    for opcode in [CQ, SQ] {
        let entry = create(opcode, [0x000F_0001, 0x0001_0001], 0);
        assert_eq!(host.status(&entry, &[]), Status::INVALID_QUEUE_SIZE);
    }
    let _ = host.controller.write_register(0x14, 4, ENABLE_ALL_SETS, host.now);
    let step = host.step(&create(CQ, [0x000F_0001, 0x0001_0001], 0), &[]);
    assert!(matches!(step, AdminStep::CreateCompletionQueue(_)));
}

#[test]
fn number_of_queues_is_fixed_by_the_first_queue_and_limits_ids() {
    let mut host = AdminHost::new();
    assert_eq!(host.set(0x07, 0, 0x0003_0003), Ok(0x0003_0003));
    assert_eq!(host.set(0x07, 0, 0x0FFF_0FFF), Ok(0x001F_001F), "at most the maximum");
    assert_eq!(host.set(0x07, 0, 0x0001_FFFF), Err(Status::INVALID_FIELD));
    assert_eq!(host.set(0x07, 0, 0x0001_0001), Ok(0x0001_0001));
    let third = create(CQ, [0x000F_0003, 0x0001_0001], 0);
    assert_eq!(host.status(&third, &[]), Status::INVALID_QUEUE_ID);
    let second = create(CQ, [0x000F_0002, 0x0001_0001], 0);
    assert!(matches!(host.step(&second, &[]), AdminStep::CreateCompletionQueue(_)));
    assert_eq!(host.set(0x07, 0, 0x0001_0001), Err(Status::COMMAND_SEQUENCE_ERROR));
    assert_eq!(host.get(0x07, 0, 0), Ok(0x0001_0001));
}

#[test]
fn doorbell_buffers_are_two_pages() {
    let mut host = AdminHost::new();
    let config = |shadow, events| SubmissionEntry {
        prp1: U64::new(shadow),
        prp2: U64::new(events),
        ..command(AdminOpcode::DoorbellBufferConfig, 0, [0, 0])
    };
    let step = host.step(&config(0x1000, 0x2000), &[]);
    assert_eq!(step, AdminStep::DoorbellBuffer { shadow: 0x1000, event_index: 0x2000 });
    for (shadow, events) in [(0x1004, 0x2000), (0x1000, 0x2008), (0x1000, 0x1000)] {
        assert_eq!(host.status(&config(shadow, events), &[]), Status::INVALID_FIELD);
    }
}

#[test]
fn fabrics_controllers_have_no_queue_commands() {
    let mut host = AdminHost::with(ControllerConfig::fabrics(1), ENABLE_ALL_SETS);
    for opcode in [
        CQ,
        SQ,
        AdminOpcode::DeleteCompletionQueue,
        AdminOpcode::DeleteSubmissionQueue,
        AdminOpcode::DoorbellBufferConfig,
    ] {
        assert_eq!(host.status(&command(opcode, 0, [1, 1]), &[]), Status::INVALID_OPCODE);
    }
}

#[test]
fn unsupported_commands_are_an_invalid_opcode() {
    let mut host = AdminHost::new();
    // Firmware, self-test, directives, virtualization, MI, security, vendor commands.
    for opcode in [0x03, 0x10, 0x11, 0x14, 0x19, 0x1A, 0x1C, 0x1D, 0x1E, 0x7F, 0x81, 0x82, 0x86, 0xC0, 0xFF] {
        let mut entry = command(AdminOpcode::Identify, 0, [0, 0]);
        entry.opcode = opcode;
        assert_eq!(host.status(&entry, &[]), Status::INVALID_OPCODE, "{opcode:x}");
    }
}
