//! The NVMe side of the device: entries to commands, their data, completions to answers, administration.

pub mod administration;
pub mod interpreter;
pub mod request;
pub mod rings;
