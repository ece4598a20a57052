//! A session with a daemon that may restart: what was registered, so that it can be registered again.
//!
//! In: regions and queues of one client. Out: the same at whichever daemon listens now. Invariant: a region keeps its address
//! and its bytes for the session's life; the epoch counts connections, so that each queue notices that its own is over.

use super::direct::{Addresses, Borrower, Borrowing, LentReply, Watch, lent_of};
use super::queue::AttachQueue;
use crate::attach::admin::{AdminAnswer, AdminRequest, NamespaceWish};
use crate::attach::connection::{Connection, nonsense};
use crate::attach::protocol::{Reply, Request};
use crate::backend::{Backend, Limits, Transport};
use crate::buffer::Buffer;
use crate::device_pool::{DevicePool, Registrar};
use crate::error::{IoError, SubmitError};
use crate::facts::NamespaceFacts;
use crate::ring_queue::{Bells, RingQueue};
use crate::vfio::NvmeQueue;
use headwater_dma::iova::Iova;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::foreign::Foreign;
use headwater_host::ring_memory::ForeignWords;
use headwater_host::wake_line::WakeLine;
use headwater_nvme::queue_pair::{QueuePair, words_for};
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// First pause between two tries to connect; doubled up to [`PAUSE_MAX`].
const PAUSE_FIRST: Nanos = Nanos::from_millis(1);
const PAUSE_MAX: Nanos = Nanos::from_millis(100);

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    /// How long to look for a daemon that went away before giving up; [`Nanos::ZERO`] gives up at once.
    pub retry_for: Nanos,
    /// Drive queues of the hardware's, without the daemon in the way of a command. Granted to trusted users of a daemon that
    /// owns an SSD; nothing keeps such a client to its blocks or to its queues.
    pub direct: bool,
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self { retry_for: Nanos::from_millis(30_000), direct: false }
    }
}

/// A range of a file that the daemon knows.
#[derive(Debug)]
struct Region {
    file: Arc<OwnedFd>,
    offset: u64,
    bytes: u64,
}

impl Region {
    fn request(&self, start: u64) -> Request {
        Request::Region { start, bytes: self.bytes, offset: self.offset }
    }
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
    /// For queues of the hardware's.
    direct: Option<Direct>,
}

/// What a session has that drives queues of the hardware's.
#[derive(Debug)]
struct Direct {
    watch: Watch,
    addresses: Arc<Addresses>,
}

impl Session {
    fn call(&mut self, request: &Request, with: Option<u64>) -> Result<(Reply, Vec<OwnedFd>), IoError> {
        let file = with.and_then(|start| self.regions.get(&start)).map(|region| Arc::clone(&region.file));
        let file = file.as_ref().map(|file| file.as_fd());
        self.call_with(request, file.as_slice())
    }

    /// A request over the present connection, with descriptors beside it.
    pub(super) fn call_with(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), IoError> {
        let Self { connection, path, .. } = self;
        let gone = || IoError::Gone { what: path.display().to_string(), reason: "it went away".to_owned() };
        connection.as_mut().ok_or_else(gone)?.call(request, descriptors)
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
        let mut connection = match self.direct {
            Some(_) => Connection::open_direct(&self.path)?,
            None => Connection::open(&self.path)?,
        };
        for (&start, region) in &self.regions {
            let (reply, _) = connection.call(&region.request(start), &[region.file.as_fd()])?;
            self.registered(start, region.bytes, &reply)?;
        }
        self.connection = Some(connection);
        self.epoch += 1;
        Ok(())
    }

    /// What the daemon answered to a region.
    fn registered(&self, start: u64, bytes: u64, reply: &Reply) -> Result<(), IoError> {
        match (&self.direct, reply) {
            (None, Reply::Done) => Ok(()),
            (Some(direct), &Reply::Region { address }) => {
                direct.addresses.insert(start, bytes, address);
                Ok(())
            }
            _ => Err(nonsense("a region", reply)),
        }
    }

    /// The namespaces that this client may use.
    pub(super) fn namespaces(&mut self) -> Result<Vec<NamespaceFacts>, IoError> {
        match self.call_again(&Request::Namespaces, None)?.0 {
            Reply::Namespaces(namespaces) => Ok(namespaces),
            other => Err(nonsense("namespaces", &other)),
        }
    }

    /// A new queue of the hardware's.
    pub(super) fn lent_queue(&mut self, depth: u32) -> Result<LentReply, IoError> {
        let (reply, descriptors) = self.call_again(&Request::Queue { depth }, None)?;
        lent_of(reply, descriptors, self.connection.as_ref().and_then(Connection::direct))
    }

    /// Notices when a queue of the hardware's ends.
    pub(super) fn watch(&self, borrowing: &Arc<Borrowing>) -> Result<(), IoError> {
        self.direct.as_ref().map_or(Ok(()), |direct| direct.watch.add(borrowing))
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

impl Session {
    /// What a command can be at this daemon's device, of what a ring carries.
    fn limits(&self, ring: Limits) -> Limits {
        let Some(rules) = self.connection.as_ref().and_then(Connection::data) else { return ring };
        let transfer = usize::try_from(rules.transfer).unwrap_or(usize::MAX);
        Limits {
            transfer_bytes_max: ring.transfer_bytes_max.min(transfer),
            memory_align: ring.memory_align.max(usize::try_from(rules.align).unwrap_or(1)),
            ..ring
        }
    }
}

pub(super) fn expect_done(reply: &Reply) -> Result<(), IoError> {
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
    memory: DevicePool<Regions>,
}

/// The way of the pool to the daemon. The pool outlives the session.
#[derive(Debug)]
struct Regions(Weak<Mutex<Session>>);

impl Registrar for Regions {
    fn register(&self, start: Iova, file: &Arc<OwnedFd>, offset: u64, bytes: usize) -> Result<(), IoError> {
        let session = self.0.upgrade().ok_or(SubmitError::Gone)?;
        let mut session = lock(&session);
        let region = Region { file: Arc::clone(file), offset, bytes: bytes as u64 };
        let request = region.request(start.0);
        session.regions.insert(start.0, region);
        let epoch = session.epoch;
        let answered = match session.call(&request, Some(start.0)) {
            Ok((reply, _)) => session.registered(start.0, bytes as u64, &reply),
            // A new connection registers it with all others.
            Err(IoError::Gone { .. }) => session.reconnect(epoch),
            Err(error) => Err(error),
        };
        if answered.is_err() {
            session.regions.remove(&start.0);
        }
        answered
    }

    fn forget(&self, start: Iova) -> Result<(), IoError> {
        let Some(session) = self.0.upgrade() else {
            return Ok(());
        };
        let mut session = lock(&session);
        session.regions.remove(&start.0);
        if let Some(direct) = &session.direct {
            direct.addresses.remove(start.0);
        }
        match session.call(&Request::Release { start: start.0 }, None) {
            Ok((reply, _)) => expect_done(&reply),
            // The daemon is gone, and with it what it knew.
            Err(IoError::Gone { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl AttachBackend {
    /// Connects to the daemon behind a socket. One that does not answer is looked for as long as the options say.
    ///
    /// # Errors
    /// [`IoError::Gone`] when nobody answers, [`IoError::Refused`] when the policy does not know this user.
    pub fn connect(path: &Path, options: AttachOptions) -> Result<Self, IoError> {
        let mut session = Session {
            path: path.to_owned(),
            options: AttachOptions { retry_for: Nanos::ZERO, ..options },
            clock: Clock::start(),
            connection: None,
            epoch: 0,
            regions: BTreeMap::new(),
            direct: None,
        };
        if options.direct {
            session.direct = Some(Direct { watch: Watch::start()?, addresses: Arc::default() });
        }
        session.reconnect(0)?;
        session.options = options;
        let session = Arc::new(Mutex::new(session));
        let memory = DevicePool::open(Regions(Arc::downgrade(&session)))?;
        Ok(Self { session, memory })
    }
}

impl Backend for AttachBackend {
    fn namespaces(&mut self) -> Result<Vec<NamespaceFacts>, IoError> {
        lock(&self.session).namespaces()
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
        self.memory.buffer(bytes)
    }

    fn queue(&mut self, depth: u32) -> Result<Box<dyn Transport>, IoError> {
        let mut session = lock(&self.session);
        if let Some(direct) = &session.direct {
            let keeper = Borrower::new(&self.session, &direct.addresses);
            drop(session);
            return Ok(Box::new(NvmeQueue::open(keeper, depth)?));
        }
        let ring = session.ring_queue(depth)?;
        let (epoch, limits) = (session.epoch(), session.limits(ring.limits()));
        drop(session);
        Ok(Box::new(AttachQueue::new(Arc::clone(&self.session), epoch, ring, limits)))
    }
}
