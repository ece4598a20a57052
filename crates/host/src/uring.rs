//! Reads, writes and syncs of one file, many in flight, with buffers that are owned while the kernel works on them.
//!
//! Input: [`FileTransfer`]s, each with an id of the caller's. Output: exactly one [`FinishedTransfer`] for each accepted transfer,
//! buffers included, errors included. Invariant: no buffer of an accepted transfer can be accessed, moved out or freed
//! before the kernel has completed it, also when the ring is dropped.
//!
//! The implementation is io_uring, or, where that is refused (containers often do), a thread that makes the plain
//! system calls; the caller itself copies from and to [a file in memory](FileRing::in_memory). [`FileRing::kind`] reports
//! which one is in use.
//!
//! # What this does not do
//! It orders nothing: the kernel may run transfers in any order. A sync covers the transfers that had completed before
//! it was submitted.

mod blocking;
mod fixed_buffer;
mod kernel;
mod memory;
mod registered_cuts;

#[cfg(test)]
mod tests;

pub use fixed_buffer::FixedBuffer;
pub use registered_cuts::RegisteredCounters;

use crate::mapped_region::SectorBuffer;
use crate::pinning::PinError;
use crate::pinning::uring::BufferTable;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The maximum number of buffers of one transfer.
pub const TRANSFER_BUFFERS_MAX: usize = 256;
/// The maximum number of transfers in flight of one ring.
pub const RING_ENTRIES_MAX: usize = 4_096;

/// A file operation. Several buffers make one contiguous range of the file.
#[derive(Debug)]
pub enum FileTransfer {
    /// A read from the file into the buffers.
    Read {
        /// The first byte of the range.
        offset: u64,
        /// The destination, in order.
        buffers: Vec<SectorBuffer>,
    },
    /// A write of the buffers to the file.
    Write {
        /// The first byte of the range.
        offset: u64,
        /// The source, in order.
        buffers: Vec<SectorBuffer>,
    },
    /// A read from the file into a registered buffer.
    ReadFixed {
        /// The first byte of the range.
        offset: u64,
        /// The destination.
        buffer: FixedBuffer,
    },
    /// A write of a registered buffer to the file.
    WriteFixed {
        /// The first byte of the range.
        offset: u64,
        /// The source.
        buffer: FixedBuffer,
    },
    /// A sync that makes every write durable that had completed before.
    SyncData,
}

impl FileTransfer {
    fn buffer_count(&self) -> usize {
        match self {
            Self::Read { buffers, .. } | Self::Write { buffers, .. } => buffers.len(),
            Self::ReadFixed { .. } | Self::WriteFixed { .. } => 1,
            Self::SyncData => 0,
        }
    }

    fn fixed(&self) -> Option<&FixedBuffer> {
        match self {
            Self::ReadFixed { buffer, .. } | Self::WriteFixed { buffer, .. } => Some(buffer),
            _ => None,
        }
    }

    /// Returns the completion of a transfer that was not executed, with the kernel's number `errno`.
    #[must_use]
    pub fn into_failed(self, id: u64, errno: i32) -> FinishedTransfer {
        let (buffers, fixed) = match self {
            Self::Read { buffers, .. } | Self::Write { buffers, .. } => (buffers, None),
            Self::ReadFixed { buffer, .. } | Self::WriteFixed { buffer, .. } => (Vec::new(), Some(buffer)),
            Self::SyncData => (Vec::new(), None),
        };
        FinishedTransfer { id, buffers, fixed, result: Err(errno) }
    }
}

/// The completion of one transfer.
#[derive(Debug)]
pub struct FinishedTransfer {
    /// The caller's id.
    pub id: u64,
    /// The buffers of the transfer, in order.
    pub buffers: Vec<SectorBuffer>,
    /// The registered buffer of the transfer.
    pub fixed: Option<FixedBuffer>,
    /// The bytes moved, which may be fewer than requested at the end of the file; or the kernel's error number.
    pub result: Result<usize, i32>,
}

/// A transfer that was not accepted; no [`FinishedTransfer`] will follow.
#[derive(Debug)]
pub struct RejectedTransfer {
    /// The transfer, buffers included.
    pub transfer: FileTransfer,
    /// The reason.
    pub reason: RejectedReason,
}

/// The reason why a transfer was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectedReason {
    /// As many transfers are in flight as the ring was opened for.
    Full,
    /// More than [`TRANSFER_BUFFERS_MAX`] buffers.
    TooManyBuffers,
    /// The ring has no table, or its table has no such slot, or the memory in that slot does not contain the whole
    /// buffer.
    NotRegistered,
}

/// The implementation that moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingKind {
    /// io_uring.
    Uring,
    /// Plain system calls, writes and syncs on a thread of their own. Carries the kernel's refusal of io_uring, if it
    /// was tried.
    Blocking {
        /// The error number of the refusal.
        refused: Option<i32>,
    },
    /// Plain system calls of the caller, because the file lies in memory.
    Memory,
}

/// The choice between io_uring and plain system calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UringChoice {
    /// io_uring where the kernel allows it.
    #[default]
    Auto,
    /// Plain system calls.
    Never,
}

/// An error of opening a ring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The number of entries is out of range.
    #[error("cannot open a ring of {entries} entries: request 1 to {RING_ENTRIES_MAX}")]
    Entries {
        /// The requested number.
        entries: usize,
    },
    /// The operating system has no resources for the ring's descriptor or thread.
    #[error("cannot open a ring for the file: raise the limits on descriptors or threads")]
    System(#[from] std::io::Error),
}

/// Transfers in flight on one file.
#[derive(Debug)]
pub struct FileRing {
    backend: FileRingBackend,
    entries_max: usize,
    in_flight: usize,
    table: Option<Arc<BufferTable>>,
}

#[derive(Debug)]
enum FileRingBackend {
    Kernel(Box<kernel::KernelRing>),
    Blocking(blocking::BlockingRing, Option<i32>),
    Memory(memory::MemoryRing),
}

impl FileRing {
    /// Opens a ring on `file` that takes `entries_max` transfers at a time.
    ///
    /// # Errors
    /// The size is out of range, or the system is out of resources.
    pub fn open(file: File, entries_max: usize, choice: UringChoice) -> Result<Self, RingError> {
        let entries = checked_entries(entries_max)?;
        let mut refused = None;
        let kernel = match choice {
            UringChoice::Auto => match kernel::setup(entries) {
                Ok(uring) => Some(uring),
                Err(error) => {
                    refused = error.raw_os_error();
                    None
                }
            },
            UringChoice::Never => None,
        };
        let machine = match kernel {
            Some(uring) => {
                FileRingBackend::Kernel(Box::new(kernel::KernelRing::new(uring, file, entries_max)))
            }
            None => FileRingBackend::Blocking(blocking::BlockingRing::start(file)?, refused),
        };
        Ok(Self { backend: machine, entries_max, in_flight: 0, table: None })
    }

    /// Opens a ring on a file [in memory](crate::file::is_in_memory), which takes `entries_max` transfers at a time. The
    /// thread that polls it carries them out, a part of a long queue at a time.
    ///
    /// # Errors
    /// The size is out of range, or the system is out of descriptors.
    pub fn in_memory(file: File, entries_max: usize) -> Result<Self, RingError> {
        checked_entries(entries_max)?;
        let backend = FileRingBackend::Memory(memory::MemoryRing::open(file)?);
        Ok(Self { backend, entries_max, in_flight: 0, table: None })
    }

    /// Returns the implementation in use.
    #[must_use]
    pub fn kind(&self) -> RingKind {
        match &self.backend {
            FileRingBackend::Kernel(_) => RingKind::Uring,
            FileRingBackend::Blocking(_, refused) => RingKind::Blocking { refused: *refused },
            FileRingBackend::Memory(_) => RingKind::Memory,
        }
    }

    /// Gives the ring a table of `slots` registered buffers, all empty, for [`FileTransfer::ReadFixed`] and
    /// [`FileTransfer::WriteFixed`]. A ring has one table; later calls return the same.
    ///
    /// Where io_uring was refused there is no ring to register with, and those transfers need no table.
    ///
    /// # Errors
    /// [`PinError`] if there is no io_uring, the kernel is older than 5.19, or `slots` is 0 or more than
    /// [`SLOTS_MAX`](crate::pinning::uring::SLOTS_MAX).
    pub fn table(&mut self, slots: u32) -> Result<Arc<BufferTable>, PinError> {
        if let Some(table) = &self.table {
            return Ok(Arc::clone(table));
        }
        let ring = match &self.backend {
            FileRingBackend::Kernel(ring) => Some(ring.descriptor()),
            FileRingBackend::Blocking(..) | FileRingBackend::Memory(_) => None,
        };
        let table = Arc::new(BufferTable::open(ring, slots)?);
        self.table = Some(Arc::clone(&table));
        Ok(table)
    }

    /// Registers the memory that buffers of [`FileTransfer::Read`] and [`FileTransfer::Write`] are cut from, if they are transferred
    /// often, in a [table](Self::table) of `slots` slots: the kernel does not pin their pages for each transfer then. The last
    /// buffer unregisters the memory before it returns it. Memory of the heap is not registered. What is refused is transferred
    /// without; so is everything where there is no io_uring.
    pub fn register_buffers(&mut self, slots: u32) {
        let table = self.table(slots);
        if let (FileRingBackend::Kernel(ring), Ok(table)) = (&mut self.backend, table) {
            ring.register_buffers(table);
        }
    }

    /// Returns the counters of the memory that [`register_buffers`](Self::register_buffers) registers.
    #[must_use]
    pub fn registered(&self) -> RegisteredCounters {
        match &self.backend {
            FileRingBackend::Kernel(ring) => ring.registered_counters(),
            FileRingBackend::Blocking(..) | FileRingBackend::Memory(_) => RegisteredCounters::default(),
        }
    }

    /// Returns the number of transfers accepted and not yet returned by [`poll`](Self::poll).
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the number of transfers that would be accepted now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.entries_max - self.in_flight
    }

    /// Accepts a transfer. It starts at the next [`kick`](Self::kick), [`poll`](Self::poll) or [`wait`](Self::wait).
    ///
    /// # Errors
    /// [`RejectedTransfer`] returns the transfer with the reason.
    pub fn submit(&mut self, id: u64, transfer: FileTransfer) -> Result<(), RejectedTransfer> {
        if transfer.buffer_count() > TRANSFER_BUFFERS_MAX {
            return Err(RejectedTransfer { transfer, reason: RejectedReason::TooManyBuffers });
        }
        if self.room() == 0 {
            return Err(RejectedTransfer { transfer, reason: RejectedReason::Full });
        }
        // The kernel checks too; this check fails before anything is in flight.
        let unknown = |fixed: &FixedBuffer| {
            let known = |table: &Arc<BufferTable>| table.covers(fixed.slot(), fixed.address(), fixed.bytes());
            !self.table.as_ref().is_some_and(known)
        };
        if matches!(self.backend, FileRingBackend::Kernel(_)) && transfer.fixed().is_some_and(unknown) {
            return Err(RejectedTransfer { transfer, reason: RejectedReason::NotRegistered });
        }
        self.in_flight += 1;
        match &mut self.backend {
            FileRingBackend::Kernel(ring) => ring.submit(id, transfer),
            FileRingBackend::Blocking(ring, _) => ring.submit(id, transfer),
            FileRingBackend::Memory(ring) => ring.submit(id, transfer),
        }
        Ok(())
    }

    /// Starts the accepted transfers. Never blocks.
    pub fn kick(&mut self) {
        if let FileRingBackend::Kernel(ring) = &mut self.backend {
            ring.kick();
        }
    }

    /// Starts the accepted transfers and appends every available completion to `done`. Never blocks.
    ///
    /// # Panics
    /// Never: each accepted transfer is completed once.
    pub fn poll(&mut self, done: &mut Vec<FinishedTransfer>) {
        if self.in_flight == 0 {
            return;
        }
        let before = done.len();
        match &mut self.backend {
            FileRingBackend::Kernel(ring) => ring.poll(done),
            FileRingBackend::Blocking(ring, _) => ring.poll(done),
            FileRingBackend::Memory(ring) => ring.poll(done),
        }
        let finished = done.len() - before;
        assert!(finished <= self.in_flight, "{finished} transfers finished, {} in flight", self.in_flight);
        self.in_flight -= finished;
    }

    /// Starts the accepted transfers and blocks until a completion is there; returns at once when none is in flight.
    pub fn wait(&mut self) {
        if self.in_flight == 0 {
            return;
        }
        match &mut self.backend {
            FileRingBackend::Kernel(ring) => ring.wait(),
            FileRingBackend::Blocking(ring, _) => ring.wait(),
            // The next poll completes one.
            FileRingBackend::Memory(_) => {}
        }
    }

    /// Makes all data durable on this thread, which waits for it. No completion follows.
    ///
    /// # Errors
    /// The error number.
    pub fn sync_data(&self) -> Result<(), i32> {
        let file = match &self.backend {
            FileRingBackend::Kernel(ring) => ring.file(),
            FileRingBackend::Blocking(ring, _) => ring.file(),
            FileRingBackend::Memory(ring) => ring.file(),
        };
        blocking::sync_data(file)
    }

    /// Returns a descriptor that is readable while completions wait for [`poll`](Self::poll).
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.backend {
            FileRingBackend::Kernel(ring) => ring.descriptor(),
            FileRingBackend::Blocking(ring, _) => ring.descriptor(),
            FileRingBackend::Memory(ring) => ring.descriptor(),
        }
    }
}

fn checked_entries(entries_max: usize) -> Result<u32, RingError> {
    let entries = u32::try_from(entries_max).ok();
    let fits = |entries: &u32| *entries > 0 && entries_max <= RING_ENTRIES_MAX;
    entries.filter(fits).ok_or(RingError::Entries { entries: entries_max })
}
