//! The listening address and the sockets of hosts, none of which ever blocks.
//!
//! In: an address. Out: a listener on it, sockets with the options a request-and-answer protocol wants, received bytes, and
//! one vectored write. Invariant: without keys for TLS nobody but this machine can connect.

use super::NvmeTcpError;
use super::limits::PIECES_MAX;
use headwater_nvme::spec::fabrics::SecureChannel;
use headwater_nvme::tcp::Outgoing;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg, sockopt};
use std::io::IoSlice;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, OwnedFd};

/// Listens on an address; without TLS it must be one of this machine's loopback.
pub(super) fn listen(address: SocketAddr, channel: SecureChannel) -> Result<TcpListener, NvmeTcpError> {
    if channel == SecureChannel::None && !address.ip().is_loopback() {
        return Err(NvmeTcpError::NotLoopback { address });
    }
    let failed = |source| NvmeTcpError::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Takes the next host, if one is there.
pub(super) fn accept(listener: &TcpListener) -> std::io::Result<OwnedFd> {
    let (stream, _) = listener.accept()?;
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let socket = OwnedFd::from(stream);
    // A host that vanished without a word is found by the kernel, if its Keep Alive timer does not find it first.
    sockopt::set_socket_keepalive(&socket, true)?;
    Ok(socket)
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    /// So many bytes; there may be more.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// The other side is gone.
    End,
}

/// Reads what is there.
pub(super) fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> Got {
    loop {
        match recv(socket, &mut *into, RecvFlags::empty()) {
            Ok((_, 0)) => return Got::End,
            Ok((_, count)) => return Got::Bytes(count),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return Got::Nothing,
            Err(_) => return Got::End,
        }
    }
}

/// Whether everything could be handed to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Yes.
    All,
    /// The socket takes no more now.
    Blocked,
    /// The connection is gone.
    Gone,
}

/// Hands as much as possible to the kernel; returns how many bytes it took.
pub(super) fn flush(socket: BorrowedFd<'_>, outgoing: &mut Outgoing<Vec<u8>>) -> (Flushed, usize) {
    let mut total = 0;
    while outgoing.pending() > 0 {
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        let count = outgoing.gather(&mut pieces);
        let sent =
            sendmsg(socket, &pieces[..count], &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
        match sent {
            Ok(count) => {
                total += count;
                outgoing.sent(count, drop);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return (Flushed::Blocked, total),
            Err(_) => return (Flushed::Gone, total),
        }
    }
    (Flushed::All, total)
}
