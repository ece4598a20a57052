//! The vfio-user face: a PCI Express SSD for a guest of a hypervisor that speaks vfio-user.
//!
//! In: a connection on a Unix socket, the guest's memory and interrupts, what its driver writes. Out: the device as an NVMe
//! controller of that guest. Invariant: one guest at a time; when it goes, what it left is forgotten as soon as nothing in
//! flight names its memory, and the next may come.
//!
//! ```text
//!   nobody --(client connects)--> guest --(it goes, or sends garbage)--> leaving --(nothing in flight)--> nobody
//! ```

pub mod config_space;
pub mod controller;
mod data;
mod flight;
pub mod function;
pub mod layout;
mod link;
pub mod message;
pub mod vectors;

use crate::front_end::{Face, PollCost};
use crate::numbers::FaceNumbers;
use controller::GuestController;
use function::{Function, Handled};
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::queue_pair::Sleep;
use headwater_ssd::command::FaceId;
use headwater_ssd::engine::Device;
use headwater_ssd::media::Media;
use link::{Gone, Link, Received};
use rustix::event::epoll;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Messages taken in one poll, so that a client who sends all the time does not keep the device from its work.
const MESSAGES_MAX: usize = 64;
/// Least time between two looks at the sockets: a look is a call into the kernel, and a busy guest's work comes by memory.
const LOOK_EVERY: Nanos = Nanos(5_000);
/// When replies are sent again that a client had no room for.
const SEND_AGAIN: Nanos = Nanos(1_000_000);
/// Bytes of replies that a client may leave unread before no more of its messages are taken.
const UNREAD_MAX: usize = 64 * 1_024;

/// The socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot listen for a vfio-user client: {source}; check the path given with --vfio-user", path.display())]
pub struct VfioUserError {
    path: PathBuf,
    source: std::io::Error,
}

/// The face.
#[derive(Debug)]
pub struct VfioUserFace {
    path: PathBuf,
    listener: UnixListener,
    readiness: OwnedFd,
    controller: GuestController,
    guest: Option<Guest>,
    looked: Nanos,
    draining: bool,
}

/// A client and the function that it sees.
#[derive(Debug)]
struct Guest {
    link: Link,
    function: Function,
    /// A message waits for its reply, and with it all behind it.
    waiting: bool,
}

impl VfioUserFace {
    /// Listens. A socket that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// [`VfioUserError`] names the path.
    pub fn bind(path: &Path, face: FaceId) -> Result<Self, VfioUserError> {
        let refused = |source| VfioUserError { path: path.to_owned(), source };
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
        if is_socket && UnixStream::connect(path).is_err() {
            std::fs::remove_file(path).map_err(refused)?;
        }
        let listener = UnixListener::bind(path).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let readiness = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| refused(errno.into()))?;
        watch(&readiness, listener.as_fd()).map_err(|errno| refused(errno.into()))?;
        Ok(Self {
            path: path.to_owned(),
            listener,
            readiness,
            controller: GuestController::new(face),
            guest: None,
            looked: Nanos::ZERO,
            draining: false,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes messages and commands as far as they go; never waits. Returns whether anything moved.
    pub fn poll<M: Media>(&mut self, device: &mut Device<M>, now: Nanos) -> bool {
        let mut moved = false;
        let waiting = self.guest.as_ref().is_some_and(|guest| guest.waiting);
        if waiting || now.since(self.looked) >= LOOK_EVERY {
            self.looked = now;
            moved |= self.meet();
            moved |= self.listen(now);
        }
        match &mut self.guest {
            Some(Guest { function, .. }) => {
                let serves = function.is_bus_master() && !self.draining;
                let Function { memory, vectors, .. } = function;
                moved |= self.controller.poll(device, serves.then_some(&*memory), now);
                self.controller.interrupt(now, |vector| vectors.signal(vector));
            }
            None => moved |= self.controller.poll(device, None, now),
        }
        moved
    }

    /// Lets a client in, if there is none; another one is sent away at once, so that it can say so.
    fn meet(&mut self) -> bool {
        let Ok((stream, _)) = self.listener.accept() else {
            return false;
        };
        if self.guest.is_some() || self.draining {
            tracing::warn!(path = %self.path.display(), "a second vfio-user client is sent away");
            return true;
        }
        if stream.set_nonblocking(true).is_ok() && watch(&self.readiness, stream.as_fd()).is_ok() {
            tracing::info!(path = %self.path.display(), "a vfio-user client came");
            self.guest =
                Some(Guest { link: Link::new(stream.into()), function: Function::default(), waiting: false });
        }
        true
    }

    /// Answers the client's messages.
    fn listen(&mut self, now: Nanos) -> bool {
        let Some(guest) = &mut self.guest else {
            return false;
        };
        match guest.listen(&mut self.controller.registers(now)) {
            Ok(moved) => moved,
            Err(gone) => {
                tracing::info!(path = %self.path.display(), reason = %gone, "the vfio-user client is gone");
                self.guest = None;
                self.controller.abandon();
                true
            }
        }
    }

    /// Asks the guest to announce what it rings from now on; see
    /// [`Face::prepare_sleep`](crate::front_end::Face::prepare_sleep).
    pub fn prepare_sleep(&mut self) -> Sleep {
        match &self.guest {
            Some(guest) if guest.function.is_bus_master() => self.controller.prepare_sleep(),
            _ => Sleep::Until,
        }
    }

    /// While a guest is there its rings are in memory; the sockets are looked at now and then.
    #[must_use]
    pub fn poll_cost(&self) -> PollCost {
        if self.guest.is_some() { PollCost::Memory } else { PollCost::Kernel }
    }

    /// Readable when a client has something to say.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.readiness.as_fd()
    }

    /// When the face next has something to do that nobody announces.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let unsent = self.guest.as_ref().is_some_and(|guest| !guest.link.out.is_empty());
        let again = unsent.then(|| self.looked.after(SEND_AGAIN));
        self.controller.next_deadline().into_iter().chain(again).min()
    }

    /// Whether nothing is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.controller.is_quiet()
    }

    /// Takes no more clients and no more commands.
    pub fn begin_drain(&mut self) {
        self.draining = true;
    }

    /// Whether, after [`begin_drain`](Self::begin_drain), everything taken is answered.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.draining && self.controller.is_quiet()
    }

    /// Adds its numbers.
    pub fn count(&self, into: &mut FaceNumbers) {
        into.connections += u64::from(self.guest.is_some());
    }
}

impl<M: Media> Face<Device<M>> for VfioUserFace {
    fn poll(&mut self, device: &mut Device<M>, now: Nanos, _wall: UnixMillis) -> bool {
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

    fn prepare_sleep(&mut self) -> Sleep {
        Self::prepare_sleep(self)
    }

    fn drain(&mut self) {
        self.begin_drain();
    }

    fn is_drained(&self) -> bool {
        Self::is_drained(self)
    }

    fn count(&self, into: &mut FaceNumbers) {
        Self::count(self, into);
    }
}

impl Guest {
    fn listen(&mut self, registers: &mut impl function::Registers) -> Result<bool, Gone> {
        let mut moved = false;
        for _ in 0..MESSAGES_MAX {
            if self.waiting {
                self.waiting = self.function.go_on(registers, &mut self.link.out) == Handled::Waiting;
            }
            self.link.flush()?;
            if self.waiting || self.link.out.len() > UNREAD_MAX {
                return Ok(moved);
            }
            match self.link.receive() {
                Received::Nothing => return Ok(moved),
                Received::Gone(gone) => return Err(gone),
                Received::Message(header, descriptors) => {
                    let Self { link, function, waiting } = self;
                    let mut out = std::mem::take(&mut link.out);
                    let handled = function.handle(&header, link.rest(), descriptors, registers, &mut out);
                    link.out = out;
                    *waiting = handled == Handled::Waiting;
                    moved = true;
                }
            }
        }
        Ok(moved)
    }
}

impl Drop for VfioUserFace {
    fn drop(&mut self) {
        // Somebody else may have removed it; then it is gone, which is what is wanted.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Adds a descriptor to those that end a sleep. Closing it takes it out again.
fn watch(readiness: &OwnedFd, descriptor: BorrowedFd<'_>) -> Result<(), rustix::io::Errno> {
    epoll::add(readiness, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}
