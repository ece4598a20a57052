//! A session with a daemon that may restart: what was registered, so that it can be registered again.
//!
//! In: regions and queues of one client. Out: the same at whichever daemon listens now. Invariant: a region keeps its address
//! and its bytes for the session's life; the epoch counts connections, so that each queue notices that its own is over.

use super::queue::AttachQueue;
use crate::attach::admin::{AdminAnswer, AdminRequest, NamespaceWish};
use crate::attach::connection::{Connection, nonsense};
use crate::attach::protocol::{Reply, Request};
use crate::backend::{Backend, Transport};
use crate::buffer::Buffer;
use crate::error::IoError;
use crate::facts::NamespaceFacts;
use crate::ring_queue::{Bells, RingQueue};
use headwater_dma::iova::Iova;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::foreign::Foreign;
use headwater_host::ring_memory::ForeignWords;
use headwater_host::wake_line::WakeLine;
use headwater_nvme::queue_pair::{QueuePair, words_for};
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a page, to which regions are rounded up.
const PAGE_BYTES: usize = 4_096;
/// Where the first region lies in the client's numbering; the gap behind each keeps overruns from landing in the next.
const FIRST_REGION: u64 = 1 << 32;
/// First pause between two tries to connect; doubled up to [`PAUSE_MAX`].
const PAUSE_FIRST: Nanos = Nanos::from_millis(1);
const PAUSE_MAX: Nanos = Nanos::from_millis(100);

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    /// How long to look for a daemon that went away before giving up; [`Nanos::ZERO`] gives up at once.
    pub retry_for: Nanos,
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self { retry_for: Nanos::from_millis(30_000) }
    }
}

#[derive(Debug)]
struct Region {
    descriptor: OwnedFd,
    bytes: usize,
}

/// One client's state, shared by its queues.
#[derive(Debug)]
pub(super) struct Session {
    path: PathBuf,
    options: AttachOptions,
    clock: Clock,
    /// `None` once the daemon was given up.
    connection: Option<Connection>,
    epoch: u64,
    regions: BTreeMap<u64, Region>,
    next_region: u64,
}

impl Session {
    fn call(&mut self, request: &Request, with: Option<u64>) -> Result<(Reply, Vec<OwnedFd>), IoError> {
        let Self { connection, regions, path, .. } = self;
        let gone = || IoError::Gone { what: path.display().to_string(), reason: "it went away".to_owned() };
        let descriptor = with.and_then(|start| regions.get(&start)).map(|region| region.descriptor.as_fd());
        connection.as_mut().ok_or_else(gone)?.call(request, descriptor.as_slice())
    }

    /// As [`call`](Self::call), and once more over a new connection when the old one turns out to be over.
    fn call_again(&mut self, request: &Request, with: Option<u64>) -> Result<(Reply, Vec<OwnedFd>), IoError> {
        let epoch = self.epoch;
        match self.call(request, with) {
            Err(IoError::Gone { .. }) => {
                self.reconnect(epoch)?;
                self.call(request, with)
            }
            other => other,
        }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Connects anew, unless another queue has done so since `epoch`, and registers every region again.
    pub(super) fn reconnect(&mut self, epoch: u64) -> Result<(), IoError> {
        if self.epoch != epoch {
            return Ok(());
        }
        self.connection = None;
        let started = self.clock.now();
        let mut pause = PAUSE_FIRST;
        loop {
            match self.connect() {
                Err(IoError::Gone { .. }) if self.clock.now().since(started) < self.options.retry_for => {
                    Clock::sleep(pause);
                    pause = Nanos(pause.0 * 2).min(PAUSE_MAX);
                }
                other => return other,
            }
        }
    }

    fn connect(&mut self) -> Result<(), IoError> {
        let mut connection = Connection::open(&self.path)?;
        for (&start, region) in &self.regions {
            let bytes = u64::try_from(region.bytes).unwrap_or(u64::MAX);
            expect_done(
                &connection.call(&Request::Region { start, bytes }, &[region.descriptor.as_fd()])?.0,
            )?;
        }
        self.connection = Some(connection);
        self.epoch += 1;
        Ok(())
    }

    /// A new queue over the present connection.
    pub(super) fn ring_queue(&mut self, depth: u32) -> Result<RingQueue, IoError> {
        let words = words_for(depth)?;
        let (reply, descriptors) = self.call_again(&Request::Queue { depth }, None)?;
        let Reply::Queue { bytes, .. } = reply else {
            return Err(nonsense("a queue", &reply));
        };
        let (Ok([memory, line]), Ok(bytes)) = (<[OwnedFd; 2]>::try_from(descriptors), usize::try_from(bytes))
        else {
            return Err(IoError::Protocol {
                reason: "a queue came without its memory and its line".to_owned(),
            });
        };
        let region = Foreign::take(memory.as_fd(), 0, bytes)?;
        let pair = QueuePair::host_half(ForeignWords::new(region, 0, words)?, depth)?;
        Ok(RingQueue::new(pair, Bells::Line(WakeLine::from(line))))
    }
}

fn expect_done(reply: &Reply) -> Result<(), IoError> {
    if *reply == Reply::Done { Ok(()) } else { Err(nonsense("a request", reply)) }
}

/// The session behind its lock. A thread that panicked in a call left at worst an old connection.
pub(super) fn lock(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device in a daemon.
#[derive(Debug)]
pub struct AttachBackend {
    session: Arc<Mutex<Session>>,
}

impl AttachBackend {
    /// Connects to the daemon behind a socket. One that does not answer is looked for as long as the options say.
    ///
    /// # Errors
    /// [`IoError::Gone`] when nobody answers, [`IoError::Refused`] when the policy does not know this user.
    pub fn connect(path: &Path, options: AttachOptions) -> Result<Self, IoError> {
        let mut session = Session {
            path: path.to_owned(),
            options: AttachOptions { retry_for: Nanos::ZERO },
            clock: Clock::start(),
            connection: None,
            epoch: 0,
            regions: BTreeMap::new(),
            next_region: FIRST_REGION,
        };
        session.reconnect(0)?;
        session.options = options;
        Ok(Self { session: Arc::new(Mutex::new(session)) })
    }
}

impl Backend for AttachBackend {
    fn namespaces(&mut self) -> Result<Vec<NamespaceFacts>, IoError> {
        match lock(&self.session).call_again(&Request::Namespaces, None)?.0 {
            Reply::Namespaces(namespaces) => Ok(namespaces),
            other => Err(nonsense("namespaces", &other)),
        }
    }

    fn change_namespace(&mut self, id: u8, wish: NamespaceWish) -> Result<u8, IoError> {
        // Not asked again: a namespace that was made and a daemon that then went away would make two.
        let request = Request::Admin(AdminRequest::Namespace { id, wish });
        match lock(&self.session).call(&request, None)?.0 {
            Reply::Admin(AdminAnswer::Namespace(id)) => Ok(id),
            other => Err(nonsense("a change of namespaces", &other)),
        }
    }

    fn region(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let (memory, descriptor) = Foreign::memfd(bytes)?;
        let mut session = lock(&self.session);
        let start = session.next_region;
        let length = u64::try_from(bytes).unwrap_or(u64::MAX);
        session.next_region = start.saturating_add(length).saturating_add(1 << 20);
        session.regions.insert(start, Region { descriptor, bytes });
        let epoch = session.epoch;
        match session.call(&Request::Region { start, bytes: length }, Some(start)) {
            Ok((reply, _)) => expect_done(&reply)?,
            // A new connection registers it with all others.
            Err(IoError::Gone { .. }) => session.reconnect(epoch)?,
            Err(error) => {
                session.regions.remove(&start);
                return Err(error);
            }
        }
        Ok(Buffer::whole(memory, Iova(start)))
    }

    fn release(&mut self, region: &Buffer) -> Result<(), IoError> {
        let start = region.region().0;
        let mut session = lock(&self.session);
        if session.regions.remove(&start).is_none() {
            return Err(IoError::Device { reason: "the buffer is of another device".to_owned() });
        }
        match session.call(&Request::Release { start }, None) {
            Ok((reply, _)) => expect_done(&reply),
            // The daemon is gone, and with it what it knew.
            Err(IoError::Gone { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn queue(&mut self, depth: u32) -> Result<Box<dyn Transport>, IoError> {
        let mut session = lock(&self.session);
        let ring = session.ring_queue(depth)?;
        let epoch = session.epoch();
        drop(session);
        Ok(Box::new(AttachQueue::new(Arc::clone(&self.session), epoch, ring)))
    }
}
