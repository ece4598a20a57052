//! Why a controller is reset, why it is given up, and what a request comes to then.
//!
//! In: what the driver saw. Out: errors with the numbers. Invariant: a dead controller says why, and the first reason
//! stays.

use super::capabilities::CapabilityFault;
use super::function::FunctionError;
use super::io_queue::QueueFault;
use crate::queue_pair::CommandId;
use crate::spec::status::Status;

/// What made a reset necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// CSTS.CFS.
    #[error("the controller reports a fatal status (CSTS {status:#x})")]
    Fatal {
        /// CSTS.
        status: u32,
    },
    /// CSTS.RDY fell, and nobody had asked for that.
    #[error("the controller is not ready any more (CSTS {status:#x})")]
    NotReady {
        /// CSTS.
        status: u32,
    },
    /// It did not become ready in time.
    #[error("the controller did not become ready in time (CSTS {status:#x})")]
    EnableTimeout {
        /// CSTS.
        status: u32,
    },
    /// An admin command was not answered in time.
    #[error("admin command {opcode:02x}h was not answered in time")]
    AdminTimeout {
        /// Its opcode.
        opcode: u8,
    },
    /// An I/O command was not answered in time, nor when it was to be aborted.
    #[error("a command of queue {queue} was not answered in time, nor after an abort ({command:?})")]
    Stuck {
        /// Its queue.
        queue: u16,
        /// The command.
        command: CommandId,
    },
    /// A queue broke the protocol.
    #[error("queue {queue}: {fault}")]
    Queue {
        /// Which.
        queue: u16,
        /// How.
        fault: QueueFault,
    },
    /// A command without which nothing goes was refused.
    #[error("the controller refuses {what}: {status}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// Its answer.
        status: Status,
    },
    /// Somebody asked for a reset.
    #[error("a reset was asked for")]
    Asked,
}

/// Why a controller is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Death {
    /// It is not there any more.
    #[error("the device was removed: its registers read as all ones")]
    Removed,
    /// Its registers make no sense.
    #[error(transparent)]
    Implausible(#[from] CapabilityFault),
    /// Its queue entries are not 64 and 16 bytes, or it describes itself in no way that makes sense.
    #[error("Identify Controller makes no sense: queue entries must be 64 and 16 bytes")]
    Identify,
    /// There is no memory for its admin queue.
    #[error("there is no memory for the admin queue; allow this process more, or free some")]
    NoMemory,
    /// Resets did not help.
    #[error("{resets} resets in a row did not help: {trouble}")]
    GaveUp {
        /// How many.
        resets: u32,
        /// What the last was for.
        trouble: Trouble,
    },
    /// It can neither be disabled nor reset.
    #[error("the controller does not stop (CC.EN 0), and a function reset failed: {0}")]
    Unstoppable(FunctionError),
    /// The function does not let itself be switched on.
    #[error("bus mastering cannot be switched on: {0}")]
    Mastering(FunctionError),
    /// Its owner closed it.
    #[error("the controller was closed")]
    Closed,
}

/// A request that was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The controller is not ready.
    #[error("the controller is not ready; wait until it is, or open it again")]
    NotReady,
    /// The admin queue is full.
    #[error("the admin queue is full; take answers and ask again")]
    Busy,
    /// More data than an admin command of this driver carries.
    #[error("{bytes} bytes of data with an admin command; {most} are carried")]
    Data {
        /// What was asked for.
        bytes: usize,
        /// The most.
        most: usize,
    },
    /// Every queue that the controller granted exists.
    #[error("all {granted} I/O queues of the controller are in use; close one")]
    NoQueue {
        /// How many there are.
        granted: u16,
    },
    /// No queue can be so deep.
    #[error("a queue of depth {depth} was asked for; choose 1 to {most}")]
    Depth {
        /// What was asked for.
        depth: u32,
        /// The most.
        most: u32,
    },
    /// There is no memory for the queue.
    #[error("there is no memory for a queue of depth {depth}; choose less, or allow this process more")]
    Memory {
        /// What was asked for.
        depth: u32,
    },
}

/// A queue that was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The controller refused.
    #[error("the controller refuses the queue: {0}")]
    Refused(Status),
    /// The controller was reset meanwhile.
    #[error("the controller was reset meanwhile; ask again")]
    Reset,
}
