//! Models of the wake-up between callers and the thread of a state: every interleaving, by `loom`.

use super::{BackgroundState, BackgroundWork, ThreadSleep};
use headwater_host::sync::{ModelBuilder, thread};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

/// The preemptions of each explored schedule; two find every missed wake-up of a protocol with two threads.
const PREEMPTIONS: usize = 3;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = ModelBuilder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// Pages that are dirty until the thread writes them, and a request that is finished when the thread has run.
#[derive(Default)]
struct Pages {
    dirty: u32,
    written: u32,
    waker: Option<Waker>,
    awaited: bool,
}

impl BackgroundWork for Pages {
    fn run_due(&mut self) -> ThreadSleep {
        self.written += std::mem::take(&mut self.dirty);
        ThreadSleep::UntilNotified
    }

    fn needs_thread(&self, _: ThreadSleep) -> bool {
        self.dirty > 0 || self.awaited
    }

    fn take_wakers(&mut self) -> Vec<Waker> {
        if std::mem::take(&mut self.awaited) { self.waker.take().into_iter().collect() } else { Vec::new() }
    }

    fn run_last(&mut self) -> Option<Duration> {
        self.run_due();
        None
    }
}

/// Checks that a page is written whose caller then makes no further call.
#[test]
fn loom_page_of_a_caller_that_never_calls_again_is_written() {
    check(|| {
        let state = Arc::new(BackgroundState::new(Pages::default()));
        let runner = {
            let state = state.clone();
            thread::spawn(move || state.run())
        };
        let caller = {
            let state = state.clone();
            thread::spawn(move || state.with(|pages| pages.dirty += 1))
        };
        state.with(|pages| pages.dirty += 1);
        caller.join().unwrap();
        // No call from here on but the stop, whose last turn finds what is left.
        state.stop();
        runner.join().unwrap();
        state.with(|pages| assert_eq!((pages.dirty, pages.written), (0, 2)));
    });
}

struct Flag(headwater_host::sync::Mutex<bool>, headwater_host::sync::Condvar);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }
}

/// Checks a caller that leaves a request and sleeps until its waker is called: a missed notification is a deadlock here.
#[test]
fn loom_waiter_is_woken_by_a_thread_that_was_about_to_sleep() {
    check(|| {
        let state = Arc::new(BackgroundState::new(Pages::default()));
        let runner = {
            let state = state.clone();
            thread::spawn(move || state.run())
        };
        let flag =
            Arc::new(Flag(headwater_host::sync::Mutex::new(false), headwater_host::sync::Condvar::new()));
        state.with(|pages| {
            pages.waker = Some(Waker::from(flag.clone()));
            pages.awaited = true;
        });
        let mut woken = flag.0.lock().unwrap();
        while !*woken {
            woken = flag.1.wait(woken).unwrap();
        }
        drop(woken);
        state.stop();
        runner.join().unwrap();
    });
}
