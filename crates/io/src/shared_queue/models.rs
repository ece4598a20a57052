//! Loom models of the exchange: every interleaving of two threads at one queue, within bounds.
//!
//! Output: proof that an answer goes to the seat of its command and that no waiter is missed. A lost wake-up shows as a
//! deadlock, which loom reports.

use super::{CompletionExchange, ExchangeQueue};
use headwater_host::clock::Nanos;
use headwater_host::sync::{Condvar, ModelBuilder, Mutex, thread};
use std::collections::VecDeque;
use std::sync::Arc;

/// Context switches that loom may force at arbitrary points, in addition to those at which a thread waits.
const PREEMPTIONS: usize = 2;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = ModelBuilder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// A device with a thread of its own: submitted and answered commands, and a notification that is sent if it was armed.
#[derive(Default)]
struct LoomDevice {
    state: Mutex<DeviceState>,
    work: Condvar,
    wakeup: Condvar,
}

#[derive(Default)]
struct DeviceState {
    submitted: VecDeque<u64>,
    answered: VecDeque<u64>,
    armed: bool,
    rung: bool,
}

impl LoomDevice {
    fn serve(&self, commands: usize) {
        for _ in 0..commands {
            let mut state = self.state.lock().unwrap();
            let token = loop {
                match state.submitted.pop_front() {
                    Some(token) => break token,
                    None => state = self.work.wait(state).unwrap(),
                }
            };
            state.answered.push_back(token);
            if state.armed {
                state.armed = false;
                state.rung = true;
                self.wakeup.notify_one();
            }
        }
    }

    /// Answers what was submitted.
    fn serve_available(&self) {
        let mut state = self.state.lock().unwrap();
        let submitted = std::mem::take(&mut state.submitted);
        state.answered.extend(submitted);
    }

    /// Simulates a poll of the queue's descriptor.
    fn sleep(&self) {
        let mut state = self.state.lock().unwrap();
        while !state.rung {
            state = self.wakeup.wait(state).unwrap();
        }
        state.rung = false;
    }
}

struct LoomQueue(Arc<LoomDevice>);

impl ExchangeQueue for LoomQueue {
    type Command = ();
    type Answer = u64;
    type Rejected = ();
    type Error = ();

    fn submit(&mut self, (): (), token: u64) -> Result<(), ()> {
        self.0.state.lock().unwrap().submitted.push_back(token);
        self.0.work.notify_one();
        Ok(())
    }

    fn poll_next(&mut self) -> Result<Option<(u64, u64)>, ()> {
        Ok(self.0.state.lock().unwrap().answered.pop_front().map(|token| (token, token)))
    }

    fn arm(&mut self) -> Result<bool, ()> {
        let mut state = self.0.state.lock().unwrap();
        if !state.answered.is_empty() {
            return Ok(false);
        }
        (state.armed, state.rung) = (true, false);
        Ok(true)
    }
}

/// Submits commands as a user and waits for each; checks that every answer belongs to the user's seat.
fn user(exchange: &CompletionExchange<LoomQueue>, device: &LoomDevice, seat: u32, commands: u32) {
    for slot in 0..commands {
        exchange.submit(seat, (), slot).unwrap();
    }
    let mut answers = 0;
    while answers < commands {
        match exchange.take(seat).unwrap() {
            Some((slot, token)) => {
                assert_eq!(token, super::token(seat, slot), "an answer of another seat");
                answers += 1;
            }
            None => exchange
                .wait(seat, None, |_| {
                    device.sleep();
                    Ok(())
                })
                .unwrap(),
        }
    }
    assert_eq!(exchange.outstanding(seat), 0);
}

#[test]
fn loom_two_threads_share_a_queue_and_no_waiter_is_missed() {
    check(|| {
        let device = Arc::new(LoomDevice::default());
        let exchange = Arc::new(CompletionExchange::new(LoomQueue(device.clone())));
        let seats = [exchange.allocate_seat(), exchange.allocate_seat()];
        let server = {
            let device = device.clone();
            thread::spawn(move || device.serve(2))
        };
        let other = {
            let (exchange, device) = (exchange.clone(), device.clone());
            thread::spawn(move || user(&exchange, &device, seats[1], 1))
        };
        user(&exchange, &device, seats[0], 1);
        other.join().unwrap();
        server.join().unwrap();
    });
}

/// Checks B10: a completion thread that is stopped while users wait, or that goes idle while a command is submitted.
#[test]
fn loom_b10_a_polling_thread_is_woken_by_commands_and_ends_without_missing_a_waiter() {
    check(|| {
        let device = Arc::new(LoomDevice::default());
        let exchange = Arc::new(CompletionExchange::new(LoomQueue(device.clone())));
        let seat = exchange.allocate_seat();
        // Without this policy the seat would poll by itself.
        exchange.set_policy(seat, super::SeatPolicy::Thread { count: 1, time: Nanos::ZERO });
        let number = exchange.begin_thread();
        let polling = {
            let (exchange, device) = (exchange.clone(), device.clone());
            thread::spawn(move || {
                while exchange.wait_for_work(number) {
                    // One command is served between two polls, so that the model terminates.
                    device.serve(1);
                    if exchange.poll_on_thread(number, |_| ()).is_none() {
                        return;
                    }
                }
            })
        };
        user(&exchange, &device, seat, 1);
        exchange.stop_thread(number);
        polling.join().unwrap();
        exchange.end_thread(number);
        assert!(exchange.take(seat).unwrap().is_none());
    });
}

/// Checks a handle whose policy starts a thread while that of another handle ends: both threads exist for a moment.
#[test]
fn loom_thread_that_begins_while_another_ends_serves_the_seat() {
    check(|| {
        let device = Arc::new(LoomDevice::default());
        let exchange = Arc::new(CompletionExchange::new(LoomQueue(device.clone())));
        let seat = exchange.allocate_seat();
        exchange.set_policy(seat, super::SeatPolicy::Thread { count: 1, time: Nanos::ZERO });
        let run = |number: u32| {
            let (exchange, device) = (exchange.clone(), device.clone());
            thread::spawn(move || {
                while exchange.wait_for_work(number) {
                    if exchange.poll_on_thread(number, |_| ()).is_none() {
                        return;
                    }
                    device.serve_available();
                }
            })
        };
        let first = exchange.begin_thread();
        let ending = run(first);
        let second = exchange.begin_thread();
        let beginning = run(second);
        exchange.stop_thread(first);
        exchange.submit(seat, (), 0).unwrap();
        ending.join().unwrap();
        exchange.end_thread(first);
        // The second thread finds the answer.
        while exchange.take(seat).unwrap().is_none() {
            exchange.wait(seat, None, |_| unreachable!("a thread leads")).unwrap();
        }
        exchange.stop_thread(second);
        beginning.join().unwrap();
        exchange.end_thread(second);
    });
}
