//! NVMe on the host side and on the controller side: protocol tables, rings, controller queues, and a host driver.
//!
//! Input: entries in ring memory. Output: decoded commands and posted completions.
#![forbid(unsafe_code)]

pub mod controller;
pub mod data_pointer;
pub mod driver;
pub mod fabrics;
pub mod queue_pair;
pub mod ring;
pub mod spec;
pub mod tcp;
