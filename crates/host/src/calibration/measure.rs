//! The measurements of a calibration, each bounded in time.
//!
//! Input: a clock. Output: a median, or the length at which two kinds of copy cost the same; an error where the system
//! has no resources to measure.

use crate::clock::{Clock, Nanos};
use crate::copy::persist::{DrainPromise, PersistentCopies};
use crate::copy::{STREAMING_BYTES_MIN, copy, copy_streaming};
use crate::mapped_region::MappedRegion;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};
use std::hint::black_box;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;

/// The time limit of the wake-up measurement.
const WAKE_SPAN: Nanos = Nanos::from_millis(10);
const WAKE_ROUNDS: usize = 200;

/// Memory written once, so that it is mapped, and long enough that the first bytes written have left most caches.
const COLD_BYTES: usize = 64 << 20;
/// The bytes that each kind of copy moves at each size.
const COPY_BYTES: usize = 1 << 20;
const COPY_SIZES: [usize; 5] = [STREAMING_BYTES_MIN, 2_048, 4_096, 16_384, 65_536];
const PERSIST_SIZES: [usize; 6] = [64, 128, 256, 512, 1_024, 4_096];
/// The time limit for touching memory; a busy host may need much longer for all of it.
const COLD_SPAN: Nanos = Nanos::from_millis(20);

/// Returns the median time from waking another thread to being woken by it.
pub(super) fn wake_round_trip(clock: &Clock) -> io::Result<Nanos> {
    let there = eventfd(0, EventfdFlags::CLOEXEC)?;
    let back = eventfd(0, EventfdFlags::CLOEXEC)?;
    thread::scope(|scope| {
        let echo = thread::Builder::new().spawn_scoped(scope, || {
            // A count of 3 or more ends the loop.
            while wait_for_counter(&there)? < 3 {
                add_to_counter(&back, 1)?;
            }
            Ok(())
        })?;
        let rounds = rounds(clock, &there, &back);
        add_to_counter(&there, 3)?;
        let echoed: io::Result<()> = echo.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        echoed.and(rounds)
    })
}

fn rounds(clock: &Clock, there: &OwnedFd, back: &OwnedFd) -> io::Result<Nanos> {
    let start = clock.now();
    let mut spans = Vec::with_capacity(WAKE_ROUNDS);
    while spans.len() < WAKE_ROUNDS && clock.now().since(start) < WAKE_SPAN {
        let before = clock.now();
        add_to_counter(there, 1)?;
        wait_for_counter(back)?;
        spans.push(clock.now().since(before));
    }
    spans.sort_unstable();
    spans.get(spans.len() / 2).copied().ok_or_else(|| io::ErrorKind::TimedOut.into())
}

/// Adds to the counter, eight bytes in the machine's byte order: the low byte is first or last.
fn add_to_counter(counter_file: &OwnedFd, count: u8) -> io::Result<()> {
    let mut counter = [0; 8];
    let low = if cfg!(target_endian = "little") { 0 } else { 7 };
    counter[low] = count;
    write(counter_file, &counter)?;
    Ok(())
}

/// Waits for the counter to be more than zero and takes it.
fn wait_for_counter(counter_file: &OwnedFd) -> io::Result<u8> {
    let mut counter = [0; 8];
    while let Err(errno) = read(counter_file, &mut counter) {
        if errno != Errno::INTR {
            return Err(errno.into());
        }
    }
    // All counts here are below 256, so one byte holds them.
    Ok(counter.into_iter().max().unwrap_or(0))
}

/// Returns the smallest size from which on copying past the cache into cold memory is faster; `u64::MAX` if it never
/// is; an error if the system had no memory to measure in, or not soon enough.
pub(super) fn streaming_copy_from_bytes(clock: &Clock) -> io::Result<u64> {
    crossover(clock, &COPY_SIZES, copy, copy_streaming)
}

/// Returns the smallest size from which on a durable copy into cold memory is faster past the cache than through it;
/// otherwise as [`streaming_copy_from_bytes`].
pub(super) fn streaming_persist_from_bytes(clock: &Clock) -> io::Result<u64> {
    crossover(clock, &PERSIST_SIZES, persist_cached, persist_streaming)
}

fn persist_cached(dst: &mut [u8], src: &[u8]) {
    let mut copies = PersistentCopies::default();
    copies.copy_cached(dst, src);
    let _promise: DrainPromise = copies.drain();
}

fn persist_streaming(dst: &mut [u8], src: &[u8]) {
    let mut copies = PersistentCopies::default();
    copies.copy_streaming(dst, src);
    let _promise: DrainPromise = copies.drain();
}

/// A function that copies between slices of one length.
type CopyFunction = fn(&mut [u8], &[u8]);

/// Returns the smallest of the rising sizes from which on `streaming` is faster in cold memory than `cached`; `u64::MAX`
/// if it never is; an error if the system had no memory to measure in, or not soon enough.
fn crossover(
    clock: &Clock,
    sizes: &[usize],
    cached: CopyFunction,
    streaming: CopyFunction,
) -> io::Result<u64> {
    let mut cold = MappedRegion::zeroed(COLD_BYTES).map_err(io::Error::other)?;
    let start = clock.now();
    for part in cold.chunks_mut(1 << 20) {
        if clock.now().since(start) > COLD_SPAN {
            return Err(io::ErrorKind::TimedOut.into());
        }
        for page in part.chunks_mut(4_096) {
            page[0] = 1;
        }
    }
    let source = vec![0x5A; sizes.last().copied().unwrap_or(0)];
    let mut at = 0;
    let mut from = u64::MAX;
    // From the largest down, until the cached copy is faster: a single fast result below that is an outlier.
    for &size in sizes.iter().rev() {
        let by_cache = time_copies(clock, &mut cold, &mut at, &source[..size], cached);
        let streamed = time_copies(clock, &mut cold, &mut at, &source[..size], streaming);
        if streamed >= by_cache {
            break;
        }
        from = size as u64;
    }
    Ok(from)
}

/// Returns the time to copy a megabyte piece by piece into memory that was not written for a while.
fn time_copies(clock: &Clock, cold: &mut [u8], at: &mut usize, source: &[u8], by: CopyFunction) -> Nanos {
    let before = clock.now();
    for _ in 0..COPY_BYTES / source.len() {
        if *at + source.len() > cold.len() {
            *at = 0;
        }
        by(black_box(&mut cold[*at..*at + source.len()]), source);
        *at += source.len();
    }
    clock.now().since(before)
}
