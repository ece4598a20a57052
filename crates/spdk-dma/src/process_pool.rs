//! The one pool of the process.
//!
//! In: the first call. Out: the pool, or nothing if it could not be opened. Invariant: it is opened once and never closed;
//! why it was not is said once, on standard error, which is all that SPDK's functions leave room for.

use crate::environment::{Misuse, Settings};
use headwater_dma::pool::{Pool, PoolError, Ticker};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

#[derive(Debug)]
struct Process {
    pool: Pool,
    misuse: Misuse,
    /// Lives as long as the pool.
    _ticker: Option<Ticker>,
}

static PROCESS: OnceLock<Option<Process>> = OnceLock::new();

fn process() -> Option<&'static Process> {
    PROCESS.get_or_init(open).as_ref()
}

#[cold]
fn open() -> Option<Process> {
    let settings = Settings::read(|name| std::env::var(name).ok());
    let settings = settings.map_err(|error| say(&error)).ok()?;
    let pool = Pool::open(settings.config).map_err(|error| say(&error)).ok()?;
    // Without a thread idle chunks stay, and everything else works.
    let ticker = pool.ticker().map_err(|error| say(&error)).ok();
    Some(Process { pool, misuse: settings.misuse, _ticker: ticker })
}

/// The pool, opened when it is first asked for.
#[inline]
pub(crate) fn pool() -> Option<&'static Pool> {
    process().map(|process| &process.pool)
}

#[expect(
    clippy::print_stderr,
    reason = "SPDK's functions return an address or nothing; this is where the reason goes"
)]
fn say(what: &dyn Display) {
    eprintln!("headwater: {what}");
}

/// Says what was wrong with a free, and ends the program if that was asked for.
#[cold]
pub(crate) fn misused(function: &str, address: usize, error: &PoolError) {
    say(&format_args!("{function}({address:#x}): {error}"));
    if process().is_some_and(|process| process.misuse == Misuse::Abort) {
        std::process::abort();
    }
}

/// Does the work of a call; what it comes to if it panics is `otherwise`.
#[inline]
pub(crate) fn guarded<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    // What a panic leaves behind is seen by other calls only through the pool, whose locks survive it.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(otherwise)
}
