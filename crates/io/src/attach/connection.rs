//! A connection to a daemon: one request, one reply, descriptors in both directions.
//!
//! Input: requests. Output: replies. Each call blocks for its reply, at most [`ANSWER_MAX`]. Invariant: a descriptor
//! that arrives with an unexpected message is closed.

use crate::attach::protocol::{
    AttachReply, AttachRequest, DESCRIPTORS_MAX, DataRules, DirectRules, MESSAGE_BYTES_MAX, VERSION,
    decode_reply, encode,
};
use crate::error::IoError;
use headwater_host::clock::Nanos;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Longest wait for a reply of the daemon.
pub const ANSWER_MAX: Nanos = Nanos::from_millis(10_000);

/// A connection of a client to a daemon.
#[derive(Debug)]
pub struct AttachConnection {
    socket: OwnedFd,
    path: PathBuf,
    data: Option<DataRules>,
    segments: u32,
    direct: Option<DirectRules>,
}

impl AttachConnection {
    /// Connects and sends a hello.
    ///
    /// # Errors
    /// [`IoError::Gone`] when no daemon listens on `path`, [`IoError::Daemon`] when the daemon rejects this client.
    pub fn open(path: &Path) -> Result<Self, IoError> {
        Self::open_as(path, false)
    }

    /// Connects as a client that drives hardware queues.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`IoError::Daemon`] also when direct access is not granted, or the daemon does not
    /// offer it.
    pub fn open_direct(path: &Path) -> Result<Self, IoError> {
        let connection = Self::open_as(path, true)?;
        if connection.direct.is_none() {
            let reason = format!("{} lends no hardware queues; attach without direct=1", path.display());
            return Err(IoError::Daemon { reason });
        }
        Ok(connection)
    }

    fn open_as(path: &Path, direct: bool) -> Result<Self, IoError> {
        let gone =
            |errno: Errno| IoError::Gone { what: path.display().to_string(), reason: errno.to_string() };
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(gone)?;
        connect(&socket, &SocketAddrUnix::new(path).map_err(gone)?).map_err(gone)?;
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, which, Some(ANSWER_MAX.to_duration())).map_err(gone)?;
        }
        let mut connection = Self { socket, path: path.to_owned(), data: None, segments: 1, direct: None };
        match connection.call(&AttachRequest::Hello { version: VERSION, direct }, &[])? {
            (AttachReply::Welcome { version: VERSION, data, segments, direct, .. }, _) => {
                Ok(Self { data, segments, direct, ..connection })
            }
            (other, _) => Err(unexpected_reply("a hello", &other)),
        }
    }

    /// Returns the limits on a command's data at this daemon's device, if the device has any.
    #[must_use]
    pub fn data_rules(&self) -> Option<DataRules> {
        self.data
    }

    /// Returns the most buffers of a command at this daemon's device.
    #[must_use]
    pub fn segments_max(&self) -> u32 {
        self.segments
    }

    /// Returns the rules for driving hardware queues, after [`open_direct`](Self::open_direct).
    #[must_use]
    pub fn direct_rules(&self) -> Option<DirectRules> {
        self.direct
    }

    /// Sends a request with its descriptors and blocks for the reply and its descriptors.
    ///
    /// # Errors
    /// [`IoError::Daemon`] when the daemon refuses, [`IoError::Gone`] when it is gone, [`IoError::Protocol`] when its
    /// answer is not a valid reply.
    pub fn call(
        &mut self,
        request: &AttachRequest,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(AttachReply, Vec<OwnedFd>), IoError> {
        let message = encode(request).map_err(|error| IoError::Protocol { reason: error.reason })?;
        match send_message(self.socket.as_fd(), &message, descriptors) {
            // A daemon that closed the connection may have sent its reason before.
            Ok(()) | Err(Errno::PIPE) => {}
            Err(errno) => return Err(self.gone(errno)),
        }
        let mut room = vec![0; MESSAGE_BYTES_MAX];
        let (bytes, descriptors) = loop {
            match receive_message(self.socket.as_fd(), &mut room, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                other => break other.map_err(|errno| self.gone(errno))?,
            }
        };
        if bytes == 0 {
            return Err(self.gone_because("it closed the connection"));
        }
        let text = room.get(..bytes).unwrap_or_default();
        match decode_reply(text).map_err(|error| IoError::Protocol { reason: error.reason })? {
            AttachReply::Refused { reason } => Err(IoError::Daemon { reason }),
            AttachReply::Gone { reason } => Err(self.gone_because(&reason)),
            reply => Ok((reply, descriptors)),
        }
    }

    fn gone(&self, errno: Errno) -> IoError {
        self.gone_because(&errno.to_string())
    }

    fn gone_because(&self, reason: &str) -> IoError {
        IoError::Gone { what: self.path.display().to_string(), reason: reason.to_owned() }
    }
}

/// Returns the error for a reply of the wrong kind.
pub(crate) fn unexpected_reply(asked: &str, reply: &AttachReply) -> IoError {
    let kind = match reply {
        AttachReply::Welcome { .. } => "a welcome",
        AttachReply::Done => "done",
        AttachReply::Region { .. } => "a region",
        AttachReply::Memory { .. } => "memory",
        AttachReply::Namespaces(_) => "namespaces",
        AttachReply::Queue { .. } => "a queue",
        AttachReply::Admin(_) => "administration",
        AttachReply::Refused { .. } => "a refusal",
        AttachReply::Gone { .. } => "the end of the connection",
    };
    IoError::Protocol { reason: format!("{asked} was answered with {kind}") }
}

/// Sends one datagram with its descriptors. Client and daemon both use it.
///
/// # Errors
/// The kernel's error; [`Errno::AGAIN`] when the other side does not read.
pub fn send_message(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::MSGSIZE);
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Receives one datagram into `room`, and its descriptors. Zero bytes mean that the other side is gone.
///
/// # Errors
/// The kernel's error; [`Errno::MSGSIZE`] for a datagram longer than `room`.
pub fn receive_message(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(room)], &mut control, flags)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok((received.bytes, descriptors))
}
