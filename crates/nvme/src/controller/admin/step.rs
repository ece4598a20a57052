//! What an admin command comes to.
//!
//! In: nothing. Out: the vocabulary between the controller and whoever owns queues, memory and the device. Invariant: each
//! step is answered by exactly one completion; only [`AdminStep::Held`] gets it from
//! [`Controller::take_async_event`](super::Controller::take_async_event).

use crate::controller::admin::subsystem::NamespaceFormat;
use crate::controller::queue::QueueId;
use crate::controller::schedule::Priority;
use crate::spec::status::Status;

/// Data that comes with an admin command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminData {
    /// None.
    None,
    /// So many bytes from the host, to be handed to [`Controller::admin`](super::Controller::admin).
    FromHost(u32),
    /// At most so many bytes to the host, which come with the answer.
    ToHost(u32),
}

/// The completion of an admin command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminAnswer {
    /// Dword 0.
    pub result: u32,
    /// The status.
    pub status: Status,
    /// Bytes for the host, on success; never more than [`AdminData::ToHost`] said.
    pub data: Vec<u8>,
}

impl AdminAnswer {
    /// Success and nothing else.
    pub const SUCCESS: Self = Self::with_status(Status::SUCCESS);

    /// A status and nothing else.
    #[must_use]
    pub const fn with_status(status: Status) -> Self {
        Self { result: 0, status, data: Vec::new() }
    }

    /// Success with dword 0.
    #[must_use]
    pub const fn with_result(result: u32) -> Self {
        Self { result, status: Status::SUCCESS, data: Vec::new() }
    }

    /// Success with data.
    #[must_use]
    pub const fn with_data(data: Vec<u8>) -> Self {
        Self { result: 0, status: Status::SUCCESS, data }
    }
}

/// A completion queue to make. Everything is possible; whether the number is free, the arbiter knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionQueueRequest {
    /// Its number.
    pub id: QueueId,
    /// Where it lies, at a page.
    pub base: u64,
    /// How many slots.
    pub slots: u32,
    /// The vector it interrupts by, if it does.
    pub vector: Option<u16>,
}

/// A submission queue to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmissionQueueRequest {
    /// Its number.
    pub id: QueueId,
    /// The completion queue that answers go to; in range, but it may not exist.
    pub completion: QueueId,
    /// Where it lies, at a page.
    pub base: u64,
    /// How many slots.
    pub slots: u32,
    /// Its class.
    pub priority: Priority,
}

/// A change of namespaces, which takes time. The numbers in it are possible; whether they still are when it is carried out,
/// the subsystem knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceAction {
    /// Make one; dword 0 of the answer is its number. It is attached to no controller.
    Create {
        /// How it is formatted.
        format: NamespaceFormat,
        /// NSZE.
        size: u64,
    },
    /// Remove one, or all ([`NSID_BROADCAST`](crate::spec::identify::NSID_BROADCAST)).
    Delete {
        /// Which.
        nsid: u32,
    },
    /// Remove what one, or all, hold, and format them anew.
    Format {
        /// Which.
        nsid: u32,
        /// Of a block namespace the LBA format.
        index: u8,
    },
    /// Attach one to these controllers.
    Attach {
        /// Which.
        nsid: u32,
        /// To whom.
        controllers: Vec<u16>,
    },
    /// Detach one from these controllers.
    Detach {
        /// Which.
        nsid: u32,
        /// From whom.
        controllers: Vec<u16>,
    },
    /// EDNEK of one, or all, key spaces.
    MissingKey {
        /// Which.
        nsid: u32,
        /// Whether deleting a missing key is an error.
        is_error: bool,
    },
    /// Remove what all hold. Answered when it has begun; the status log says how far it is.
    Sanitize {
        /// Dword 10 of the command.
        command: u32,
    },
    /// Go on after a sanitize operation that failed.
    LeaveSanitizeFailure,
}

/// What must be done for an admin command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminStep {
    /// Nothing more: this is the answer.
    Done(AdminAnswer),
    /// Nothing now: an Asynchronous Event Request that is answered when something happens.
    Held,
    /// Make a completion queue.
    CreateCompletionQueue(CompletionQueueRequest),
    /// Make a submission queue.
    CreateSubmissionQueue(SubmissionQueueRequest),
    /// Remove a completion queue that no submission queue uses.
    DeleteCompletionQueue(QueueId),
    /// Remove a submission queue when all its commands have their completions.
    DeleteSubmissionQueue(QueueId),
    /// Give a command up if that is possible; bit 0 of dword 0 says that it was not.
    Abort {
        /// Its submission queue.
        queue: QueueId,
        /// Its identifier.
        command: u16,
    },
    /// Take doorbells from memory.
    DoorbellBuffer {
        /// Where hosts write doorbells, at a page.
        shadow: u64,
        /// Where the controller says which doorbell it waits for, at a page.
        event_index: u64,
    },
    /// Change namespaces.
    Namespace(NamespaceAction),
}

impl AdminStep {
    pub(super) const fn refused(status: Status) -> Self {
        Self::Done(AdminAnswer::with_status(status))
    }

    pub(super) const fn success() -> Self {
        Self::Done(AdminAnswer::SUCCESS)
    }
}
