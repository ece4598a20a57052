//! A context of an engine: its streams, its memory on the GPU, and its events.
//!
//! Input: addresses of host memory. Output: transfers in the order of their stream, and events behind them. Invariant: the
//! context belongs to one engine alone, so that destroying it ends the transfers of this engine and of nothing else in the
//! process.
//!
//! # What is assumed
//! When `cuCtxDestroy` has returned, with an error or without one, the GPU makes no transfer of the context any more. A
//! context that reports an error of a transfer makes no further ones.

use super::driver::GpuDriver;
use super::gpu_error::CudaFailure;
use super::library::{GpuAddress, NOT_READY, RawHandle, SUCCESS};
use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;

/// The flag of a stream that does not wait for the default stream (`CU_STREAM_NON_BLOCKING`).
const STREAM_NON_BLOCKING: c_uint = 1;
/// The flag of an event that takes no time (`CU_EVENT_DISABLE_TIMING`).
const EVENT_DISABLE_TIMING: c_uint = 2;

/// An event of a context.
#[derive(Debug)]
pub(super) struct ContextEvent(RawHandle);

// SAFETY: bounds, alignment and aliasing: not concerned, it is a number that only the driver uses, from any thread.
unsafe impl Send for ContextEvent {}

/// A context with streams, one for each slot of its memory.
pub(super) struct EngineContext {
    driver: Arc<GpuDriver>,
    context: RawHandle,
    streams: Vec<RawHandle>,
    slots: GpuAddress,
    slot_bytes: usize,
    spare_events: Vec<ContextEvent>,
}

// SAFETY: bounds, alignment and aliasing: the handles are numbers that only the driver uses, which allows calls from any thread
// that makes the context current; every call of this file does.
unsafe impl Send for EngineContext {}

impl EngineContext {
    /// Creates a context with `slots` slots of `slot_bytes` bytes.
    pub(super) fn create(
        driver: &Arc<GpuDriver>,
        device: c_int,
        slots: usize,
        slot_bytes: usize,
    ) -> Result<Self, CudaFailure> {
        let functions = &driver.functions;
        let mut context: RawHandle = ptr::null_mut();
        // SAFETY: bounds and lifetime: the driver writes one handle to a place of this function.
        let created = unsafe { (functions.ctx_create)(&raw mut context, 0, device) };
        functions.check("cuCtxCreate", created)?;
        // From here on the context is destroyed when this value is dropped.
        let mut created = Self {
            driver: Arc::clone(driver),
            context,
            streams: Vec::new(),
            slots: 0,
            slot_bytes,
            spare_events: Vec::new(),
        };
        // The driver made it current for this thread, whose other work must not find it.
        drop(ContextScope { driver: Arc::clone(driver) });
        created.fill(slots)?;
        Ok(created)
    }

    /// Creates the streams and the slots.
    fn fill(&mut self, slots: usize) -> Result<(), CudaFailure> {
        let driver = Arc::clone(&self.driver);
        let functions = &driver.functions;
        let mut address = 0;
        let mut streams = Vec::with_capacity(slots);
        let scope = self.enter()?;
        // SAFETY: bounds and lifetime: the driver writes one address to a place of this function.
        let allocated = unsafe { (functions.mem_alloc)(&raw mut address, slots * self.slot_bytes) };
        functions.check("cuMemAlloc", allocated)?;
        for _ in 0..slots {
            let mut stream: RawHandle = ptr::null_mut();
            // SAFETY: as above, for a handle.
            let created = unsafe { (functions.stream_create)(&raw mut stream, STREAM_NON_BLOCKING) };
            functions.check("cuStreamCreate", created)?;
            streams.push(stream);
        }
        drop(scope);
        (self.slots, self.streams) = (address, streams);
        Ok(())
    }

    /// Makes the context current for this thread until the scope ends.
    pub(super) fn enter(&self) -> Result<ContextScope, CudaFailure> {
        // SAFETY: the scopes of the engine end before it drops the context.
        unsafe { ContextScope::of(&self.driver, self.context) }
    }

    /// Returns the number of slots.
    pub(super) fn slots(&self) -> usize {
        self.streams.len()
    }

    fn slot_address(&self, slot: usize, offset: usize) -> GpuAddress {
        self.slots + (slot * self.slot_bytes + offset) as u64
    }

    /// Starts a transfer from the host to an offset of a slot, in the order of the slot's stream.
    ///
    /// # Safety
    /// The host's bytes stay valid until an event behind the transfer has ended, or the context was destroyed. The range lies in
    /// the slot.
    pub(super) unsafe fn copy_in(
        &self,
        (slot, offset): (usize, usize),
        host: usize,
        bytes: usize,
    ) -> Result<(), CudaFailure> {
        let functions = &self.driver.functions;
        let from = ptr::with_exposed_provenance::<c_void>(host);
        let to = self.slot_address(slot, offset);
        // SAFETY: the caller's promise; the stream exists until `self` is dropped.
        let started = unsafe { (functions.memcpy_htod_async)(to, from, bytes, self.streams[slot]) };
        functions.check("cuMemcpyHtoDAsync", started)
    }

    /// Starts a transfer from an offset of a slot to the host, in the order of the slot's stream.
    ///
    /// # Safety
    /// As for [`copy_in`](Self::copy_in), and nothing else accesses the host's bytes until then.
    pub(super) unsafe fn copy_out(
        &self,
        (slot, offset): (usize, usize),
        host: usize,
        bytes: usize,
    ) -> Result<(), CudaFailure> {
        let functions = &self.driver.functions;
        let to = ptr::with_exposed_provenance_mut::<c_void>(host);
        let from = self.slot_address(slot, offset);
        // SAFETY: the caller's promise; the stream exists until `self` is dropped.
        let started = unsafe { (functions.memcpy_dtoh_async)(to, from, bytes, self.streams[slot]) };
        functions.check("cuMemcpyDtoHAsync", started)
    }

    /// Starts a fill of a range of a slot, in the order of the slot's stream.
    pub(super) fn fill_slot(
        &self,
        (slot, offset): (usize, usize),
        bytes: usize,
        value: u8,
    ) -> Result<(), CudaFailure> {
        let functions = &self.driver.functions;
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.slot_bytes),
            "a fill of {bytes} bytes at {offset} ends behind its slot"
        );
        // SAFETY: bounds: a range of the memory that this context allocated. The stream exists until `self` is dropped.
        let started = unsafe {
            (functions.memset_d8_async)(self.slot_address(slot, offset), value, bytes, self.streams[slot])
        };
        functions.check("cuMemsetD8Async", started)
    }

    /// Records an event behind what the stream of a slot has so far.
    pub(super) fn record(&mut self, slot: usize) -> Result<ContextEvent, CudaFailure> {
        let functions = &self.driver.functions;
        let event = match self.spare_events.pop() {
            Some(event) => event,
            None => {
                let mut event: RawHandle = ptr::null_mut();
                // SAFETY: bounds and lifetime: the driver writes one handle to a place of this function.
                let created = unsafe { (functions.event_create)(&raw mut event, EVENT_DISABLE_TIMING) };
                functions.check("cuEventCreate", created)?;
                ContextEvent(event)
            }
        };
        // SAFETY: event and stream exist until `self` is dropped.
        let recorded = unsafe { (functions.event_record)(event.0, self.streams[slot]) };
        functions.check("cuEventRecord", recorded)?;
        Ok(event)
    }

    /// Returns true if everything before an event has ended.
    ///
    /// # Errors
    /// Any transfer of the context failed.
    pub(super) fn has_ended(&self, event: &ContextEvent) -> Result<bool, CudaFailure> {
        let functions = &self.driver.functions;
        // SAFETY: the event exists until `self` is dropped.
        match unsafe { (functions.event_query)(event.0) } {
            SUCCESS => Ok(true),
            NOT_READY => Ok(false),
            code => Err(functions.failure("cuEventQuery", code)),
        }
    }

    /// Takes an event back that has ended, for the next use.
    pub(super) fn keep_event(&mut self, event: ContextEvent) {
        self.spare_events.push(event);
    }
}

impl Drop for EngineContext {
    /// Destroys the context with everything in it. Blocks until the GPU makes no transfer of it any more.
    fn drop(&mut self) {
        // SAFETY: lifetime: the context was created by this value and is destroyed once. Nothing uses its streams, memory or
        // events from here on, because they belong to this value.
        let _ = unsafe { (self.driver.functions.ctx_destroy)(self.context) };
    }
}

impl fmt::Debug for EngineContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineContext({} slots of {} bytes)", self.streams.len(), self.slot_bytes)
    }
}

/// The time in which a context is current for this thread.
pub(super) struct ContextScope {
    driver: Arc<GpuDriver>,
}

impl ContextScope {
    /// Makes a context current for this thread.
    ///
    /// # Safety
    /// The context exists until the scope ends.
    pub(super) unsafe fn of(driver: &Arc<GpuDriver>, context: RawHandle) -> Result<Self, CudaFailure> {
        // SAFETY: the caller's promise.
        let pushed = unsafe { (driver.functions.ctx_push_current)(context) };
        driver.functions.check("cuCtxPushCurrent", pushed)?;
        Ok(Self { driver: Arc::clone(driver) })
    }
}

impl Drop for ContextScope {
    fn drop(&mut self) {
        let mut popped: RawHandle = ptr::null_mut();
        // SAFETY: bounds and lifetime: the driver writes one handle to a place of this function. An error leaves the context
        // current, which the next scope covers.
        let _ = unsafe { (self.driver.functions.ctx_pop_current)(&raw mut popped) };
    }
}
