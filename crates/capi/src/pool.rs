//! Pools: opened, adjusted, and closed.
//!
//! Input: configurations and handles. Output: handles and codes. Invariant: a handle is valid from open until the pool
//! is closed and the last of its buffers is freed.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::config::{self, HwPoolConfig, TickerMode};
use crate::ffi::{OutPointer, run_call};
use crate::pool_handles::{self, PoolHandle};
use headwater_dma::pool::Pool;

/// Opens a pool and writes its handle to `out`. A null `config` selects the defaults. No memory is taken from the
/// system before the first allocation. A child of this process cannot use the pool. hw_pool_close closes it.
///
/// # Safety
/// A `config` that is not null was filled by hw_pool_config_init, its preset null or a string. An `out` that is
/// neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_open(config: *const HwPoolConfig, out: *mut *mut PoolHandle) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        // SAFETY: the caller's promise.
        let (config, ticking) = unsafe { HwPoolConfig::read(config) }?;
        let pool = Pool::open(config)?;
        let ticker = match ticking {
            TickerMode::Yes => Some(pool.ticker()),
            TickerMode::No => None,
        };
        let ticker =
            ticker.transpose().map_err(|error| CallError::NoThread(error.raw_os_error().unwrap_or(0)))?;
        out.write(pool_handles::add(pool, ticker)?);
        Ok(())
    })
}

/// Closes a pool. Further and waiting allocations fail with HW_CODE_CLOSED. Allocated buffers stay valid and are freed
/// by the same handle, which ends with the last of them.
#[unsafe(no_mangle)]
pub extern "C" fn hw_pool_close(pool: *mut PoolHandle) -> ResultCode {
    run_call(|| pool_handles::find(pool)?.close())
}

/// Changes the cap, M. A lower cap takes effect as buffers are freed; idle chunks are returned to the system at once.
#[unsafe(no_mangle)]
pub extern "C" fn hw_pool_set_cap(pool: *mut PoolHandle, cap_bytes: u64) -> ResultCode {
    run_call(|| {
        let open_pool = pool_handles::find(pool)?.of_this_process()?;
        Ok(open_pool.pool.set_cap(config::bytes("cap_bytes", cap_bytes)?)?)
    })
}

/// Returns chunks that were idle for the idle time to the system. For pools without a ticker: call it a few times in
/// each idle time.
#[unsafe(no_mangle)]
pub extern "C" fn hw_pool_tick(pool: *mut PoolHandle) -> ResultCode {
    run_call(|| {
        let open_pool = pool_handles::find(pool)?.of_this_process()?;
        open_pool.pool.tick(open_pool.pool.config().clock.now());
        Ok(())
    })
}
