//! Values whose bytes all follow from one number, so that a part of one can be checked without the rest.
//!
//! Input: a number, or the first bytes of a value. Output: the bytes at any place of the value. Invariant: the bytes of a shorter
//! value with the same number are the first ones of a longer.

/// Bytes that are computed together.
const WORD: usize = 8;

/// The pattern of a value. Its number is the first word of the value, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValuePattern(u64);

impl ValuePattern {
    /// Returns the pattern with this number.
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the pattern of a value; `None` if its second word, as far as it goes, is that of no pattern. A value of a word
    /// or less has one always.
    pub(crate) fn of(value: &[u8]) -> Option<Self> {
        let shown = &value[..value.len().min(2 * WORD)];
        let mut number = [0; WORD];
        let bytes = shown.len().min(WORD);
        number[..bytes].copy_from_slice(&shown[..bytes]);
        let pattern = Self(u64::from_le_bytes(number));
        pattern.matches(0, shown).then_some(pattern)
    }

    /// Fills a value.
    pub(crate) fn fill(self, value: &mut [u8]) {
        self.write(0, value);
    }

    /// Returns true if the value has these bytes from this place on.
    pub(crate) fn matches(self, offset: usize, part: &[u8]) -> bool {
        let skip = offset % WORD;
        let mut expected = vec![0; skip + part.len()];
        self.write((offset / WORD) as u64, &mut expected);
        expected[skip..] == *part
    }

    fn write(self, first: u64, bytes: &mut [u8]) {
        for (nth, word) in (first..).zip(bytes.chunks_mut(WORD)) {
            word.copy_from_slice(&self.word(nth).to_le_bytes()[..word.len()]);
        }
    }

    const fn word(self, nth: u64) -> u64 {
        if nth == 0 {
            return self.0;
        }
        let mixed = (self.0 ^ nth).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ (mixed >> 29)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_value_matches_its_place_alone() {
        let pattern = ValuePattern::new(77);
        let mut value = vec![0; 5_003];
        pattern.fill(&mut value);
        assert_eq!(ValuePattern::of(&value), Some(pattern));
        for (offset, bytes) in [(0, 5_003), (1, 7), (4_096, 907), (5_000, 3), (13, 4_000), (9_000, 0)] {
            let start = offset.min(value.len());
            let part = value[start..start + bytes].to_vec();
            assert!(pattern.matches(offset, &part), "{bytes} bytes from {offset} on");
            if bytes >= WORD {
                assert!(!pattern.matches(offset + WORD, &part), "{bytes} bytes from {offset} on, elsewhere");
                assert!(!ValuePattern::new(78).matches(offset, &part), "another value");
            }
        }
    }

    #[test]
    fn random_values_of_more_than_a_word_have_no_pattern() {
        let mut random = vec![0; 100];
        fastrand::Rng::with_seed(3).fill(&mut random);
        assert_eq!(ValuePattern::of(&random), None);
        assert_eq!(ValuePattern::of(&[0; 15]), None);
        assert_eq!(ValuePattern::of(&[0; 9]), None);
    }

    #[test]
    fn each_part_of_a_short_value_matches_its_place_alone() {
        let number = u64::from_le_bytes([1, 2, 3, 4, 5, 6, 7, 8]);
        for bytes in 1..2 * WORD {
            let mut value = vec![0; bytes];
            ValuePattern::new(number).fill(&mut value);
            let pattern = ValuePattern::of(&value).unwrap_or_else(|| panic!("{bytes} bytes have a pattern"));
            for start in 0..bytes {
                let mut part = value[start..].to_vec();
                assert!(pattern.matches(start, &part), "{bytes} bytes, from {start} on");
                *part.last_mut().expect("it has a byte") ^= 1;
                assert!(!pattern.matches(start, &part), "{bytes} bytes, from {start} on, altered");
            }
        }
    }
}
