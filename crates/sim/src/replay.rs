//! Replays one run from its seed: the tests and `headwater sim replay --seed S` call it.

use crate::media::SimMedia;
use crate::simulated_device::{MovingDevice, SimulatedDevice};
use crate::world::{LineSink, RunFailure, RunReport, SimWorld, WorldConfig, has_channels};
use headwater_ssd::engine::SsdDevice;

/// Runs the world of this seed over the real device. A `sink` receives one line for every command, completion and power
/// cut.
///
/// # Errors
/// The first promise that the device broke.
pub fn replay(seed: u64, sink: Option<LineSink<'_>>) -> Result<RunReport, RunFailure> {
    if has_channels(seed) { run::<MovingDevice>(seed, sink) } else { run::<SsdDevice<SimMedia>>(seed, sink) }
}

fn run<E: SimulatedDevice>(seed: u64, sink: Option<LineSink<'_>>) -> Result<RunReport, RunFailure> {
    let world = SimWorld::<E>::new(seed, WorldConfig::from_seed(seed));
    match sink {
        Some(sink) => world.verbose(sink).run(),
        None => world.run(),
    }
}
