//! Tests of futures under a minimal executor, so that they depend on no other.

use super::*;
use crate::backend::DeviceBackend as _;
use crate::model::{BlockFaults, ModelContents, ModelDevice, ModelSettings, ServiceTimes};
use crate::queue::Queue;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use std::pin::pin;
use std::thread::{self, Thread};

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

fn model() -> ModelDevice {
    let service =
        ServiceTimes { fixed: Nanos::from_micros(20), jitter_percent: 50, ..ServiceTimes::default() };
    let settings =
        ModelSettings { contents: ModelContents::Memory, ..ModelSettings::latency_model(1 << 20, service) };
    ModelDevice::new(settings).unwrap()
}

fn handle(model: &mut ModelDevice, depth: u32) -> AsyncHandle {
    let queue = Queue::over(model.queue(depth).unwrap());
    AsyncHandle::over(Handle::builder(model.facts()).queue(queue).build().unwrap()).unwrap()
}

#[test]
fn futures_complete_with_their_requests_on_any_thread() {
    let mut model = model();
    let handle = handle(&mut model, 4);
    let threads: Vec<_> = (0..3_u8)
        .map(|number| {
            let (handle, mut model) = (handle.clone(), model.clone());
            thread::spawn(move || {
                block_on(async {
                    for round in 0..100_u64 {
                        let offset = (u64::from(number) * 100 + round) * 512;
                        let mut from = model.region(512).unwrap();
                        from.bytes_mut().unwrap().fill(number + 1);
                        let buffer = handle.write(offset, from, WriteDurability::Immediate).await.unwrap();
                        buffer.write(0, &[0; 512]).unwrap();
                        let mut back = handle.read(offset, buffer).await.unwrap();
                        assert_eq!(back.bytes_mut().unwrap(), [number + 1; 512]);
                    }
                    handle.flush().await.unwrap();
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn failures_and_refusals_return_the_buffer_through_the_future() {
    let mut model = model();
    model.set_faults(BlockFaults::default().with(0, 1, Status::UNRECOVERED_READ_ERROR));
    let handle = handle(&mut model, 4);
    let failed = block_on(handle.read(0, model.region(512).unwrap())).unwrap_err();
    assert_eq!((failed.error.status(), failed.data.bytes()), (Some(Status::UNRECOVERED_READ_ERROR), 512));
    let refused = block_on(handle.read(1, model.region(512).unwrap())).unwrap_err();
    assert!(matches!(refused.error, IoError::Request(_)));
    assert_eq!(refused.data.bytes(), 512);
}

#[test]
fn dropped_future_leaves_no_ticket_and_no_waiter() {
    let mut model = model();
    let handle = handle(&mut model, 2);
    for round in 0..50 {
        let pending: Vec<_> =
            (0..10).map(|_| handle.start(IoRequest::read(0, model.region(512).unwrap())).unwrap()).collect();
        for (number, pending) in pending.into_iter().enumerate() {
            if number % 3 == round % 3 {
                block_on(pending).unwrap();
            }
        }
    }
    block_on(handle.flush()).unwrap();
    while handle.with_handle(|handle| handle.outstanding()).unwrap() > 0 {
        thread::yield_now();
    }
    assert!(handle.state.lock().futures.is_empty());
}

/// Checks for a former defect: the announcer waited for the lock, and the lock's holder for the announcer's thread to
/// end.
#[test]
fn announcement_while_the_handle_is_in_use_does_not_wait_and_is_delivered() {
    let mut model = model();
    let handle = handle(&mut model, 2);
    let waker = Waker::from(Arc::new(CompletionWaker(Arc::downgrade(&handle.state))));
    handle.with_handle(|_| thread::spawn(move || waker.wake_by_ref()).join().unwrap()).unwrap();
    assert!(!handle.state.announced.load(Ordering::SeqCst), "the holder of the lock delivers");
    block_on(handle.read(512, model.region(512).unwrap())).unwrap();
}

#[test]
fn policies_can_change_between_futures() {
    let mut model = model();
    let handle = handle(&mut model, 2);
    for round in 0..20 {
        let pending = handle.start(IoRequest::read(512, model.region(512).unwrap())).unwrap();
        let policy = match round % 3 {
            0 => CompletionPolicy::Inline,
            1 => CompletionPolicy::Thread(PollPace::Busy, CompletionAggregation::NONE),
            _ => {
                CompletionPolicy::Thread(PollPace::Fixed(Nanos::from_micros(30)), CompletionAggregation::NONE)
            }
        };
        handle.with_handle(|handle| handle.set_completion(policy)).unwrap().unwrap();
        block_on(pending).unwrap();
    }
}
