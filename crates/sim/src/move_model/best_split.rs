//! The best split of a job, searched exhaustively.
//!
//! Input: a machine, a length, and the load. Output: the bytes of each engine that end first. Invariant: every split of the
//! job in equal steps is tried; the best of them are then refined until a shift of a cache line gains nothing.

use super::machine::{MoveMachine, to_float};
use headwater_dma::mover::policy::{CHANNELS_MAX, ChannelLoad};

/// The smallest shift of the refinement, in bytes: a cache line.
const SHIFT_MIN: f64 = 64.0;
/// Splits that are refined.
const REFINED: usize = 3;

/// A split of a job and its time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BestSplit {
    /// The time at which the job ends, in nanoseconds.
    pub end_ns: f64,
    /// The bytes of the CPU.
    pub cpu_bytes: f64,
    /// The bytes of the channels.
    pub channel_bytes: [f64; CHANNELS_MAX],
}

/// Searches the best split of a job.
#[must_use]
pub fn best_split(machine: &MoveMachine, bytes: u64, loads: &[ChannelLoad]) -> BestSplit {
    let steps: u32 = match machine.channels.len() {
        0 | 1 => 128,
        2 => 32,
        3 => 16,
        _ => 10,
    };
    let mut search =
        SplitSearch { machine, loads, step: to_float(bytes) / f64::from(steps), found: Vec::new() };
    search.try_all(0, steps, &mut [0.0; CHANNELS_MAX]);
    let starts = std::mem::take(&mut search.found);
    let refined = starts.into_iter().map(|split| search.refine(split));
    refined.min_by(|a, b| a.end_ns.total_cmp(&b.end_ns)).unwrap_or_default()
}

struct SplitSearch<'a> {
    machine: &'a MoveMachine,
    loads: &'a [ChannelLoad],
    step: f64,
    /// The best splits, best first.
    found: Vec<BestSplit>,
}

impl SplitSearch<'_> {
    fn timed(&self, cpu_bytes: f64, channel_bytes: [f64; CHANNELS_MAX]) -> BestSplit {
        let end_ns = self.machine.times(cpu_bytes, &channel_bytes, self.loads).end();
        BestSplit { end_ns, cpu_bytes, channel_bytes }
    }

    /// Tries every split of so many steps over the channels from `channel` on; the CPU has the rest.
    fn try_all(&mut self, channel: usize, steps: u32, parts: &mut [f64; CHANNELS_MAX]) {
        if channel == self.machine.channels.len() {
            let split = self.timed(f64::from(steps) * self.step, *parts);
            let at = self.found.partition_point(|found| found.end_ns <= split.end_ns);
            self.found.insert(at, split);
            self.found.truncate(REFINED);
            return;
        }
        for taken in 0..=steps {
            parts[channel] = f64::from(taken) * self.step;
            self.try_all(channel + 1, steps - taken, parts);
        }
        parts[channel] = 0.0;
    }

    /// Shifts bytes between engines while that makes the split faster.
    fn refine(&self, mut best: BestSplit) -> BestSplit {
        let engines = self.machine.channels.len() + 1;
        let mut shift = self.step / 2.0;
        while shift >= SHIFT_MIN {
            let mut improved = false;
            for (from, to) in (0..engines * engines).map(|pair| (pair / engines, pair % engines)) {
                let mut bytes = [0.0; CHANNELS_MAX + 1];
                bytes[..engines - 1].copy_from_slice(&best.channel_bytes[..engines - 1]);
                bytes[engines - 1] = best.cpu_bytes;
                if from == to || bytes[from] <= 0.0 {
                    continue;
                }
                let moved = shift.min(bytes[from]);
                bytes[from] -= moved;
                bytes[to] += moved;
                let mut channel_bytes = [0.0; CHANNELS_MAX];
                channel_bytes[..engines - 1].copy_from_slice(&bytes[..engines - 1]);
                let split = self.timed(bytes[engines - 1], channel_bytes);
                if split.end_ns < best.end_ns * (1.0 - 1e-9) {
                    (best, improved) = (split, true);
                }
            }
            if !improved {
                shift /= 2.0;
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::{AffineTime, BandwidthSharing, ChannelModel};
    use super::*;

    #[test]
    fn search_finds_the_affine_split_where_it_is_known() {
        let machine = MoveMachine {
            cpu: AffineTime { fixed_ns: 0.0, bytes_per_ns: 9.6 },
            submit_ns: 0.0,
            channels: vec![ChannelModel::affine(1_160.0, 29.9)],
            ceiling_bytes_per_ns: 1e9,
            sharing: BandwidthSharing::Proportional,
        };
        // f = (n/Bc - t0) / (n (1/Bc + 1/Bd)), and the CPU alone where it is negative.
        for (kibibytes, share, micros) in
            [(8, 0.0, 0.85), (16, 0.24, 1.29), (64, 0.63, 2.54), (1_024, 0.75, 27.4)]
        {
            let bytes = kibibytes << 10;
            let best = best_split(&machine, bytes, &[]);
            assert!((best.end_ns / 1_000.0 / micros - 1.0).abs() < 0.01, "{kibibytes} KiB: {best:?}");
            assert!(
                (best.channel_bytes[0] / to_float(bytes) - share).abs() < 0.01,
                "{kibibytes} KiB: {best:?}"
            );
        }
    }
}
