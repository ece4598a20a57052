//! Power cuts at every point of a recorded run.
//!
//! Input: the bytes before the run, its operations, [`CrashBounds`], and a check. Output: a [`CrashSweep`], or the first
//! [`CrashFailure`]. Invariant: a point whose states are at most as many as the bound has each of them checked once; of
//! another point the states without and with all pending stores are checked, and more that are drawn from the seed.

use super::MemoryOperation;
use super::line_stores::{LineImage, WordOrder, to_image};
use super::pending_stores::{PendingStores, bytes_of};
use std::fmt;

/// The bounds of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashBounds {
    /// Most states of one point. A point that has more is sampled.
    pub states_max: usize,
    /// The seed of the samples.
    pub seed: u64,
    /// The order in which the words of a call become durable.
    pub order: WordOrder,
}

impl CrashBounds {
    /// Returns the bounds of a sweep of at most `states_max` states a point, by the rules of
    /// [`headwater_host::persistent_memory`].
    #[must_use]
    pub const fn sampled(states_max: usize, seed: u64) -> Self {
        Self { states_max, seed, order: WordOrder::Any }
    }
}

/// The memory that the next boot finds.
#[derive(Clone, Debug)]
pub struct CrashImage {
    /// The number of operations before the power cut.
    pub point: usize,
    /// The bytes, for [`SimPersistentMemory::with_bytes`](super::SimPersistentMemory::with_bytes).
    pub bytes: Vec<u8>,
}

/// The extent of a sweep that the check accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashSweep {
    /// Points at which the power was cut.
    pub points: usize,
    /// States that were checked.
    pub states: usize,
    /// Points that had more states than the bound.
    pub sampled_points: usize,
    /// The seed of the samples.
    pub seed: u64,
}

impl fmt::Display for CrashSweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { points, states, sampled_points, seed } = self;
        write!(f, "{states} states at {points} points, {sampled_points} of them sampled with seed {seed}")
    }
}

/// A state that the check refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("power cut at point {point}, after the {after}: {reason}; {lines}; {sweep}")]
pub struct CrashFailure<E> {
    /// The number of operations before the power cut.
    pub point: usize,
    /// The last operation before it.
    pub after: String,
    /// The state of the lines that had pending stores.
    pub lines: String,
    /// The sweep so far, this state included. The same seed and bounds lead to it again.
    pub sweep: CrashSweep,
    /// The error of the check.
    pub reason: E,
}

/// The lines of a point with pending stores.
struct PointStates<'a> {
    pending: &'a PendingStores,
    bounds: CrashBounds,
}

impl PointStates<'_> {
    /// Returns the distinct images of each line; `None` if the point has more states than the bound.
    fn images(&self) -> Option<Vec<(usize, Vec<LineImage>)>> {
        let mut states = 1_usize;
        let mut found = Vec::new();
        for (&line, stores) in &self.pending.lines {
            let durable = self.pending.durable_line(line);
            let images = stores.images(durable, self.bounds.order, self.bounds.states_max)?;
            states = states.checked_mul(images.len()).filter(|states| *states <= self.bounds.states_max)?;
            found.push((line, images));
        }
        Some(found)
    }

    /// Passes every state to `visit` until that returns an error.
    fn enumerate<E>(
        &self,
        lines: &[(usize, Vec<LineImage>)],
        mut visit: impl FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut digits = vec![0; lines.len()];
        loop {
            let mut bytes = self.pending.durable.clone();
            for ((line, images), digit) in lines.iter().zip(&digits) {
                bytes[bytes_of(*line)].copy_from_slice(&images[*digit]);
            }
            visit(bytes)?;
            // The digits count up, each in the base of its line.
            let next = lines.iter().zip(&mut digits).find_map(|((_, images), digit)| {
                *digit = (*digit + 1) % images.len();
                (*digit > 0).then_some(())
            });
            if next.is_none() {
                return Ok(());
            }
        }
    }

    /// Passes as many drawn states to `visit` as the bound allows, until that returns an error.
    fn sample<E>(
        &self,
        rng: &mut fastrand::Rng,
        mut visit: impl FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        for nth in 0..self.bounds.states_max {
            let mut bytes = self.pending.durable.clone();
            // Most lines of some states lose everything or keep everything: only then is a rule between two lines
            // tested alone.
            let loss = rng.u8(0..4);
            for (&line, stores) in &self.pending.lines {
                let durable = self.pending.durable_line(line);
                let extreme = match (nth, loss) {
                    (0, _) => Some(to_image(durable)),
                    (1, _) => Some(stores.newest(durable)),
                    (_, 0) if rng.u8(0..4) > 0 => Some(to_image(durable)),
                    (_, 1) if rng.u8(0..4) > 0 => Some(stores.newest(durable)),
                    (_, 2) if rng.bool() => Some(to_image(durable)),
                    (_, 2) => Some(stores.newest(durable)),
                    _ => None,
                };
                let image = extreme.unwrap_or_else(|| stores.draw(rng, durable, self.bounds.order));
                bytes[bytes_of(line)].copy_from_slice(&image);
            }
            visit(bytes)?;
        }
        Ok(())
    }

    /// Describes the state of each line with pending stores.
    fn describe(&self, bytes: &[u8]) -> String {
        let mut found = Vec::new();
        for (&line, stores) in &self.pending.lines {
            let durable = self.pending.durable_line(line);
            let (newest, image) = (stores.newest(durable), &bytes[bytes_of(line)]);
            let state = match (image == durable, image == newest) {
                (true, true) => continue,
                (true, false) => "lost",
                (false, true) => "durable",
                (false, false) => "durable in part",
            };
            found.push(format!("line {line} {state}"));
        }
        if found.is_empty() { "no line is pending".to_owned() } else { found.join(", ") }
    }
}

/// Cuts the power at every point of the run.
pub(super) fn sweep<E>(
    initial: &[u8],
    operations: &[MemoryOperation],
    bounds: CrashBounds,
    mut check: impl FnMut(&CrashImage) -> Result<(), E>,
) -> Result<CrashSweep, CrashFailure<E>> {
    assert!(bounds.states_max > 1, "a sweep of no states checks nothing");
    let mut pending = PendingStores::new(initial);
    let mut sweep = CrashSweep { seed: bounds.seed, ..CrashSweep::default() };
    for point in 0..=operations.len() {
        let last = point.checked_sub(1).map(|number| (number, &operations[number]));
        if let Some((number, operation)) = last {
            pending.apply(number, operation);
        }
        sweep.points += 1;
        let states = PointStates { pending: &pending, bounds };
        let visit = |bytes: Vec<u8>| {
            sweep.states += 1;
            let image = CrashImage { point, bytes };
            check(&image).map_err(|reason| CrashFailure {
                point,
                after: last.map_or_else(|| "start".to_owned(), |(_, operation)| operation.to_string()),
                lines: states.describe(&image.bytes),
                sweep,
                reason,
            })
        };
        if let Some(lines) = states.images() {
            states.enumerate(&lines, visit)?;
        } else {
            // Each point has a seed of its own, so that a shorter run draws the same states.
            let mut rng = fastrand::Rng::with_seed(bounds.seed ^ (point as u64).wrapping_mul(0x9E37_79B9));
            states.sample(&mut rng, visit)?;
            sweep.sampled_points += 1;
        }
    }
    Ok(sweep)
}
