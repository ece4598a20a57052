//! Replays one run from its seed: the tests and `headwater sim replay --seed S` call it.

use crate::media::SimMedia;
use crate::world::{LineSink, RunFailure, RunReport, SimWorld, WorldConfig};
use headwater_ssd::engine::SsdDevice;

/// Runs the world of this seed over the real device. A `sink` receives one line for every command, completion and power
/// cut.
///
/// # Errors
/// The first promise that the device broke.
pub fn replay(seed: u64, sink: Option<LineSink<'_>>) -> Result<RunReport, RunFailure> {
    let world = SimWorld::<SsdDevice<SimMedia>>::new(seed, WorldConfig::from_seed(seed));
    match sink {
        Some(sink) => world.verbose(sink).run(),
        None => world.run(),
    }
}
