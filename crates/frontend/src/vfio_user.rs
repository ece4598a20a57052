//! The vfio-user front end: a PCI Express SSD for a guest of a vfio-user hypervisor.
//!
//! Input: a connection on a Unix socket, the guest's memory and interrupts, register writes of its driver. Output: the
//! device as an NVMe controller of that guest. Invariant: one guest at a time; when it disconnects, its state is
//! released once no command in flight uses its memory, and the next guest may connect.
//!
//! ```text
//!   vacant --(client connects)--> guest --(disconnects, or malformed message)--> leaving --(none in flight)--> vacant
//! ```

pub mod config_space;
pub mod controller;
mod data;
pub mod function;
mod guest_files;
mod in_flight_command;
pub mod layout;
mod link;
pub mod message;
pub mod vectors;

use crate::accept_pause::AcceptPause;
use crate::counters::FrontEndCounters;
use crate::front_end::{FrontEnd, PollCost};
use controller::GuestController;
use function::{ReplyState, VfioUserFunction};
use guest_files::FILE_MAPPINGS_MAX;
use headwater_dma::iova::REGIONS_MAX;
use headwater_host::client_eventfd::ClientEventfd;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::fault_guard::LostPages;
use headwater_nvme::queue_pair::SleepDecision;
use headwater_ssd::command::FrontEndId;
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::media::Media;
use link::{ClientLink, LinkEnd, LinkInput};
use rustix::event::epoll;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Maximum regions of guest memory. The guest's hypervisor learns it from the version reply.
pub const DMA_MAPS_MAX: usize = 65_535;
const _: () = assert!(DMA_MAPS_MAX < REGIONS_MAX);
// The files of a guest have at most so many mappings, each region of the attach front end is one, and the kernel limits a
// process to 65,530 of them: half are left for everything else.
const _: () = assert!(FILE_MAPPINGS_MAX + crate::attach::REGIONS_OF_ALL_MAX <= 32_768);
/// Maximum messages handled in one poll, so that a client that sends constantly does not delay the device.
const MESSAGES_MAX: usize = 64;
/// Minimum time between two polls of the sockets: a poll is a system call, and a busy guest's commands arrive in
/// memory.
const SOCKET_POLL_PERIOD: Nanos = Nanos(5_000);
/// Time after which sending is retried while the client's socket is full.
const RESEND_PERIOD: Nanos = Nanos(1_000_000);
/// Bytes of unread replies at which receiving from the client pauses.
const UNREAD_MAX: usize = 64 * 1_024;

/// An error of listening on the socket.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot listen for a vfio-user client: {source}; check the path given with --vfio-user", path.display())]
pub struct VfioUserError {
    path: PathBuf,
    source: std::io::Error,
}

/// The vfio-user front end.
#[derive(Debug)]
pub struct VfioUserFrontEnd {
    path: PathBuf,
    listener: UnixListener,
    accept_pause: AcceptPause,
    readiness: OwnedFd,
    controller: GuestController,
    guest: Option<ConnectedGuest>,
    /// A client that connected after the guest had closed its connection, but before that was noticed.
    next_client: Option<UnixStream>,
    last_poll: Nanos,
    draining: bool,
}

/// A connected client and its PCI function.
#[derive(Debug)]
struct ConnectedGuest {
    link: ClientLink,
    function: VfioUserFunction,
    /// True if the reply to a message is pending, which blocks all later messages.
    reply_pending: bool,
}

impl VfioUserFrontEnd {
    /// Binds the socket and listens. A stale socket file, on which no process listens, is replaced.
    ///
    /// # Errors
    /// [`VfioUserError`] with the path.
    pub fn bind(path: &Path, front_end: FrontEndId) -> Result<Self, VfioUserError> {
        let refused = |source| VfioUserError { path: path.to_owned(), source };
        ClientEventfd::check_support().map_err(|error| refused(std::io::Error::other(error)))?;
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
        if is_socket && UnixStream::connect(path).is_err() {
            std::fs::remove_file(path).map_err(refused)?;
        }
        let listener = UnixListener::bind(path).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let readiness = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| refused(errno.into()))?;
        let accept_pause =
            AcceptPause::watch(&readiness, &listener, 0).map_err(|errno| refused(errno.into()))?;
        Ok(Self {
            path: path.to_owned(),
            listener,
            accept_pause,
            readiness,
            controller: GuestController::new(front_end),
            guest: None,
            next_client: None,
            last_poll: Nanos::ZERO,
            draining: false,
        })
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Serves messages and commands. Never blocks. Returns true if there was progress.
    pub fn poll<M: Media>(&mut self, device: &mut SsdDevice<M>, now: Nanos) -> bool {
        let mut moved = self.end_lost_guest();
        let waiting = self.guest.as_ref().is_some_and(|guest| guest.reply_pending);
        if waiting || now.since(self.last_poll) >= SOCKET_POLL_PERIOD {
            self.last_poll = now;
            moved |= self.accept_client(now);
            moved |= self.serve_messages(now);
        }
        match &mut self.guest {
            Some(ConnectedGuest { function, .. }) => {
                let serves = function.is_bus_master() && !self.draining;
                let VfioUserFunction { memory, vectors, .. } = function;
                moved |= self.controller.poll(device, serves.then_some(&*memory), now);
                self.controller.interrupt(now, |vector| vectors.signal(vector));
            }
            None => moved |= self.controller.poll(device, None, now),
        }
        moved
    }

    /// Accepts a client, if there is none; a second one is disconnected at once, so that it can report it.
    fn accept_client(&mut self, now: Nanos) -> bool {
        if self.next_client.is_some() {
            return false;
        }
        let (readiness, listener) = (self.readiness.as_fd(), self.listener.as_fd());
        if self.accept_pause.is_paused(readiness, listener, now) {
            return false;
        }
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                self.accept_pause.handle_error(readiness, listener, &error, now);
                return false;
            }
        };
        match &self.guest {
            _ if self.draining => {}
            None => self.welcome(stream),
            // Its last messages are served first.
            Some(guest) if guest.link.is_closed_by_client() => self.next_client = Some(stream),
            Some(_) => {
                tracing::warn!(
                    path = %self.path.display(),
                    "a second vfio-user client was disconnected, because one guest is connected already"
                );
            }
        }
        true
    }

    /// Makes a client the guest.
    fn welcome(&mut self, stream: UnixStream) {
        if stream.set_nonblocking(true).is_ok() && watch(&self.readiness, stream.as_fd()).is_ok() {
            tracing::info!(path = %self.path.display(), "a vfio-user client connected");
            self.guest = Some(ConnectedGuest {
                link: ClientLink::new(stream.into()),
                function: VfioUserFunction::default(),
                reply_pending: false,
            });
        }
    }

    /// Serves the client's messages, or ends its connection.
    fn serve_messages(&mut self, now: Nanos) -> bool {
        let Some(guest) = &mut self.guest else {
            return false;
        };
        match guest.serve_messages(&mut self.controller.registers(now)) {
            Ok(moved) => moved,
            Err(gone) => {
                tracing::info!(path = %self.path.display(), reason = %gone, "the vfio-user client disconnected");
                self.end_guest();
                true
            }
        }
    }

    /// Ends the connection of a guest whose memory lost pages, before a completion of what used them is posted.
    fn end_lost_guest(&mut self) -> bool {
        let lost = self.guest.as_ref().is_some_and(|guest| guest.function.has_lost_pages());
        if lost {
            let (path, reason) = (self.path.display(), LostPages::REASON);
            tracing::warn!(%path, reason, "the vfio-user client was disconnected");
            self.end_guest();
        }
        lost
    }

    /// Closes the connection and releases the guest's state. A waiting client becomes the guest.
    fn end_guest(&mut self) {
        self.guest = None;
        self.controller.abandon();
        if let Some(stream) = self.next_client.take().filter(|_| !self.draining) {
            self.welcome(stream);
        }
    }

    /// Makes the guest write a doorbell register when it submits; see
    /// [`FrontEnd::prepare_sleep`].
    pub fn prepare_sleep(&mut self) -> SleepDecision {
        match &self.guest {
            Some(guest) if guest.function.is_bus_master() => self.controller.prepare_sleep(),
            _ => SleepDecision::UntilWoken,
        }
    }

    /// Returns `Memory` while a guest is connected: its rings are in memory, and the sockets are polled periodically.
    #[must_use]
    pub fn poll_cost(&self) -> PollCost {
        if self.guest.is_some() { PollCost::Memory } else { PollCost::Kernel }
    }

    /// Returns a descriptor that is readable when a client has connected or sent a message.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.readiness.as_fd()
    }

    /// Returns the time of the next work that no descriptor announces.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let unsent = self.guest.as_ref().is_some_and(|guest| !guest.link.unsent.is_empty());
        let again = unsent.then(|| self.last_poll.after(RESEND_PERIOD));
        let accept = self.accept_pause.deadline();
        self.controller.next_deadline().into_iter().chain(again).chain(accept).min()
    }

    /// Returns true if no command is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.controller.is_quiet()
    }

    /// Stops accepting clients and commands.
    pub fn begin_drain(&mut self) {
        self.draining = true;
    }

    /// Returns true if, after [`begin_drain`](Self::begin_drain), every fetched command is completed.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.draining && self.controller.is_quiet()
    }

    /// Adds its counters.
    pub fn count(&self, into: &mut FrontEndCounters) {
        into.connections += u64::from(self.guest.is_some());
        self.accept_pause.count(into);
    }
}

impl<M: Media> FrontEnd<SsdDevice<M>> for VfioUserFrontEnd {
    fn poll(&mut self, device: &mut SsdDevice<M>, now: Nanos, _wall: UnixMillis) -> bool {
        Self::poll(self, device, now)
    }

    fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor()
    }

    fn next_deadline(&self) -> Option<Nanos> {
        Self::next_deadline(self)
    }

    fn poll_cost(&self) -> PollCost {
        Self::poll_cost(self)
    }

    fn prepare_sleep(&mut self) -> SleepDecision {
        Self::prepare_sleep(self)
    }

    fn drain(&mut self) {
        self.begin_drain();
    }

    fn is_drained(&self) -> bool {
        Self::is_drained(self)
    }

    fn add_counters(&self, into: &mut FrontEndCounters) {
        Self::count(self, into);
    }
}

impl ConnectedGuest {
    fn serve_messages(&mut self, registers: &mut impl function::BarRegisters) -> Result<bool, LinkEnd> {
        let mut moved = false;
        for _ in 0..MESSAGES_MAX {
            if self.reply_pending {
                self.reply_pending =
                    self.function.complete_awaited(registers, &mut self.link.unsent) == ReplyState::Waiting;
            }
            self.link.flush()?;
            if self.reply_pending || self.link.unsent.len() > UNREAD_MAX {
                return Ok(moved);
            }
            match self.link.receive() {
                LinkInput::Nothing => return Ok(moved),
                LinkInput::Gone(gone) => return Err(gone),
                LinkInput::Message(header, descriptors) => {
                    let Self { link, function, reply_pending: waiting } = self;
                    let mut out = std::mem::take(&mut link.unsent);
                    let handled = function.handle(&header, link.rest(), descriptors, registers, &mut out);
                    link.unsent = out;
                    *waiting = handled == ReplyState::Waiting;
                    moved = true;
                }
            }
        }
        Ok(moved)
    }
}

impl Drop for VfioUserFrontEnd {
    fn drop(&mut self) {
        // Another process may have removed it already.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Adds a descriptor to those that end a sleep. Closing it removes it.
fn watch(readiness: &OwnedFd, descriptor: BorrowedFd<'_>) -> Result<(), rustix::io::Errno> {
    epoll::add(readiness, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}
