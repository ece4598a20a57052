//! The io_uring implementation of a [`DeviceRing`](super::DeviceRing).
//!
//! Input: commands, at most as many as there are slots. Output: their completions. Invariant: a slot holds a command,
//! with its handles to memory, and its address list from before the kernel receives it until the kernel's completion
//! has been read; the ring is not dropped before every slot is empty.
//!
//! The kernel finishes a command when this side makes a system call or sees the flag that requests one (cooperative
//! task running), without interrupting the running code. With a single issuer and deferred task running it would do so
//! for one thread only, at the same cost; but a ring may move from thread to thread with commands in flight.

use super::{MemoryExtent, RingCompletion};
use crate::clock::Nanos;
use crate::pinning::MemoryRange;
use crate::pinning::uring::BufferTable;
use crate::width::narrow;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::{PollFd, PollFlags, poll};
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// The user data of completions without a command: those of cancellations.
const CANCELLATION: u64 = u64::MAX;
/// Failed calls after which the kernel is assumed never to complete anything again.
const FAILURES_MAX: u32 = 1_000;
/// The fewest entries that are worth a system call of their own.
const EARLY_START_MIN: usize = 4;
/// The divisor of the ring's depth that gives the entries started early.
const EARLY_START_DIVISOR: usize = 8;

/// One element of the kernel's `struct iovec`: an address and a length in bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IoVector {
    pub(super) address: usize,
    pub(super) bytes: usize,
}

const _: () = assert!(size_of::<IoVector>() == 2 * size_of::<usize>());

/// The memory of a command, as its submission entry describes it.
#[derive(Clone, Copy, Debug)]
pub struct DataLocation {
    /// One run: its address. Several: the address of their list.
    pub(super) address: usize,
    /// One run: its length. Several: their number.
    pub(super) count: u32,
    /// True if the address is that of a list.
    pub(super) is_list: bool,
    /// The slot under which the single run is registered.
    pub(super) slot: Option<u16>,
}

/// The encoding of one kind of command for the kernel.
pub trait WorkEncoding: Sized + Send + Debug + 'static {
    /// An entry of the submission queue.
    type Entry: squeue::EntryMarker;
    /// An entry of the completion queue.
    type Answer: cqueue::EntryMarker;

    /// Returns the extents whose bytes the command moves.
    fn extents(&self) -> &[MemoryExtent];

    /// Returns true if a polled ring takes the command.
    fn is_polled(&self) -> bool;

    /// Encodes the command as an entry. The file is the ring's only registered one.
    fn encode(&self, file: types::Fixed, place: DataLocation) -> Self::Entry;

    /// Returns the result and value of a completion.
    fn decode(answer: &Self::Answer) -> (i32, u64);

    /// Executes the command by a plain system call.
    fn execute_blocking(&self, file: &File, vectors: &[IoVector]) -> (Result<u32, i32>, u64);
}

/// The values that a command in flight keeps alive.
#[derive(Debug)]
struct RingSlot<W> {
    token: u64,
    work: Option<W>,
    vectors: Vec<IoVector>,
}

/// Commands in flight in the kernel.
pub(super) struct UringEngine<W: WorkEncoding> {
    uring: IoUring<W::Entry, W::Answer>,
    file: Arc<File>,
    slots: Vec<RingSlot<W>>,
    free: Vec<u32>,
    polled: bool,
    /// The number of pending entries at which an idle device gets them before the batch is complete.
    early_start: Option<usize>,
    /// True if a completion was taken since the kernel was last polled.
    took_completion: bool,
    /// The table's contents at change `table_version`.
    table_contents: Vec<Option<MemoryRange>>,
    table_version: u64,
}

// SAFETY: the address lists name memory that the command of the same slot holds, which moves with it; nothing here
// belongs to a thread (the ring is opened without single-issuer).
unsafe impl<W: WorkEncoding> Send for UringEngine<W> {}

impl<W: WorkEncoding> UringEngine<W> {
    /// Creates a ring and registers the file. Many containers refuse it with EPERM or ENOSYS.
    pub(super) fn open(file: Arc<File>, depth: u32, polled: bool) -> io::Result<Self> {
        // One entry more than commands, for a cancellation.
        let entries = (depth + 1).next_power_of_two();
        let uring = match setup::<W>(entries, polled, true) {
            // A kernel before 5.19 does not support the flags.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => setup::<W>(entries, polled, false)?,
            other => other?,
        };
        uring.submitter().register_files(&[file.as_raw_fd()])?;
        let slots = (0..depth).map(|_| RingSlot { token: 0, work: None, vectors: Vec::new() }).collect();
        let free: Vec<u32> = (0..depth).rev().collect();
        let start =
            (free.len() > EARLY_START_MIN).then(|| EARLY_START_MIN.max(free.len() / EARLY_START_DIVISOR));
        Ok(Self {
            uring,
            file,
            slots,
            free,
            polled,
            early_start: start,
            took_completion: false,
            table_contents: Vec::new(),
            table_version: 0,
        })
    }

    /// Takes a command whose extents lie in their memory; the caller guarantees a free slot. The first commands of a
    /// long batch start at once if the device is idle, so that it works while the rest is prepared.
    #[inline]
    pub(super) fn submit(&mut self, token: u64, work: W, table: Option<&BufferTable>) {
        let Some(index) = self.free.pop() else {
            unreachable!("the ring limits commands in flight to its slots");
        };
        let place = match work.extents() {
            [] => DataLocation { address: 0, count: 0, is_list: false, slot: None },
            [one] => DataLocation {
                address: one.address(),
                count: narrow(one.bytes),
                is_list: false,
                slot: table.and_then(|table| self.registered_slot(one, table)),
            },
            several => {
                let vectors = &mut self.slots[index as usize].vectors;
                collect_vectors(several, vectors);
                let count = narrow(vectors.len());
                DataLocation {
                    address: vectors.as_ptr().expose_provenance(),
                    count,
                    is_list: true,
                    slot: None,
                }
            }
        };
        let mut entry = work.encode(types::Fixed(0), place);
        squeue::EntryMarker::set_user_data(&mut entry, u64::from(index));
        let slot = &mut self.slots[index as usize];
        (slot.token, slot.work) = (token, Some(work));
        let unseen = self.push(&entry);
        let is_at_rest = self.slots.len() - self.free.len() == unseen;
        if is_at_rest && self.early_start.is_some_and(|start| unseen >= start) {
            self.kick();
        }
    }

    /// Returns the slot of an extent, if the table has its memory there.
    #[inline]
    fn registered_slot(&mut self, extent: &MemoryExtent, table: &BufferTable) -> Option<u16> {
        let number = extent.slot?;
        let changes = table.changes();
        if changes != self.table_version {
            self.table_contents = table.slot_contents();
            self.table_version = changes;
        }
        let memory = self.table_contents.get(number as usize).copied().flatten()?;
        let start = extent.address().checked_sub(memory.address())?;
        let inside = extent.bytes > 0 && start.checked_add(extent.bytes)? <= memory.bytes();
        if inside { u16::try_from(number).ok() } else { None }
    }

    /// Pushes an entry and returns the number of entries that the kernel has not seen.
    #[inline]
    fn push(&mut self, entry: &W::Entry) -> usize {
        let mut queue = self.uring.submission();
        // SAFETY: the entry names the ring's own file, which is registered, and the address list or the memory of a
        // slot whose command holds a handle to it: all stay in place until the kernel's completion is taken in `reap`
        // or the ring is drained. Concurrent accesses to the memory are expected; no reference to it exists.
        let pushed = unsafe { queue.push(entry) };
        // The queue has an entry for every slot and one more, and `cancel` empties it first.
        assert!(pushed.is_ok(), "the submission queue is smaller than the slots");
        queue.len()
    }

    /// Returns the number of entries that the kernel has not seen.
    #[cfg(test)]
    pub(super) fn pending_entries(&mut self) -> usize {
        self.uring.submission().len()
    }

    #[inline]
    pub(super) fn kick(&mut self) {
        // An older kernel stops at an entry that it refuses; the second round submits the rest.
        for _ in 0..2 {
            if self.uring.submission().is_empty() {
                return;
            }
            // On an error (interrupted, out of memory for now) the entries stay in the queue for the next kick.
            let _ = self.uring.submit();
        }
    }

    /// Takes a completion, if one is there. After the last of several it returns `None` once before it makes the kernel
    /// look for more: a caller that got some submits new commands first, and the same system call serves both.
    #[inline]
    pub(super) fn reap(&mut self) -> Option<RingCompletion> {
        if let Some(done) = self.take() {
            self.took_completion = true;
            return Some(done);
        }
        if std::mem::take(&mut self.took_completion) {
            return None;
        }
        let flags = self.uring.submission();
        let asked = flags.taskrun() || flags.cq_overflow();
        drop(flags);
        if asked || (self.polled && self.free.len() < self.slots.len()) {
            let _ = self.uring.submit();
            return self.take();
        }
        None
    }

    /// Takes a completion from the completion queue.
    #[inline]
    fn take(&mut self) -> Option<RingCompletion> {
        for answer in self.uring.completion() {
            let index = cqueue::EntryMarker::user_data(&answer);
            if index == CANCELLATION {
                continue;
            }
            let slot = usize::try_from(index).ok().and_then(|index| self.slots.get_mut(index));
            // The handles are dropped before the caller receives the completion, which may then expect to hold the only
            // ones.
            let Some((slot, work)) = slot.and_then(|slot| slot.work.take().map(|work| (slot, work))) else {
                unreachable!("the kernel completed slot {index}, in which no command is in flight");
            };
            drop(work);
            self.free.push(narrow(index));
            let (result, value) = W::decode(&answer);
            return Some(RingCompletion {
                token: slot.token,
                result: u32::try_from(result).map_err(|_| -result),
                value,
            });
        }
        None
    }

    pub(super) fn wait(&mut self, longest: Option<Nanos>) {
        if !self.uring.completion().is_empty() {
            return;
        }
        // An error here is an interruption or the timeout: the caller polls, finds nothing and waits again.
        let Some(longest) = longest else {
            let _ = self.uring.submit_and_wait(1);
            return;
        };
        if self.uring.params().is_feature_ext_arg() {
            let span = longest.to_duration();
            let limit = types::Timespec::new().sec(span.as_secs()).nsec(span.subsec_nanos());
            let _ = self.uring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&limit));
            return;
        }
        self.kick();
        let limit = longest.to_timespec();
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.descriptor(), PollFlags::IN)], Some(&limit));
    }

    pub(super) fn cancel(&mut self, token: u64) -> bool {
        let index = self.slots.iter().position(|slot| slot.work.is_some() && slot.token == token);
        let Some(index) = index.and_then(|index| u64::try_from(index).ok()) else {
            return false;
        };
        // The kernel must have the command before it can cancel it.
        self.kick();
        if self.uring.submission().is_full() {
            return false;
        }
        let mut entry = W::Entry::from(opcode::AsyncCancel::new(index).build());
        squeue::EntryMarker::set_user_data(&mut entry, CANCELLATION);
        self.push(&entry);
        self.kick();
        true
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the ring's own and stays open as long as the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }
}

/// Sets up a ring, with the flags of newer kernels or without.
fn setup<W: WorkEncoding>(
    entries: u32,
    polled: bool,
    newer: bool,
) -> io::Result<IoUring<W::Entry, W::Answer>> {
    let mut builder = IoUring::<W::Entry, W::Answer>::builder();
    builder.setup_cqsize(entries * 2);
    if newer {
        builder.setup_submit_all();
    }
    if polled {
        builder.setup_iopoll();
    } else if newer {
        builder.setup_coop_taskrun().setup_taskrun_flag();
    }
    builder.build(entries)
}

/// Collects the addresses of extents.
pub(super) fn collect_vectors(extents: &[MemoryExtent], vectors: &mut Vec<IoVector>) {
    vectors.clear();
    vectors.extend(extents.iter().map(|extent| IoVector { address: extent.address(), bytes: extent.bytes }));
}

impl<W: WorkEncoding> Drop for UringEngine<W> {
    fn drop(&mut self) {
        let mut failures = 0;
        while self.free.len() < self.slots.len() {
            match self.uring.submit_and_wait(1) {
                Ok(_) => failures = 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => failures += 1,
            }
            while self.take().is_some() {}
            if failures > FAILURES_MAX {
                // The kernel neither completes nor releases the commands. Memory that it may still write must never be
                // reused.
                self.slots.drain(..).for_each(leak);
                return;
            }
        }
    }
}

#[expect(clippy::mem_forget, reason = "the kernel may still write this memory")]
fn leak<W>(slot: RingSlot<W>) {
    std::mem::forget(slot);
}

impl<W: WorkEncoding> Debug for UringEngine<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (file, slots) = (self.file.as_raw_fd(), self.slots.len());
        write!(f, "UringEngine(file {file}, {} of {slots} in flight)", slots - self.free.len())
    }
}
