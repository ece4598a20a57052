//! Changes of the width of an integer that keep its value.
//!
//! Input: a number. Output: the same number. Invariant: no result differs from its input: a number that does not fit is
//! a broken promise of the caller, and panics in every build. A number that comes from a client, a file or the kernel is
//! input: convert it with `try_from` and answer with an error.

use std::any::type_name;
use std::fmt::Display;

const _: () = assert!(usize::BITS == 64, "a length in memory and a length on a device have one width");

/// Converts a number of bytes or items to the type by which memory is indexed.
#[must_use]
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits, which is asserted beside it")]
pub const fn to_usize(number: u64) -> usize {
    number as usize
}

/// Converts a number that fits in the narrower type by an invariant of the caller.
///
/// # Panics
/// The number does not fit.
#[must_use]
#[inline]
#[track_caller]
pub fn narrow<Wide: Copy + Display, Narrow: TryFrom<Wide>>(number: Wide) -> Narrow {
    match Narrow::try_from(number) {
        Ok(narrow) => narrow,
        Err(_) => too_large(&number, type_name::<Narrow>()),
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn too_large(number: &dyn Display, target: &str) -> ! {
    panic!("{number} was promised to fit in {target}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_fit_keep_their_value() {
        assert_eq!(to_usize(u64::MAX), usize::MAX);
        assert_eq!(narrow::<usize, u16>(65_535), 65_535_u16);
        assert_eq!(narrow::<u64, i64>(i64::MAX.unsigned_abs()), i64::MAX);
    }

    #[test]
    #[should_panic(expected = "65536 was promised to fit in u16")]
    fn number_that_does_not_fit_panics() {
        let _: u16 = narrow(65_536_usize);
    }
}
