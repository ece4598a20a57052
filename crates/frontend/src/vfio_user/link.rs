//! One client's socket: whole messages in, replies out, never waiting.
//!
//! In: bytes and descriptors, cut anywhere. Out: messages with the descriptors that came with them. Invariant: a header is
//! read by itself, because the kernel hands descriptors over with the first byte they were sent with; so they cannot
//! end up with another message.

use super::message::{DESCRIPTORS_MAX, Header};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::FromBytes as _;

/// What has come.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message: its header; the rest is in [`Link::rest`].
    Message(Header, Vec<OwnedFd>),
    /// Nothing whole yet.
    Nothing,
    /// The client closed the connection, or sent what cannot be a message.
    Gone(Gone),
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The client left.
    Closed,
    /// What it sent cannot be a message.
    Garbage,
    /// The system says why.
    System(Errno),
}

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => f.write_str("it closed the connection"),
            Self::Garbage => f.write_str("it sent something that is no message"),
            Self::System(errno) => write!(f, "{errno}"),
        }
    }
}

/// A connection to a client.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    /// What has come of the message under way.
    incoming: Vec<u8>,
    /// Whether the message under way was handed out.
    taken: bool,
    descriptors: Vec<OwnedFd>,
    /// Replies not sent yet.
    pub(crate) out: Vec<u8>,
}

impl Link {
    /// A link over a non-blocking socket.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, incoming: Vec::new(), taken: false, descriptors: Vec::new(), out: Vec::new() }
    }

    /// Reads up to one message.
    pub(crate) fn receive(&mut self) -> Received {
        if std::mem::take(&mut self.taken) {
            self.incoming.clear();
        }
        loop {
            let have = self.incoming.len();
            let header = Header::read_from_prefix(&self.incoming).ok().map(|(header, _)| header);
            let wanted = match header.map(|header| (header, header.rest())) {
                None => size_of::<Header>(),
                Some((_, None)) => return Received::Gone(Gone::Garbage),
                Some((header, Some(rest))) if have == size_of::<Header>() + rest => {
                    self.taken = true;
                    return Received::Message(header, std::mem::take(&mut self.descriptors));
                }
                Some((_, Some(rest))) => size_of::<Header>() + rest,
            };
            self.incoming.resize(wanted, 0);
            let got = self.read_into(have);
            self.incoming.truncate(have + got.unwrap_or(0));
            match got {
                Ok(0) => return Received::Gone(Gone::Closed),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Received::Nothing,
                Err(errno) => return Received::Gone(Gone::System(errno)),
            }
        }
    }

    fn read_into(&mut self, have: usize) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut self.incoming[have..])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(&self.socket, &mut slices, &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        // More descriptors than we said we take: the kernel has closed the rest.
        if got.flags.contains(ReturnFlags::CTRUNC) || self.descriptors.len() > DESCRIPTORS_MAX {
            return Err(Errno::MSGSIZE);
        }
        Ok(got.bytes)
    }

    /// The message handed out last, without its header.
    pub(crate) fn rest(&self) -> &[u8] {
        self.incoming.get(size_of::<Header>()..).unwrap_or_default()
    }

    /// Sends what can be sent. True when nothing is left.
    pub(crate) fn flush(&mut self) -> Result<bool, Gone> {
        while !self.out.is_empty() {
            match rustix::net::send(&self.socket, &self.out, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.out.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Gone::Closed),
                Err(errno) => return Err(Gone::System(errno)),
            }
        }
        Ok(true)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
