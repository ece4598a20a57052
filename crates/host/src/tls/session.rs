//! Keys and sessions, by s2n-tls.
//!
//! In: keys, received bytes, bytes to send. Out: opened bytes, sealed bytes, the identity that was proved. Invariant: a session
//! without a pre-shared key, or with another cipher suite than NVMe names, never becomes established; after an error it stays
//! over. Clauses: RFC 8446; cipher suites of the NVMe TCP Transport Specification 1.1, section 3.6.1.

use super::channel::Shared;
use super::{TlsEnd, TlsError, TlsHash, TlsKey};
use s2n_tls::config::Config;
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, Mode, PskHmac};
use s2n_tls::error::Error;
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;
use std::task::Poll;

/// A policy of the library with TLS 1.3 alone and elliptic curves for forward secrecy.
const POLICY: &str = "AWS-CRT-SDK-TLSv1.3-2023";
/// What may be agreed on.
const CIPHER_SUITES: [&str; 2] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"];
/// Types of the record that an end may begin with: alert and handshake (RFC 8446 section 5.1).
const FIRST_RECORDS: [u8; 2] = [21, 22];

/// Keys of one end, ready for any number of sessions.
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
            // Nobody is believed by a certificate.
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

/// Where a session stands.
///
/// ```text
///   Handshaking --the other end proved a key--> Established --error, closed--> Over
///        +-----------------------error, no key--------------------------------^
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Handshaking,
    Established,
    Over(TlsError),
}

/// One end of a session.
pub struct TlsSession {
    /// Before the channel, so that it is gone before what it refers to.
    connection: Connection,
    channel: Shared,
    state: State,
    identity: Option<String>,
    outgoing: Vec<u8>,
    sent: usize,
    /// The other end has said something.
    spoken: bool,
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
    /// A session over a connection that was just made. A client's first bytes are ready to be sent.
    ///
    /// # Errors
    /// [`TlsError::SetUp`] when the library has no memory or does not take the keys.
    pub fn new(end: TlsEnd, keys: &TlsKeys) -> Result<Self, TlsError> {
        let mode = match end {
            TlsEnd::Client => Mode::Client,
            TlsEnd::Server => Mode::Server,
        };
        let mut session = Self {
            connection: Connection::new(mode),
            channel: Shared::default(),
            state: State::Handshaking,
            identity: None,
            outgoing: Vec::new(),
            sent: 0,
            spoken: false,
        };
        session.prepare(keys).map_err(|error| set_up(&error))?;
        session.drive()?;
        Ok(session)
    }

    fn prepare(&mut self, keys: &TlsKeys) -> Result<(), Error> {
        self.connection.set_config(keys.config.clone())?;
        // The library must not sleep.
        self.connection.set_blinding(Blinding::SelfService)?;
        for key in &keys.keys {
            self.connection.append_psk(key)?;
        }
        // SAFETY: the channel is a field of the session behind the connection, and never replaced: it is dropped after it.
        unsafe { self.channel.serve(&mut self.connection) }
    }

    /// Whether the other end has proved its key.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.state == State::Established
    }

    /// The identity of the key that the other end proved.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// Takes what the socket received; [`open`](Self::open) until it gives 0.
    pub fn feed(&mut self, bytes: &[u8]) {
        if let (false, Some(first)) = (self.spoken, bytes.first()) {
            self.spoken = true;
            // The library would wait for the rest of whatever record other bytes look like.
            if !FIRST_RECORDS.contains(first) {
                let reason = format!("the other end does not speak TLS (it begins with byte {first:02x}h)");
                self.state = State::Over(TlsError::Failed { reason });
            }
        }
        self.channel.lock().feed(bytes);
    }

    /// Goes on with the handshake, and gives what the other end said: so many bytes of `into`, 0 when more must be fed first.
    ///
    /// # Errors
    /// [`TlsError::Failed`] when the other end has no key of ours or a record was changed, [`TlsError::Closed`] when it closed
    /// the session. What [`outgoing`](Self::outgoing) still holds tells the other end why.
    pub fn open(&mut self, into: &mut [u8]) -> Result<usize, TlsError> {
        self.drive()?;
        if !self.is_established() {
            return Ok(0);
        }
        let received = self.connection.poll_recv(into);
        self.collect();
        match received {
            Poll::Pending => Ok(0),
            Poll::Ready(Ok(0)) if !into.is_empty() => Err(self.end(TlsError::Closed)),
            Poll::Ready(Ok(bytes)) => Ok(bytes),
            Poll::Ready(Err(error)) => Err(self.fail(&error)),
        }
    }

    /// Takes what is to be sent, all of it.
    ///
    /// # Errors
    /// As [`open`](Self::open); and when the session is not established yet.
    pub fn seal(&mut self, mut bytes: &[u8]) -> Result<(), TlsError> {
        if let State::Over(error) = &self.state {
            return Err(error.clone());
        }
        while !bytes.is_empty() {
            let sealed = self.connection.poll_send(bytes);
            self.collect();
            match sealed {
                Poll::Ready(Ok(count)) => bytes = bytes.get(count..).unwrap_or(&[]),
                Poll::Ready(Err(error)) => return Err(self.fail(&error)),
                Poll::Pending => {
                    return Err(self.end(TlsError::Failed { reason: "no room to seal".to_owned() }));
                }
            }
        }
        Ok(())
    }

    /// What the socket shall send.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.get(self.sent..).unwrap_or(&[])
    }

    /// The socket sent so much of it.
    ///
    /// # Panics
    /// When there was less.
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        assert!(self.sent <= self.outgoing.len(), "more was sent than there was");
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        }
    }

    fn drive(&mut self) -> Result<(), TlsError> {
        match &self.state {
            State::Established => return Ok(()),
            State::Over(error) => return Err(error.clone()),
            State::Handshaking => {}
        }
        let negotiated = self.connection.poll_negotiate().map_ok(|_| ());
        self.collect();
        match negotiated {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(())) => self.establish(),
            Poll::Ready(Err(error)) => Err(self.fail(&error)),
        }
    }

    /// A handshake is over; what it agreed on must be what was asked for.
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
                self.state = State::Established;
                Ok(())
            }
            _ => Err(self.end(TlsError::Failed { reason: "no key was agreed on".to_owned() })),
        }
    }

    fn fail(&mut self, error: &Error) -> TlsError {
        let alert = self.connection.alert().map(|alert| format!(", the other end said alert {alert}"));
        let reason = format!("{} ({}{})", error.message(), error.name(), alert.unwrap_or_default());
        self.end(TlsError::Failed { reason })
    }

    fn end(&mut self, error: TlsError) -> TlsError {
        if !matches!(self.state, State::Over(_)) {
            // An alert is a courtesy: without it the other end learns by the end of the connection.
            let _ = self.connection.poll_shutdown_send();
            self.collect();
            self.state = State::Over(error.clone());
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

    fn session(end: TlsEnd, keys: &[TlsKey<'_>]) -> TlsSession {
        TlsSession::new(end, &TlsKeys::new(keys).unwrap()).unwrap()
    }

    /// Carries bytes one way, so many at a time; what `to` opened.
    fn carry(from: &mut TlsSession, to: &mut TlsSession, step: usize) -> Result<Vec<u8>, TlsError> {
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

    fn shake(client: &mut TlsSession, server: &mut TlsSession, step: usize) -> Result<(), TlsError> {
        for _ in 0..4 {
            carry(client, server, step)?;
            carry(server, client, step)?;
        }
        assert!(client.is_established() && server.is_established());
        Ok(())
    }

    #[test]
    fn both_hashes_shake_hands_and_carry_bytes_however_they_are_cut() {
        for (key, suite) in [(SHORT, CIPHER_SUITES[0]), (LONG, CIPHER_SUITES[1])] {
            for step in [1, 7, 1_000, usize::MAX] {
                let mut client = session(TlsEnd::Client, &[key]);
                let mut server = session(TlsEnd::Server, &[SHORT, LONG]);
                shake(&mut client, &mut server, step).unwrap();
                assert_eq!((client.identity(), server.identity()), (Some(key.identity), Some(key.identity)));
                assert_eq!(client.connection.cipher_suite().unwrap(), suite);
                let text: Vec<u8> = (0..40_000_u32).map(|at| (at / 3).to_le_bytes()[0]).collect();
                client.seal(&text).unwrap();
                assert!(client.outgoing().len() > text.len(), "records have headers and tags");
                assert!(carry(&mut client, &mut server, step).unwrap() == text);
                server.seal(&text[..99]).unwrap();
                assert_eq!(carry(&mut server, &mut client, step).unwrap(), text[..99]);
            }
        }
    }

    #[test]
    fn a_wrong_key_an_unknown_identity_and_no_tls_at_all_are_refused() {
        let wrong = TlsKey { secret: &[8; 32], ..SHORT };
        let stranger = TlsKey { identity: "NVMe1R01 other s x", ..SHORT };
        for key in [wrong, stranger, LONG] {
            let mut client = session(TlsEnd::Client, &[key]);
            let mut server = session(TlsEnd::Server, &[SHORT]);
            let refused = carry(&mut client, &mut server, 100).unwrap_err();
            assert!(matches!(refused, TlsError::Failed { .. }), "{refused}");
            assert!(!server.is_established() && server.identity().is_none());
            assert_eq!(server.open(&mut [0; 9]), Err(refused), "it stays over");
            assert!(server.seal(b"x").is_err());
        }
        let mut server = session(TlsEnd::Server, &[SHORT]);
        server.feed(&[0, 0, 128]);
        let refused = server.open(&mut [0; 9]).unwrap_err().to_string();
        assert!(
            refused.contains("does not speak TLS"),
            "an ICReq is no ClientHello, and that is seen at once: {refused}"
        );
    }

    #[test]
    fn a_changed_record_ends_the_session_and_shows_nothing() {
        let mut client = session(TlsEnd::Client, &[SHORT]);
        let mut server = session(TlsEnd::Server, &[SHORT]);
        shake(&mut client, &mut server, usize::MAX).unwrap();
        client.seal(b"sixteen bytes of").unwrap();
        let mut bytes = client.outgoing().to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        server.feed(&bytes);
        let mut room = [0; 64];
        assert!(matches!(server.open(&mut room), Err(TlsError::Failed { .. })));
        assert_eq!(room, [0; 64]);
    }

    #[test]
    fn nothing_is_sealed_before_the_other_end_proved_its_key() {
        let mut client = session(TlsEnd::Client, &[SHORT]);
        assert!(client.seal(b"early").is_err());
        assert!(!client.outgoing().windows(5).any(|bytes| bytes == b"early"));
    }

    #[test]
    fn a_key_that_is_too_short_is_refused() {
        let short = TlsKey { secret: &[1; 8], ..SHORT };
        assert!(matches!(TlsKeys::new(&[short]), Err(TlsError::SetUp { .. })));
    }
}
