//! The converged key-value device: commands in, completions out, flash beneath.
//!
//! A [`device::Device`] is one core. Its stages are state machines over one slab of operations; time, media and wall
//! clock are arguments, so the same code runs live and in the simulator.
#![forbid(unsafe_code)]

pub mod command;
pub mod device;
pub mod interpreter;
pub mod limits;
pub mod media;
