//! The software channel: a thread that does jobs by the kernels of the CPU.
//!
//! Input: jobs. Output: the jobs, done. Invariant: a job whose thread dies returns [`Abandoned`](JobEnd::Abandoned), with the
//! results of the steps that were done. It is no DMA engine and saves no CPU time: it uses another core, if there is one.

use super::channel::{ChannelRefusal, EndedJob, JobEnd, MoveChannel, RefusedJob};
use super::job_exchange::{JobExchange, OwnerSleep};
use super::policy::{CacheWrites, ChannelTraits, OperationSet};
use super::{MoveJob, run};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::copy::persist::drain;
use headwater_host::wake::{WakeDescriptor, WakeError};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The depth of a channel: the jobs that wait for one thread.
const DEPTH: usize = 8;

/// An error of starting a software channel.
#[derive(Debug, thiserror::Error)]
pub enum ChannelStartError {
    /// The system has no thread.
    #[error(
        "the system started no thread for a software channel ({0}); check the limit of processes (ulimit -u)"
    )]
    Thread(#[source] io::Error),
    /// The system has no descriptor.
    #[error("a software channel has no descriptor to wake its owner: {0}")]
    Wake(#[from] WakeError),
}

/// A job on its way.
#[derive(Debug)]
struct QueuedJob {
    job: MoveJob,
    submitted: Nanos,
    ended: Nanos,
    end: JobEnd,
}

/// A thread that does jobs.
#[derive(Debug)]
pub struct SoftwareChannel {
    exchange: Arc<JobExchange<QueuedJob>>,
    wake: WakeDescriptor,
    thread: Option<JoinHandle<()>>,
    spin: Nanos,
    in_flight: usize,
}

impl SoftwareChannel {
    /// Starts a channel whose thread polls for `spin` before it sleeps. `clock` is that of the owner.
    ///
    /// # Errors
    /// [`ChannelStartError`] if the system has no thread or descriptor left.
    pub fn start(clock: Clock, spin: Nanos) -> Result<Self, ChannelStartError> {
        Self::start_with(clock, spin, run::run)
    }

    /// Starts a channel whose thread does jobs by `run`.
    pub(super) fn start_with(
        clock: Clock,
        spin: Nanos,
        run: impl FnMut(&mut MoveJob) + Send + 'static,
    ) -> Result<Self, ChannelStartError> {
        let (exchange, wake) = (Arc::new(JobExchange::new()), WakeDescriptor::new()?);
        let served = ServedExchange { exchange: Arc::clone(&exchange), wake: wake.clone(), clock, spin };
        let thread = std::thread::Builder::new().name("mover".into());
        let thread = thread.spawn(move || served.serve(run)).map_err(ChannelStartError::Thread)?;
        Ok(Self { exchange, wake, thread: Some(thread), spin, in_flight: 0 })
    }
}

impl MoveChannel for SoftwareChannel {
    fn traits(&self) -> ChannelTraits {
        ChannelTraits {
            node: None,
            depth: DEPTH,
            cache_writes: CacheWrites::Allocating,
            operations: OperationSet::ALL,
        }
    }

    fn submit(&mut self, token: u64, job: MoveJob, now: Nanos) -> Result<(), RefusedJob> {
        if self.in_flight >= DEPTH {
            return Err(RefusedJob { job, reason: ChannelRefusal::Full });
        }
        let queued = QueuedJob { job, submitted: now, ended: now, end: JobEnd::Abandoned };
        let refused = self.exchange.push(token, queued);
        refused.map_err(|queued| RefusedJob { job: queued.job, reason: ChannelRefusal::Dead })?;
        self.in_flight += 1;
        Ok(())
    }

    fn poll(&mut self, _now: Nanos) -> Option<EndedJob> {
        let (token, QueuedJob { job, submitted, ended, end }) = self.exchange.poll()?;
        self.in_flight -= 1;
        Some(EndedJob { token, job, end, elapsed: ended.since(submitted) })
    }

    fn take_back(&mut self, token: u64) -> Option<MoveJob> {
        let queued = self.exchange.take_back(token)?;
        self.in_flight -= 1;
        Some(queued.job)
    }

    fn is_awake(&self) -> bool {
        self.exchange.is_awake()
    }

    fn rouse(&mut self, apart: Nanos) {
        if apart < self.spin {
            self.exchange.rouse();
        }
    }

    fn prepare_sleep(&mut self) -> bool {
        // A wake-up of an earlier sleep would end the next one at once.
        let _ = self.wake.take();
        self.exchange.prepare_sleep()
    }

    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }
}

impl Drop for SoftwareChannel {
    fn drop(&mut self) {
        self.exchange.close();
        if let Some(thread) = self.thread.take() {
            // The thread catches the panics of jobs, and has no code of its own that panics.
            let _ = thread.join();
        }
    }
}

/// The thread's half.
struct ServedExchange {
    exchange: Arc<JobExchange<QueuedJob>>,
    wake: WakeDescriptor,
    clock: Clock,
    spin: Nanos,
}

impl ServedExchange {
    fn serve(self, mut run: impl FnMut(&mut MoveJob)) {
        loop {
            let next = self.exchange.next(|has_work| {
                let idle_since = self.clock.now();
                while !has_work() && self.clock.now().since(idle_since) < self.spin {
                    std::hint::spin_loop();
                }
            });
            let Some((token, mut queued)) = next else { return };
            let done = catch_unwind(AssertUnwindSafe(|| run(&mut queued.job)));
            if done.is_err() {
                // What its steps stored past the cache must not wait for a fence of this thread.
                let _ = drain();
            }
            queued.ended = self.clock.now();
            queued.end = if done.is_ok() { JobEnd::Done } else { JobEnd::Abandoned };
            let owner = if done.is_ok() {
                self.exchange.end(token, queued)
            } else {
                self.exchange.die(token, queued)
            };
            if owner == OwnerSleep::Asleep {
                // An owner that cannot be woken has a limit of its own on its sleep.
                let _ = self.wake.wake();
            }
            if done.is_err() {
                return;
            }
        }
    }
}
