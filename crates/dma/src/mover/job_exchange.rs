//! The exchange of jobs between the owner of a software channel and its thread.
//!
//! ```text
//!  push --> waiting --next--> with the thread --end--> ended --poll--> owner
//!              |                     +--- dies --------> ended
//!              +--take_back--> owner
//! ```
//! Input: jobs with tokens. Output: each job exactly once. Invariant: the thread sleeps only while nothing waits and the
//! exchange is open; an owner that sleeps is woken by the next end.

use headwater_host::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};
use std::collections::VecDeque;
use std::sync::PoisonError;

/// The queues between both threads.
#[derive(Debug)]
pub(super) struct JobExchange<J> {
    queues: Mutex<JobQueues<J>>,
    /// Wakes the thread.
    arrived: Condvar,
    /// Jobs that wait or, once closed, one more: what the thread looks at while it spins.
    work: AtomicUsize,
    /// True while the thread sleeps. It changes under the lock.
    thread_sleeps: AtomicBool,
    /// Jobs that have ended: what the owner looks at when it polls.
    ended: AtomicUsize,
}

#[derive(Debug)]
struct JobQueues<J> {
    waiting: VecDeque<(u64, J)>,
    ended: VecDeque<(u64, J)>,
    state: ExchangeState,
    owner_sleeps: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExchangeState {
    Open,
    /// The owner gives no more jobs.
    Closed,
    /// The thread does no more jobs.
    Dead,
}

/// The sleep of an owner, as the end of a job found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an owner that sleeps is woken"]
pub(super) enum OwnerSleep {
    /// The owner polls.
    Awake,
    /// The owner sleeps, or is about to.
    Asleep,
}

impl<J> JobExchange<J> {
    pub(super) fn new() -> Self {
        let queues = JobQueues {
            waiting: VecDeque::new(),
            ended: VecDeque::new(),
            state: ExchangeState::Open,
            owner_sleeps: false,
        };
        Self {
            queues: Mutex::new(queues),
            arrived: Condvar::new(),
            work: AtomicUsize::new(0),
            thread_sleeps: AtomicBool::new(false),
            ended: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, JobQueues<J>> {
        // No code that may panic runs under the lock.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a job to the thread.
    ///
    /// # Errors
    /// The job, if the thread has died.
    pub(super) fn push(&self, token: u64, job: J) -> Result<(), J> {
        let mut queues = self.lock();
        if queues.state == ExchangeState::Dead {
            return Err(job);
        }
        queues.waiting.push_back((token, job));
        self.work.fetch_add(1, Ordering::Release);
        self.wake_thread();
        Ok(())
    }

    /// Wakes the thread if it sleeps. The caller has the lock.
    fn wake_thread(&self) {
        if self.thread_sleeps.swap(false, Ordering::Relaxed) {
            self.arrived.notify_one();
        }
    }

    /// Returns true if the thread spins or works.
    pub(super) fn is_awake(&self) -> bool {
        !self.thread_sleeps.load(Ordering::Relaxed)
    }

    /// Ends the sleep of the thread, which spins again.
    pub(super) fn rouse(&self) {
        let _queues = self.lock();
        self.wake_thread();
    }

    /// Takes a job back that the thread has not begun.
    pub(super) fn take_back(&self, token: u64) -> Option<J> {
        let mut queues = self.lock();
        let at = queues.waiting.iter().position(|(waiting, _)| *waiting == token)?;
        self.work.fetch_sub(1, Ordering::Release);
        queues.waiting.remove(at).map(|(_, job)| job)
    }

    /// Takes the next job that has ended.
    pub(super) fn poll(&self) -> Option<(u64, J)> {
        if self.ended.load(Ordering::Acquire) == 0 {
            return None;
        }
        let ended = self.lock().ended.pop_front();
        self.ended.fetch_sub(usize::from(ended.is_some()), Ordering::Release);
        ended
    }

    /// Notes that the owner sleeps until the next end. Returns false if a job has ended already.
    pub(super) fn prepare_sleep(&self) -> bool {
        let mut queues = self.lock();
        queues.owner_sleeps = queues.ended.is_empty();
        queues.owner_sleeps
    }

    /// Waits for the next job, first while `spin` does, then asleep; `None` once the exchange is closed and no job waits. `spin`
    /// is told how to see if there is work.
    pub(super) fn next(&self, mut spin: impl FnMut(&dyn Fn() -> bool)) -> Option<(u64, J)> {
        loop {
            spin(&|| self.work.load(Ordering::Acquire) > 0);
            let mut queues = self.lock();
            if let Some(next) = queues.waiting.pop_front() {
                self.work.fetch_sub(1, Ordering::Release);
                return Some(next);
            }
            if queues.state != ExchangeState::Open {
                return None;
            }
            self.thread_sleeps.store(true, Ordering::Relaxed);
            // A wake-up without work is one to spin again.
            let _queues = self.arrived.wait(queues).unwrap_or_else(PoisonError::into_inner);
            self.thread_sleeps.store(false, Ordering::Relaxed);
        }
    }

    /// Returns a job to the owner.
    pub(super) fn end(&self, token: u64, job: J) -> OwnerSleep {
        let mut queues = self.lock();
        queues.ended.push_back((token, job));
        self.ended.fetch_add(1, Ordering::Release);
        Self::take_sleep(&mut queues)
    }

    /// Returns the job that the thread dies with, and those that wait.
    pub(super) fn die(&self, token: u64, job: J) -> OwnerSleep {
        let mut queues = self.lock();
        queues.state = ExchangeState::Dead;
        queues.ended.push_back((token, job));
        let waiting = std::mem::take(&mut queues.waiting);
        self.work.fetch_sub(waiting.len(), Ordering::Release);
        self.ended.fetch_add(1 + waiting.len(), Ordering::Release);
        queues.ended.extend(waiting);
        Self::take_sleep(&mut queues)
    }

    fn take_sleep(queues: &mut JobQueues<J>) -> OwnerSleep {
        if std::mem::take(&mut queues.owner_sleeps) { OwnerSleep::Asleep } else { OwnerSleep::Awake }
    }

    /// Closes the exchange: the thread ends when no job waits.
    pub(super) fn close(&self) {
        let mut queues = self.lock();
        if queues.state == ExchangeState::Open {
            queues.state = ExchangeState::Closed;
        }
        self.work.fetch_add(1, Ordering::Release);
        self.arrived.notify_one();
    }
}

#[cfg(all(test, loom))]
mod models {
    //! Models of the exchange: no job is lost or returned twice, and no side sleeps for ever. A forgotten wake-up shows as a
    //! deadlock.

    use super::*;
    use headwater_host::sync::{ModelBuilder, thread};
    use std::sync::Arc;

    fn model(run: impl Fn() + Send + Sync + 'static) {
        let mut builder = ModelBuilder::new();
        builder.preemption_bound = Some(3);
        builder.check(run);
    }

    /// A sleeper as an eventfd is: a wake-up that comes first ends the wait.
    struct ModelWake {
        is_set: Mutex<bool>,
        set: Condvar,
    }

    impl ModelWake {
        fn wake(&self) {
            *self.is_set.lock().unwrap() = true;
            self.set.notify_one();
        }

        fn wait(&self) {
            let mut is_set = self.is_set.lock().unwrap();
            while !*is_set {
                is_set = self.set.wait(is_set).unwrap();
            }
            *is_set = false;
        }
    }

    type ModelPair = (Arc<JobExchange<u32>>, Arc<ModelWake>);

    fn pair() -> ModelPair {
        let wake = ModelWake { is_set: Mutex::new(false), set: Condvar::new() };
        (Arc::new(JobExchange::new()), Arc::new(wake))
    }

    fn serve((exchange, wake): &ModelPair) {
        while let Some((token, job)) = exchange.next(|_| {}) {
            if exchange.end(token, job + 1) == OwnerSleep::Asleep {
                wake.wake();
            }
        }
    }

    fn wait_for_end((exchange, wake): &ModelPair) -> (u64, u32) {
        loop {
            if let Some(ended) = exchange.poll() {
                return ended;
            }
            if exchange.prepare_sleep() {
                wake.wait();
            }
        }
    }

    #[test]
    fn loom_every_job_returns_once_and_both_sides_wake() {
        model(|| {
            let ours = pair();
            let theirs = ours.clone();
            let worker = thread::spawn(move || serve(&theirs));
            ours.0.push(1, 10).unwrap();
            ours.0.push(2, 20).unwrap();
            assert_eq!(wait_for_end(&ours), (1, 11));
            assert_eq!(wait_for_end(&ours), (2, 21));
            ours.0.close();
            worker.join().unwrap();
            assert_eq!(ours.0.poll(), None);
        });
    }

    #[test]
    fn loom_a_roused_thread_takes_the_next_job() {
        model(|| {
            let ours = pair();
            let theirs = ours.clone();
            let worker = thread::spawn(move || serve(&theirs));
            if !ours.0.is_awake() {
                ours.0.rouse();
            }
            ours.0.push(1, 10).unwrap();
            assert_eq!(wait_for_end(&ours), (1, 11));
            ours.0.rouse();
            ours.0.close();
            worker.join().unwrap();
        });
    }

    #[test]
    fn loom_a_job_is_taken_back_or_ends_but_not_both() {
        model(|| {
            let ours = pair();
            let theirs = ours.clone();
            let worker = thread::spawn(move || serve(&theirs));
            ours.0.push(1, 10).unwrap();
            match ours.0.take_back(1) {
                Some(job) => assert_eq!(job, 10),
                None => assert_eq!(wait_for_end(&ours), (1, 11)),
            }
            ours.0.close();
            worker.join().unwrap();
            assert_eq!(ours.0.poll(), None);
        });
    }

    #[test]
    fn loom_jobs_of_a_dead_thread_return_or_are_refused() {
        model(|| {
            let ours = pair();
            let theirs = ours.clone();
            let worker = thread::spawn(move || {
                let (token, job) = theirs.0.next(|_| {}).expect("the exchange is open");
                if theirs.0.die(token, job) == OwnerSleep::Asleep {
                    theirs.1.wake();
                }
            });
            ours.0.push(1, 10).unwrap();
            let second = ours.0.push(2, 20);
            assert_eq!(wait_for_end(&ours), (1, 10));
            match second {
                Ok(()) => assert_eq!(wait_for_end(&ours), (2, 20)),
                Err(job) => assert_eq!(job, 20),
            }
            worker.join().unwrap();
            assert_eq!(ours.0.poll(), None);
        });
    }
}
