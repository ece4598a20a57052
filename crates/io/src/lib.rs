//! What applications call: a device, its queues, and buffers that the device may touch.
//!
//! In: commands in NVMe's vocabulary with the buffers they move. Out: one completion for each accepted command. The same
//! calls work over every backend: rings in this process, rings of a daemon ([`attach`]), a network.
//!
//! ```text
//!   Device --region--> Buffer --slice--> Command --submit--> Queue --poll, wait--> Completion
//! ```
//!
//! # What this does not do
//! It opens nothing by name (the `headwater` crate does) and carries out no command.
#![forbid(unsafe_code)]

// The other build world: models of what threads share, and nothing beside it. So every other line says that it is of this
// one, and `make test-loom` finds a line that does not.
#[cfg(loom)]
#[path = "shared_queue/exchange.rs"]
#[expect(dead_code, reason = "the models use a part of it")]
mod exchange;

#[cfg(not(loom))]
pub mod attach;
#[cfg(not(loom))]
pub mod backend;
#[cfg(not(loom))]
pub mod buffer;
#[cfg(not(loom))]
mod buffer_pool;
#[cfg(not(loom))]
pub mod cache;
#[cfg(not(loom))]
pub mod cached_handle;
#[cfg(not(loom))]
pub mod command;
#[cfg(not(loom))]
pub mod completion;
#[cfg(not(loom))]
pub mod device;
#[cfg(not(loom))]
pub mod device_pool;
#[cfg(not(loom))]
pub mod error;
#[cfg(not(loom))]
pub mod facts;
#[cfg(not(loom))]
pub mod future;
#[cfg(not(loom))]
pub mod handle;
#[cfg(not(loom))]
mod identify;
#[cfg(not(loom))]
pub mod key_list;
#[cfg(not(loom))]
pub mod model;
#[cfg(not(loom))]
pub mod nvme_tcp;
#[cfg(not(loom))]
pub mod passthrough;
#[cfg(not(loom))]
pub mod queue;
#[cfg(not(loom))]
pub mod ring_queue;
#[cfg(not(loom))]
pub mod scheduler;
#[cfg(not(loom))]
pub mod selector;
#[cfg(not(loom))]
pub mod shared_queue;
#[cfg(not(loom))]
pub mod timepiece;
#[cfg(not(loom))]
pub mod uring;
#[cfg(not(loom))]
pub mod vfio;

#[cfg(not(loom))]
pub use backend::{Answer, Armed, Backend, Limits, Transport};
#[cfg(not(loom))]
pub use buffer::Buffer;
#[cfg(not(loom))]
pub use cached_handle::{CachePath, CachedHandle};
#[cfg(not(loom))]
pub use command::{Command, Condition, Data, Durable};
#[cfg(not(loom))]
pub use device::Device;
#[cfg(not(loom))]
pub use device_pool::{DevicePool, Registrar};
#[cfg(not(loom))]
pub use error::{IoError, Rejected, SubmitError};
#[cfg(not(loom))]
pub use facts::NamespaceFacts;
#[cfg(not(loom))]
pub use future::AsyncHandle;
#[cfg(not(loom))]
pub use handle::{Handle, Refused, Request, RequestError};
#[cfg(not(loom))]
pub use nvme_tcp::{NvmeTcp, NvmeTcpTarget};
#[cfg(not(loom))]
pub use queue::{Completion, Queue};
#[cfg(not(loom))]
pub use selector::{QueueName, Selector};
#[cfg(not(loom))]
pub use shared_queue::SharedQueue;
