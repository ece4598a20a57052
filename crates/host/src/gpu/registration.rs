//! Host memory that GPUs may access: registered with the driver, page-locked as long as it is.
//!
//! ```text
//!  pool:            pin a chunk --> registered --> unpin --> unregistered
//!  shared region:   first use --> requested --> registered, on a thread --> last other handle dropped --> unregistered
//! ```
//! Input: ranges of an owner that unregisters them itself, and handles to shared regions. Output: the answer whether a range is
//! registered. Invariant: a requested region stays mapped as long as it is registered, because its handle is kept; a range
//! leaves the list before the driver forgets it.
//!
//! To register memory takes the driver about as long as to write it. So it is done once for memory that many jobs use, never
//! for a job; and for regions that appear while a node serves, on a thread.

use super::context::ContextScope;
use super::driver::GpuDriver;
use super::gpu_error::{CudaFailure, OpenGpuError};
use super::library::RawHandle;
use crate::pinning::MemoryRange;
use crate::shared_memory::SharedMemory;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The most bytes of shared regions that are registered because they were used. Ranges of owners do not count.
pub const REGISTERED_BYTES_MAX: usize = 64 << 30;
/// The most regions that wait for the thread.
const REQUESTS_MAX: usize = 256;
/// The flag of a registration for all contexts (`CU_MEMHOSTREGISTER_PORTABLE`).
const REGISTER_PORTABLE: c_uint = 1;
/// The time after which the thread looks for regions that only it has a handle to.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

/// The registrations since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegistrationCounters {
    /// Bytes that are registered now.
    pub registered_bytes: u64,
    /// Ranges and regions that were registered.
    pub registered: u64,
    /// Those of them that were unregistered.
    pub unregistered: u64,
    /// Ranges and regions that the driver, or the limit, refused.
    pub refused: u64,
    /// Regions that the driver did not unregister: they stay mapped.
    pub kept_for_ever: u64,
}

/// The list entry of a range.
#[derive(Debug)]
struct ListedRange {
    start: usize,
    bytes: usize,
    /// The handle to a region that was requested.
    kept: Option<SharedMemory>,
    /// False for a region that was refused: it is not requested again.
    is_registered: bool,
}

/// The list and the requests.
#[derive(Debug, Default)]
struct RegistrationState {
    /// By start.
    ranges: Vec<ListedRange>,
    requests: VecDeque<SharedMemory>,
    /// The region that the thread is registering.
    pending: Option<SharedMemory>,
    /// Bytes of regions that were requested and registered.
    requested_bytes: usize,
    counters: RegistrationCounters,
    is_closing: bool,
}

impl RegistrationState {
    /// Returns the entry of the range that has an address.
    fn at(&self, address: usize) -> Option<&ListedRange> {
        let behind = self.ranges.partition_point(|range| range.start <= address);
        let range = self.ranges.get(behind.checked_sub(1)?)?;
        (address - range.start < range.bytes).then_some(range)
    }

    fn add(&mut self, range: ListedRange) {
        if range.is_registered {
            self.counters.registered += 1;
            self.counters.registered_bytes += range.bytes as u64;
            self.requested_bytes += if range.kept.is_some() { range.bytes } else { 0 };
        } else {
            self.counters.refused += 1;
        }
        let at = self.ranges.partition_point(|listed| listed.start <= range.start);
        self.ranges.insert(at, range);
    }

    fn remove(&mut self, at: usize) -> ListedRange {
        let range = self.ranges.remove(at);
        if range.is_registered {
            self.counters.registered_bytes -= range.bytes as u64;
            self.requested_bytes -= if range.kept.is_some() { range.bytes } else { 0 };
        }
        range
    }
}

/// The state that owner and thread share, and the driver.
struct SharedRegistrations {
    driver: Arc<GpuDriver>,
    device: c_int,
    /// The primary context of the first GPU, which other users of the driver in this process share.
    context: RawHandle,
    state: Mutex<RegistrationState>,
    changed: Condvar,
}

// SAFETY: bounds, alignment and aliasing: the context is a number that only the driver uses, from any thread that makes it
// current; every call of this file does. Lifetime: it is released when this value is dropped.
unsafe impl Send for SharedRegistrations {}
// SAFETY: as for Send; the state is behind a lock.
unsafe impl Sync for SharedRegistrations {}

/// Ends the thread and unregisters everything when the last handle is dropped.
struct RegistrationsOwner {
    shared: Arc<SharedRegistrations>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The host memory that the GPUs of a driver may access. A clone is another handle to the same registrations.
#[derive(Clone)]
pub struct HostRegistrations {
    owner: Arc<RegistrationsOwner>,
}

/// The list of registered ranges, which does not change while this exists.
#[derive(Debug)]
pub struct RegistrationLookup<'a>(MutexGuard<'a, RegistrationState>);

impl RegistrationLookup<'_> {
    /// Returns the bytes from an address on that one registration covers; 0 if the address is not registered.
    #[must_use]
    pub fn bytes_from(&self, address: usize) -> usize {
        let range = self.0.at(address).filter(|range| range.is_registered);
        range.map_or(0, |range| range.bytes - (address - range.start))
    }
}

impl HostRegistrations {
    /// Opens registrations that are valid for every GPU of a driver. Retains the primary context of the first one.
    ///
    /// # Errors
    /// [`OpenGpuError`] names the cause and the remedy.
    pub fn open(driver: &Arc<GpuDriver>) -> Result<Self, OpenGpuError> {
        let device = driver.gpu(0)?.device;
        let mut context: RawHandle = ptr::null_mut();
        // SAFETY: bounds and lifetime: the driver writes one handle to a place of this function.
        let retained = unsafe { (driver.functions.primary_ctx_retain)(&raw mut context, device) };
        driver.functions.check("cuDevicePrimaryCtxRetain", retained)?;
        let shared = SharedRegistrations {
            driver: Arc::clone(driver),
            device,
            context,
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        let owner = RegistrationsOwner { shared: Arc::new(shared), thread: Mutex::default() };
        Ok(Self { owner: Arc::new(owner) })
    }

    /// Registers a range, whose owner unregisters it before it unmaps it. Blocks for as long as the driver needs.
    ///
    /// # Errors
    /// The driver refused, for example because a part of the range is registered.
    pub fn register(&self, range: MemoryRange) -> Result<(), CudaFailure> {
        self.owner.shared.register(range.address(), range.bytes(), None)
    }

    /// Unregisters a range that [`register`](Self::register) registered, as a whole. No engine has work with memory of it.
    ///
    /// # Errors
    /// The driver refused: the range may be registered for ever, and must not be used for anything else.
    pub fn unregister(&self, range: MemoryRange) -> Result<(), CudaFailure> {
        let shared = &self.owner.shared;
        let mut state = shared.lock();
        let is_it = |listed: &ListedRange| {
            (listed.start, listed.bytes, listed.kept.is_none()) == (range.address(), range.bytes(), true)
        };
        let Some(at) = state.ranges.iter().position(is_it) else {
            return Err(CudaFailure {
                call: "unregister",
                code: 0,
                name: "a range that was not registered".into(),
            });
        };
        state.remove(at);
        drop(state);
        shared.forget(range.address())
    }

    /// Returns true if a shared region is registered. If it was never used, asks the thread to register it; so the first jobs
    /// of a region find it unregistered.
    pub fn request(&self, region: &SharedMemory) -> bool {
        let mut state = self.owner.shared.lock();
        let listed = state.at(region.address());
        if let Some(range) = listed {
            return range.is_registered && range.bytes - (region.address() - range.start) >= region.bytes();
        }
        let is_asked = state.requests.iter().chain(&state.pending).any(|asked| asked.is_same(region));
        if !is_asked && state.requests.len() < REQUESTS_MAX && self.owner.ensure_thread() {
            state.requests.push_back(region.clone());
            self.owner.shared.changed.notify_one();
        }
        false
    }

    /// Returns the list, for some questions.
    #[must_use]
    pub fn lookup(&self) -> RegistrationLookup<'_> {
        RegistrationLookup(self.owner.shared.lock())
    }

    /// Unregisters the requested regions whose other handles were all dropped, as the thread does each second.
    pub fn release_unused(&self) {
        self.owner.shared.release_unused();
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> RegistrationCounters {
        self.owner.shared.lock().counters
    }
}

impl RegistrationsOwner {
    /// Starts the thread, unless it runs. Returns false if the system has none.
    fn ensure_thread(&self) -> bool {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let started =
                std::thread::Builder::new().name("gpu-register".into()).spawn(move || shared.serve());
            *thread = started.ok();
        }
        thread.is_some()
    }
}

impl Drop for RegistrationsOwner {
    fn drop(&mut self) {
        self.shared.lock().is_closing = true;
        self.shared.changed.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The thread ends after the call of the driver that it is in.
        thread.map(JoinHandle::join);
        let ranges = std::mem::take(&mut self.shared.lock().ranges);
        for range in ranges.into_iter().filter(|range| range.is_registered) {
            if self.shared.forget(range.start).is_err() {
                let _ = ManuallyDrop::new(range.kept);
            }
        }
    }
}

impl SharedRegistrations {
    fn lock(&self) -> MutexGuard<'_, RegistrationState> {
        // Each change of the state is complete before the next call that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves requests until the owner ends.
    fn serve(&self) {
        let mut state = self.lock();
        while !state.is_closing {
            if let Some(region) = state.requests.pop_front() {
                let within = state.requested_bytes.saturating_add(region.bytes()) <= REGISTERED_BYTES_MAX;
                state.pending = Some(region.clone());
                drop(state);
                let (start, bytes) = (region.address(), region.bytes());
                let is_refused = !within || self.register(start, bytes, Some(region.clone())).is_err();
                let mut state = self.lock();
                state.pending = None;
                if is_refused {
                    state.add(ListedRange { start, bytes, kept: Some(region), is_registered: false });
                }
            } else {
                let waited = self.changed.wait_timeout(state, SWEEP_PERIOD);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                self.release_unused();
            }
            state = self.lock();
        }
    }

    fn register(&self, start: usize, bytes: usize, kept: Option<SharedMemory>) -> Result<(), CudaFailure> {
        let functions = &self.driver.functions;
        // SAFETY: the context is released when `self` is dropped.
        let scope = unsafe { ContextScope::of(&self.driver, self.context) }?;
        let first = ptr::with_exposed_provenance_mut::<c_void>(start);
        // SAFETY: a registration lets nothing access the range; it locks pages that are mapped, and fails where none are.
        let registered = unsafe { (functions.mem_host_register)(first, bytes, REGISTER_PORTABLE) };
        drop(scope);
        let registered = functions.check("cuMemHostRegister", registered);
        match &registered {
            Ok(()) => self.lock().add(ListedRange { start, bytes, kept, is_registered: true }),
            Err(_) if kept.is_none() => self.lock().counters.refused += 1,
            Err(_) => {}
        }
        registered
    }

    /// Unregisters a range that is not in the list any more.
    fn forget(&self, start: usize) -> Result<(), CudaFailure> {
        let functions = &self.driver.functions;
        // SAFETY: the context is released when `self` is dropped.
        let scope = unsafe { ContextScope::of(&self.driver, self.context) }?;
        let first = ptr::with_exposed_provenance_mut::<c_void>(start);
        // SAFETY: the driver forgets a range that it knows; no transfer names it, as the callers say.
        let forgotten = unsafe { (functions.mem_host_unregister)(first) };
        drop(scope);
        functions.check("cuMemHostUnregister", forgotten)?;
        self.lock().counters.unregistered += 1;
        Ok(())
    }

    fn release_unused(&self) {
        loop {
            let mut state = self.lock();
            // A last handle is this list's, which makes no other one.
            let is_unused =
                |range: &ListedRange| range.kept.as_ref().is_some_and(SharedMemory::is_last_handle);
            let Some(at) = state.ranges.iter().position(is_unused) else { return };
            let range = state.remove(at);
            drop(state);
            if range.is_registered && self.forget(range.start).is_err() {
                // Its addresses must not become those of other memory.
                let _ = ManuallyDrop::new(range.kept);
                self.lock().counters.kept_for_ever += 1;
            }
        }
    }
}

impl Drop for SharedRegistrations {
    fn drop(&mut self) {
        // SAFETY: the context was retained by this value, which uses it no more.
        let _ = unsafe { (self.driver.functions.primary_ctx_release)(self.device) };
    }
}

impl fmt::Debug for HostRegistrations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostRegistrations").field("counters", &self.counters()).finish_non_exhaustive()
    }
}
