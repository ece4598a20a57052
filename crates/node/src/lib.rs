//! The daemon and the command line of Headwater.
//!
//! Input: arguments, a configuration file, signals, client connections. Output: a node that serves, and the output of
//! every `headwater` command. Device behaviour is decided in the crate `ssd`, not here.
#![forbid(unsafe_code)]

pub mod backup;
pub mod bench;
pub mod check;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod doctor;
pub mod kv;
pub mod load;
pub mod preload;
