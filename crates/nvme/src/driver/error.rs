//! Causes of resets, causes of a controller's end, and errors of requests.
//!
//! Input: observations of the driver. Output: errors with their values. Invariant: a dead controller has a reason, and
//! the first reason is kept.

use super::capabilities::CapabilityFault;
use super::io_queue::QueueFault;
use super::pci_function::PciFunctionError;
use crate::queue_pair::CommandId;
use crate::spec::status::Status;

/// The cause of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResetCause {
    /// CSTS.CFS.
    #[error("the controller reports a fatal status (CSTS {status:#x})")]
    Fatal {
        /// CSTS.
        status: u32,
    },
    /// CSTS.RDY became 0 without a request of the driver.
    #[error("the controller is unexpectedly not ready (CSTS {status:#x})")]
    NotReady {
        /// CSTS.
        status: u32,
    },
    /// The controller did not become ready in time.
    #[error("the controller did not become ready in time (CSTS {status:#x})")]
    EnableTimeout {
        /// CSTS.
        status: u32,
    },
    /// An admin command timed out.
    #[error("admin command {opcode:02x}h timed out")]
    AdminTimeout {
        /// Its opcode.
        opcode: u8,
    },
    /// An I/O command timed out, and its abort as well.
    #[error("a command of queue {queue} timed out, and its abort as well ({command:?})")]
    CommandTimeout {
        /// The command's queue.
        queue: u16,
        /// The command.
        command: CommandId,
    },
    /// The controller violated the protocol on a queue.
    #[error("queue {queue}: {fault}")]
    QueueViolation {
        /// The queue.
        queue: u16,
        /// The violation.
        fault: QueueFault,
    },
    /// The controller refused a mandatory command.
    #[error("the controller refused {command}: {status}")]
    Refused {
        /// The refused command.
        command: &'static str,
        /// Its status.
        status: Status,
    },
    /// The owner requested a reset.
    #[error("a reset was requested")]
    Requested,
}

/// The reason why a controller is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeathCause {
    /// The device was removed.
    #[error("the device was removed: its registers read as all ones")]
    Removed,
    /// Its registers are implausible.
    #[error(transparent)]
    Implausible(#[from] CapabilityFault),
    /// Its queue entries are not 64 and 16 bytes, or its Identify page is too short.
    #[error("Identify Controller is invalid: queue entries must be 64 and 16 bytes")]
    Identify,
    /// The allocation of the admin queue failed.
    #[error("no memory for the admin queue; raise the memory limit of this process, or free some")]
    NoMemory,
    /// Too many resets in a row failed.
    #[error("the controller did not recover after {resets} resets in a row: {cause}")]
    GaveUp {
        /// Resets in a row.
        resets: u32,
        /// The cause of the last reset.
        cause: ResetCause,
    },
    /// Neither disabling nor a function reset succeeded.
    #[error("the controller does not stop (CC.EN 0), and a function reset failed: {0}")]
    Unstoppable(PciFunctionError),
    /// Enabling bus mastering failed.
    #[error("bus mastering cannot be enabled: {0}")]
    Mastering(PciFunctionError),
    /// Its owner closed it.
    #[error("the controller was closed")]
    Closed,
}

/// The reason why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The controller is not ready.
    #[error("the controller is not ready; wait until it is, or open it again")]
    NotReady,
    /// The admin queue is full.
    #[error("the admin queue is full; poll for completions and retry")]
    Busy,
    /// The request has more data than an admin command of this driver carries.
    #[error("an admin command carries at most {max} bytes of data, not {bytes}")]
    Data {
        /// Requested bytes.
        bytes: usize,
        /// Most bytes.
        max: usize,
    },
    /// All queues that the controller granted are in use.
    #[error("all {granted} I/O queues of the controller are in use; close one")]
    NoQueue {
        /// Queues that the controller granted.
        granted: u16,
    },
    /// The depth is out of range.
    #[error("queue depth {depth} is out of range; choose 1 to {max}")]
    Depth {
        /// Requested depth.
        depth: u32,
        /// Largest depth.
        max: u32,
    },
    /// The allocation of the queue's memory failed.
    #[error(
        "no memory for a queue of depth {depth}; choose a smaller one, or raise this process's memory limit"
    )]
    Memory {
        /// Requested depth.
        depth: u32,
    },
}

/// The reason why a queue was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The controller refused it.
    #[error("the controller refused the queue: {0}")]
    Refused(Status),
    /// The controller was reset during the creation.
    #[error("the controller was reset while the queue was created; retry")]
    Reset,
}
