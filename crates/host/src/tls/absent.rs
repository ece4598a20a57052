//! The types of a build without TLS.
//!
//! In: wishes for keys. Out: [`TlsError::NotBuilt`]. Invariant: no value of these types exists, so whoever would use one need
//! not ask how the build was made.

use super::{TlsEnd, TlsError, TlsKey};
use std::convert::Infallible;

/// Keys of one end; there are none in this build.
#[derive(Debug)]
pub struct TlsKeys {
    none: Infallible,
}

impl TlsKeys {
    /// Says that the build has no TLS.
    ///
    /// # Errors
    /// [`TlsError::NotBuilt`], always.
    pub fn new(_keys: &[TlsKey<'_>]) -> Result<Self, TlsError> {
        Err(TlsError::NotBuilt)
    }
}

/// One end of a session; there is none in this build.
#[derive(Debug)]
pub struct TlsSession {
    none: Infallible,
}

impl TlsSession {
    /// A session needs keys, which nobody has.
    ///
    /// # Errors
    /// None: there are no keys to call it with.
    pub fn new(_end: TlsEnd, keys: &TlsKeys) -> Result<Self, TlsError> {
        match keys.none {}
    }

    /// Whether the other end has proved its key.
    #[must_use]
    pub fn is_established(&self) -> bool {
        match self.none {}
    }

    /// The identity of the key that the other end proved.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        match self.none {}
    }

    /// Takes what the socket received.
    pub fn feed(&mut self, _bytes: &[u8]) {
        match self.none {}
    }

    /// Gives what the other end said.
    ///
    /// # Errors
    /// None: there is no session.
    pub fn open(&mut self, _into: &mut [u8]) -> Result<usize, TlsError> {
        match self.none {}
    }

    /// Takes what is to be sent.
    ///
    /// # Errors
    /// None: there is no session.
    pub fn seal(&mut self, _bytes: &[u8]) -> Result<(), TlsError> {
        match self.none {}
    }

    /// What the socket shall send.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        match self.none {}
    }

    /// The socket sent so much of it.
    pub fn sent(&mut self, _bytes: usize) {
        match self.none {}
    }
}
