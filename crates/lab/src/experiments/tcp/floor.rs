//! Bare sockets that move the bytes of a read.
//!
//! Input: a connection of this process.
//! Output: for every 72 bytes, the size of a command capsule, 4,144 bytes: the headers of data and response and 4 KiB.
//! Both sides poll the kernel, as host and node do when they poll.

use crate::experiment::LabError;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

/// Bytes of a command capsule.
const REQUEST_BYTES: usize = 72;
/// Bytes of the reply to a read of 4 KiB: two headers of 24 bytes and the data.
const ANSWER_BYTES: usize = 24 + 4_096 + 24;
/// Maximum bytes of one receive.
const RECEIVE_BYTES: usize = 128 << 10;

/// A handle to the replying thread, which polls while it has a connection and sleeps otherwise. It ends with the
/// process.
#[derive(Debug)]
pub(super) struct PingServer {
    address: SocketAddr,
}

impl PingServer {
    pub(super) fn start() -> Result<Self, LabError> {
        let failed = |source| LabError::Io { what: "listen on the loopback", source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                // Serving ends with an error when the client closes the connection.
                let _ = serve(&stream);
            }
        });
        Ok(Self { address })
    }

    /// Connects to it; only one connection at a time.
    pub(super) fn connect(&self) -> Result<PingConnection, LabError> {
        let stream = TcpStream::connect(self.address).map_err(failed)?;
        set_up(&stream).map_err(failed)?;
        Ok(PingConnection { stream, scratch: vec![0; ANSWER_BYTES] })
    }
}

fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

fn serve(stream: &TcpStream) -> io::Result<()> {
    set_up(stream)?;
    let mut scratch = vec![0; RECEIVE_BYTES];
    let answer = vec![7; ANSWER_BYTES];
    let mut received = 0;
    loop {
        received += receive(stream, &mut scratch)?;
        while received >= REQUEST_BYTES {
            send_all(stream, &answer)?;
            received -= REQUEST_BYTES;
        }
    }
}

fn receive(stream: &TcpStream, scratch: &mut [u8]) -> io::Result<usize> {
    loop {
        match recv(stream, &mut *scratch, RecvFlags::empty()) {
            Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, bytes)) => return Ok(bytes),
            Err(rustix::io::Errno::AGAIN) => std::hint::spin_loop(),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn send_all(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(stream, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(rustix::io::Errno::AGAIN) => std::hint::spin_loop(),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// The client's side of the connection.
#[derive(Debug)]
pub(super) struct PingConnection {
    stream: TcpStream,
    scratch: Vec<u8>,
}

impl PingConnection {
    /// Sends one request and receives its reply.
    pub(super) fn ping(&mut self) -> Result<(), LabError> {
        send_all(&self.stream, &[1; REQUEST_BYTES]).map_err(failed)?;
        let mut left = ANSWER_BYTES;
        while left > 0 {
            left -= receive(&self.stream, &mut self.scratch[..left]).map_err(failed)?;
        }
        Ok(())
    }
}

fn failed(source: io::Error) -> LabError {
    LabError::Io { what: "move bytes over the loopback", source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_receives_its_reply() {
        let floor = PingServer::start().unwrap();
        let mut connection = floor.connect().unwrap();
        for _ in 0..100 {
            connection.ping().unwrap();
        }
    }
}
