//! The thread that polls a queue for completions, at the pace that its commands allow.
//!
//! Input: an exchange. Output: answers delivered to their seats, and notified waiters. Invariant: it sleeps without a
//! timeout only when no seat is owed an answer, and the next command wakes it; it has ended when its handle is dropped.

use super::exchange::CompletionExchange;
use super::paced_queue::PacedQueue;
use crate::clock::IoClock;
use crate::error::IoError;
use headwater_host::clock::Nanos;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// Checks for work before the thread sleeps without a timeout, and spin-loop hints between two checks: about 20 us in
/// all.
const IDLE_CHECKS: u32 = 100;
const IDLE_PAUSES: u32 = 8;

/// The handle of a running polling thread.
#[derive(Debug)]
pub(super) struct PollingThread {
    exchange: Arc<CompletionExchange<PacedQueue>>,
    number: u32,
    thread: Option<JoinHandle<()>>,
}

impl PollingThread {
    pub(super) fn start(
        exchange: Arc<CompletionExchange<PacedQueue>>,
        time: IoClock,
    ) -> Result<Self, IoError> {
        let number = exchange.begin_thread();
        let polled = exchange.clone();
        let started =
            Builder::new().name("completions".to_owned()).spawn(move || run(&polled, number, &time));
        match started {
            Ok(thread) => Ok(Self { exchange, number, thread: Some(thread) }),
            Err(error) => {
                exchange.end_thread(number);
                Err(IoError::Device { reason: format!("cannot start the completion thread: {error}") })
            }
        }
    }
}

impl Drop for PollingThread {
    fn drop(&mut self) {
        self.exchange.stop_thread(self.number);
        // The last user may be dropped in a callback on this thread; then the thread ends by itself.
        let own = |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(own) {
            // A panic of the thread is already reported by the panic hook; the queue still exists.
            drop(thread.join());
        }
        self.exchange.end_thread(self.number);
    }
}

fn run(exchange: &CompletionExchange<PacedQueue>, number: u32, time: &IoClock) {
    loop {
        // A user often submits again right after an answer, and a wake-up costs both threads more than this spin.
        for _ in 0..IDLE_CHECKS {
            if exchange.has_work() {
                break;
            }
            (0..IDLE_PAUSES).for_each(|_| std::hint::spin_loop());
        }
        if !exchange.wait_for_work(number) {
            return;
        }
        let Some(turn) = exchange.poll_on_thread(number, PacedQueue::next_sleep) else {
            return;
        };
        // The queue has failed: every call reports the error, and there is nothing left to poll for.
        let Ok(mut span) = turn else {
            return;
        };
        if exchange.is_timed() {
            let now = time.now();
            // Sleeps at most until the next seat is due.
            span = exchange.notify_due(now).map_or(span, |due| span.min(due.since(now)));
        }
        if span > Nanos::ZERO {
            let slept = time.sleep_observed(span);
            exchange.with_queue(|queue| queue.record_sleep(slept));
        } else {
            std::hint::spin_loop();
        }
    }
}
