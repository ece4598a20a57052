//! The io_uring implementation of a [`FileRing`](super::FileRing).
//!
//! Input: transfers, at most as many as there are slots. Output: their completions. Invariant: a slot holds a
//! transfer's buffers and their address list from before the kernel receives it until the kernel's completion has been
//! read; the ring is not dropped before every slot is empty.
//!
//! The descriptor to poll is the ring's own: the kernel shows it readable exactly while completions wait, so there is
//! no counter to drain, and completions cost no signal.

use super::registered_cuts::{RegisteredCounters, RegisteredCuts};
use super::{FileTransfer, FinishedTransfer, FixedBuffer};
use crate::mapped_region::SectorBuffer;
use crate::pinning::uring::BufferTable;
use crate::width::narrow;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

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
    /// The entry of the same transfer without registered memory, for one on registered memory.
    by_address: Option<squeue::Entry>,
}

/// The errors by which a kernel refuses a transfer on registered memory that it may carry out by addresses.
const REFUSALS: [i32; 3] = [libc::EINVAL, libc::EFAULT, libc::EOPNOTSUPP];

/// Transfers in flight in the kernel.
pub(super) struct KernelRing {
    // Dropped only after `Drop` has drained every slot.
    uring: IoUring,
    file: File,
    slots: Vec<TransferSlot>,
    free: Vec<u32>,
    /// The registered memory of buffers; `None` unless it was asked for.
    pub(super) registered: Option<RegisteredCuts>,
    /// True if the kernel takes several ranges of one registered slot (from 6.15 on).
    takes_ranges: bool,
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
        Self { uring, file, slots, free, registered: None, takes_ranges: false }
    }

    /// Registers the memory of buffers in a table of this ring from now on.
    pub(super) fn register_buffers(&mut self, table: Arc<BufferTable>) {
        let mut probe = Probe::new();
        self.takes_ranges = self.uring.submitter().register_probe(&mut probe).is_ok()
            && [opcode::ReadvFixed::CODE, opcode::WritevFixed::CODE]
                .iter()
                .all(|code| probe.is_supported(*code));
        self.registered = Some(RegisteredCuts::new(table));
    }

    /// Returns the counters of the registered memory.
    pub(super) fn registered_counters(&self) -> RegisteredCounters {
        self.registered.as_ref().map_or_else(RegisteredCounters::default, RegisteredCuts::counters)
    }

    /// Returns the slot of the table for the buffers of a transfer, if it can be one on registered memory.
    fn table_slot(&mut self, index: u32) -> Option<u16> {
        let (cuts, slot) = (self.registered.as_mut()?, &self.slots[index as usize]);
        let number = cuts.slot_of(&slot.buffers)?;
        let fits = slot.vectors.len() == 1 || self.takes_ranges;
        if fits {
            cuts.count_transfer();
        }
        fits.then_some(number)
    }

    /// Holds the buffers of a read in a slot, and returns its entry.
    fn read_entry(&mut self, index: u32, offset: u64, buffers: Vec<SectorBuffer>) -> squeue::Entry {
        let count = self.slots[index as usize].hold_buffers(buffers);
        let number = self.table_slot(index);
        let file = types::Fd(self.file.as_raw_fd());
        let slot = &mut self.slots[index as usize];
        let ranges = slot.vectors.as_ptr().cast();
        let by_address = opcode::Readv::new(file, ranges, count).offset(offset).build();
        let Some(number) = number else { return by_address };
        slot.by_address = Some(by_address.user_data(u64::from(index)));
        match slot.vectors[..] {
            // Not longer than the memory of a slot of the table.
            [IoVector { start, bytes }] => {
                opcode::ReadFixed::new(file, start, narrow(bytes), number).offset(offset).build()
            }
            _ => opcode::ReadvFixed::new(file, ranges, count, number).offset(offset).build(),
        }
    }

    /// Holds the buffers of a write in a slot, and returns its entry.
    fn write_entry(&mut self, index: u32, offset: u64, buffers: Vec<SectorBuffer>) -> squeue::Entry {
        let count = self.slots[index as usize].hold_buffers(buffers);
        let number = self.table_slot(index);
        let file = types::Fd(self.file.as_raw_fd());
        let slot = &mut self.slots[index as usize];
        let ranges = slot.vectors.as_ptr().cast();
        let by_address = opcode::Writev::new(file, ranges, count).offset(offset).build();
        let Some(number) = number else { return by_address };
        slot.by_address = Some(by_address.user_data(u64::from(index)));
        match slot.vectors[..] {
            [IoVector { start, bytes }] => {
                opcode::WriteFixed::new(file, start, narrow(bytes), number).offset(offset).build()
            }
            _ => opcode::WritevFixed::new(file, ranges, count, number).offset(offset).build(),
        }
    }

    /// Takes a transfer; the caller guarantees a free slot.
    pub(super) fn submit(&mut self, id: u64, transfer: FileTransfer) {
        let Some(index) = self.free.pop() else {
            unreachable!("the ring limits transfers in flight to its slots");
        };
        self.slots[index as usize].id = Some(id);
        let file = types::Fd(self.file.as_raw_fd());
        let entry = match transfer {
            FileTransfer::SyncData => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            FileTransfer::Read { offset, buffers } => self.read_entry(index, offset, buffers),
            FileTransfer::Write { offset, buffers } => self.write_entry(index, offset, buffers),
            FileTransfer::ReadFixed { offset, buffer } => {
                let (start, bytes, number) = buffer.registered_location();
                self.slots[index as usize].fixed = Some(buffer);
                opcode::ReadFixed::new(file, start, bytes, number).offset(offset).build()
            }
            FileTransfer::WriteFixed { offset, buffer } => {
                let (start, bytes, number) = buffer.registered_location();
                self.slots[index as usize].fixed = Some(buffer);
                opcode::WriteFixed::new(file, start, bytes, number).offset(offset).build()
            }
        };
        self.push(&entry.user_data(u64::from(index)));
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the entry names this ring's file, which outlives it, and a slot's address list and buffers, or the
        // lent pages that the slot owns: all stay in place, unread and unwritten, until the kernel's completion is
        // taken in `poll` or the ring is drained. Memory of buffers that is named by a slot of the table was registered
        // from the cut that these buffers are of, which they keep mapped: the pages that the kernel pinned are theirs.
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
        let mut refused = Vec::new();
        for answer in self.uring.completion() {
            let index = answer.user_data();
            let slot = usize::try_from(index).ok().and_then(|index| self.slots.get_mut(index));
            let Some((slot, id)) = slot.and_then(|slot| slot.id.map(|id| (slot, id))) else {
                unreachable!("the kernel completed slot {index}, in which no transfer is in flight");
            };
            if let Some(by_address) = slot.by_address.take()
                && REFUSALS.contains(&-answer.result())
            {
                refused.push(by_address);
                continue;
            }
            slot.id = None;
            self.free.push(narrow(index));
            done.push(FinishedTransfer {
                id,
                buffers: std::mem::take(&mut slot.buffers),
                fixed: slot.fixed.take(),
                result: usize::try_from(answer.result()).map_err(|_| -answer.result()),
            });
        }
        if !refused.is_empty() {
            if let Some(cuts) = &mut self.registered {
                cuts.note_refused_transfers(refused.len());
            }
            refused.iter().for_each(|entry| self.push(entry));
            self.kick();
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
