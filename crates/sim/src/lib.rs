//! The whole stack in virtual time, from one seed.
//!
//! In: a seed. Out: a [`world::Report`], or a [`world::Failure`] that names the seed and the command that replays it.
//! The stages are the very ones that run live; only time, flash and power are ours: [`media::SimMedia`] keeps the time
//! of channels and dies, [`faults`] cuts the power and damages what was in flight, [`workload`] asks, and [`checker`]
//! holds what came back against what was promised. Invariant: the same seed gives the same run, completion by
//! completion, on every machine.
#![forbid(unsafe_code)]

pub mod checker;
pub mod engine;
pub mod events;
pub mod faults;
pub mod flash;
pub mod media;
pub mod presets;
pub mod replay;
pub mod timeline;
pub mod workload;
pub mod world;
