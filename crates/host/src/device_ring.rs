//! Commands to a block device, a file or an NVMe namespace, many in flight, on memory that other processes may access
//! too.
//!
//! Input: [`BlockWork`] or [`NvmeWork`], each with a token of the caller's. Output: exactly one [`RingCompletion`] for each
//! accepted command. Invariant: a handle of every extent that the kernel works on is held until the kernel has
//! completed the command, also when the ring is dropped; no reference into such memory is ever made here.
//!
//! The implementation is io_uring, or, where that is refused (containers often do), threads that make the plain system
//! calls. [`DeviceRing::kind`] reports which one is in use.
//!
//! # What this does not do
//! It orders nothing, retries nothing and splits nothing: a transfer may end short, and the caller receives the number
//! of bytes moved.

mod block;
mod nvme;
#[cfg(test)]
mod tests;
mod uring_engine;
mod worker_threads;

pub use block::BlockWork;
pub use nvme::{NvmeCommand, NvmeWork, admin_command, namespace_id};

use crate::clock::Nanos;
use crate::pinning::PinError;
use crate::pinning::uring::BufferTable;
use crate::shared_memory::{OutOfRegion, SharedMemory};
use crate::uring::{RING_ENTRIES_MAX, RingError, RingKind, UringChoice};
use std::fmt;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use uring_engine::{UringEngine, WorkEncoding};
use worker_threads::WorkerThreads;

/// The maximum number of extents of one command.
pub const EXTENTS_MAX: usize = 1_024;
/// The maximum bytes of one extent: the limit of one buffer registration.
pub const EXTENT_BYTES_MAX: usize = 1 << 30;

/// A run of memory that a command moves bytes to or from.
#[derive(Clone, Debug)]
pub struct MemoryExtent {
    /// The memory. The ring holds this handle until the completion.
    pub memory: SharedMemory,
    /// The first byte of the run in the memory.
    pub offset: usize,
    /// The length of the run.
    pub bytes: usize,
    /// The slot under which the memory may be registered. It is used if the ring's table has that memory in it.
    pub slot: Option<u32>,
}

impl MemoryExtent {
    pub(crate) fn address(&self) -> usize {
        self.memory.address() + self.offset
    }
}

/// The memory runs that a command moves.
#[derive(Debug, Default)]
pub enum MemoryExtents {
    /// No data.
    #[default]
    None,
    /// One run.
    One(MemoryExtent),
    /// Several runs, one after the other.
    Several(Vec<MemoryExtent>),
}

impl MemoryExtents {
    /// Returns the runs.
    #[must_use]
    #[inline]
    pub fn all(&self) -> &[MemoryExtent] {
        match self {
            Self::None => &[],
            Self::One(extent) => std::slice::from_ref(extent),
            Self::Several(extents) => extents,
        }
    }
}

/// The completion of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingCompletion {
    /// The caller's token.
    pub token: u64,
    /// For blocks, the bytes moved, which may be fewer than requested. For NVMe, the status field without its phase
    /// bit, 0 for success. Or the kernel's error number.
    pub result: Result<u32, i32>,
    /// For NVMe, dwords 0 and 1 of the completion.
    pub value: u64,
}

/// The reason why a command was not accepted; no [`RingCompletion`] will follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingSubmitError {
    /// As many commands are in flight as the ring was opened for.
    #[error("the ring is full: reap completions before submitting more")]
    Full,
    /// The system refused the thread, or its descriptor, for a command that a polled ring does not take.
    #[error(
        "cannot start a thread for the command, error {errno}: raise the limits on descriptors or threads"
    )]
    Thread {
        /// The kernel's error number.
        errno: i32,
    },
    /// An extent does not lie in its memory.
    #[error(transparent)]
    OutOfRegion(#[from] OutOfRegion),
    /// The command has more than [`EXTENTS_MAX`] extents, an extent exceeds [`EXTENT_BYTES_MAX`], or all together reach
    /// 2 GiB.
    #[error(
        "{extents} runs, {bytes} bytes in total: send at most {EXTENTS_MAX} runs of {EXTENT_BYTES_MAX} bytes"
    )]
    TooLong {
        /// The number of extents.
        extents: usize,
        /// The bytes of all extents.
        bytes: usize,
    },
}

/// The options for opening a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// The maximum number of commands in flight.
    pub depth: usize,
    /// True to poll completions from the device, without interrupts. The device must have poll queues.
    pub polled: bool,
    /// The choice between io_uring and plain system calls.
    pub choice: UringChoice,
    /// Slots in the ring's table of registered buffers; 0 for no table.
    pub registration_slots: u32,
}

/// A kind of command: [`BlockWork`] or [`NvmeWork`].
pub trait DeviceWork: WorkEncoding {}
impl DeviceWork for BlockWork {}
impl DeviceWork for NvmeWork {}

/// Commands in flight on one device.
pub struct DeviceRing<W: DeviceWork> {
    file: Arc<File>,
    backend: RingBackend<W>,
    /// Threads for commands that a polled ring does not take; started with the first such command.
    side_threads: Option<WorkerThreads<W>>,
    depth: usize,
    in_flight: usize,
    polled: bool,
    table: Option<Arc<BufferTable>>,
}

enum RingBackend<W: DeviceWork> {
    Kernel(Box<UringEngine<W>>),
    Plain(WorkerThreads<W>, Option<i32>),
}

impl<W: DeviceWork> DeviceRing<W> {
    /// Opens a ring on an open device.
    ///
    /// # Errors
    /// [`RingError`] when the depth is out of range, the system is out of resources, or polling was requested and
    /// io_uring is refused.
    pub fn open(file: Arc<File>, options: RingOptions) -> Result<Self, RingError> {
        let entries = match u32::try_from(options.depth) {
            Ok(entries) if entries > 0 && options.depth <= RING_ENTRIES_MAX => entries,
            _ => return Err(RingError::Entries { entries: options.depth }),
        };
        let mut refused = None;
        let kernel = match options.choice {
            UringChoice::Auto => match UringEngine::open(Arc::clone(&file), entries, options.polled) {
                Ok(engine) => Some(engine),
                Err(error) if options.polled => return Err(error.into()),
                Err(error) => {
                    refused = error.raw_os_error();
                    None
                }
            },
            UringChoice::Never => None,
        };
        let machine = match kernel {
            Some(engine) => RingBackend::Kernel(Box::new(engine)),
            None => RingBackend::Plain(WorkerThreads::start(Arc::clone(&file), options.depth)?, refused),
        };
        let (depth, polled) = (options.depth, options.polled && matches!(machine, RingBackend::Kernel(_)));
        let mut ring =
            Self { file, backend: machine, side_threads: None, depth, in_flight: 0, polled, table: None };
        // A kernel without buffer tables still moves the bytes.
        ring.table = if options.registration_slots > 0 {
            ring.open_table(options.registration_slots).ok().map(Arc::new)
        } else {
            None
        };
        Ok(ring)
    }

    fn open_table(&self, slots: u32) -> Result<BufferTable, PinError> {
        BufferTable::open(self.uring_descriptor(), slots)
    }

    fn uring_descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.backend {
            RingBackend::Kernel(engine) => Some(engine.descriptor()),
            RingBackend::Plain(..) => None,
        }
    }

    /// Returns the implementation in use.
    #[must_use]
    pub fn kind(&self) -> RingKind {
        match &self.backend {
            RingBackend::Kernel(_) => RingKind::Uring,
            RingBackend::Plain(_, refused) => RingKind::Blocking { refused: *refused },
        }
    }

    /// Returns the table of registered buffers, if one was requested and the kernel supports it.
    #[must_use]
    pub fn table(&self) -> Option<&Arc<BufferTable>> {
        self.table.as_ref()
    }

    /// Returns the number of commands accepted and not yet returned by [`reap`](Self::reap).
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the maximum number of commands in flight.
    #[must_use]
    #[inline]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Accepts a command. It starts at the next [`kick`](Self::kick) or [`wait`](Self::wait) at the latest; earlier
    /// when the device is idle and the batch is long.
    ///
    /// # Errors
    /// [`RingSubmitError`]: nothing happened.
    #[inline]
    pub fn submit(&mut self, token: u64, work: W) -> Result<(), RingSubmitError> {
        if self.in_flight == self.depth {
            return Err(RingSubmitError::Full);
        }
        check_extents(work.extents())?;
        match &mut self.backend {
            RingBackend::Kernel(engine) if !self.polled || work.is_polled() => {
                engine.submit(token, work, self.table.as_deref());
            }
            RingBackend::Kernel(_) => {
                let side = match self.side_threads.take() {
                    Some(side) => side,
                    None => WorkerThreads::start(Arc::clone(&self.file), 1).map_err(thread_error)?,
                };
                self.side_threads.insert(side).submit(token, work);
            }
            RingBackend::Plain(workers, _) => workers.submit(token, work),
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Starts the accepted commands. Never blocks; makes no system call when there are no new ones.
    #[inline]
    pub fn kick(&mut self) {
        if let RingBackend::Kernel(engine) = &mut self.backend {
            engine.kick();
        }
    }

    /// Takes a completion, if one is there. Never blocks; makes a system call only if the kernel requests one, or to
    /// poll the device, and then not on the first empty poll after a completion.
    #[inline]
    pub fn reap(&mut self) -> Option<RingCompletion> {
        if self.in_flight == 0 {
            return None;
        }
        let found = match &mut self.backend {
            RingBackend::Kernel(engine) => engine.reap(),
            RingBackend::Plain(workers, _) => workers.reap(),
        };
        let found = found.or_else(|| self.side_threads.as_mut().and_then(WorkerThreads::reap));
        self.in_flight -= usize::from(found.is_some());
        found
    }

    /// Starts the accepted commands and blocks until a completion may be there, at most for `longest`; returns at once
    /// when nothing is in flight.
    pub fn wait(&mut self, longest: Option<Nanos>) {
        let aside = self.side_threads.as_ref().map_or(0, WorkerThreads::in_flight);
        match &mut self.backend {
            _ if self.in_flight == 0 => {}
            RingBackend::Plain(workers, _) => workers.wait(longest),
            RingBackend::Kernel(engine) if aside == 0 => engine.wait(longest),
            RingBackend::Kernel(engine) => {
                engine.kick();
                if let Some(side) = self.side_threads.as_mut().filter(|_| aside == self.in_flight) {
                    side.wait(longest);
                }
            }
        }
    }

    /// Returns a descriptor that is readable while completions wait for [`reap`](Self::reap); `None` for a polled ring.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.backend {
            RingBackend::Kernel(_) if self.polled => None,
            RingBackend::Kernel(engine) => Some(engine.descriptor()),
            RingBackend::Plain(workers, _) => Some(workers.descriptor()),
        }
    }

    /// Submits a cancellation of the command with this token. Its completion still follows. Returns true if the
    /// cancellation was submitted.
    pub fn cancel(&mut self, token: u64) -> bool {
        match &mut self.backend {
            RingBackend::Kernel(engine) => engine.cancel(token),
            RingBackend::Plain(..) => false,
        }
    }
}

fn thread_error(error: std::io::Error) -> RingSubmitError {
    RingSubmitError::Thread { errno: error.raw_os_error().unwrap_or(libc::EAGAIN) }
}

/// Checks that extents lie in their memory and are few and short enough for one system call.
#[inline]
fn check_extents(extents: &[MemoryExtent]) -> Result<(), RingSubmitError> {
    let mut bytes = 0_usize;
    for extent in extents {
        let end = extent.offset.checked_add(extent.bytes);
        if end.is_none_or(|end| end > extent.memory.bytes()) {
            let region_bytes = extent.memory.bytes();
            return Err(OutOfRegion { offset: extent.offset, bytes: extent.bytes, region_bytes }.into());
        }
        bytes = bytes.saturating_add(extent.bytes);
    }
    let too_long = extents.iter().any(|extent| extent.bytes > EXTENT_BYTES_MAX);
    if too_long || extents.len() > EXTENTS_MAX || bytes >= EXTENT_BYTES_MAX * 2 {
        return Err(RingSubmitError::TooLong { extents: extents.len(), bytes });
    }
    Ok(())
}

impl<W: DeviceWork> fmt::Debug for DeviceRing<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceRing({:?}, {} of {} in flight)", self.kind(), self.in_flight, self.depth)
    }
}
