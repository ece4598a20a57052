//! What a backend gives: namespaces, registered memory, queues.
//!
//! In: wishes of a [`Device`](crate::Device). Out: [`Buffer`]s and [`Transport`]s. Each way to a device implements the two
//! traits once; whatever is above knows no other difference.

use crate::attach::admin::NamespaceWish;
use crate::buffer::Buffer;
use crate::command::{Command, Data};
use crate::error::{IoError, Rejected, SubmitError};
use crate::facts::NamespaceFacts;
use crate::queue::Completion;
use headwater_host::clock::Nanos;
use headwater_nvme::controller::Priority;
use std::fmt;
use std::os::fd::BorrowedFd;

/// The control plane of a way to a device. May block.
pub trait Backend: Send + fmt::Debug {
    /// The namespaces that this client may use.
    ///
    /// # Errors
    /// [`IoError`] when the device cannot be asked.
    fn namespaces(&mut self) -> Result<Vec<NamespaceFacts>, IoError>;

    /// Changes the table of namespaces, durable when this returns; `id` is ignored when one is made. Returns its number.
    ///
    /// # Errors
    /// [`IoError`] when the device refuses, this client may not, or this way to a device cannot ask.
    fn change_namespace(&mut self, id: u8, wish: NamespaceWish) -> Result<u8, IoError>;

    /// Memory that the device may touch, in one piece, on a page, of the pool of this device; it goes back to the pool when
    /// the last handle to it is dropped. It holds whatever this process last had there.
    ///
    /// # Errors
    /// [`IoError`] when there is no memory, or a limit is reached.
    fn region(&mut self, bytes: usize) -> Result<Buffer, IoError>;

    /// A queue for up to `depth` commands in flight.
    ///
    /// # Errors
    /// [`IoError`] for an impossible depth, or when a limit is reached.
    fn queue(&mut self, depth: u32) -> Result<Box<dyn Transport>, IoError>;

    /// The same of a class, where the device itself serves its queues by classes (NVMe Base 2.0 section 3.4.4.2).
    ///
    /// # Errors
    /// [`IoError::Refused`] where it does not; else as [`queue`](Self::queue).
    fn queue_of(&mut self, depth: u32, priority: Priority) -> Result<Box<dyn Transport>, IoError> {
        let (_, _) = (depth, priority);
        Err(IoError::Refused {
            reason: "queues of this device have no classes; those of an SSD by our own driver have, opened with weights="
                .to_owned(),
        })
    }
}

/// What one command can be on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes that one command moves.
    pub transfer_bytes_max: usize,
    /// Most buffers of one command; with 1, [`Data::Gather`] and
    /// [`Data::Scatter`] are refused.
    pub segments_max: usize,
    /// What addresses of buffers are a multiple of, in bytes.
    pub memory_align: usize,
}

impl Limits {
    /// Whether data are within them.
    #[inline]
    pub(crate) fn check(&self, data: &Data) -> Result<(), SubmitError> {
        let lies = |buffer: &Buffer| buffer.process_address().is_multiple_of(self.memory_align);
        let buffers = data.buffers();
        let what = if buffers.len() > self.segments_max {
            "more buffers than the queue's segments_max"
        } else if data.bytes() > self.transfer_bytes_max {
            "more bytes than the queue's transfer_bytes_max; send several commands"
        } else if !buffers.iter().all(lies) {
            "a buffer does not lie at a multiple of the queue's memory_align"
        } else {
            return Ok(());
        };
        Err(SubmitError::Unfit { what })
    }
}

/// Whether the descriptor of a queue will say something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Look again now: something may be there.
    Ready,
    /// The descriptor becomes readable with the next completion.
    Waiting,
}

/// A completion, and the buffers of the command that it is of.
#[derive(Debug)]
pub struct Answer {
    /// What became of the command.
    pub completion: Completion,
    /// The data that was submitted.
    pub data: Data,
}

/// The data plane: one queue. Never blocks but in [`sleep`](Self::sleep), and while it finds its device again.
///
/// The data of a command in flight is held by the queue. One that is dropped with commands in flight forgets their buffers
/// ([`Data::forget`](crate::command::Data::forget)), unless the device is certainly done with them.
pub trait Transport: Send + fmt::Debug {
    /// What one command can be.
    fn limits(&self) -> Limits;

    /// Takes a command; the device sees it after [`ring`](Self::ring), or before. `Ok` means exactly one completion will follow.
    ///
    /// # Errors
    /// [`Rejected`], with the command: nothing happened.
    fn submit(&mut self, command: Command, token: u64) -> Result<(), Rejected>;

    /// Shows what was submitted to the device; costs nothing when it has seen all.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone.
    fn ring(&mut self) -> Result<(), IoError>;

    /// Takes the next completion, if one has come.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone or breaks the protocol.
    fn reap(&mut self) -> Result<Option<Answer>, IoError>;

    /// Sleeps until a completion may have come, at most for `longest`.
    ///
    /// # Errors
    /// [`IoError`] when the kernel refuses or the device is gone.
    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError>;

    /// Whether [`sleep`](Self::sleep) rings too, so that both are one system call.
    fn sleep_rings(&self) -> bool {
        false
    }

    /// What is readable once a completion has come, after [`arm`](Self::arm) asked for it.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Rings, and asks for the descriptor to become readable with the next completion.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone, or this way to it has no descriptor.
    fn arm(&mut self) -> Result<Armed, IoError>;

    /// Asks the device to give a command up. It still has its one completion, which says whether it was.
    ///
    /// # Errors
    /// [`IoError::Refused`] where that is not offered; [`IoError`] when the device is gone.
    fn cancel(&mut self, token: u64) -> Result<(), IoError> {
        let _ = token;
        Err(no_cancelling())
    }

    /// Commands accepted and not yet answered.
    fn in_flight(&self) -> u32;

    /// Most commands in flight.
    fn depth(&self) -> u32;
}

/// What a device that gives no command up answers to the wish.
pub(crate) fn no_cancelling() -> IoError {
    IoError::Refused { reason: "commands of this device cannot be cancelled".to_owned() }
}
