//! Tests of doorbells in memory (Doorbell Buffer Config): when a register write is needed as a notification.

use crate::guest::{
    ShadowDoorbells, admin, completion, controller, serve, submission, submission_spec, try_completion,
    try_submission,
};
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::{HeapWords, RingMemory as _};
use headwater_nvme::controller::{
    DoorbellCells, DoorbellError, QueueArbiter, QueueArbitration, QueueId, QueueState,
};
use headwater_nvme::queue_pair::SleepDecision;
use headwater_nvme::ring::DoorbellName;
use headwater_nvme::spec::status::Status;

const OK: Status = Status::SUCCESS;
/// Cells of one page.
const CELLS: usize = 1_024;

/// Shares the guest's two pages with the controller.
fn share(arbiter: &mut QueueArbiter<HeapWords>, stride_log2: u8) -> ShadowDoorbells<HeapWords> {
    let shadow = ShadowDoorbells { doorbells: HeapWords::zeroed(CELLS), events: HeapWords::zeroed(CELLS) };
    arbiter.set_doorbell_cells(DoorbellCells {
        doorbells: shadow.doorbells.clone(),
        events: Some(shadow.events.clone()),
        stride_log2,
    });
    shadow
}

#[test]
fn awake_controller_needs_no_register_writes() {
    for slots in [2, 3, 8, 64] {
        let mut arbiter = controller();
        let shadow = share(&mut arbiter, 0);
        let mut answers = completion(&mut arbiter, 1, slots, None);
        let mut queue = submission(&mut arbiter, 1, submission_spec(slots, 1));
        (queue.doorbell.shadow, answers.doorbell.shadow) = (Some(shadow.clone()), Some(shadow));
        let max = u16::try_from(slots - 1).unwrap();
        for round in 0..400_u16 {
            let batch = round % max + 1;
            (0..batch).for_each(|id| assert!(!queue.submit(&mut arbiter, id), "round {round} of {slots}"));
            assert_eq!(serve(&mut arbiter), usize::from(batch));
            assert_eq!(answers.reap(&mut arbiter).len(), usize::from(batch));
        }
        assert_eq!((queue.doorbell.register_writes, answers.doorbell.register_writes), (0, 0));
    }
}

#[test]
fn sleeping_controller_is_notified_by_the_next_command_only() {
    let mut arbiter = controller();
    let shadow = share(&mut arbiter, 0);
    let mut answers = completion(&mut arbiter, 1, 4, None);
    let mut queue = submission(&mut arbiter, 1, submission_spec(4, 1));
    (queue.doorbell.shadow, answers.doorbell.shadow) = (Some(shadow.clone()), Some(shadow));
    for round in 0..20 {
        assert_eq!(arbiter.prepare_sleep(), SleepDecision::UntilWoken);
        assert!(queue.submit(&mut arbiter, 1), "round {round}: the controller sleeps");
        assert!(!queue.submit(&mut arbiter, 2), "the controller was notified already");
        assert_eq!(arbiter.prepare_sleep(), SleepDecision::WorkPending, "there is work");
        assert_eq!(serve(&mut arbiter), 2);
        assert_eq!(answers.reap(&mut arbiter).len(), 2);
    }
    assert_eq!(answers.doorbell.register_writes, 0, "no completion waits for slots");
}

#[test]
fn controller_with_waiting_completions_is_notified_when_slots_are_released() {
    let mut arbiter = controller();
    let shadow = share(&mut arbiter, 0);
    let mut answers = completion(&mut arbiter, 1, 2, None);
    let mut queue = submission(&mut arbiter, 1, submission_spec(4, 1));
    (queue.doorbell.shadow, answers.doorbell.shadow) = (Some(shadow.clone()), Some(shadow));
    queue.submit_all(&mut arbiter, 0..2);
    assert_eq!(serve(&mut arbiter), 2);
    assert_eq!(arbiter.queue(QueueId(1)).unwrap().unposted(), 1);
    assert_eq!(arbiter.prepare_sleep(), SleepDecision::UntilWoken, "only the guest can free slots");
    assert_eq!(answers.take().unwrap().command_id.get(), 0);
    assert!(answers.ring(&mut arbiter), "the controller sleeps");
    assert_eq!(arbiter.prepare_sleep(), SleepDecision::WorkPending, "the guest made room");
    arbiter.fire_interrupts(Nanos(0), |_| ());
    assert_eq!(answers.reap(&mut arbiter), [(1, 1, OK)]);
}

#[test]
fn existing_queues_move_to_memory_with_their_doorbell_values() {
    let mut arbiter = controller();
    let (mut admin_queue, mut admin_answers) = admin(&mut arbiter, 4);
    let mut answers = completion(&mut arbiter, 1, 8, None);
    let mut queue = submission(&mut arbiter, 1, submission_spec(8, 1));
    queue.submit_all(&mut arbiter, 0..5);
    assert_eq!(serve(&mut arbiter), 5);
    assert_eq!(answers.reap(&mut arbiter).len(), 5);
    queue.submit(&mut arbiter, 5);
    let shadow = share(&mut arbiter, 0);
    assert_eq!(shadow.doorbells.load_cell_acquire(2), 6);
    assert_eq!(shadow.doorbells.load_cell_acquire(3), 5);
    (queue.doorbell.shadow, answers.doorbell.shadow) = (Some(shadow.clone()), Some(shadow.clone()));
    assert!(!queue.submit(&mut arbiter, 6));
    assert_eq!(serve(&mut arbiter), 2);
    assert_eq!(answers.reap(&mut arbiter), [(1, 5, OK), (1, 6, OK)]);
    // The guest's driver writes no cells for the admin queue.
    assert!(admin_queue.submit(&mut arbiter, 1));
    assert_eq!(serve(&mut arbiter), 1);
    assert_eq!(admin_answers.reap(&mut arbiter), [(0, 1, OK)]);
    assert_eq!(shadow.doorbells.load_cell_acquire(0), 0);
}

#[test]
fn cells_of_a_queue_created_later_are_zeroed() {
    let mut arbiter = controller();
    let shadow = share(&mut arbiter, 0);
    shadow.doorbells.store_cell_release(4, 3);
    shadow.doorbells.store_cell_release(5, 3);
    try_completion(&mut arbiter, 2, 4).unwrap();
    try_submission(&mut arbiter, 2, 4, 2).unwrap();
    assert!(arbiter.fetch().is_none());
    assert_eq!(arbiter.take_doorbell_error(), None);
    assert_eq!(shadow.doorbells.load_cell_acquire(4), 0);
    assert_eq!(shadow.doorbells.load_cell_acquire(5), 0);
}

#[test]
fn cells_follow_the_stride_and_queues_beyond_the_page_keep_registers() {
    let mut arbiter = controller();
    // 128 cells between two doorbells: queue 3's tail is cell 768, its head cell 896, queue 4's tail lies outside.
    let shadow = share(&mut arbiter, 7);
    let _answers = completion(&mut arbiter, 3, 4, None);
    let _near = submission(&mut arbiter, 3, submission_spec(4, 3));
    let mut far = submission(&mut arbiter, 4, submission_spec(4, 3));
    shadow.doorbells.store_cell_release(768, 2);
    assert_eq!(serve(&mut arbiter), 2);
    assert!(far.submit(&mut arbiter, 7));
    arbiter.write_completion_doorbell(QueueId(3), 0).unwrap();
    assert_eq!(serve(&mut arbiter), 1);
}

#[test]
fn invalid_cell_is_reported_once_and_stops_only_its_queue() {
    let mut arbiter = controller();
    let shadow = share(&mut arbiter, 0);
    let mut answers = completion(&mut arbiter, 1, 4, None);
    let mut honest = submission(&mut arbiter, 2, submission_spec(4, 1));
    try_submission(&mut arbiter, 1, 4, 1).unwrap();
    (honest.doorbell.shadow, answers.doorbell.shadow) = (Some(shadow.clone()), Some(shadow.clone()));
    shadow.doorbells.store_cell_release(2, 0x1_0001);
    honest.submit(&mut arbiter, 1);
    assert_eq!(serve(&mut arbiter), 1);
    match arbiter.take_doorbell_error() {
        Some(DoorbellError::Value { queue, fault }) => {
            assert_eq!((queue, fault.doorbell), (QueueId(1), DoorbellName::SubmissionTail));
            assert_eq!(fault.value, 0x1_0001, "all 32 bits are checked");
        }
        other => panic!("reported: {other:?}"),
    }
    assert_eq!(arbiter.take_doorbell_error(), None);
    assert!(matches!(arbiter.queue(QueueId(1)).unwrap().state(), QueueState::Failed(_)));
    assert_eq!(answers.reap(&mut arbiter), [(2, 1, OK)]);
    // A head that releases slots that were never posted, found when the queue is full.
    shadow.doorbells.store_cell_release(3, 7);
    for id in 0..4 {
        honest.submit(&mut arbiter, id);
        serve(&mut arbiter);
    }
    assert!(matches!(arbiter.take_doorbell_error(), Some(DoorbellError::Value { queue: QueueId(1), .. })));
}

#[test]
fn register_write_with_cells_is_a_notification_and_its_value_is_ignored() {
    let mut arbiter = controller();
    let shadow = share(&mut arbiter, 0);
    try_completion(&mut arbiter, 1, 4).unwrap();
    try_submission(&mut arbiter, 1, 4, 1).unwrap();
    assert_eq!(arbiter.write_submission_doorbell(QueueId(1), 77), Ok(()));
    assert!(arbiter.fetch().is_none());
    shadow.doorbells.store_cell_release(2, 1);
    assert_eq!(serve(&mut arbiter), 1);
}

#[test]
fn mapped_doorbell_page_is_polled_and_prevents_sleep() {
    let mut arbiter = controller();
    let page = HeapWords::zeroed(CELLS);
    let (mut admin_queue, mut admin_answers) = admin(&mut arbiter, 4);
    arbiter.set_doorbell_cells(DoorbellCells { doorbells: page.clone(), events: None, stride_log2: 0 });
    admin_queue.write(3);
    page.store_cell_release(0, 1);
    assert_eq!(serve(&mut arbiter), 1);
    assert_eq!(admin_answers.take().unwrap().command_id.get(), 3);
    assert_eq!(arbiter.prepare_sleep(), SleepDecision::WorkPending, "the guest sends no notification");
}

#[test]
fn reset_returns_to_registers() {
    let mut arbiter = controller();
    let shadow = share(&mut arbiter, 0);
    arbiter.reset(QueueArbitration::RoundRobin);
    let mut answers = completion(&mut arbiter, 1, 4, None);
    let mut queue = submission(&mut arbiter, 1, submission_spec(4, 1));
    shadow.doorbells.store_cell_release(2, 3);
    assert!(arbiter.fetch().is_none());
    assert!(queue.submit(&mut arbiter, 1));
    assert_eq!(serve(&mut arbiter), 1);
    assert_eq!(answers.reap(&mut arbiter), [(1, 1, OK)]);
}
