//! The access to metrics, health and trace: a token, where one is configured.
//!
//! Input: the token's file; the address and the `Authorization` of each request. Output: admission, or a response that
//! refuses. Invariant: the token is not kept in plain, and an address with too many wrong ones is told to wait, right or
//! wrong.

use super::bounded_listener::ClientAddress;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use headwater_frontend::resp::random_bytes;
use headwater_frontend::wrong_passwords::WrongPasswords;
use headwater_host::clock::Clock;
use headwater_io::private_file::{self, PrivateFileError};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Minimum bytes of a token: it cannot be guessed then.
const TOKEN_BYTES_MIN: usize = 16;

/// The error of a file that holds no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The file cannot be read, or users besides its owner may access it.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// Its first line is no token.
    #[error(
        "{}: its first line is no token of at least {TOKEN_BYTES_MIN} visible ASCII characters; make one with \
         `openssl rand -hex 16`",
        path.display()
    )]
    NoToken {
        /// The file.
        path: PathBuf,
    },
    /// The kernel gave no random bytes.
    #[error("the kernel gives no random bytes for the hash of the token: {source}")]
    Random {
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// The token that clients must send, and the wrong ones of each address.
#[derive(Debug)]
pub struct MetricsAccess {
    key: [u8; 32],
    /// Keyed hash of the token.
    tag: blake3::Hash,
    wrong: Mutex<WrongPasswords>,
    clock: Clock,
}

impl MetricsAccess {
    /// Reads the token: the first line of a file.
    ///
    /// # Errors
    /// [`TokenFileError`] names the file.
    pub fn read(path: &Path) -> Result<Self, TokenFileError> {
        let text = private_file::read(path)?;
        let token = text.lines().next().unwrap_or_default().as_bytes();
        if token.len() < TOKEN_BYTES_MIN || !token.iter().all(u8::is_ascii_graphic) {
            return Err(TokenFileError::NoToken { path: path.to_owned() });
        }
        let key = random_bytes().map_err(|source| TokenFileError::Random { source })?;
        let tag = blake3::keyed_hash(&key, token);
        Ok(Self { key, tag, wrong: Mutex::default(), clock: Clock::start() })
    }

    /// Returns the status of a refusal; `None` for a client that sent the token.
    fn refusal(&self, client: SocketAddr, headers: &HeaderMap) -> Option<StatusCode> {
        let Some(token) = token_of(headers) else {
            return Some(StatusCode::UNAUTHORIZED);
        };
        let (client, now) = (client.to_string(), self.clock.now());
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if !wrong.may_try(&client, now) {
            return Some(StatusCode::TOO_MANY_REQUESTS);
        }
        // The comparison of two hashes takes the same time for all of them.
        if blake3::keyed_hash(&self.key, &token) == self.tag {
            return None;
        }
        wrong.count(&client, now);
        Some(StatusCode::UNAUTHORIZED)
    }
}

/// Returns the token of a request: that of a bearer, or the password of a user of any name.
fn token_of(headers: &HeaderMap) -> Option<Vec<u8>> {
    let (scheme, rest) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.trim().as_bytes().to_vec());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = BASE64_STANDARD.decode(rest.trim()).ok()?;
    let colon = pair.iter().position(|&byte| byte == b':')?;
    Some(pair[colon + 1..].to_vec())
}

/// Passes a request on if its client has sent the token.
pub(super) async fn admit(
    State(access): State<Arc<MetricsAccess>>,
    ConnectInfo(ClientAddress(client)): ConnectInfo<ClientAddress>,
    request: Request,
    next: Next,
) -> Response {
    match access.refusal(client, request.headers()) {
        None => next.run(request).await,
        Some(StatusCode::TOO_MANY_REQUESTS) => {
            let wait = [(header::RETRY_AFTER, "10")];
            (
                StatusCode::TOO_MANY_REQUESTS,
                wait,
                "too many wrong tokens from this address; wait 10 seconds\n",
            )
                .into_response()
        }
        Some(status) => {
            let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"headwater metrics\"")];
            let text = "send the token of --metrics-token: as Bearer, or as the password of any user\n";
            (status, ask, text).into_response()
        }
    }
}
