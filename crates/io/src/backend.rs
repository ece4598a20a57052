//! The interface that each backend implements: namespaces, registered memory, queues.
//!
//! Input: requests of a [`Device`](crate::Device). Output: [`Buffer`]s and [`QueueTransport`]s. Each backend implements the
//! two traits once; the layers above depend on nothing else of it.

use crate::buffer::Buffer;
use crate::client_namespace::ClientNamespace;
use crate::command::{Command, TransferData};
use crate::error::{IoError, RejectedCommand, SubmitError};
use crate::namespace_request::NamespaceRequest;
use crate::queue::Completion;
use headwater_dma::pool::{Pool, PoolError};
use headwater_host::clock::Nanos;
use headwater_nvme::spec::priority::QueuePriority;
use headwater_nvme::spec::status::Status;
use std::fmt;
use std::os::fd::BorrowedFd;

/// The control plane of a backend. Its methods may block.
pub trait DeviceBackend: Send + fmt::Debug {
    /// Returns the namespaces that this client may use.
    ///
    /// # Errors
    /// [`IoError`] when the device cannot be queried.
    fn namespaces(&mut self) -> Result<Vec<ClientNamespace>, IoError>;

    /// Changes the namespace table durably; creating a namespace ignores `id`. Returns the namespace's number.
    ///
    /// # Errors
    /// [`IoError`] when the device refuses, this client lacks the right, or the backend has no administration.
    fn change_namespace(&mut self, id: u8, change: NamespaceRequest) -> Result<u8, IoError>;

    /// Allocates memory that the device may access: contiguous, page-aligned, from this device's pool. It returns to
    /// the pool when its last handle is dropped. It holds whatever this process last had there.
    ///
    /// # Errors
    /// [`IoError`] when memory is exhausted or a limit is reached.
    fn region(&mut self, bytes: usize) -> Result<Buffer, IoError>;

    /// Returns the pool of that memory: its limits, its statistics, and its wait queue.
    fn pool(&self) -> &Pool;

    /// Converts an error of that pool. A backend that registers memory with its device has the device's reason.
    fn pool_error(&self, error: PoolError) -> IoError {
        error.into()
    }

    /// Maps memory that the device's process makes and lends, contiguous and page-aligned, all zeroes. It stays
    /// registered as long as the backend exists.
    ///
    /// # Errors
    /// [`IoError::Unsupported`] if the device is in no other process; [`IoError`] when memory is exhausted or a limit is
    /// reached.
    fn lent_region(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        let _ = bytes;
        Err(IoError::Unsupported {
            reason: "this device lends no memory; use a buffer of its pool, or open it by attach:".to_owned(),
        })
    }

    /// Returns the most bytes of a value that one command moves, where that is more than the limit of its queues' transfers.
    fn value_bytes_max(&self) -> Option<usize> {
        None
    }

    /// Creates a queue for up to `depth` commands in flight.
    ///
    /// # Errors
    /// [`IoError`] for an invalid depth, or when a limit is reached.
    fn queue(&mut self, depth: u32) -> Result<Box<dyn QueueTransport>, IoError>;

    /// Creates a queue of a priority class, if the device arbitrates by class (NVMe Base 2.0 section 3.4.4.2).
    ///
    /// # Errors
    /// [`IoError::Unsupported`] if it does not; else as [`queue`](Self::queue).
    fn queue_of_class(
        &mut self,
        depth: u32,
        priority: QueuePriority,
    ) -> Result<Box<dyn QueueTransport>, IoError> {
        let (_, _) = (depth, priority);
        Err(IoError::Unsupported {
            reason: "queues of this device have no classes; open an SSD with Headwater's driver and weights="
                .to_owned(),
        })
    }
}

/// The limits of one command on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoLimits {
    /// The most bytes that one command moves.
    pub transfer_bytes_max: usize,
    /// The most buffers of one command; if it is 1, [`TransferData::Gather`] and [`TransferData::Scatter`] are refused.
    pub segments_max: usize,
    /// The alignment of buffer addresses, in bytes.
    pub memory_align: usize,
}

impl IoLimits {
    /// Checks that data are within the limits.
    #[inline]
    pub(crate) fn check(&self, data: &TransferData) -> Result<(), SubmitError> {
        let lies = |buffer: &Buffer| buffer.process_address().is_multiple_of(self.memory_align);
        let buffers = data.buffers();
        if buffers.len() > self.segments_max {
            return Err(SubmitError::TOO_MANY_BUFFERS);
        }
        let what = if data.bytes() > self.transfer_bytes_max {
            "more bytes than the queue's transfer_bytes_max; send several commands"
        } else if !buffers.iter().all(lies) {
            "a buffer is not aligned to the queue's memory_align; take it from the device's pool"
        } else {
            return Ok(());
        };
        Err(SubmitError::Unsupported { what })
    }
}

/// The result of arming a queue's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArmResult {
    /// A completion may already be available: poll again now.
    Ready,
    /// The descriptor becomes readable with the next completion.
    Armed,
}

/// A completion with the buffers of its command.
#[derive(Debug)]
pub struct CompletedCommand {
    /// The result of the command.
    pub completion: Completion,
    /// The data of the command.
    pub data: TransferData,
}

/// A command in flight, as its queue keeps it in the slot whose number the device sees as the command identifier.
#[derive(Debug)]
pub struct CommandContext {
    /// The caller's token.
    pub token: u64,
    /// The buffers that are lent to the device.
    pub data: TransferData,
}

impl CommandContext {
    /// Returns the completion of the command.
    #[must_use]
    #[inline]
    pub fn complete(self, result: u32, status: Status) -> CompletedCommand {
        CompletedCommand { completion: Completion { token: self.token, result, status }, data: self.data }
    }
}

/// The data plane: one queue. It blocks only in [`sleep`](Self::sleep) and while it reconnects to its device.
///
/// The queue holds the data of commands in flight. A queue dropped with commands in flight forgets their buffers
/// ([`TransferData::leak`](crate::command::TransferData::leak)), unless the device has certainly finished with them.
pub trait QueueTransport: Send + fmt::Debug {
    /// Returns the limits of one command.
    fn limits(&self) -> IoLimits;

    /// Accepts a command; the device sees it at [`ring`](Self::ring) or earlier. `Ok` means exactly one completion
    /// follows.
    ///
    /// # Errors
    /// [`RejectedCommand`], with the command: it had no effect.
    fn submit(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand>;

    /// Makes submitted commands visible to the device; cheap when there are none.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone.
    fn ring(&mut self) -> Result<(), IoError>;

    /// Returns the next completion, if there is one.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone or breaks the protocol.
    fn reap(&mut self) -> Result<Option<CompletedCommand>, IoError>;

    /// Rings, then returns the next completion: one call through the trait object where a poll needs both.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone or breaks the protocol.
    fn poll(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        self.ring()?;
        self.reap()
    }

    /// Sleeps until a completion may have arrived, at most for `longest`.
    ///
    /// # Errors
    /// [`IoError`] when the kernel refuses or the device is gone.
    fn sleep(&mut self, timeout: Option<Nanos>) -> Result<(), IoError>;

    /// Returns true if [`sleep`](Self::sleep) also rings, so that both are one system call.
    fn sleep_rings(&self) -> bool {
        false
    }

    /// Returns the descriptor that becomes readable with a completion after [`arm`](Self::arm).
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Rings, and requests that the descriptor become readable with the next completion.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone, or the backend has no descriptor.
    fn arm(&mut self) -> Result<ArmResult, IoError>;

    /// Sends an abort of a command. The command still completes once, and its status tells whether it was aborted.
    ///
    /// # Errors
    /// [`IoError::Unsupported`] if the backend has no abort; [`IoError`] when the device is gone.
    fn cancel(&mut self, token: u64) -> Result<(), IoError> {
        let _ = token;
        Err(abort_unsupported())
    }

    /// Visits the token of every command that is accepted and not yet reaped, to find it or to change it. Not on the path
    /// of a command.
    fn visit_tokens(&mut self, visit: &mut dyn FnMut(&mut u64));

    /// Returns the number of commands accepted and not yet completed.
    fn in_flight(&self) -> u32;

    /// Returns the most commands in flight.
    fn depth(&self) -> u32;
}

/// Returns the error of a device that has no abort.
pub(crate) fn abort_unsupported() -> IoError {
    IoError::Unsupported {
        reason: "commands of this device cannot be cancelled; wait for their completions".to_owned(),
    }
}
