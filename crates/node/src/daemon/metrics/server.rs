//! The metrics thread: serves `/metrics`, `/healthz` and `/trace`.
//!
//! Input: HTTP requests. Output: text. tokio runs on this thread only; the core loop never waits for it.

use super::access::{MetricsAccess, TokenFileError, admit};
use super::bounded_listener::{BoundedListener, CONNECTIONS_MAX, ClientAddress, LIFETIME};
use super::{MetricsBoard, NodeHealth, text};
use crate::daemon::damage_log::{damage_text, write_refusal};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A running metrics thread; dropping it ends the thread.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    _end: oneshot::Sender<()>,
}

/// The error of a metrics server that could not start.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The address cannot be listened on, or there can be no thread.
    #[error(
        "{address}: cannot serve metrics here: {source}; choose another address with --metrics (port 0 picks one)"
    )]
    System {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Other machines can reach the address, and no token is configured.
    #[error(
        "{address}: other machines can reach this address, and metrics would need no credentials: give a file with a \
         token (--metrics-token), or serve metrics on 127.0.0.1"
    )]
    Unprotected {
        /// The address.
        address: SocketAddr,
    },
    /// The file of the token was refused.
    #[error(transparent)]
    Token(#[from] TokenFileError),
}

impl MetricsServer {
    /// Listens and starts the thread.
    ///
    /// # Errors
    /// [`MetricsError`] when the address is in use, or when other machines can reach it and there is no token.
    pub fn start(
        address: SocketAddr,
        token: Option<&Path>,
        board: Arc<MetricsBoard>,
    ) -> Result<Self, MetricsError> {
        let failed = |source| MetricsError::System { address, source };
        let access = token.map(MetricsAccess::read).transpose()?;
        if access.is_none() && !address.ip().is_loopback() {
            return Err(MetricsError::Unprotected { address });
        }
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (end, ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || {
                if let Err(error) = serve(listener, board, access, ended) {
                    tracing::error!(%error, "metrics are no longer served");
                }
            })
            .map_err(failed)?;
        Ok(Self { address, _end: end })
    }

    /// Returns the address that the server listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn serve(
    listener: TcpListener,
    board: Arc<MetricsBoard>,
    access: Option<MetricsAccess>,
    ended: oneshot::Receiver<()>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let listener = BoundedListener::new(listener, CONNECTIONS_MAX, LIFETIME);
        let mut routes = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(health))
            .route("/trace", get(trace))
            .with_state(board);
        if let Some(access) = access {
            routes = routes.layer(middleware::from_fn_with_state(Arc::new(access), admit));
        }
        let routes = routes.into_make_service_with_connect_info::<ClientAddress>();
        tokio::select! {
            served = async { axum::serve(listener, routes).await } => served,
            _dropped = ended => Ok(()),
        }
    })
}

async fn metrics(State(board): State<Arc<MetricsBoard>>) -> Response {
    match text::encode(board.snapshot()) {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn health(State(board): State<Arc<MetricsBoard>>) -> Response {
    let health = board.health();
    let device = board.snapshot().device;
    let refusal = write_refusal(&device).filter(|_| health != NodeHealth::Recovering);
    let code = match (health, &refusal) {
        (NodeHealth::Serving, None) => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let word = refusal.unwrap_or_else(|| health.as_str().to_owned());
    let damage = damage_text(&device).map_or(String::new(), |damage| format!("damage: {damage}\n"));
    (code, format!("{word}\n{damage}")).into_response()
}

async fn trace(State(board): State<Arc<MetricsBoard>>) -> Response {
    match board.snapshot().front_ends.trace {
        Some(trace) => axum::Json(trace).into_response(),
        None => (StatusCode::NOT_FOUND, "no request was sampled yet\n").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::PermissionsExt as _;

    fn ask(address: SocketAddr, path: &str) -> String {
        ask_with(address, path, "")
    }

    /// Sends a request with a header more, which ends with a line end.
    fn ask_with(address: SocketAddr, path: &str, header: &str) -> String {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", address.port())).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{header}Connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn healthz_follows_the_board_and_metrics_are_text() {
        let board = Arc::new(MetricsBoard::default());
        let server = MetricsServer::start("127.0.0.1:0".parse().unwrap(), None, Arc::clone(&board)).unwrap();
        let answer = ask(server.address(), "/healthz");
        assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with("recovering\n"), "{answer}");
        board.set_health(NodeHealth::Serving);
        let answer = ask(server.address(), "/healthz");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
        assert!(ask(server.address(), "/metrics").contains("headwater_free_blocks 0"));
        assert!(ask(server.address(), "/trace").starts_with("HTTP/1.1 404"));
        assert!(ask(server.address(), "/nothing").starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn healthz_names_damage_and_fails_while_collection_is_stuck() {
        use headwater_frontend::counters::FrontEndCounters;
        use headwater_ssd::engine::{DeviceStats, FailedOperation, FailedWrite};
        let board = Arc::new(MetricsBoard::default());
        let server = MetricsServer::start("127.0.0.1:0".parse().unwrap(), None, Arc::clone(&board)).unwrap();
        board.set_health(NodeHealth::Serving);
        let mut stats = DeviceStats { damaged: 2, unreadable_pages: 1, ..DeviceStats::default() };
        assert!(board.publish(&stats, FrontEndCounters::default()));
        let answer = ask(server.address(), "/healthz");
        let damage = "ok\ndamage: 1 unreadable pages given up, 2 damaged records\n";
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(damage), "{answer}");
        stats.collection_stuck = true;
        assert!(board.publish(&stats, FrontEndCounters::default()));
        let answer = ask(server.address(), "/healthz");
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("writes fail"), "{answer}");
        let metrics = ask(server.address(), "/metrics");
        assert!(metrics.contains("headwater_collection_stuck 1"), "{metrics}");
        assert!(metrics.contains("headwater_unreadable_pages 1"), "{metrics}");
        assert!(metrics.contains("headwater_writes_failed 0"), "{metrics}");
        let flush = FailedWrite { operation: FailedOperation::Flush, block: 0, page: 0, errno: Some(5) };
        stats.failed_write = Some(flush);
        assert!(board.publish(&stats, FrontEndCounters::default()));
        let answer = ask(server.address(), "/healthz");
        let reason = "writes fail: a flush failed: Input/output error (os error 5);";
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains(reason), "{answer}");
        assert!(ask(server.address(), "/metrics").contains("headwater_writes_failed 1"));
    }

    #[test]
    fn error_names_the_address_in_use() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = MetricsServer::start(address, None, Arc::default()).unwrap_err().to_string();
        assert!(error.contains(&address.to_string()) && error.contains("--metrics"), "{error}");
    }

    const TOKEN: &str = "0123456789abcdef-the-token";

    fn token_file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn address_that_other_machines_reach_is_served_with_a_token_only() {
        let everywhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
        let error = MetricsServer::start(everywhere, None, Arc::default()).unwrap_err().to_string();
        assert!(error.contains("0.0.0.0:0") && error.contains("--metrics-token"), "{error}");
        let file = token_file(&format!("{TOKEN}\n"), 0o600);
        let server = MetricsServer::start(everywhere, Some(file.path()), Arc::default()).unwrap();
        let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
        for path in ["/metrics", "/healthz", "/trace", "/nothing"] {
            let answer = ask(server.address(), path);
            assert!(answer.starts_with("HTTP/1.1 401"), "{path} was served without a token: {answer}");
            assert!(answer.contains("www-authenticate") && !answer.contains("headwater_keys"), "{answer}");
            assert!(!ask_with(server.address(), path, &bearer).starts_with("HTTP/1.1 401"), "{path}");
        }
        assert!(ask_with(server.address(), "/metrics", &bearer).contains("headwater_free_blocks 0"));
        let basic = format!("authorization: basic {}\r\n", BASE64_STANDARD.encode(format!("any:{TOKEN}")));
        assert!(ask_with(server.address(), "/metrics", &basic).contains("headwater_free_blocks 0"));
    }

    #[test]
    fn client_that_tries_tokens_is_told_to_wait_before_it_finds_one() {
        let file = token_file(TOKEN, 0o400);
        let loopback = "127.0.0.1:0".parse().unwrap();
        let server = MetricsServer::start(loopback, Some(file.path()), Arc::default()).unwrap();
        let with = |credentials: &str| {
            ask_with(server.address(), "/metrics", &format!("Authorization: {credentials}\r\n"))
        };
        // What is no token is not counted.
        for other in ["Bearer", "Digest x", "Basic ####", "Basic YWJj", "Bearer\u{e9} x"] {
            assert!(with(other).starts_with("HTTP/1.1 401"), "{other}");
        }
        let (prefix, long) = (&TOKEN[..TOKEN.len() - 1], format!("{TOKEN}x"));
        for number in 0..10 {
            let wrong = if number % 2 == 0 { prefix } else { &long };
            let answer = with(&format!("Bearer {wrong}"));
            assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
        }
        let answer = with(&format!("Bearer {TOKEN}"));
        assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("wait 10 seconds"), "{answer}");
    }

    #[test]
    fn weak_token_and_file_that_is_not_private_are_refused_by_name() {
        for (text, mode, why) in [
            (TOKEN, 0o644, "chmod 600"),
            ("", 0o600, "openssl"),
            ("0123456789abcde\n0123456789abcdef\n", 0o600, "at least 16"),
            ("with a blank in it 0123456789\n", 0o600, "visible ASCII"),
        ] {
            let file = token_file(text, mode);
            let loopback = "127.0.0.1:0".parse().unwrap();
            let error = MetricsServer::start(loopback, Some(file.path()), Arc::default()).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(why) && error.contains(&file.path().display().to_string()), "{error}");
            assert!(text.is_empty() || !error.contains(text), "{error}");
        }
    }
}
