//! Tests of the host side of a queue pair: a full queue is an error value, stale ids are dropped, no wake-up is lost.
#![cfg(not(loom))]

use headwater_host::ring_memory::{HeapWords, RingMemory};
use headwater_host::wake::WakeDescriptor;
use headwater_nvme::controller::{ControllerQueuePair, QueueArbiter, QueueId, QueueKind};
use headwater_nvme::queue_pair::{
    ControllerFault, QUEUE_DEPTH_MAX, QueuePair, QueuePairError, SleepDecision,
};
use headwater_nvme::ring::{QueueFull, QueueSlots, RingLayout, WakeDecision};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::completion::{CompletionEntry, PhaseTag};
use headwater_nvme::spec::status::Status;
use std::num::NonZeroU16;
use zerocopy::little_endian::{U16, U32};

fn layout(depth: u32) -> RingLayout {
    let slots = QueueSlots::new(depth + 1).expect("a valid depth");
    RingLayout { submission_slots: slots, completion_slots: slots }
}

/// Writes a completion at a controller's position, valid or not.
fn write_completion(memory: &HeapWords, depth: u32, position: u32, command_id: u16, submission_head: u16) {
    let word = layout(depth).completion_word(position);
    let entry = CompletionEntry {
        command_id: U16::new(command_id),
        submission_head: U16::new(submission_head),
        ..CompletionEntry::default()
    };
    let [first, second] = entry.with_phase(PhaseTag::One).to_words();
    memory.store_relaxed(word, first);
    memory.store_release(word + 1, second);
}

#[test]
fn depths_out_of_range_are_refused() {
    for depth in [0, QUEUE_DEPTH_MAX + 1, u32::MAX] {
        assert_eq!(QueuePair::<_, ()>::new(depth).err(), Some(QueuePairError::Depth { depth }));
    }
    assert!(QueuePair::<_, ()>::new(QUEUE_DEPTH_MAX).is_ok());
    let small = QueuePair::<_, ()>::over(HeapWords::zeroed(8), 4).err();
    assert!(matches!(small, Some(QueuePairError::Memory { given: 8, .. })));
}

#[test]
fn a_full_queue_is_an_error_value_and_loses_no_command() {
    for depth in [1, 2, 5] {
        let (mut host, end) = QueuePair::new(depth).unwrap();
        let mut queue = ControllerQueuePair::new(QueueId(1), QueueKind::Standard, end);
        for _ in 0..20 {
            for _ in 0..depth {
                host.submit(SubmissionEntry::default(), ()).unwrap();
            }
            assert_eq!(host.submit(SubmissionEntry::default(), ()), Err(QueueFull { context: () }));
            assert_eq!(host.in_flight(), depth);
            let _ = host.ring();
            while let headwater_nvme::controller::FetchOutcome::Command(fetched) = queue.fetch() {
                queue.complete(fetched.token, 0, Status::SUCCESS);
            }
            let mut reaped = 0;
            while host.reap().unwrap().is_some() {
                reaped += 1;
            }
            assert_eq!(reaped, depth);
            let _ = host.ring();
        }
    }
}

#[test]
fn duplicate_stale_and_unknown_completions_are_not_passed_on() {
    let memory = HeapWords::zeroed(layout(4).words());
    let (mut host, _end) = QueuePair::over(memory.clone(), 4).unwrap();
    let first = host.submit(SubmissionEntry::default(), ()).unwrap();
    let second = host.submit(SubmissionEntry::default(), ()).unwrap();
    let _ = host.ring();
    let unknown = |command_id| Err(ControllerFault::UnknownCommand { command_id });
    write_completion(&memory, 4, 0, first.number(), 1);
    write_completion(&memory, 4, 1, first.number(), 1);
    write_completion(&memory, 4, 2, 0xFFFF, 1);
    assert_eq!(host.reap().unwrap().unwrap().command, first);
    assert_eq!(host.reap(), unknown(first.number()), "duplicate");
    assert_eq!(host.reap(), unknown(0xFFFF), "never allocated");
    // The slot is used again, with another generation: the old completion is stale.
    let later: Vec<_> = (0..3).map(|_| host.submit(SubmissionEntry::default(), ()).unwrap()).collect();
    assert!(later.iter().any(|&id| host.slot(id) == host.slot(first)));
    let _ = host.ring();
    write_completion(&memory, 4, 3, first.number(), 2);
    assert_eq!(host.reap(), unknown(first.number()), "stale");
    write_completion(&memory, 4, 4, second.number(), 2);
    assert_eq!(host.reap().unwrap().unwrap().command, second, "the pair still works");
    assert_eq!(host.in_flight(), 3);
}

#[test]
fn an_impossible_submission_head_is_reported() {
    let memory = HeapWords::zeroed(layout(4).words());
    let (mut host, _end) = QueuePair::over(memory.clone(), 4).unwrap();
    let command = host.submit(SubmissionEntry::default(), ()).unwrap();
    let _ = host.ring();
    write_completion(&memory, 4, 0, command.number(), 3);
    assert!(matches!(host.reap(), Err(ControllerFault::Head(_))));
    assert_eq!(host.in_flight(), 0);
}

#[test]
fn a_side_that_is_awake_is_not_woken() {
    let (mut host, end) = QueuePair::new(8).unwrap();
    let mut arbiter = QueueArbiter::new(NonZeroU16::MIN);
    arbiter.add(ControllerQueuePair::new(QueueId(1), QueueKind::Standard, end)).unwrap();
    host.submit(SubmissionEntry::default(), ()).unwrap();
    assert_eq!(host.ring(), WakeDecision::NotNeeded);
    let fetched = arbiter.fetch().unwrap();
    assert_eq!(arbiter.prepare_sleep(), SleepDecision::UntilWoken);
    let (wake, sleep) = host.prepare_sleep();
    assert_eq!((wake, sleep), (WakeDecision::NotNeeded, SleepDecision::UntilWoken));
    arbiter.complete(fetched.token, 0, Status::SUCCESS);
    let mut woken = Vec::new();
    arbiter.ring(|id| woken.push(id));
    arbiter.ring(|id| woken.push(id));
    assert_eq!(woken, [QueueId(1)], "once");
    host.disarm();
    assert!(host.reap().unwrap().is_some());
    host.submit(SubmissionEntry::default(), ()).unwrap();
    assert_eq!(host.ring(), WakeDecision::Needed, "the arbiter still sleeps");
    arbiter.disarm();
    let fetched = arbiter.fetch().unwrap();
    arbiter.complete(fetched.token, 0, Status::SUCCESS);
    arbiter.ring(|id| panic!("{id} does not sleep"));
}

/// Commands in the two-thread run.
const COMMANDS: u32 = 50_000;

/// Runs the controller's thread: serves commands, and sleeps on the bell if there is no work.
fn controller(mut arbiter: QueueArbiter<HeapWords>, bell: &WakeDescriptor, host_bell: &WakeDescriptor) {
    let mut served = 0;
    while served < COMMANDS {
        let before = served;
        while let Some(fetched) = arbiter.fetch() {
            let result = fetched.entry.cdw10.get() ^ 0x5A5A_5A5A;
            arbiter.complete(fetched.token, result, Status::SUCCESS);
            served += 1;
        }
        arbiter.ring(|_| host_bell.wake().expect("an eventfd can be written"));
        if served == before && arbiter.prepare_sleep() == SleepDecision::UntilWoken {
            bell.wait(None).expect("an eventfd can be waited for");
            arbiter.disarm();
        }
    }
}

#[test]
fn two_threads_that_sleep_when_idle_lose_no_command_and_no_wake_up() {
    for depth in [1, 3, 32] {
        let (mut host, end) = QueuePair::new(depth).unwrap();
        let mut arbiter = QueueArbiter::new(NonZeroU16::new(4).unwrap());
        arbiter.add(ControllerQueuePair::new(QueueId(1), QueueKind::Standard, end)).unwrap();
        let bell = WakeDescriptor::new().unwrap();
        let host_bell = WakeDescriptor::new().unwrap();
        let (their_bell, their_host_bell) = (bell.clone(), host_bell.clone());
        let thread = std::thread::spawn(move || controller(arbiter, &their_bell, &their_host_bell));
        let mut expected = vec![0; usize::try_from(depth).unwrap()];
        let (mut submitted, mut reaped) = (0_u32, 0);
        while reaped < COMMANDS {
            while submitted < COMMANDS {
                let entry = SubmissionEntry { cdw10: U32::new(submitted), ..SubmissionEntry::default() };
                let Ok(id) = host.submit(entry, ()) else { break };
                expected[host.slot(id)] = submitted ^ 0x5A5A_5A5A;
                submitted += 1;
            }
            let (wake, sleep) = host.prepare_sleep();
            if wake == WakeDecision::Needed {
                bell.wake().unwrap();
            }
            if sleep == SleepDecision::UntilWoken {
                host_bell.wait(None).unwrap();
                host.disarm();
            }
            while let Some(done) = host.reap().unwrap() {
                assert_eq!(done.result, expected[done.slot]);
                reaped += 1;
            }
        }
        thread.join().unwrap();
    }
}
