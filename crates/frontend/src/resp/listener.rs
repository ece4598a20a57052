//! The listening sockets: TCP addresses and a Unix socket.
//!
//! Input: the configuration. Output: non-blocking listeners, and their accepted sockets with the addresses of both
//! ends. A Unix socket file without a listening process is replaced; one in use is an error. The file is removed when
//! the listener is closed.

use super::config::{RespConfig, RespError};
use super::settings::RespSettings;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A listening socket.
#[derive(Debug)]
pub(crate) enum RespListener {
    /// A TCP address.
    Tcp(TcpListener),
    /// A Unix socket and its path.
    Unix(UnixListener, PathBuf),
}

/// An accepted client.
#[derive(Debug)]
pub(crate) struct AcceptedClient {
    pub(crate) socket: OwnedFd,
    pub(crate) address: String,
    pub(crate) local: String,
}

/// Binds every configured address, or none.
pub(crate) fn bind_all(config: &RespConfig, settings: &RespSettings) -> Result<Vec<RespListener>, RespError> {
    let mut listeners = Vec::new();
    for &address in &config.listen {
        if settings.password.is_none() && !address.ip().is_loopback() {
            return Err(RespError::Unprotected { address });
        }
        let listen = |source| RespError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        listeners.push(RespListener::Tcp(listener));
    }
    if let Some(path) = &config.unix_path {
        let listener =
            bind_unix(path).map_err(|source| RespError::ListenUnix { path: path.clone(), source })?;
        listeners.push(RespListener::Unix(listener, path.clone()));
    }
    if listeners.is_empty() {
        return Err(RespError::NoAddress);
    }
    Ok(listeners)
}

fn bind_unix(path: &Path) -> std::io::Result<UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Stores the bound addresses in the settings.
pub(crate) fn describe(listeners: &[RespListener], settings: &mut RespSettings) {
    let addresses: Vec<SocketAddr> = listeners.iter().filter_map(RespListener::address).collect();
    settings.port = addresses.first().map_or(0, SocketAddr::port);
    let ips: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
    settings.bind = ips.join(" ");
    for listener in listeners {
        if let RespListener::Unix(_, path) = listener {
            settings.unix_path = path.display().to_string();
        }
    }
}

impl RespListener {
    /// Returns the TCP address; `None` for a Unix socket.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }

    /// Accepts the next client.
    pub(crate) fn accept(&self) -> std::io::Result<AcceptedClient> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                let local = stream.local_addr()?.to_string();
                Ok(AcceptedClient { socket: stream.into(), address: address.to_string(), local })
            }
            Self::Unix(listener, path) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                let name = format!("{}:0", path.display());
                Ok(AcceptedClient { socket: stream.into(), address: name.clone(), local: name })
            }
        }
    }

    /// Closes the listener and removes a Unix socket's file.
    pub(crate) fn close(self, epoll: BorrowedFd<'_>) {
        // Closing the descriptor deregisters it anyway; a failure here has no effect.
        let _ = rustix::event::epoll::delete(epoll, self.as_fd());
        drop(self);
    }
}

impl Drop for RespListener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // A failure is ignored: another process may have removed the file.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl AsFd for RespListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}
