//! A face and the device behind it, on a thread of their own: the core's loop in small.
//!
//! In: a face, and a medium. Out: what is seen of the face after each turn; at the end the medium. Invariant: the thread ends
//! once it was asked to and the face is drained.

use headwater_frontend::front_end::Face;
use headwater_host::clock::{Clock, Nanos};
use headwater_nvme::queue_pair::Sleep;
use headwater_ssd::engine::{Device, DeviceConfig, Start};
use headwater_ssd::media::memory::MemoryMedia;
use rustix::event::{PollFd, PollFlags, poll};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Longest sleep: the end of a test is told by a flag.
const SLEEP_MAX: Nanos = Nanos::from_millis(2);

/// The thread.
pub(crate) struct FaceThread<S> {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<S>>,
    /// `None` once it was ended.
    thread: Option<JoinHandle<MemoryMedia>>,
}

impl<S: Clone + Debug + Send + 'static> FaceThread<S> {
    /// Starts it; `look` tells what is seen of the face.
    pub(crate) fn start<F>(mut face: F, media: MemoryMedia, look: fn(&F) -> S) -> Self
    where
        F: Face<Device<MemoryMedia>> + Send + 'static,
    {
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(look(&face))));
        let (stopping, show) = (Arc::clone(&stop), Arc::clone(&seen));
        let turned = move |face: &F| *show.lock().unwrap() = look(face);
        let thread = std::thread::spawn(move || run(&mut face, media, &stopping, turned));
        Self { stop, seen, thread: Some(thread) }
    }

    pub(crate) fn seen(&self) -> S {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until what is seen is as wanted; how long that took.
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&S) -> bool) -> Nanos {
        let clock = Clock::start();
        while !wanted(&self.seen()) {
            assert!(clock.now() < Nanos::from_millis(20_000), "{what} does not come: {:?}", self.seen());
            Clock::sleep(Nanos::from_millis(1));
        }
        clock.now()
    }

    /// Drains and ends; the medium is what a second one starts from.
    pub(crate) fn end(&mut self) -> MemoryMedia {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl<S> Drop for FaceThread<S> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn run<F: Face<Device<MemoryMedia>>>(
    face: &mut F,
    media: MemoryMedia,
    stop: &AtomicBool,
    turned: impl Fn(&F),
) -> MemoryMedia {
    let clock = Clock::start();
    let start = Start { now: clock.now(), wall: clock.wall() };
    let mut device = Device::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
    let mut draining = false;
    loop {
        let (now, wall) = (clock.now(), clock.wall());
        if stop.load(Ordering::Relaxed) && !draining {
            draining = true;
            face.drain();
        }
        let moved = face.poll(&mut device, now, wall) | device.poll(now, wall);
        turned(face);
        if draining && face.is_drained() {
            device.shutdown(now, wall).unwrap();
            return device.into_media().reopened();
        }
        if moved || face.prepare_sleep() == Sleep::No {
            continue;
        }
        let span = face.next_deadline().map_or(SLEEP_MAX, |at| at.since(now).min(SLEEP_MAX));
        let mut descriptors = [PollFd::from_borrowed_fd(face.wake_descriptor(), PollFlags::IN)];
        let _ = poll(&mut descriptors, Some(&span.to_timespec()));
    }
}
