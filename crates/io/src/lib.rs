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

pub mod attach;
pub mod backend;
pub mod buffer;
pub mod cache;
pub mod cached_handle;
pub mod command;
pub mod completion;
pub mod device;
pub mod device_pool;
pub mod error;
pub mod facts;
pub mod future;
pub mod handle;
mod identify;
pub mod key_list;
pub mod model;
pub mod nvme_tcp;
pub mod passthrough;
pub mod queue;
pub mod ring_queue;
pub mod scheduler;
pub mod selector;
pub mod shared_queue;
pub mod timepiece;
pub mod uring;
pub mod vfio;

pub use backend::{Answer, Armed, Backend, Limits, Transport};
pub use buffer::Buffer;
pub use cached_handle::{CachePath, CachedHandle};
pub use command::{Command, Condition, Data, Durable};
pub use device::Device;
pub use device_pool::{DevicePool, Registrar};
pub use error::{IoError, Rejected, SubmitError};
pub use facts::NamespaceFacts;
pub use future::AsyncHandle;
pub use handle::{Handle, Refused, Request, RequestError};
pub use nvme_tcp::{NvmeTcp, NvmeTcpTarget};
pub use queue::{Completion, Queue};
pub use selector::{QueueName, Selector};
pub use shared_queue::SharedQueue;
