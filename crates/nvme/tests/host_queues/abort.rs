//! Abort (NVMe Base 2.0 section 5.1) of commands that were not fetched: removed from the ring, completed once.

use crate::guest::{admin, completion, controller, serve, submission, submission_spec};
use headwater_nvme::controller::QueueId;
use headwater_nvme::spec::status::Status;
use std::collections::BTreeMap;

const OK: Status = Status::SUCCESS;
const ABORTED: Status = Status::ABORT_REQUESTED;

#[test]
fn aborted_entry_completes_at_once_and_the_rest_keep_their_order() {
    let mut arbiter = controller();
    let mut answers = completion(&mut arbiter, 1, 8, None);
    let mut queue = submission(&mut arbiter, 1, submission_spec(8, 1));
    queue.submit_all(&mut arbiter, 10..15);
    let id = QueueId(1);
    assert!(arbiter.abort(id, 12));
    let entry = answers.take().unwrap();
    assert_eq!(
        (entry.command_id.get(), entry.status()),
        (12, ABORTED),
        "posted before the completion of the Abort"
    );
    assert_eq!(entry.submission_head.get(), 3, "its slot and those before it are released");
    answers.ring(&mut arbiter);
    assert!(!arbiter.abort(id, 12), "an abort succeeds once");
    assert!(!arbiter.abort(id, 99) && !arbiter.abort(QueueId(7), 10), "no such command, no such queue");
    assert!(arbiter.abort(id, 10), "an entry taken from the ring ahead of its turn");
    assert_eq!(serve(&mut arbiter), 3);
    let rest = answers.reap(&mut arbiter);
    assert_eq!(rest, [(1, 10, ABORTED), (1, 11, OK), (1, 13, OK), (1, 14, OK)]);
    assert!(!arbiter.abort(id, 11), "completed before");
}

#[test]
fn fetched_command_cannot_be_aborted_in_the_ring() {
    let mut arbiter = controller();
    let mut answers = completion(&mut arbiter, 1, 8, None);
    let mut queue = submission(&mut arbiter, 1, submission_spec(8, 1));
    queue.submit_all(&mut arbiter, 1..3);
    let first = arbiter.fetch().unwrap();
    assert!(!arbiter.abort(QueueId(1), 1));
    assert!(arbiter.abort(QueueId(1), 2));
    arbiter.complete(first.token, 0, OK);
    assert_eq!(answers.reap(&mut arbiter), [(1, 2, ABORTED), (1, 1, OK)]);
    assert!(arbiter.fetch().is_none());
}

#[test]
fn abort_without_room_for_its_completion_fails_and_loses_nothing() {
    let mut arbiter = controller();
    let mut answers = completion(&mut arbiter, 1, 3, None);
    let mut queue = submission(&mut arbiter, 1, submission_spec(8, 1));
    queue.submit_all(&mut arbiter, 0..6);
    let live: Vec<_> = std::iter::from_fn(|| arbiter.fetch()).collect();
    assert_eq!(live.len(), 2, "as many as the completion queue holds");
    assert!(!arbiter.abort(QueueId(1), 5));
    for fetched in live {
        arbiter.complete(fetched.token, 0, OK);
    }
    let mut seen = answers.reap(&mut arbiter);
    while serve(&mut arbiter) > 0 {
        seen.extend(answers.reap(&mut arbiter));
    }
    assert_eq!(seen, (0..6).map(|id| (1, id, OK)).collect::<Vec<_>>());
}

#[test]
fn deletion_completes_entries_that_an_abort_took_from_the_ring() {
    let mut arbiter = controller();
    let (_, _admin) = admin(&mut arbiter, 4);
    let mut answers = completion(&mut arbiter, 1, 8, None);
    let mut queue = submission(&mut arbiter, 1, submission_spec(8, 1));
    queue.submit_all(&mut arbiter, 0..4);
    assert!(arbiter.abort(QueueId(1), 2));
    arbiter.delete_submission_queue(QueueId(1)).unwrap();
    assert_eq!(arbiter.next_deleted(), Some(QueueId(1)));
    let deleted = Status::ABORTED_SQ_DELETION;
    assert_eq!(
        answers.reap(&mut arbiter),
        [(1, 2, ABORTED), (1, 0, deleted), (1, 1, deleted), (1, 3, deleted)]
    );
}

#[test]
fn every_command_has_one_completion_with_the_right_status_under_aborts() {
    let seed = 0x5EED_AB07_u64;
    let mut state = seed;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut arbiter = controller();
    let mut answers = completion(&mut arbiter, 1, 5, None);
    let mut queue = submission(&mut arbiter, 1, submission_spec(8, 1));
    // The expected status of each id in flight.
    let mut expected: BTreeMap<u16, Status> = BTreeMap::new();
    let mut live = Vec::new();
    let mut next = 0_u16;
    let mut aborted = 0;
    for _ in 0..20_000 {
        match random(5) {
            0 | 1 if expected.len() < 7 => {
                queue.submit(&mut arbiter, next);
                expected.insert(next, OK);
                next = next.wrapping_add(1);
            }
            2 => live.extend(arbiter.fetch()),
            3 if !live.is_empty() => {
                let at = usize::try_from(random(live.len() as u64)).unwrap();
                arbiter.complete(live.swap_remove(at).token, 0, OK);
            }
            4 => {
                let at = usize::try_from(random(8)).unwrap();
                if let Some(&id) = expected.keys().nth(at)
                    && !live.iter().any(|fetched| fetched.token.command_id() == id)
                    && expected[&id] == OK
                    && arbiter.abort(QueueId(1), id)
                {
                    expected.insert(id, ABORTED);
                    aborted += 1;
                }
            }
            _ => {
                for (_, id, status) in answers.reap(&mut arbiter) {
                    assert_eq!(expected.remove(&id), Some(status), "seed {seed:#x}: command {id}");
                }
            }
        }
    }
    assert!(aborted > 500, "{aborted} aborted");
    for fetched in live.drain(..) {
        arbiter.complete(fetched.token, 0, OK);
    }
    for _ in 0..8 {
        serve(&mut arbiter);
        for (_, id, status) in answers.reap(&mut arbiter) {
            assert_eq!(expected.remove(&id), Some(status), "seed {seed:#x}: command {id}");
        }
        arbiter.ring(|_| {});
    }
    assert!(expected.is_empty(), "commands without a completion: {expected:?}");
}
