//! Tests of futures over a cache, under a minimal executor.

use crate::fake::{buffer, bytes_of, memory, small_config};
use crate::over_handle::{BLOCK, BlockDevice, FIRST, device, facts, queue_of};
use headwater_host::clock::Nanos;
use headwater_io::cache::{BackgroundWork, CacheConfig};
use headwater_io::command::WriteDurability;
use headwater_io::{AsyncHandle, CachedHandle, Handle, IoRequest, Queue};
use headwater_nvme::spec::status::Status;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

const START: u64 = FIRST * BLOCK as u64;
const PAGE: u64 = 4_096;

struct UnparkWaker(Thread);

impl Wake for UnparkWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which sleeps until it is woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(UnparkWaker(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(found) => return found,
            Poll::Pending => thread::park(),
        }
    }
}

fn handle_over(queue: BlockDevice) -> Handle {
    Handle::builder(&facts()).queue(Queue::over(Box::new(queue))).build().unwrap()
}

fn cached(queue: BlockDevice) -> CachedHandle {
    // Futures need the thread of the cache, and start it.
    let config = CacheConfig { pages: 12, background: BackgroundWork::Callers, ..small_config() };
    CachedHandle::new(handle_over(queue), &facts(), config, &mut memory).unwrap()
}

#[test]
fn futures_over_a_cache_complete_on_any_thread() {
    let (queue, bytes) = device();
    let handle = AsyncHandle::over(cached(queue)).unwrap();
    thread::scope(|scope| {
        for number in 0..3_u64 {
            let (handle, bytes) = (handle.clone(), &bytes);
            scope.spawn(move || {
                let base = START + number * 8 * PAGE;
                let mut random = fastrand::Rng::with_seed(number);
                let mut wanted = vec![0xAA_u8; 8 * 4_096];
                block_on(async {
                    for _ in 0..200 {
                        let start = random.usize(0..wanted.len());
                        let length = random.usize(1..9_000).min(wanted.len() - start);
                        let offset = base + u64::try_from(start).unwrap();
                        if random.bool() {
                            let byte = random.u8(..);
                            let from = buffer(&vec![byte; length]);
                            handle.write(offset, from, WriteDurability::NamespaceDefault).await.unwrap();
                            wanted[start..start + length].fill(byte);
                        } else {
                            let read = handle.read(offset, buffer(&vec![0; length])).await.unwrap();
                            assert!(bytes_of(&read) == wanted[start..start + length]);
                        }
                    }
                    handle.flush().await.unwrap();
                });
                let from = usize::try_from(base).unwrap();
                assert!(bytes.lock().unwrap()[from..from + wanted.len()] == wanted, "flushed bytes are lost");
            });
        }
    });
    block_on(handle.flush()).unwrap();
    assert_eq!(handle.with_handle(|handle| handle.statistics().dirty_bytes).unwrap(), 0);
}

#[test]
fn future_whose_page_another_handle_is_reading_does_not_wait_for_its_polls() {
    for seed in 0..30 {
        let (_, bytes) = device();
        let mut blocking = cached(queue_of(&bytes).0);
        let own = handle_over(queue_of(&bytes).0);
        let joined = CachedHandle::join_with(&blocking.cache(), &facts(), own).unwrap();
        let handle = AsyncHandle::over(joined).unwrap();
        // The blocking handle starts a read, and does not poll while the future waits for the same page.
        let offset = START + seed % 4 * PAGE;
        blocking.submit(IoRequest::read(offset, buffer(&[0; 10])), 1).unwrap();
        let read = block_on(handle.read(offset, buffer(&[0; 10]))).unwrap();
        assert_eq!(bytes_of(&read), [0xAA; 10]);
        assert!(blocking.wait(None).unwrap().is_some());
    }
}

#[test]
fn request_of_a_future_that_another_thread_finishes_wakes_its_task() {
    let (queue, _) = device();
    let handle = AsyncHandle::over(cached(queue)).unwrap();
    let mut blocking = handle.with_handle(|handle| CachedHandle::join(&handle.cache(), &facts())).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert!(blocking.poll().unwrap().is_none());
            }
        });
        block_on(async {
            for round in 0..300_u64 {
                let offset = START + round % 20 * PAGE;
                let read = handle.read(offset, buffer(&[0; 10])).await.unwrap();
                assert_eq!(bytes_of(&read), [0xAA; 10]);
            }
        });
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn dropped_future_and_deadline_cancel_at_a_device_that_does_not_answer() {
    let (_, bytes) = device();
    let (queue, controls) = queue_of(&bytes);
    let handle = AsyncHandle::over(cached(queue)).unwrap();
    controls.held.store(true, Ordering::Relaxed);
    drop(handle.start(IoRequest::read(START, buffer(&[0; 10]))).unwrap());
    let late = IoRequest::read(START + PAGE, buffer(&[0; 10])).with_timeout(Nanos::from_millis(2));
    let failed = block_on(handle.run(late)).unwrap_err();
    assert_eq!(failed.error.status(), Some(Status::ABORT_REQUESTED));
    assert_eq!(failed.data.bytes(), 10, "the buffer did not come back");
    controls.held.store(false, Ordering::Relaxed);
    let read = block_on(handle.read(START, buffer(&[0; 10]))).unwrap();
    assert_eq!(bytes_of(&read), [0xAA; 10]);
    assert_eq!(handle.with_handle(|handle| handle.outstanding()).unwrap(), 0);
}

#[test]
fn handle_dropped_with_requests_in_flight_ends_its_thread() {
    for held in [false, true] {
        let (_, bytes) = device();
        let (queue, controls) = queue_of(&bytes);
        let handle = AsyncHandle::over(cached(queue)).unwrap();
        handle.with_handle(|handle| handle.cache().set_close_wait(Nanos::from_millis(5))).unwrap();
        controls.held.store(held, Ordering::Relaxed);
        let futures: Vec<_> = (0..4)
            .map(|page| handle.start(IoRequest::read(START + page * PAGE, buffer(&[0; 10]))).unwrap())
            .collect();
        drop(handle);
        drop(futures);
    }
}
