//! A connection to a daemon: one request, one reply, descriptors both ways.
//!
//! In: messages. Out: messages. Each call waits for its answer, at most [`ANSWER_MAX`]. Invariant: a descriptor that came
//! with a message nobody asked for is closed.

use crate::attach::protocol::{
    DESCRIPTORS_MAX, DataRules, DirectRules, MESSAGE_BYTES_MAX, Reply, Request, VERSION, decode_reply, encode,
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

/// Longest wait for an answer of the daemon.
pub const ANSWER_MAX: Nanos = Nanos::from_millis(10_000);

/// One connection.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    path: PathBuf,
    data: Option<DataRules>,
    direct: Option<DirectRules>,
}

impl Connection {
    /// Connects and says hello.
    ///
    /// # Errors
    /// [`IoError::Gone`] when nobody listens there, [`IoError::Refused`] when the daemon will not have us.
    pub fn open(path: &Path) -> Result<Self, IoError> {
        Self::open_as(path, false)
    }

    /// Connects, to drive queues of the hardware's.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`IoError::Refused`] also when that is not granted, or not there to be had.
    pub fn open_direct(path: &Path) -> Result<Self, IoError> {
        let connection = Self::open_as(path, true)?;
        if connection.direct.is_none() {
            let reason = "this daemon lends no queues of the hardware's; attach without direct=1".to_owned();
            return Err(IoError::Refused { reason });
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
        let mut connection = Self { socket, path: path.to_owned(), data: None, direct: None };
        match connection.call(&Request::Hello { version: VERSION, direct }, &[])? {
            (Reply::Welcome { version: VERSION, data, direct, .. }, _) => {
                Ok(Self { data, direct, ..connection })
            }
            (other, _) => Err(nonsense("a hello", &other)),
        }
    }

    /// What the data of a command must be like at this daemon's device, if that is particular about it.
    #[must_use]
    pub fn data(&self) -> Option<DataRules> {
        self.data
    }

    /// How queues of the hardware's are driven, after [`open_direct`](Self::open_direct).
    #[must_use]
    pub fn direct(&self) -> Option<DirectRules> {
        self.direct
    }

    /// Sends a request with its descriptors and waits for the reply with its own.
    ///
    /// # Errors
    /// [`IoError::Refused`] when the daemon says so, [`IoError::Gone`] when it is gone, [`IoError::Protocol`] when its
    /// answer is none.
    pub fn call(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), IoError> {
        let message = encode(request).map_err(|error| IoError::Protocol { reason: error.reason })?;
        match send_message(self.socket.as_fd(), &message, descriptors) {
            // Whoever closed the connection may have said why before.
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
            Reply::Refused { reason } => Err(IoError::Refused { reason }),
            Reply::Gone { reason } => Err(self.gone_because(&reason)),
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

/// A reply to another question than was asked.
pub(crate) fn nonsense(asked: &str, reply: &Reply) -> IoError {
    let kind = match reply {
        Reply::Welcome { .. } => "a welcome",
        Reply::Done => "done",
        Reply::Region { .. } => "a region",
        Reply::Namespaces(_) => "namespaces",
        Reply::Queue { .. } => "a queue",
        Reply::Admin(_) => "administration",
        Reply::Refused { .. } => "a refusal",
        Reply::Gone { .. } => "a farewell",
    };
    IoError::Protocol { reason: format!("{asked} was answered with {kind}") }
}

/// Sends one datagram with descriptors beside it, either side's way.
///
/// # Errors
/// The kernel's answer; [`Errno::AGAIN`] when the other side does not read.
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

/// Receives one datagram into `room` with what descriptors came beside it. No bytes mean that the other side is gone.
///
/// # Errors
/// The kernel's answer; [`Errno::MSGSIZE`] for a datagram longer than the room.
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
