//! The other ways to bring 4 KiB from one core to another: bare shared memory, and Unix sockets.
//!
//! In: which core the other side runs on. Out: times of round trips. The other side is a thread: the caches and the kernel
//! treat it as they would a process. It copies a random 4 KiB of its own for every question, as a device would.

use super::{Blocking::Yes, OnCore, ROUND_MAX, failed};
use crate::experiment::LabError;
use headwater_host::clock::Clock;
use headwater_host::foreign::Foreign;
use headwater_host::ring_memory::{ForeignWords, RingMemory};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

const ANSWER_BYTES: usize = 4_096;
const QUESTION_BYTES: usize = 64;
/// Bytes the other side answers from: as much as the keys of a reader hold.
const POOL_BYTES: usize = 8 << 20;
/// Word of the question's number, on a line of its own.
const QUESTION: usize = 0;
/// Word of the answer's number.
const ANSWER: usize = 8;
const END: u64 = u64::MAX;
/// Sends the other side to rest.
const REST: u64 = 0;
/// Bytes in front of the answer in shared memory.
const HEAD_BYTES: usize = 4_096;

/// Whether the sides of a socket sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocking {
    Yes,
    No,
}

fn pool() -> (Vec<u8>, fastrand::Rng) {
    // Written, because pages that never were are all the same page.
    (vec![0x5A; POOL_BYTES], fastrand::Rng::with_seed(2))
}

fn pick<'a>(pool: &'a [u8], random: &mut fastrand::Rng) -> &'a [u8] {
    let place = random.usize(..POOL_BYTES / ANSWER_BYTES) * ANSWER_BYTES;
    &pool[place..place + ANSWER_BYTES]
}

/// A ping-pong over words of shared memory.
pub(super) struct Memory {
    words: ForeignWords,
    region: Foreign,
    asked: u64,
    clock: Clock,
    begin: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Memory {
    pub(super) fn start(core: usize) -> Result<Self, LabError> {
        let region = Foreign::anonymous(HEAD_BYTES + ANSWER_BYTES).map_err(failed)?;
        let words = ForeignWords::new(region.clone(), 0, 16).map_err(failed)?;
        let (their_region, their_words) = (region.clone(), words.clone());
        let (begin, begins) = channel();
        let thread = std::thread::spawn(move || {
            let _on = OnCore::pin(core);
            let (pool, mut random) = pool();
            let mut seen = 0;
            loop {
                let question = their_words.load_acquire(QUESTION);
                if question == END {
                    return;
                }
                if question == REST {
                    // Between rounds the core belongs to the others.
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
                their_words.store_release(ANSWER, question);
            }
        });
        Ok(Self { words, region, asked: 0, clock: Clock::start(), begin, thread: Some(thread) })
    }

    pub(super) fn trips(&mut self, trips: usize) -> Result<Vec<u64>, LabError> {
        let mut nanos = Vec::with_capacity(trips);
        let mut front = [0; 8];
        let started = self.clock.now();
        for trip in 0..trips {
            self.asked += 1;
            let begun = self.clock.now();
            self.words.store_release(QUESTION, self.asked);
            if trip == 0 {
                // Behind the first question, so that the other side finds it and not the wish to rest.
                self.begin.send(()).map_err(failed)?;
            }
            while self.words.load_acquire(ANSWER) != self.asked {
                std::hint::spin_loop();
            }
            let ended = self.clock.now();
            nanos.push(ended.since(begun).0);
            if ended.since(started) > ROUND_MAX {
                break;
            }
            self.region.copy_in(HEAD_BYTES, &mut front).map_err(failed)?;
        }
        self.words.store_release(QUESTION, REST);
        Ok(nanos)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.words.store_release(QUESTION, END);
        // One that has ended by itself hears nothing.
        let _ = self.begin.send(());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already said so.
            let _ = thread.join();
        }
    }
}

/// A ping-pong over a Unix socket.
pub(super) struct Socket {
    stream: UnixStream,
    blocking: Blocking,
    clock: Clock,
    thread: Option<JoinHandle<()>>,
}

impl Socket {
    pub(super) fn start(core: usize, blocking: Blocking) -> Result<Self, LabError> {
        let io = |source| LabError::Io { what: "make a pair of sockets", source };
        let (stream, mut theirs) = UnixStream::pair().map_err(io)?;
        stream.set_nonblocking(blocking != Yes).map_err(io)?;
        let thread = std::thread::spawn(move || {
            let _on = OnCore::pin(core);
            let (pool, mut random) = pool();
            let mut question = [0; QUESTION_BYTES];
            // The first question of a round is waited for asleep, whatever the way, so that the core is free in between.
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
        let (mut question, mut answer) = ([0; QUESTION_BYTES], [0; ANSWER_BYTES]);
        let started = self.clock.now();
        for trip in 0..trips {
            let begun = self.clock.now();
            // The last question says that it is the last, so that the other side rests until the next round.
            let last = trip + 1 == trips || begun.since(started) > ROUND_MAX;
            question[0] = u8::from(last);
            self.stream.write_all(&question).map_err(failed)?;
            match self.blocking {
                Yes => self.stream.read_exact(&mut answer),
                Blocking::No => read_spinning(&mut self.stream, &mut answer),
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

/// Fills the buffer without ever sleeping.
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

impl Drop for Socket {
    fn drop(&mut self) {
        // The other side reads the end and leaves.
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
    fn every_peer_answers_and_ends() {
        assert_eq!(Memory::start(0).unwrap().trips(10).unwrap().len(), 10);
        for blocking in [Yes, Blocking::No] {
            let mut socket = Socket::start(0, blocking).unwrap();
            for _ in 0..3 {
                assert_eq!(socket.trips(10).unwrap().len(), 10);
            }
        }
    }
}
