//! Tests of every persistence kernel that this processor runs against a loop over the bytes.

use super::*;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::c_void;

const PAGE: usize = 4_096;
const PAGES: usize = 4;
const LONG: [usize; 9] = [511, 512, 513, 1_023, 4_095, 4_096, 4_097, 8_191, 12_345];

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| random.u8(..)).collect()
}

/// Pages with a page in front and behind that no access survives.
struct GuardedRange(*mut u8);

impl GuardedRange {
    fn new() -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let bytes = (PAGES + 2) * PAGE;
        // SAFETY: the kernel chooses the address of the pages, which this value unmaps.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
        let start = mapped.unwrap().cast::<u8>();
        for guard in [start, start.wrapping_add((PAGES + 1) * PAGE)] {
            // SAFETY: a page of the mapping above, which nothing refers to.
            unsafe { mprotect(guard.cast::<c_void>(), PAGE, MprotectFlags::empty()) }.unwrap();
        }
        Self(start.wrapping_add(PAGE))
    }

    /// Returns all bytes between the guards.
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: pages of the mapping, initialised by the kernel, borrowed like `self`.
        unsafe { std::slice::from_raw_parts_mut(self.0, PAGES * PAGE) }
    }
}

impl Drop for GuardedRange {
    fn drop(&mut self) {
        let start = self.0.wrapping_sub(PAGE).cast::<c_void>();
        // SAFETY: the range that the kernel returned, which nothing refers to any more.
        unsafe { munmap(start, (PAGES + 2) * PAGE) }.unwrap();
    }
}

/// Operations of a kernel that end with the same bytes in the target.
#[derive(Clone, Copy, Debug)]
enum KernelOperation {
    Store,
    Stream,
    Fill,
}

impl KernelOperation {
    const ALL: [Self; 3] = [Self::Store, Self::Stream, Self::Fill];

    fn run(self, kernels: &PersistKernels, dst: &mut [u8], src: &[u8]) {
        let to = dst.as_mut_ptr();
        match self {
            Self::Store => {
                // SAFETY: the slices have one length and are apart.
                unsafe { kernels.store(to, src) };
                // SAFETY: the slice is mapped.
                unsafe { kernels.flush(to, dst.len()) };
            }
            // SAFETY: the slices have one length and are apart.
            Self::Stream => unsafe { kernels.stream(to, src) },
            // SAFETY: the slice has this length.
            Self::Fill => unsafe { kernels.fill(to, dst.len(), 0x5A) },
        }
        let _promise = drain();
    }

    /// Returns what a loop over the bytes leaves in the target.
    fn byte_loop(self, src: &[u8]) -> Vec<u8> {
        let mut expected = Vec::new();
        for byte in src {
            expected.push(if matches!(self, Self::Fill) { 0x5A } else { *byte });
        }
        expected
    }
}

#[test]
fn persistence_kernels_match_byte_loop_at_every_length_and_alignment() {
    let bytes = noise(13_000, 1);
    let mut target = vec![0xA5; 13_000];
    for length in (0..=300).chain(LONG) {
        for offset in 0..64 {
            // Each alignment of the target meets each of the source at some length.
            let from = (offset * 5 + length) % 64;
            let src = &bytes[from..from + length];
            let start = target.as_ptr().align_offset(64) + 64 + offset;
            for kernels in available() {
                for operation in KernelOperation::ALL {
                    operation.run(&kernels, &mut target[start..start + length], src);
                    let case = format!("{} {:?} {operation:?}", kernels.name, kernels.instruction);
                    let (before, rest) = target.split_at(start);
                    assert!(rest[..length] == operation.byte_loop(src), "{case} {length} {offset}");
                    assert!(
                        before[start - 64..].iter().all(|&byte| byte == 0xA5),
                        "{case} {length} {offset}"
                    );
                    assert!(rest[length..length + 64].iter().all(|&byte| byte == 0xA5), "{case} {length}");
                    target[start..start + length].fill(0xA5);
                }
            }
        }
    }
}

#[test]
fn persistence_kernels_touch_nothing_beside_their_range() {
    let (mut source, mut target) = (GuardedRange::new(), GuardedRange::new());
    let all = PAGES * PAGE;
    source.bytes().copy_from_slice(&noise(all, 2));
    for length in (0..=300).chain(LONG).chain([all]) {
        for (is_source_end, is_target_end) in [(false, false), (false, true), (true, false), (true, true)] {
            let from = if is_source_end { all - length } else { 0 };
            let to = if is_target_end { all - length } else { 0 };
            for kernels in available() {
                for operation in KernelOperation::ALL {
                    let src = &source.bytes()[from..from + length];
                    let dst = &mut target.bytes()[to..to + length];
                    operation.run(&kernels, dst, src);
                    assert!(dst == operation.byte_loop(src), "{} {operation:?} {length}", kernels.name);
                    dst.fill(0);
                }
            }
        }
    }
}

thread_local! {
    /// Lines that the recording kernels wrote back, and lines that they streamed.
    static RECORDED: RefCell<(BTreeSet<usize>, BTreeSet<usize>)> = RefCell::default();
}

/// Records the lines instead of their write-back.
unsafe fn record_write_back(first: *const u8, lines: usize) {
    assert!(first.addr().is_multiple_of(LINE_BYTES));
    RECORDED.with_borrow_mut(|(flushed, _)| {
        flushed.extend((0..lines).map(|line| first.addr() + line * LINE_BYTES));
    });
}

/// Records the lines beside their store.
unsafe fn record_stream(to: *mut u8, lines: &[[u8; LINE_BYTES]]) {
    RECORDED.with_borrow_mut(|(_, streamed)| {
        streamed.extend((0..lines.len()).map(|line| to.addr() + line * LINE_BYTES));
    });
    // SAFETY: the caller promises the same.
    unsafe { portable::store_lines(to, lines) };
}

#[test]
fn every_line_that_a_streaming_copy_stores_in_part_is_flushed_and_no_other() {
    let kernels = PersistKernels { write_back: record_write_back, stream_lines: record_stream, ..PORTABLE };
    let src = noise(1_000, 5);
    let mut target = vec![0; 2_000];
    let aligned = target.as_ptr().align_offset(64);
    for offset in aligned..aligned + 64 {
        for length in (0..=300).chain([512, 577, 1_000]) {
            let dst = &mut target[offset..offset + length];
            let range = dst.as_ptr().addr()..dst.as_ptr().addr() + length;
            RECORDED.take();
            KernelOperation::Stream.run(&kernels, dst, &src[..length]);
            let (flushed, streamed) = RECORDED.take();
            let touched: BTreeSet<usize> = range.clone().map(|byte| byte - byte % LINE_BYTES).collect();
            let is_whole = |line: &&usize| **line >= range.start && **line + LINE_BYTES <= range.end;
            let whole: BTreeSet<usize> = touched.iter().filter(is_whole).copied().collect();
            assert_eq!(streamed, whole, "{offset} {length}");
            assert_eq!(flushed, &touched - &whole, "{offset} {length}");
            KernelOperation::Store.run(&kernels, dst, &src[..length]);
            assert_eq!(RECORDED.take().0, touched, "{offset} {length}");
        }
    }
}

#[test]
fn best_kernels_of_this_processor_are_chosen_and_their_promise_is_honest() {
    let found = available();
    let best = found.last().unwrap();
    assert_eq!((kernel_name(), write_back_instruction()), (best.name, best.instruction));
    assert_eq!(PORTABLE.promise(), DrainPromise::VisibleOnly);
    if cfg!(target_arch = "x86_64") {
        // Every x86-64 processor has clflush.
        assert_ne!(write_back_instruction(), WriteBackInstruction::Unavailable);
        assert_eq!(drain(), DrainPromise::PersistenceDomain);
    }
}

#[test]
fn copies_of_every_length_share_one_drain() {
    let bytes = noise(70_000, 3);
    for threshold in [0, 256, usize::MAX] {
        let mut target = vec![0; bytes.len()];
        let mut copies = PersistentCopies::streaming_from(threshold);
        let mut at = 0;
        for length in (0..=300).chain([4_096, 4_097]) {
            copies.copy(&mut target[at..at + length], &bytes[at..at + length]);
            at += length;
        }
        copies.fill(&mut target[at..at + 333], 7);
        let promise = copies.drain();
        assert_eq!(promise, kernels().promise());
        assert!(target[..at] == bytes[..at]);
        assert!(target[at..at + 333].iter().all(|&byte| byte == 7));
        assert!(target[at + 333..].iter().all(|&byte| byte == 0));
    }
    let mut short = [0; 3];
    assert_eq!(copy_persistent(&mut short, b"abc"), kernels().promise());
    assert_eq!(&short, b"abc");
}

#[test]
fn undrained_copies_are_drained_by_the_end_of_the_value() {
    let mut target = vec![0; 4_096];
    let bytes = noise(4_096, 4);
    PersistentCopies::default().copy_streaming(&mut target, &bytes);
    let seen = std::thread::spawn(move || target).join().unwrap();
    assert!(seen == bytes);
}

#[test]
#[should_panic(expected = "lengths that differ")]
fn persistent_copy_between_different_lengths_panics() {
    PersistentCopies::default().copy(&mut [0; 3], &[0; 4]);
}
