//! A device with its attach front end on a separate thread, and its clients.

#[path = "front_end_thread.rs"]
mod front_end_thread;

use front_end_thread::FrontEndThread;
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_frontend::attach::{AttachFrontEnd, AttachFrontEndIds, AttachHoldings, SsdExecutor};
use headwater_host::clock::Nanos;
use headwater_io::Device as Client;
use headwater_io::PoolSettings;
use headwater_io::attach::admin::{AdminAnswer, AdminRequest};
use headwater_io::attach::connection::AttachConnection;
use headwater_io::attach::protocol::{AttachReply, AttachRequest};
use headwater_io::attach::{AttachBackend, AttachOptions};
use headwater_io::error::IoError;
use headwater_ssd::command::FrontEndId;
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use std::path::{Path, PathBuf};

const FRONT_ENDS: AttachFrontEndIds = AttachFrontEndIds { rings: FrontEndId(2), control: FrontEndId(3) };

pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(crate) fn media() -> MemoryMedia {
    MemoryMedia::erased(FlashGeometry::with_blocks(64)).unwrap()
}

/// An attach daemon on a thread.
pub(crate) struct AttachHost {
    pub(crate) path: PathBuf,
    pub(crate) thread: FrontEndThread<AttachHoldings>,
}

impl AttachHost {
    pub(crate) fn start(folder: &Path, policy: GrantPolicy, media: MemoryMedia) -> Self {
        let path = folder.join("attach.sock");
        let executor = SsdExecutor::<MemoryMedia>::new(FRONT_ENDS).unwrap();
        let front_end = AttachFrontEnd::bind(&path, policy, executor).unwrap();
        Self { path, thread: FrontEndThread::start(front_end, media, AttachFrontEnd::holdings) }
    }

    pub(crate) fn client(&self) -> Client {
        self.try_client().unwrap()
    }

    /// Attaches with settings of the client's pool.
    pub(crate) fn client_with(&self, settings: &PoolSettings) -> Client {
        let backend = AttachBackend::connect_with(&self.path, AttachOptions::default(), settings).unwrap();
        Client::over(Box::new(backend), 1).unwrap()
    }

    pub(crate) fn try_client(&self) -> Result<Client, IoError> {
        let backend = AttachBackend::connect(&self.path, AttachOptions::default())?;
        Client::over(Box::new(backend), 1)
    }

    pub(crate) fn admin(&self, request: AdminRequest) -> Result<AdminAnswer, IoError> {
        match AttachConnection::open(&self.path)?.call(&AttachRequest::Admin(request), &[])?.0 {
            AttachReply::Admin(answer) => Ok(answer),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the front end holds exactly `wanted`; returns the time that took.
    pub(crate) fn until_holdings(&self, wanted: AttachHoldings) -> Nanos {
        self.thread.until("the wanted resources", |held| *held == wanted)
    }

    /// Drains and ends the daemon; returns the medium for the next one.
    pub(crate) fn end(mut self) -> MemoryMedia {
        self.end_in_place()
    }

    /// Drains and ends the daemon, so that `self` can be replaced by the next one.
    pub(crate) fn end_in_place(&mut self) -> MemoryMedia {
        self.thread.end()
    }
}
