//! The implementation of a [`FileRing`](super::FileRing) for files that lie in memory: the calling thread copies.
//!
//! Input: transfers. Output: their completions, in order. Invariant: one poll moves at most [`POLL_BYTES`]
//! and one transfer, so that a long queue of transfers does not hold its caller up.
//!
//! A file of tmpfs has no transfers that a device carries out while the caller does other work: io_uring gives each to a
//! thread of the kernel, which copies. The wake-ups of two threads cost more than a short copy, and the bytes of a long one
//! lie in the caches of another core than the one that needs them.

use super::blocking::{execute_transfer, signal};
use super::{FileTransfer, FinishedTransfer};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::read;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Bytes after which a poll begins no other transfer: they stay in the second cache until the caller uses them.
const POLL_BYTES: usize = 256 << 10;

/// Transfers that the next polls carry out.
#[derive(Debug)]
pub(super) struct MemoryRing {
    file: File,
    /// Readable while a transfer waits.
    signal_fd: OwnedFd,
    waiting: VecDeque<(u64, FileTransfer)>,
}

impl MemoryRing {
    pub(super) fn open(file: File) -> io::Result<Self> {
        let signal_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { file, signal_fd, waiting: VecDeque::new() })
    }

    pub(super) fn submit(&mut self, id: u64, transfer: FileTransfer) {
        if self.waiting.is_empty() {
            signal(&self.signal_fd);
        }
        self.waiting.push_back((id, transfer));
    }

    pub(super) fn poll(&mut self, done: &mut Vec<FinishedTransfer>) {
        let mut moved = 0;
        while moved < POLL_BYTES
            && let Some((id, transfer)) = self.waiting.pop_front()
        {
            let finished = execute_transfer(&self.file, id, transfer);
            moved += finished.result.unwrap_or(0);
            done.push(finished);
        }
        if self.waiting.is_empty() && !done.is_empty() {
            let mut counter = [0; 8];
            let _ = read(&self.signal_fd, &mut counter);
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.signal_fd.as_fd()
    }
}

impl Drop for MemoryRing {
    fn drop(&mut self) {
        // Accepted transfers are carried out, as those of the other implementations.
        for (id, transfer) in self.waiting.drain(..) {
            execute_transfer(&self.file, id, transfer);
        }
    }
}
