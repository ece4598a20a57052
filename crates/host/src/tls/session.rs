//! Keys and sessions over s2n-tls.
//!
//! Input: keys, received bytes, plaintext to send. Output: plaintext received, sealed bytes, the proved identity.
//! Invariant: a session without a pre-shared key, or with another cipher suite than NVMe names, never becomes
//! established; after an error it stays ended. Clauses: RFC 8446; cipher suites of the NVMe TCP Transport Specification
//! 1.1, section 3.6.1.

use super::channel::SharedChannel;
use super::{TlsError, TlsHash, TlsKey, TlsRole};
use s2n_tls::config::Config;
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, Mode, PskHmac};
use s2n_tls::error::Error;
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;
use std::task::Poll;

/// A policy of the library with TLS 1.3 alone and elliptic curves for forward secrecy.
const POLICY: &str = "AWS-CRT-SDK-TLSv1.3-2023";
/// The acceptable cipher suites.
const CIPHER_SUITES: [&str; 2] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"];
/// The record types that an end may begin with: alert and handshake (RFC 8446 section 5.1).
const FIRST_RECORDS: [u8; 2] = [21, 22];

/// The keys of one end, for any number of sessions.
pub struct TlsKeys {
    config: Config,
    keys: Vec<Psk>,
}

impl std::fmt::Debug for TlsKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsKeys").field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

impl TlsKeys {
    /// Copies keys. A client offers them in this order.
    ///
    /// # Errors
    /// [`TlsError::SetUp`] for a key that is too short, or when the library has no memory.
    pub fn new(keys: &[TlsKey<'_>]) -> Result<Self, TlsError> {
        let make = || {
            let mut builder = Config::builder();
            // No certificate is trusted.
            builder.with_system_certs(false)?;
            builder.set_security_policy(&Policy::from_version(POLICY)?)?;
            // A delay after an error blinds attacks on CBC padding, which TLS 1.3 does not have.
            builder.set_max_blinding_delay(0)?;
            let config = builder.build()?;
            let keys = keys.iter().map(prepare).collect::<Result<_, _>>()?;
            Ok(Self { config, keys })
        };
        make().map_err(|error| set_up(&error))
    }
}

fn prepare(key: &TlsKey<'_>) -> Result<Psk, Error> {
    let mut builder = Psk::builder()?;
    builder.set_identity(key.identity.as_bytes())?;
    builder.set_secret(key.secret)?;
    builder.set_hmac(match key.hash {
        TlsHash::Sha256 => PskHmac::SHA256,
        TlsHash::Sha384 => PskHmac::SHA384,
    })?;
    builder.build()
}

/// The state of a session.
///
/// ```text
///   Handshaking --the other end proved a key--> Established --error, closed--> Over
///        +-----------------------error, no key--------------------------------^
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
enum SessionState {
    Handshaking,
    Established,
    Ended(TlsError),
}

/// One end of a session.
pub struct TlsSession {
    /// Declared before the channel, so that it is dropped before the buffers it refers to.
    connection: Connection,
    channel: SharedChannel,
    state: SessionState,
    identity: Option<String>,
    outgoing: Vec<u8>,
    sent: usize,
    /// True if the other end has sent a byte.
    has_received: bool,
}

impl std::fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsSession")
            .field("state", &self.state)
            .field("identity", &self.identity)
            .field("outgoing", &self.outgoing().len())
            .finish_non_exhaustive()
    }
}

impl TlsSession {
    /// Creates a session over a new connection. A client's first bytes are then ready to be sent.
    ///
    /// # Errors
    /// [`TlsError::SetUp`] when the library has no memory or does not accept the keys.
    pub fn new(end: TlsRole, keys: &TlsKeys) -> Result<Self, TlsError> {
        let mode = match end {
            TlsRole::Client => Mode::Client,
            TlsRole::Server => Mode::Server,
        };
        let mut session = Self {
            connection: Connection::new(mode),
            channel: SharedChannel::default(),
            state: SessionState::Handshaking,
            identity: None,
            outgoing: Vec::new(),
            sent: 0,
            has_received: false,
        };
        session.prepare(keys).map_err(|error| set_up(&error))?;
        session.continue_handshake()?;
        Ok(session)
    }

    fn prepare(&mut self, keys: &TlsKeys) -> Result<(), Error> {
        self.connection.set_config(keys.config.clone())?;
        // The library must not sleep.
        self.connection.set_blinding(Blinding::SelfService)?;
        for key in &keys.keys {
            self.connection.append_psk(key)?;
        }
        // SAFETY: the channel is a field of the session behind the connection, and never replaced: it is dropped after
        // it.
        unsafe { self.channel.install_callbacks(&mut self.connection) }
    }

    /// Returns true if the other end has proved its key.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.state == SessionState::Established
    }

    /// Returns the identity of the key that the other end proved.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// Takes bytes that the socket received; the caller then calls [`open`](Self::open) until it returns 0.
    pub fn feed(&mut self, bytes: &[u8]) {
        if let (false, Some(first)) = (self.has_received, bytes.first()) {
            self.has_received = true;
            // The library would interpret other bytes as a record header and wait for the rest of that record.
            if !FIRST_RECORDS.contains(first) {
                let reason = format!("the other end does not speak TLS (it begins with byte {first:02x}h)");
                self.state = SessionState::Ended(TlsError::Failed { reason });
            }
        }
        self.channel.lock().feed(bytes);
    }

    /// Continues the handshake, and decrypts into `into`. Returns the bytes written, 0 when more must be fed first.
    ///
    /// # Errors
    /// [`TlsError::Failed`] when the other end has no matching key or a record was changed, [`TlsError::Closed`] when
    /// it closed the session. The rest of [`outgoing`](Self::outgoing) holds the alert for the other end.
    ///
    /// # Panics
    /// Never: a session is established with the identity of its key.
    pub fn open(&mut self, into: &mut [u8]) -> Result<usize, TlsError> {
        self.continue_handshake()?;
        if !self.is_established() {
            return Ok(0);
        }
        assert!(self.identity.is_some(), "a session is established without the identity of its key");
        let received = self.connection.poll_recv(into);
        self.collect();
        match received {
            Poll::Pending => Ok(0),
            Poll::Ready(Ok(0)) if !into.is_empty() => Err(self.end_session(TlsError::Closed)),
            Poll::Ready(Ok(bytes)) => Ok(bytes),
            Poll::Ready(Err(error)) => Err(self.fail(&error)),
        }
    }

    /// Encrypts all of the plaintext for sending.
    ///
    /// # Errors
    /// As [`open`](Self::open); and when the session is not established yet.
    pub fn seal(&mut self, mut bytes: &[u8]) -> Result<(), TlsError> {
        if let SessionState::Ended(error) = &self.state {
            return Err(error.clone());
        }
        while !bytes.is_empty() {
            let sealed = self.connection.poll_send(bytes);
            self.collect();
            match sealed {
                Poll::Ready(Ok(count)) => bytes = bytes.get(count..).unwrap_or(&[]),
                Poll::Ready(Err(error)) => return Err(self.fail(&error)),
                Poll::Pending => {
                    return Err(self.end_session(TlsError::Failed { reason: "no room to seal".to_owned() }));
                }
            }
        }
        Ok(())
    }

    /// Returns the bytes for the socket to send.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.get(self.sent..).unwrap_or(&[])
    }

    /// Removes bytes that the socket has sent.
    ///
    /// # Panics
    /// The session had fewer bytes to send.
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        assert!(self.sent <= self.outgoing.len(), "the socket reported more bytes than were outgoing");
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        }
    }

    fn continue_handshake(&mut self) -> Result<(), TlsError> {
        match &self.state {
            SessionState::Established => return Ok(()),
            SessionState::Ended(error) => return Err(error.clone()),
            SessionState::Handshaking => {}
        }
        let negotiated = self.connection.poll_negotiate().map_ok(|_| ());
        self.collect();
        match negotiated {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(())) => self.establish(),
            Poll::Ready(Err(error)) => Err(self.fail(&error)),
        }
    }

    /// Ends a handshake: it must have agreed on a pre-shared key and an accepted cipher suite.
    fn establish(&mut self) -> Result<(), TlsError> {
        let length = self.connection.negotiated_psk_identity_length().unwrap_or(0);
        let mut identity = vec![0; length];
        let suite = self.connection.cipher_suite().unwrap_or_default();
        let agreed = length > 0
            && CIPHER_SUITES.contains(&suite)
            && self.connection.negotiated_psk_identity(&mut identity).is_ok();
        match String::from_utf8(identity) {
            Ok(identity) if agreed => {
                self.identity = Some(identity);
                self.state = SessionState::Established;
                Ok(())
            }
            _ => Err(self.end_session(TlsError::Failed { reason: "no key was agreed on".to_owned() })),
        }
    }

    fn fail(&mut self, error: &Error) -> TlsError {
        let alert = self.connection.alert().map(|alert| format!(", received alert {alert}"));
        let reason = format!("{} ({}{})", error.message(), error.name(), alert.unwrap_or_default());
        self.end_session(TlsError::Failed { reason })
    }

    fn end_session(&mut self, error: TlsError) -> TlsError {
        if !matches!(self.state, SessionState::Ended(_)) {
            // The alert is optional: without it the other end sees the connection close.
            let _ = self.connection.poll_shutdown_send();
            self.collect();
            self.state = SessionState::Ended(error.clone());
        }
        error
    }

    fn collect(&mut self) {
        if self.sent > 0 {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        self.channel.lock().collect(&mut self.outgoing);
    }
}

fn set_up(error: &Error) -> TlsError {
    TlsError::SetUp { reason: format!("{} ({})", error.message(), error.name()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: TlsKey<'static> =
        TlsKey { identity: "NVMe1R01 h s x", secret: &[7; 32], hash: TlsHash::Sha256 };
    const LONG: TlsKey<'static> =
        TlsKey { identity: "NVMe1R02 h s y", secret: &[9; 48], hash: TlsHash::Sha384 };

    fn session(end: TlsRole, keys: &[TlsKey<'_>]) -> TlsSession {
        TlsSession::new(end, &TlsKeys::new(keys).unwrap()).unwrap()
    }

    /// Carries bytes from one end to the other in steps, and returns what `to` decrypted.
    fn transfer_all(from: &mut TlsSession, to: &mut TlsSession, step: usize) -> Result<Vec<u8>, TlsError> {
        let mut opened = Vec::new();
        let mut room = [0; 5_000];
        while !from.outgoing().is_empty() {
            let count = from.outgoing().len().min(step);
            let bytes = from.outgoing()[..count].to_vec();
            from.sent(count);
            to.feed(&bytes);
            loop {
                match to.open(&mut room)? {
                    0 => break,
                    count => opened.extend_from_slice(&room[..count]),
                }
            }
        }
        Ok(opened)
    }

    fn complete_handshake(
        client: &mut TlsSession,
        server: &mut TlsSession,
        step: usize,
    ) -> Result<(), TlsError> {
        for _ in 0..4 {
            transfer_all(client, server, step)?;
            transfer_all(server, client, step)?;
        }
        assert!(client.is_established() && server.is_established());
        Ok(())
    }

    #[test]
    fn handshake_and_data_work_for_both_hashes_at_any_segmentation() {
        for (key, suite) in [(SHORT, CIPHER_SUITES[0]), (LONG, CIPHER_SUITES[1])] {
            for step in [1, 7, 1_000, usize::MAX] {
                let mut client = session(TlsRole::Client, &[key]);
                let mut server = session(TlsRole::Server, &[SHORT, LONG]);
                complete_handshake(&mut client, &mut server, step).unwrap();
                assert_eq!((client.identity(), server.identity()), (Some(key.identity), Some(key.identity)));
                assert_eq!(client.connection.cipher_suite().unwrap(), suite);
                let text: Vec<u8> = (0..40_000_u32).map(|at| (at / 3).to_le_bytes()[0]).collect();
                client.seal(&text).unwrap();
                assert!(client.outgoing().len() > text.len(), "records have headers and tags");
                assert!(transfer_all(&mut client, &mut server, step).unwrap() == text);
                server.seal(&text[..99]).unwrap();
                assert_eq!(transfer_all(&mut server, &mut client, step).unwrap(), text[..99]);
            }
        }
    }

    #[test]
    fn wrong_key_unknown_identity_and_plaintext_are_refused() {
        let wrong = TlsKey { secret: &[8; 32], ..SHORT };
        let unknown = TlsKey { identity: "NVMe1R01 other s x", ..SHORT };
        for key in [wrong, unknown, LONG] {
            let mut client = session(TlsRole::Client, &[key]);
            let mut server = session(TlsRole::Server, &[SHORT]);
            let refused = transfer_all(&mut client, &mut server, 100).unwrap_err();
            assert!(matches!(refused, TlsError::Failed { .. }), "{refused}");
            assert!(!server.is_established() && server.identity().is_none());
            assert_eq!(server.open(&mut [0; 9]), Err(refused), "it stays ended");
            assert!(server.seal(b"x").is_err());
        }
        let mut server = session(TlsRole::Server, &[SHORT]);
        server.feed(&[0, 0, 128]);
        let refused = server.open(&mut [0; 9]).unwrap_err().to_string();
        assert!(
            refused.contains("does not speak TLS"),
            "an ICReq is refused before more bytes arrive: {refused}"
        );
    }

    #[test]
    fn changed_record_ends_the_session_and_returns_no_bytes() {
        let mut client = session(TlsRole::Client, &[SHORT]);
        let mut server = session(TlsRole::Server, &[SHORT]);
        complete_handshake(&mut client, &mut server, usize::MAX).unwrap();
        client.seal(b"sixteen bytes of").unwrap();
        let mut bytes = client.outgoing().to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        server.feed(&bytes);
        let mut room = [0; 64];
        assert!(matches!(server.open(&mut room), Err(TlsError::Failed { .. })));
        assert_eq!(room, [0; 64]);
    }

    #[test]
    fn no_data_is_sealed_before_the_key_is_proved() {
        let mut client = session(TlsRole::Client, &[SHORT]);
        assert!(client.seal(b"early").is_err());
        assert!(!client.outgoing().windows(5).any(|bytes| bytes == b"early"));
    }

    #[test]
    fn too_short_key_is_refused() {
        let short = TlsKey { secret: &[1; 8], ..SHORT };
        assert!(matches!(TlsKeys::new(&[short]), Err(TlsError::SetUp { .. })));
    }
}
