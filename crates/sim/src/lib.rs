//! Deterministic simulation of the whole stack in virtual time, from one seed.
//!
//! Input: a seed.
//! Output: a [`world::RunReport`], or a [`world::RunFailure`] that names the seed and the command that replays it.
//! Invariant: the same seed gives the same run, completion by completion, on every machine.
//! The device code is the code that runs live; only time, flash and power are simulated: [`media::SimMedia`] models the
//! timing of channels and dies, [`faults`] cuts the power and damages operations in flight, [`workload`] issues
//! commands, and [`checker`] compares each completion with the device's promises. [`persistence`] simulates persistent
//! memory, for algorithms that store there without a device; [`move_model`] is a timing model of copies by CPU and DMA.
#![forbid(unsafe_code)]

pub mod checker;
pub mod events;
pub mod faults;
pub mod flash;
pub mod id_window;
pub mod media;
pub mod move_model;
pub mod persistence;
pub mod presets;
pub mod replay;
pub mod simulated_device;
pub mod simulated_file;
pub mod swarm;
pub mod timeline;
mod value_pattern;
pub mod workload;
pub mod world;
