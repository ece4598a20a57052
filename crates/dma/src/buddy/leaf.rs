//! Sixty-four pages in one word: the buddy orders 0 to 6 by bit arithmetic.
//!
//! Input: a word whose set bits are free pages. Output: the largest aligned block in it, and the best-fitting block of
//! an order. Invariant: a block of order `j` starts at a multiple of 2^j, so splitting and merging need no table
//! besides the word.

/// Pages of a leaf.
pub(super) const LEAF_PAGES: u32 = 64;

/// Order of a leaf that is entirely free.
pub(super) const LEAF_ORDER: u32 = 6;

/// Bits where a block of each order may start.
const STARTS: [u64; 7] = [
    u64::MAX,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// Returns a word with the lowest `pages` bits set; `pages` is at most 64.
#[inline]
pub(super) fn ones(pages: u32) -> u64 {
    if pages >= LEAF_PAGES { u64::MAX } else { (1 << pages) - 1 }
}

/// Returns the starts of the free blocks of the next order, from those of `order`.
#[inline]
fn joined(starts: u64, order: u32) -> u64 {
    starts & (starts >> (1_u32 << order)) & STARTS[order as usize + 1]
}

/// Returns the order of the largest free block, or `None` if no page is free.
#[inline]
pub(super) fn largest(word: u64) -> Option<u32> {
    if word == 0 {
        return None;
    }
    if word == u64::MAX {
        return Some(LEAF_ORDER);
    }
    let (mut order, mut starts) = (0, word);
    while order < LEAF_ORDER {
        let above = joined(starts, order);
        if above == 0 {
            break;
        }
        (order, starts) = (order + 1, above);
    }
    Some(order)
}

/// Returns the first page of the smallest free block of at least `order`, the lowest of these.
#[inline]
pub(super) fn find(word: u64, order: u32) -> Option<u32> {
    if word == u64::MAX {
        return Some(0);
    }
    let mut starts = word;
    for below in 0..order {
        starts = joined(starts, below);
    }
    for order in order..=LEAF_ORDER {
        let above = if order < LEAF_ORDER { joined(starts, order) } else { 0 };
        // A block that is not half of a larger free block is of exactly this order.
        let exact = starts & !(above | (above << ((1_u32 << order) % 64)));
        if exact != 0 {
            return Some(exact.trailing_zeros());
        }
        starts = above;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_free(word: u64, first: u32, order: u32) -> bool {
        word >> first & ones(1 << order) == ones(1 << order)
    }

    #[test]
    #[expect(clippy::print_stderr, reason = "a failing run is repeated from its seed")]
    fn the_largest_and_the_best_fitting_block_match_a_linear_search() {
        let seed = fastrand::u64(..);
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..20_000 {
            let word = match round % 4 {
                0 => random.u64(..),
                1 => random.u64(..) | random.u64(..) | random.u64(..),
                2 => !(1 << random.u32(..64)),
                _ => u64::MAX << random.u32(..64),
            };
            let blocks = |order: u32| (0..64).step_by(1 << order).filter(move |&at| is_free(word, at, order));
            assert_eq!(largest(word), (0..=6).rev().find(|&order| blocks(order).next().is_some()));
            for order in 0..=6 {
                let tightest = (order..=6).find_map(|size| {
                    blocks(size)
                        .find(|&at| size == 6 || !is_free(word, at / (2 << size) * (2 << size), size + 1))
                });
                assert_eq!(find(word, order), tightest, "{word:#x} order {order}");
            }
        }
    }
}
