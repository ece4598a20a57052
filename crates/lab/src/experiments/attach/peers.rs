//! Baselines that move 4 KiB from one core to another: bare shared memory, and Unix sockets.
//!
//! Input: the core of the other side. Output: times of round trips.
//! The other side is a thread: caches and kernel treat it like a process. It copies a random 4 KiB of its own memory
//! for every request, as a device would.

use super::{OnCore, ROUND_MAX, SocketBlocking::Yes, failed};
use crate::experiment::LabError;
use headwater_host::clock::Clock;
use headwater_host::ring_memory::{RingMemory, SharedMemoryWords};
use headwater_host::shared_memory::SharedMemory;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

const REPLY_BYTES: usize = 4_096;
const REQUEST_BYTES: usize = 64;
/// Bytes of the other side's memory: as much as the keys of a reader hold.
const POOL_BYTES: usize = 8 << 20;
/// Index of the word with the request's number, in its own cache line.
const REQUEST_WORD: usize = 0;
/// Index of the word with the reply's number.
const REPLY_WORD: usize = 8;
const END: u64 = u64::MAX;
/// The request number that makes the other side sleep.
const IDLE: u64 = 0;
/// Bytes before the reply in shared memory.
const HEAD_BYTES: usize = 4_096;

/// The mode of a socket: [`SocketBlocking::Yes`] if its sides sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketBlocking {
    Yes,
    No,
}

fn pool() -> (Vec<u8>, fastrand::Rng) {
    // Written, because unwritten pages all map to the one zero page.
    (vec![0x5A; POOL_BYTES], fastrand::Rng::with_seed(2))
}

fn pick<'a>(pool: &'a [u8], random: &mut fastrand::Rng) -> &'a [u8] {
    let offset = random.usize(..POOL_BYTES / REPLY_BYTES) * REPLY_BYTES;
    &pool[offset..offset + REPLY_BYTES]
}

/// A ping-pong over words of shared memory.
pub(super) struct MemoryPeer {
    words: SharedMemoryWords,
    region: SharedMemory,
    requests: u64,
    clock: Clock,
    wake: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryPeer {
    pub(super) fn start(core: usize) -> Result<Self, LabError> {
        let region = SharedMemory::anonymous(HEAD_BYTES + REPLY_BYTES).map_err(failed)?;
        let words = SharedMemoryWords::new(region.clone(), 0, 16).map_err(failed)?;
        let (their_region, their_words) = (region.clone(), words.clone());
        let (begin, begins) = channel();
        let thread = std::thread::spawn(move || {
            let _on = OnCore::pin(core);
            let (pool, mut random) = pool();
            let mut seen = 0;
            loop {
                let question = their_words.load_acquire(REQUEST_WORD);
                if question == END {
                    return;
                }
                if question == IDLE {
                    // Between rounds the thread sleeps and leaves the core to the other peers.
                    if begins.recv().is_err() {
                        return;
                    }
                    continue;
                }
                if question == seen {
                    std::hint::spin_loop();
                    continue;
                }
                seen = question;
                let _ = their_region.copy_out(HEAD_BYTES, pick(&pool, &mut random));
                their_words.store_release(REPLY_WORD, question);
            }
        });
        Ok(Self { words, region, requests: 0, clock: Clock::start(), wake: begin, thread: Some(thread) })
    }

    pub(super) fn trips(&mut self, trips: usize) -> Result<Vec<u64>, LabError> {
        let mut nanos = Vec::with_capacity(trips);
        let mut front = [0; 8];
        let started = self.clock.now();
        for trip in 0..trips {
            self.requests += 1;
            let begun = self.clock.now();
            self.words.store_release(REQUEST_WORD, self.requests);
            if trip == 0 {
                // Sent after the first request, so that the other side reads the request and not `IDLE`.
                self.wake.send(()).map_err(failed)?;
            }
            while self.words.load_acquire(REPLY_WORD) != self.requests {
                std::hint::spin_loop();
            }
            let ended = self.clock.now();
            nanos.push(ended.since(begun).0);
            if ended.since(started) > ROUND_MAX {
                break;
            }
            self.region.copy_in(HEAD_BYTES, &mut front).map_err(failed)?;
        }
        self.words.store_release(REQUEST_WORD, IDLE);
        Ok(nanos)
    }
}

impl Drop for MemoryPeer {
    fn drop(&mut self) {
        self.words.store_release(REQUEST_WORD, END);
        // The send fails if the thread has already ended.
        let _ = self.wake.send(());
        if let Some(thread) = self.thread.take() {
            // The runtime has already printed a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// A ping-pong over a Unix socket.
pub(super) struct SocketPeer {
    stream: UnixStream,
    blocking: SocketBlocking,
    clock: Clock,
    thread: Option<JoinHandle<()>>,
}

impl SocketPeer {
    pub(super) fn start(core: usize, blocking: SocketBlocking) -> Result<Self, LabError> {
        let io = |source| LabError::Io { what: "create a pair of sockets", source };
        let (stream, mut theirs) = UnixStream::pair().map_err(io)?;
        stream.set_nonblocking(blocking != Yes).map_err(io)?;
        let thread = std::thread::spawn(move || {
            let _on = OnCore::pin(core);
            let (pool, mut random) = pool();
            let mut question = [0; REQUEST_BYTES];
            // In both modes the thread sleeps until the first request of a round, so that the core is free between
            // rounds.
            while theirs.read_exact(&mut question).is_ok() {
                loop {
                    if theirs.write_all(pick(&pool, &mut random)).is_err() {
                        return;
                    }
                    if question[0] == 1 || blocking == Yes {
                        break;
                    }
                    if theirs.set_nonblocking(true).is_err()
                        || read_spinning(&mut theirs, &mut question).is_err()
                        || theirs.set_nonblocking(false).is_err()
                    {
                        return;
                    }
                }
            }
        });
        Ok(Self { stream, blocking, clock: Clock::start(), thread: Some(thread) })
    }

    pub(super) fn trips(&mut self, trips: usize) -> Result<Vec<u64>, LabError> {
        let mut nanos = Vec::with_capacity(trips);
        let (mut question, mut answer) = ([0; REQUEST_BYTES], [0; REPLY_BYTES]);
        let started = self.clock.now();
        for trip in 0..trips {
            let begun = self.clock.now();
            // The last request is marked as the last, so that the other side sleeps until the next round.
            let last = trip + 1 == trips || begun.since(started) > ROUND_MAX;
            question[0] = u8::from(last);
            self.stream.write_all(&question).map_err(failed)?;
            match self.blocking {
                Yes => self.stream.read_exact(&mut answer),
                SocketBlocking::No => read_spinning(&mut self.stream, &mut answer),
            }
            .map_err(failed)?;
            nanos.push(self.clock.now().since(begun).0);
            if last {
                break;
            }
        }
        Ok(nanos)
    }
}

/// Fills the buffer without sleeping.
fn read_spinning(stream: &mut UnixStream, into: &mut [u8]) -> std::io::Result<()> {
    let mut have = 0;
    while have < into.len() {
        match stream.read(&mut into[have..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => have += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Drop for SocketPeer {
    fn drop(&mut self) {
        // The other side reads end of file and ends.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_replies_and_ends() {
        assert_eq!(MemoryPeer::start(0).unwrap().trips(10).unwrap().len(), 10);
        for blocking in [Yes, SocketBlocking::No] {
            let mut socket = SocketPeer::start(0, blocking).unwrap();
            for _ in 0..3 {
                assert_eq!(socket.trips(10).unwrap().len(), 10);
            }
        }
    }
}
