//! The types of a build without TLS.
//!
//! Input: requests for keys. Output: [`TlsError::NotBuilt`]. Invariant: no value of these types exists, so code that
//! uses one need not check how the build was made.

use super::{TlsError, TlsKey, TlsRole};
use std::convert::Infallible;

/// The keys of one end, which cannot be constructed in this build.
#[derive(Debug)]
pub struct TlsKeys {
    none: Infallible,
}

impl TlsKeys {
    /// Reports that the build has no TLS.
    ///
    /// # Errors
    /// [`TlsError::NotBuilt`], always.
    pub fn new(_keys: &[TlsKey<'_>]) -> Result<Self, TlsError> {
        Err(TlsError::NotBuilt)
    }
}

/// One end of a session, which cannot be constructed in this build.
#[derive(Debug)]
pub struct TlsSession {
    none: Infallible,
}

impl TlsSession {
    /// Requires keys, which cannot exist.
    ///
    /// # Errors
    /// None: there are no keys to call it with.
    pub fn new(_end: TlsRole, keys: &TlsKeys) -> Result<Self, TlsError> {
        match keys.none {}
    }

    /// Returns true if the other end has proved its key.
    #[must_use]
    pub fn is_established(&self) -> bool {
        match self.none {}
    }

    /// Returns the identity of the key that the other end proved.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        match self.none {}
    }

    /// Takes bytes that the socket received.
    pub fn feed(&mut self, _bytes: &[u8]) {
        match self.none {}
    }

    /// Decrypts bytes of the other end.
    ///
    /// # Errors
    /// None: there is no session.
    pub fn open(&mut self, _into: &mut [u8]) -> Result<usize, TlsError> {
        match self.none {}
    }

    /// Encrypts plaintext for sending.
    ///
    /// # Errors
    /// None: there is no session.
    pub fn seal(&mut self, _bytes: &[u8]) -> Result<(), TlsError> {
        match self.none {}
    }

    /// Returns the bytes for the socket to send.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        match self.none {}
    }

    /// Removes bytes that the socket has sent.
    pub fn sent(&mut self, _bytes: usize) {
        match self.none {}
    }
}
