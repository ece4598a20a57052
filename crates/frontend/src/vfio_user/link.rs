//! The non-blocking socket of one client.
//!
//! Input: bytes and descriptors, fragmented arbitrarily. Output: whole messages with their descriptors. Invariant: a
//! header is read by itself: the kernel delivers descriptors with the first byte they were sent with, so they are never
//! attributed to another message.

use super::message::{DESCRIPTORS_MAX, VfioUserHeader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::FromBytes as _;

/// The result of a receive.
#[derive(Debug)]
pub(crate) enum LinkInput {
    /// A message: its header and descriptors; the rest is in [`ClientLink::rest`].
    Message(VfioUserHeader, Vec<OwnedFd>),
    /// No whole message yet.
    Nothing,
    /// The connection ended.
    Gone(LinkEnd),
}

/// The reason why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkEnd {
    /// The client closed it.
    Closed,
    /// The client sent a malformed message.
    Malformed,
    /// The system's reason.
    System(Errno),
}

impl std::fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => f.write_str("it closed the connection"),
            Self::Malformed => f.write_str("it sent a malformed message"),
            Self::System(errno) => write!(f, "{errno}"),
        }
    }
}

/// A connection to a client.
#[derive(Debug)]
pub(crate) struct ClientLink {
    socket: OwnedFd,
    /// The received part of the current message.
    incoming: Vec<u8>,
    /// True if the current message was returned to the caller.
    is_returned: bool,
    descriptors: Vec<OwnedFd>,
    /// Unsent replies.
    pub(crate) unsent: Vec<u8>,
}

impl ClientLink {
    /// Creates a link over a non-blocking socket.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, incoming: Vec::new(), is_returned: false, descriptors: Vec::new(), unsent: Vec::new() }
    }

    /// Returns true if the client has closed its end. Messages that it sent before may be unread.
    pub(crate) fn is_closed_by_client(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().intersects(ended)
    }

    /// Reads up to one message.
    pub(crate) fn receive(&mut self) -> LinkInput {
        if std::mem::take(&mut self.is_returned) {
            self.incoming.clear();
        }
        loop {
            let have = self.incoming.len();
            let header = VfioUserHeader::read_from_prefix(&self.incoming).ok().map(|(header, _)| header);
            let wanted = match header.map(|header| (header, header.rest())) {
                None => size_of::<VfioUserHeader>(),
                Some((_, None)) => return LinkInput::Gone(LinkEnd::Malformed),
                Some((header, Some(rest))) if have == size_of::<VfioUserHeader>() + rest => {
                    self.is_returned = true;
                    return LinkInput::Message(header, std::mem::take(&mut self.descriptors));
                }
                Some((_, Some(rest))) => size_of::<VfioUserHeader>() + rest,
            };
            assert!(have < wanted, "{have} bytes of a message of {wanted} were read: part of the next one");
            self.incoming.resize(wanted, 0);
            let got = self.read_into(have);
            self.incoming.truncate(have + got.unwrap_or(0));
            match got {
                Ok(0) => return LinkInput::Gone(LinkEnd::Closed),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return LinkInput::Nothing,
                Err(errno) => return LinkInput::Gone(LinkEnd::System(errno)),
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
        // More descriptors than the announced limit: the kernel has closed the rest.
        if got.flags.contains(ReturnFlags::CTRUNC) || self.descriptors.len() > DESCRIPTORS_MAX {
            return Err(Errno::MSGSIZE);
        }
        Ok(got.bytes)
    }

    /// Returns the last received message, without its header.
    pub(crate) fn rest(&self) -> &[u8] {
        self.incoming.get(size_of::<VfioUserHeader>()..).unwrap_or_default()
    }

    /// Sends replies. Returns true if all are sent.
    pub(crate) fn flush(&mut self) -> Result<bool, LinkEnd> {
        while !self.unsent.is_empty() {
            match rustix::net::send(&self.socket, &self.unsent, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(LinkEnd::Closed),
                Err(errno) => return Err(LinkEnd::System(errno)),
            }
        }
        Ok(true)
    }
}

impl AsFd for ClientLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
