//! One protocol, both ends: the tables of NVMe, its rings, the controller's queues, and a host's driver.
//!
//! In: entries in ring memory. Out: decoded commands and posted completions.
#![forbid(unsafe_code)]

pub mod controller;
pub mod data_pointer;
pub mod driver;
pub mod fabrics;
pub mod queue_pair;
pub mod ring;
pub mod spec;
pub mod tcp;
