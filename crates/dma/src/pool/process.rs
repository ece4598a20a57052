//! The default pool of the process, for callers that have no pool of their own.
//!
//! Input: none. Output: a handle to the same pool every time. Invariant: it is opened once, on first use, and never
//! closed.

use super::{Pool, PoolConfig, PoolError, STATIC_BYTES_DEFAULT};
use std::sync::OnceLock;

/// The cap of the process's pool. Address space costs nothing; memory is committed as it is used.
pub const PROCESS_POOL_CAP: usize = 8 << 30;

static POOL: OnceLock<Result<Pool, PoolError>> = OnceLock::new();

impl Pool {
    /// Returns the pool of the process, unpinned and with a cap of [`PROCESS_POOL_CAP`] bytes. A program with its own cap
    /// opens its own pool and passes that on.
    ///
    /// # Errors
    /// It could not be opened on first use: no address space.
    pub fn of_process() -> Result<Self, PoolError> {
        let open = || {
            Self::open(PoolConfig {
                cap: PROCESS_POOL_CAP,
                cap_max: PROCESS_POOL_CAP,
                static_bytes: STATIC_BYTES_DEFAULT,
                ..PoolConfig::default()
            })
        };
        POOL.get_or_init(open).clone()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_call_returns_the_same_pool() {
        let held = Pool::of_process().unwrap().buffer(4_096).unwrap();
        let found = Pool::of_process().unwrap().lookup(held.as_ptr());
        assert!(found.is_some());
    }
}
