//! The application's interface: a device, its queues, and registered buffers.
//!
//! Input: NVMe commands with the buffers they move. Output: one completion for each accepted command. The same calls
//! work over every backend: rings in this process, rings of a daemon ([`attach`]), a network.
//!
//! ```text
//!   Device --region--> Buffer --slice--> Command --submit--> Queue --poll, wait--> Completion
//! ```
//!
//! # Limits of this crate
//! It opens nothing by name (the `headwater` crate does), and it executes no commands.
#![forbid(unsafe_code)]

// A loom build compiles only the models of state shared between threads. Every other line is therefore marked
// `not(loom)`, and `make test-loom` reports an unmarked line.
#[cfg(loom)]
#[path = "cache/background.rs"]
#[expect(dead_code, reason = "the models use only a part of it")]
mod background;
#[cfg(loom)]
#[path = "shared_queue/exchange.rs"]
#[expect(dead_code, reason = "the models use only a part of it")]
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
pub mod client_namespace;
#[cfg(not(loom))]
pub mod clock;
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
pub mod future;
#[cfg(not(loom))]
pub mod handle;
#[cfg(not(loom))]
mod identify;
#[cfg(not(loom))]
pub mod key_list;
#[cfg(not(loom))]
pub mod model;
pub mod namespace_request;
#[cfg(not(loom))]
pub mod nvme_tcp;
#[cfg(not(loom))]
pub mod passthrough;
#[cfg(not(loom))]
pub mod pool_settings;
pub mod private_file;
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
pub mod uring;
#[cfg(not(loom))]
pub mod vfio;

#[cfg(not(loom))]
pub use backend::{ArmResult, CompletedCommand, DeviceBackend, IoLimits, QueueTransport};
#[cfg(not(loom))]
pub use buffer::Buffer;
#[cfg(not(loom))]
pub use cached_handle::{CachePath, CachedHandle};
#[cfg(not(loom))]
pub use client_namespace::ClientNamespace;
#[cfg(not(loom))]
pub use command::{
    Command, GetOptions, StoreCondition, TransferData, VALUE_BYTES_MAX, ValueCaching, WriteDurability,
};
#[cfg(not(loom))]
pub use device::{BufferFuture, Device, ImportedBuffer, ValuePart};
#[cfg(not(loom))]
pub use device_pool::{DevicePool, MemoryRegistrar};
#[cfg(not(loom))]
pub use error::{CacheError, IoError, RejectedCommand, RequestError, SubmitError};
#[cfg(not(loom))]
pub use future::AsyncHandle;
#[cfg(not(loom))]
pub use handle::{Handle, IoRequest, RefusedRequest};
#[cfg(not(loom))]
pub use nvme_tcp::{NvmeTcp, NvmeTcpTarget};
#[cfg(not(loom))]
pub use pool_settings::{PoolDefaults, PoolSettings};
#[cfg(not(loom))]
pub use queue::{Completion, Queue};
#[cfg(not(loom))]
pub use selector::{QueueName, QueueSelector};
#[cfg(not(loom))]
pub use shared_queue::SharedQueue;
