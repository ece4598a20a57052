//! A session with a daemon that may restart: it records registrations and repeats them after a reconnect.
//!
//! Input: regions and queues of one client. Output: the same at the daemon that listens now. Invariant: a region keeps
//! its address and its bytes for the session's life; the epoch counts connections, so that each queue detects that its
//! own has ended.

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

/// First pause between two connection attempts; doubled up to [`PAUSE_MAX`].
const PAUSE_FIRST: Nanos = Nanos::from_millis(1);
const PAUSE_MAX: Nanos = Nanos::from_millis(100);

/// The options of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    /// Time to retry the connection to a daemon that is gone; [`Nanos::ZERO`] gives up at once.
    pub retry_for: Nanos,
    /// True to drive hardware queues, without the daemon on the I/O path. Granted to trusted users of a daemon that
    /// owns an SSD; such a client is not confined to its blocks or its queues.
    pub direct: bool,
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self { retry_for: Nanos::from_millis(30_000), direct: false }
    }
}

/// A file range registered with the daemon.
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

/// The state of one client, shared by its queues.
#[derive(Debug)]
pub(super) struct Session {
    path: PathBuf,
    options: AttachOptions,
    clock: Clock,
    /// `None` while disconnected, and after reconnecting failed.
    connection: Option<Connection>,
    epoch: u64,
    regions: BTreeMap<u64, Region>,
    /// Present if the session drives hardware queues.
    direct: Option<Direct>,
}

/// The additional state of a session that drives hardware queues.
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

    /// Sends a request with its descriptors over the present connection.
    pub(super) fn call_with(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), IoError> {
        let Self { connection, path, .. } = self;
        let gone = || IoError::Gone { what: path.display().to_string(), reason: "it went away".to_owned() };
        connection.as_mut().ok_or_else(gone)?.call(request, descriptors)
    }

    /// Calls as [`call`](Self::call), and repeats the call over a new connection if the old one has ended.
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

    /// Reconnects, unless another queue has done so since `epoch`, and registers every region again.
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

    /// Checks the daemon's reply to a region, and records the region's device address.
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

    /// Returns the namespaces that this client may use.
    pub(super) fn namespaces(&mut self) -> Result<Vec<NamespaceFacts>, IoError> {
        match self.call_again(&Request::Namespaces, None)?.0 {
            Reply::Namespaces(namespaces) => Ok(namespaces),
            other => Err(nonsense("namespaces", &other)),
        }
    }

    /// Borrows a new hardware queue.
    pub(super) fn lent_queue(&mut self, depth: u32) -> Result<LentReply, IoError> {
        let (reply, descriptors) = self.call_again(&Request::Queue { depth }, None)?;
        lent_of(reply, descriptors, self.connection.as_ref().and_then(Connection::direct))
    }

    /// Watches for the end of a hardware queue.
    pub(super) fn watch(&self, borrowing: &Arc<Borrowing>) -> Result<(), IoError> {
        self.direct.as_ref().map_or(Ok(()), |direct| direct.watch.add(borrowing))
    }

    /// Creates a queue over the present connection.
    pub(super) fn ring_queue(&mut self, depth: u32) -> Result<RingQueue, IoError> {
        let words = words_for(depth)?;
        let (reply, descriptors) = self.call_again(&Request::Queue { depth }, None)?;
        let Reply::Queue { bytes, .. } = reply else {
            return Err(nonsense("a queue", &reply));
        };
        let (Ok([memory, line]), Ok(bytes)) = (<[OwnedFd; 2]>::try_from(descriptors), usize::try_from(bytes))
        else {
            return Err(IoError::Protocol {
                reason: "a queue came without its memory and its wake line".to_owned(),
            });
        };
        let region = Foreign::take(memory.as_fd(), 0, bytes)?;
        let pair = QueuePair::host_half(ForeignWords::new(region, 0, words)?, depth)?;
        Ok(RingQueue::new(pair, Bells::Line(WakeLine::from(line))))
    }
}

impl Session {
    /// Returns the limits of a ring, reduced to those of this daemon's device.
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

/// Locks the session. A thread that panicked in a call leaves at worst an old connection.
pub(super) fn lock(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A backend over a device in a daemon.
#[derive(Debug)]
pub struct AttachBackend {
    session: Arc<Mutex<Session>>,
    memory: DevicePool<Regions>,
}

/// The pool's registrar, which registers memory with the daemon. The pool outlives the session.
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
            // A new connection registers it together with all other regions.
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
            // The daemon is gone, and its registrations with it.
            Err(IoError::Gone { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl AttachBackend {
    /// Connects to the daemon behind a socket, without retrying; later reconnects retry as the options say.
    ///
    /// # Errors
    /// [`IoError::Gone`] when no daemon answers, [`IoError::Refused`] when the policy has no grant for this user.
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

    fn change_namespace(&mut self, id: u8, change: NamespaceWish) -> Result<u8, IoError> {
        // Not retried: if the daemon went away after creating the namespace, a retry would create a second one.
        let request = Request::Admin(AdminRequest::Namespace { id, wish: change });
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
