//! The backup front end: holds a snapshot of the device while another process copies the flash file.
//!
//! Input: a connection on a Unix socket in the data directory, which only its owner may open. Output: the parts of the
//! file that belong to the snapshot. Invariant: one client at a time; the snapshot ends with its connection, so a client
//! that is killed keeps nothing.
//!
//! ```text
//!   vacant --(client)--> request --> pending --(snapshot held)--> sending --> copying --(lost, or disconnected)--> vacant
//! ```
//!
//! The client reads the file itself, with its own rights: the node moves no data and writes to no path that it is given.

pub mod message;

use crate::accept_pause::AcceptPause;
use crate::counters::FrontEndCounters;
use crate::front_end::FrontEnd;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::width::to_usize;
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::engine::snapshot::{SnapshotLoss, SnapshotRefusal, SnapshotStatus};
use headwater_ssd::media::Media as _;
use headwater_ssd::media::file::FileMedia;
use headwater_ssd::media::file::image::FileImage;
use message::{
    BackupRequest, BackupStatus, CopiedBlock, KnownBlock, SnapshotBlockEntry, SnapshotHeader, SnapshotRecord,
};
use rustix::event::{Timespec, epoll};
use std::io::{ErrorKind, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Bytes received, and bytes prepared for sending, in one poll.
const PIECE_BYTES: usize = 64 << 10;
/// Time after which sending is tried again while the client's socket is full, and the state of a snapshot is looked at.
const RETRY_PERIOD: Nanos = Nanos::from_millis(1);

/// The event data of the listener.
const LISTENER: u64 = 0;

/// The backup front end of a device on a flash file.
#[derive(Debug)]
pub struct BackupFrontEnd {
    path: PathBuf,
    listener: UnixListener,
    readiness: OwnedFd,
    accept_pause: AcceptPause,
    client: Option<BackupClient>,
    last_poll: Nanos,
    draining: bool,
}

/// The step of a client.
#[derive(Debug)]
enum BackupStep {
    /// The request is awaited.
    Request,
    /// The snapshot is awaited.
    Pending,
    /// The list of its blocks is being sent, from this one on.
    Sending(FileImage, usize),
    /// The client copies.
    Copying,
    /// The last status is being sent.
    Ending,
}

#[derive(Debug)]
struct BackupClient {
    stream: UnixStream,
    received: Vec<u8>,
    unsent: Vec<u8>,
    step: BackupStep,
}

/// The end of a connection.
struct ClientGone;

impl BackupFrontEnd {
    /// Listens on the socket of a data directory. One that an ended node left behind is replaced: the caller has locked
    /// the directory.
    ///
    /// # Errors
    /// The system's error, for example for a path that is too long for a socket.
    pub fn bind(directory: &Path) -> std::io::Result<Self> {
        let path = directory.join(message::SOCKET_NAME);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let readiness = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let accept_pause = AcceptPause::watch(&readiness, &listener, LISTENER)?;
        Ok(Self {
            path,
            listener,
            readiness,
            accept_pause,
            client: None,
            last_poll: Nanos::ZERO,
            draining: false,
        })
    }

    /// Returns true if a client may wait to be accepted. The core asks before each sleep, and a call of `accept` without a
    /// client costs several times as much: it makes a socket first.
    fn has_arrival(&self) -> bool {
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut buffer = [const { MaybeUninit::<epoll::Event>::uninit() }; 2];
        let is_listener = |event: &epoll::Event| event.data.u64() == LISTENER;
        match epoll::wait(&self.readiness, &mut buffer, Some(&nothing)) {
            Ok((events, _)) => events.iter().any(is_listener) || self.accept_pause.deadline().is_some(),
            Err(_) => true,
        }
    }

    fn accept_client(&mut self, now: Nanos) -> bool {
        let (readiness, listener) = (self.readiness.as_fd(), self.listener.as_fd());
        if self.accept_pause.is_paused(readiness, listener, now) {
            return false;
        }
        let mut stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                self.accept_pause.handle_error(readiness, listener, &error, now);
                return false;
            }
        };
        let watched =
            || epoll::add(readiness, &stream, epoll::EventData::new_u64(LISTENER + 1), epoll::EventFlags::IN);
        if self.client.is_some() || self.draining || stream.set_nonblocking(true).is_err() {
            // A new socket has room for a status; a client that is gone needs none.
            let _ = stream.write(&BackupStatus::RefusedBusy.encode());
        } else if watched().is_ok() {
            let (received, unsent) = (Vec::new(), Vec::new());
            self.client = Some(BackupClient { stream, received, unsent, step: BackupStep::Request });
        }
        true
    }
}

impl FrontEnd<SsdDevice<FileMedia>> for BackupFrontEnd {
    fn poll(&mut self, device: &mut SsdDevice<FileMedia>, now: Nanos, _wall: UnixMillis) -> bool {
        self.last_poll = now;
        let accepted = self.has_arrival() && self.accept_client(now);
        let Some(client) = &mut self.client else {
            return accepted;
        };
        if self.draining {
            client.end(BackupStatus::LostNodeStops);
        }
        match client.serve(device) {
            Ok(moved) => accepted | moved,
            Err(ClientGone) => {
                device.release_snapshot();
                self.client = None;
                true
            }
        }
    }

    fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.readiness.as_fd()
    }

    /// Returns true while a client is served.
    fn waits_for_device(&self) -> bool {
        self.client.is_some()
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let is_waiting = |client: &BackupClient| self.draining || !matches!(client.step, BackupStep::Request);
        let waits = self.client.as_ref().is_some_and(is_waiting);
        let again = waits.then(|| self.last_poll.after(RETRY_PERIOD));
        again.into_iter().chain(self.accept_pause.deadline()).min()
    }

    fn drain(&mut self) {
        self.draining = true;
    }

    fn is_drained(&self) -> bool {
        self.client.is_none()
    }

    fn add_counters(&self, into: &mut FrontEndCounters) {
        into.connections += u64::from(self.client.is_some());
        self.accept_pause.count(into);
    }
}

impl BackupClient {
    /// Serves the client as far as it goes now. Returns true if anything moved.
    fn serve(&mut self, device: &mut SsdDevice<FileMedia>) -> Result<bool, ClientGone> {
        let mut moved = self.send()?;
        moved |= self.receive()?;
        moved |= match &mut self.step {
            BackupStep::Request => self.take_request(device),
            BackupStep::Pending => self.begin_list(device),
            BackupStep::Sending(..) => self.send_list(device),
            BackupStep::Copying => self.watch_copies(device),
            BackupStep::Ending if self.unsent.is_empty() => return Err(ClientGone),
            BackupStep::Ending => false,
        };
        Ok(moved)
    }

    /// Sends a last status, unless one is being sent.
    fn end(&mut self, status: BackupStatus) {
        if !matches!(self.step, BackupStep::Ending) {
            self.unsent.extend(status.encode());
            self.step = BackupStep::Ending;
        }
    }

    fn send(&mut self) -> Result<bool, ClientGone> {
        if self.unsent.is_empty() {
            return Ok(false);
        }
        match self.stream.write(&self.unsent) {
            Ok(sent) => {
                self.unsent.drain(..sent);
                Ok(sent > 0)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(_) => Err(ClientGone),
        }
    }

    fn receive(&mut self) -> Result<bool, ClientGone> {
        if self.received.len() >= PIECE_BYTES && !matches!(self.step, BackupStep::Request) {
            return Ok(false);
        }
        let mut piece = [0; 16 << 10];
        match self.stream.read(&mut piece) {
            Ok(0) => Err(ClientGone),
            Ok(read) => {
                self.received.extend(&piece[..read]);
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(_) => Err(ClientGone),
        }
    }

    /// Requests the snapshot once the whole request is there.
    fn take_request(&mut self, device: &mut SsdDevice<FileMedia>) -> bool {
        let Ok((request, rest)) = BackupRequest::read_from_prefix(&self.received) else {
            return false;
        };
        let known = to_usize(u64::from(request.known.get()));
        if !request.is_valid() || known > device.media().geometry().blocks as usize {
            self.end(BackupStatus::RefusedRequest);
            return true;
        }
        let Ok((blocks, _)) = <[KnownBlock]>::ref_from_prefix_with_elems(rest, known) else {
            return false;
        };
        let media = device.media();
        let known = blocks
            .iter()
            .filter_map(|block| media.block_at(block.offset.get()).map(|found| (found, block.order.get())));
        let known = known.collect();
        let taken = size_of::<BackupRequest>() + size_of_val(blocks);
        self.received.drain(..taken);
        match device.request_snapshot(known) {
            Ok(()) => self.step = BackupStep::Pending,
            Err(SnapshotRefusal::Exists) => self.end(BackupStatus::RefusedBusy),
            Err(SnapshotRefusal::Version1) => self.end(BackupStatus::RefusedVersion1),
        }
        true
    }

    /// Begins to send the parts of the snapshot once it is held.
    fn begin_list(&mut self, device: &SsdDevice<FileMedia>) -> bool {
        let snapshot = match device.snapshot() {
            SnapshotStatus::Held(snapshot) => snapshot,
            SnapshotStatus::Lost(loss) => {
                self.end(status_of(loss));
                return true;
            }
            SnapshotStatus::None | SnapshotStatus::Pending => return false,
        };
        let image = device.media().image_of(&snapshot.contents);
        let header = SnapshotHeader::new(&image, snapshot.end.tick.0, snapshot.end.sequence.0);
        self.unsent.extend(BackupStatus::Snapshot.encode());
        self.unsent.extend(header.as_bytes());
        for (offset, bytes) in &image.records {
            self.unsent.extend(SnapshotRecord::new(*offset, bytes).as_bytes());
        }
        self.step = BackupStep::Sending(image, 0);
        true
    }

    fn send_list(&mut self, device: &mut SsdDevice<FileMedia>) -> bool {
        let moved = self.note_copies(device);
        let BackupStep::Sending(image, at) = &mut self.step else {
            return moved;
        };
        if !self.unsent.is_empty() {
            return moved;
        }
        let rest = image.blocks.get(*at..).unwrap_or_default();
        let piece = &rest[..rest.len().min(PIECE_BYTES / size_of::<SnapshotBlockEntry>())];
        for block in piece {
            self.unsent.extend(SnapshotBlockEntry::from(block).as_bytes());
        }
        *at += piece.len();
        if *at == image.blocks.len() {
            self.step = BackupStep::Copying;
        }
        true
    }

    /// Notes copied blocks, and tells the client if the snapshot is lost.
    fn watch_copies(&mut self, device: &mut SsdDevice<FileMedia>) -> bool {
        let moved = self.note_copies(device);
        let SnapshotStatus::Lost(loss) = device.snapshot() else {
            return moved;
        };
        self.end(status_of(loss));
        true
    }

    fn note_copies(&mut self, device: &mut SsdDevice<FileMedia>) -> bool {
        let count = self.received.len() / size_of::<CopiedBlock>();
        let bytes = count * size_of::<CopiedBlock>();
        for index in self.received[..bytes].chunks_exact(size_of::<CopiedBlock>()) {
            if let Ok(index) = CopiedBlock::read_from_bytes(index) {
                device.note_snapshot_copied(to_usize(u64::from(index.get())));
            }
        }
        self.received.drain(..bytes);
        count > 0
    }
}

fn status_of(loss: SnapshotLoss) -> BackupStatus {
    match loss {
        SnapshotLoss::NoSpace => BackupStatus::LostNoSpace,
        SnapshotLoss::Sanitized => BackupStatus::LostSanitized,
        SnapshotLoss::MediumFailed => BackupStatus::LostMediumFailed,
    }
}

impl Drop for BackupFrontEnd {
    fn drop(&mut self) {
        // A file that is left behind is replaced by the next node.
        let _ = std::fs::remove_file(&self.path);
    }
}
