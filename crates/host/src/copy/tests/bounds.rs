//! Tests of every kernel against a loop over the bytes: at guard pages, and at all alignments of both ranges.
//!
//! Input: ranges that begin behind a guard page or end at one, and ranges at each place of a cache line. Output: a fault, or a
//! failed check, if a kernel reads or writes one byte beside its range. Invariant: each table of kernels that this processor
//! runs takes part.

use super::{bitwise, noise};
use crate::copy::dispatch::{KernelTable, available};
use crate::copy::guarded_pages::{GuardedEnd, GuardedPages};
use crate::copy::{copy, copy_untrusted, is_zero};
use std::ops::Range;

const SEED: u32 = 0x89AB_CDEF;
const CANARY: u8 = 0xA5;
const PAGES: usize = 3;
const WHOLE_BYTES: usize = PAGES * 4_096;
const LINE_BYTES: usize = 64;
static CANARIES: [u8; WHOLE_BYTES] = [CANARY; WHOLE_BYTES];

/// The lengths at which kernels change their way, and those beside them.
const LONG: [usize; 20] = [
    383, 384, 385, 511, 512, 513, 575, 576, 639, 640, 767, 768, 769, 1_023, 1_024, 1_025, 4_095, 4_096,
    4_097, 8_255,
];

/// The lengths of which all pairs of alignments are tested.
const PAIRED: [usize; 10] = [1, 7, 63, 64, 127, 128, 192, 257, 512, 577];

/// A way to call a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KernelCall {
    Cached,
    Untrusted,
    Stream,
    StreamCrc,
    Crc,
    CopyCrc,
    CopyInCrc,
    CopyOutCrc,
}

impl KernelCall {
    /// The calls that no table has a kernel for.
    const WITHOUT_TABLE: [Self; 2] = [Self::Cached, Self::Untrusted];
    /// The calls of each table.
    const OF_TABLE: [Self; 6] =
        [Self::Stream, Self::StreamCrc, Self::Crc, Self::CopyCrc, Self::CopyInCrc, Self::CopyOutCrc];

    /// Runs the kernel, and returns the CRC that it computes.
    fn run(self, kernel: &KernelTable, dst: &mut [u8], src: &[u8]) -> Option<u32> {
        match self {
            Self::Cached => copy(dst, src),
            // SAFETY: the slices have one length and are apart.
            Self::Untrusted => unsafe { copy_untrusted(dst.as_mut_ptr(), src.as_ptr(), src.len()) },
            Self::Stream => kernel.stream(dst, src),
            Self::StreamCrc => return Some(!kernel.stream_crc(!SEED, dst, src)),
            Self::Crc => return Some(!kernel.crc(!SEED, src)),
            Self::CopyCrc => return Some(!kernel.copy_crc(!SEED, dst, src)),
            // SAFETY: the slices have one length and are apart.
            Self::CopyInCrc => return Some(!unsafe { kernel.copy_in_crc(!SEED, dst, src.as_ptr()) }),
            // SAFETY: the slices have one length and are apart.
            Self::CopyOutCrc => return Some(!unsafe { kernel.copy_out_crc(!SEED, dst.as_mut_ptr(), src) }),
        }
        None
    }
}

/// Returns every call with every table that this processor runs.
fn cases() -> Vec<(&'static KernelTable, KernelCall)> {
    let tables = available();
    let without = KernelCall::WITHOUT_TABLE.map(|call| (tables[0], call));
    let of_tables = tables.iter().flat_map(|table| KernelCall::OF_TABLE.map(|call| (*table, call)));
    without.into_iter().chain(of_tables).collect()
}

/// Runs a call from `src` to a range of bytes that are canaries, checks all that it leaves, and restores the canaries. `crc` is
/// that of `src`.
fn check(
    (kernel, call): (&KernelTable, KernelCall),
    whole: &mut [u8],
    range: Range<usize>,
    (src, crc): (&[u8], u32),
) {
    let computed = call.run(kernel, &mut whole[range.clone()], src);
    let is_right = computed.is_none_or(|computed| computed == crc)
        && whole[..range.start] == CANARIES[..range.start]
        && whole[range.end..] == CANARIES[..whole.len() - range.end]
        && match call {
            KernelCall::Crc => whole[range.clone()] == CANARIES[..range.len()],
            _ => whole[range.clone()] == *src,
        };
    assert!(
        is_right,
        "{} {call:?}: {} bytes from {:?} to {:?}",
        kernel.name,
        src.len(),
        src.as_ptr(),
        whole[range].as_ptr()
    );
    whole[range].fill(CANARY);
}

#[test]
fn kernels_touch_nothing_beside_ranges_at_guard_pages() {
    let (mut source, mut target) = (GuardedPages::new(PAGES), GuardedPages::new(PAGES));
    source.bytes().copy_from_slice(&noise(WHOLE_BYTES, 21));
    target.bytes().fill(CANARY);
    let cases = cases();
    for length in (0..=300).chain(LONG).chain([WHOLE_BYTES]) {
        for source_end in GuardedEnd::ALL {
            let src = &*source.bytes_at(source_end, length);
            let crc = bitwise(SEED, src);
            for target_end in GuardedEnd::ALL {
                for case in &cases {
                    check(*case, target.bytes(), target_end.range(length, WHOLE_BYTES), (src, crc));
                }
            }
        }
    }
}

#[test]
fn kernels_match_byte_loop_at_every_length_and_alignment_of_the_target() {
    let (mut source, mut target) = (GuardedPages::new(PAGES), GuardedPages::new(PAGES));
    source.bytes().copy_from_slice(&noise(WHOLE_BYTES, 22));
    target.bytes().fill(CANARY);
    let cases = cases();
    for length in (0..=300).chain(LONG) {
        let whole = LINE_BYTES + length + 2 * LINE_BYTES;
        for to in 0..LINE_BYTES {
            // Each alignment of the source meets each of the target at some length.
            let from = (to * 5 + length) % LINE_BYTES;
            let src = &source.bytes()[from..from + length];
            let crc = bitwise(SEED, src);
            let range = LINE_BYTES + to..LINE_BYTES + to + length;
            for case in &cases {
                check(*case, &mut target.bytes()[..whole], range.clone(), (src, crc));
            }
        }
    }
}

#[test]
fn kernels_match_byte_loop_at_every_pair_of_alignments() {
    let (mut source, mut target) = (GuardedPages::new(1), GuardedPages::new(1));
    let bytes = source.bytes();
    bytes.copy_from_slice(&noise(bytes.len(), 23));
    target.bytes().fill(CANARY);
    let cases = cases();
    for length in PAIRED {
        let whole = LINE_BYTES + length + 2 * LINE_BYTES;
        for from in 0..LINE_BYTES {
            let src = &bytes[from..from + length];
            let crc = bitwise(SEED, src);
            for to in 0..LINE_BYTES {
                let range = LINE_BYTES + to..LINE_BYTES + to + length;
                for case in &cases {
                    check(*case, &mut target.bytes()[..whole], range.clone(), (src, crc));
                }
            }
        }
    }
}

#[test]
fn zero_check_reads_nothing_beside_its_bytes_and_each_byte_at_both_ends() {
    let mut pages = GuardedPages::new(PAGES);
    for length in (0..=300).chain(LONG) {
        for end in GuardedEnd::ALL {
            // The other bytes are not zero: a check that counts one of them fails.
            pages.bytes().fill(CANARY);
            let bytes = pages.bytes_at(end, length);
            bytes.fill(0);
            assert!(is_zero(bytes), "{length} {end:?}");
            for at in [0, length / 2, length.saturating_sub(1)] {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = 1;
                    assert!(!is_zero(bytes), "byte {at} of {length} {end:?}");
                    bytes[at] = 0;
                }
            }
        }
    }
}
