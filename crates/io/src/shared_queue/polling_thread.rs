//! The thread that looks for completions of a queue, at the pace that its commands allow.
//!
//! In: an exchange. Out: answers where they belong, and calls to those who wait for them. Invariant: it sleeps without an
//! end only when nothing is owed to anybody, and is woken by the next command; it is gone when this is dropped.

use super::exchange::Exchange;
use super::line::DeviceLine;
use crate::completion::{Aggregation, Aggregator, Due};
use crate::error::IoError;
use crate::timepiece::Timepiece;
use headwater_host::clock::Nanos;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// Looks for work before the thread sleeps without an end, and pauses of the processor between two of them: about 20 us.
const IDLE_LOOKS: u32 = 100;
const IDLE_PAUSES: u32 = 8;

/// A running thread.
#[derive(Debug)]
pub(super) struct PollingThread {
    exchange: Arc<Exchange<DeviceLine>>,
    thread: Option<JoinHandle<()>>,
}

impl PollingThread {
    pub(super) fn start(
        exchange: Arc<Exchange<DeviceLine>>,
        time: Timepiece,
        aggregation: Aggregation,
    ) -> Result<Self, IoError> {
        exchange.begin_thread();
        let looked = exchange.clone();
        let started = Builder::new()
            .name("completions".to_owned())
            .spawn(move || run(&looked, &time, Aggregator::new(aggregation)));
        match started {
            Ok(thread) => Ok(Self { exchange, thread: Some(thread) }),
            Err(error) => {
                exchange.end_thread();
                Err(IoError::Device { reason: format!("no thread for completions: {error}") })
            }
        }
    }
}

impl Drop for PollingThread {
    fn drop(&mut self) {
        self.exchange.stop_thread();
        // The last user may go while this thread calls it; then the thread ends by itself.
        let own = |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(own) {
            // A thread that panicked has told why; the queue is still there.
            drop(thread.join());
        }
        self.exchange.end_thread();
    }
}

fn run(exchange: &Exchange<DeviceLine>, time: &Timepiece, mut aggregator: Aggregator) {
    let mut known = 0;
    loop {
        // Who was just answered often asks again at once, and a wake-up costs both of them more than this.
        for _ in 0..IDLE_LOOKS {
            if exchange.has_work() {
                break;
            }
            (0..IDLE_PAUSES).for_each(|_| std::hint::spin_loop());
        }
        if !exchange.thread_rest() {
            return;
        }
        let Some(turn) = exchange.thread_turn(DeviceLine::next_sleep) else {
            return;
        };
        // A device that is gone is told to everybody who asks; there is nothing to look for.
        let Ok(mut span) = turn else {
            return;
        };
        if !aggregator.is_none() {
            span = tell(exchange, time.now(), &mut aggregator, &mut known, span);
        }
        if span > Nanos::ZERO {
            let before = time.now();
            time.sleep(span);
            let took = time.now().since(before);
            exchange.with_line(|line| line.woke(span, took));
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Tells of what has waited long enough; how long to sleep, not beyond the end of that time.
fn tell(
    exchange: &Exchange<DeviceLine>,
    now: Nanos,
    aggregator: &mut Aggregator,
    known: &mut u32,
    span: Nanos,
) -> Nanos {
    let untold = exchange.untold();
    if untold > *known {
        aggregator.came(untold - *known, now);
    }
    *known = untold;
    if untold == 0 {
        aggregator.told();
        return span;
    }
    match aggregator.due(now) {
        Due::Now => {
            exchange.tell_all();
            aggregator.told();
            *known = 0;
            span
        }
        Due::At(at) => span.min(at.since(now)),
        Due::Never => span,
    }
}
