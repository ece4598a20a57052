//! A thread that ticks a pool, for programs without a loop of their own to do it.
//!
//! Input: a pool. Output: ticks by its clock. Invariant: dropping the value ends the thread without waiting for the
//! next tick.

use super::Pool;
use headwater_host::clock::Nanos;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A ticking thread. Dropping this ends it.
pub struct PoolTicker {
    stop: Arc<TickerStop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct TickerStop {
    stopped: Mutex<bool>,
    wakeup: Condvar,
}

/// Number of ticks per idle time.
const TICKS: u64 = 16;

/// Shortest time between two ticks.
const SHORTEST: Nanos = Nanos::from_millis(1);

impl PoolTicker {
    pub(super) fn start(pool: Pool) -> std::io::Result<Self> {
        let stop = Arc::new(TickerStop::default());
        let between = Nanos(pool.config().idle.0 / TICKS).max(SHORTEST).to_duration();
        let theirs = Arc::clone(&stop);
        let run = move || loop {
            let stopped = theirs.stopped.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = theirs.wakeup.wait_timeout_while(stopped, between, |stopped| !*stopped);
            let (stopped, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if *stopped {
                return;
            }
            drop(stopped);
            pool.tick(pool.config().clock.now());
        };
        let thread = std::thread::Builder::new().name("pool-ticker".to_owned()).spawn(run)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for PoolTicker {
    fn drop(&mut self) {
        *self.stop.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.wakeup.notify_all();
        if let Some(thread) = self.thread.take() {
            // The panic of a tick was already reported; nothing is left to stop.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for PoolTicker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolTicker")
    }
}
