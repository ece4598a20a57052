//! Memory that devices can see, and who owns it.
//!
//! In: requests for page slots. Out: [`frame::Frame`]s, moved into an operation and back out with its completion.
//! Part 3 grows the real pool here (`pool`, `buffer`, `iova`, `mover`); this is its simplest honest form.
#![forbid(unsafe_code)]

pub mod frame;
pub mod iova;
pub mod pool;
