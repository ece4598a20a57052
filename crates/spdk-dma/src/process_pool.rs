//! The single pool of the process.
//!
//! Input: the first call. Output: the pool, or `None` if it could not be opened. Invariant: it is opened once and never
//! closed; a failure to open is reported once, on standard error, because SPDK's functions return no error.

use crate::environment::{MisusePolicy, PoolSettings};
use headwater_dma::pool::{Pool, PoolError, PoolTicker};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

#[derive(Debug)]
struct ProcessPool {
    pool: Pool,
    misuse: MisusePolicy,
    /// Dropped with the pool.
    _ticker: Option<PoolTicker>,
}

static PROCESS: OnceLock<Option<ProcessPool>> = OnceLock::new();

fn process() -> Option<&'static ProcessPool> {
    PROCESS.get_or_init(open).as_ref()
}

#[cold]
fn open() -> Option<ProcessPool> {
    let settings = PoolSettings::read(|name| std::env::var(name).ok());
    let settings = settings.map_err(|error| print_error(&error)).ok()?;
    let pool = Pool::open(settings.config).map_err(|error| print_error(&error)).ok()?;
    // Without the thread idle chunks stay allocated, and everything else works.
    let ticker = pool.ticker().map_err(|error| print_error(&error)).ok();
    Some(ProcessPool { pool, misuse: settings.misuse, _ticker: ticker })
}

/// Returns the pool, opening it on the first call.
#[inline]
pub(crate) fn pool() -> Option<&'static Pool> {
    process().map(|process| &process.pool)
}

#[expect(
    clippy::print_stderr,
    reason = "SPDK's functions return no error; the reason goes to standard error"
)]
fn print_error(what: &dyn Display) {
    eprintln!("headwater: {what}");
}

/// Reports a wrong free, and ends the program if configured.
#[cold]
pub(crate) fn report_misuse(function: &str, address: usize, error: &PoolError) {
    print_error(&format_args!("{function}({address:#x}): {error}"));
    if process().is_some_and(|process| process.misuse == MisusePolicy::Abort) {
        std::process::abort();
    }
}

/// Runs the work of a call; returns `otherwise` if it panics.
#[inline]
pub(crate) fn catch_panic<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    // Other calls see the state after a panic only through the pool, whose locks survive it.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(otherwise)
}
