//! Bare sockets that move the bytes of reads, and nothing else.
//!
//! In: connections of this process. Out: for every 72 bytes, which is a command capsule, 4,144 bytes: the headers of data and
//! response and 4 KiB. Each side makes the system calls that a server and a client of a protocol must make: one receive
//! for what came, one send for what it asks for.

use crate::cpu_account::CpuAccount;
use crate::experiment::LabError;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;

/// Bytes of a command capsule.
const REQUEST_BYTES: usize = 72;
/// Bytes of what answers a read of 4 KiB: two headers of 24 bytes and the data.
const ANSWER_BYTES: usize = 24 + 4_096 + 24;
/// Bytes asked of the kernel in one receive.
const RECEIVE_BYTES: usize = 128 << 10;

/// How both sides wait for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// They ask again and again.
    Polls,
    /// The kernel wakes them.
    Sleeps,
}

/// The answering thread. It ends when the last line to it does.
#[derive(Debug)]
pub(super) struct Floor {
    address: SocketAddr,
    waiting: Waiting,
    thread: u32,
}

impl Floor {
    pub(super) fn start(waiting: Waiting) -> Result<Self, LabError> {
        let failed = |source| LabError::Io { what: "listen on the loopback", source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            // Nobody hears it only when the run is over already.
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get());
            if let Ok((stream, _)) = listener.accept() {
                // The other side is gone: that is how it ends.
                let _ = serve(&stream, waiting);
            }
        });
        let id = told.recv().ok().and_then(|id| u32::try_from(id).ok());
        Ok(Self { address, waiting, thread: id.unwrap_or(0) })
    }

    pub(super) fn account(&self) -> CpuAccount {
        CpuAccount::Thread(self.thread)
    }

    /// The one line to it.
    pub(super) fn connect(&self, depth: u32) -> Result<Line, LabError> {
        let stream = TcpStream::connect(self.address).map_err(failed)?;
        set_up(&stream, self.waiting).map_err(failed)?;
        Ok(Line { stream, waiting: self.waiting, depth: u64::from(depth), scratch: vec![0; RECEIVE_BYTES] })
    }
}

fn set_up(stream: &TcpStream, waiting: Waiting) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(waiting == Waiting::Polls)
}

fn serve(stream: &TcpStream, waiting: Waiting) -> io::Result<()> {
    set_up(stream, waiting)?;
    let mut scratch = vec![0; RECEIVE_BYTES];
    let answers = vec![7; ANSWER_BYTES * RECEIVE_BYTES.div_ceil(REQUEST_BYTES)];
    let mut came = 0;
    loop {
        came += receive(stream, &mut scratch, waiting)?;
        let requests = came / REQUEST_BYTES;
        came %= REQUEST_BYTES;
        send_all(stream, &answers[..requests * ANSWER_BYTES], waiting)?;
    }
}

fn receive(stream: &TcpStream, scratch: &mut [u8], waiting: Waiting) -> io::Result<usize> {
    loop {
        match recv(stream, &mut *scratch, RecvFlags::empty()) {
            Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, bytes)) => return Ok(bytes),
            Err(rustix::io::Errno::AGAIN) if waiting == Waiting::Polls => std::hint::spin_loop(),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn send_all(stream: &TcpStream, mut bytes: &[u8], waiting: Waiting) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(stream, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(rustix::io::Errno::AGAIN) if waiting == Waiting::Polls => std::hint::spin_loop(),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// The asking side.
#[derive(Debug)]
pub(super) struct Line {
    stream: TcpStream,
    waiting: Waiting,
    depth: u64,
    scratch: Vec<u8>,
}

impl Line {
    /// One request and its answer.
    pub(super) fn ping(&mut self) -> Result<(), LabError> {
        send_all(&self.stream, &[1; REQUEST_BYTES], self.waiting).map_err(failed)?;
        let mut left = ANSWER_BYTES;
        while left > 0 {
            left -= receive(&self.stream, &mut self.scratch[..left], self.waiting).map_err(failed)?;
        }
        Ok(())
    }

    /// So many requests, as many at a time as the depth says; a new one for each that was answered.
    pub(super) fn stream(&mut self, count: u64) -> Result<(), LabError> {
        let requests = vec![1; REQUEST_BYTES * usize::try_from(self.depth).unwrap_or(1)];
        let (mut sent, mut answered, mut came) = (0, 0, 0);
        while answered < count {
            let more = (self.depth - (sent - answered)).min(count - sent);
            if more > 0 {
                let bytes = usize::try_from(more).unwrap_or(0) * REQUEST_BYTES;
                send_all(&self.stream, &requests[..bytes], self.waiting).map_err(failed)?;
                sent += more;
            }
            came += receive(&self.stream, &mut self.scratch, self.waiting).map_err(failed)?;
            answered += (came / ANSWER_BYTES) as u64;
            came %= ANSWER_BYTES;
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
    fn every_request_has_its_answer_whichever_way_is_waited() {
        for waiting in [Waiting::Polls, Waiting::Sleeps] {
            let floor = Floor::start(waiting).unwrap();
            let mut line = floor.connect(8).unwrap();
            line.ping().unwrap();
            line.stream(500).unwrap();
            line.ping().unwrap();
        }
    }
}
