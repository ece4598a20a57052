//! Tests of the controller's queues against well-behaved and misbehaving hosts.
#![cfg(not(loom))]

#[path = "controller/raw_host.rs"]
mod raw_host;

use headwater_host::ring_memory::HeapWords;
use headwater_nvme::controller::{
    ArbiterError, CommandToken, ControllerQueuePair, DrainProgress, FetchOutcome, QueueArbiter, QueueId,
    QueueState,
};
use headwater_nvme::queue_pair::SleepDecision;
use headwater_nvme::ring::{DoorbellName, RingLayout};
use headwater_nvme::spec::status::Status;
use raw_host::{arbiter, raw_queue};

/// Fetches all available commands and completes them with success.
fn serve(arbiter: &mut QueueArbiter<HeapWords>) {
    while let Some(fetched) = arbiter.fetch() {
        arbiter.complete(fetched.token, 0, Status::SUCCESS);
    }
}

fn fetch_one(queue: &mut ControllerQueuePair<HeapWords>) -> CommandToken {
    match queue.fetch() {
        FetchOutcome::Command(fetched) => fetched.token,
        other => panic!("a command was submitted, but fetch returned {other:?}"),
    }
}

#[test]
fn queues_take_turns_of_at_most_one_burst() {
    let mut arbiter = arbiter(3);
    let mut hosts = Vec::new();
    for (id, commands) in [(1, 7), (2, 1), (3, 4)] {
        let (mut host, queue) = raw_queue(id, 8);
        arbiter.add(queue).unwrap();
        (0..commands).for_each(|command| host.push(command));
        hosts.push(host);
    }
    let mut order = Vec::new();
    while let Some(fetched) = arbiter.fetch() {
        order.push(fetched.token.queue().0);
        arbiter.complete(fetched.token, 0, Status::SUCCESS);
    }
    assert_eq!(order, [1, 1, 1, 2, 3, 3, 3, 1, 1, 1, 3, 1]);
    for (host, commands) in hosts.iter_mut().zip([7, 1, 4]) {
        assert_eq!(host.reap_all().len(), commands);
    }
}

#[test]
fn a_busy_queue_never_starves_another() {
    let mut arbiter = arbiter(2);
    let (mut busy, queue) = raw_queue(1, 4);
    arbiter.add(queue).unwrap();
    let (mut quiet, queue) = raw_queue(2, 4);
    arbiter.add(queue).unwrap();
    let mut next_id = 0;
    for _ in 0..2 {
        busy.push(next_id);
        next_id += 1;
    }
    quiet.push(9);
    for fetched_before in 0..10 {
        let fetched = arbiter.fetch().unwrap();
        let queue = fetched.token.queue();
        arbiter.complete(fetched.token, 0, Status::SUCCESS);
        let _ = busy.reap_all();
        busy.push(next_id);
        next_id += 1;
        if queue == QueueId(2) {
            assert!(fetched_before <= 2, "a burst of the other queue at most");
            return;
        }
    }
    panic!("the quiet queue was never reached");
}

#[test]
fn duplicate_command_id_is_refused_and_first_command_stays_live() {
    let (mut host, queue) = raw_queue(1, 4);
    let mut arbiter = arbiter(8);
    arbiter.add(queue).unwrap();
    host.push(5);
    let first = arbiter.fetch().unwrap();
    host.push(5);
    host.push(6);
    let second = arbiter.fetch().unwrap();
    assert_eq!(second.token.command_id(), 6);
    assert_eq!(host.reap_all(), [(5, Status::COMMAND_ID_CONFLICT)]);
    arbiter.complete(first.token, 77, Status::SUCCESS);
    arbiter.complete(second.token, 0, Status::KEY_DOES_NOT_EXIST);
    let entry = host.reap().unwrap();
    assert_eq!((entry.command_id.get(), entry.result.get()), (5, 77));
    assert_eq!((entry.submission_queue.get(), entry.submission_head.get()), (1, 3));
    assert_eq!(host.reap_all(), [(6, Status::KEY_DOES_NOT_EXIST)]);
    host.push(5);
    assert_eq!(arbiter.fetch().map(|again| again.token.abandon()), Some(()), "the id is free again");
}

#[test]
fn answer_each_completes_every_entry_once_and_keeps_live_ids() {
    let (mut host, mut queue) = raw_queue(1, 4);
    host.push(5);
    let live = fetch_one(&mut queue);
    host.push(5);
    host.push(6);
    host.push(7);
    let mut answered = Vec::new();
    queue.complete_each(|entry| {
        answered.push(entry.command_id.get());
        (3, Status::SUCCESS)
    });
    assert_eq!(answered, [6, 7]);
    let answers = [(5, Status::COMMAND_ID_CONFLICT), (6, Status::SUCCESS), (7, Status::SUCCESS)];
    assert_eq!(host.reap_all(), answers);
    queue.complete(live, 0, Status::SUCCESS);
    assert_eq!(host.reap_all(), [(5, Status::SUCCESS)]);
    assert_eq!(queue.view().live(), 0);
}

#[test]
fn full_completion_queue_delays_completions_and_loses_none() {
    let (mut host, queue) = raw_queue(1, 3);
    let mut arbiter = arbiter(8);
    arbiter.add(queue).unwrap();
    (0..3).for_each(|id| host.push(id));
    serve(&mut arbiter);
    (3..6).for_each(|id| host.push(id));
    let live: Vec<_> = std::iter::from_fn(|| arbiter.fetch()).collect();
    assert_eq!(live.len(), 3, "the rings have room for as many again");
    for fetched in live {
        arbiter.complete(fetched.token, 0, Status::SUCCESS);
    }
    assert_eq!(arbiter.queue(QueueId(1)).unwrap().unposted(), 3);
    (6..9).for_each(|id| host.push(id));
    assert!(arbiter.fetch().is_none(), "nothing is fetched while an answer waits");
    assert_eq!(arbiter.prepare_sleep(), SleepDecision::UntilWoken, "only the host can free slots");
    let ids = |answers: Vec<(u16, Status)>| answers.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(host.reap_all()), [0, 1, 2]);
    assert_eq!(arbiter.prepare_sleep(), SleepDecision::WorkPending, "the host made room");
    serve(&mut arbiter);
    assert_eq!(ids(host.reap_all()), [3, 4, 5]);
    serve(&mut arbiter);
    arbiter.ring(|_| ());
    assert_eq!(ids(host.reap_all()), [6, 7, 8]);
    assert_eq!(arbiter.queue(QueueId(1)).unwrap().live(), 0);
}

#[test]
fn deletion_does_not_overtake_waiting_completions() {
    let (mut host, mut queue) = raw_queue(1, 1);
    let mut arbiter = arbiter(8);
    host.push(0);
    let first = fetch_one(&mut queue);
    queue.complete(first, 0, Status::SUCCESS);
    host.push(1);
    let second = fetch_one(&mut queue);
    queue.complete(second, 0, Status::SUCCESS);
    assert_eq!(queue.view().unposted(), 1);
    host.push(2);
    arbiter.add(queue).unwrap();
    assert_eq!(host.reap_all(), [(0, Status::SUCCESS)]);
    // There is room now, which the deletion could use for its own completion. The older one goes first.
    arbiter.begin_delete(QueueId(1)).unwrap();
    assert!(arbiter.remove_drained(QueueId(1)).unwrap().is_none());
    assert_eq!(host.reap_all(), [(1, Status::SUCCESS)]);
    assert!(arbiter.remove_drained(QueueId(1)).unwrap().is_some());
    assert_eq!(host.reap_all(), [(2, Status::ABORTED_SQ_DELETION)]);
}

#[test]
fn completion_never_overtakes_one_that_waits_for_room() {
    let (mut host, mut queue) = raw_queue(1, 2);
    (0..2).for_each(|id| host.push(id));
    for _ in 0..2 {
        let token = fetch_one(&mut queue);
        queue.complete(token, 0, Status::SUCCESS);
    }
    (2..4).for_each(|id| host.push(id));
    let (waits, follows) = (fetch_one(&mut queue), fetch_one(&mut queue));
    queue.complete(waits, 0, Status::SUCCESS);
    assert_eq!(host.reap_all().len(), 2);
    queue.complete(follows, 0, Status::SUCCESS);
    queue.post_waiting();
    assert_eq!(host.reap_all(), [(2, Status::SUCCESS), (3, Status::SUCCESS)]);
}

#[test]
fn completion_queue_size_bounds_commands_in_flight() {
    let (mut host, mut queue) = raw_queue(1, 2);
    (0..2).for_each(|id| host.push(id));
    let (first, second) = (fetch_one(&mut queue), fetch_one(&mut queue));
    (2..4).for_each(|id| host.push(id));
    assert!(matches!(queue.fetch(), FetchOutcome::Empty));
    assert!(!queue.has_work());
    queue.complete(first, 0, Status::SUCCESS);
    let third = fetch_one(&mut queue);
    assert!(matches!(queue.fetch(), FetchOutcome::Empty));
    queue.complete(second, 0, Status::SUCCESS);
    queue.complete(third, 0, Status::SUCCESS);
    assert_eq!(host.reap_all().len(), 2);
}

#[test]
fn invalid_doorbell_fails_only_its_queue() {
    let mut arbiter = arbiter(4);
    let (mut hostile, queue) = raw_queue(1, 4);
    arbiter.add(queue).unwrap();
    let (mut honest, queue) = raw_queue(2, 4);
    arbiter.add(queue).unwrap();
    hostile.push(1);
    let live = arbiter.fetch().unwrap();
    hostile.set(RingLayout::SUBMISSION_TAIL, 5);
    honest.push(3);
    serve(&mut arbiter);
    assert_eq!(honest.reap_all(), [(3, Status::SUCCESS)]);
    match arbiter.queue(QueueId(1)).unwrap().state() {
        QueueState::Failed(fault) => {
            assert_eq!((fault.doorbell, fault.value), (DoorbellName::SubmissionTail, 5));
        }
        other => panic!("the queue's state is {other:?}"),
    }
    // Commands accepted before are still completed: their completion queue is still valid.
    arbiter.complete(live.token, 0, Status::SUCCESS);
    assert_eq!(hostile.reap_all(), [(1, Status::SUCCESS)]);
    hostile.set(RingLayout::SUBMISSION_TAIL, 2);
    assert!(arbiter.fetch().is_none(), "a failed queue stays failed");
    honest.push(4);
    serve(&mut arbiter);
    assert_eq!(honest.reap_all(), [(4, Status::SUCCESS)]);
    assert!(arbiter.remove_drained(QueueId(1)).unwrap().is_some());
}

#[test]
fn invalid_completion_head_fails_the_queue_and_its_commands_still_end() {
    let (mut host, queue) = raw_queue(1, 2);
    let mut arbiter = arbiter(4);
    arbiter.add(queue).unwrap();
    (0..2).for_each(|id| host.push(id));
    serve(&mut arbiter);
    host.push(2);
    let live = arbiter.fetch().unwrap();
    host.set(RingLayout::COMPLETION_HEAD, 77);
    arbiter.complete(live.token, 0, Status::SUCCESS);
    let queue = arbiter.queue(QueueId(1)).unwrap();
    assert!(matches!(queue.state(), QueueState::Failed(_)));
    assert_eq!((queue.live(), queue.unposted()), (0, 0));
    assert!(arbiter.remove_drained(QueueId(1)).unwrap().is_some());
}

#[test]
fn deleting_a_queue_completes_every_submitted_command() {
    let (mut host, queue) = raw_queue(7, 4);
    let mut arbiter = arbiter(1);
    arbiter.add(queue).unwrap();
    host.push(10);
    let live = arbiter.fetch().unwrap();
    (11..14).for_each(|id| host.push(id));
    arbiter.begin_delete(QueueId(7)).unwrap();
    host.push(14);
    assert!(arbiter.fetch().is_none());
    assert!(arbiter.remove_drained(QueueId(7)).unwrap().is_none(), "one command is live");
    arbiter.complete(live.token, 0, Status::SUCCESS);
    // The completion queue holds four completions, and four commands were accepted.
    assert!(arbiter.remove_drained(QueueId(7)).unwrap().is_some());
    let aborted = Status::ABORTED_SQ_DELETION;
    assert_eq!(host.reap_all(), [(11, aborted), (12, aborted), (13, aborted), (10, Status::SUCCESS)]);
    assert_eq!(arbiter.queue(QueueId(7)).err(), Some(ArbiterError::Missing(QueueId(7))));
}

#[test]
fn a_deletion_waits_for_room_in_the_completion_queue() {
    let (mut host, mut queue) = raw_queue(1, 2);
    for round in 0..2 {
        (0..2).for_each(|id| host.push(10 * round + id));
        if round == 0 {
            while let FetchOutcome::Command(fetched) = queue.fetch() {
                queue.complete(fetched.token, 0, Status::SUCCESS);
            }
        }
    }
    queue.begin_delete();
    assert_eq!(queue.drain(), DrainProgress::Waiting { live: 0, unposted: 1 });
    assert_eq!(host.reap_all(), [(0, Status::SUCCESS), (1, Status::SUCCESS)]);
    assert_eq!(queue.drain(), DrainProgress::Done);
    let aborted = Status::ABORTED_SQ_DELETION;
    assert_eq!(host.reap_all(), [(10, aborted), (11, aborted)]);
}

#[test]
fn abandoned_queue_is_removed_when_its_commands_end() {
    let (mut host, queue) = raw_queue(1, 2);
    let mut arbiter = arbiter(1);
    arbiter.add(queue).unwrap();
    host.push(1);
    let live = arbiter.fetch().unwrap();
    arbiter.abandon(QueueId(1)).unwrap();
    assert!(arbiter.remove_drained(QueueId(1)).unwrap().is_none());
    arbiter.complete(live.token, 0, Status::SUCCESS);
    assert!(arbiter.remove_drained(QueueId(1)).unwrap().is_some());
    assert_eq!(host.reap_all(), []);
}

#[test]
fn arbitration_continues_when_queues_are_removed() {
    let mut arbiter = arbiter(1);
    let mut hosts: Vec<_> = (1..=4)
        .map(|id| {
            let (host, queue) = raw_queue(id, 4);
            arbiter.add(queue).unwrap();
            host
        })
        .collect();
    for removed in [2, 1, 4] {
        hosts.iter_mut().for_each(|host| host.push(0));
        serve(&mut arbiter);
        hosts.iter_mut().for_each(|host| drop(host.reap_all()));
        arbiter.begin_delete(QueueId(removed)).unwrap();
        assert!(arbiter.remove_drained(QueueId(removed)).unwrap().is_some());
    }
    hosts[2].push(1);
    assert_eq!(arbiter.queues().count(), 1);
    let fetched = arbiter.fetch().unwrap();
    assert_eq!(fetched.token.queue(), QueueId(3));
    arbiter.complete(fetched.token, 0, Status::SUCCESS);
}

#[test]
fn removing_a_queue_keeps_the_turns_of_all_other_queues() {
    let mut arbiter = arbiter(1);
    let mut hosts: Vec<_> = (1..=4)
        .map(|id| {
            let (host, queue) = raw_queue(id, 4);
            arbiter.add(queue).unwrap();
            host
        })
        .collect();
    hosts.iter_mut().for_each(|host| host.push(0));
    let mut order = Vec::new();
    for round in 0..4 {
        let fetched = arbiter.fetch().unwrap();
        order.push(fetched.token.queue().0);
        arbiter.complete(fetched.token, 0, Status::SUCCESS);
        if round == 1 {
            arbiter.begin_delete(QueueId(1)).unwrap();
            assert!(arbiter.remove_drained(QueueId(1)).unwrap().is_some());
        }
    }
    assert_eq!(order, [1, 2, 3, 4]);
}

#[test]
fn queue_numbers_are_checked() {
    let mut arbiter = arbiter(1);
    let refused = |id| Some(ArbiterError::OutOfRange(QueueId(id)));
    assert_eq!(arbiter.add(raw_queue(0, 1).1).err(), refused(0));
    assert_eq!(arbiter.add(raw_queue(1_025, 1).1).err(), refused(1_025));
    arbiter.add(raw_queue(1_024, 1).1).unwrap();
    let taken = arbiter.add(raw_queue(1_024, 1).1).unwrap_err();
    assert_eq!(taken, ArbiterError::Taken(QueueId(1_024)));
    assert_eq!(taken.status(), Status::INVALID_QUEUE_ID);
    assert_eq!(arbiter.begin_delete(QueueId(3)), Err(ArbiterError::Missing(QueueId(3))));
}
