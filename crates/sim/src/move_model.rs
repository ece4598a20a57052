//! A timing model of data movement: a CPU core, DMA channels, and the memory bandwidth that they share, in virtual time.
//!
//! Input: the rates of a machine ([`MoveMachine`]), the bytes of each engine, and the jobs in flight on each channel. Output:
//! the virtual time at which each engine ends. Invariant: equal inputs give equal times on every machine; noise comes from
//! a seed and is added by [`policy_run`] only.
//!
//! [`published`] holds the constants and what was published about real engines; [`mod@best_split`] searches the best split of
//! a job exhaustively; [`policy_run`] lets the mover's policy learn machines that it is not told, and compares it with that;
//! [`ladder`] adds one rule of the policy after another. A [`ModelledMachine`] has [channels](ModelledChannel) for a whole
//! mover, which moves its bytes while the time is the model's. [`study`] compares ways to use them.
//!
//! # What this does not do
//! It is not a measurement: every figure of it is a model's.

pub mod best_split;
#[cfg(test)]
mod deadline_tests;
pub mod ladder;
pub mod machine;
mod modelled_channel;
mod modelled_machine;
#[cfg(test)]
mod modelled_tests;
pub mod policy_run;
pub mod published;
pub mod study;
pub mod study_machines;

pub use best_split::{BestSplit, best_split};
pub use machine::{BandwidthSharing, ChannelModel, MoveMachine, PartTimes};
pub use modelled_channel::{ChannelFaults, ModelledChannel, TakeBack};
pub use modelled_machine::{CpuTimes, JobCosts, ModelledMachine};
pub use policy_run::{PolicyRunReport, PolicyRunSummary, run_policy};
