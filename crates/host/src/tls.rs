//! TLS 1.3 with pre-shared keys, without a socket: bytes in, bytes out.
//!
//! In: what the socket received ([`TlsSession::feed`]) and what is to be sent ([`TlsSession::seal`]). Out: what the other end
//! said ([`TlsSession::open`]) and what the socket shall send ([`TlsSession::outgoing`]). Nothing blocks and nothing sleeps.
//! Invariant: no byte of the other end is shown before it has proved that it has one of our keys.
//!
//! The protocol is that of the C library s2n-tls, which is built with the feature `tls` only. Without it the same types are
//! there and nobody can have one: every attempt is answered by [`TlsError::NotBuilt`].

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

/// Whether this build has TLS.
pub const AVAILABLE: bool = cfg!(feature = "tls");

/// The hash that a key is made for, and with it the cipher suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsHash {
    /// `TLS_AES_128_GCM_SHA256`.
    Sha256,
    /// `TLS_AES_256_GCM_SHA384`.
    Sha384,
}

/// Which end a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsEnd {
    /// It speaks first, and offers its keys.
    Client,
    /// It chooses among the keys that are offered.
    Server,
}

/// One key, to be copied by [`TlsKeys`].
#[derive(Clone, Copy)]
pub struct TlsKey<'a> {
    /// PSK identity: crosses the wire in clear.
    pub identity: &'a str,
    /// The key, at least 16 bytes.
    pub secret: &'a [u8],
    /// What it is made for.
    pub hash: TlsHash,
}

impl std::fmt::Debug for TlsKey<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsKey").field("hash", &self.hash).finish_non_exhaustive()
    }
}

/// Why there is no session, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The build has no TLS.
    #[error("this build has no TLS; build it with `--features tls`")]
    NotBuilt,
    /// A key, or the library, cannot be used.
    #[error("TLS cannot be set up: {reason}")]
    SetUp {
        /// What the library said.
        reason: String,
    },
    /// The handshake or a record failed.
    #[error(
        "TLS failed: {reason}; both ends need the same key for the same host and subsystem, and both TLS"
    )]
    Failed {
        /// What the library said.
        reason: String,
    },
    /// The other end closed the session.
    #[error("the other end closed the TLS session")]
    Closed,
}
