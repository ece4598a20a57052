//! Measurement methods that give stable figures on a shared machine.
//!
//! Input: closures that do the work and return its cost.
//! Output: medians with minimum and maximum, and ratios of adjacent samples.
//! Invariants: the first round of each closure is discarded (cold caches, cold branches); compared work is interleaved,
//! and each round starts with another closure, so that other load on the machine slows all alike; CPU time is counted,
//! not elapsed time, if one thread does the work.

use headwater_host::clock::{Clock, Nanos};
use rustix::thread::CpuSet;
use serde::Serialize;

/// The median, minimum and maximum of a set of samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SampleSpread {
    /// The median sample.
    pub median: f64,
    /// The lowest sample.
    pub min: f64,
    /// The highest sample.
    pub max: f64,
}

impl SampleSpread {
    /// Computes the spread of these samples; `None` if there are none or one is not finite.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self { median, min: sorted[0], max: sorted[sorted.len() - 1] })
    }

    /// Computes the spread of the quotients of samples with the same index.
    #[must_use]
    pub fn of_ratios(numerators: &[f64], denominators: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = numerators
            .iter()
            .zip(denominators)
            .map(|(numerator, denominator)| numerator / denominator)
            .collect();
        Self::of(&ratios)
    }
}

/// A unit of compared work, which returns the cost of one round.
pub type CompareCase<'a, T, E> = &'a mut dyn FnMut() -> Result<T, E>;

/// Runs all contestants interleaved: one round unrecorded, then `rounds` recorded, each round starting with another
/// contestant. Returns the samples of each, in the order given; samples with the same index are adjacent in time.
///
/// # Errors
/// The first error of any contestant.
pub fn run_interleaved<T, E>(
    rounds: usize,
    contestants: &mut [CompareCase<'_, T, E>],
) -> Result<Vec<Vec<T>>, E> {
    let count = contestants.len();
    let mut samples: Vec<Vec<T>> = (0..count).map(|_| Vec::with_capacity(rounds)).collect();
    for round in 0..=rounds {
        for turn in 0..count {
            let index = (round + turn) % count;
            let cost = contestants[index]()?;
            if round > 0 {
                samples[index].push(cost);
            }
        }
    }
    Ok(samples)
}

/// Returns the CPU time that this thread spends in `work`.
pub fn cpu_of(work: impl FnOnce()) -> Nanos {
    let before = Clock::thread_cpu();
    work();
    Clock::thread_cpu().since(before)
}

/// Returns the nanoseconds of CPU time for each of the `count` operations that `work` does.
#[expect(clippy::cast_precision_loss, reason = "52 bits of nanoseconds are 52 days")]
pub fn cpu_ns_each(count: u64, work: impl FnOnce()) -> f64 {
    cpu_of(work).0 as f64 / count.max(1) as f64
}

/// The state of the calling thread: pinned to one core or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PinState {
    /// The thread is pinned.
    Yes,
    /// The kernel refused to pin it; figures vary more.
    No,
}

/// A guard that pins the calling thread to its current core, if the kernel allows it, until the guard is dropped.
#[derive(Debug)]
pub struct CorePin {
    before: Option<CpuSet>,
}

impl CorePin {
    /// Pins the calling thread to the core it runs on.
    #[must_use]
    pub fn current_core() -> Self {
        Self::to_core(rustix::thread::sched_getcpu())
    }

    fn to_core(core: usize) -> Self {
        let Ok(before) = rustix::thread::sched_getaffinity(None) else {
            return Self { before: None };
        };
        let pinned = rustix::thread::sched_setaffinity(None, &one(core)).is_ok();
        Self { before: pinned.then_some(before) }
    }

    /// Returns [`PinState::Yes`] if the kernel pinned the thread.
    #[must_use]
    pub fn is_pinned(&self) -> PinState {
        if self.before.is_some() { PinState::Yes } else { PinState::No }
    }
}

/// The cores of a comparison of processes: one for the server, another for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CorePair {
    /// Core of the server's thread.
    pub(crate) server: usize,
    /// Core of the client's thread.
    pub(crate) client: usize,
}

impl CorePair {
    /// Returns the first two cores that this process may use; `None` if there is only one.
    pub(crate) fn first() -> Option<Self> {
        let allowed = rustix::thread::sched_getaffinity(None).ok()?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
        Some(Self { server: cores.next()?, client: cores.next()? })
    }

    /// Pins a thread of a server, which is a process or a thread id. Without permission it stays unpinned: figures then
    /// vary more.
    pub(crate) fn pin_server(self, thread: u32) {
        let thread = i32::try_from(thread).ok().and_then(rustix::process::Pid::from_raw);
        let _unpinned =
            thread.map(|thread| rustix::thread::sched_setaffinity(Some(thread), &one(self.server)));
    }

    /// Pins the calling thread until the guard is dropped.
    pub(crate) fn pin_client(self) -> CorePin {
        CorePin::to_core(self.client)
    }
}

fn one(core: usize) -> CpuSet {
    let mut cores = CpuSet::new();
    cores.set(core);
    cores
}

impl Drop for CorePin {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // If the mask cannot be restored, the thread stays pinned.
            let _ = rustix::thread::sched_setaffinity(None, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::convert::Infallible;

    #[test]
    fn spread_is_median_minimum_and_maximum() {
        let odd = SampleSpread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.min, odd.median, odd.max), (1.0, 2.0, 3.0));
        let even = SampleSpread::of(&[4.0, 1.0, 2.0, 3.0]).unwrap();
        assert!((even.median - 2.5).abs() < 1e-12);
        assert_eq!(SampleSpread::of(&[]), None);
        assert_eq!(SampleSpread::of(&[1.0, f64::NAN]), None);
        assert_eq!(SampleSpread::of_ratios(&[1.0], &[0.0]), None);
    }

    #[test]
    fn ratios_pair_samples_of_the_same_round() {
        // Other load doubled the cost of the second round of both: the ratio is unaffected.
        let ratio = SampleSpread::of_ratios(&[1.0, 2.0], &[2.0, 4.0]).unwrap();
        assert_eq!((ratio.min, ratio.max), (0.5, 0.5));
    }

    #[test]
    fn rounds_are_interleaved_and_the_first_is_discarded() {
        let order = RefCell::new(String::new());
        let mut a = || {
            order.borrow_mut().push('a');
            Ok::<f64, Infallible>(1.0)
        };
        let mut b = || {
            order.borrow_mut().push('b');
            Ok(2.0)
        };
        let samples = run_interleaved(2, &mut [&mut a, &mut b]).unwrap();
        assert_eq!(*order.borrow(), "abbaab");
        assert_eq!(samples, vec![vec![1.0, 1.0], vec![2.0, 2.0]]);
    }

    #[test]
    fn error_of_one_contestant_ends_the_comparison() {
        let mut calls = 0;
        let mut fails = || {
            calls += 1;
            if calls == 2 { Err("broken") } else { Ok(1) }
        };
        assert_eq!(run_interleaved(5, &mut [&mut fails]), Err("broken"));
        assert_eq!(calls, 2);
    }

    #[test]
    fn work_has_a_cpu_cost() {
        let spent = cpu_of(|| {
            let mut sum = 0_u64;
            for i in 0..2_000_000_u64 {
                sum = std::hint::black_box(sum.wrapping_add(i));
            }
        });
        assert!(spent.0 > 0);
    }

    #[test]
    fn dropped_pin_restores_the_affinity() {
        let before = rustix::thread::sched_getaffinity(None).unwrap().count();
        let pin = CorePin::current_core();
        if pin.is_pinned() == PinState::Yes {
            assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), 1);
        }
        drop(pin);
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), before);
    }
}
