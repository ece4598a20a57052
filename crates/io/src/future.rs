//! Requests as futures, on any executor.
//!
//! In: requests. Out: futures that are ready when their request is answered. Invariant: whoever polls a future is woken when
//! it is ready, by the thread that looks at the handle's queues; no executor is needed for that, and none is known here.
//! A future that is dropped gives its request up if it still waits in the handle; buffers stay lent until the device is done.

use crate::backend::Answer;
use crate::buffer::Buffer;
use crate::command::{Data, Durable};
use crate::completion::{Aggregation, CompletionPolicy, Pace};
use crate::error::IoError;
use crate::handle::{Failed, Handle, Refused, Request};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

/// A request that a future stands for.
#[derive(Debug)]
enum Ticket {
    Waiting(Option<Waker>),
    Answered(Answer),
    /// Nobody wants the answer.
    Dropped,
}

#[derive(Debug)]
struct Inner {
    handle: Handle,
    tickets: BTreeMap<u64, Ticket>,
    next: u64,
    /// Why there will be no more answers.
    gone: Option<String>,
}

#[derive(Debug)]
struct State {
    inner: Mutex<Inner>,
}

/// What the queues' threads call. It does not keep the handle.
struct Bell(Weak<State>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(state) = self.0.upgrade() {
            state.hand_out();
        }
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has come, and wakes those whose it is once the lock is open.
    fn hand_out(&self) {
        let woken = self.lock().take_answers();
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Inner {
    fn take_answers(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        loop {
            match self.handle.poll() {
                Ok(Some(answer)) => {
                    let token = answer.completion.token;
                    match self.tickets.insert(token, Ticket::Answered(answer)) {
                        Some(Ticket::Waiting(waker)) => woken.extend(waker),
                        Some(Ticket::Dropped) => {
                            self.tickets.remove(&token);
                        }
                        _ => {}
                    }
                }
                Ok(None) => return woken,
                Err(error) => {
                    self.gone = Some(error.to_string());
                    for ticket in self.tickets.values_mut() {
                        if let Ticket::Waiting(waker) = ticket {
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
    state: Arc<State>,
}

impl AsyncHandle {
    /// Takes a handle over. A thread looks at its queues from now on: as the handle's policy says if it names one, else at
    /// the adaptive pace.
    ///
    /// # Errors
    /// [`IoError`] when the kernel gives no thread.
    pub fn over(mut handle: Handle) -> Result<Self, IoError> {
        if !matches!(handle.completion(), CompletionPolicy::Thread(..)) {
            handle.set_completion(CompletionPolicy::Thread(Pace::Adaptive, Aggregation::NONE))?;
        }
        let inner = Inner { handle, tickets: BTreeMap::new(), next: 0, gone: None };
        let state = Arc::new(State { inner: Mutex::new(inner) });
        let this = Self { state };
        this.hang_bell(&mut this.state.lock());
        Ok(this)
    }

    fn hang_bell(&self, inner: &mut Inner) {
        let bell = Waker::from(Arc::new(Bell(Arc::downgrade(&self.state))));
        inner.handle.set_waker(&bell);
    }

    /// Something else with the handle: its policies, its queues. A completion policy without a thread is undone.
    ///
    /// # Errors
    /// [`IoError`] when the kernel gives no thread.
    pub fn with<T>(&self, change: impl FnOnce(&mut Handle) -> T) -> Result<T, IoError> {
        let mut inner = self.state.lock();
        let found = change(&mut inner.handle);
        let policy = match inner.handle.completion() {
            policy @ CompletionPolicy::Thread(..) => policy,
            _ => CompletionPolicy::Thread(Pace::Adaptive, Aggregation::NONE),
        };
        // Queues that came have no thread yet.
        inner.handle.set_completion(policy)?;
        self.hang_bell(&mut inner);
        let woken = inner.take_answers();
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
        Ok(found)
    }

    /// Starts a request.
    ///
    /// # Errors
    /// [`Refused`], with the request: nothing happened.
    pub fn start(&self, request: Request) -> Result<Pending, Refused> {
        let mut inner = self.state.lock();
        let token = inner.next;
        inner.handle.submit(request, token)?;
        inner.next += 1;
        inner.tickets.insert(token, Ticket::Waiting(None));
        if let Err(error) = inner.handle.ring() {
            inner.gone = Some(error.to_string());
        }
        let woken = inner.take_answers();
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
        Ok(Pending { state: self.state.clone(), token })
    }

    /// Reads as many bytes as fill `into`.
    ///
    /// # Errors
    /// [`Failed`], with the buffer.
    pub async fn read(&self, offset: u64, into: Buffer) -> Result<Data, Box<Failed>> {
        self.run(Request::read(offset, into)).await
    }

    /// Writes what `from` holds.
    ///
    /// # Errors
    /// [`Failed`], with the buffer.
    pub async fn write(&self, offset: u64, from: Buffer, durable: Durable) -> Result<Data, Box<Failed>> {
        self.run(Request::write(offset, from, durable)).await
    }

    /// Makes durable what was answered before.
    ///
    /// # Errors
    /// [`Failed`].
    pub async fn flush(&self) -> Result<Data, Box<Failed>> {
        self.run(Request::flush()).await
    }

    /// Any request, from its submission to its answer; its buffers.
    ///
    /// # Errors
    /// [`Failed`], with the buffers.
    pub async fn run(&self, request: Request) -> Result<Data, Box<Failed>> {
        match self.start(request) {
            Ok(pending) => pending.await,
            Err(Refused { request, error }) => {
                Err(Box::new(Failed { error: error.into(), data: request.data }))
            }
        }
    }
}

/// A request on its way.
#[derive(Debug)]
#[must_use = "a request whose future is dropped is given up"]
pub struct Pending {
    state: Arc<State>,
    token: u64,
}

impl Future for Pending {
    type Output = Result<Data, Box<Failed>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut inner = self.state.lock();
        let gone = inner.gone.clone();
        let failed = |error, data| Poll::Ready(Err(Box::new(Failed { error, data })));
        match inner.tickets.get_mut(&self.token) {
            Some(Ticket::Waiting(waker)) => {
                if let Some(reason) = gone {
                    return failed(IoError::Device { reason }, Data::None);
                }
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Some(Ticket::Answered(_)) => match inner.tickets.remove(&self.token) {
                Some(Ticket::Answered(Answer { completion, data })) => match completion.ok() {
                    Ok(_) => Poll::Ready(Ok(data)),
                    Err(error) => failed(error, data),
                },
                _ => Poll::Pending,
            },
            _ => failed(IoError::Device { reason: "the answer was taken already".to_owned() }, Data::None),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut inner = self.state.lock();
        let mut woken = Vec::new();
        if let Some(ticket @ Ticket::Waiting(_)) = inner.tickets.get_mut(&self.token) {
            *ticket = Ticket::Dropped;
            inner.handle.cancel(self.token);
            woken = inner.take_answers();
        } else {
            inner.tickets.remove(&self.token);
        }
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests;
