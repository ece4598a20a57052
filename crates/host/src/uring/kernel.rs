//! The io_uring implementation of a [`FileRing`](super::FileRing).
//!
//! Input: transfers, at most as many as there are slots. Output: their completions. Invariant: a slot holds a
//! transfer's buffers and their address list from before the kernel receives it until the kernel's completion has been
//! read; the ring is not dropped before every slot is empty.
//!
//! The descriptor to poll is the ring's own: the kernel shows it readable exactly while completions wait, so there is
//! no counter to drain, and completions cost no signal.

use super::{FileTransfer, FinishedTransfer, FixedBuffer};
use crate::mapped_region::SectorBuffer;
use crate::width::narrow;
use io_uring::{IoUring, opcode, squeue, types};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// One element of the kernel's `struct iovec`: an address and a length in bytes.
#[derive(Clone, Copy)]
#[repr(C)]
struct IoVector {
    start: *mut u8,
    bytes: usize,
}

const _: () = assert!(size_of::<IoVector>() == 2 * size_of::<usize>());

/// The values that a transfer in flight keeps alive.
#[derive(Default)]
struct TransferSlot {
    /// The caller's id; `None` while the slot is free.
    id: Option<u64>,
    buffers: Vec<SectorBuffer>,
    vectors: Vec<IoVector>,
    fixed: Option<FixedBuffer>,
}

/// Transfers in flight in the kernel.
pub(super) struct KernelRing {
    // Dropped only after `Drop` has drained every slot.
    uring: IoUring,
    file: File,
    slots: Vec<TransferSlot>,
    free: Vec<u32>,
}

// SAFETY: the address lists point into buffers of the same slot, which move with it and stay where they are; nothing
// here belongs to a thread (the ring is opened without single-issuer).
unsafe impl Send for KernelRing {}

/// Creates a ring. Many containers refuse it with EPERM or ENOSYS.
pub(super) fn setup(entries: u32) -> io::Result<IoUring> {
    let entries = entries.next_power_of_two();
    IoUring::builder().setup_cqsize(entries * 2).build(entries)
}

impl KernelRing {
    pub(super) fn new(uring: IoUring, file: File, entries_max: usize) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(entries_max, TransferSlot::default);
        let free = (0..narrow(entries_max)).rev().collect();
        Self { uring, file, slots, free }
    }

    /// Takes a transfer; the caller guarantees a free slot.
    pub(super) fn submit(&mut self, id: u64, transfer: FileTransfer) {
        let Some(index) = self.free.pop() else {
            unreachable!("the ring limits transfers in flight to its slots");
        };
        let slot = &mut self.slots[index as usize];
        slot.id = Some(id);
        let file = types::Fd(self.file.as_raw_fd());
        let entry = match transfer {
            FileTransfer::SyncData => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            FileTransfer::Read { offset, buffers } => {
                let count = slot.hold_buffers(buffers);
                opcode::Readv::new(file, slot.vectors.as_ptr().cast(), count).offset(offset).build()
            }
            FileTransfer::Write { offset, buffers } => {
                let count = slot.hold_buffers(buffers);
                opcode::Writev::new(file, slot.vectors.as_ptr().cast(), count).offset(offset).build()
            }
            FileTransfer::ReadFixed { offset, buffer } => {
                let (start, bytes, number) = buffer.registered_location();
                slot.fixed = Some(buffer);
                opcode::ReadFixed::new(file, start, bytes, number).offset(offset).build()
            }
            FileTransfer::WriteFixed { offset, buffer } => {
                let (start, bytes, number) = buffer.registered_location();
                slot.fixed = Some(buffer);
                opcode::WriteFixed::new(file, start, bytes, number).offset(offset).build()
            }
        };
        self.push(&entry.user_data(u64::from(index)));
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the entry names this ring's file, which outlives it, and a slot's address list and buffers, or the
        // lent pages that the slot owns: all stay in place, unread and unwritten, until the kernel's completion is
        // taken in `poll` or the ring is drained.
        let pushed = unsafe { self.uring.submission().push(entry) };
        // The queue has an entry for every slot, and every kick empties it.
        assert!(pushed.is_ok(), "the submission queue is smaller than the slots");
    }

    pub(super) fn kick(&mut self) {
        let queue = self.uring.submission();
        let nothing = queue.is_empty() && !queue.taskrun() && !queue.cq_overflow();
        drop(queue);
        if !nothing {
            // On an error (interrupted, out of memory for now) the entries stay in the queue for the next kick.
            let _ = self.uring.submit();
        }
    }

    pub(super) fn poll(&mut self, done: &mut Vec<FinishedTransfer>) {
        self.kick();
        for answer in self.uring.completion() {
            let index = answer.user_data();
            let slot = usize::try_from(index).ok().and_then(|index| self.slots.get_mut(index));
            let Some((slot, id)) = slot.and_then(|slot| slot.id.take().map(|id| (slot, id))) else {
                unreachable!("the kernel completed slot {index}, in which no transfer is in flight");
            };
            self.free.push(narrow(index));
            done.push(FinishedTransfer {
                id,
                buffers: std::mem::take(&mut slot.buffers),
                fixed: slot.fixed.take(),
                result: usize::try_from(answer.result()).map_err(|_| -answer.result()),
            });
        }
    }

    pub(super) fn wait(&mut self) {
        if self.uring.completion().is_empty() {
            // An error here is an interruption: the caller polls, finds nothing and waits again.
            let _ = self.uring.submit_and_wait(1);
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the ring's own and stays open as long as the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }
}

impl TransferSlot {
    /// Keeps the buffers, lists their addresses and returns the number of ranges: buffers that lie behind each other are one, whose
    /// pages the kernel pins together.
    fn hold_buffers(&mut self, buffers: Vec<SectorBuffer>) -> u32 {
        self.vectors.clear();
        for buffer in &buffers {
            let (start, bytes) = (buffer.start(), buffer.len());
            match self.vectors.last_mut() {
                Some(last) if last.start.wrapping_add(last.bytes) == start => last.bytes += bytes,
                _ => self.vectors.push(IoVector { start, bytes }),
            }
        }
        self.buffers = buffers;
        // At most TRANSFER_BUFFERS_MAX.
        narrow(self.vectors.len())
    }
}

impl Drop for KernelRing {
    fn drop(&mut self) {
        let mut answers = Vec::new();
        let mut failures = 0;
        while self.free.len() < self.slots.len() {
            match self.uring.submit_and_wait(1) {
                Ok(_) => failures = 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => failures += 1,
            }
            self.poll(&mut answers);
            if failures > 1_000 {
                // The kernel neither completes nor releases the transfers. Memory that it may still write must never be
                // reused; lent pages that are dropped stay claimed for ever anyway.
                for slot in self.slots.drain(..) {
                    slot.buffers.into_iter().for_each(leak);
                    slot.vectors.leak();
                }
                return;
            }
        }
    }
}

#[expect(clippy::mem_forget, reason = "the kernel may still write these bytes")]
fn leak(buffer: SectorBuffer) {
    std::mem::forget(buffer);
}

impl fmt::Debug for KernelRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelRing({} slots, {} free)", self.slots.len(), self.free.len())
    }
}
