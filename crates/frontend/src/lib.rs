//! The front ends of a device: RESP, NVMe/TCP, vfio-user, attach, and mediated sharing of an SSD.
//!
//! Input: bytes, capsules and ring entries of clients. Output: commands to a device through the trait
//! [`core_device::CoreDevice`], and completions back to the clients. A front end is polled by the core loop of the node
//! and never blocks. This crate contains no command line, no configuration file and no asynchronous runtime.
#![forbid(unsafe_code)]

mod accept_pause;
pub mod attach;
pub mod backup;
pub mod core_device;
pub mod counters;
pub mod front_end;
mod in_flight;
pub mod mediated;
pub mod nvme_tcp;
mod replaced_file;
pub mod resp;
pub mod vfio_user;
pub mod wrong_passwords;
