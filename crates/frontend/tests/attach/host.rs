//! A device with its attach face on a thread of its own, and clients of it.

#[path = "face_thread.rs"]
mod face_thread;

use face_thread::FaceThread;
use headwater_frontend::attach::policy::Policy;
use headwater_frontend::attach::{AttachFace, AttachFaces, ConvergedExecutor, Holdings};
use headwater_host::clock::Nanos;
use headwater_io::Device as Client;
use headwater_io::attach::admin::{AdminAnswer, AdminRequest};
use headwater_io::attach::connection::Connection;
use headwater_io::attach::protocol::{Reply, Request};
use headwater_io::attach::{AttachBackend, AttachOptions};
use headwater_io::error::IoError;
use headwater_ssd::command::FaceId;
use headwater_ssd::media::Geometry;
use headwater_ssd::media::memory::MemoryMedia;
use std::path::{Path, PathBuf};

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
    pub(crate) thread: FaceThread<Holdings>,
}

impl Host {
    pub(crate) fn start(folder: &Path, policy: Policy, media: MemoryMedia) -> Self {
        let path = folder.join("attach.sock");
        let executor = ConvergedExecutor::<MemoryMedia>::new(FACES).unwrap();
        let face = AttachFace::bind(&path, policy, executor).unwrap();
        Self { path, thread: FaceThread::start(face, media, AttachFace::holdings) }
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

    /// Waits until the face holds no more for anybody than is wanted; how long that took.
    pub(crate) fn settle(&self, wanted: Holdings) -> Nanos {
        self.thread.until("what is wanted", |held| *held == wanted)
    }

    /// Drains and ends; the medium is what a second daemon starts from.
    pub(crate) fn end(mut self) -> MemoryMedia {
        self.end_in_place()
    }

    /// The same, with a place for the next daemon.
    pub(crate) fn end_in_place(&mut self) -> MemoryMedia {
        self.thread.end()
    }
}
