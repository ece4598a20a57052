//! A device with its NVMe/TCP face on a thread of its own, and hosts of it.

use headwater_converged::command::FaceId;
use headwater_converged::device::{Device, DeviceConfig, Start};
use headwater_converged::media::Geometry;
use headwater_converged::media::memory::MemoryMedia;
use headwater_host::clock::{Clock, Nanos};
use headwater_io::{Device as Client, NvmeTcp, NvmeTcpTarget};
use headwater_node::face::Face;
use headwater_node::metrics::FaceNumbers;
use headwater_node::nvme_tcp::{NvmeTcpConfig, NvmeTcpFace};
use headwater_nvme::tcp::Digests;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A node in small, on a thread.
pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<FaceNumbers>>,
    thread: Option<JoinHandle<MemoryMedia>>,
}

impl Node {
    pub(crate) fn start() -> Self {
        Self::over(MemoryMedia::erased(Geometry::with_blocks(128)).unwrap(), ([127, 0, 0, 1], 0).into())
    }

    pub(crate) fn over(media: MemoryMedia, listen: SocketAddr) -> Self {
        Self::with(media, &NvmeTcpConfig { listen, face: FaceId(5), keys: Vec::new() })
    }

    pub(crate) fn with(media: MemoryMedia, config: &NvmeTcpConfig) -> Self {
        let face = NvmeTcpFace::bind(config).unwrap();
        let address = face.local_addr();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(FaceNumbers::default()));
        let (stopping, show) = (Arc::clone(&stop), Arc::clone(&seen));
        let thread = std::thread::spawn(move || run(face, media, &stopping, &show));
        Self { address, stop, seen, thread: Some(thread) }
    }

    /// The name that discovery tells.
    pub(crate) fn subsystem(&self) -> String {
        let names = NvmeTcp::discover(self.address).unwrap();
        assert_eq!(names.len(), 1, "one subsystem");
        names[0].clone()
    }

    pub(crate) fn target(&self, digests: Digests) -> NvmeTcpTarget {
        NvmeTcpTarget { digests, ..NvmeTcpTarget::new(self.address, &self.subsystem()) }
    }

    pub(crate) fn client(&self, digests: Digests) -> Client {
        Client::over(Box::new(NvmeTcp::open(self.target(digests)).unwrap()), 1).unwrap()
    }

    pub(crate) fn numbers(&self) -> FaceNumbers {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until what the face counts is as wanted.
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&FaceNumbers) -> bool) {
        let clock = Clock::start();
        while !wanted(&self.numbers()) {
            assert!(clock.now() < Nanos::from_millis(20_000), "{what} does not come: {:?}", self.numbers());
            Clock::sleep(Nanos::from_millis(1));
        }
    }

    /// Drains and ends; the medium is what a second node starts from.
    pub(crate) fn end(mut self) -> MemoryMedia {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The core's loop in small: poll, and sleep when nothing moves.
fn run(
    mut face: NvmeTcpFace,
    media: MemoryMedia,
    stop: &AtomicBool,
    seen: &Mutex<FaceNumbers>,
) -> MemoryMedia {
    let clock = Clock::start();
    let start = Start { now: clock.now(), wall: clock.wall() };
    let mut device = Device::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
    let face: &mut dyn Face<Device<MemoryMedia>> = &mut face;
    let mut draining = false;
    loop {
        let (now, wall) = (clock.now(), clock.wall());
        if stop.load(Ordering::Relaxed) && !draining {
            draining = true;
            face.drain();
        }
        let moved = face.poll(&mut device, now, wall) | device.poll(now, wall);
        let mut numbers = FaceNumbers::default();
        face.count(&mut numbers);
        *seen.lock().unwrap() = numbers;
        if draining && face.is_drained() {
            device.shutdown(now, wall).unwrap();
            return device.into_media().reopened();
        }
        if !moved {
            let deadline = face.next_deadline().map_or(Nanos::from_millis(5), |at| at.since(now));
            // The end of the test is told by a flag, so no sleep is long.
            let span = deadline.min(Nanos::from_millis(5));
            let span = Timespec { tv_sec: 0, tv_nsec: i64::try_from(span.0).unwrap() };
            let _ = poll(&mut [PollFd::from_borrowed_fd(face.wake_descriptor(), PollFlags::IN)], Some(&span));
        }
    }
}
