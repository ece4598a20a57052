//! Tests of queues that a host creates one by one: creation, deletion, order, back-pressure, reset and interrupts.

use crate::guest::{
    GuestCompletion, GuestSubmission, QUEUES, SLOTS_MAX, VECTORS, admin, completion, completion_spec,
    controller, limits, serve, submission, submission_spec, try_completion, try_submission,
};
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::{HeapWords, RingMemory as _, SharedMemoryWords};
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::controller::{
    ArbiterError, ArbitrationSettings, DoorbellError, InterruptCoalescing, QueueArbiter, QueueArbitration,
    QueueId, QueueState, SubmissionQueueSpec, VectorCoalescing,
};
use headwater_nvme::ring::DoorbellName;
use headwater_nvme::spec::priority::QueuePriority;
use headwater_nvme::spec::status::Status;

const OK: Status = Status::SUCCESS;

fn status(result: Result<(), ArbiterError>) -> Status {
    result.map_or_else(ArbiterError::status, |()| OK)
}

#[test]
fn create_completion_queue_refuses_wrong_numbers_sizes_and_vectors() {
    let mut arbiter = controller();
    for (id, slots, expected) in [
        (0, 4, Status::INVALID_QUEUE_ID),
        (QUEUES + 1, 4, Status::INVALID_QUEUE_ID),
        (1, 0, Status::INVALID_QUEUE_SIZE),
        (1, 1, Status::INVALID_QUEUE_SIZE),
        (1, SLOTS_MAX + 1, Status::INVALID_QUEUE_SIZE),
        (1, SLOTS_MAX, OK),
        (1, 4, Status::INVALID_QUEUE_ID),
    ] {
        assert_eq!(status(try_completion(&mut arbiter, id, slots)), expected, "queue {id} of {slots}");
    }
    let spec = completion_spec(4, Some(VECTORS));
    let refused = arbiter.create_completion_queue(QueueId(2), spec, |_| panic!("memory is requested last"));
    assert_eq!(status(refused), Status::INVALID_INTERRUPT_VECTOR);
    let absent = arbiter.create_completion_queue(QueueId(2), completion_spec(4, None), |_| None);
    assert_eq!(absent, Err(ArbiterError::Memory(QueueId(2))));
    let short = arbiter
        .create_completion_queue(QueueId(2), completion_spec(64, None), |_| Some(HeapWords::zeroed(8)));
    assert_eq!(short, Err(ArbiterError::Memory(QueueId(2))));
}

#[test]
fn create_submission_queue_refuses_wrong_order_numbers_and_sizes() {
    let mut arbiter = controller();
    for (id, slots, to, expected) in [
        (1, 4, 1, Status::COMPLETION_QUEUE_INVALID),
        (1, 4, 0, Status::INVALID_QUEUE_ID),
        (1, 4, QUEUES + 1, Status::INVALID_QUEUE_ID),
    ] {
        assert_eq!(status(try_submission(&mut arbiter, id, slots, to)), expected, "queue {id} to {to}");
    }
    try_completion(&mut arbiter, 1, 4).unwrap();
    for (id, slots, expected) in [
        (0, 4, Status::INVALID_QUEUE_ID),
        (QUEUES + 1, 4, Status::INVALID_QUEUE_ID),
        (1, 1, Status::INVALID_QUEUE_SIZE),
        (1, SLOTS_MAX + 1, Status::INVALID_QUEUE_SIZE),
        (1, SLOTS_MAX, OK),
        (1, 4, Status::INVALID_QUEUE_ID),
    ] {
        assert_eq!(status(try_submission(&mut arbiter, id, slots, 1)), expected, "queue {id} of {slots}");
    }
}

#[test]
fn only_the_granted_number_of_queues_can_be_created() {
    let mut arbiter = controller();
    arbiter.grant_queues(1, 2);
    try_completion(&mut arbiter, 2, 4).unwrap();
    assert_eq!(status(try_completion(&mut arbiter, 3, 4)), Status::INVALID_QUEUE_ID);
    assert_eq!(status(try_submission(&mut arbiter, 2, 4, 2)), Status::INVALID_QUEUE_ID);
    try_submission(&mut arbiter, 1, 4, 2).unwrap();
}

#[test]
fn delete_refuses_wrong_numbers_and_completion_queues_in_use() {
    let mut arbiter = controller();
    for id in [0, 1, QUEUES + 1] {
        let id = QueueId(id);
        assert_eq!(status(arbiter.delete_submission_queue(id)), Status::INVALID_QUEUE_ID);
        assert_eq!(status(arbiter.delete_completion_queue(id)), Status::INVALID_QUEUE_ID);
    }
    try_completion(&mut arbiter, 1, 4).unwrap();
    try_submission(&mut arbiter, 3, 4, 1).unwrap();
    assert_eq!(status(arbiter.delete_completion_queue(QueueId(1))), Status::INVALID_QUEUE_DELETION);
    arbiter.delete_submission_queue(QueueId(3)).unwrap();
    assert_eq!(status(arbiter.delete_submission_queue(QueueId(3))), Status::INVALID_QUEUE_ID, "twice");
    assert_eq!(status(arbiter.delete_completion_queue(QueueId(1))), Status::INVALID_QUEUE_DELETION);
    assert_eq!(arbiter.next_deleted(), Some(QueueId(3)));
    assert_eq!(arbiter.next_deleted(), None);
    assert_eq!(status(arbiter.delete_completion_queue(QueueId(1))), OK);
    assert_eq!(status(arbiter.delete_completion_queue(QueueId(1))), Status::INVALID_QUEUE_ID);
    try_completion(&mut arbiter, 1, 8).unwrap();
}

#[test]
fn several_submission_queues_share_a_completion_queue_in_order_of_completion() {
    let mut arbiter = controller();
    let mut answers = completion(&mut arbiter, 2, 8, None);
    let mut first = submission(&mut arbiter, 1, submission_spec(4, 2));
    let mut second = submission(&mut arbiter, 5, submission_spec(4, 2));
    first.submit(&mut arbiter, 7);
    first.submit(&mut arbiter, 8);
    second.submit(&mut arbiter, 7);
    let live: Vec<_> = std::iter::from_fn(|| arbiter.fetch()).collect();
    let order: Vec<_> = live.iter().map(|fetched| fetched.token.queue().0).collect();
    assert_eq!(order, [1, 5, 1], "the queues take turns");
    for fetched in live.into_iter().rev() {
        arbiter.complete(fetched.token, 0, OK);
    }
    let entries: Vec<_> = std::iter::from_fn(|| answers.take())
        .map(|entry| (entry.submission_queue.get(), entry.command_id.get(), entry.submission_head.get()))
        .collect();
    assert_eq!(entries, [(1, 8, 2), (5, 7, 1), (1, 7, 2)]);
}

#[test]
fn full_completion_queue_stops_only_its_own_submission_queues() {
    let mut arbiter = controller();
    let mut answers = completion(&mut arbiter, 1, 3, None);
    let mut second_answers = completion(&mut arbiter, 2, 3, None);
    let mut first = submission(&mut arbiter, 1, submission_spec(8, 1));
    let mut second = submission(&mut arbiter, 2, submission_spec(8, 1));
    let mut apart = submission(&mut arbiter, 3, submission_spec(8, 2));
    first.submit_all(&mut arbiter, 0..4);
    second.submit_all(&mut arbiter, 10..14);
    let live: Vec<_> = std::iter::from_fn(|| arbiter.fetch()).collect();
    assert_eq!(live.len(), 2, "no more than the completion queue holds");
    live.into_iter().for_each(|fetched| arbiter.complete(fetched.token, 0, OK));
    let live: Vec<_> = std::iter::from_fn(|| arbiter.fetch()).collect();
    assert_eq!(live.len(), 2);
    live.into_iter().for_each(|fetched| arbiter.complete(fetched.token, 0, OK));
    assert_eq!(arbiter.queue(QueueId(2)).unwrap().unposted(), 2);
    assert!(arbiter.fetch().is_none(), "nothing is fetched while an answer waits");
    apart.submit(&mut arbiter, 20);
    assert_eq!(serve(&mut arbiter), 1);
    assert_eq!(second_answers.reap(&mut arbiter), [(3, 20, OK)]);
    let mut order = Vec::new();
    for _ in 0..4 {
        order.extend(answers.reap(&mut arbiter));
        serve(&mut arbiter);
        arbiter.fire_interrupts(Nanos(0), |_| ());
    }
    order.extend(answers.reap(&mut arbiter));
    let expected = [(1, 0), (2, 10), (1, 1), (2, 11), (1, 2), (2, 12), (1, 3), (2, 13)];
    assert_eq!(order, expected.map(|(queue, id)| (queue, id, OK)));
}

#[test]
fn deleting_a_submission_queue_completes_its_commands_only() {
    let mut arbiter = controller();
    let mut answers = completion(&mut arbiter, 1, 8, None);
    let mut leaving = submission(&mut arbiter, 1, submission_spec(8, 1));
    let mut staying = submission(&mut arbiter, 2, submission_spec(8, 1));
    leaving.submit(&mut arbiter, 1);
    let live = arbiter.fetch().unwrap();
    leaving.submit(&mut arbiter, 2);
    arbiter.delete_submission_queue(QueueId(1)).unwrap();
    staying.submit(&mut arbiter, 9);
    assert_eq!(serve(&mut arbiter), 1);
    assert_eq!(arbiter.next_deleted(), None, "one command is live");
    arbiter.complete(live.token, 0, OK);
    assert_eq!(arbiter.next_deleted(), Some(QueueId(1)));
    assert_eq!(answers.reap(&mut arbiter), [(2, 9, OK), (1, 2, Status::ABORTED_SQ_DELETION), (1, 1, OK)]);
    assert_eq!(
        arbiter.write_submission_doorbell(QueueId(1), 3),
        Err(DoorbellError::NoQueue(QueueId(1))),
        "deleted"
    );
    staying.submit(&mut arbiter, 10);
    assert_eq!(serve(&mut arbiter), 1);
    assert_eq!(answers.reap(&mut arbiter), [(2, 10, OK)]);
}

#[test]
fn deletion_with_a_full_completion_queue_ends_when_the_host_reaps() {
    let mut arbiter = controller();
    let mut answers = completion(&mut arbiter, 1, 2, None);
    let mut leaving = submission(&mut arbiter, 1, submission_spec(8, 1));
    leaving.submit_all(&mut arbiter, 0..3);
    let first = arbiter.fetch().unwrap();
    arbiter.complete(first.token, 0, OK);
    arbiter.delete_submission_queue(QueueId(1)).unwrap();
    let mut seen = Vec::new();
    while arbiter.next_deleted().is_none() {
        seen.extend(answers.reap(&mut arbiter));
        assert!(seen.len() <= 3, "a command was completed twice");
    }
    seen.extend(answers.reap(&mut arbiter));
    let aborted = Status::ABORTED_SQ_DELETION;
    assert_eq!(seen, [(1, 0, OK), (1, 1, aborted), (1, 2, aborted)]);
}

#[test]
fn reset_removes_all_queues_and_discards_completions_of_older_commands() {
    let mut arbiter = controller();
    let (mut admin_queue, _) = admin(&mut arbiter, 4);
    let answers = completion(&mut arbiter, 1, 8, Some(1));
    let mut queue = submission(&mut arbiter, 1, submission_spec(8, 1));
    queue.submit(&mut arbiter, 5);
    admin_queue.submit(&mut arbiter, 6);
    let live: Vec<_> = std::iter::from_fn(|| arbiter.fetch()).collect();
    assert_eq!(live.len(), 2);
    assert!(arbiter.is_current(&live[0].token));
    arbiter.delete_submission_queue(QueueId(1)).unwrap();
    arbiter.reset(QueueArbitration::RoundRobin);
    assert_eq!((arbiter.queues().count(), arbiter.next_deleted()), (0, None));
    assert_eq!(arbiter.write_submission_doorbell(QueueId(0), 1), Err(DoorbellError::NoQueue(QueueId(0))));
    // The same queue and command numbers are in use again: the old tokens must not match them.
    let mut again = completion(&mut arbiter, 1, 8, Some(1));
    let mut queue = submission(&mut arbiter, 1, submission_spec(8, 1));
    queue.submit(&mut arbiter, 5);
    let fresh = arbiter.fetch().unwrap();
    for old in live {
        assert!(!arbiter.is_current(&old.token));
        arbiter.complete(old.token, 99, OK);
    }
    arbiter.fire_interrupts(Nanos(0), |vector| panic!("nothing was posted for vector {vector}"));
    assert_eq!(again.take(), None);
    assert_eq!(answers.memory.load_acquire(1), 0, "the old queue memory is unchanged");
    arbiter.complete(fresh.token, 0, OK);
    assert_eq!(again.reap(&mut arbiter), [(1, 5, OK)]);
}

#[test]
fn held_admin_commands_do_not_fill_a_small_admin_queue() {
    let mut arbiter = controller();
    let (mut queue, mut answers) = admin(&mut arbiter, 2);
    let mut held = Vec::new();
    for id in 0..4 {
        queue.submit(&mut arbiter, id);
        held.push(arbiter.fetch().unwrap());
    }
    queue.submit(&mut arbiter, 9);
    assert_eq!(serve(&mut arbiter), 1);
    assert_eq!(answers.reap(&mut arbiter), [(0, 9, OK)]);
    for fetched in held {
        arbiter.complete(fetched.token, 0, OK);
        assert_eq!(answers.reap(&mut arbiter).len(), 1);
    }
}

#[test]
fn invalid_doorbell_writes_are_reported_and_stop_only_their_queue() {
    let mut arbiter = controller();
    let mut answers = completion(&mut arbiter, 1, 4, None);
    let mut honest = submission(&mut arbiter, 2, submission_spec(4, 1));
    try_submission(&mut arbiter, 1, 4, 1).unwrap();
    assert_eq!(arbiter.write_submission_doorbell(QueueId(7), 1), Err(DoorbellError::NoQueue(QueueId(7))));
    assert_eq!(arbiter.write_completion_doorbell(QueueId(7), 1), Err(DoorbellError::NoQueue(QueueId(7))));
    match arbiter.write_submission_doorbell(QueueId(1), 4) {
        Err(DoorbellError::Value { queue, fault }) => {
            assert_eq!((queue, fault.doorbell), (QueueId(1), DoorbellName::SubmissionTail));
            assert_eq!((fault.value, fault.slots), (4, 4));
        }
        other => panic!("the write was accepted: {other:?}"),
    }
    assert!(matches!(arbiter.queue(QueueId(1)).unwrap().state(), QueueState::Failed(_)));
    assert_eq!(arbiter.write_submission_doorbell(QueueId(1), 1), Ok(()), "reported once");
    assert_eq!(arbiter.take_doorbell_error(), None);
    honest.submit(&mut arbiter, 1);
    assert_eq!(serve(&mut arbiter), 1);
    assert_eq!(answers.reap(&mut arbiter), [(2, 1, OK)]);
    // Slots that were never posted cannot be released; every submission queue of this completion queue stops.
    assert!(matches!(arbiter.write_completion_doorbell(QueueId(1), 3), Err(DoorbellError::Value { .. })));
    honest.submit(&mut arbiter, 2);
    assert_eq!(serve(&mut arbiter), 0);
    assert!(matches!(arbiter.queue(QueueId(2)).unwrap().state(), QueueState::Failed(_)));
    for id in [1, 2] {
        arbiter.delete_submission_queue(QueueId(id)).unwrap();
        assert_eq!(arbiter.next_deleted(), Some(QueueId(id)), "a failed queue can be deleted");
    }
    arbiter.delete_completion_queue(QueueId(1)).unwrap();
}

#[test]
fn urgent_queues_go_first_and_weighted_classes_share_by_weight() {
    let mut arbiter = controller();
    arbiter.reset(QueueArbitration::WeightedWithUrgent);
    // Burst 1; high 2, medium 1, low 1.
    arbiter.set_arbitration(ArbitrationSettings::from_dword(1 << 24));
    let (mut admin_queue, _) = admin(&mut arbiter, 8);
    let _answers = completion(&mut arbiter, 1, 64, None);
    let classes = [QueuePriority::Low, QueuePriority::Medium, QueuePriority::High, QueuePriority::Urgent];
    for (id, priority) in (1..).zip(classes) {
        let spec = SubmissionQueueSpec { priority, ..submission_spec(8, 1) };
        let mut queue = submission(&mut arbiter, id, spec);
        queue.submit_all(&mut arbiter, 0..3);
    }
    admin_queue.submit(&mut arbiter, 0);
    let mut order = Vec::new();
    while let Some(fetched) = arbiter.fetch() {
        order.push(fetched.token.queue().0);
        arbiter.complete(fetched.token, 0, OK);
    }
    assert_eq!(order, [0, 4, 4, 4, 3, 3, 2, 1, 3, 2, 1, 2, 1]);
}

fn fired(arbiter: &mut QueueArbiter<HeapWords>, now: Nanos) -> Vec<u16> {
    let mut fired = Vec::new();
    arbiter.fire_interrupts(now, |vector| fired.push(vector));
    fired
}

#[test]
fn completion_queues_with_new_completions_fire_their_vectors_once() {
    let mut arbiter = controller();
    let mut hosts = Vec::new();
    for (id, vector) in [(1, Some(1)), (2, Some(3)), (3, Some(3)), (4, None)] {
        let answers = completion(&mut arbiter, id, 4, vector);
        let mut queue = submission(&mut arbiter, id, submission_spec(4, id));
        queue.submit(&mut arbiter, 0);
        hosts.push((queue, answers));
    }
    assert_eq!(fired(&mut arbiter, Nanos(0)), [] as [u16; 0]);
    assert_eq!(serve(&mut arbiter), 4);
    assert!(arbiter.has_unreaped(3) && !arbiter.has_unreaped(2));
    assert_eq!(fired(&mut arbiter, Nanos(0)), [1, 3]);
    assert_eq!(fired(&mut arbiter, Nanos(1)), [] as [u16; 0]);
    for (_, answers) in &mut hosts {
        assert_eq!(answers.reap(&mut arbiter).len(), 1);
    }
    assert!(!arbiter.has_unreaped(3));
}

#[test]
fn coalescing_delays_io_interrupts_but_not_the_admin_queue() {
    let mut arbiter = controller();
    arbiter.set_coalescing(InterruptCoalescing::from_dword(1 | 1 << 8));
    let (mut admin_queue, _) = admin(&mut arbiter, 4);
    let _answers = completion(&mut arbiter, 1, 8, Some(1));
    let mut queue = submission(&mut arbiter, 1, submission_spec(8, 1));
    queue.submit(&mut arbiter, 0);
    admin_queue.submit(&mut arbiter, 0);
    assert_eq!(serve(&mut arbiter), 2);
    assert_eq!(fired(&mut arbiter, Nanos(0)), [0]);
    assert_eq!(arbiter.next_interrupt(), Some(Nanos::from_micros(100)));
    queue.submit(&mut arbiter, 1);
    assert_eq!(serve(&mut arbiter), 1);
    assert_eq!(fired(&mut arbiter, Nanos(50)), [1], "two reach the threshold");
    assert_eq!(arbiter.next_interrupt(), None);
    let refused = arbiter.set_vector_coalescing(VECTORS, VectorCoalescing::Disabled);
    assert_eq!(refused, Err(ArbiterError::Vector { vector: VECTORS, vectors: VECTORS }));
    arbiter.set_vector_coalescing(1, VectorCoalescing::Disabled).unwrap();
    queue.submit(&mut arbiter, 2);
    assert_eq!(serve(&mut arbiter), 1);
    assert_eq!(fired(&mut arbiter, Nanos(60)), [1]);
}

#[test]
fn queues_in_shared_memory_work() {
    let region = SharedMemory::anonymous(8_192).unwrap();
    let mut arbiter = QueueArbiter::for_host(limits());
    let at = |offset: usize| {
        let region = region.clone();
        move |words: usize| SharedMemoryWords::new(region, offset, words).ok()
    };
    let mut answers = GuestCompletion::new(1, 4, at(4_096)(8).unwrap());
    let mut queue = GuestSubmission::new(1, 4, at(0)(32).unwrap());
    arbiter.create_completion_queue(QueueId(1), completion_spec(4, None), at(4_096)).unwrap();
    let outside = arbiter.create_submission_queue(QueueId(1), submission_spec(4, 1), at(8_192 - 64));
    assert_eq!(outside, Err(ArbiterError::Memory(QueueId(1))));
    arbiter.create_submission_queue(QueueId(1), submission_spec(4, 1), at(0)).unwrap();
    for command in 0..50 {
        queue.submit(&mut arbiter, command);
        assert_eq!(serve(&mut arbiter), 1);
        assert_eq!(answers.reap(&mut arbiter), [(1, command, OK)]);
    }
}
