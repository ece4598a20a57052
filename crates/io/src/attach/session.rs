//! A session with a daemon that may restart: it records registrations and repeats them after a reconnect.
//!
//! Input: regions and queues of one client. Output: the same at the daemon that listens now. Invariant: a region keeps
//! its address and its bytes for the session's life; the epoch counts connections, so that each queue detects that its
//! own has ended.

use super::direct::{
    LentQueueOwner, LentQueueReply, LoanWatcher, QueueLoan, RegionAddresses, parse_lent_reply,
};
use super::queue::AttachQueue;
use crate::attach::admin::{AdminAnswer, AdminRequest};
use crate::attach::connection::{AttachConnection, unexpected_reply};
use crate::attach::protocol::{AttachReply, AttachRequest};
use crate::backend::{DeviceBackend, IoLimits, QueueTransport};
use crate::buffer::Buffer;
use crate::client_namespace::ClientNamespace;
use crate::command::VALUE_BYTES_MAX;
use crate::device_pool::{DevicePool, MemoryRegistrar};
use crate::error::{IoError, SubmitError};
use crate::namespace_request::NamespaceRequest;
use crate::pool_settings::PoolSettings;
use crate::ring_queue::{QueueWakeups, RingQueue};
use crate::vfio::NvmeQueue;
use headwater_dma::iova::Iova;
use headwater_dma::pool::{Pool, PoolError};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_host::shared_memory::SharedMemory;
use headwater_host::wake_line::WakeLine;
use headwater_host::width::to_usize;
use headwater_nvme::queue_pair::{QueuePair, words_for};
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The first address of memory that the daemon made: above all addresses of the pool.
const LENT_FIRST_ADDRESS: u64 = 1 << 60;
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
struct RegisteredRegion {
    file: Arc<OwnedFd>,
    offset: u64,
    bytes: u64,
}

impl RegisteredRegion {
    fn request(&self, start: u64) -> AttachRequest {
        AttachRequest::Region { start, bytes: self.bytes, offset: self.offset }
    }
}

/// The state of one client, shared by its queues.
#[derive(Debug)]
pub(super) struct AttachSession {
    path: PathBuf,
    options: AttachOptions,
    clock: Clock,
    /// `None` while disconnected, and after reconnecting failed.
    connection: Option<AttachConnection>,
    epoch: u64,
    regions: BTreeMap<u64, RegisteredRegion>,
    /// The address of the next memory that the daemon makes.
    next_lent_address: u64,
    /// Present if the session drives hardware queues.
    direct: Option<DirectAccess>,
}

/// The additional state of a session that drives hardware queues.
#[derive(Debug)]
struct DirectAccess {
    watch: LoanWatcher,
    addresses: Arc<RegionAddresses>,
}

impl AttachSession {
    fn call(
        &mut self,
        request: &AttachRequest,
        with: Option<u64>,
    ) -> Result<(AttachReply, Vec<OwnedFd>), IoError> {
        let file = with.and_then(|start| self.regions.get(&start)).map(|region| Arc::clone(&region.file));
        let file = file.as_ref().map(|file| file.as_fd());
        self.call_with(request, file.as_slice())
    }

    /// Sends a request with its descriptors over the present connection.
    pub(super) fn call_with(
        &mut self,
        request: &AttachRequest,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(AttachReply, Vec<OwnedFd>), IoError> {
        let Self { connection, path, .. } = self;
        let gone = || IoError::Gone { what: path.display().to_string(), reason: "it went away".to_owned() };
        connection.as_mut().ok_or_else(gone)?.call(request, descriptors)
    }

    /// Calls as [`call`](Self::call), and repeats the call over a new connection if the old one has ended.
    fn call_with_retry(
        &mut self,
        request: &AttachRequest,
        with: Option<u64>,
    ) -> Result<(AttachReply, Vec<OwnedFd>), IoError> {
        let epoch = self.epoch;
        match self.call(request, with) {
            Err(IoError::Gone { .. }) => {
                self.reconnect(epoch)?;
                self.call(request, with)
            }
            other => other,
        }
    }

    /// Returns the error for a daemon that has ended.
    pub(super) fn gone(&self, reason: &str) -> IoError {
        IoError::Gone { what: self.path.display().to_string(), reason: reason.to_owned() }
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
            Some(_) => AttachConnection::open_direct(&self.path)?,
            None => AttachConnection::open(&self.path)?,
        };
        for (&start, region) in &self.regions {
            let (reply, _) = connection.call(&region.request(start), &[region.file.as_fd()])?;
            self.record_region(start, region.bytes, &reply)?;
        }
        self.connection = Some(connection);
        self.epoch += 1;
        Ok(())
    }

    /// Checks the daemon's reply to a region, and records the region's device address.
    fn record_region(&self, start: u64, bytes: u64, reply: &AttachReply) -> Result<(), IoError> {
        match (&self.direct, reply) {
            (None, AttachReply::Done) => Ok(()),
            (Some(direct), &AttachReply::Region { address }) => {
                direct.addresses.insert(start, bytes, address);
                Ok(())
            }
            _ => Err(unexpected_reply("a region", reply)),
        }
    }

    /// Returns the namespaces that this client may use.
    pub(super) fn namespaces(&mut self) -> Result<Vec<ClientNamespace>, IoError> {
        match self.call_with_retry(&AttachRequest::Namespaces, None)?.0 {
            AttachReply::Namespaces(namespaces) => Ok(namespaces),
            other => Err(unexpected_reply("namespaces", &other)),
        }
    }

    /// Maps memory that the daemon makes. It is registered again after a reconnect, with its bytes.
    fn lent_memory(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        let start = self.next_lent_address;
        let request = AttachRequest::Memory { start, bytes: bytes as u64 };
        let (reply, descriptors) = self.call_with_retry(&request, None)?;
        let AttachReply::Memory { bytes: made } = reply else {
            return Err(unexpected_reply("memory", &reply));
        };
        let (Ok([file]), Ok(length)) = (<[OwnedFd; 1]>::try_from(descriptors), usize::try_from(made)) else {
            return Err(IoError::Protocol { reason: "memory came without its descriptor".to_owned() });
        };
        let memory = SharedMemory::map_descriptor(file.as_fd(), 0, length)?;
        self.regions.insert(start, RegisteredRegion { file: Arc::new(file), offset: 0, bytes: made });
        self.next_lent_address += made;
        Ok(Buffer::from_region(memory, Iova(start)).slice(0, bytes)?)
    }

    /// Borrows a new hardware queue.
    pub(super) fn lent_queue(&mut self, depth: u32) -> Result<LentQueueReply, IoError> {
        let (reply, descriptors) = self.call_with_retry(&AttachRequest::Queue { depth }, None)?;
        parse_lent_reply(
            reply,
            descriptors,
            self.connection.as_ref().and_then(AttachConnection::direct_rules),
        )
    }

    /// Watches for the end of a hardware queue.
    pub(super) fn watch(&self, borrowing: &Arc<QueueLoan>) -> Result<(), IoError> {
        self.direct.as_ref().map_or(Ok(()), |direct| direct.watch.add(borrowing))
    }

    /// Creates a queue over the present connection.
    pub(super) fn ring_queue(&mut self, depth: u32) -> Result<RingQueue, IoError> {
        let words = words_for(depth)?;
        let (reply, descriptors) = self.call_with_retry(&AttachRequest::Queue { depth }, None)?;
        let AttachReply::Queue { bytes, .. } = reply else {
            return Err(unexpected_reply("a queue", &reply));
        };
        let (Ok([memory, line]), Ok(bytes)) = (<[OwnedFd; 2]>::try_from(descriptors), usize::try_from(bytes))
        else {
            return Err(IoError::Protocol {
                reason: "a queue came without its memory and its wake line".to_owned(),
            });
        };
        let region = SharedMemory::map_descriptor(memory.as_fd(), 0, bytes)?;
        let pair = QueuePair::host_side(SharedMemoryWords::new(region, 0, words)?, depth)?;
        Ok(RingQueue::new(pair, QueueWakeups::WakeLine(WakeLine::from(line))))
    }
}

impl AttachSession {
    /// Returns the limits of a ring, reduced to those of this daemon's device.
    fn limits(&self, ring: IoLimits) -> IoLimits {
        let Some(rules) = self.connection.as_ref().and_then(AttachConnection::data_rules) else {
            return ring;
        };
        let transfer = to_usize(rules.transfer);
        IoLimits {
            transfer_bytes_max: ring.transfer_bytes_max.min(transfer),
            memory_align: ring.memory_align.max(rules.align as usize),
            ..ring
        }
    }
}

pub(super) fn expect_done(reply: &AttachReply) -> Result<(), IoError> {
    if *reply == AttachReply::Done { Ok(()) } else { Err(unexpected_reply("a request", reply)) }
}

/// Locks the session. A thread that panicked in a call leaves at worst an old connection.
pub(super) fn lock(session: &Mutex<AttachSession>) -> MutexGuard<'_, AttachSession> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A backend over a device in a daemon.
#[derive(Debug)]
pub struct AttachBackend {
    session: Arc<Mutex<AttachSession>>,
    memory: DevicePool<RegionRegistrar>,
}

/// The pool's registrar, which registers memory with the daemon. The pool outlives the session.
#[derive(Debug)]
struct RegionRegistrar(Weak<Mutex<AttachSession>>);

impl MemoryRegistrar for RegionRegistrar {
    fn register(&self, start: Iova, file: &Arc<OwnedFd>, offset: u64, bytes: usize) -> Result<(), IoError> {
        let session = self.0.upgrade().ok_or(SubmitError::Gone)?;
        let mut session = lock(&session);
        let region = RegisteredRegion { file: Arc::clone(file), offset, bytes: bytes as u64 };
        let request = region.request(start.0);
        session.regions.insert(start.0, region);
        let epoch = session.epoch;
        let answered = match session.call(&request, Some(start.0)) {
            Ok((reply, _)) => session.record_region(start.0, bytes as u64, &reply),
            // A new connection registers it together with all other regions.
            Err(IoError::Gone { .. }) => session.reconnect(epoch),
            Err(error) => Err(error),
        };
        if answered.is_err() {
            session.regions.remove(&start.0);
        }
        answered
    }

    fn unregister(&self, start: Iova) -> Result<(), IoError> {
        let Some(session) = self.0.upgrade() else {
            return Ok(());
        };
        let mut session = lock(&session);
        session.regions.remove(&start.0);
        if let Some(direct) = &session.direct {
            direct.addresses.remove(start.0);
        }
        match session.call(&AttachRequest::Release { start: start.0 }, None) {
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
    /// [`IoError::Gone`] when no daemon answers, [`IoError::Daemon`] when the policy has no grant for this user.
    pub fn connect(path: &Path, options: AttachOptions) -> Result<Self, IoError> {
        Self::connect_with(path, options, &PoolSettings::default())
    }

    /// Connects as [`connect`](Self::connect), with these settings of the pool.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect); or impossible settings.
    pub fn connect_with(
        path: &Path,
        options: AttachOptions,
        settings: &PoolSettings,
    ) -> Result<Self, IoError> {
        let mut session = AttachSession {
            path: path.to_owned(),
            options: AttachOptions { retry_for: Nanos::ZERO, ..options },
            clock: Clock::start(),
            connection: None,
            epoch: 0,
            regions: BTreeMap::new(),
            next_lent_address: LENT_FIRST_ADDRESS,
            direct: None,
        };
        if options.direct {
            session.direct = Some(DirectAccess { watch: LoanWatcher::start()?, addresses: Arc::default() });
        }
        session.reconnect(0)?;
        session.options = options;
        let session = Arc::new(Mutex::new(session));
        let memory = DevicePool::open(RegionRegistrar(Arc::downgrade(&session)), settings)?;
        Ok(Self { session, memory })
    }
}

impl DeviceBackend for AttachBackend {
    fn namespaces(&mut self) -> Result<Vec<ClientNamespace>, IoError> {
        lock(&self.session).namespaces()
    }

    fn change_namespace(&mut self, id: u8, change: NamespaceRequest) -> Result<u8, IoError> {
        // Not retried: if the daemon went away after creating the namespace, a retry would create a second one.
        let request = AttachRequest::Admin(AdminRequest::Namespace { id, request: change });
        match lock(&self.session).call(&request, None)?.0 {
            AttachReply::Admin(AdminAnswer::Namespace(id)) => Ok(id),
            other => Err(unexpected_reply("a change of namespaces", &other)),
        }
    }

    fn region(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        self.memory.buffer(bytes)
    }

    fn pool(&self) -> &Pool {
        self.memory.pool()
    }

    fn pool_error(&self, error: PoolError) -> IoError {
        self.memory.error(error)
    }

    fn lent_region(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        lock(&self.session).lent_memory(bytes)
    }

    fn value_bytes_max(&self) -> Option<usize> {
        // Queues of an SSD that a daemon lends have its limit.
        let session = lock(&self.session);
        let rules = session.connection.as_ref().and_then(AttachConnection::data_rules);
        rules.is_none().then_some(VALUE_BYTES_MAX)
    }

    fn queue(&mut self, depth: u32) -> Result<Box<dyn QueueTransport>, IoError> {
        let mut session = lock(&self.session);
        if let Some(direct) = &session.direct {
            let owner = LentQueueOwner::new(&self.session, &direct.addresses);
            drop(session);
            return Ok(Box::new(NvmeQueue::open(owner, depth)?));
        }
        let segments_max = session.connection.as_ref().map_or(1, AttachConnection::segments_max);
        let ring = session.ring_queue(depth)?.with_lists(self.memory.pool(), segments_max);
        let (epoch, limits) = (session.epoch(), session.limits(ring.limits()));
        drop(session);
        Ok(Box::new(AttachQueue::new(Arc::clone(&self.session), epoch, ring, limits)))
    }
}
