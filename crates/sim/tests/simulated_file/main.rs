//! A device over a simulated file whose writes and syncs are recorded, and whose record is replayed to every point.
//!
//! `HEADWATER_REPLAY_SEED=S` replays one seed.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![expect(clippy::print_stdout, reason = "the log states the seed and the number of points")]

mod device;
mod replay;
mod upgrade;
