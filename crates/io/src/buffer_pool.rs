//! A pool of memory that a device may touch, and the thread that gives its idle memory back.
//!
//! In: how the pool is laid out and who pins its chunks. Out: [`Buffer`]s. Invariant: nobody is told that no more can be pinned
//! before idle memory was given back.

use crate::buffer::Buffer;
use crate::error::IoError;
use headwater_dma::pool::{Pool, PoolConfig, PoolError, Ticker};

/// The pool and its thread.
#[derive(Debug)]
pub(crate) struct BufferPool {
    pool: Pool,
    _ticker: Ticker,
}

impl BufferPool {
    /// Opens a pool.
    pub(crate) fn open(config: PoolConfig) -> Result<Self, IoError> {
        let pool = Pool::open(config)?;
        let ticker = pool.ticker().map_err(|error| IoError::Device { reason: error.to_string() })?;
        Ok(Self { pool, _ticker: ticker })
    }

    /// A buffer of at least one byte. Where no more can be pinned, idle memory is given back and it is asked again.
    pub(crate) fn buffer(&self, bytes: usize) -> Result<Buffer, PoolError> {
        let found = match self.pool.buffer(bytes.max(1)) {
            Err(PoolError::Pin(_)) if self.pool.trim() > 0 => self.pool.buffer(bytes.max(1)),
            found => found,
        };
        found.map(Buffer::pooled)
    }

    /// The pool.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }
}
