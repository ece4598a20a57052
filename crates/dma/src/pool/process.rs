//! The pool of the process: where whoever was given no pool finds one.
//!
//! In: nothing. Out: a handle to the same pool every time. Invariant: it is opened once, by whoever asks first, and is
//! never closed.

use super::{Pool, PoolConfig, PoolError};
use std::sync::OnceLock;

/// The cap of the process's pool. Addresses cost nothing; memory is taken as it is used.
pub const PROCESS_CAP: usize = 8 << 30;

static POOL: OnceLock<Result<Pool, PoolError>> = OnceLock::new();

impl Pool {
    /// The pool of the process, of [`PROCESS_CAP`] bytes at most and not pinned. A program that has a cap of its own to
    /// keep opens a pool of its own and passes it on.
    ///
    /// # Errors
    /// It could not be opened when it was first asked for: there are no addresses.
    pub fn of_process() -> Result<Self, PoolError> {
        let open =
            || Self::open(PoolConfig { cap: PROCESS_CAP, cap_max: PROCESS_CAP, ..PoolConfig::default() });
        POOL.get_or_init(open).clone()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn everybody_gets_the_same_pool() {
        let held = Pool::of_process().unwrap().buffer(4_096).unwrap();
        let found = Pool::of_process().unwrap().lookup(held.as_ptr());
        assert!(found.is_some());
    }
}
