//! Tests of a queue whose users have completion policies of their own.

use super::exchange::{CompletionExchange, ExchangeQueue, SeatPolicy, WakeCallback, seat_of};
use super::*;
use crate::backend::DeviceBackend as _;
use crate::command::WriteDurability;
use crate::completion::CompletionPolicy;
use crate::handle::Handle;
use crate::model::{ModelContents, ModelDevice, ModelSettings, ServiceTimes};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

/// A queue whose answers the test makes available.
#[derive(Default)]
struct ScriptedQueue {
    submitted: VecDeque<u64>,
    answered: VecDeque<u64>,
}

impl ScriptedQueue {
    /// Answers the oldest command of a seat.
    fn answer(&mut self, seat: u32) {
        let at = self.submitted.iter().position(|&token| seat_of(token) == seat).unwrap();
        let token = self.submitted.remove(at).unwrap();
        self.answered.push_back(token);
    }
}

impl ExchangeQueue for ScriptedQueue {
    type Command = ();
    type Answer = u64;
    type Rejected = ();
    type Error = ();

    fn submit(&mut self, (): (), token: u64) -> Result<(), ()> {
        self.submitted.push_back(token);
        Ok(())
    }

    fn poll_next(&mut self) -> Result<Option<(u64, u64)>, ()> {
        Ok(self.answered.pop_front().map(|token| (token, token)))
    }

    fn arm(&mut self) -> Result<bool, ()> {
        Ok(false)
    }
}

struct Seats {
    exchange: CompletionExchange<ScriptedQueue>,
    /// The notifications of each seat.
    calls: Vec<Arc<AtomicU32>>,
    thread: u32,
}

impl Seats {
    fn new(policies: &[SeatPolicy]) -> Self {
        let exchange = CompletionExchange::new(ScriptedQueue::default());
        let thread = exchange.begin_thread();
        let calls = policies.iter().map(|&policy| {
            let (seat, calls) = (exchange.allocate_seat(), Arc::new(AtomicU32::new(0)));
            let counted = Arc::clone(&calls);
            let call = WakeCallback::new(move || {
                counted.fetch_add(1, Ordering::Relaxed);
            });
            exchange.set_callback(seat, Some(call));
            exchange.set_policy(seat, policy);
            calls
        });
        let calls = calls.collect();
        Self { exchange, calls, thread }
    }

    fn submit(&self, seat: u32, commands: u32) {
        (0..commands).for_each(|slot| self.exchange.submit(seat, (), slot).unwrap());
    }

    fn answer(&self, seat: u32) {
        self.exchange.with_queue(|queue| queue.answer(seat));
    }

    fn turn(&self) {
        self.exchange.poll_on_thread(self.thread, |_| ()).unwrap().unwrap();
    }

    fn calls(&self) -> Vec<u32> {
        self.calls.iter().map(|calls| calls.load(Ordering::Relaxed)).collect()
    }
}

#[test]
fn each_seat_is_notified_of_as_many_answers_as_its_own_policy_says() {
    let (one, three) = (
        SeatPolicy::Thread { count: 1, time: Nanos::ZERO },
        SeatPolicy::Thread { count: 3, time: Nanos(500) },
    );
    let seats = Seats::new(&[three, one]);
    seats.submit(0, 8);
    seats.submit(1, 8);
    for answers in 1..=6 {
        seats.answer(0);
        seats.answer(1);
        seats.turn();
        assert_eq!(seats.calls(), [answers / 3, answers]);
    }
}

#[test]
fn each_seat_is_notified_after_its_own_time() {
    let policy = |time| SeatPolicy::Thread { count: 9, time: Nanos(time) };
    let seats = Seats::new(&[policy(100), policy(400), SeatPolicy::Thread { count: 9, time: Nanos::ZERO }]);
    assert!(seats.exchange.is_timed());
    for seat in 0..3 {
        seats.submit(seat, 5);
        seats.answer(seat);
    }
    seats.turn();
    assert_eq!(seats.exchange.notify_due(Nanos(1_000)), Some(Nanos(1_100)));
    assert_eq!((seats.exchange.notify_due(Nanos(1_100)), seats.calls()), (Some(Nanos(1_400)), vec![1, 0, 0]));
    assert_eq!((seats.exchange.notify_due(Nanos(1_400)), seats.calls()), (None, vec![1, 1, 0]));
}

#[test]
fn seat_without_a_thread_in_its_policy_polls_beside_the_thread() {
    let seats = Seats::new(&[SeatPolicy::Polls, SeatPolicy::Thread { count: 1, time: Nanos::ZERO }]);
    seats.submit(0, 1);
    seats.submit(1, 1);
    seats.answer(1);
    assert_eq!(seats.exchange.take(1).unwrap(), None, "only the thread polls for this seat");
    seats.answer(0);
    assert!(seats.exchange.take(0).unwrap().is_some());
    // What the poll found for the other seat was delivered, and the seat was notified.
    assert!(seats.exchange.take(1).unwrap().is_some());
    assert_eq!(seats.calls()[1], 1);
}

/// Compares with a naive model: a seat is notified when it has as many answers as its count since its last notification,
/// or all.
#[test]
fn notifications_agree_with_a_naive_model() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let counts: Vec<u32> = (0..3).map(|_| random.u32(1..5)).collect();
        let policies: Vec<_> =
            counts.iter().map(|&count| SeatPolicy::Thread { count, time: Nanos::ZERO }).collect();
        let seats = Seats::new(&policies);
        let (mut owed, mut found, mut since, mut notified) = ([0_u32; 3], [0_u32; 3], [0_u32; 3], [0_u32; 3]);
        for _ in 0..200 {
            let at = random.usize(0..3);
            let seat = u32::try_from(at).unwrap();
            match random.u32(0..4) {
                0 => {
                    seats.submit(seat, 1);
                    owed[at] += 1;
                }
                1 if owed[at] > found[at] => {
                    seats.answer(seat);
                    seats.turn();
                    (found[at], since[at]) = (found[at] + 1, since[at] + 1);
                }
                2 if found[at] > 0 => {
                    assert!(seats.exchange.take(seat).unwrap().is_some());
                    (owed[at], found[at], since[at]) = (owed[at] - 1, found[at] - 1, 0);
                }
                _ => seats.turn(),
            }
            for at in 0..3 {
                if since[at] > 0 && (since[at] >= counts[at] || found[at] == owed[at]) {
                    (notified[at], since[at]) = (notified[at] + 1, 0);
                }
            }
            // Answers that were taken without a notification need none: the counts agree when every seat is settled.
            assert_eq!(seats.calls(), notified, "seed {seed}: {counts:?}");
        }
    }
}

fn handles() -> (ModelDevice, Handle, Handle) {
    let service = ServiceTimes { fixed: Nanos::from_micros(20), ..ServiceTimes::default() };
    let settings =
        ModelSettings { contents: ModelContents::Memory, ..ModelSettings::latency_model(1 << 20, service) };
    let mut model = ModelDevice::new(settings).unwrap();
    let shared = SharedQueue::new(Queue::over(model.queue(16).unwrap()));
    let build = || Handle::builder(model.facts()).queue(shared.clone()).build().unwrap();
    let (one, other) = (build(), build());
    (model, one, other)
}

/// Guards against a regression: the last handle to set a policy set pace and aggregation for all, and the thread never ended.
#[test]
fn handles_over_one_queue_keep_their_completion_policies() {
    let (model, mut one, mut other) = handles();
    let threaded = CompletionPolicy::Thread(PollPace::Busy, CompletionAggregation::NONE);
    let aggregation = CompletionAggregation { count: 50, time: Nanos::from_millis(1) };
    let aggregated = CompletionPolicy::Thread(PollPace::Adaptive, aggregation);
    one.set_completion(threaded).unwrap();
    other.set_completion(aggregated).unwrap();
    assert_eq!((one.completion(), other.completion()), (threaded, aggregated));
    let buffer = |model: &ModelDevice| model.clone().region(512).unwrap();
    for round in 0..20 {
        let plain = WriteDurability::NamespaceDefault;
        one.write(round * 512, buffer(&model), plain).unwrap();
        other.write((100 + round) * 512, buffer(&model), plain).unwrap();
    }
    one.arm().unwrap();
    other.arm().unwrap();
    // The thread stays for the handle whose policy has it, and ends with the last.
    one.set_completion(CompletionPolicy::Inline).unwrap();
    assert!(matches!(one.arm(), Err(IoError::Unsupported { .. })));
    other.arm().unwrap();
    one.read(0, buffer(&model)).unwrap();
    other.read(0, buffer(&model)).unwrap();
    drop(other);
    one.read(0, buffer(&model)).unwrap();
    one.set_completion(threaded).unwrap();
    one.read(0, buffer(&model)).unwrap();
}

#[test]
fn handles_that_change_policies_on_threads_lose_no_completion() {
    let (model, one, other) = handles();
    std::thread::scope(|scope| {
        for (number, mut handle) in [(0_u64, one), (1, other)] {
            let mut model = model.clone();
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(number);
                for round in 0..400 {
                    if round % 5 == 0 {
                        let aggregation =
                            CompletionAggregation { count: random.u32(1..4), time: Nanos::from_micros(50) };
                        let policy = match random.u32(0..4) {
                            0 => CompletionPolicy::Inline,
                            1 => CompletionPolicy::Paced(PollPace::Adaptive),
                            2 => CompletionPolicy::Thread(PollPace::Busy, aggregation),
                            _ => CompletionPolicy::Thread(PollPace::Adaptive, aggregation),
                        };
                        handle.set_completion(policy).unwrap();
                    }
                    let buffer = model.region(512).unwrap();
                    handle.read((number * 500 + round) * 512, buffer).unwrap();
                }
            });
        }
    });
}
