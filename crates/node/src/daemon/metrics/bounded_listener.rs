//! The listener of metrics: few connections at once, each for a limited time.
//!
//! Input: connections of any client, before it has sent its token. Output: at most a fixed number of them at once; more of
//! them wait in the kernel's queue. Invariant: a connection ends at its deadline, whatever its client does, so that clients
//! which send nothing take neither the descriptors of the node nor all places for long.

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use std::future::Future as _;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

/// Connections at once.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// Longest life of a connection: a scrape takes milliseconds, and its client connects again.
pub(super) const LIFETIME: Duration = Duration::from_secs(10);
/// Time between two attempts to accept when the system refuses, as without a descriptor.
const RETRY: Duration = Duration::from_millis(100);

/// A listener with a limited number of places.
#[derive(Debug)]
pub(super) struct BoundedListener {
    listener: TcpListener,
    places: Arc<Semaphore>,
    lifetime: Duration,
}

impl BoundedListener {
    pub(super) fn new(listener: TcpListener, connections_max: usize, lifetime: Duration) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(connections_max)), lifetime }
    }
}

impl Listener for BoundedListener {
    type Io = BoundedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BoundedStream, SocketAddr) {
        loop {
            if let Ok(place) = Arc::clone(&self.places).acquire_owned().await
                && let Ok((stream, address)) = self.listener.accept().await
            {
                let deadline = Box::pin(sleep(self.lifetime));
                return (BoundedStream { stream, deadline, _place: place }, address);
            }
            sleep(RETRY).await;
        }
    }

    fn local_addr(&self) -> Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that holds a place and has a deadline.
#[derive(Debug)]
pub(super) struct BoundedStream {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl BoundedStream {
    /// Returns the result of a poll, or an error when the time is over.
    fn until_deadline<T>(&mut self, context: &mut Context<'_>, polled: Poll<Result<T>>) -> Poll<Result<T>> {
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(Error::from(ErrorKind::TimedOut))),
            Poll::Pending => polled,
        }
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.until_deadline(context, polled)
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.until_deadline(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The address of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientAddress(pub(super) SocketAddr);

impl Connected<IncomingStream<'_, BoundedListener>> for ClientAddress {
    fn connect_info(stream: IncomingStream<'_, BoundedListener>) -> Self {
        Self(*stream.remote_addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use std::io::{Read as _, Write as _};

    /// Time after which a test fails that would otherwise wait for ever.
    const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

    /// Runs a server with two places on a thread of its own, which ends with the test.
    fn serve(lifetime: Duration) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = BoundedListener::new(TcpListener::from_std(listener).unwrap(), 2, lifetime);
                let routes = Router::new().route("/", get(|| async { "served" }));
                axum::serve(listener, routes).await.unwrap();
            });
        });
        address
    }

    fn ask(address: SocketAddr) -> std::net::TcpStream {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        stream.set_read_timeout(PATIENCE).unwrap();
        stream
    }

    fn answer(mut stream: std::net::TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn connection_beyond_the_places_is_served_when_one_is_free() {
        let address = serve(Duration::from_secs(3_600));
        let mut silent: Vec<_> = (0..2).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        let waiting = ask(address);
        waiting.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let early = (&waiting).read(&mut [0; 1]).unwrap_err();
        assert_eq!(early.kind(), ErrorKind::WouldBlock, "a third connection was served");
        silent.pop();
        waiting.set_read_timeout(PATIENCE).unwrap();
        assert!(answer(waiting).ends_with("served"));
    }

    #[test]
    fn connection_that_asks_over_and_over_ends_at_its_deadline() {
        let mut stream = std::net::TcpStream::connect(serve(Duration::from_millis(50))).unwrap();
        let mut answered = 0;
        loop {
            let asked = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
            match asked.and_then(|()| stream.read(&mut [0; 1_024])) {
                Ok(1..) => answered += 1,
                Ok(0) | Err(_) => break,
            }
        }
        assert!(answered > 0, "nothing was answered before the deadline");
    }

    #[test]
    fn silent_connections_end_at_their_deadline() {
        let address = serve(Duration::from_millis(50));
        let silent: Vec<_> = (0..8).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        assert!(answer(ask(address)).ends_with("served"));
        for mut stream in silent {
            // A request that is cut off is answered with an error, or not at all.
            let mut rest = Vec::new();
            let _reset = stream.read_to_end(&mut rest);
            assert!(!rest.ends_with(b"served"));
        }
    }
}
