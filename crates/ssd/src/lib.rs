//! The key-value SSD: commands in, completions out, flash beneath.
//!
//! An [`engine::SsdDevice`] runs on one core. Its stages are state machines over one slab of operations. Time, medium and
//! wall clock are arguments, so the same code runs live and in the simulator. The path of a read: [`engine`] accepts
//! the command, `engine::execute` runs it, `ftl` finds the record, [`media`] holds its bytes.
#![forbid(unsafe_code)]

pub mod command;
pub mod config;
pub mod engine;
mod ftl;
pub mod index;
pub mod limits;
pub mod log;
pub mod media;
pub mod mutant;
pub mod namespace;
pub mod nvme;
