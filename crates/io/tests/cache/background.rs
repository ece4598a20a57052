//! Tests of the thread of a cache: write-back while no call is made, its errors, and the end of a cache.

use crate::fake::{buffer, bytes_of, memory, small_config};
use crate::over_handle::{BLOCK, DeviceControls, FIRST, device, facts, queue_of};
use headwater_host::clock::{Clock, Nanos};
use headwater_io::cache::{CacheConfig, WritePolicy};
use headwater_io::command::WriteDurability;
use headwater_io::{CacheError, CachedHandle, Handle, IoError, IoRequest, Queue, RequestError};
use headwater_nvme::spec::status::Status;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

const START: u64 = FIRST * BLOCK as u64;
const PAGE: u64 = 4_096;
const WRITE: u8 = 1;
const LONG: Nanos = Nanos::from_millis(60_000);

fn config(dirty_age: Nanos) -> CacheConfig {
    CacheConfig { dirty_age, dirty_background: 60, dirty_max: 60, ..small_config() }
}

struct Rig {
    handle: CachedHandle,
    controls: Arc<DeviceControls>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

fn rig(config: CacheConfig) -> Rig {
    let (_, bytes) = device();
    let (queue, controls) = queue_of(&bytes);
    let handle = Handle::builder(&facts()).queue(Queue::over(Box::new(queue))).build().unwrap();
    Rig { handle: CachedHandle::new(handle, &facts(), config, &mut memory).unwrap(), controls, bytes }
}

fn first_byte(bytes: &Mutex<Vec<u8>>, offset: u64) -> u8 {
    bytes.lock().unwrap()[usize::try_from(offset).unwrap()]
}

/// Waits without a call of the cache. A condition that never holds hangs the test.
fn until(holds: impl Fn() -> bool) {
    while !holds() {
        Clock::sleep(Nanos::from_micros(200));
    }
}

fn write(handle: &mut CachedHandle, offset: u64, byte: u8) -> Result<(), IoError> {
    let written = handle.write(offset, buffer(&[byte; 4_096]), WriteDurability::NamespaceDefault);
    written.map(drop).map_err(|failed| failed.error)
}

#[test]
fn dirty_page_reaches_the_device_while_no_call_is_made() {
    let Rig { mut handle, bytes, .. } = rig(config(Nanos::from_millis(1)));
    for round in 1..5 {
        write(&mut handle, START, round).unwrap();
        until(|| first_byte(&bytes, START) == round);
        // A write that is a hit wakes the sleeping thread too.
        assert!(handle.write_hit(START, &[round + 100]));
        until(|| first_byte(&bytes, START) == round + 100);
    }
}

#[test]
fn write_back_that_a_caller_started_completes_while_no_call_is_made() {
    // Pages do not age in this test: their number alone starts the write-back.
    let Rig { mut handle, bytes, .. } = rig(CacheConfig { dirty_background: 0, ..config(LONG) });
    write(&mut handle, START, 9).unwrap();
    write(&mut handle, START + PAGE, 9).unwrap();
    until(|| first_byte(&bytes, START) == 9);
}

#[test]
fn failed_write_back_refuses_the_next_write_of_each_handle_once() {
    let Rig { mut handle, controls, bytes } = rig(config(Nanos::from_millis(1)));
    let mut other = CachedHandle::join(&handle.cache(), &facts());
    controls.failing.store(true, Ordering::Relaxed);
    write(&mut handle, START, 1).unwrap();
    until(|| handle.statistics().write_failures > 0);
    for handle in [&mut handle, &mut other] {
        assert!(!handle.write_hit(START, &[2]), "a hit hid the failure");
        let refused = handle
            .submit(IoRequest::write(START, buffer(&[2; 9]), WriteDurability::NamespaceDefault), 1)
            .unwrap_err();
        assert_eq!(refused.error, RequestError::WriteBackFailed { status: Status::INTERNAL_ERROR });
        assert_eq!(refused.request.bytes, 9, "the buffer did not come back");
    }
    // Reads are served from the page that stays.
    assert_eq!(bytes_of(&handle.read(START, buffer(&[0; 2])).unwrap()), [1, 1]);
    controls.failing.store(false, Ordering::Relaxed);
    // The retries that failed until now may refuse once more.
    while write(&mut handle, START + PAGE, 3).is_err() {}
    until(|| first_byte(&bytes, START) == 1 && first_byte(&bytes, START + PAGE) == 3);
}

#[test]
fn close_reports_a_failed_write_back_and_succeeds_without_one() {
    let Rig { mut handle, controls, .. } = rig(config(LONG));
    let mut other = CachedHandle::join(&handle.cache(), &facts());
    write(&mut handle, START, 1).unwrap();
    controls.failing.store(true, Ordering::Relaxed);
    assert!(matches!(handle.close(LONG), Err(IoError::Status(Status::INTERNAL_ERROR))));
    controls.failing.store(false, Ordering::Relaxed);
    // The other user of the cache is told too, and its page is not lost.
    assert!(other.flush().is_err());
    other.close(LONG).unwrap();
    assert_eq!(controls.taken(WRITE).last(), Some(&FIRST));
}

#[test]
fn close_of_a_device_that_does_not_answer_ends_and_says_what_is_lost() {
    let Rig { mut handle, controls, .. } = rig(config(LONG));
    write(&mut handle, START, 1).unwrap();
    write(&mut handle, START + PAGE, 1).unwrap();
    controls.held.store(true, Ordering::Relaxed);
    let waited = Nanos::from_millis(20);
    let Err(IoError::Cache(error)) = handle.close(waited) else { panic!("closed") };
    assert_eq!(error, CacheError::CloseTimeout { dirty_bytes: 2 * PAGE, waited });
}

#[test]
fn last_handle_that_is_dropped_writes_back() {
    let Rig { mut handle, bytes, .. } = rig(config(LONG));
    let other = CachedHandle::join(&handle.cache(), &facts());
    write(&mut handle, START, 5).unwrap();
    drop(handle);
    assert_eq!(first_byte(&bytes, START), 0xAA, "the cache is still in use");
    drop(other);
    assert_eq!(first_byte(&bytes, START), 5);
}

#[test]
fn drop_does_not_wait_for_ever_for_a_device_that_does_not_answer() {
    let Rig { mut handle, controls, bytes } = rig(config(LONG));
    handle.cache().set_close_wait(Nanos::from_millis(5));
    write(&mut handle, START, 5).unwrap();
    controls.held.store(true, Ordering::Relaxed);
    drop(handle);
    assert_eq!(first_byte(&bytes, START), 0xAA);
}

#[test]
fn threads_that_call_and_the_thread_of_the_cache_agree_with_their_writes() {
    const EACH: u64 = 6 * PAGE;
    let settings = CacheConfig { policy: WritePolicy::Back, ..config(Nanos::from_micros(300)) };
    let Rig { handle, bytes, .. } = rig(settings);
    let cache = handle.cache();
    std::thread::scope(|scope| {
        for number in 0..3_u64 {
            let own =
                Handle::builder(&facts()).queue(Queue::over(Box::new(queue_of(&bytes).0))).build().unwrap();
            let mut handle = CachedHandle::join_with(&cache, &facts(), own).unwrap();
            let bytes = &bytes;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(number);
                let mut wanted = vec![0xAA_u8; usize::try_from(EACH).unwrap()];
                for _ in 0..2_000 {
                    let start = random.usize(0..wanted.len());
                    let length = random.usize(1..6_000).min(wanted.len() - start);
                    let offset = START + number * EACH + u64::try_from(start).unwrap();
                    if random.bool() {
                        let byte = random.u8(..);
                        let from = buffer(&vec![byte; length]);
                        handle.write(offset, from, WriteDurability::NamespaceDefault).unwrap();
                        wanted[start..start + length].fill(byte);
                    } else {
                        let read = handle.read(offset, buffer(&vec![0; length])).unwrap();
                        assert!(bytes_of(&read) == wanted[start..start + length]);
                    }
                }
                // Without a further call the device gets every byte.
                let from = usize::try_from(START + number * EACH).unwrap();
                until(|| bytes.lock().unwrap()[from..from + wanted.len()] == wanted);
            });
        }
    });
    drop(cache);
    let before = handle.statistics();
    handle.close(LONG).unwrap();
    assert_eq!(before.unmatched_completions, 0);
}
