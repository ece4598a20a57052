//! Block caches that several threads share, each through handles of its own.
//!
//! Input: queues, a configuration. Output: caches, handles, totals. Invariant: a cache ends only when no handle of it is
//! open; a destroyed cache returns its queue.

use crate::call_error::CallError;
use crate::client_buffers::ClientBuffers;
use crate::code::ResultCode;
use crate::device_memory::{AllocationError, allocate_buffer};
use crate::ffi::{OutPointer, read_sized, run_call, write_sized};
use crate::handle::{HANDLES, IoHandle, OpenHandle};
use crate::handle_table::HandleTable;
use crate::queue::{QUEUES, QueueHandle};
use headwater::ClientNamespace;
use headwater::IoError;
use headwater::SubmitError;
use headwater::host::clock::Nanos;
use headwater::io::cache::{
    BackgroundWork, CLOSE_WAIT_MAX, CacheConfig, CacheStatistics, HandleBacking, PAGE_BYTES, SharedCache,
    WritePolicy,
};
use headwater::io::cached_handle::CachedHandle;
use headwater::io::error::CacheError;
use headwater::io::handle::Handle;
use headwater_host::width::to_usize;
use std::sync::Arc;

/// Maximum number of caches that C can have at a time.
const CACHES_MAX: usize = 128;

/// A block cache for several threads.
#[derive(Debug)]
pub struct CacheHandle {
    _opaque: (),
}

/// The configuration of a cache. Fill it with hw_cache_config_init, then change fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HwCacheConfig {
    /// Bytes of this struct. hw_cache_config_init sets it.
    pub struct_bytes: usize,
    /// Bytes of the cache, rounded up to pages of 4,096.
    pub bytes: u64,
    /// Nanoseconds after which a written page goes to the device, although no call is made.
    pub dirty_age_ns: u64,
    /// Maximum nanoseconds for which the end of the process or of the last handle waits for written pages.
    pub close_wait_ns: u64,
    /// 1: writes complete when the cache has them. 0: when the device has them too.
    pub write_back: u32,
    /// 1: a thread of the cache writes back. 0: only calls of its handles do, and without calls nothing is written.
    pub thread: u32,
}

/// The totals of a cache since its creation, and its current state.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheTotals {
    /// Pages accessed and found in the cache.
    pub hits: u64,
    /// Pages accessed that had to be read from the device, or were being read.
    pub misses: u64,
    /// Pages read before they were needed.
    pub prefetched: u64,
    /// Writes of pages to the device, each of one page or several adjacent ones.
    pub write_backs: u64,
    /// Pages in these writes.
    pub pages_written: u64,
    /// Failed write-backs of pages, counted for each attempt.
    pub write_failures: u64,
    /// Pages evicted.
    pub evictions: u64,
    /// Bytes of pages that the device does not have yet.
    pub dirty_bytes: u64,
    /// Bytes of cached pages.
    pub resident_bytes: u64,
    /// Bytes that the cache has room for.
    pub capacity_bytes: u64,
}

impl From<CacheStatistics> for CacheTotals {
    fn from(now: CacheStatistics) -> Self {
        Self {
            hits: now.hits,
            misses: now.misses,
            prefetched: now.prefetched,
            write_backs: now.write_backs,
            pages_written: now.pages_written,
            write_failures: now.write_failures,
            evictions: now.evictions,
            dirty_bytes: now.dirty_bytes,
            resident_bytes: now.resident_bytes,
            capacity_bytes: now.capacity_bytes,
        }
    }
}

/// The object behind a cache.
#[derive(Debug)]
struct OpenCache {
    /// The user that keeps the cache while no handle is open. Its handle is that of the cache.
    anchor: CachedHandle,
    facts: ClientNamespace,
    device: usize,
    buffers: Arc<ClientBuffers>,
    /// The number of the queue's own handle.
    queue: usize,
}

static CACHES: HandleTable<OpenCache, CACHES_MAX> = HandleTable::new("cache");

impl HwCacheConfig {
    fn new(bytes: u64) -> Self {
        let defaults = CacheConfig::default();
        Self {
            struct_bytes: size_of::<Self>(),
            bytes,
            dirty_age_ns: defaults.dirty_age.0,
            close_wait_ns: CLOSE_WAIT_MAX.0,
            write_back: 1,
            thread: 1,
        }
    }

    /// Reads the configuration that C passed.
    ///
    /// # Safety
    /// A pointer that is neither null nor misaligned points to a `usize`; if its value is the length of a
    /// [`HwCacheConfig`], the pointer points to a `HwCacheConfig`.
    unsafe fn read(config: *const Self) -> Result<Self, CallError> {
        // SAFETY: the caller's promise.
        unsafe { read_sized(config, "config") }
    }

    fn validate(&self) -> Result<CacheConfig, CallError> {
        let either = |field, value: u32| match value {
            0 | 1 => Ok(value == 1),
            _ => Err(CallError::InvalidValue { field, value: value.into(), choice: "0 or 1" }),
        };
        let policy =
            if either("write_back", self.write_back)? { WritePolicy::Back } else { WritePolicy::Through };
        let background =
            if either("thread", self.thread)? { BackgroundWork::Thread } else { BackgroundWork::Callers };
        let pages = to_usize(self.bytes.div_ceil(PAGE_BYTES as u64));
        let defaults = CacheConfig::default();
        // Blocks of memory small enough for a small cache.
        let block_pages = pages.max(1).next_power_of_two().min(defaults.block_pages);
        let dirty_age = Nanos(self.dirty_age_ns);
        Ok(CacheConfig { policy, pages, block_pages, dirty_age, background, ..defaults })
    }
}

/// Returns the function that allocates a cache's memory from the pool of a device.
fn memory_of(device: usize) -> impl FnMut(usize) -> Result<headwater::Buffer, IoError> {
    move |bytes| {
        allocate_buffer(device, bytes).map_err(|error| match error {
            AllocationError::Device(_) => IoError::Submit(SubmitError::Gone),
            AllocationError::Pool(error) => error,
        })
    }
}

/// Takes a queue of a device and makes a handle over it.
fn handle_over(
    queue: *mut QueueHandle,
    device: Option<usize>,
) -> Result<(Handle, OpenCacheParts), CallError> {
    QUEUES.with_waiting(queue, |open| {
        if device.is_some_and(|device| device != open.device) {
            return Err(CallError::OtherDevice);
        }
        let parts = OpenCacheParts {
            facts: open.facts.clone(),
            device: open.device,
            buffers: Arc::clone(&open.buffers),
        };
        Ok((Handle::builder(&open.facts).queue(open.take()?).build()?, parts))
    })
}

/// The properties of a queue's device that a cache over the queue needs.
#[derive(Debug)]
struct OpenCacheParts {
    facts: ClientNamespace,
    device: usize,
    buffers: Arc<ClientBuffers>,
}

/// Detaches the queue of a handle with nothing in flight, and makes it available again.
fn return_queue(mut handle: Handle, queue: usize) -> Result<(), CallError> {
    for name in handle.queues() {
        if let Some(link) = handle.detach(name, None)? {
            let number: *const QueueHandle = std::ptr::without_provenance(queue);
            // A queue that was destroyed in between takes nothing back.
            let _ = QUEUES.with_waiting(number, |open| {
                open.put_back(link);
                Ok(())
            });
        }
    }
    Ok(())
}

/// Writes the defaults for a cache of `bytes` bytes: written pages go to the device after 5 s, by a thread of the cache.
/// `config_bytes` is sizeof(hw_cache_config).
///
/// # Safety
/// A `config` that is neither null nor misaligned is valid for writes of `config_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_cache_config_init(
    config: *mut HwCacheConfig,
    config_bytes: usize,
    bytes: u64,
) -> ResultCode {
    // SAFETY: the caller's promise.
    run_call(|| unsafe { write_sized(config, config_bytes, "config", HwCacheConfig::new(bytes)) })
}

/// Creates a cache over a queue, for several threads, and writes it to `out`. Its memory is that of the queue's device.
/// hw_cache_open makes a handle of it, one for each thread. hw_cache_destroy ends the cache.
///
/// # Safety
/// A `config` that is neither null nor misaligned is valid for reads, its struct_bytes set. An `out` that is neither null
/// nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_cache_create(
    queue: *mut QueueHandle,
    config: *const HwCacheConfig,
    out: *mut *mut CacheHandle,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        // SAFETY: the caller's promise.
        let config = unsafe { HwCacheConfig::read(config) }?;
        let settings = config.validate()?;
        let (handle, parts) = handle_over(queue, None)?;
        let made = CachedHandle::try_new(handle, &parts.facts, settings, &mut memory_of(parts.device));
        let anchor = match made {
            Ok(anchor) => anchor,
            Err((handle, error)) => {
                handle.map_or(Ok(()), |handle| return_queue(*handle, queue.addr()))?;
                return Err(error.into());
            }
        };
        anchor.cache().set_close_wait(Nanos(config.close_wait_ns));
        let OpenCacheParts { facts, device, buffers } = parts;
        out.write(CACHES.add(OpenCache { anchor, facts, device, buffers, queue: queue.addr() })?);
        Ok(())
    })
}

/// Opens a handle on a cache, for one thread at a time, and writes it to `out`. With a `queue` the handle has that queue
/// and policies of its own: hw_set_param changes them, and the reads and writes of the device that its requests cause use
/// them. With a null `queue` it uses the queue and the policies of the cache, which hw_set_param changes for all such
/// handles. hw_handle_destroy flushes and ends the handle.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_cache_open(
    cache: *mut CacheHandle,
    queue: *mut QueueHandle,
    out: *mut *mut IoHandle,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        let joined = CACHES.with_waiting(cache, |open| {
            let shared = open.anchor.cache();
            let (handle, own) = if queue.is_null() {
                (CachedHandle::join(&shared, &open.facts), None)
            } else {
                (join_with_queue(&shared, open, queue)?, Some(queue.addr()))
            };
            Ok(OpenHandle::of_cache(
                handle,
                open.facts.clone(),
                (open.device, Arc::clone(&open.buffers)),
                own,
            ))
        })?;
        out.write(HANDLES.add(joined)?);
        Ok(())
    })
}

/// Joins a cache with a queue of its own. A queue that cannot join is available again.
fn join_with_queue(
    shared: &SharedCache<HandleBacking>,
    open: &OpenCache,
    queue: *mut QueueHandle,
) -> Result<CachedHandle, CallError> {
    let (handle, parts) = handle_over(queue, Some(open.device))?;
    match CachedHandle::join_with(shared, &parts.facts, handle) {
        Ok(joined) => Ok(joined),
        Err((handle, error)) => {
            return_queue(*handle, queue.addr())?;
            Err(error.into())
        }
    }
}

/// Ends a cache: writes back and flushes, for at most `timeout_ns` nanoseconds, and releases its queue. HW_CODE_REFUSED
/// while handles of it are open, HW_CODE_TIMEOUT if the device has not taken the written pages in time, HW_CODE_STATUS if
/// it failed a write or an earlier write-back: the cache then stays open, and a second call tries again. With a
/// `timeout_ns` of 0 the cache ends in every case, and pages that the device does not have are lost.
#[unsafe(no_mangle)]
pub extern "C" fn hw_cache_destroy(cache: *mut CacheHandle, timeout_ns: u64) -> ResultCode {
    run_call(|| {
        CACHES.with_waiting(cache, |open| {
            if !open.anchor.is_alone() {
                return Err(IoError::from(CacheError::InUse).into());
            }
            if timeout_ns > 0 { Ok(open.anchor.flush_within(Nanos(timeout_ns))?) } else { Ok(()) }
        })?;
        let OpenCache { anchor, queue, .. } = CACHES.remove(cache)?;
        if timeout_ns == 0 {
            anchor.cache().set_close_wait(Nanos::ZERO);
            return Ok(());
        }
        match anchor.into_handle() {
            Ok(handle) => return_queue(handle, queue),
            Err((_, error)) => Err(error.into()),
        }
    })
}

/// Writes the totals of a cache to `totals`. `totals_bytes` is sizeof(hw_cache_totals).
///
/// # Safety
/// A `totals` that is neither null nor misaligned is valid for writes of `totals_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_cache_statistics(
    cache: *mut CacheHandle,
    totals: *mut CacheTotals,
    totals_bytes: usize,
) -> ResultCode {
    run_call(|| {
        if totals_bytes != size_of::<CacheTotals>() {
            return Err(CallError::StructLength { got: totals_bytes, want: size_of::<CacheTotals>() });
        }
        // SAFETY: the caller's promise, for the length just compared.
        let out = unsafe { OutPointer::at(totals, "totals") }?;
        CACHES.with_waiting(cache, |open| {
            out.write(open.anchor.statistics().into());
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_of_c_becomes_that_of_the_cache() {
        let config =
            HwCacheConfig { dirty_age_ns: 7, write_back: 0, thread: 0, ..HwCacheConfig::new(40_000) };
        let made = config.validate().unwrap();
        assert_eq!((made.pages, made.block_pages, made.dirty_age), (10, 16, Nanos(7)));
        assert_eq!((made.policy, made.background), (WritePolicy::Through, BackgroundWork::Callers));
        let defaults = HwCacheConfig::new(64 << 20).validate().unwrap();
        assert_eq!(defaults, CacheConfig::default());
        assert!(HwCacheConfig { thread: 2, ..config }.validate().is_err());
        assert!(HwCacheConfig { write_back: 9, ..config }.validate().is_err());
    }
}
