//! What the controller's end of the queues promises, against hosts that tell the truth and hosts that do not.
#![cfg(not(loom))]

use headwater_host::ring_memory::{RingMemory, SharedWords};
use headwater_nvme::controller::{Arbiter, ArbiterError, Drain, IoQueue, QueueId, QueueKind, QueueState};
use headwater_nvme::queue_pair::{QueuePair, Sleep};
use headwater_nvme::ring::{DoorbellName, QueueSlots, RingLayout};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::completion::{CompletionEntry, Phase};
use headwater_nvme::spec::status::Status;
use proptest::prelude::*;
use std::num::NonZeroU16;
use zerocopy::little_endian::U16;

/// A host that writes what it likes: no bookkeeping stands between it and the ring memory.
struct RawHost {
    memory: SharedWords,
    layout: RingLayout,
    tail: u32,
    head: u32,
    phase: Phase,
}

impl RawHost {
    fn push(&mut self, command_id: u16) {
        let entry = SubmissionEntry {
            command_id: U16::new(command_id),
            ..SubmissionEntry::default()
        };
        let first = self.layout.submission_word(self.tail);
        for (word, value) in (first..).zip(entry.to_words()) {
            self.memory.store_relaxed(word, value);
        }
        self.tail = (self.tail + 1) % self.layout.submission_slots.get();
        self.set(RingLayout::SUBMISSION_TAIL, u64::from(self.tail));
    }

    fn set(&self, word: usize, value: u64) {
        self.memory.store_release(word, value);
    }

    fn reap(&mut self) -> Option<CompletionEntry> {
        let word = self.layout.completion_word(self.head);
        let second = self.memory.load_acquire(word + 1);
        if Phase::of_word(second) != self.phase {
            return None;
        }
        let entry = CompletionEntry::from_words([self.memory.load_relaxed(word), second]);
        self.head = (self.head + 1) % self.layout.completion_slots.get();
        if self.head == 0 {
            self.phase = self.phase.flipped();
        }
        self.set(RingLayout::COMPLETION_HEAD, u64::from(self.head));
        Some(entry)
    }

    /// Everything that can be reaped, as command id and status.
    fn reap_all(&mut self) -> Vec<(u16, Status)> {
        std::iter::from_fn(|| self.reap())
            .map(|entry| (entry.command_id.get(), entry.status()))
            .collect()
    }
}

fn raw_queue(id: u16, depth: u32) -> (RawHost, IoQueue<SharedWords>) {
    let slots = QueueSlots::new(depth + 1).expect("a possible depth");
    let layout = RingLayout {
        submission_slots: slots,
        completion_slots: slots,
    };
    let memory = SharedWords::zeroed(layout.words());
    let (_, end) = QueuePair::over(memory.clone(), depth).expect("memory for the depth");
    let host = RawHost {
        memory,
        layout,
        tail: 0,
        head: 0,
        phase: Phase::One,
    };
    (host, IoQueue::new(QueueId(id), QueueKind::Kv, end))
}

fn arbiter(burst: u16) -> Arbiter<SharedWords> {
    Arbiter::new(NonZeroU16::new(burst).expect("a burst above zero"))
}

/// Fetches everything there is and answers it with success.
fn serve(arbiter: &mut Arbiter<SharedWords>) {
    while let Some(fetched) = arbiter.fetch() {
        arbiter.complete(fetched.token, 0, Status::SUCCESS);
    }
}

#[test]
fn queues_take_turns_of_at_most_a_burst() {
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
fn a_command_id_in_use_is_a_conflict_and_its_first_command_lives_on() {
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
    assert_eq!(
        (entry.submission_queue.get(), entry.submission_head.get()),
        (1, 3)
    );
    assert_eq!(host.reap_all(), [(6, Status::KEY_DOES_NOT_EXIST)]);
    host.push(5);
    assert_eq!(
        arbiter.fetch().map(|again| again.token.abandon()),
        Some(()),
        "free again"
    );
}

#[test]
fn a_full_completion_queue_holds_answers_back_and_loses_none() {
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
    assert!(
        arbiter.fetch().is_none(),
        "nothing is fetched while an answer waits"
    );
    assert_eq!(arbiter.prepare_sleep(), Sleep::Until, "only the host can help");
    let ids = |answers: Vec<(u16, Status)>| answers.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(host.reap_all()), [0, 1, 2]);
    assert_eq!(arbiter.prepare_sleep(), Sleep::No, "the host made room");
    serve(&mut arbiter);
    assert_eq!(ids(host.reap_all()), [3, 4, 5]);
    serve(&mut arbiter);
    arbiter.ring(|_| ());
    assert_eq!(ids(host.reap_all()), [6, 7, 8]);
    assert_eq!(arbiter.queue(QueueId(1)).unwrap().live(), 0);
}

#[test]
fn an_impossible_doorbell_fails_its_queue_and_no_other() {
    let mut arbiter = arbiter(4);
    let (mut liar, queue) = raw_queue(1, 4);
    arbiter.add(queue).unwrap();
    let (mut honest, queue) = raw_queue(2, 4);
    arbiter.add(queue).unwrap();
    liar.push(1);
    let live = arbiter.fetch().unwrap();
    liar.set(RingLayout::SUBMISSION_TAIL, 5);
    honest.push(3);
    serve(&mut arbiter);
    assert_eq!(honest.reap_all(), [(3, Status::SUCCESS)]);
    match arbiter.queue(QueueId(1)).unwrap().state() {
        QueueState::Failed(fault) => {
            assert_eq!((fault.doorbell, fault.value), (DoorbellName::SubmissionTail, 5));
        }
        other => panic!("the queue is {other:?}"),
    }
    // What was accepted before is still answered: its completion queue can be trusted.
    arbiter.complete(live.token, 0, Status::SUCCESS);
    assert_eq!(liar.reap_all(), [(1, Status::SUCCESS)]);
    liar.set(RingLayout::SUBMISSION_TAIL, 2);
    assert!(arbiter.fetch().is_none(), "a failed queue stays failed");
    honest.push(4);
    serve(&mut arbiter);
    assert_eq!(honest.reap_all(), [(4, Status::SUCCESS)]);
    assert!(arbiter.remove_drained(QueueId(1)).unwrap().is_some());
}

#[test]
fn an_impossible_completion_head_fails_the_queue_and_its_commands_still_end() {
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
fn deleting_a_queue_answers_everything_that_was_rung_for() {
    let (mut host, queue) = raw_queue(7, 4);
    let mut arbiter = arbiter(1);
    arbiter.add(queue).unwrap();
    host.push(10);
    let live = arbiter.fetch().unwrap();
    (11..14).for_each(|id| host.push(id));
    arbiter.begin_delete(QueueId(7)).unwrap();
    host.push(14);
    assert!(arbiter.fetch().is_none());
    assert!(
        arbiter.remove_drained(QueueId(7)).unwrap().is_none(),
        "one is live"
    );
    arbiter.complete(live.token, 0, Status::SUCCESS);
    // One answer more than the completion queue holds would fit; it holds four, and four were accepted.
    assert!(arbiter.remove_drained(QueueId(7)).unwrap().is_some());
    let aborted = Status::ABORTED_SQ_DELETION;
    assert_eq!(
        host.reap_all(),
        [(11, aborted), (12, aborted), (13, aborted), (10, Status::SUCCESS)]
    );
    assert_eq!(
        arbiter.queue(QueueId(7)).err(),
        Some(ArbiterError::Missing(QueueId(7)))
    );
}

#[test]
fn a_deletion_waits_for_room_in_the_completion_queue() {
    let (mut host, mut queue) = raw_queue(1, 2);
    for round in 0..2 {
        (0..2).for_each(|id| host.push(10 * round + id));
        if round == 0 {
            while let headwater_nvme::controller::Fetch::Command(fetched) = queue.fetch() {
                queue.complete(fetched.token, 0, Status::SUCCESS);
            }
        }
    }
    queue.begin_delete();
    assert_eq!(queue.drain(), Drain::Waiting { live: 0, unposted: 1 });
    assert_eq!(host.reap_all(), [(0, Status::SUCCESS), (1, Status::SUCCESS)]);
    assert_eq!(queue.drain(), Drain::Done);
    let aborted = Status::ABORTED_SQ_DELETION;
    assert_eq!(host.reap_all(), [(10, aborted), (11, aborted)]);
}

#[test]
fn a_queue_whose_host_is_gone_leaves_when_its_commands_end() {
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
fn turns_go_on_when_queues_come_and_go() {
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
fn queue_numbers_are_checked() {
    let mut arbiter = arbiter(1);
    let refused = |id| Some(ArbiterError::OutOfRange(QueueId(id)));
    assert_eq!(arbiter.add(raw_queue(0, 1).1).err(), refused(0));
    assert_eq!(arbiter.add(raw_queue(1_025, 1).1).err(), refused(1_025));
    arbiter.add(raw_queue(1_024, 1).1).unwrap();
    let taken = arbiter.add(raw_queue(1_024, 1).1).unwrap_err();
    assert_eq!(taken, ArbiterError::Taken(QueueId(1_024)));
    assert_eq!(taken.status(), Status::INVALID_QUEUE_ID);
    assert_eq!(
        arbiter.begin_delete(QueueId(3)),
        Err(ArbiterError::Missing(QueueId(3)))
    );
}

/// One thing a run does next.
#[derive(Clone, Debug)]
enum Step {
    Submit(usize),
    HostRing(usize),
    Reap(usize),
    Fetch,
    Complete(usize),
    Ring,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_usize).prop_map(Step::Submit),
        2 => (0..3_usize).prop_map(Step::HostRing),
        2 => (0..3_usize).prop_map(Step::Reap),
        4 => Just(Step::Fetch),
        4 => (0..64_usize).prop_map(Step::Complete),
        1 => Just(Step::Ring),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_accepted_command_gets_exactly_one_completion(steps in prop::collection::vec(step(), 1..400)) {
        let mut arbiter = arbiter(2);
        let mut hosts = Vec::new();
        for id in 1..=3_u16 {
            let (host, end) = QueuePair::new(u32::from(id)).unwrap();
            arbiter.add(IoQueue::new(QueueId(id), QueueKind::Kv, end)).unwrap();
            hosts.push((host, Vec::new()));
        }
        let mut live = Vec::new();
        let mut run = |step: Step| {
            match step {
                Step::Submit(which) => {
                    let (host, waiting) = &mut hosts[which];
                    match host.submit(SubmissionEntry::default()) {
                        Ok(id) => {
                            assert!(!waiting.contains(&id), "an id in flight was given out again");
                            waiting.push(id);
                        }
                        Err(_) => assert!(!waiting.is_empty(), "full while nothing is in flight"),
                    }
                }
                Step::HostRing(which) => drop(hosts[which].0.ring()),
                Step::Reap(which) => {
                    let (host, waiting) = &mut hosts[which];
                    while let Some(done) = host.reap().expect("the controller tells the truth") {
                        let at = waiting.iter().position(|&id| id == done.command);
                        waiting.swap_remove(at.expect("an answer nobody waits for"));
                        assert_eq!(done.result, u32::from(done.command.number()) + 1);
                    }
                    assert_eq!(host.in_flight() as usize, waiting.len());
                }
                Step::Fetch => live.extend(arbiter.fetch()),
                Step::Complete(at) => {
                    if !live.is_empty() {
                        let done = live.swap_remove(at % live.len());
                        let result = u32::from(done.token.command_id()) + 1;
                        arbiter.complete(done.token, result, Status::SUCCESS);
                    }
                }
                Step::Ring => arbiter.ring(|_| ()),
            }
        };
        steps.into_iter().for_each(&mut run);
        for _ in 0..64 {
            (0..3).for_each(|which| run(Step::HostRing(which)));
            run(Step::Fetch);
            run(Step::Complete(0));
            (0..3).for_each(|which| run(Step::Reap(which)));
        }
        prop_assert!(live.is_empty());
        for (_, waiting) in &hosts {
            prop_assert!(waiting.is_empty(), "commands without an answer: {waiting:?}");
        }
    }

    #[test]
    fn a_host_that_scribbles_over_its_rings_harms_only_itself(
        writes in prop::collection::vec((0..100_usize, prop_oneof![0..6_u64, any::<u64>()]), 1..300),
    ) {
        let mut arbiter = arbiter(4);
        let (liar, queue) = raw_queue(1, 4);
        arbiter.add(queue).unwrap();
        let (mut honest, queue) = raw_queue(2, 4);
        arbiter.add(queue).unwrap();
        let mut live = Vec::new();
        for (round, (word, value)) in (0_u16..).zip(writes) {
            liar.set(word % liar.memory.words(), value);
            honest.push(round);
            live.extend(std::iter::from_fn(|| arbiter.fetch()));
            for fetched in live.drain(..) {
                arbiter.complete(fetched.token, 0, Status::SUCCESS);
            }
            arbiter.ring(|_| ());
            let _ = arbiter.prepare_sleep();
            arbiter.awake();
            prop_assert_eq!(honest.reap_all(), [(round, Status::SUCCESS)]);
            let bounded = arbiter.queue(QueueId(1)).unwrap();
            prop_assert!(bounded.unposted() <= 5 && bounded.live() == 0);
        }
        arbiter.begin_delete(QueueId(1)).unwrap();
        arbiter.abandon(QueueId(1)).unwrap();
        prop_assert!(arbiter.remove_drained(QueueId(1)).unwrap().is_some());
    }
}
