//! TLS 1.3 with pre-shared keys, without a socket: it transforms byte streams.
//!
//! Input: bytes that the socket received ([`TlsSession::feed`]) and plaintext to send ([`TlsSession::seal`]). Output:
//! plaintext of the other end ([`TlsSession::open`]) and bytes for the socket to send ([`TlsSession::outgoing`]).
//! Nothing blocks and nothing sleeps. Invariant: no byte of the other end is returned before it has proved that it has
//! one of our keys.
//!
//! The protocol is implemented by the C library s2n-tls, which is built with the feature `tls` only. Without it the
//! same types exist but cannot be constructed: every attempt returns [`TlsError::NotBuilt`].

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod channel;
#[cfg(feature = "tls")]
mod session;

#[cfg(not(feature = "tls"))]
pub use absent::{TlsKeys, TlsSession};
#[cfg(feature = "tls")]
pub use session::{TlsKeys, TlsSession};

/// True if this build has TLS.
pub const AVAILABLE: bool = cfg!(feature = "tls");

/// The hash of a key, which determines the cipher suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsHash {
    /// `TLS_AES_128_GCM_SHA256`.
    Sha256,
    /// `TLS_AES_256_GCM_SHA384`.
    Sha384,
}

/// The role of an end in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsRole {
    /// The end that sends first, and offers its keys.
    Client,
    /// The end that chooses among the offered keys.
    Server,
}

/// A key, to be copied by [`TlsKeys`].
#[derive(Clone, Copy)]
pub struct TlsKey<'a> {
    /// The PSK identity, which is sent in clear.
    pub identity: &'a str,
    /// The key, at least 16 bytes.
    pub secret: &'a [u8],
    /// The hash of the key.
    pub hash: TlsHash,
}

impl std::fmt::Debug for TlsKey<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsKey").field("hash", &self.hash).finish_non_exhaustive()
    }
}

/// The reason why a session could not be made, or has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The build has no TLS.
    #[error("this build has no TLS; build it with `--features tls`")]
    NotBuilt,
    /// The library, or a key, cannot be set up.
    #[error("cannot set up TLS: {reason}; check the keys")]
    SetUp {
        /// The library's message.
        reason: String,
    },
    /// The handshake or a record failed.
    #[error(
        "TLS failed: {reason}; enable TLS on both ends, with the same key for the same host and subsystem"
    )]
    Failed {
        /// The library's message.
        reason: String,
    },
    /// The other end closed the session.
    #[error("the other end closed the TLS session")]
    Closed,
}
