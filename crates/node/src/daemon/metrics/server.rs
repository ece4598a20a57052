//! The metrics thread: serves `/metrics`, `/healthz` and `/trace`.
//!
//! Input: HTTP requests. Output: text. tokio runs on this thread only; the core loop never waits for it.

use super::{MetricsBoard, NodeHealth, text};
use crate::daemon::damage_log::{damage_text, write_refusal};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::net::{SocketAddr, TcpListener};
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
#[error(
    "{address}: cannot serve metrics here: {source}; choose another address with --metrics (port 0 picks one)"
)]
pub struct MetricsError {
    address: SocketAddr,
    source: std::io::Error,
}

impl MetricsServer {
    /// Listens and starts the thread.
    ///
    /// # Errors
    /// [`MetricsError`] when the address is in use.
    pub fn start(address: SocketAddr, board: Arc<MetricsBoard>) -> Result<Self, MetricsError> {
        let failed = |source| MetricsError { address, source };
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "metrics are served beyond this machine, to any host that reaches the address");
        }
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (end, ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || {
                if let Err(error) = serve(listener, board, ended) {
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
    ended: oneshot::Receiver<()>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let routes = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(health))
            .route("/trace", get(trace))
            .with_state(board);
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
    use std::io::{Read as _, Write as _};

    fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn healthz_follows_the_board_and_metrics_are_text() {
        let board = Arc::new(MetricsBoard::default());
        let server = MetricsServer::start("127.0.0.1:0".parse().unwrap(), Arc::clone(&board)).unwrap();
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
        let server = MetricsServer::start("127.0.0.1:0".parse().unwrap(), Arc::clone(&board)).unwrap();
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
        let error = MetricsServer::start(address, Arc::default()).unwrap_err().to_string();
        assert!(error.contains(&address.to_string()) && error.contains("--metrics"), "{error}");
    }
}
