//! The daemon and the command line of Headwater.
//!
//! In: arguments, a configuration file, signals, client connections. Out: a node that serves, and the answers of every
//! `headwater` command. Nothing of the device's own behaviour is decided here.
#![forbid(unsafe_code)]

pub mod attach;
pub mod bench;
pub mod check;
pub mod cli;
pub mod config;
pub mod core_device;
pub mod core_loop;
pub mod data_dir;
pub mod device_bench;
pub mod device_file;
pub mod device_scan;
pub mod doctor;
pub mod dump;
pub mod face;
mod flights;
pub mod forward;
pub mod kv_target;
pub mod load;
pub mod metrics;
pub mod nvme_tcp;
pub mod pipeline;
pub mod ready_file;
pub mod resp;
pub mod resp_client;
pub mod serve;
pub mod stop;
pub mod vfio_user;
