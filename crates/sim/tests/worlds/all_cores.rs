//! Runs one check for many seeds on all cores.
//!
//! Input: numbers, and a check of each. Output: a panic that names those that failed. Invariant: a panic of a check is a
//! failure of its number.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Failures after which no further number runs.
const FAILURES_MAX: usize = 5;

/// Returns the number that an environment variable holds, if it is set.
pub(crate) fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// Returns the seeds to run, `count` of them unless the environment says otherwise.
pub(crate) fn seeds(count: u64) -> Range<u64> {
    let first = number("HEADWATER_SIM_FIRST").unwrap_or(0);
    first..first + number("HEADWATER_SIM_SEEDS").unwrap_or(count)
}

/// Runs `check` for every number in parallel.
///
/// # Panics
/// A check failed or panicked.
pub(crate) fn on_all_cores(numbers: Range<u64>, check: impl Fn(u64) -> Result<(), String> + Sync) {
    let next = AtomicU64::new(numbers.start);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= numbers.end || failures.lock().unwrap().len() >= FAILURES_MAX {
                        return;
                    }
                    let checked = catch_unwind(AssertUnwindSafe(|| check(number)));
                    let checked = checked.unwrap_or_else(|_| Err(format!("{number}: the device panicked")));
                    if let Err(failure) = checked {
                        failures.lock().unwrap().push((number, failure));
                    }
                }
            });
        }
    });
    let (failing, failures): (Vec<u64>, Vec<String>) = failures.into_inner().unwrap().into_iter().unzip();
    assert!(failing.is_empty(), "failing: {failing:?}\n\n{}", failures.join("\n\n"));
}
