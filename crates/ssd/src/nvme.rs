//! The NVMe side of the device: decoding of entries, their data, completions, rings and administration.

pub mod administration;
pub mod decoder;
pub mod request;
pub mod rings;
