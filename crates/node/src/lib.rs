//! The daemon and the command line of Headwater.
//!
//! In: arguments, a configuration file, signals, client connections. Out: a node that serves, and the answers of every
//! `headwater` command. Nothing of the device's own behaviour is decided here.
#![forbid(unsafe_code)]

pub mod bench;
pub mod check;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod doctor;
pub mod kv;
pub mod load;
