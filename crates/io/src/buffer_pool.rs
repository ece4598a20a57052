//! A pool of memory that a device may access, and the thread that releases its idle memory.
//!
//! Input: the pool's layout and the pinner of its chunks. Output: [`Buffer`]s. Invariant: a failure to pin is reported
//! only after idle memory was released.

use crate::buffer::Buffer;
use crate::error::IoError;
use crate::pool_settings::PoolSettings;
use headwater_dma::buffer::PoolAllocation;
use headwater_dma::pool::{Pool, PoolConfig, PoolError, PoolRequest, PoolTicker};
use headwater_host::clock::Nanos;

/// The pool and its thread.
#[derive(Debug)]
pub(crate) struct BufferPool {
    pool: Pool,
    _ticker: PoolTicker,
}

impl BufferPool {
    /// Opens a pool.
    pub(crate) fn open(config: PoolConfig) -> Result<Self, IoError> {
        let pool = Pool::open(config)?;
        let ticker = pool.ticker().map_err(|error| IoError::Device { reason: error.to_string() })?;
        Ok(Self { pool, _ticker: ticker })
    }

    /// Allocates a buffer of at least one byte. If pinning fails, releases idle memory and retries.
    pub(crate) fn buffer(&self, bytes: usize) -> Result<Buffer, PoolError> {
        retry_trimmed(&self.pool, || self.pool.buffer(bytes.max(1))).map(Buffer::from_pool)
    }

    /// Returns the pool.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }
}

/// Returns the pool of a device that needs no registration: the process's, or one of its own if settings are named.
pub(crate) fn open_unregistered(settings: &PoolSettings) -> Result<Pool, IoError> {
    if settings.is_default() { Ok(Pool::of_process()?) } else { Ok(Pool::open(settings.unregistered()?)?) }
}

/// Allocates memory for a request, and waits for it if `wait` is given. If pinning fails, releases idle memory and
/// retries.
pub(crate) fn allocate(
    pool: &Pool,
    request: &PoolRequest,
    wait: Option<Nanos>,
) -> Result<PoolAllocation, PoolError> {
    retry_trimmed(pool, || match wait {
        Some(span) => pool.allocate_within(request, span),
        None => pool.allocate(request),
    })
}

fn retry_trimmed<T>(pool: &Pool, allocate: impl Fn() -> Result<T, PoolError>) -> Result<T, PoolError> {
    match allocate() {
        Err(PoolError::Pin(_)) if pool.trim() > 0 => allocate(),
        found => found,
    }
}
