//! Cache lines of a range of memory.
//!
//! Input: an address and a length. Output: the lines that the range touches, and its division into a head, whole lines
//! and a tail. Invariant: head, lines and tail are consecutive and together are the range.

/// The size of a cache line on every x86-64 processor, and the unit in which memory becomes persistent.
pub(crate) const LINE_BYTES: usize = 64;

/// A range divided at the boundaries of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineSplit {
    /// Bytes before the first line that lies wholly in the range; all bytes if there is none.
    pub(super) head: usize,
    /// Bytes behind the last line that lies wholly in the range.
    pub(super) tail: usize,
}

impl LineSplit {
    /// Divides the range of `bytes` bytes from `address` on.
    #[inline]
    pub(super) const fn of(address: usize, bytes: usize) -> Self {
        let head = address.wrapping_neg() % LINE_BYTES;
        if bytes < head + LINE_BYTES {
            // A range without a whole line touches two at most; one part is enough.
            return Self { head: bytes, tail: 0 };
        }
        Self { head, tail: (bytes - head) % LINE_BYTES }
    }
}

/// Returns the number of bytes between the start of the first line that the range touches and the range, and the number of
/// lines that it touches.
#[inline]
pub(super) const fn lines_touched(address: usize, bytes: usize) -> (usize, usize) {
    let before = address % LINE_BYTES;
    let lines = if bytes == 0 { 0 } else { (before + bytes).div_ceil(LINE_BYTES) };
    (before, lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn parts_are_the_range_and_exactly_its_partial_lines_lie_outside_of_the_whole_ones() {
        for address in 4_096..4_096 + 2 * LINE_BYTES {
            for bytes in 0..=5 * LINE_BYTES {
                let split = LineSplit::of(address, bytes);
                let whole = bytes - split.head - split.tail;
                assert!(whole.is_multiple_of(LINE_BYTES), "{address} {bytes}");
                assert!(whole == 0 || (address + split.head).is_multiple_of(LINE_BYTES), "{address} {bytes}");
                // By definition, byte by byte.
                let of_byte = |byte: usize| byte / LINE_BYTES;
                let touched: BTreeSet<_> = (address..address + bytes).map(of_byte).collect();
                let is_whole =
                    |line: &usize| line * LINE_BYTES >= address && (line + 1) * LINE_BYTES <= address + bytes;
                let partial: BTreeSet<_> = touched.iter().copied().filter(|line| !is_whole(line)).collect();
                let flushed = |start: usize, length: usize| {
                    let (before, lines) = lines_touched(start, length);
                    (0..lines).map(move |line| (start - before) / LINE_BYTES + line)
                };
                let of_parts: BTreeSet<_> = flushed(address, split.head)
                    .chain(flushed(address + bytes - split.tail, split.tail))
                    .collect();
                assert_eq!(of_parts, partial, "{address} {bytes}");
                assert_eq!(flushed(address, bytes).collect::<BTreeSet<_>>(), touched, "{address} {bytes}");
            }
        }
    }
}
