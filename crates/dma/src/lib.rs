//! Device-visible memory (DMA memory) and its ownership.
//!
//! Input: requests for memory. Output: [`buffer::PoolBuffer`]s of the [`pool`], pinned once and reused, and
//! [`frame::MediaFrame`]s, page slots of one size. Both are moved into an operation and returned with its completion.
//! A [`mover::Mover`] moves bytes between them.
#![forbid(unsafe_code)]

pub mod buddy;
pub mod buffer;
pub mod frame;
pub mod iova;
pub mod mover;
pub mod pool;
