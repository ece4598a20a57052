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
use std::sync::{Arc, OnceLock};

/// The pool and its thread.
#[derive(Clone, Debug)]
pub(crate) struct BufferPool {
    pool: Pool,
    /// `None` for the pool of the process, whose thread is not that of a device.
    _ticker: Option<Arc<PoolTicker>>,
}

/// The thread of the pool of the process, once a device uses that pool.
static PROCESS_TICKER: OnceLock<Option<PoolTicker>> = OnceLock::new();

impl BufferPool {
    /// Opens a pool.
    pub(crate) fn open(config: PoolConfig) -> Result<Self, IoError> {
        let pool = Pool::open(config)?;
        let ticker = pool.ticker().map_err(|error| IoError::Device { reason: error.to_string() })?;
        Ok(Self { pool, _ticker: Some(Arc::new(ticker)) })
    }

    /// Opens the pool of a device that needs no registration: the process's, or one of its own if settings are named.
    pub(crate) fn open_unregistered(settings: &PoolSettings) -> Result<Self, IoError> {
        if !settings.is_default() {
            return Self::open(settings.unregistered()?);
        }
        let pool = Pool::of_process()?;
        // Without a thread, idle memory stays until the process ends, which is no reason to refuse a device.
        PROCESS_TICKER.get_or_init(|| pool.ticker().ok());
        Ok(Self { pool, _ticker: None })
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
