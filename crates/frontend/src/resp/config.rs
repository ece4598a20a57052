//! The configuration of the RESP front end, and the errors of its start.
//!
//! Input: choices of the caller that starts the front end. Output: the same; an error names the address that failed.

use super::kept_settings::KeptSettingsError;
use super::limits::{CLIENT_MEMORY_BYTES_MAX, REPLY_MEMORY_BYTES_MAX};
use super::password_hash::SaltedHashError;
use headwater_ssd::command::FrontEndId;
use headwater_ssd::engine::Durability;
use std::net::SocketAddr;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// The precedence of a given password over one that CONFIG REWRITE kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PasswordPrecedence {
    /// The given password applies: it was given at this start.
    Given,
    /// The kept password applies: a client has changed the given one.
    Kept,
}

/// The password that a configuration gives.
#[derive(Clone)]
pub struct GivenPassword {
    /// The password, or its salted hash ([`SaltedHash`](super::SaltedHash)).
    pub text: Zeroizing<String>,
    /// Which applies if another one was kept.
    pub precedence: PasswordPrecedence,
}

impl std::fmt::Debug for GivenPassword {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GivenPassword").field("precedence", &self.precedence).finish_non_exhaustive()
    }
}

/// The configuration of a RESP front end.
#[derive(Clone, Debug)]
pub struct RespConfig {
    /// TCP addresses to listen on; port 0 picks one.
    pub listen: Vec<SocketAddr>,
    /// Path of a Unix socket to listen on as well.
    pub unix_path: Option<PathBuf>,
    /// Password that AUTH requires, if any and unless a kept one takes precedence.
    pub password: Option<GivenPassword>,
    /// The file in which CONFIG REWRITE keeps settings; its settings apply from the start.
    pub kept_settings: Option<PathBuf>,
    /// Durability mode of the device, as CONFIG and INFO report it.
    pub durability: Durability,
    /// Number of this front end in the device.
    pub front_end: FrontEndId,
    /// Seed of random choices (RANDOMKEY).
    pub seed: u64,
    /// Bytes that all clients together may make the front end hold.
    pub client_memory_max: usize,
    /// Bytes of replies that all clients together may leave unread, without 64 KiB for each; at most half of
    /// [`client_memory_max`](Self::client_memory_max). Commands of clients that need more wait.
    pub reply_memory_max: usize,
}

impl Default for RespConfig {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 6379))],
            unix_path: None,
            password: None,
            kept_settings: None,
            durability: Durability::Always,
            front_end: FrontEndId(1),
            seed: 0,
            client_memory_max: CLIENT_MEMORY_BYTES_MAX,
            reply_memory_max: REPLY_MEMORY_BYTES_MAX,
        }
    }
}

/// An error that prevents the front end from starting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RespError {
    /// A TCP address cannot be bound.
    #[error("cannot listen on {address}: {source}; choose another address or stop the process that uses it")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// A Unix socket path cannot be bound.
    #[error("cannot listen on {}: {source}; choose another path or stop the process that uses it", path.display())]
    ListenUnix {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// Other machines can reach an address, and no password is configured.
    #[error(
        "{address}: other machines can reach this address, and clients would need no password: give a file with one on \
         the command line (--resp-password), or listen on 127.0.0.1 or a Unix socket"
    )]
    Unprotected {
        /// The address.
        address: SocketAddr,
    },
    /// The kept settings cannot be used.
    #[error(transparent)]
    KeptSettings(#[from] KeptSettingsError),
    /// The given password looks like a hash and is none.
    #[error("the password of the RESP front end cannot be used: {0}")]
    Password(#[from] SaltedHashError),
    /// The kernel gave no random bytes.
    #[error("the kernel gives no random bytes for the hash of the password: {source}")]
    Random {
        /// The kernel's error.
        source: std::io::Error,
    },
    /// Neither an address nor a path is configured.
    #[error("the RESP front end has no address to listen on: configure a TCP address or a Unix socket path")]
    NoAddress,
    /// The epoll instance cannot be created or extended.
    #[error("cannot watch sockets with epoll: {source}; raise the limit of open files")]
    Epoll {
        /// The kernel's error.
        source: std::io::Error,
    },
}
