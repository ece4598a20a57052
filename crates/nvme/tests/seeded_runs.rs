//! Seeded runs of several queues: against a plain model, and against a host that writes any value anywhere.
#![cfg(not(loom))]

#[path = "controller/raw_host.rs"]
mod raw_host;

use headwater_nvme::controller::{ControllerQueuePair, QueueId, QueueKind};
use headwater_nvme::queue_pair::QueuePair;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use proptest::prelude::*;
use raw_host::{arbiter, raw_queue};

/// One step of a run.
#[derive(Clone, Debug)]
enum PairStep {
    Submit(usize),
    HostRing(usize),
    Reap(usize),
    Fetch,
    Complete(usize),
    Ring,
}

fn step() -> impl Strategy<Value = PairStep> {
    prop_oneof![
        4 => (0..3_usize).prop_map(PairStep::Submit),
        2 => (0..3_usize).prop_map(PairStep::HostRing),
        2 => (0..3_usize).prop_map(PairStep::Reap),
        4 => Just(PairStep::Fetch),
        4 => (0..64_usize).prop_map(PairStep::Complete),
        1 => Just(PairStep::Ring),
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
            arbiter.add(ControllerQueuePair::new(QueueId(id), QueueKind::Standard, end)).unwrap();
            hosts.push((host, Vec::new()));
        }
        let mut live = Vec::new();
        let mut run = |step: PairStep| {
            match step {
                PairStep::Submit(which) => {
                    let (host, waiting) = &mut hosts[which];
                    match host.submit(SubmissionEntry::default(), ()) {
                        Ok(id) => {
                            assert!(!waiting.contains(&id), "an id in flight was assigned again");
                            waiting.push(id);
                        }
                        Err(_) => assert!(!waiting.is_empty(), "full without commands in flight"),
                    }
                }
                PairStep::HostRing(which) => drop(hosts[which].0.ring()),
                PairStep::Reap(which) => {
                    let (host, waiting) = &mut hosts[which];
                    while let Some(done) = host.reap().expect("valid completions") {
                        let at = waiting.iter().position(|&id| id == done.command);
                        waiting.swap_remove(at.expect("a completion of a command in flight"));
                        assert_eq!(done.result, u32::from(done.command.number()) + 1);
                    }
                    assert_eq!(host.in_flight() as usize, waiting.len());
                }
                PairStep::Fetch => live.extend(arbiter.fetch()),
                PairStep::Complete(at) => {
                    if !live.is_empty() {
                        let done = live.swap_remove(at % live.len());
                        let result = u32::from(done.token.command_id()) + 1;
                        arbiter.complete(done.token, result, Status::SUCCESS);
                    }
                }
                PairStep::Ring => arbiter.ring(|_| ()),
            }
        };
        steps.into_iter().for_each(&mut run);
        for _ in 0..64 {
            (0..3).for_each(|which| run(PairStep::HostRing(which)));
            run(PairStep::Fetch);
            run(PairStep::Complete(0));
            (0..3).for_each(|which| run(PairStep::Reap(which)));
        }
        prop_assert!(live.is_empty());
        for (_, waiting) in &hosts {
            prop_assert!(waiting.is_empty(), "commands without a completion: {waiting:?}");
        }
    }

    #[test]
    fn arbitrary_ring_writes_harm_only_their_own_queue(
        writes in prop::collection::vec((0..100_usize, prop_oneof![0..6_u64, any::<u64>()]), 1..300),
    ) {
        let mut arbiter = arbiter(4);
        let (hostile, queue) = raw_queue(1, 4);
        arbiter.add(queue).unwrap();
        let (mut honest, queue) = raw_queue(2, 4);
        arbiter.add(queue).unwrap();
        let mut live = Vec::new();
        for (round, (word, value)) in (0_u16..).zip(writes) {
            hostile.set(word, value);
            honest.push(round);
            live.extend(std::iter::from_fn(|| arbiter.fetch()));
            for fetched in live.drain(..) {
                arbiter.complete(fetched.token, 0, Status::SUCCESS);
            }
            arbiter.ring(|_| ());
            let _ = arbiter.prepare_sleep();
            arbiter.disarm();
            prop_assert_eq!(honest.reap_all(), [(round, Status::SUCCESS)]);
            let bounded = arbiter.queue(QueueId(1)).unwrap();
            prop_assert!(bounded.unposted() <= 5 && bounded.live() == 0);
        }
        arbiter.begin_delete(QueueId(1)).unwrap();
        arbiter.abandon(QueueId(1)).unwrap();
        prop_assert!(arbiter.remove_drained(QueueId(1)).unwrap().is_some());
    }
}
