//! The buffer system: pinned memory, managed by request size.
//!
//! In: requests. Out: memory that devices can see. Invariant: each tier keeps its own, stated where it is defined.

pub mod staging;
