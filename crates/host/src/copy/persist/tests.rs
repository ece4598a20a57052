//! Tests of every persistence kernel that this processor runs against a loop over the bytes.

use super::*;
use crate::copy::guarded_pages::{GuardedEnd, GuardedPages};
use std::cell::RefCell;
use std::collections::BTreeSet;

const PAGE: usize = 4_096;
const PAGES: usize = 4;
const LONG: [usize; 9] = [511, 512, 513, 1_023, 4_095, 4_096, 4_097, 8_191, 12_345];

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| random.u8(..)).collect()
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
    use GuardedEnd::{Back, Front};
    let (mut source, mut target) = (GuardedPages::new(PAGES), GuardedPages::new(PAGES));
    let all = PAGES * PAGE;
    source.bytes().copy_from_slice(&noise(all, 2));
    for length in (0..=300).chain(LONG).chain([all]) {
        for (source_end, target_end) in [(Front, Front), (Front, Back), (Back, Front), (Back, Back)] {
            for kernels in available() {
                for operation in KernelOperation::ALL {
                    let src = &*source.bytes_at(source_end, length);
                    let dst = target.bytes_at(target_end, length);
                    operation.run(&kernels, dst, src);
                    assert!(dst == operation.byte_loop(src), "{} {operation:?} {length}", kernels.name);
                    dst.fill(0);
                }
            }
        }
    }
}

#[test]
fn persistence_kernels_match_byte_loop_at_every_pair_of_alignments() {
    let mut target = vec![0xA5; 1_000];
    let start = target.as_ptr().align_offset(64) + 64;
    let bytes = noise(1_000, 6);
    let aligned = bytes.as_ptr().align_offset(64);
    let untouched = target.clone();
    let kernels = available();
    for length in [1, 7, 63, 64, 128, 257, 321] {
        for from in aligned..aligned + 64 {
            let src = &bytes[from..from + length];
            for operation in KernelOperation::ALL {
                let expected = operation.byte_loop(src);
                for to in start..start + 64 {
                    for kernels in &kernels {
                        operation.run(kernels, &mut target[to..to + length], src);
                        let is_right = target[to..to + length] == expected
                            && target[..to] == untouched[..to]
                            && target[to + length..] == untouched[to + length..];
                        assert!(is_right, "{kernels:?} {operation:?} {length} {from} {to}");
                        target[to..to + length].fill(0xA5);
                    }
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
