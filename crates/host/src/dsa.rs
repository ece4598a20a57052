//! Work queues of DSA devices, which move bytes for user space. **Not yet run on silicon.**
//!
//! Input: work queues that the kernel's `idxd` driver opened to users, and operations over memory that a caller hands over.
//! Output: the memory, with one outcome an operation. Invariant: a device has the address of memory only while a [`DsaQueue`]
//! owns that memory; it returns when the device has said that it is done with it, or was stopped.
//!
//! [`discover`] finds the queues, a [`DsaQueue`] submits to one of them: by MOVDIR64B, by ENQCMD, or by write(2) where the
//! kernel maps no portal. A [`SoftwarePortal`] takes the same descriptors, does real copies on a thread, and injects faults.
//! All tests ran on it: no device of this kind was at hand.
//!
//! # What this does not do
//! It decides nothing: when to retry, what to do about a fault, and which work is worth a device belong to the caller.

/// The label of everything that names a DSA device.
pub const NOT_RUN_ON_SILICON: &str = "not yet run on silicon";

mod completion;
mod descriptor;
mod discovery;
mod instructions;
mod opcode_set;
mod portal;
mod queue;
mod software_engine;
mod software_portal;
mod work;

pub use crate::work_memory::{OperationError, WorkBytes, WorkMemory, WorkPlace};
pub use completion::{DsaOutcome, DsaRecord, DsaStatus, NextAction, RECORD_BYTES};
pub use descriptor::{DESCRIPTOR_BYTES, DsaDescriptor, DsaFlags, DsaOpcode};
pub use discovery::{
    DiscoveryError, DsaOpcodeSet, DsaRoots, SETUP_COMMANDS, SkippedQueue, WorkQueueId, WorkQueueInfo,
    WorkQueueMode, discover,
};
pub use instructions::DsaInstructions;
pub use portal::{OpenQueueError, SubmissionWay};
pub use queue::{DsaQueue, EndedWork, OperationOutcome, QueueLimits, RefusedWork, WorkRefusal};
pub use software_portal::{FaultSource, NoFaults, PortalFault, PortalKind, SoftwarePortal};
pub use work::{CacheTarget, DsaOperation, OperationFence, QueuedOperation};
