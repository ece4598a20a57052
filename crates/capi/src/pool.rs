//! Pools: opened, told, and closed.
//!
//! In: configurations and handles. Out: handles and codes. Invariant: a handle is good from open until the pool is closed
//! and the last of its buffers is back.

use crate::border::{Out, guarded};
use crate::code::Code;
use crate::config::{self, Config, Ticking};
use crate::fault::Fault;
use crate::handles::{self, PoolHandle};
use headwater_dma::pool::Pool;

/// Opens a pool and writes its handle to `out`. A null `config` stands for the defaults. Nothing is taken from the system
/// before something is asked for. A child of this process cannot use it.
///
/// # Safety
/// A `config` that is not null is one that hw_pool_config_init filled, its preset null or a string. An `out` that is
/// neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_open(config: *const Config, out: *mut *mut PoolHandle) -> Code {
    guarded(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::at(out, "out") }?;
        // SAFETY: the caller's promise.
        let (config, ticking) = unsafe { Config::read(config) }?;
        let pool = Pool::open(config)?;
        let ticker = match ticking {
            Ticking::Yes => Some(pool.ticker()),
            Ticking::No => None,
        };
        let ticker =
            ticker.transpose().map_err(|error| Fault::NoThread(error.raw_os_error().unwrap_or(0)))?;
        out.write(handles::add(pool, ticker)?);
        Ok(())
    })
}

/// Closes a pool. Nothing can be allocated from it any more, and who waits for memory is told. Buffers that are out stay
/// valid and are freed by the same handle; with the last of them the handle ends.
#[unsafe(no_mangle)]
pub extern "C" fn hw_pool_close(pool: *mut PoolHandle) -> Code {
    guarded(|| handles::find(pool)?.close())
}

/// Changes the cap, M. A lower one takes effect as buffers come back; idle chunks go at once.
#[unsafe(no_mangle)]
pub extern "C" fn hw_pool_set_cap(pool: *mut PoolHandle, cap_bytes: u64) -> Code {
    guarded(|| {
        let face = handles::find(pool)?.ours()?;
        Ok(face.pool.set_cap(config::bytes("cap_bytes", cap_bytes)?)?)
    })
}

/// Lets time have its effect: chunks that were idle for long go back to the system. For pools without a ticker, to be
/// called a few times in each idle time.
#[unsafe(no_mangle)]
pub extern "C" fn hw_pool_tick(pool: *mut PoolHandle) -> Code {
    guarded(|| {
        let face = handles::find(pool)?.ours()?;
        face.pool.tick(face.pool.config().time.now());
        Ok(())
    })
}
