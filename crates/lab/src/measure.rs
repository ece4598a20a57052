//! How a figure is taken so that it survives a shared machine.
//!
//! In: closures that do the work and say what it cost. Out: medians with the lowest and highest beside them, and ratios
//! of neighbours in time. Invariants: the first round of everything is thrown away (cold caches, cold branches); what is
//! compared runs in turns, each round in another order, so that a busy neighbour slows all alike; CPU time is counted,
//! not elapsed time, wherever the work is one thread's.

use headwater_host::clock::{Clock, Nanos};
use rustix::thread::CpuSet;
use serde::Serialize;

/// A median and how far the samples lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle sample.
    pub median: f64,
    /// The lowest sample.
    pub min: f64,
    /// The highest sample.
    pub max: f64,
}

impl Spread {
    /// Of these samples; `None` when there are none or one is not finite.
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

    /// The spread of sample by sample quotients: ratios of what ran side by side.
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

/// Something that is compared: its work, which returns what one round of it cost.
pub type Contestant<'a, T, E> = &'a mut dyn FnMut() -> Result<T, E>;

/// Runs all contestants in turns: one round unrecorded, then `rounds` recorded, each round beginning with another
/// contestant. Returns the samples of each, in the order given; samples with the same index ran side by side.
///
/// # Errors
/// The first error of any contestant.
pub fn in_turns<T, E>(rounds: usize, contestants: &mut [Contestant<'_, T, E>]) -> Result<Vec<Vec<T>>, E> {
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

/// CPU time that this thread spends in `work`.
pub fn cpu_of(work: impl FnOnce()) -> Nanos {
    let before = Clock::thread_cpu();
    work();
    Clock::thread_cpu().since(before)
}

/// Nanoseconds of CPU for each of `count` operations that `work` does.
#[expect(clippy::cast_precision_loss, reason = "52 bits of nanoseconds are 52 days")]
pub fn cpu_ns_each(count: u64, work: impl FnOnce()) -> f64 {
    cpu_of(work).0 as f64 / count.max(1) as f64
}

/// Whether the calling thread stays on one core from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Pinned {
    /// It stays.
    Yes,
    /// The kernel did not let it; figures wander more.
    No,
}

/// Keeps the calling thread on the core it is on, where the kernel allows it, until the guard goes.
#[derive(Debug)]
pub struct Pin {
    before: Option<CpuSet>,
}

impl Pin {
    /// Pins the calling thread to the core it runs on.
    #[must_use]
    pub fn here() -> Self {
        let Ok(before) = rustix::thread::sched_getaffinity(None) else {
            return Self { before: None };
        };
        let mut one = CpuSet::new();
        one.set(rustix::thread::sched_getcpu());
        let pinned = rustix::thread::sched_setaffinity(None, &one).is_ok();
        Self { before: pinned.then_some(before) }
    }

    /// Whether it worked.
    #[must_use]
    pub fn is_pinned(&self) -> Pinned {
        if self.before.is_some() { Pinned::Yes } else { Pinned::No }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // If the mask cannot be put back the thread merely stays where it is.
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
    fn a_spread_is_the_middle_and_the_ends() {
        let odd = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.min, odd.median, odd.max), (1.0, 2.0, 3.0));
        let even = Spread::of(&[4.0, 1.0, 2.0, 3.0]).unwrap();
        assert!((even.median - 2.5).abs() < 1e-12);
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[1.0, f64::NAN]), None);
        assert_eq!(Spread::of_ratios(&[1.0], &[0.0]), None);
    }

    #[test]
    fn ratios_are_taken_between_neighbours_in_time() {
        // A neighbour doubled the cost of the second round of both: the ratio does not notice.
        let ratio = Spread::of_ratios(&[1.0, 2.0], &[2.0, 4.0]).unwrap();
        assert_eq!((ratio.min, ratio.max), (0.5, 0.5));
    }

    #[test]
    fn contestants_take_turns_and_the_first_round_does_not_count() {
        let order = RefCell::new(String::new());
        let mut a = || {
            order.borrow_mut().push('a');
            Ok::<f64, Infallible>(1.0)
        };
        let mut b = || {
            order.borrow_mut().push('b');
            Ok(2.0)
        };
        let samples = in_turns(2, &mut [&mut a, &mut b]).unwrap();
        assert_eq!(*order.borrow(), "abbaab");
        assert_eq!(samples, vec![vec![1.0, 1.0], vec![2.0, 2.0]]);
    }

    #[test]
    fn a_contestants_error_ends_the_comparison() {
        let mut calls = 0;
        let mut fails = || {
            calls += 1;
            if calls == 2 { Err("broken") } else { Ok(1) }
        };
        assert_eq!(in_turns(5, &mut [&mut fails]), Err("broken"));
        assert_eq!(calls, 2);
    }

    #[test]
    fn work_costs_cpu_and_waiting_does_not_count_as_more() {
        let spent = cpu_of(|| {
            let mut sum = 0_u64;
            for i in 0..2_000_000_u64 {
                sum = std::hint::black_box(sum.wrapping_add(i));
            }
        });
        assert!(spent.0 > 0);
    }

    #[test]
    fn a_pin_is_taken_off_again() {
        let before = rustix::thread::sched_getaffinity(None).unwrap().count();
        let pin = Pin::here();
        if pin.is_pinned() == Pinned::Yes {
            assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), 1);
        }
        drop(pin);
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), before);
    }
}
