//! The ways to do a job: by the CPU, by some channels, or by both, and the time of each.
//!
//! Input: the start and the rate of each engine. Output: the time at which all end together, which is the shortest.
//! Invariant: an engine that would get less than the smallest part is not part of the way; the way without it exists too.

use super::channel_traits::CHANNELS_MAX;

/// The most ways: the CPU, and for each number of channels those alone and with the CPU.
pub(super) const MIXES_MAX: usize = 1 + 2 * CHANNELS_MAX;

/// Classes of the number of engines that share one job: 1, 2, 3 to 4, 5 to 8, and more.
pub(super) const COMPANIES: usize = 5;

/// Returns the class of a number of engines. What engines leave each other of the memory's bandwidth depends on it.
pub(super) fn company_of(engines: usize) -> usize {
    match engines {
        0 | 1 => 0,
        2 => 1,
        3..=4 => 2,
        5..=8 => 3,
        _ => 4,
    }
}

/// A way to do a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EngineMix {
    pub(super) has_cpu: bool,
    /// The channels, the best ones first.
    pub(super) channels: usize,
}

impl EngineMix {
    pub(super) const CPU: Self = Self { has_cpu: true, channels: 0 };

    /// Returns the number by which this way is remembered.
    pub(super) const fn index(self) -> usize {
        match (self.channels, self.has_cpu) {
            (0, _) => 0,
            (channels, false) => 2 * channels - 1,
            (channels, true) => 2 * channels,
        }
    }

    /// Returns the number as a byte.
    pub(super) fn index_byte(self) -> u8 {
        u8::try_from(self.index()).unwrap_or(0)
    }

    pub(super) const fn engines(self) -> usize {
        self.channels + self.has_cpu as usize
    }

    /// Returns the next way to use up to so many channels: those with fewer engines come first. Beyond four channels the
    /// number doubles.
    pub(super) const fn next(self, channels: usize, splits: bool) -> Option<Self> {
        if splits && self.channels > 0 && !self.has_cpu {
            return Some(Self { has_cpu: true, channels: self.channels });
        }
        let next = if self.channels < 4 { self.channels + 1 } else { self.channels.saturating_mul(2) };
        let most = if splits || channels == 0 { channels } else { 1 };
        if self.channels >= most {
            return None;
        }
        Some(Self { has_cpu: false, channels: if next < most { next } else { most } })
    }

    /// Returns the ways to use up to so many channels.
    pub(super) fn all(channels: usize, splits: bool) -> impl Iterator<Item = Self> {
        std::iter::successors(Some(Self::CPU), move |mix| mix.next(channels, splits))
    }
}

/// The affine time of an engine for one job.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EngineTime {
    /// Nanoseconds before its first byte: fixed time and queue.
    pub(super) start: f64,
    /// Bytes for each nanosecond.
    pub(super) rate: f64,
}

/// Returns the time at which engines that share a job of so many bytes all end: f = (n/Bc - t0) / (n (1/Bc + 1/Bd)) for the
/// CPU and one channel. Returns `None` if an engine would have less than `part_min` bytes.
pub(super) fn common_end(engines: &[EngineTime], bytes: f64, part_min: f64) -> Option<f64> {
    if let [one] = engines {
        return Some(one.start.max(0.0) + bytes / one.rate);
    }
    let mut rate = 0.0;
    let mut work = bytes;
    for engine in engines {
        rate += engine.rate;
        work += engine.rate * engine.start;
    }
    let end = work / rate;
    engines.iter().all(|engine| (end - engine.start) * engine.rate >= part_min).then_some(end)
}
