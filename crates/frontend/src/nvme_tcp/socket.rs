//! The non-blocking listener and the non-blocking sockets of hosts.
//!
//! Input: an address. Output: a listener on it, sockets with `TCP_NODELAY` and keep-alive, received bytes, and vectored
//! writes. Invariant: without keys for TLS only this machine can connect.

use super::NvmeTcpError;
use super::limits::PIECES_MAX;
use headwater_nvme::spec::fabrics::SecureChannel;
use headwater_nvme::tcp::SendQueue;
use rustix::io::readv;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg, sockopt};
use std::io::{IoSlice, IoSliceMut};
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

/// Accepts the next connection.
pub(super) fn accept(listener: &TcpListener) -> std::io::Result<OwnedFd> {
    let (stream, _) = listener.accept()?;
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let socket = OwnedFd::from(stream);
    // The kernel detects a host that disappeared, unless its NVMe Keep Alive timer expires first.
    sockopt::set_socket_keepalive(&socket, true)?;
    Ok(socket)
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveResult {
    /// The number of bytes read; there may be more.
    Bytes(usize),
    /// The socket is empty.
    Nothing,
    /// The host closed the connection, or it failed.
    End,
}

/// Reads received bytes.
pub(super) fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> ReceiveResult {
    loop {
        match recv(socket, &mut *into, RecvFlags::empty()) {
            Ok((_, 0)) => return ReceiveResult::End,
            Ok((_, count)) => return ReceiveResult::Bytes(count),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return ReceiveResult::Nothing,
            Err(_) => return ReceiveResult::End,
        }
    }
}

/// Reads received bytes into slices, in order. Returns the number of bytes read, at least 1.
///
/// # Errors
/// `WouldBlock` for an empty socket; any other error for a connection that the host closed, or that failed.
pub(super) fn receive_into(socket: BorrowedFd<'_>, slices: &mut [IoSliceMut<'_>]) -> std::io::Result<usize> {
    loop {
        match readv(socket, slices) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => return Ok(count),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The result of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendResult {
    /// Everything was written.
    All,
    /// The socket accepts no more bytes now.
    Blocked,
    /// The connection is gone.
    Gone,
}

/// Writes as much as possible to the socket; returns the number of bytes written.
pub(super) fn flush(socket: BorrowedFd<'_>, outgoing: &mut SendQueue<Vec<u8>>) -> (SendResult, usize) {
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
            Err(rustix::io::Errno::AGAIN) => return (SendResult::Blocked, total),
            Err(_) => return (SendResult::Gone, total),
        }
    }
    (SendResult::All, total)
}
