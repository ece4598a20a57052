//! The ring of a queue pair: entries, doorbells and the sleep handshake, over any [`RingMemory`].
//!
//! Input: 64-byte commands from the host, 16-byte completions from the controller. Output: the same entries on the
//! other side, each exactly once and in order. It has four ends, each owned by one thread:
//! [`submission::SubmissionProducer`] and [`completion::CompletionConsumer`] on the host,
//! [`submission::SubmissionConsumer`] and [`completion::CompletionProducer`] on the controller.
//!
//! ```text
//!   host                        ring memory                          controller
//!   push, publish  -->  entries, then submission tail   -->   fetch (acquire tail, load once)
//!   ring           <--  submission tail event           <--   arm
//!   reap           <--  entries, phase word last        <--   post
//!   arm            -->  completion tail event           -->   ring
//!   publish        -->  completion head                 -->   room
//!   ring           <--  completion head event           <--   arm
//! ```
//!
//! Doorbells follow NVMe's shadow doorbells and EventIdx (Base 2.0 section 5.8). The ringing side stores the new
//! position, fences, and reads the event position at which the other side wants to be woken. The sleeping side stores
//! that event position, fences, and checks for work once more. One of the two always sees the other's store, so no
//! wake-up is lost, and none is sent to a side that is awake.
//!
//! A host behind PCIe creates the two queues separately, in memory that holds only entries; its doorbells then arrive
//! in registers, or in cells of its memory beside EventIdx, by the same handshake.
//!
//! Invariant: a position from the other side is checked before it is used; an entry is loaded once and then validated.

pub mod completion;
pub mod doorbell;
mod host_doorbell;
pub mod layout;
mod published_position;
pub mod submission;

#[cfg(test)]
#[cfg(loom)]
mod models;
#[cfg(test)]
#[cfg(loom)]
mod shadow_models;

pub use completion::{CompletionConsumer, CompletionFull, CompletionProducer};
pub(crate) use host_doorbell::DoorbellCell;

pub use doorbell::{DoorbellFault, DoorbellName, WakeDecision};
pub use layout::{QueueSlots, QueueSlotsError, RingLayout};
pub use submission::{HeadFault, QueueFull, SubmissionConsumer, SubmissionProducer};

#[cfg(doc)]
use headwater_host::ring_memory::RingMemory;
