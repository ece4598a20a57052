//! The names that an application uses: devices, queues, handles, buffers, and the policies of a handle.
//!
//! ```
//! use headwater::prelude::*;
//!
//! let mut device = Device::open("mem:64MiB")?;
//! device.put(b"greeting", b"hello")?;
//! # Ok::<(), IoError>(())
//! ```

pub use crate::Device;
pub use headwater_io::cache::{CacheConfig, WritePolicy};
pub use headwater_io::completion::{CompletionAggregation, CompletionPolicy, PollPace};
pub use headwater_io::namespace_request::{DurabilitySpec, NamespaceSpec};
pub use headwater_io::scheduler::{MergePolicy, RequestClass, SchedulingPolicy};
pub use headwater_io::selector::QueueSelector;
pub use headwater_io::{
    AsyncHandle, Buffer, CachedHandle, Command, CompletedCommand, Completion, GetOptions, Handle, IoError,
    IoRequest, Queue, SharedQueue, StoreCondition, TransferData, ValueCaching, ValuePart, WriteDurability,
};
