//! A thread that runs a front end and its device, like a small core loop.
//!
//! Input: a front end and a medium. Output: an observation of the front end after each turn; at the end the medium.
//! Invariant: the thread ends after a request to stop, when the front end is drained.

use headwater_frontend::front_end::FrontEnd;
use headwater_host::clock::{Clock, Nanos};
use headwater_nvme::queue_pair::SleepDecision;
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::memory::MemoryMedia;
use rustix::event::{PollFd, PollFlags, poll};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Maximum sleep: a flag requests the end, and does not wake the thread.
const SLEEP_MAX: Nanos = Nanos::from_millis(2);

/// A thread that runs a front end.
pub(crate) struct FrontEndThread<S> {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<S>>,
    /// `None` after the end.
    thread: Option<JoinHandle<MemoryMedia>>,
}

impl<S: Clone + Debug + Send + 'static> FrontEndThread<S> {
    /// Starts the thread; `look` observes the front end.
    pub(crate) fn start<F>(mut front_end: F, media: MemoryMedia, look: fn(&F) -> S) -> Self
    where
        F: FrontEnd<SsdDevice<MemoryMedia>> + Send + 'static,
    {
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(look(&front_end))));
        let (stopping, show) = (Arc::clone(&stop), Arc::clone(&seen));
        let turned = move |front_end: &F| *show.lock().unwrap() = look(front_end);
        let thread = std::thread::spawn(move || run(&mut front_end, media, &stopping, turned));
        Self { stop, seen, thread: Some(thread) }
    }

    pub(crate) fn seen(&self) -> S {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until the observation satisfies `wanted`; returns the time that took.
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&S) -> bool) -> Nanos {
        let clock = Clock::start();
        while !wanted(&self.seen()) {
            assert!(
                clock.now() < Nanos::from_millis(20_000),
                "timed out waiting for {what}: {:?}",
                self.seen()
            );
            Clock::sleep(Nanos::from_millis(1));
        }
        clock.now()
    }

    /// Drains the front end and ends the thread; returns the medium for the next one.
    pub(crate) fn end(&mut self) -> MemoryMedia {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl<S> Drop for FrontEndThread<S> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn run<F: FrontEnd<SsdDevice<MemoryMedia>>>(
    front_end: &mut F,
    media: MemoryMedia,
    stop: &AtomicBool,
    turned: impl Fn(&F),
) -> MemoryMedia {
    let clock = Clock::start();
    let start = StartTime { now: clock.now(), wall: clock.wall() };
    let mut device = SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
    let mut draining = false;
    loop {
        let (now, wall) = (clock.now(), clock.wall());
        if stop.load(Ordering::Relaxed) && !draining {
            draining = true;
            front_end.drain();
        }
        let moved = front_end.poll(&mut device, now, wall) | device.poll(now, wall);
        turned(front_end);
        if draining && front_end.is_drained() {
            device.shutdown(now, wall).unwrap();
            return device.into_media().after_power_cut();
        }
        if moved || front_end.prepare_sleep() == SleepDecision::WorkPending {
            continue;
        }
        let span = front_end.next_deadline().map_or(SLEEP_MAX, |at| at.since(now).min(SLEEP_MAX));
        let mut descriptors = [PollFd::from_borrowed_fd(front_end.wake_descriptor(), PollFlags::IN)];
        let _ = poll(&mut descriptors, Some(&span.to_timespec()));
    }
}
