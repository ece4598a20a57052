//! The blocking implementation of a [`DeviceRing`](super::DeviceRing): system calls on threads, for kernels that refuse
//! io_uring and for commands that a polled ring does not take.
//!
//! Input: commands. Output: their completions. Invariant: the thread that runs a command owns its handles to memory;
//! dropping this waits for every call.

use super::RingCompletion;
use super::uring_engine::{WorkEncoding, collect_vectors};
use crate::clock::Nanos;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};
use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The maximum number of threads of one ring.
const THREADS_MAX: usize = 8;

type WorkReceiver<W> = Arc<Mutex<Receiver<(u64, W)>>>;

/// Threads that execute commands.
pub(super) struct WorkerThreads<W> {
    signal_fd: Arc<OwnedFd>,
    commands: Option<Sender<(u64, W)>>,
    answers: Receiver<RingCompletion>,
    ready: VecDeque<RingCompletion>,
    in_flight: usize,
    threads: Vec<JoinHandle<()>>,
}

impl<W: WorkEncoding> WorkerThreads<W> {
    pub(super) fn start(file: Arc<File>, depth: usize) -> io::Result<Self> {
        let signal_fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (sender, receiver) = mpsc::channel();
        let orders: WorkReceiver<W> = Arc::new(Mutex::new(receiver));
        let (finished, answers) = mpsc::channel();
        let threads = Vec::new();
        let mut this = Self {
            signal_fd,
            commands: Some(sender),
            answers,
            ready: VecDeque::new(),
            in_flight: 0,
            threads,
        };
        for _ in 0..depth.clamp(1, THREADS_MAX) {
            let (file, orders) = (Arc::clone(&file), Arc::clone(&orders));
            let (finished, signal_fd) = (finished.clone(), Arc::clone(&this.signal_fd));
            let run = move || execute_commands(&file, &orders, &finished, &signal_fd);
            this.threads.push(std::thread::Builder::new().name("device-caller".into()).spawn(run)?);
        }
        Ok(this)
    }

    /// Returns the number of commands taken and not completed.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn submit(&mut self, token: u64, work: W) {
        self.in_flight += 1;
        let sent = self.commands.as_ref().is_some_and(|orders| orders.send((token, work)).is_ok());
        if !sent {
            // The threads are gone, which only a panic in them explains; the command is still completed.
            self.ready.push_back(RingCompletion { token, result: Err(libc::EIO), value: 0 });
            signal(&self.signal_fd);
        }
    }

    pub(super) fn reap(&mut self) -> Option<RingCompletion> {
        let found = self.take().or_else(|| {
            // The eventfd is cleared before the last check, so that a completion that comes in between sets it again.
            self.clear_eventfd();
            self.take()
        });
        self.in_flight -= usize::from(found.is_some());
        if found.is_some() && self.in_flight == 0 {
            self.clear_eventfd();
        }
        found
    }

    fn clear_eventfd(&self) {
        let _ = read(&*self.signal_fd, &mut [0; 8]);
    }

    fn take(&mut self) -> Option<RingCompletion> {
        self.ready.pop_front().or_else(|| self.answers.try_recv().ok())
    }

    pub(super) fn wait(&mut self, longest: Option<Nanos>) {
        if !self.ready.is_empty() {
            return;
        }
        let answer = match longest {
            Some(longest) => self.answers.recv_timeout(longest.to_duration()).ok(),
            None => self.answers.recv().ok(),
        };
        self.ready.extend(answer);
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.signal_fd.as_fd()
    }
}

/// Executes commands in order until the channel is closed.
fn execute_commands<W: WorkEncoding>(
    file: &File,
    commands: &WorkReceiver<W>,
    finished: &Sender<RingCompletion>,
    signal_fd: &OwnedFd,
) {
    let mut vectors = Vec::new();
    loop {
        let order = commands.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((token, work)) = order else {
            return;
        };
        collect_vectors(work.extents(), &mut vectors);
        let (result, value) = work.execute_blocking(file, &vectors);
        // The handles are dropped before the caller receives the completion, which may then expect to hold the only
        // ones.
        drop(work);
        if finished.send(RingCompletion { token, result, value }).is_err() {
            return;
        }
        signal(signal_fd);
    }
}

impl<W> Drop for WorkerThreads<W> {
    fn drop(&mut self) {
        // The threads end when they have executed every command sent to them.
        self.commands = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Sets the eventfd: any count but zero does. The write fails only if the counter is full, and then it is set already.
fn signal(signal_fd: &OwnedFd) {
    let _ = write(signal_fd, &[1; 8]);
}

impl<W> Debug for WorkerThreads<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerThreads({} threads)", self.threads.len())
    }
}
