//! A device with its NVMe/TCP face on a thread of its own, and hosts of it.

#[path = "../attach/face_thread.rs"]
mod face_thread;

use face_thread::FaceThread;
use headwater_frontend::front_end::Face;
use headwater_frontend::numbers::FaceNumbers;
use headwater_frontend::nvme_tcp::{NvmeTcpConfig, NvmeTcpFace};
use headwater_io::{Device as Client, NvmeTcp, NvmeTcpTarget};
use headwater_nvme::tcp::Digests;
use headwater_ssd::command::FaceId;
use headwater_ssd::engine::Device;
use headwater_ssd::media::Geometry;
use headwater_ssd::media::memory::MemoryMedia;
use std::net::SocketAddr;

/// A node in small, on a thread.
pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    thread: FaceThread<FaceNumbers>,
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
        Self { address, thread: FaceThread::start(face, media, numbers_of) }
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
        self.thread.seen()
    }

    /// Waits until what the face counts is as wanted.
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&FaceNumbers) -> bool) {
        self.thread.until(what, wanted);
    }

    /// Drains and ends; the medium is what a second node starts from.
    pub(crate) fn end(mut self) -> MemoryMedia {
        self.thread.end()
    }
}

fn numbers_of(face: &NvmeTcpFace) -> FaceNumbers {
    let mut numbers = FaceNumbers::default();
    Face::<Device<MemoryMedia>>::count(face, &mut numbers);
    numbers
}
