//! TLS encryption of a connection: the same PDUs in TLS records.
//!
//! Input: keys, received bytes, and queued PDUs.
//! Output: decrypted bytes for host or controller, and encrypted bytes for the socket.
//! Invariant: encrypted bytes not yet sent stay below a limit, so backlog stays in the send queue, where it is counted;
//! PDUs are sent only to a peer that proved its key.

use super::psk::{PskHash, TlsPsk};
use super::send_queue::SendPiece;
use super::{LentBytes, SendQueue};
use headwater_host::tls::{TlsError, TlsHash, TlsKey, TlsKeys, TlsRole, TlsSession};

/// Bytes encrypted at once: a full TLS record.
const RECORD_BYTES: usize = 16 << 10;
/// Limit of encrypted unsent bytes; above it, encryption pauses until the socket has sent some.
const SEALED_BYTES_MAX: usize = 256 << 10;

/// Prepares the keys of TLS sessions.
///
/// # Errors
/// [`TlsError`] if the build has no TLS or the library rejects a key.
pub fn prepare_tls_keys(psks: &[TlsPsk]) -> Result<TlsKeys, TlsError> {
    let keys: Vec<TlsKey<'_>> = psks
        .iter()
        .map(|psk| TlsKey {
            identity: &psk.identity,
            secret: &psk.secret,
            hash: match psk.hash {
                PskHash::Sha256 => TlsHash::Sha256,
                PskHash::Sha384 => TlsHash::Sha384,
            },
        })
        .collect();
    TlsKeys::new(&keys)
}

/// The TLS session of one connection.
#[derive(Debug)]
pub struct SecureStream {
    session: TlsSession,
    plaintext: Vec<u8>,
}

impl SecureStream {
    /// Creates the session of a new connection.
    ///
    /// # Errors
    /// [`TlsError`] if the library cannot allocate memory.
    pub fn new(end: TlsRole, keys: &TlsKeys) -> Result<Self, TlsError> {
        Ok(Self { session: TlsSession::new(end, keys)?, plaintext: Vec::new() })
    }

    /// Returns true if the peer has proved its key.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.session.is_established()
    }

    /// Returns the identity of the key that the peer proved.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        self.session.identity()
    }

    /// Appends bytes that the socket received. Call [`open`](Self::open) until it returns 0.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.session.feed(bytes);
    }

    /// Decrypts into `into` and returns the number of bytes, 0 if more must be received first.
    ///
    /// # Errors
    /// [`TlsError`] if the session failed. [`outgoing`](Self::outgoing) then holds the alert for the peer.
    pub fn open(&mut self, into: &mut [u8]) -> Result<usize, TlsError> {
        self.session.open(into)
    }

    /// Encrypts queued PDUs up to the limit; none before the peer has proved its key.
    ///
    /// # Errors
    /// [`TlsError`] if the session failed.
    pub fn seal<B: LentBytes>(&mut self, pdus: &mut SendQueue<B>) -> Result<(), TlsError> {
        while self.is_established() && self.outgoing().len() < SEALED_BYTES_MAX && pdus.pending() > 0 {
            self.plaintext.clear();
            for piece in pdus.pieces() {
                let room = RECORD_BYTES - self.plaintext.len();
                match piece {
                    SendPiece::Copied(text) => {
                        self.plaintext.extend_from_slice(&text[..text.len().min(room)]);
                    }
                    SendPiece::Lent(owner, range) => {
                        owner.append_to(range.start..range.end.min(range.start + room), &mut self.plaintext);
                    }
                }
                if self.plaintext.len() == RECORD_BYTES {
                    break;
                }
            }
            self.session.seal(&self.plaintext)?;
            pdus.sent(self.plaintext.len(), drop);
        }
        Ok(())
    }

    /// Returns the encrypted bytes to send.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.session.outgoing()
    }

    /// Removes the first `bytes` encrypted bytes, which the socket sent.
    pub fn sent(&mut self, bytes: usize) {
        self.session.sent(bytes);
    }
}
