//! The outcomes of admin commands.
//!
//! Output: the types between the controller and the owner of queues, memory and the device. Invariant: each step gets
//! exactly one completion; that of [`AdminStep::Held`] comes from
//! [`DeviceController::take_async_event`](super::DeviceController::take_async_event).

use crate::controller::admin::subsystem::NamespaceFormat;
use crate::controller::queue::QueueId;
use crate::spec::priority::QueuePriority;
use crate::spec::status::Status;

/// The data of an admin command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminData {
    /// No data.
    None,
    /// A number of bytes from the host, to pass to [`DeviceController::admin`](super::DeviceController::admin).
    FromHost(u32),
    /// A maximum number of bytes to the host, returned with the completion.
    ToHost(u32),
}

/// The completion of an admin command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminCompletion {
    /// Dword 0 of the completion.
    pub result: u32,
    /// The status of the command.
    pub status: Status,
    /// Bytes for the host, on success; at most [`AdminData::ToHost`].
    pub data: Vec<u8>,
}

impl AdminCompletion {
    /// Success without dword 0 and data.
    pub const SUCCESS: Self = Self::with_status(Status::SUCCESS);

    /// Returns a status without dword 0 and data.
    #[must_use]
    pub const fn with_status(status: Status) -> Self {
        Self { result: 0, status, data: Vec::new() }
    }

    /// Returns success with dword 0.
    #[must_use]
    pub const fn with_result(result: u32) -> Self {
        Self { result, status: Status::SUCCESS, data: Vec::new() }
    }

    /// Returns success with data.
    #[must_use]
    pub const fn with_data(data: Vec<u8>) -> Self {
        Self { result: 0, status: Status::SUCCESS, data }
    }
}

/// A validated request for a completion queue; the arbiter checks that the number is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionQueueRequest {
    /// Its number.
    pub id: QueueId,
    /// Its address, page-aligned.
    pub base: u64,
    /// The number of slots.
    pub slots: u32,
    /// Its interrupt vector, if it has one.
    pub vector: Option<u16>,
}

/// A validated request for a submission queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmissionQueueRequest {
    /// Its number.
    pub id: QueueId,
    /// The completion queue that it posts to; in range, but it may not exist.
    pub completion: QueueId,
    /// Its address, page-aligned.
    pub base: u64,
    /// The number of slots.
    pub slots: u32,
    /// Its priority class.
    pub priority: QueuePriority,
}

/// A change of namespaces, which takes time. Its numbers are validated; the subsystem checks them again when it
/// performs the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceAction {
    /// Create a namespace attached to no controller; dword 0 of the completion is its NSID.
    Create {
        /// The format.
        format: NamespaceFormat,
        /// NSZE.
        size: u64,
    },
    /// Delete one namespace, or all ([`NSID_BROADCAST`](crate::spec::identify::NSID_BROADCAST)).
    Delete {
        /// The NSID.
        nsid: u32,
    },
    /// Erase the contents of one or all namespaces, and format them.
    Format {
        /// The NSID.
        nsid: u32,
        /// The LBA format of a block namespace.
        index: u8,
    },
    /// Attach a namespace to these controllers.
    Attach {
        /// The NSID.
        nsid: u32,
        /// The controllers.
        controllers: Vec<u16>,
    },
    /// Detach a namespace from these controllers.
    Detach {
        /// The NSID.
        nsid: u32,
        /// The controllers.
        controllers: Vec<u16>,
    },
    /// Set EDNEK of one key space or all.
    SetMissingKeyError {
        /// The NSID.
        nsid: u32,
        /// True if deleting a missing key is an error.
        is_error: bool,
    },
    /// Erase the contents of all namespaces. Completed when it has begun; the sanitize log reports its progress.
    Sanitize {
        /// Dword 10 of the command.
        command: u32,
    },
    /// Leave the failure state of a failed sanitize operation.
    LeaveSanitizeFailure,
}

/// The remaining work of an admin command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminStep {
    /// None: this is the completion.
    Done(AdminCompletion),
    /// None for now: an Asynchronous Event Request that is completed when an event occurs.
    Held,
    /// Create a completion queue.
    CreateCompletionQueue(CompletionQueueRequest),
    /// Create a submission queue.
    CreateSubmissionQueue(SubmissionQueueRequest),
    /// Delete a completion queue that no submission queue uses.
    DeleteCompletionQueue(QueueId),
    /// Delete a submission queue when all its commands have their completions.
    DeleteSubmissionQueue(QueueId),
    /// Abort a command if that is possible; bit 0 of dword 0 is set if it was not.
    Abort {
        /// Its submission queue.
        queue: QueueId,
        /// Its identifier.
        command: u16,
    },
    /// Read doorbells from memory.
    DoorbellBuffer {
        /// The page where hosts write doorbells.
        shadow: u64,
        /// The page where the controller writes EventIdx values.
        event_index: u64,
    },
    /// Change namespaces.
    Namespace(NamespaceAction),
}

impl AdminStep {
    pub(super) const fn refused(status: Status) -> Self {
        Self::Done(AdminCompletion::with_status(status))
    }

    pub(super) const fn success() -> Self {
        Self::Done(AdminCompletion::SUCCESS)
    }
}
