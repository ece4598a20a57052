//! Reads, writes and syncs of one file, many at a time, with buffers that are owned while the kernel works on them.
//!
//! In: [`Transfer`]s, each with a name of the caller's. Out: exactly one [`Finished`] for each that was accepted,
//! buffers included, errors included. Invariant: no buffer of an accepted transfer can be touched, moved out or freed
//! by anybody before the kernel has answered, dropping the ring included.
//!
//! Behind it stands io_uring, or, where that is refused (containers often do), a thread that makes the plain system
//! calls. Which one was found is told by [`FileRing::kind`].
//!
//! # What this does not do
//! It orders nothing: transfers run as the kernel likes. A sync covers what had finished before it was handed over.

mod blocking;
mod fixed;
mod kernel;

#[cfg(test)]
mod tests;

pub use fixed::Fixed;

use crate::pinning::PinError;
use crate::pinning::uring::BufferTable;
use crate::region::SectorBuffer;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Most buffers of one transfer.
pub const TRANSFER_BUFFERS_MAX: usize = 256;
/// Most transfers in flight that a ring can be opened for.
pub const RING_ENTRIES_MAX: usize = 4_096;

/// What to do with the file. Several buffers make one contiguous range of it.
#[derive(Debug)]
pub enum Transfer {
    /// Fill the buffers from the file.
    Read {
        /// Where the range starts, in bytes.
        offset: u64,
        /// Where it goes, in order.
        buffers: Vec<SectorBuffer>,
    },
    /// Write the buffers to the file.
    Write {
        /// Where the range starts, in bytes.
        offset: u64,
        /// What is written, in order.
        buffers: Vec<SectorBuffer>,
    },
    /// Fill a registered buffer from the file.
    ReadFixed {
        /// Where the range starts, in bytes.
        offset: u64,
        /// Where it goes.
        buffer: Fixed,
    },
    /// Write a registered buffer to the file.
    WriteFixed {
        /// Where the range starts, in bytes.
        offset: u64,
        /// What is written.
        buffer: Fixed,
    },
    /// Make everything durable that had finished before.
    SyncData,
}

impl Transfer {
    fn buffer_count(&self) -> usize {
        match self {
            Self::Read { buffers, .. } | Self::Write { buffers, .. } => buffers.len(),
            Self::ReadFixed { .. } | Self::WriteFixed { .. } => 1,
            Self::SyncData => 0,
        }
    }

    fn fixed(&self) -> Option<&Fixed> {
        match self {
            Self::ReadFixed { buffer, .. } | Self::WriteFixed { buffer, .. } => Some(buffer),
            _ => None,
        }
    }

    /// The answer to a transfer that did not take place, with the kernel's number `errno`.
    #[must_use]
    pub fn failed(self, id: u64, errno: i32) -> Finished {
        let (buffers, fixed) = match self {
            Self::Read { buffers, .. } | Self::Write { buffers, .. } => (buffers, None),
            Self::ReadFixed { buffer, .. } | Self::WriteFixed { buffer, .. } => (Vec::new(), Some(buffer)),
            Self::SyncData => (Vec::new(), None),
        };
        Finished { id, buffers, fixed, result: Err(errno) }
    }
}

/// The answer to one transfer.
#[derive(Debug)]
pub struct Finished {
    /// The caller's name for it.
    pub id: u64,
    /// The buffers that went in, in order.
    pub buffers: Vec<SectorBuffer>,
    /// The registered buffer that went in.
    pub fixed: Option<Fixed>,
    /// Bytes moved, which may be fewer than asked at the end of the file; or the kernel's error number.
    pub result: Result<usize, i32>,
}

/// A transfer that was not accepted; no [`Finished`] will follow.
#[derive(Debug)]
pub struct Rejected {
    /// The transfer, buffers included.
    pub transfer: Transfer,
    /// Why.
    pub reason: RejectedReason,
}

/// Why a transfer was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectedReason {
    /// As many transfers are in flight as the ring was opened for.
    Full,
    /// More than [`TRANSFER_BUFFERS_MAX`] buffers.
    TooManyBuffers,
    /// The ring has no table, or its table has no such number, or under that number memory in which the buffer does not
    /// lie as a whole.
    NotRegistered,
}

/// Which machinery moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingKind {
    /// io_uring.
    Uring,
    /// Plain system calls, writes and syncs on a thread of their own. Carries the kernel's refusal of io_uring, if it
    /// was asked.
    Blocking {
        /// The error number of the refusal.
        refused: Option<i32>,
    },
}

/// Whether to ask for io_uring at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UringChoice {
    /// Use it where the kernel allows it.
    #[default]
    Auto,
    /// Use plain system calls.
    Never,
}

/// Why a ring could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The request makes no sense.
    #[error("a ring of {entries} entries: ask for 1 to {RING_ENTRIES_MAX}")]
    Entries {
        /// What was asked for.
        entries: usize,
    },
    /// The operating system has no room for the ring's descriptor or thread.
    #[error("cannot open a ring for the file: raise the limits on descriptors or threads")]
    System(#[from] std::io::Error),
}

/// Transfers in flight on one file.
#[derive(Debug)]
pub struct FileRing {
    machine: Machine,
    entries_max: usize,
    in_flight: usize,
    table: Option<Arc<BufferTable>>,
}

#[derive(Debug)]
enum Machine {
    Kernel(Box<kernel::KernelRing>),
    Blocking(blocking::BlockingRing, Option<i32>),
}

impl FileRing {
    /// A ring on `file` that takes `entries_max` transfers at a time.
    ///
    /// # Errors
    /// The size is out of range, or the system has no room.
    pub fn open(file: File, entries_max: usize, choice: UringChoice) -> Result<Self, RingError> {
        let entries = match u32::try_from(entries_max) {
            Ok(entries) if entries > 0 && entries_max <= RING_ENTRIES_MAX => entries,
            _ => return Err(RingError::Entries { entries: entries_max }),
        };
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
            Some(uring) => Machine::Kernel(Box::new(kernel::KernelRing::new(uring, file, entries_max))),
            None => Machine::Blocking(blocking::BlockingRing::start(file)?, refused),
        };
        Ok(Self { machine, entries_max, in_flight: 0, table: None })
    }

    /// Which machinery was found.
    #[must_use]
    pub fn kind(&self) -> RingKind {
        match &self.machine {
            Machine::Kernel(_) => RingKind::Uring,
            Machine::Blocking(_, refused) => RingKind::Blocking { refused: *refused },
        }
    }

    /// Gives the ring a table of `slots` registered buffers, all empty, for [`Transfer::ReadFixed`] and
    /// [`Transfer::WriteFixed`]. A ring has one table; whoever asks again gets the same.
    ///
    /// Where io_uring was refused there is nothing to register with, and those transfers need no table.
    ///
    /// # Errors
    /// [`PinError`] if there is no io_uring, the kernel is older than 5.19, or `slots` is 0 or more than
    /// [`SLOTS_MAX`](crate::pinning::uring::SLOTS_MAX).
    pub fn table(&mut self, slots: u32) -> Result<Arc<BufferTable>, PinError> {
        if let Some(table) = &self.table {
            return Ok(Arc::clone(table));
        }
        let ring = match &self.machine {
            Machine::Kernel(ring) => Some(ring.descriptor()),
            Machine::Blocking(..) => None,
        };
        let table = Arc::new(BufferTable::open(ring, slots)?);
        self.table = Some(Arc::clone(&table));
        Ok(table)
    }

    /// Transfers accepted and not yet given back by [`poll`](Self::poll).
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Transfers that would be accepted now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.entries_max - self.in_flight
    }

    /// Accepts a transfer. It starts at the next [`kick`](Self::kick), [`poll`](Self::poll) or [`wait`](Self::wait).
    ///
    /// # Errors
    /// [`Rejected`] gives the transfer back with the reason.
    pub fn submit(&mut self, id: u64, transfer: Transfer) -> Result<(), Rejected> {
        if transfer.buffer_count() > TRANSFER_BUFFERS_MAX {
            return Err(Rejected { transfer, reason: RejectedReason::TooManyBuffers });
        }
        if self.room() == 0 {
            return Err(Rejected { transfer, reason: RejectedReason::Full });
        }
        // The kernel makes sure as well; here the answer comes before anything is in flight.
        let unknown = |fixed: &Fixed| {
            let known = |table: &Arc<BufferTable>| table.covers(fixed.slot(), fixed.address(), fixed.bytes());
            !self.table.as_ref().is_some_and(known)
        };
        if matches!(self.machine, Machine::Kernel(_)) && transfer.fixed().is_some_and(unknown) {
            return Err(Rejected { transfer, reason: RejectedReason::NotRegistered });
        }
        self.in_flight += 1;
        match &mut self.machine {
            Machine::Kernel(ring) => ring.submit(id, transfer),
            Machine::Blocking(ring, _) => ring.submit(id, transfer),
        }
        Ok(())
    }

    /// Starts what was accepted. Never blocks.
    pub fn kick(&mut self) {
        if let Machine::Kernel(ring) = &mut self.machine {
            ring.kick();
        }
    }

    /// Starts what was accepted and appends every answer that is there to `done`. Never blocks.
    pub fn poll(&mut self, done: &mut Vec<Finished>) {
        if self.in_flight == 0 {
            return;
        }
        let before = done.len();
        match &mut self.machine {
            Machine::Kernel(ring) => ring.poll(done),
            Machine::Blocking(ring, _) => ring.poll(done),
        }
        self.in_flight -= done.len() - before;
    }

    /// Starts what was accepted and blocks until an answer is there, or returns at once when none can come.
    pub fn wait(&mut self) {
        if self.in_flight == 0 {
            return;
        }
        match &mut self.machine {
            Machine::Kernel(ring) => ring.wait(),
            Machine::Blocking(ring, _) => ring.wait(),
        }
    }

    /// A descriptor that is readable while answers wait for [`poll`](Self::poll).
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.machine {
            Machine::Kernel(ring) => ring.descriptor(),
            Machine::Blocking(ring, _) => ring.descriptor(),
        }
    }
}
