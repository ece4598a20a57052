//! The daemon: opens the device and its front ends, runs the core loop, publishes metrics, stops.

pub mod core_loop;
pub mod damage_log;
pub mod data_dir;
pub mod device_upgrade;
pub mod flash_device;
pub mod metrics;
pub(crate) mod node_gpus;
pub mod node_mover;
pub mod ready_file;
pub mod serve;
pub mod shared_ssd;
pub mod stop;
