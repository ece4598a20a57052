//! Loom model of a whole queue pair: a host and an arbiter that both sleep whenever they are idle.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p headwater-nvme --release loom_`.
#![cfg(loom)]

use headwater_host::sync::{Condvar, ModelBuilder, Mutex, thread};
use headwater_nvme::controller::{ControllerQueuePair, QueueArbiter, QueueId, QueueKind};
use headwater_nvme::queue_pair::{QueuePair, SleepDecision};
use headwater_nvme::ring::WakeDecision;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use std::num::NonZeroU16;
use std::sync::Arc;

/// More than one pass over a queue of depth 1.
const COMMANDS: u32 = 3;

#[derive(Default)]
struct WakeFlag {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl WakeFlag {
    fn ring(&self) {
        *self.rung.lock().expect("no thread panicked") = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().expect("no thread panicked");
        while !*rung {
            rung = self.changed.wait(rung).expect("no thread panicked");
        }
        *rung = false;
    }
}

#[test]
fn loom_host_and_arbiter_that_both_sleep_lose_no_wake_up() {
    let mut builder = ModelBuilder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let (mut host, end) = QueuePair::new(1).unwrap();
        let to_controller = Arc::new(WakeFlag::default());
        let to_host = Arc::new(WakeFlag::default());
        let (bell, host_bell) = (Arc::clone(&to_controller), Arc::clone(&to_host));
        let controller = thread::spawn(move || {
            let mut arbiter = QueueArbiter::new(NonZeroU16::MIN);
            arbiter.add(ControllerQueuePair::new(QueueId(1), QueueKind::Standard, end)).unwrap();
            for _ in 0..COMMANDS {
                let fetched = loop {
                    if let Some(fetched) = arbiter.fetch() {
                        break fetched;
                    }
                    if arbiter.prepare_sleep() == SleepDecision::UntilWoken {
                        bell.wait();
                        arbiter.disarm();
                    }
                };
                arbiter.complete(fetched.token, 0, Status::SUCCESS);
                arbiter.ring(|_| host_bell.ring());
            }
        });
        for _ in 0..COMMANDS {
            let id = host.submit(SubmissionEntry::default(), ()).unwrap();
            let done = loop {
                if let Some(done) = host.reap().unwrap() {
                    break done;
                }
                let (wake, sleep) = host.prepare_sleep();
                if wake == WakeDecision::Needed {
                    to_controller.ring();
                }
                if sleep == SleepDecision::UntilWoken {
                    to_host.wait();
                    host.disarm();
                }
            };
            assert_eq!(done.command, id);
        }
        controller.join().unwrap();
    });
}
