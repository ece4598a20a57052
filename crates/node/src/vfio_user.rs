//! The vfio-user face: a PCI Express SSD for a guest of a hypervisor that speaks vfio-user.
//!
//! In: a connection on a Unix socket, the guest's memory and interrupts, what its driver writes. Out: the device as an NVMe
//! controller of that guest. Invariant: one guest at a time; when it goes, everything it left is forgotten and the next
//! may come.

pub mod config_space;
pub mod function;
pub mod layout;
pub mod message;
pub mod vectors;
