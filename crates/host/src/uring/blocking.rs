//! The blocking implementation of a [`FileRing`](super::FileRing), for kernels that refuse io_uring.
//!
//! Input: transfers. Output: their completions. Reads run in the calling thread, for they are short; writes and syncs
//! run in order on a thread of their own, so that the caller does not wait for the disk. Invariant: the thread that
//! runs a transfer owns its buffers; dropping the ring waits for the thread.

use super::{FileTransfer, FinishedTransfer};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::fdatasync;
use rustix::io::{Errno, pread, preadv, pwrite, pwritev, read, write};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

/// Transfers executed by a thread.
#[derive(Debug)]
pub(super) struct BlockingRing {
    file: Arc<File>,
    signal_fd: Arc<OwnedFd>,
    work: Option<Sender<(u64, FileTransfer)>>,
    answers: Receiver<FinishedTransfer>,
    ready: VecDeque<FinishedTransfer>,
    thread: Option<JoinHandle<()>>,
}

impl BlockingRing {
    pub(super) fn start(file: File) -> io::Result<Self> {
        let file = Arc::new(file);
        let signal_fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (work, orders) = mpsc::channel::<(u64, FileTransfer)>();
        let (finished, answers) = mpsc::channel();
        let (thread_file, thread_signal_fd) = (Arc::clone(&file), Arc::clone(&signal_fd));
        let thread = std::thread::Builder::new().name("file-writer".into()).spawn(move || {
            for (id, transfer) in orders {
                let answer = execute_transfer(&thread_file, id, transfer);
                if finished.send(answer).is_err() {
                    return;
                }
                signal(&thread_signal_fd);
            }
        })?;
        Ok(Self { file, signal_fd, work: Some(work), answers, ready: VecDeque::new(), thread: Some(thread) })
    }

    pub(super) fn submit(&mut self, id: u64, transfer: FileTransfer) {
        if matches!(transfer, FileTransfer::Read { .. } | FileTransfer::ReadFixed { .. }) {
            self.ready.push_back(execute_transfer(&self.file, id, transfer));
            signal(&self.signal_fd);
            return;
        }
        let sent = match &self.work {
            Some(work) => work.send((id, transfer)).map_err(|refused| refused.0),
            None => Err((id, transfer)),
        };
        if let Err((id, transfer)) = sent {
            // The thread is gone, which only a panic in it explains; the transfer is still completed.
            self.ready.push_back(transfer.into_failed(id, Errno::IO.raw_os_error()));
            signal(&self.signal_fd);
        }
    }

    pub(super) fn poll(&mut self, done: &mut Vec<FinishedTransfer>) {
        // The eventfd is cleared before the completions are taken, so that one that comes in between sets it again.
        let mut counter = [0; 8];
        let _ = read(&*self.signal_fd, &mut counter);
        done.extend(self.ready.drain(..));
        done.extend(self.answers.try_iter());
    }

    pub(super) fn wait(&mut self) {
        if self.ready.is_empty()
            && let Ok(answer) = self.answers.recv()
        {
            self.ready.push_back(answer);
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.signal_fd.as_fd()
    }
}

impl Drop for BlockingRing {
    fn drop(&mut self) {
        // The thread ends when it has executed every transfer sent to it.
        self.work = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sets the eventfd: any count but zero does. The write fails only if the counter is full, and then it is set already.
pub(super) fn signal(signal_fd: &OwnedFd) {
    let _ = write(signal_fd, &[1; 8]);
}

/// Makes the data of a file durable.
pub(super) fn sync_data(file: &File) -> Result<(), i32> {
    retry_interrupted(|| fdatasync(file).map(|()| 0)).map(drop)
}

/// Executes the system calls of one transfer.
pub(super) fn execute_transfer(file: &File, id: u64, transfer: FileTransfer) -> FinishedTransfer {
    match transfer {
        FileTransfer::SyncData => {
            let result = sync_data(file).map(|()| 0);
            FinishedTransfer { id, buffers: Vec::new(), fixed: None, result }
        }
        FileTransfer::Write { offset, buffers } => {
            let slices: Vec<_> = buffers.iter().map(|buffer| IoSlice::new(buffer)).collect();
            let result = retry_interrupted(|| pwritev(file, &slices, offset));
            drop(slices);
            FinishedTransfer { id, buffers, fixed: None, result }
        }
        FileTransfer::Read { offset, mut buffers } => {
            let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
            let result = retry_interrupted(|| preadv(file, &mut slices, offset));
            drop(slices);
            FinishedTransfer { id, buffers, fixed: None, result }
        }
        FileTransfer::WriteFixed { offset, buffer } => {
            let (buffer, result) =
                buffer.with_bytes(|bytes| retry_interrupted(|| pwrite(file, &*bytes, offset)));
            FinishedTransfer { id, buffers: Vec::new(), fixed: Some(buffer), result }
        }
        FileTransfer::ReadFixed { offset, buffer } => {
            let (buffer, result) =
                buffer.with_bytes(|bytes| retry_interrupted(|| pread(file, &mut *bytes, offset)));
            FinishedTransfer { id, buffers: Vec::new(), fixed: Some(buffer), result }
        }
    }
}

/// Repeats a call that a signal interrupted.
fn retry_interrupted(mut call: impl FnMut() -> rustix::io::Result<usize>) -> Result<usize, i32> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other.map_err(Errno::raw_os_error),
        }
    }
}
