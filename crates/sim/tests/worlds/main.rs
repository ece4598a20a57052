//! The device keeps its promises in thousands of worlds, one for each seed: on simulated flash, on the real file medium,
//! on media that lie, and on media that are filled again and again.
//!
//! `HEADWATER_SIM_SEEDS=N` sets the number of seeds, `HEADWATER_SIM_FIRST=S` the first one.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![expect(clippy::print_stdout, reason = "the log states the number of runs")]

mod across;
mod all_cores;
mod checks;
mod extents;
mod file;
mod long;
mod lying;
mod parts;
mod power_cut;
mod reuse;
