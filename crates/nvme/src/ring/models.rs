//! Loom models of the ring: every interleaving of a small one.
//!
//! Input: none. Output: proof, within loom's bounds, that entries arrive whole and once, and that a sleeper is always
//! woken. A lost wake-up shows as a deadlock, which loom reports.

use crate::ring::completion::{CompletionConsumer, CompletionProducer};
use crate::ring::doorbell::WakeDecision;
use crate::ring::layout::{QueueSlots, RingLayout};
use crate::ring::submission::{SubmissionConsumer, SubmissionProducer};
use crate::spec::command::SubmissionEntry;
use crate::spec::completion::CompletionEntry;
use headwater_host::ring_memory::HeapWords;
use headwater_host::sync::{Condvar, ModelBuilder, Mutex, thread};
use std::sync::Arc;
use zerocopy::little_endian::{U16, U32, U64};

/// Commands in the transfer model: more than one pass over rings of two slots.
const COMMANDS: u16 = 5;

/// Context switches that loom may force at arbitrary points, beside those at which a thread waits.
const PREEMPTIONS: usize = 3;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = ModelBuilder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

fn layout() -> RingLayout {
    layout_with(2)
}

fn layout_with(submission_slots: u32) -> RingLayout {
    RingLayout {
        submission_slots: QueueSlots::new(submission_slots).unwrap(),
        completion_slots: QueueSlots::new(2).unwrap(),
    }
}

fn command(id: u16) -> SubmissionEntry {
    SubmissionEntry {
        command_id: U16::new(id),
        namespace: U32::new(u32::from(id) + 1),
        prp1: U64::new(u64::from(id) + 2),
        cdw15: U32::new(u32::from(id) + 3),
        ..SubmissionEntry::default()
    }
}

/// A model of an eventfd: a wake-up is kept until it is waited for.
#[derive(Default)]
struct ModelEventfd {
    written: Mutex<bool>,
    changed: Condvar,
}

impl ModelEventfd {
    fn wake(&self, wake: WakeDecision) {
        if wake == WakeDecision::Needed {
            *self.written.lock().unwrap() = true;
            self.changed.notify_one();
        }
    }

    fn wait(&self) {
        let mut written = self.written.lock().unwrap();
        while !*written {
            written = self.changed.wait(written).unwrap();
        }
        *written = false;
    }
}

#[test]
fn loom_entries_arrive_whole_and_once_over_the_phase_wrap() {
    check(|| {
        let memory = HeapWords::zeroed(layout().words());
        let mut fetcher = SubmissionConsumer::new(memory.clone(), layout());
        let mut poster = CompletionProducer::new(memory.clone(), layout());
        let mut pusher = SubmissionProducer::new(memory.clone(), layout());
        let mut reaper = CompletionConsumer::new(memory, layout());
        let controller = thread::spawn(move || {
            for id in 0..COMMANDS {
                let entry = loop {
                    match fetcher.fetch().expect("the host writes valid doorbells") {
                        Some(entry) => break entry,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(entry, command(id));
                let answer = CompletionEntry {
                    result: U32::new(u32::from(id) + 9),
                    submission_head: U16::new(fetcher.head()),
                    command_id: entry.command_id,
                    ..CompletionEntry::default()
                };
                while poster.post(answer).is_err() {
                    poster.refresh().expect("the host writes valid doorbells");
                    thread::yield_now();
                }
                let _ = poster.ring();
            }
        });
        for id in 0..COMMANDS {
            pusher.push(command(id)).expect("the last completion freed the slot");
            let _ = pusher.ring();
            let answer = loop {
                match reaper.reap() {
                    Some(answer) => break answer,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(answer.command_id.get(), id);
            assert_eq!(answer.result.get(), u32::from(id) + 9);
            pusher.set_head(answer.submission_head.get()).expect("the controller reports valid heads");
            let _ = reaper.ring();
        }
        assert_eq!(reaper.reap(), None);
        controller.join().unwrap();
    });
}

#[test]
fn loom_sleeping_controller_is_woken_by_the_submission_doorbell() {
    check(|| {
        let memory = HeapWords::zeroed(layout_with(3).words());
        let mut fetcher = SubmissionConsumer::new(memory.clone(), layout_with(3));
        let mut pusher = SubmissionProducer::new(memory, layout_with(3));
        let eventfd = Arc::new(ModelEventfd::default());
        let wakes = Arc::clone(&eventfd);
        let controller = thread::spawn(move || {
            for id in 0..2 {
                while !fetcher.has_work() {
                    fetcher.arm();
                    if !fetcher.has_work() {
                        eventfd.wait();
                    }
                    fetcher.disarm();
                }
                assert_eq!(fetcher.fetch().unwrap(), Some(command(id)));
            }
        });
        pusher.push(command(0)).unwrap();
        wakes.wake(pusher.ring());
        pusher.push(command(1)).unwrap();
        wakes.wake(pusher.ring());
        controller.join().unwrap();
    });
}

#[test]
fn loom_sleeping_host_is_woken_by_the_completion() {
    check(|| {
        let memory = HeapWords::zeroed(layout().words());
        let mut poster = CompletionProducer::new(memory.clone(), layout());
        let mut reaper = CompletionConsumer::new(memory, layout());
        let to_host = Arc::new(ModelEventfd::default());
        let wakes_host = Arc::clone(&to_host);
        let to_controller = Arc::new(ModelEventfd::default());
        let wakes_controller = Arc::clone(&to_controller);
        let controller = thread::spawn(move || {
            for id in 0..2_u16 {
                let answer = CompletionEntry { command_id: U16::new(id), ..CompletionEntry::default() };
                // The queue holds one entry: the second waits until the host has freed the first slot.
                while poster.post(answer).is_err() {
                    poster.arm();
                    if !poster.head_moved() {
                        to_controller.wait();
                    }
                    poster.disarm();
                    poster.refresh().unwrap();
                }
                wakes_host.wake(poster.ring());
            }
        });
        for id in 0..2 {
            while !reaper.has_work() {
                reaper.arm();
                if !reaper.has_work() {
                    to_host.wait();
                }
                reaper.disarm();
            }
            assert_eq!(reaper.reap().unwrap().command_id.get(), id);
            wakes_controller.wake(reaper.ring());
        }
        controller.join().unwrap();
    });
}
