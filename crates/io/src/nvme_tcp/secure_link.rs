//! The TLS layer of a link.
//!
//! Input: a target with a key. Output: the same as a link without TLS. Data is copied once more, into and out of
//! records. Invariant: no byte of the protocol is sent or accepted before the device has proved that it holds the key.

use super::NvmeTcpTarget;
use super::link::{RECEIVES_MAX, TcpLink};
use crate::error::IoError;
use headwater_host::tls::{TlsError, TlsRole};
use headwater_nvme::tcp::secure::{SecureStream, prepare_tls_keys};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::fmt::Display;

/// Creates the TLS stream for a connection, if the target has a key.
pub(super) fn tls_stream(target: &NvmeTcpTarget) -> Result<Option<SecureStream>, IoError> {
    let Some(key) = &target.key else {
        return Ok(None);
    };
    let unusable = |error: &dyn Display| IoError::Unsupported {
        reason: format!("the key for {} cannot be used: {error}", target.address),
    };
    let host = headwater_nvme::tcp::psk::HostKey { host: target.host_name.clone(), key: key.clone() };
    let psks = host.tls_psks(&target.subsystem_name).map_err(|error| unusable(&error))?;
    let stream = prepare_tls_keys(&psks).and_then(|keys| SecureStream::new(TlsRole::Client, &keys));
    stream.map(Some).map_err(|error| unusable(&error))
}

impl TcpLink {
    /// Encrypts and sends pending bytes until the socket would block.
    pub(super) fn flush_secured(&mut self) -> Result<(), IoError> {
        loop {
            let Some(stream) = &mut self.secure else {
                return Ok(());
            };
            if let Err(error) = stream.seal(self.connection.outgoing_mut()) {
                return Err(self.tls_failure(&error));
            }
            if stream.outgoing().is_empty() {
                return Ok(());
            }
            match send(&self.socket, stream.outgoing(), SendFlags::NOSIGNAL) {
                Ok(sent) => stream.sent(sent),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.gone(&errno.to_string())),
            }
        }
    }

    /// Receives and decrypts the bytes that the socket holds, without blocking.
    pub(super) fn receive_secured(&mut self) -> Result<(), IoError> {
        for _ in 0..RECEIVES_MAX {
            let count = match recv(&self.socket, &mut self.scratch[..], RecvFlags::empty()) {
                Ok((_, 0)) if self.secure.as_ref().is_some_and(|stream| !stream.is_established()) => {
                    return Err(
                        self.gone("it closed the connection during the TLS handshake: it may lack the key")
                    );
                }
                Ok((_, 0)) => return Err(self.gone("it closed the connection")),
                Ok((_, count)) => count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(self.gone(&errno.to_string())),
            };
            if let Some(stream) = &mut self.secure {
                stream.feed(&self.scratch[..count]);
            }
            while let Some(stream) = &mut self.secure {
                match stream.open(&mut self.scratch) {
                    Ok(0) => break,
                    Ok(opened) => self.process_received(opened)?,
                    Err(error) => return Err(self.tls_failure(&error)),
                }
            }
            // A short read means that the socket is empty.
            if count < self.scratch.len() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the error for a failed TLS session: `Denied` before the handshake completes, and `Gone` after it.
    fn tls_failure(&mut self, error: &TlsError) -> IoError {
        match &mut self.secure {
            Some(stream) if stream.identity().is_none() => {
                // Sends the alert if the socket takes it; otherwise the device sees only the end of the connection.
                let _ = send(&self.socket, stream.outgoing(), SendFlags::NOSIGNAL);
                IoError::Denied { reason: format!("{}: {error}", self.peer_name) }
            }
            _ => self.gone(&error.to_string()),
        }
    }
}
