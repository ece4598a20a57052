//! The medium under the translation layer: pages that are programmed once, in order, after an erase.
//!
//! In: [`MediaOp`]s, each with a token and, where bytes move, a [`Frame`] that the media owns until it answers.
//! Out: exactly one [`MediaDone`] for every accepted operation, frame included, error or not.
//! Invariant: a media never reorders the programs of one block, and refuses what NAND cannot do ([`NandRule`]).
//!
//! Time is an argument: real media ignore it, simulated media complete by it.

pub mod file;
pub mod geometry;
pub mod memory;
pub mod rules;

use headwater_dma::frame::Frame;
use headwater_host::clock::Nanos;
use std::fmt;

pub use geometry::{BlockId, Geometry, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PAGES_PER_BLOCK, PageAddress};
pub use rules::{NandRule, NandRules};

/// Names one operation in flight; chosen by the caller, returned untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MediaToken(pub u64);

/// What a media is asked to do.
#[derive(Debug)]
pub enum MediaOp {
    /// Read data and spare of one page into the frame.
    Read {
        /// Which page.
        page: PageAddress,
        /// Where the bytes go: data at 0, spare at [`PAGE_DATA_BYTES`].
        frame: Frame,
    },
    /// Program one page from the frame.
    Program {
        /// Which page; must be the next one of its block.
        page: PageAddress,
        /// Data at 0, spare at [`PAGE_DATA_BYTES`]. The bytes behind the spare belong to the media.
        frame: Frame,
    },
    /// Erase one block. Durable after the next flush.
    Erase {
        /// Which block.
        block: BlockId,
    },
    /// Make every operation completed before this one durable.
    Flush,
}

/// What a page held when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// Erased and not programmed since; the frame's bytes mean nothing.
    Blank,
    /// Programmed; the frame holds the bytes as the media has them, damaged or not.
    Programmed,
}

/// The answer to one operation.
#[derive(Debug)]
pub struct MediaDone {
    /// The caller's token.
    pub token: MediaToken,
    /// The frame that went in, if one did.
    pub frame: Option<Frame>,
    /// [`PageState::Programmed`] for everything but a read of a blank page.
    pub result: Result<PageState, MediaError>,
}

/// Why a media could not do what it accepted or was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MediaError {
    /// The caller broke a rule of NAND. Never the medium's fault.
    #[error("{rule} at {page}: the translation layer asked for what flash cannot do")]
    Rule {
        /// Which rule.
        rule: NandRule,
        /// Where.
        page: PageAddress,
    },
    /// The operating system refused the transfer.
    #[error("input/output error {errno} at {page}: check the disk under the data directory")]
    Io {
        /// The kernel's number.
        errno: i32,
        /// Where.
        page: PageAddress,
    },
    /// The page cannot be read back.
    #[error("{page} is unreadable: its data is lost, run `headwater device check`")]
    Unreadable {
        /// Where.
        page: PageAddress,
    },
}

/// An operation the media did not accept; nothing happened and no completion will follow.
pub struct Refused {
    /// The operation, frame included.
    pub op: MediaOp,
    /// Why.
    pub reason: RefusedReason,
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("op", &self.op).field("reason", &self.reason).finish()
    }
}

/// Why an operation was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedReason {
    /// As many operations are in flight as the media takes; ask again after a completion.
    QueueFull,
    /// The operation breaks a rule of NAND or names a page that does not exist.
    Rule(NandRule),
}

/// What a media promises and what it may do in a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaTraits {
    /// Whether a completed program or erase can still be lost until a flush completes.
    pub volatile_cache: bool,
    /// How many pages behind a torn program may be damaged with it (0: none). The log keeps that many guard pages
    /// between what is acknowledged and what is written next.
    pub guard_pages: u8,
    /// Most operations in flight.
    pub queue_max: usize,
    /// Whether [`Media::view`] shows every page from the moment its program was accepted.
    pub addressable: bool,
}

/// Flash, real or simulated.
pub trait Media {
    /// Shape of the medium; never changes.
    fn geometry(&self) -> Geometry;

    /// Promises of the medium; never change.
    fn traits(&self) -> MediaTraits;

    /// Hands an operation over. `Ok` means exactly one [`MediaDone`] will follow; `Err` means none will.
    ///
    /// # Errors
    /// [`Refused`] gives the operation back with the reason.
    fn submit(&mut self, token: MediaToken, op: MediaOp, now: Nanos) -> Result<(), Refused>;

    /// Appends every answer that is ready at `now` to `done`. Never blocks.
    fn poll(&mut self, now: Nanos, done: &mut Vec<MediaDone>);

    /// Blocks until an answer is ready and returns the time then; simulated media return the time of their next event.
    /// Returns `now` at once when nothing is in flight.
    fn wait(&mut self, now: Nanos) -> Nanos;

    /// When the next answer is due, for media that live in virtual time; `None` for the others.
    fn next_event(&self) -> Option<Nanos> {
        None
    }

    /// Operations accepted and not yet answered.
    fn in_flight(&self) -> usize;

    /// The bytes of a programmed page where they lie (data, then spare), for media the CPU can address. `None` when
    /// the page is blank or the media cannot be addressed; then read it.
    fn view(&self, page: PageAddress) -> Option<&[u8]> {
        let _ = page;
        None
    }

    /// A descriptor that becomes readable when [`poll`](Self::poll) has something, for the core to sleep on.
    fn wake_descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}
