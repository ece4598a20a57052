//! Requests for memory of a device that wait in the queue of its pool.
//!
//! Input: lengths and time limits. Output: addresses and codes. Invariants: a request is answered once; a wait that
//! ends without memory leaves the request at its place in the queue; a cancelled request returns memory that was
//! granted to it and not taken.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::device::{DEVICES, DeviceHandle};
use crate::ffi::{OutPointer, run_call};
use crate::handle_table::HandleTable;
use headwater::dma::pool::PoolError;
use headwater::host::clock::{Clock, Nanos};
use headwater::io::BufferFuture;
use headwater::{Buffer, IoError};
use std::ffi::c_void;
use std::future::Future as _;
use std::pin::Pin;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Maximum number of requests that C can have at a time.
const REQUESTS_MAX: usize = 4_096;

/// A request for memory of a device, which waits in the queue of the device's pool.
#[derive(Debug)]
pub struct BufferRequestHandle {
    _opaque: (),
}

static REQUESTS: HandleTable<Arc<BufferRequest>, REQUESTS_MAX> = HandleTable::new("buffer request");

/// A counter of wake-ups that threads wait on.
#[derive(Debug, Default)]
struct WakeCounter {
    wakeups: Mutex<u64>,
    changed: Condvar,
}

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        *locked(&self.wakeups) += 1;
        self.changed.notify_all();
    }
}

/// The state of a request.
#[derive(Debug)]
enum RequestState {
    /// In the queue.
    Waiting(BufferFuture),
    /// Answered when it was made.
    Ready(Result<Buffer, IoError>),
    /// The answer was taken.
    Ended,
    Cancelled,
}

/// A request for memory, and the threads that wait for it.
#[derive(Debug)]
struct BufferRequest {
    /// The number of the device's handle.
    device: usize,
    bytes: usize,
    state: Mutex<RequestState>,
    counter: Arc<WakeCounter>,
    clock: Clock,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BufferRequest {
    /// Adds a request to the queue of a device's pool, unless it is served at once.
    fn make(device: *const DeviceHandle, bytes: usize) -> Result<Self, CallError> {
        if bytes == 0 {
            return Err(PoolError::Zero.into());
        }
        let mut future = DEVICES.with_waiting(device, |open| Ok(open.device.buffer_async(bytes)))?;
        let counter = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&counter));
        let state = match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => RequestState::Ready(Ok(answer?)),
            Poll::Pending => RequestState::Waiting(future),
        };
        Ok(Self { device: device.addr(), bytes, state: Mutex::new(state), counter, clock: Clock::start() })
    }

    /// Waits for the memory for at most `span`. After a timeout the request is still in the queue.
    fn wait(&self, span: Nanos) -> Result<Buffer, CallError> {
        let start = self.clock.now();
        loop {
            let seen = *locked(&self.counter.wakeups);
            if let Some(answer) = self.take_answer()? {
                return Ok(answer?);
            }
            let waited = self.clock.now().since(start);
            if waited >= span {
                return Err(PoolError::Timeout { bytes: self.bytes, waited }.into());
            }
            let wakeups = locked(&self.counter.wakeups);
            if *wakeups == seen {
                let rest = span.since(waited).to_duration();
                drop(self.counter.changed.wait_timeout(wakeups, rest));
            }
        }
    }

    /// Takes the answer if there is one.
    fn take_answer(&self) -> Result<Option<Result<Buffer, IoError>>, CallError> {
        let mut state = locked(&self.state);
        let answer = match std::mem::replace(&mut *state, RequestState::Ended) {
            RequestState::Ready(answer) => answer,
            RequestState::Waiting(mut future) => {
                let waker = Waker::from(Arc::clone(&self.counter));
                match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(answer) => answer,
                    Poll::Pending => {
                        *state = RequestState::Waiting(future);
                        return Ok(None);
                    }
                }
            }
            RequestState::Ended => return Err(CallError::NotOpen("buffer request")),
            RequestState::Cancelled => {
                *state = RequestState::Cancelled;
                return Err(CallError::RequestCancelled);
            }
        };
        Ok(Some(answer))
    }

    /// Cancels the request, and wakes the threads that wait for it.
    fn cancel(&self) {
        let before = {
            let mut state = locked(&self.state);
            match &*state {
                RequestState::Ended => return,
                _ => std::mem::replace(&mut *state, RequestState::Cancelled),
            }
        };
        // Its memory goes to the next request, whose waker runs here: not under the lock.
        drop(before);
        Arc::clone(&self.counter).wake();
    }
}

/// Makes a buffer of a device available to C; returns its address.
fn hand_over(device: usize, buffer: Buffer) -> Result<*mut c_void, CallError> {
    let device: *const DeviceHandle = ptr::without_provenance(device);
    let address = DEVICES.with_waiting(device, |open| Ok(open.buffers.insert(buffer)))?;
    Ok(ptr::with_exposed_provenance_mut(address))
}

/// Allocates as hw_get_buffer, but waits for memory for at most `timeout_ns` nanoseconds; then HW_CODE_TIMEOUT. Requests
/// of all lengths, of this call and of hw_buffer_request_create, are served in the order in which they were made.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_get_buffer_within(
    device: *mut DeviceHandle,
    bytes: usize,
    timeout_ns: u64,
    out: *mut *mut c_void,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        let buffer = BufferRequest::make(device, bytes)?.wait(Nanos(timeout_ns))?;
        out.write(hand_over(device.addr(), buffer)?);
        Ok(())
    })
}

/// Requests `bytes` bytes that the device can access, and writes the request to `out`. Never waits: if no memory is
/// free, the request waits in the queue of the device's pool. hw_buffer_request_wait takes the memory,
/// hw_buffer_request_cancel ends the request without it; a program calls one of them for each request.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_buffer_request_create(
    device: *mut DeviceHandle,
    bytes: usize,
    out: *mut *mut BufferRequestHandle,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        out.write(REQUESTS.add(Arc::new(BufferRequest::make(device, bytes)?))?);
        Ok(())
    })
}

/// Waits for the memory of a request for at most `timeout_ns` nanoseconds, 0 to look only, and writes its address to
/// `out`. The memory is that of hw_get_buffer, and the request has ended. HW_CODE_TIMEOUT: the request keeps its place in
/// the queue. HW_CODE_CANCELLED: another thread cancelled it during the wait. Any other code: the request has ended.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_buffer_request_wait(
    request: *mut BufferRequestHandle,
    timeout_ns: u64,
    out: *mut *mut c_void,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        let waiting = REQUESTS.with_waiting(request, |waiting| Ok(Arc::clone(waiting)))?;
        let answer = waiting.wait(Nanos(timeout_ns));
        if !matches!(answer, Err(CallError::Pool(PoolError::Timeout { .. }))) {
            // A thread that cancels at the same time has removed it already.
            drop(REQUESTS.remove(request));
        }
        out.write(hand_over(waiting.device, answer?)?);
        Ok(())
    })
}

/// Ends a request without its memory, also while another thread waits for it: that call returns HW_CODE_CANCELLED, or
/// the memory if it was granted just before. Later requests of the queue proceed.
#[unsafe(no_mangle)]
pub extern "C" fn hw_buffer_request_cancel(request: *mut BufferRequestHandle) -> ResultCode {
    run_call(|| {
        REQUESTS.remove(request)?.cancel();
        Ok(())
    })
}
