//! Commands to a block device, a file or an NVMe namespace, many at a time, on memory that others may touch too.
//!
//! In: [`BlockWork`] or [`NvmeWork`], each with a token of the caller's. Out: exactly one [`Done`] for each that was
//! accepted. Invariant: of every extent that the kernel works on a handle is held until the kernel has answered, dropping the
//! ring included; no reference into such memory is ever made here.
//!
//! Behind it stands io_uring, or, where that is refused (containers often do), threads that make the plain system calls.
//! Which one was found is told by [`DeviceRing::kind`].
//!
//! # What this does not do
//! It orders nothing, retries nothing and splits nothing: a transfer may end short, and the caller sees how far it came.

mod block;
mod engine;
mod nvme;
#[cfg(test)]
mod tests;
mod workers;

pub use block::BlockWork;
pub use nvme::{NvmeCommand, NvmeWork, admin_command, namespace_of};

use crate::clock::Nanos;
use crate::foreign::{Foreign, OutOfRegion};
use crate::pinning::PinError;
use crate::pinning::uring::BufferTable;
use crate::uring::{RING_ENTRIES_MAX, RingError, RingKind, UringChoice};
use engine::{Engine, Wire};
use std::fmt;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use workers::Workers;

/// Most extents of one command.
pub const EXTENTS_MAX: usize = 1_024;
/// Most bytes of one extent: what one registration takes.
pub const EXTENT_BYTES_MAX: usize = 1 << 30;

/// A run of memory that a command moves bytes to or from.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The memory. The ring holds this handle until the answer.
    pub memory: Foreign,
    /// Where in it the run starts.
    pub offset: usize,
    /// How long it is.
    pub bytes: usize,
    /// The number under which the memory may be registered. It is used where the ring's table has it so.
    pub slot: Option<u32>,
}

impl Extent {
    pub(crate) fn address(&self) -> usize {
        self.memory.address() + self.offset
    }
}

/// What a command moves.
#[derive(Debug, Default)]
pub enum Extents {
    /// Nothing.
    #[default]
    None,
    /// One run.
    One(Extent),
    /// Several runs, one after the other.
    Several(Vec<Extent>),
}

impl Extents {
    /// The runs.
    #[must_use]
    #[inline]
    pub fn all(&self) -> &[Extent] {
        match self {
            Self::None => &[],
            Self::One(extent) => std::slice::from_ref(extent),
            Self::Several(extents) => extents,
        }
    }
}

/// The answer to one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The caller's name for it.
    pub token: u64,
    /// Blocks: bytes moved, which may be fewer than asked. NVMe: the status field without its phase bit, 0 for success. Or the
    /// kernel's error number.
    pub result: Result<u32, i32>,
    /// NVMe: dwords 0 and 1 of the completion.
    pub value: u64,
}

/// Why a command was not accepted; no [`Done`] will follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// As many commands are in flight as the ring was opened for.
    #[error("as many commands are in flight as the ring was opened for")]
    Full,
    /// An extent does not lie in its memory.
    #[error(transparent)]
    OutOfRegion(#[from] OutOfRegion),
    /// More extents than [`EXTENTS_MAX`], or more bytes in one than [`EXTENT_BYTES_MAX`], or in all than 2 GiB.
    #[error(
        "{extents} runs of {bytes} bytes together: send at most {EXTENTS_MAX} runs of {EXTENT_BYTES_MAX} bytes"
    )]
    TooLong {
        /// How many extents.
        extents: usize,
        /// Bytes in all.
        bytes: usize,
    },
}

/// What a ring is opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingWish {
    /// Commands in flight.
    pub depth: usize,
    /// Completions are polled from the device, without interrupts. The device has to have queues for that.
    pub polled: bool,
    /// Whether to ask for io_uring at all.
    pub choice: UringChoice,
    /// Numbers of its table of registered buffers; 0 for none.
    pub slots: u32,
}

/// One kind of commands: [`BlockWork`] or [`NvmeWork`].
pub trait Work: Wire {}
impl Work for BlockWork {}
impl Work for NvmeWork {}

/// Commands in flight on one device.
pub struct DeviceRing<W: Work> {
    file: Arc<File>,
    machine: Machine<W>,
    /// For what a polled ring does not take; started with the first of it.
    side: Option<Workers<W>>,
    depth: usize,
    in_flight: usize,
    polled: bool,
    table: Option<Arc<BufferTable>>,
}

enum Machine<W: Work> {
    Kernel(Box<Engine<W>>),
    Plain(Workers<W>, Option<i32>),
}

impl<W: Work> DeviceRing<W> {
    /// A ring on an open device.
    ///
    /// # Errors
    /// [`RingError`] when the depth is out of range, the system has no room, or polling was wished for and io_uring is
    /// refused.
    pub fn open(file: Arc<File>, wish: RingWish) -> Result<Self, RingError> {
        let entries = match u32::try_from(wish.depth) {
            Ok(entries) if entries > 0 && wish.depth <= RING_ENTRIES_MAX => entries,
            _ => return Err(RingError::Entries { entries: wish.depth }),
        };
        let mut refused = None;
        let kernel = match wish.choice {
            UringChoice::Auto => match Engine::open(Arc::clone(&file), entries, wish.polled) {
                Ok(engine) => Some(engine),
                Err(error) if wish.polled => return Err(error.into()),
                Err(error) => {
                    refused = error.raw_os_error();
                    None
                }
            },
            UringChoice::Never => None,
        };
        let machine = match kernel {
            Some(engine) => Machine::Kernel(Box::new(engine)),
            None => Machine::Plain(Workers::start(Arc::clone(&file), wish.depth)?, refused),
        };
        let (depth, polled) = (wish.depth, wish.polled && matches!(machine, Machine::Kernel(_)));
        let mut ring = Self { file, machine, side: None, depth, in_flight: 0, polled, table: None };
        // A kernel without tables moves the bytes all the same.
        ring.table = if wish.slots > 0 { ring.open_table(wish.slots).ok().map(Arc::new) } else { None };
        Ok(ring)
    }

    fn open_table(&self, slots: u32) -> Result<BufferTable, PinError> {
        BufferTable::open(self.uring_descriptor(), slots)
    }

    fn uring_descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.machine {
            Machine::Kernel(engine) => Some(engine.descriptor()),
            Machine::Plain(..) => None,
        }
    }

    /// Which machinery was found.
    #[must_use]
    pub fn kind(&self) -> RingKind {
        match &self.machine {
            Machine::Kernel(_) => RingKind::Uring,
            Machine::Plain(_, refused) => RingKind::Blocking { refused: *refused },
        }
    }

    /// The table of registered buffers, if it was wished for and the kernel has such.
    #[must_use]
    pub fn table(&self) -> Option<&Arc<BufferTable>> {
        self.table.as_ref()
    }

    /// Commands accepted and not yet given back by [`reap`](Self::reap).
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Most commands in flight.
    #[must_use]
    #[inline]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Accepts a command. It starts at the next [`kick`](Self::kick) or [`wait`](Self::wait) at the latest; before that, when a
    /// device with nothing to do may as well begin with a long batch.
    ///
    /// # Errors
    /// [`Unfit`]: nothing happened.
    #[inline]
    pub fn submit(&mut self, token: u64, work: W) -> Result<(), Unfit> {
        if self.in_flight == self.depth {
            return Err(Unfit::Full);
        }
        check(work.extents())?;
        match &mut self.machine {
            Machine::Kernel(engine) if !self.polled || work.polls() => {
                engine.submit(token, work, self.table.as_deref());
            }
            Machine::Kernel(_) => {
                let side = match self.side.take() {
                    Some(side) => side,
                    None => Workers::start(Arc::clone(&self.file), 1).map_err(|_| Unfit::Full)?,
                };
                self.side.insert(side).submit(token, work);
            }
            Machine::Plain(workers, _) => workers.submit(token, work),
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Starts what was accepted. Never blocks; no system call when nothing is new.
    #[inline]
    pub fn kick(&mut self) {
        if let Machine::Kernel(engine) = &mut self.machine {
            engine.kick();
        }
    }

    /// Takes an answer, if one is there. Never blocks; a system call only if the kernel asks for one, or to poll the device, and
    /// then not at the first look behind an answer.
    #[inline]
    pub fn reap(&mut self) -> Option<Done> {
        if self.in_flight == 0 {
            return None;
        }
        let found = match &mut self.machine {
            Machine::Kernel(engine) => engine.reap(),
            Machine::Plain(workers, _) => workers.reap(),
        };
        let found = found.or_else(|| self.side.as_mut().and_then(Workers::reap));
        self.in_flight -= usize::from(found.is_some());
        found
    }

    /// Starts what was accepted and blocks until an answer may be there, at most for `longest`; returns at once when none can
    /// come.
    pub fn wait(&mut self, longest: Option<Nanos>) {
        let aside = self.side.as_ref().map_or(0, Workers::in_flight);
        match &mut self.machine {
            _ if self.in_flight == 0 => {}
            Machine::Plain(workers, _) => workers.wait(longest),
            Machine::Kernel(engine) if aside == 0 => engine.wait(longest),
            Machine::Kernel(engine) => {
                engine.kick();
                if let Some(side) = self.side.as_mut().filter(|_| aside == self.in_flight) {
                    side.wait(longest);
                }
            }
        }
    }

    /// A descriptor that is readable while answers wait for [`reap`](Self::reap). A ring that is polled has none.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.machine {
            Machine::Kernel(_) if self.polled => None,
            Machine::Kernel(engine) => Some(engine.descriptor()),
            Machine::Plain(workers, _) => Some(workers.descriptor()),
        }
    }

    /// Asks the kernel to give up what was submitted under the token. Its answer comes all the same. Says whether there was
    /// anybody to ask.
    pub fn cancel(&mut self, token: u64) -> bool {
        match &mut self.machine {
            Machine::Kernel(engine) => engine.cancel(token),
            Machine::Plain(..) => false,
        }
    }
}

/// Whether extents lie in their memory and are few and short enough for one system call.
#[inline]
fn check(extents: &[Extent]) -> Result<(), Unfit> {
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
        return Err(Unfit::TooLong { extents: extents.len(), bytes });
    }
    Ok(())
}

impl<W: Work> fmt::Debug for DeviceRing<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceRing({:?}, {} of {} in flight)", self.kind(), self.in_flight, self.depth)
    }
}
