//! The attach socket: where clients come in, and who they are.
//!
//! In: a path. Out: sockets that do not block, each with the user at its other end as the kernel knows it. A socket that
//! nobody listens on any more is replaced; one that is alive is an error. Its file is removed when the listener is closed.

use super::policy::Person;
use rustix::fs::{Mode, chmod};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

/// Connections that wait to be let in.
const BACKLOG: i32 = 64;

/// A socket that listens.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
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
        // Anybody may knock: who may come in is decided by the user that the kernel names, not by the file's mode.
        chmod(path, Mode::from_raw_mode(0o666))?;
        listen(&socket, BACKLOG)?;
        Ok(Self { socket, path: path.to_owned() })
    }

    /// Takes the next client.
    pub(super) fn accept(&self) -> std::io::Result<(OwnedFd, Person)> {
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        let credentials = socket_peercred(&socket)?;
        let person = Person {
            pid: credentials.pid.as_raw_nonzero().get(),
            uid: credentials.uid.as_raw(),
            gid: credentials.gid.as_raw(),
        };
        Ok((socket, person))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Somebody else may have removed it; then it is gone, which is what is wanted.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
