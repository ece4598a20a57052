//! A device with its attach face on a thread of its own, and clients of it.

use headwater_converged::command::FaceId;
use headwater_converged::device::{Device, DeviceConfig, Start};
use headwater_converged::media::Geometry;
use headwater_converged::media::memory::MemoryMedia;
use headwater_host::clock::{Clock, Nanos};
use headwater_io::Device as Client;
use headwater_io::attach::admin::{AdminAnswer, AdminRequest};
use headwater_io::attach::connection::Connection;
use headwater_io::attach::protocol::{Reply, Request};
use headwater_io::attach::{AttachBackend, AttachOptions};
use headwater_io::error::IoError;
use headwater_node::attach::policy::Policy;
use headwater_node::attach::{AttachFace, AttachFaces, ConvergedExecutor, Holdings};
use headwater_node::face::Face;
use headwater_nvme::queue_pair::Sleep;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

const FACES: AttachFaces = AttachFaces { rings: FaceId(2), control: FaceId(3) };

pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(crate) fn media() -> MemoryMedia {
    MemoryMedia::erased(Geometry::with_blocks(64)).unwrap()
}

/// A daemon on a thread.
pub(crate) struct Host {
    pub(crate) path: PathBuf,
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Holdings>>,
    /// `None` between two daemons.
    thread: Option<JoinHandle<MemoryMedia>>,
}

impl Host {
    pub(crate) fn start(folder: &Path, policy: Policy, media: MemoryMedia) -> Self {
        let path = folder.join("attach.sock");
        let mut face = AttachFace::bind(&path, policy, ConvergedExecutor::new(FACES).unwrap()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(Holdings::default()));
        let (stopping, show) = (Arc::clone(&stop), Arc::clone(&seen));
        let thread = std::thread::spawn(move || run(&mut face, media, &stopping, &show));
        Self { path, stop, seen, thread: Some(thread) }
    }

    pub(crate) fn client(&self) -> Client {
        self.try_client().unwrap()
    }

    pub(crate) fn try_client(&self) -> Result<Client, IoError> {
        let backend = AttachBackend::connect(&self.path, AttachOptions::default())?;
        Client::over(Box::new(backend), 1)
    }

    pub(crate) fn admin(&self, request: AdminRequest) -> Result<AdminAnswer, IoError> {
        match Connection::open(&self.path)?.call(&Request::Admin(request), &[])?.0 {
            Reply::Admin(answer) => Ok(answer),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn holdings(&self) -> Holdings {
        *self.seen.lock().unwrap()
    }

    /// Waits until the face holds nothing for anybody any more; how long that took.
    pub(crate) fn settle(&self, wanted: Holdings) -> Nanos {
        let clock = Clock::start();
        while self.holdings() != wanted {
            assert!(clock.now() < Nanos::from_millis(20_000), "still held: {:?}", self.holdings());
            Clock::sleep(Nanos::from_millis(1));
        }
        clock.now()
    }

    /// Drains and ends; the medium is what a second daemon starts from.
    pub(crate) fn end(mut self) -> MemoryMedia {
        self.end_in_place()
    }

    /// The same, with a place for the next daemon.
    pub(crate) fn end_in_place(&mut self) -> MemoryMedia {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

type TestFace = AttachFace<ConvergedExecutor<MemoryMedia>>;

/// The core's loop in small: poll, and sleep when nothing moves.
fn run(face: &mut TestFace, media: MemoryMedia, stop: &AtomicBool, seen: &Mutex<Holdings>) -> MemoryMedia {
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
        *seen.lock().unwrap() = face.holdings();
        if draining && face.is_drained() {
            device.shutdown(now, wall).unwrap();
            return device.into_media().reopened();
        }
        if moved || face.prepare_sleep() == Sleep::No {
            continue;
        }
        let mut descriptors = [PollFd::from_borrowed_fd(face.descriptor(), PollFlags::IN)];
        // Some calls of this harness are told by a flag, so no sleep is long.
        let _ = poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 2_000_000 }));
    }
}
