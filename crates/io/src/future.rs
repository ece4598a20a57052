//! Requests as futures, on any executor.
//!
//! Input: requests. Output: futures that are ready when their request completes. Invariant: the thread that polls the
//! handle's queues, or that of its cache, wakes the task of each ready future; this module depends on no executor. Dropping
//! a future cancels its request; buffers stay lent until the device has finished.

use crate::backend::CompletedCommand;
use crate::buffer::Buffer;
use crate::cached_handle::CachedHandle;
use crate::command::{TransferData, WriteDurability};
use crate::completion::{CompletionAggregation, CompletionPolicy, PollPace};
use crate::error::IoError;
use crate::handle::{FailedRequest, Handle, IoRequest, RefusedRequest, single_buffer};
use headwater_host::sync::{AtomicBool, Ordering, fence};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll, Wake, Waker};

/// The state of a request behind a future.
#[derive(Debug)]
enum FutureState {
    Waiting(Option<Waker>),
    Completed(CompletedCommand),
    /// The future was dropped: the completion is discarded.
    Dropped,
}

/// A handle whose requests can be futures: [`Handle`] and [`CachedHandle`].
pub trait AsyncSource: source::Sealed + Send + fmt::Debug + 'static {}

impl AsyncSource for Handle {}
impl AsyncSource for CachedHandle {}

/// The calls by which an [`AsyncHandle`] drives its handle.
mod source {
    use super::{CompletedCommand, IoError, IoRequest, RefusedRequest, Waker};

    pub trait Sealed {
        /// Starts the thread that polls, and makes it call the waker; again after a change of queues or policies.
        fn start_polling(&mut self, waker: &Waker) -> Result<(), IoError>;

        /// Submits a request, and makes it visible to the device.
        fn submit_now(&mut self, request: IoRequest, token: u64) -> Result<(), RefusedRequest>;

        /// Takes the next completion.
        fn take_next(&mut self) -> Result<Option<CompletedCommand>, IoError>;

        /// Cancels a request.
        fn cancel_request(&mut self, token: u64);
    }
}

impl source::Sealed for Handle {
    fn start_polling(&mut self, waker: &Waker) -> Result<(), IoError> {
        let policy = match self.completion() {
            policy @ CompletionPolicy::Thread(..) => policy,
            _ => CompletionPolicy::Thread(PollPace::Adaptive, CompletionAggregation::NONE),
        };
        // Newly attached queues have no thread yet.
        self.set_completion(policy)?;
        self.set_waker(waker);
        Ok(())
    }

    fn submit_now(&mut self, request: IoRequest, token: u64) -> Result<(), RefusedRequest> {
        self.submit(request, token)?;
        // A device that is gone is reported by the next poll.
        let _ = self.ring();
        Ok(())
    }

    fn take_next(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        self.poll()
    }

    fn cancel_request(&mut self, token: u64) {
        self.cancel(token);
    }
}

impl source::Sealed for CachedHandle {
    fn start_polling(&mut self, waker: &Waker) -> Result<(), IoError> {
        self.with_handle(|handle| match handle.completion() {
            // The thread of the cache polls at the pace of the handle.
            CompletionPolicy::Inline => handle.set_completion(CompletionPolicy::Paced(PollPace::Adaptive)),
            _ => Ok(()),
        })?;
        self.start_waking(waker)
    }

    fn submit_now(&mut self, request: IoRequest, token: u64) -> Result<(), RefusedRequest> {
        self.submit(request, token)
    }

    fn take_next(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        self.poll()
    }

    fn cancel_request(&mut self, token: u64) {
        self.cancel(token);
    }
}

#[derive(Debug)]
struct AsyncState<H> {
    handle: H,
    futures: BTreeMap<u64, FutureState>,
    next_token: u64,
    /// The error after which no completions follow.
    failure: Option<String>,
}

#[derive(Debug)]
struct AsyncShared<H> {
    inner: Mutex<AsyncState<H>>,
    /// True while a queue's thread has announced completions that no thread has taken.
    announced: AtomicBool,
}

/// The locked state. Its release delivers the completions that were announced in between.
struct LockedState<'a, H: AsyncSource> {
    // Fields are dropped in this order: the lock is released before the delivery.
    guard: MutexGuard<'a, AsyncState<H>>,
    _delivery: DeliveryOnDrop<'a, H>,
}

/// Delivers announced completions when it is dropped.
struct DeliveryOnDrop<'a, H: AsyncSource>(&'a AsyncShared<H>);

/// The waker that the threads of queues and caches call. It does not keep the handle alive.
struct CompletionWaker<H>(Weak<AsyncShared<H>>);

impl<H: AsyncSource> Wake for CompletionWaker<H> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(state) = self.0.upgrade() {
            state.announce();
        }
    }
}

impl<H: AsyncSource> AsyncShared<H> {
    fn lock(&self) -> LockedState<'_, H> {
        let guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        LockedState { guard, _delivery: DeliveryOnDrop(self) }
    }

    /// Announces completions; a queue's thread calls it. It never waits for the lock, because the lock's holder waits
    /// for this thread to end when it changes the completion policy.
    fn announce(&self) {
        // Release, paired with the acquire in `deliver_announced`: the taker of the flag finds the completions.
        self.announced.store(true, Ordering::Release);
        self.deliver_announced();
    }

    /// Takes announced completions, and wakes their tasks after releasing the lock. If another thread holds the lock,
    /// that thread does it when it releases the lock.
    fn deliver_announced(&self) {
        loop {
            // An announcer stores the flag and then tries the lock; a holder releases the lock and then loads the flag.
            // Both pass this fence in between, so that at least one of the two finds what the other did.
            fence(Ordering::SeqCst);
            if !self.announced.load(Ordering::Relaxed) {
                return;
            }
            let mut state = match self.inner.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.announced.swap(false, Ordering::Acquire);
            let woken = state.take_completions();
            drop(state);
            woken.into_iter().for_each(Waker::wake);
        }
    }
}

impl<H: AsyncSource> Deref for LockedState<'_, H> {
    type Target = AsyncState<H>;

    fn deref(&self) -> &AsyncState<H> {
        &self.guard
    }
}

impl<H: AsyncSource> DerefMut for LockedState<'_, H> {
    fn deref_mut(&mut self) -> &mut AsyncState<H> {
        &mut self.guard
    }
}

impl<H: AsyncSource> Drop for DeliveryOnDrop<'_, H> {
    fn drop(&mut self) {
        self.0.deliver_announced();
    }
}

impl<H: AsyncSource> AsyncState<H> {
    fn take_completions(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        loop {
            match self.handle.take_next() {
                Ok(Some(answer)) => {
                    let token = answer.completion.token;
                    match self.futures.insert(token, FutureState::Completed(answer)) {
                        Some(FutureState::Waiting(waker)) => woken.extend(waker),
                        Some(FutureState::Dropped) => {
                            self.futures.remove(&token);
                        }
                        _ => {}
                    }
                }
                Ok(None) => return woken,
                Err(error) => {
                    self.failure = Some(error.to_string());
                    for ticket in self.futures.values_mut() {
                        if let FutureState::Waiting(waker) = ticket {
                            woken.extend(waker.take());
                        }
                    }
                    return woken;
                }
            }
        }
    }
}

/// A handle whose requests are futures: over queues, or over a cache. A clone is the same handle, for another task or
/// thread.
#[derive(Debug)]
pub struct AsyncHandle<H: AsyncSource = Handle> {
    state: Arc<AsyncShared<H>>,
}

impl<H: AsyncSource> Clone for AsyncHandle<H> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state) }
    }
}

impl<H: AsyncSource> AsyncHandle<H> {
    /// Takes over a handle and has it polled by a thread. A thread polls the queues of a [`Handle`]: at the pace of its
    /// policy if that has a thread, else at the adaptive pace. The thread of the cache polls for a [`CachedHandle`], at the
    /// pace of its [`Paced`](CompletionPolicy::Paced) policy; an inline policy becomes the adaptive pace.
    ///
    /// # Errors
    /// [`IoError`] when the kernel creates no thread.
    pub fn over(handle: H) -> Result<Self, IoError> {
        let inner = AsyncState { handle, futures: BTreeMap::new(), next_token: 0, failure: None };
        let state = Arc::new(AsyncShared { inner: Mutex::new(inner), announced: AtomicBool::new(false) });
        let this = Self { state };
        this.start_polling(&mut this.state.lock())?;
        Ok(this)
    }

    fn start_polling(&self, inner: &mut AsyncState<H>) -> Result<(), IoError> {
        let waker = Waker::from(Arc::new(CompletionWaker(Arc::downgrade(&self.state))));
        inner.handle.start_polling(&waker)
    }

    /// Calls a function with the handle, to change policies or queues. A completion policy that
    /// [`over`](Self::over) replaces is replaced again.
    ///
    /// # Errors
    /// [`IoError`] when the kernel creates no thread.
    pub fn with_handle<T>(&self, change: impl FnOnce(&mut H) -> T) -> Result<T, IoError> {
        let mut inner = self.state.lock();
        let found = change(&mut inner.handle);
        self.start_polling(&mut inner)?;
        let woken = inner.take_completions();
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
        Ok(found)
    }

    /// Starts a request.
    ///
    /// # Errors
    /// [`RefusedRequest`], with the request: it had no effect.
    pub fn start(&self, request: IoRequest) -> Result<RequestFuture<H>, RefusedRequest> {
        let mut inner = self.state.lock();
        let token = inner.next_token;
        inner.handle.submit_now(request, token)?;
        inner.next_token += 1;
        inner.futures.insert(token, FutureState::Waiting(None));
        let woken = inner.take_completions();
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
        Ok(RequestFuture { state: self.state.clone(), token })
    }

    /// Reads as many bytes as fill `into`.
    ///
    /// # Errors
    /// [`FailedRequest`], with the buffer.
    pub async fn read(&self, offset: u64, into: Buffer) -> Result<Buffer, Box<FailedRequest>> {
        self.run(IoRequest::read(offset, into)).await.and_then(single_buffer)
    }

    /// Writes the bytes of `from`.
    ///
    /// # Errors
    /// [`FailedRequest`], with the buffer.
    pub async fn write(
        &self,
        offset: u64,
        from: Buffer,
        durable: WriteDurability,
    ) -> Result<Buffer, Box<FailedRequest>> {
        self.run(IoRequest::write(offset, from, durable)).await.and_then(single_buffer)
    }

    /// Makes the requests completed before it durable.
    ///
    /// # Errors
    /// [`IoError`].
    pub async fn flush(&self) -> Result<(), IoError> {
        self.run(IoRequest::flush()).await.map(drop).map_err(|failed| failed.error)
    }

    /// Submits any request, waits for its completion, and returns its buffers.
    ///
    /// # Errors
    /// [`FailedRequest`], with the buffers.
    pub async fn run(&self, request: IoRequest) -> Result<TransferData, Box<FailedRequest>> {
        match self.start(request) {
            Ok(pending) => pending.await,
            Err(RefusedRequest { request, error }) => {
                Err(Box::new(FailedRequest { error: error.into(), data: request.data }))
            }
        }
    }
}

/// A submitted request.
#[derive(Debug)]
#[must_use = "dropping the future cancels the request"]
pub struct RequestFuture<H: AsyncSource = Handle> {
    state: Arc<AsyncShared<H>>,
    token: u64,
}

impl<H: AsyncSource> Future for RequestFuture<H> {
    type Output = Result<TransferData, Box<FailedRequest>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut inner = self.state.lock();
        let gone = inner.failure.clone();
        let failed = |error, data| Poll::Ready(Err(Box::new(FailedRequest { error, data })));
        match inner.futures.get_mut(&self.token) {
            Some(FutureState::Waiting(waker)) => {
                if let Some(reason) = gone {
                    return failed(IoError::Device { reason }, TransferData::None);
                }
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Some(FutureState::Completed(_)) => match inner.futures.remove(&self.token) {
                Some(FutureState::Completed(CompletedCommand { completion, data })) => {
                    match completion.into_result() {
                        Ok(_) => Poll::Ready(Ok(data)),
                        Err(error) => failed(error, data),
                    }
                }
                _ => Poll::Pending,
            },
            _ => failed(
                IoError::Device { reason: "the future was polled after it was ready".to_owned() },
                TransferData::None,
            ),
        }
    }
}

impl<H: AsyncSource> Drop for RequestFuture<H> {
    fn drop(&mut self) {
        let mut inner = self.state.lock();
        let mut woken = Vec::new();
        if let Some(ticket @ FutureState::Waiting(_)) = inner.futures.get_mut(&self.token) {
            *ticket = FutureState::Dropped;
            inner.handle.cancel_request(self.token);
            woken = inner.take_completions();
        } else {
            inner.futures.remove(&self.token);
        }
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests;
