//! The medium beneath the FTL: pages that are programmed once, in order, after an erase.
//!
//! Input: [`MediaOp`]s, each with a token and, if bytes move, a [`MediaFrame`] that the medium owns until the completion.
//! Output: exactly one [`MediaCompletion`] for every accepted operation, with its frame, also after an error. Invariant: a
//! medium never reorders the programs of one block, and rejects what NAND cannot do ([`NandRule`]).
//!
//! Time is an argument: real media ignore it, simulated media complete by it.

pub mod file;
pub mod geometry;
pub mod memory;
pub mod rules;
pub mod snapshot;
pub mod token;
pub mod unreadable;

use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use headwater_host::uring::RegisteredCounters;
use std::fmt;
use std::path::Path;

pub use geometry::{BlockId, FlashGeometry, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PAGES_PER_BLOCK, PageAddress};
pub use rules::{NandRule, NandRules};

/// The token of one operation in flight; the caller chooses it and the completion returns it unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MediaToken(pub u64);

/// An operation on a medium.
#[derive(Debug)]
pub enum MediaOp {
    /// Reads data and spare of one page into the frame.
    Read {
        /// The page.
        page: PageAddress,
        /// The destination: data at 0, spare at [`PAGE_DATA_BYTES`].
        frame: MediaFrame,
    },
    /// Programs one page from the frame.
    Program {
        /// The page; must be the next one of its block.
        page: PageAddress,
        /// Data at 0, spare at [`PAGE_DATA_BYTES`]. The bytes behind the spare belong to the medium.
        frame: MediaFrame,
    },
    /// Erases one block. Durable after the next flush.
    Erase {
        /// The block.
        block: BlockId,
    },
    /// Reads one commit cell into the frame.
    ReadCell {
        /// The cell.
        cell: CellNumber,
        /// The destination: [`CELL_BYTES`] from 0.
        frame: MediaFrame,
    },
    /// Overwrites one commit cell from the frame. Durable after the next flush; a power cut may tear it.
    WriteCell {
        /// The cell.
        cell: CellNumber,
        /// [`CELL_BYTES`] from 0.
        frame: MediaFrame,
    },
    /// Makes every operation that completed before it durable.
    Flush,
}

/// A commit cell: 4,096 bytes outside of the blocks that are overwritten in place (`docs/formats/medium-2.md`). The cells
/// in front of the blocks come first, then those behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellNumber(pub u16);

impl fmt::Display for CellNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "commit cell {}", self.0)
    }
}

/// Bytes of a commit cell.
pub const CELL_BYTES: usize = PAGE_DATA_BYTES;

/// Commit cells on each side of a new medium.
pub const CELLS_PER_SIDE: u16 = 32;

/// The version of a medium's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MediumVersion {
    /// Read only: `headwater device upgrade` rewrites it.
    One,
    /// The present one (`docs/formats/medium-2.md`).
    #[default]
    Two,
}

/// The state of a page when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// Erased and not programmed since; the frame's bytes are undefined.
    Blank,
    /// Programmed; the frame holds the bytes of the medium, damaged or not.
    Programmed,
}

/// The completion of one operation.
#[derive(Debug)]
pub struct MediaCompletion {
    /// The caller's token.
    pub token: MediaToken,
    /// The operation's frame, if it had one.
    pub frame: Option<MediaFrame>,
    /// [`PageState::Programmed`] for everything except a read of a blank page.
    pub result: Result<PageState, MediaError>,
}

/// The reason why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MediaError {
    /// The caller broke a NAND rule; the medium is not at fault.
    #[error("{rule} at {page}: the translation layer broke a rule of flash, report this bug")]
    Rule {
        /// The rule.
        rule: NandRule,
        /// The page.
        page: PageAddress,
    },
    /// The operating system failed the transfer.
    #[error("input/output error {errno} at {page}: check the disk under the data directory")]
    Io {
        /// The kernel's error number.
        errno: i32,
        /// The page.
        page: PageAddress,
    },
    /// The operating system failed the transfer of a commit cell.
    #[error("input/output error {errno} at {cell}: check the disk under the data directory")]
    Cell {
        /// The kernel's error number.
        errno: i32,
        /// The cell.
        cell: CellNumber,
    },
    /// The page was read, and holds other bytes than were programmed to it.
    #[error("{page} holds other bytes than were written to it: run `headwater device check`")]
    Damaged {
        /// The page.
        page: PageAddress,
    },
    /// The page cannot be read back: the medium itself says that its data is lost. A failed transfer is [`Io`](Self::Io).
    #[error("{page} is unreadable: its data is lost, run `headwater device check`")]
    Unreadable {
        /// The page.
        page: PageAddress,
    },
}

/// An operation that the medium did not accept. Nothing happened, and no completion follows.
pub struct RefusedOp {
    /// The operation, with its frame.
    pub op: MediaOp,
    /// The reason.
    pub reason: RefusalReason,
}

impl fmt::Debug for RefusedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusedOp").field("op", &self.op).field("reason", &self.reason).finish()
    }
}

/// The reason why an operation was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The limit of operations in flight is reached; retry after a completion.
    QueueFull,
    /// The operation breaks a NAND rule or names a page that does not exist.
    Rule(NandRule),
}

/// The guarantees of a medium and its behaviour in a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaTraits {
    /// True if a completed program or erase can be lost until a flush completes.
    pub volatile_cache: bool,
    /// Number of pages before a torn program that may be damaged with it (0: none). The log keeps that many guard pages
    /// between acknowledged pages and the next program.
    pub guard_pages: u8,
    /// Most operations in flight.
    pub queue_max: usize,
    /// True if [`Media::view`] shows every page from the moment its program was accepted.
    pub addressable: bool,
    /// The version of its format.
    pub version: MediumVersion,
    /// True if values may lie in extents.
    pub has_extents: bool,
    /// Number of commit cells in front of the blocks, and behind them.
    pub cells: (u16, u16),
    /// The checksum with which every checksum on the medium begins, so that bytes of another medium are never accepted.
    pub checksum_seed: u32,
}

impl MediaTraits {
    /// Returns the number of commit cells.
    #[must_use]
    pub const fn cell_count(&self) -> u16 {
        self.cells.0 + self.cells.1
    }

    /// Returns the cell of the commit record with this number: even numbers lie in front, odd ones behind.
    ///
    /// # Panics
    /// The medium has no cells on that side, as a medium of version 1.
    #[must_use]
    pub fn cell_of(&self, number: u64) -> CellNumber {
        let (front, tail) = self.cells;
        let (first, count) = if number.is_multiple_of(2) { (0, front) } else { (front, tail) };
        let at = number / 2 % u64::from(count);
        CellNumber(first + u16::try_from(at).expect("a remainder of a 16-bit number"))
    }
}

/// A flash medium, real or simulated.
pub trait Media {
    /// Returns the shape of the medium; it never changes.
    fn geometry(&self) -> FlashGeometry;

    /// Returns the guarantees of the medium; they never change.
    fn traits(&self) -> MediaTraits;

    /// Submits an operation. `Ok` means that exactly one [`MediaCompletion`] follows; `Err` means that none follows.
    ///
    /// # Errors
    /// [`RefusedOp`] returns the operation with the reason.
    fn submit(&mut self, token: MediaToken, op: MediaOp, now: Nanos) -> Result<(), RefusedOp>;

    /// Sets whether the medium may carry out the next flushes on the calling thread, which waits for them then. At the
    /// beginning it may not. A medium that gains nothing by it ignores it.
    fn allow_blocking_flush(&mut self, is_allowed: bool) {
        let _ = is_allowed;
    }

    /// Appends every completion that is ready at `now` to `done`. Never blocks, but for a
    /// [flush](Self::allow_blocking_flush) that may.
    fn poll(&mut self, now: Nanos, done: &mut Vec<MediaCompletion>);

    /// Waits until a completion is ready and returns the time then; simulated media return the time of their next
    /// event. Returns `now` at once when nothing is in flight.
    fn wait(&mut self, now: Nanos) -> Nanos;

    /// Waits until `until` while nothing is in flight, and returns the time then. The default suits media with virtual
    /// time, which need not wait.
    fn wait_until(&mut self, now: Nanos, until: Nanos) -> Nanos {
        now.max(until)
    }

    /// Returns the time of the next completion on media with virtual time, and of the next attempt of a write that found
    /// no space on every medium; `None` otherwise.
    fn next_event(&self) -> Option<Nanos> {
        None
    }

    /// Returns the number of operations that were accepted and are not completed.
    fn in_flight(&self) -> usize;

    /// Returns the bytes of a programmed page in place (data, then spare) on a medium that the CPU can address. `None`
    /// if the page is blank or the medium is not addressable; the caller reads the page then.
    fn view(&self, page: PageAddress) -> Option<&[u8]> {
        let _ = page;
        None
    }

    /// Returns the last write that found no space beneath the medium, until a write succeeds. The medium repeats it; its
    /// completion follows when there is space. Writes that are submitted after it wait behind it.
    fn lack_of_space(&self) -> Option<MediaError> {
        None
    }

    /// Returns the number of copies of the medium's own structures that were damaged when it was opened, and of which other
    /// copies hold the same.
    fn damaged_copies(&self) -> u64 {
        0
    }

    /// Returns the memory of frames that the medium has registered with a ring, so that transfers past the page cache pin no pages.
    fn registered_memory(&self) -> RegisteredCounters {
        RegisteredCounters::default()
    }

    /// Returns the file beneath a page and the offset of the page in it, in bytes; `None` on media without a file.
    fn file_place(&self, page: PageAddress) -> Option<(&Path, u64)> {
        let _ = page;
        None
    }

    /// Returns a descriptor that becomes readable when [`poll`](Self::poll) has completions, for the core to sleep on.
    fn wake_descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}
