//! A connection inside TLS: the same PDUs, sealed.
//!
//! In: keys, received bytes, PDUs on their way out. Out: opened bytes for either end of the protocol, sealed bytes for the
//! socket. Invariant: sealed bytes that the socket has not taken stay under a limit, so that what waits stays where it is
//! counted; PDUs leave only to an end that proved its key.

use super::outgoing::Piece;
use super::psk::{PskHash, TlsPsk};
use super::{Lent, Outgoing};
use headwater_host::tls::{TlsEnd, TlsError, TlsHash, TlsKey, TlsKeys, TlsSession};

/// Bytes sealed at once: a full TLS record.
const RECORD_BYTES: usize = 16 << 10;
/// Sealed bytes from which no more are sealed until the socket has taken some.
const SEALED_BYTES_MAX: usize = 256 << 10;

/// Prepares keys for sessions.
///
/// # Errors
/// [`TlsError`] when the build has no TLS or the library does not take them.
pub fn prepare(psks: &[TlsPsk]) -> Result<TlsKeys, TlsError> {
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

/// TLS around one connection.
#[derive(Debug)]
pub struct SecureStream {
    session: TlsSession,
    part: Vec<u8>,
}

impl SecureStream {
    /// Around a connection that was just made.
    ///
    /// # Errors
    /// [`TlsError`] when the library has no memory.
    pub fn new(end: TlsEnd, keys: &TlsKeys) -> Result<Self, TlsError> {
        Ok(Self { session: TlsSession::new(end, keys)?, part: Vec::new() })
    }

    /// Whether the other end has proved its key.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.session.is_established()
    }

    /// The identity of the key that it proved.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        self.session.identity()
    }

    /// Takes what the socket received; [`open`](Self::open) until it gives 0.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.session.feed(bytes);
    }

    /// So many opened bytes, 0 when more must be received first.
    ///
    /// # Errors
    /// [`TlsError`]: the session is over. What [`outgoing`](Self::outgoing) still has tells the other end.
    pub fn open(&mut self, into: &mut [u8]) -> Result<usize, TlsError> {
        self.session.open(into)
    }

    /// Seals what is to be sent next, as far as the limit allows; nothing before the other end has proved its key.
    ///
    /// # Errors
    /// [`TlsError`]: the session is over.
    pub fn seal<B: Lent>(&mut self, pdus: &mut Outgoing<B>) -> Result<(), TlsError> {
        while self.is_established() && self.outgoing().len() < SEALED_BYTES_MAX && pdus.pending() > 0 {
            self.part.clear();
            for piece in pdus.pieces() {
                let room = RECORD_BYTES - self.part.len();
                match piece {
                    Piece::Text(text) => self.part.extend_from_slice(&text[..text.len().min(room)]),
                    Piece::Lent(owner, range) => {
                        owner.append_to(range.start..range.end.min(range.start + room), &mut self.part);
                    }
                }
                if self.part.len() == RECORD_BYTES {
                    break;
                }
            }
            self.session.seal(&self.part)?;
            pdus.sent(self.part.len(), drop);
        }
        Ok(())
    }

    /// What the socket shall send.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.session.outgoing()
    }

    /// The socket sent so much of it.
    pub fn sent(&mut self, bytes: usize) {
        self.session.sent(bytes);
    }
}
