//! The converged key-value device: commands in, completions out, flash beneath.
//!
//! A [`device::Device`] is one core. Its stages are state machines over one slab of operations; time, media and wall
//! clock are arguments, so the same code runs live and in the simulator. Follow a get: [`device`] takes the command,
//! `execute` runs it, `utl` finds the record, [`media`] has its bytes.
#![forbid(unsafe_code)]

pub mod administration;
pub mod blocks;
mod checkpoint;
pub mod command;
pub mod commit;
pub mod device;
pub mod dram;
mod execute;
pub mod expiry;
pub mod index;
pub mod inspection;
pub mod interpreter;
pub mod limits;
pub mod log;
pub mod media;
pub mod namespace;
mod operation;
pub mod page;
pub mod reads;
pub mod record;
mod recovery;
pub mod release;
pub mod request;
pub mod rings;
pub mod trace;
mod utl;
