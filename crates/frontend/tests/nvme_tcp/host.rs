//! A device with its NVMe/TCP front end on a separate thread, and its hosts.

#[path = "../attach/front_end_thread.rs"]
mod front_end_thread;

use front_end_thread::FrontEndThread;
use headwater_frontend::counters::FrontEndCounters;
use headwater_frontend::front_end::FrontEnd;
use headwater_frontend::nvme_tcp::{NvmeTcpConfig, NvmeTcpFrontEnd};
use headwater_io::{Device as Client, NvmeTcp, NvmeTcpTarget};
use headwater_nvme::tcp::DigestSettings;
use headwater_ssd::command::FrontEndId;
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use std::net::SocketAddr;

/// A minimal node on a thread.
pub(crate) struct TcpTestNode {
    pub(crate) address: SocketAddr,
    thread: FrontEndThread<FrontEndCounters>,
}

impl TcpTestNode {
    pub(crate) fn start() -> Self {
        Self::over(MemoryMedia::erased(FlashGeometry::with_blocks(128)).unwrap(), ([127, 0, 0, 1], 0).into())
    }

    pub(crate) fn over(media: MemoryMedia, listen: SocketAddr) -> Self {
        Self::with(media, &NvmeTcpConfig { listen, front_end_id: FrontEndId(5), keys: Vec::new() })
    }

    pub(crate) fn with(media: MemoryMedia, config: &NvmeTcpConfig) -> Self {
        let front_end = NvmeTcpFrontEnd::bind(config).unwrap();
        let address = front_end.local_addr();
        Self { address, thread: FrontEndThread::start(front_end, media, numbers_of) }
    }

    /// Returns the subsystem name that discovery reports.
    pub(crate) fn subsystem(&self) -> String {
        let names = NvmeTcp::discover(self.address).unwrap();
        assert_eq!(names.len(), 1, "one subsystem");
        names[0].clone()
    }

    pub(crate) fn target(&self, digests: DigestSettings) -> NvmeTcpTarget {
        NvmeTcpTarget { digests, ..NvmeTcpTarget::new(self.address, &self.subsystem()) }
    }

    pub(crate) fn client(&self, digests: DigestSettings) -> Client {
        Client::over(Box::new(NvmeTcp::open(self.target(digests)).unwrap()), 1).unwrap()
    }

    pub(crate) fn numbers(&self) -> FrontEndCounters {
        self.thread.seen()
    }

    /// Waits until the counters satisfy `wanted`.
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&FrontEndCounters) -> bool) {
        self.thread.until(what, wanted);
    }

    /// Drains and ends the node; returns the medium for the next one.
    pub(crate) fn end(mut self) -> MemoryMedia {
        self.thread.end()
    }
}

fn numbers_of(front_end: &NvmeTcpFrontEnd) -> FrontEndCounters {
    let mut numbers = FrontEndCounters::default();
    FrontEnd::<SsdDevice<MemoryMedia>>::add_counters(front_end, &mut numbers);
    numbers
}
