//! The listening attach socket.
//!
//! Input: a path. Output: non-blocking sockets, each with its peer's credentials from the kernel. A stale socket file,
//! on which no process listens, is replaced; a live one is an error. The file is removed when the listener is dropped.

use super::policy::PeerCredentials;
use rustix::fs::{Mode, chmod};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

/// Maximum connections that wait to be accepted.
const BACKLOG: i32 = 1_024;

/// The listening socket.
#[derive(Debug)]
pub(super) struct AttachListener {
    socket: OwnedFd,
    path: PathBuf,
}

impl AttachListener {
    pub(super) fn bind(path: &Path) -> std::io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
        if is_socket {
            let probe = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            if connect(&probe, &address) == Err(rustix::io::Errno::CONNREFUSED) {
                std::fs::remove_file(path)?;
            }
        }
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, &address)?;
        // Every user may connect: access is decided by the credentials that the kernel reports, not by the file's mode.
        chmod(path, Mode::from_raw_mode(0o666))?;
        listen(&socket, BACKLOG)?;
        Ok(Self { socket, path: path.to_owned() })
    }

    /// Accepts the next client.
    pub(super) fn accept(&self) -> std::io::Result<(OwnedFd, PeerCredentials)> {
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        let credentials = socket_peercred(&socket)?;
        let peer = PeerCredentials {
            pid: credentials.pid.as_raw_nonzero().get(),
            uid: credentials.uid.as_raw(),
            gid: credentials.gid.as_raw(),
        };
        Ok((socket, peer))
    }
}

impl Drop for AttachListener {
    fn drop(&mut self) {
        // Another process may have removed it already.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl AsFd for AttachListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
