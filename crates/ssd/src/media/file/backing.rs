//! The file beneath a flash medium: blocking access while it is created and opened, transfers while it is open.
//!
//! Input: offsets, bytes, transfers. Output: bytes and completions. Invariant: a medium touches its file only through
//! these traits, so a simulated file shows everything that the medium depends on. [`HostRing`] is the file of the
//! operating system; the simulator has another.

use headwater_host::clock::{Clock, Nanos};
use headwater_host::file::FileMode;
use headwater_host::uring::{FileRing, FileTransfer, FinishedTransfer, RegisteredCounters, RejectedTransfer};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

/// Blocking access to the bytes of a file, for its creation and its opening.
pub trait StartupFile {
    /// Returns the length of the file in bytes.
    ///
    /// # Errors
    /// The file cannot be examined.
    fn length(&self) -> io::Result<u64>;

    /// Reads the whole range of `bytes` from `offset`.
    ///
    /// # Errors
    /// The range cannot be read, or the file ends within it.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// The range cannot be written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes every write and the length durable.
    ///
    /// # Errors
    /// Nothing is known about the writes since the last sync.
    fn sync(&self) -> io::Result<()>;
}

impl StartupFile for File {
    fn length(&self) -> io::Result<u64> {
        self.metadata().map(|found| found.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Transfers in flight on one open file. It orders nothing; a sync covers the transfers that were returned by
/// [`poll`](Self::poll) before it was submitted.
pub trait TransferRing {
    /// Returns the number of transfers accepted and not yet returned by [`poll`](Self::poll).
    fn in_flight(&self) -> usize;

    /// Returns the number of transfers that would be accepted now.
    fn room(&self) -> usize;

    /// Accepts a transfer; exactly one completion follows. It starts at the next [`kick`](Self::kick),
    /// [`poll`](Self::poll) or [`wait`](Self::wait).
    ///
    /// # Errors
    /// [`RejectedTransfer`] returns the transfer with the reason; no completion follows.
    fn submit(&mut self, id: u64, transfer: FileTransfer) -> Result<(), RejectedTransfer>;

    /// Starts the accepted transfers. Never blocks.
    fn kick(&mut self);

    /// Starts the accepted transfers and appends every completion that is ready at `now`. Never blocks.
    fn poll(&mut self, now: Nanos, done: &mut Vec<FinishedTransfer>);

    /// Starts the accepted transfers and waits until a completion is there; returns at once when none is in flight.
    /// Returns the time then: of the completion on a ring with virtual time, `now` on every other ring.
    fn wait(&mut self, now: Nanos) -> Nanos;

    /// Makes all completed writes durable on this thread, which waits for it, and returns how long it took. `None` on a
    /// ring that does so only by a transfer.
    fn sync_now(&mut self) -> Option<(Result<(), i32>, Nanos)> {
        None
    }

    /// Returns the time that the ring has reached, on a ring with virtual time.
    fn virtual_now(&self) -> Option<Nanos> {
        None
    }

    /// Returns the time of the next completion, on a ring with virtual time.
    fn next_event(&self) -> Option<Nanos> {
        None
    }

    /// Returns a descriptor that is readable while completions wait for [`poll`](Self::poll).
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the memory of buffers that the ring has registered.
    fn registered_memory(&self) -> RegisteredCounters {
        RegisteredCounters::default()
    }
}

/// The ring of a file of the operating system, with the lock that keeps other processes out.
#[derive(Debug)]
pub struct HostRing {
    // Dropped before the lock: the drop waits for transfers in flight.
    pub(super) ring: FileRing,
    pub(super) mode: FileMode,
    /// The open file that holds the lock.
    pub(super) lock: File,
    pub(super) clock: Clock,
}

impl TransferRing for HostRing {
    fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    fn room(&self) -> usize {
        self.ring.room()
    }

    fn submit(&mut self, id: u64, transfer: FileTransfer) -> Result<(), RejectedTransfer> {
        self.ring.submit(id, transfer)
    }

    fn kick(&mut self) {
        self.ring.kick();
    }

    fn poll(&mut self, _now: Nanos, done: &mut Vec<FinishedTransfer>) {
        self.ring.poll(done);
    }

    fn wait(&mut self, now: Nanos) -> Nanos {
        self.ring.wait();
        now
    }

    fn sync_now(&mut self) -> Option<(Result<(), i32>, Nanos)> {
        let start = self.clock.now();
        let result = self.ring.sync_data();
        Some((result, self.clock.now().since(start)))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.descriptor())
    }

    fn registered_memory(&self) -> RegisteredCounters {
        self.ring.registered()
    }
}
