//! Fixtures that the tests of several crates share: an NVMe machine with faults, a fake subsystem, one suite of device
//! behaviour, a compiler of C programs, files of memory that can shrink, a writer of flash files of version 1, folders of a DSA
//! device, a library that stands for the driver of a GPU.
//!
//! Only `[dev-dependencies]` name this crate. It depends on `io`, `ssd` and below; tests of `nvme` use it too, because a
//! dev-dependency may point upwards to fixtures.
#![cfg(not(loom))]
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a fixture that cannot be set up ends its test")]

pub mod c_program;
pub mod device_behaviour;
pub mod fake_subsystem;
pub mod nvme_machine;
pub mod software_gpu;
pub mod unsealed_memory;
pub mod version1_file;
pub mod work_queue_folders;
