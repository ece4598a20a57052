//! A pool of memory that a device may access, and the thread that releases its idle memory.
//!
//! Input: the pool's layout and the pinner of its chunks. Output: [`Buffer`]s. Invariant: a failure to pin is reported
//! only after idle memory was released.

use crate::buffer::Buffer;
use crate::error::IoError;
use headwater_dma::pool::{Pool, PoolConfig, PoolError, PoolTicker};

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
        let found = match self.pool.buffer(bytes.max(1)) {
            Err(PoolError::Pin(_)) if self.pool.trim() > 0 => self.pool.buffer(bytes.max(1)),
            found => found,
        };
        found.map(Buffer::from_pool)
    }

    /// Returns the pool.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }
}
