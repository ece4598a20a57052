//! Tests of classes through a cache, and of joined handles with queues and policies of their own.

use crate::fake::{buffer, bytes_of, memory, small_config};
use crate::over_handle::{BLOCK, BlockDevice, DeviceControls, FIRST, device, facts, queue_of};
use headwater_io::cache::{BackgroundWork, CacheConfig, WritePolicy};
use headwater_io::command::WriteDurability;
use headwater_io::scheduler::{RequestClass, SchedulingPolicy};
use headwater_io::{CacheError, CachePath, CachedHandle, ClientNamespace, Handle, IoError, IoRequest, Queue};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

const START: u64 = FIRST * BLOCK as u64;
const PAGE: u64 = 4_096;
const READ: u8 = 2;
const WRITE: u8 = 1;

fn config() -> CacheConfig {
    CacheConfig {
        pages: 24,
        dirty_background: 90,
        dirty_max: 90,
        write_backs: 16,
        background: BackgroundWork::Callers,
        ..small_config()
    }
}

fn handle_over(queue: BlockDevice) -> Handle {
    Handle::builder(&facts()).queue(Queue::over(Box::new(queue))).build().unwrap()
}

/// Returns a handle that sends one command at a time, in the order of classes.
fn by_priority(config: CacheConfig) -> (CachedHandle, Arc<DeviceControls>) {
    let (_, bytes) = device();
    let (queue, controls) = queue_of(&bytes);
    let mut handle = handle_over(queue);
    handle.set_scheduling(SchedulingPolicy::Priority { overtakes_max: u32::MAX });
    handle.set_in_flight_max(1);
    (CachedHandle::new(handle, &facts(), config, &mut memory).unwrap(), controls)
}

fn class(number: u8) -> RequestClass {
    RequestClass::new(number).unwrap()
}

/// Returns the first block of a page that is not adjacent to any other page of these tests.
fn lba_of(page: u64) -> u64 {
    FIRST + page * 2 * PAGE / BLOCK as u64
}

fn offset_of(page: u64) -> u64 {
    START + page * 2 * PAGE
}

/// Returns pages in the order of classes, and in the order of submission within a class: the naive model.
fn in_order(classes: &[u8]) -> Vec<u64> {
    let mut pages: Vec<(u8, u64)> = classes.iter().copied().zip(0..).collect();
    pages.sort_by_key(|&(class, _)| class);
    pages.into_iter().map(|(_, page)| lba_of(page)).collect()
}

fn random_classes(random: &mut fastrand::Rng) -> Vec<u8> {
    (0..random.usize(2..12)).map(|_| random.u8(0..8)).collect()
}

fn complete_all(handle: &mut CachedHandle) {
    while let Some(answer) = handle.wait(None).unwrap() {
        assert!(answer.completion.status.is_success());
    }
}

#[test]
fn misses_reach_the_device_in_the_order_of_their_classes() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let classes = random_classes(&mut random);
        let (mut handle, controls) = by_priority(config());
        handle.set_path([CachePath::Cached, CachePath::Direct][usize::from(random.bool())]);
        for (&number, page) in classes.iter().zip(0..) {
            let request = IoRequest::read(offset_of(page), buffer(&[0; BLOCK])).with_class(class(number));
            handle.submit(request, page).unwrap();
        }
        complete_all(&mut handle);
        assert_eq!(controls.taken(READ), in_order(&classes), "seed {seed}: {classes:?}");
    }
}

#[test]
fn write_through_reaches_the_device_in_the_order_of_classes() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let classes = random_classes(&mut random);
        let (mut handle, controls) = by_priority(CacheConfig { policy: WritePolicy::Through, ..config() });
        for (&number, page) in classes.iter().zip(0..) {
            let from = buffer(&[3; 4_096]);
            let request = IoRequest::write(offset_of(page), from, WriteDurability::NamespaceDefault);
            handle.submit(request.with_class(class(number)), page).unwrap();
        }
        complete_all(&mut handle);
        assert_eq!(controls.taken(WRITE), in_order(&classes), "seed {seed}: {classes:?}");
    }
}

#[test]
fn write_back_reaches_the_device_in_the_classes_of_the_last_writes() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let classes = random_classes(&mut random);
        let (mut handle, controls) = by_priority(config());
        for round in 0..2 {
            for (&last, page) in classes.iter().zip(0..) {
                // The class of the first write does not count.
                let number = if round == 0 { random.u8(0..8) } else { last };
                if random.bool() && round == 1 {
                    handle.set_class(class(number));
                    assert!(handle.write_hit(offset_of(page), &[5; 100]));
                    continue;
                }
                let from = buffer(&[4; 4_096]);
                let request = IoRequest::write(offset_of(page), from, WriteDurability::NamespaceDefault);
                handle.run(request.with_class(class(number))).unwrap();
            }
        }
        assert!(controls.taken(WRITE).is_empty(), "written before the flush");
        handle.run(IoRequest::flush().with_class(RequestClass::LAST)).unwrap();
        let mut written = controls.taken(WRITE);
        let wanted = in_order(&classes);
        // All pages wait in the scheduler, in the order of becoming dirty.
        assert_eq!(written, wanted, "seed {seed}: {classes:?}");
        written.sort_unstable();
        written.dedup();
        assert_eq!(written.len(), wanted.len());
    }
}

#[test]
fn adjacent_pages_of_two_classes_are_written_apart_and_those_of_one_class_together() {
    for (second, commands) in [(0, 1), (5, 2)] {
        let (mut handle, controls) = by_priority(config());
        for (page, number) in [(0, 0), (1, second)] {
            let from = buffer(&[7; 4_096]);
            let request = IoRequest::write(START + page * PAGE, from, WriteDurability::NamespaceDefault);
            handle.run(request.with_class(class(number))).unwrap();
        }
        handle.flush().unwrap();
        assert_eq!(controls.taken(WRITE).len(), commands, "class {second}");
    }
}

/// A cache over a queue, and a second handle with a queue of its own.
struct Joined {
    first: CachedHandle,
    second: CachedHandle,
    first_queue: Arc<DeviceControls>,
    second_queue: Arc<DeviceControls>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

fn joined(config: CacheConfig) -> Joined {
    let (_, bytes) = device();
    let ((one, first_queue), (other, second_queue)) = (queue_of(&bytes), queue_of(&bytes));
    let first = CachedHandle::new(handle_over(one), &facts(), config, &mut memory).unwrap();
    let second = CachedHandle::join_with(&first.cache(), &facts(), handle_over(other)).unwrap();
    Joined { first, second, first_queue, second_queue, bytes }
}

#[test]
fn transfers_of_a_joined_handle_use_its_own_queues() {
    let Joined { mut first, mut second, first_queue, second_queue, bytes } = joined(config());
    assert!(second.has_own_queues() && !first.has_own_queues());
    second.read(offset_of(0), buffer(&[0; 100])).unwrap();
    first.read(offset_of(1), buffer(&[0; 100])).unwrap();
    assert_eq!((first_queue.taken(READ), second_queue.taken(READ)), (vec![lba_of(1)], vec![lba_of(0)]));
    // A page that the other handle's read brought in is a hit.
    first.read(offset_of(0), buffer(&[0; 100])).unwrap();
    // A flush of the first handle writes back what the second wrote, through the second's queue.
    second.write(offset_of(2), buffer(&[9; 4_096]), WriteDurability::NamespaceDefault).unwrap();
    first.write(offset_of(3), buffer(&[8; 4_096]), WriteDurability::NamespaceDefault).unwrap();
    first.flush().unwrap();
    assert_eq!((first_queue.taken(WRITE), second_queue.taken(WRITE)), (vec![lba_of(3)], vec![lba_of(2)]));
    // A page of a handle that has left is written through the queue of the cache.
    second.write(offset_of(4), buffer(&[7; 4_096]), WriteDurability::NamespaceDefault).unwrap();
    drop(second);
    first.flush().unwrap();
    assert_eq!((first_queue.taken(WRITE), second_queue.taken(WRITE)), (vec![lba_of(4)], Vec::new()));
    let at = usize::try_from(offset_of(4)).unwrap();
    assert_eq!(bytes.lock().unwrap()[at..at + 4_096], [7; 4_096]);
}

#[test]
fn queue_without_progress_holds_up_no_other_handle() {
    let Joined { mut first, mut second, first_queue, .. } = joined(config());
    first.with_handle(|handle| handle.set_in_flight_max(1));
    first_queue.held.store(true, Ordering::Relaxed);
    for page in 0..6 {
        first.submit(IoRequest::read(offset_of(page), buffer(&[0; 100])), page).unwrap();
    }
    for page in 6..12 {
        second.read(offset_of(page), buffer(&[0; 100])).unwrap();
        second.write(offset_of(page), buffer(&[1; 100]), WriteDurability::Immediate).unwrap();
    }
    assert_eq!(first.outstanding(), 6);
    first_queue.held.store(false, Ordering::Relaxed);
    complete_all(&mut first);
}

#[test]
fn policies_of_one_handle_do_not_change_those_of_another() {
    let Joined { mut first, mut second, second_queue, .. } = joined(config());
    second.with_handle(|handle| {
        handle.set_scheduling(SchedulingPolicy::Priority { overtakes_max: u32::MAX });
        handle.set_in_flight_max(1);
    });
    first.with_handle(|handle| assert_eq!(*handle.scheduling(), SchedulingPolicy::Fifo));
    let classes = [3, 1, 2, 0];
    for (&number, page) in classes.iter().zip(0..) {
        let request = IoRequest::read(offset_of(page), buffer(&[0; 9])).with_class(class(number));
        second.submit(request, page).unwrap();
    }
    complete_all(&mut second);
    assert_eq!(second_queue.taken(READ), in_order(&classes));
}

#[test]
fn own_handle_comes_back_and_the_cache_stays() {
    let Joined { mut first, mut second, second_queue, .. } = joined(config());
    second.write(offset_of(1), buffer(&[6; 50]), WriteDurability::NamespaceDefault).unwrap();
    let mut plain = second.into_handle().unwrap();
    second_queue.taken(READ);
    assert_eq!(bytes_of(&plain.read(offset_of(1), buffer(&[0; BLOCK])).unwrap())[..50], [6; 50]);
    assert_eq!(second_queue.taken(READ), [lba_of(1)]);
    // It joins again, and the last handle removes the cache.
    let again = CachedHandle::join_with(&first.cache(), &facts(), plain).unwrap();
    assert_eq!(bytes_of(&first.read(offset_of(1), buffer(&[0; 50])).unwrap()), [6; 50]);
    let (first, error) = first.into_handle().unwrap_err();
    assert!(matches!(error, IoError::Cache(CacheError::InUse)));
    drop(again);
    first.into_handle().unwrap();
}

#[test]
fn handle_with_other_blocks_is_refused_and_returned() {
    let Joined { first, bytes, .. } = joined(config());
    let less = ClientNamespace { blocks: Some((FIRST, FIRST + 10)), ..facts() };
    let other = Handle::builder(&less).queue(Queue::over(Box::new(queue_of(&bytes).0))).build().unwrap();
    let (other, error) = CachedHandle::join_with(&first.cache(), &less, other).unwrap_err();
    assert!(error.to_string().contains("not those of the cache"), "{error}");
    assert_eq!(other.outstanding(), 0);
}

/// Checks seeded runs of handles with and without queues of their own that come and go, against an array of bytes.
#[test]
fn handles_that_join_and_leave_agree_with_an_array_of_bytes() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let Joined { first, second, bytes, .. } = joined(CacheConfig { write_backs: 3, ..config() });
        let from = usize::try_from(START).unwrap();
        let mut wanted = bytes.lock().unwrap()[from..from + 100 * BLOCK].to_vec();
        let mut handles = vec![first, second];
        for _ in 0..300 {
            let at = random.usize(0..handles.len());
            let start = random.usize(0..wanted.len() - 9_000);
            let (length, offset) = (random.usize(1..9_000), START + u64::try_from(start).unwrap());
            let number = class(random.u8(0..8));
            match random.u32(0..12) {
                0 if handles.len() < 5 => {
                    let cache = handles[0].cache();
                    handles.push(if random.bool() {
                        CachedHandle::join(&cache, &facts())
                    } else {
                        let own = handle_over(queue_of(&bytes).0);
                        CachedHandle::join_with(&cache, &facts(), own).unwrap()
                    });
                }
                1 if handles.len() > 1 => {
                    let leaving = handles.swap_remove(at);
                    if random.bool() && leaving.has_own_queues() {
                        leaving.into_handle().unwrap();
                    }
                }
                2 => handles[at].flush().unwrap(),
                3..7 => {
                    let byte = random.u8(..);
                    let from = buffer(&vec![byte; length]);
                    let request = IoRequest::write(offset, from, WriteDurability::NamespaceDefault);
                    handles[at].run(request.with_class(number)).unwrap();
                    wanted[start..start + length].fill(byte);
                }
                _ => {
                    let read = IoRequest::read(offset, buffer(&vec![0; length])).with_class(number);
                    let read = handles[at].run(read).unwrap();
                    assert!(bytes_of(&read.buffers()[0]) == wanted[start..start + length], "seed {seed}");
                }
            }
        }
        handles[0].flush().unwrap();
        assert!(bytes.lock().unwrap()[from..from + wanted.len()] == wanted, "seed {seed}");
    }
}
