//! One run again, from its seed alone: what the tests print and `headwater sim replay --seed S` calls.

use crate::media::SimMedia;
use crate::world::{Failure, Report, Sink, World, WorldConfig};
use headwater_converged::device::Device;

/// Runs the world of this seed over the real device. With a `sink`, every command, completion and power cut is told to
/// it, one line each.
///
/// # Errors
/// The first promise that was broken.
pub fn replay(seed: u64, sink: Option<Sink<'_>>) -> Result<Report, Failure> {
    let world = World::<Device<SimMedia>>::new(seed, WorldConfig::from_seed(seed));
    match sink {
        Some(sink) => world.verbose(sink).run(),
        None => world.run(),
    }
}
