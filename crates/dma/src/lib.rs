//! Memory that devices can see, and who owns it.
//!
//! In: requests for memory. Out: [`buffer::Payload`]s of the [`pool`], pinned once and used many times, and
//! [`frame::Frame`]s, page slots of one size; both are moved into an operation and come back with its completion.
#![forbid(unsafe_code)]

pub mod buddy;
pub mod buffer;
pub mod frame;
pub mod iova;
pub mod pool;
