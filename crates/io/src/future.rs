//! Requests as futures, on any executor.
//!
//! Input: requests. Output: futures that are ready when their request completes. Invariant: the thread that polls the
//! handle's queues wakes the task of each ready future; this module depends on no executor. Dropping a future cancels
//! its request; buffers stay lent until the device has finished.

use crate::backend::CompletedCommand;
use crate::buffer::Buffer;
use crate::command::{TransferData, WriteDurability};
use crate::completion::{CompletionAggregation, CompletionPolicy, PollPace};
use crate::error::IoError;
use crate::handle::{FailedRequest, Handle, IoRequest, RefusedRequest, single_buffer};
use headwater_host::sync::{AtomicBool, Ordering, fence};
use std::collections::BTreeMap;
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

#[derive(Debug)]
struct AsyncState {
    handle: Handle,
    futures: BTreeMap<u64, FutureState>,
    next_token: u64,
    /// The error after which no completions follow.
    failure: Option<String>,
}

#[derive(Debug)]
struct AsyncShared {
    inner: Mutex<AsyncState>,
    /// True while a queue's thread has announced completions that no thread has taken.
    announced: AtomicBool,
}

/// The locked state. Its release delivers the completions that were announced in between.
struct LockedState<'a> {
    // Fields are dropped in this order: the lock is released before the delivery.
    guard: MutexGuard<'a, AsyncState>,
    _delivery: DeliveryOnDrop<'a>,
}

/// Delivers announced completions when it is dropped.
struct DeliveryOnDrop<'a>(&'a AsyncShared);

/// The waker that the queues' threads call. It does not keep the handle alive.
struct CompletionWaker(Weak<AsyncShared>);

impl Wake for CompletionWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(state) = self.0.upgrade() {
            state.announce();
        }
    }
}

impl AsyncShared {
    fn lock(&self) -> LockedState<'_> {
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

impl Deref for LockedState<'_> {
    type Target = AsyncState;

    fn deref(&self) -> &AsyncState {
        &self.guard
    }
}

impl DerefMut for LockedState<'_> {
    fn deref_mut(&mut self) -> &mut AsyncState {
        &mut self.guard
    }
}

impl Drop for DeliveryOnDrop<'_> {
    fn drop(&mut self) {
        self.0.deliver_announced();
    }
}

impl AsyncState {
    fn take_completions(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        loop {
            match self.handle.poll() {
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

/// A handle whose requests are futures. A clone is the same handle, for another task or thread.
#[derive(Clone, Debug)]
pub struct AsyncHandle {
    state: Arc<AsyncShared>,
}

impl AsyncHandle {
    /// Takes over a handle and polls its queues by a thread: at the pace of the handle's policy if it has a thread,
    /// else at the adaptive pace.
    ///
    /// # Errors
    /// [`IoError`] when the kernel creates no thread.
    pub fn over(mut handle: Handle) -> Result<Self, IoError> {
        if !matches!(handle.completion(), CompletionPolicy::Thread(..)) {
            handle
                .set_completion(CompletionPolicy::Thread(PollPace::Adaptive, CompletionAggregation::NONE))?;
        }
        let inner = AsyncState { handle, futures: BTreeMap::new(), next_token: 0, failure: None };
        let state = Arc::new(AsyncShared { inner: Mutex::new(inner), announced: AtomicBool::new(false) });
        let this = Self { state };
        this.install_waker(&mut this.state.lock());
        Ok(this)
    }

    fn install_waker(&self, inner: &mut AsyncState) {
        let waker = Waker::from(Arc::new(CompletionWaker(Arc::downgrade(&self.state))));
        inner.handle.set_waker(&waker);
    }

    /// Calls a function with the handle, to change policies or queues. A completion policy without a thread is
    /// replaced.
    ///
    /// # Errors
    /// [`IoError`] when the kernel creates no thread.
    pub fn with_handle<T>(&self, change: impl FnOnce(&mut Handle) -> T) -> Result<T, IoError> {
        let mut inner = self.state.lock();
        let found = change(&mut inner.handle);
        let policy = match inner.handle.completion() {
            policy @ CompletionPolicy::Thread(..) => policy,
            _ => CompletionPolicy::Thread(PollPace::Adaptive, CompletionAggregation::NONE),
        };
        // Newly attached queues have no thread yet.
        inner.handle.set_completion(policy)?;
        self.install_waker(&mut inner);
        let woken = inner.take_completions();
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
        Ok(found)
    }

    /// Starts a request.
    ///
    /// # Errors
    /// [`RefusedRequest`], with the request: it had no effect.
    pub fn start(&self, request: IoRequest) -> Result<RequestFuture, RefusedRequest> {
        let mut inner = self.state.lock();
        let token = inner.next_token;
        inner.handle.submit(request, token)?;
        inner.next_token += 1;
        inner.futures.insert(token, FutureState::Waiting(None));
        if let Err(error) = inner.handle.ring() {
            inner.failure = Some(error.to_string());
        }
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
pub struct RequestFuture {
    state: Arc<AsyncShared>,
    token: u64,
}

impl Future for RequestFuture {
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

impl Drop for RequestFuture {
    fn drop(&mut self) {
        let mut inner = self.state.lock();
        let mut woken = Vec::new();
        if let Some(ticket @ FutureState::Waiting(_)) = inner.futures.get_mut(&self.token) {
            *ticket = FutureState::Dropped;
            inner.handle.cancel(self.token);
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
