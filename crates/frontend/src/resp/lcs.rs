//! The longest common subsequence of two values.
//!
//! In: two byte strings. Out: their longest common subsequence and the runs it is made of, last run first, as Redis's LCS
//! reports them. Time and memory are the product of the lengths, which the caller bounds.

/// A run that both strings share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// First and last byte in the first string.
    pub(crate) left: (usize, usize),
    /// First and last byte in the second string.
    pub(crate) right: (usize, usize),
}

impl Run {
    /// Bytes of the run.
    pub(crate) fn len(&self) -> usize {
        self.left.1 - self.left.0 + 1
    }
}

/// What two strings have in common.
#[derive(Debug)]
pub(crate) struct Common {
    /// The bytes.
    pub(crate) bytes: Vec<u8>,
    /// The runs, from the end to the start.
    pub(crate) runs: Vec<Run>,
}

/// Finds what two strings have in common.
pub(crate) fn common(left: &[u8], right: &[u8]) -> Common {
    let width = right.len() + 1;
    let mut table = vec![0_u32; (left.len() + 1) * width];
    for (row, &a) in left.iter().enumerate() {
        for (column, &b) in right.iter().enumerate() {
            let at = (row + 1) * width + column + 1;
            table[at] = if a == b { table[at - width - 1] + 1 } else { table[at - width].max(table[at - 1]) };
        }
    }
    let mut bytes = Vec::new();
    let mut runs: Vec<Run> = Vec::new();
    let (mut i, mut j) = (left.len(), right.len());
    let mut open = false;
    while i > 0 && j > 0 {
        if left[i - 1] == right[j - 1] {
            bytes.push(left[i - 1]);
            match runs.last_mut().filter(|run| open && run.left.0 == i && run.right.0 == j) {
                Some(run) => {
                    run.left.0 -= 1;
                    run.right.0 -= 1;
                }
                None => runs.push(Run { left: (i - 1, i - 1), right: (j - 1, j - 1) }),
            }
            open = true;
            i -= 1;
            j -= 1;
        } else {
            open = false;
            // The same choice as Redis between two equally long ways back.
            if table[(i - 1) * width + j] > table[i * width + j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
        }
    }
    bytes.reverse();
    Common { bytes, runs }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_example_comes_out() {
        let found = common(b"ohmytext", b"mynewtext");
        assert_eq!(found.bytes, b"mytext");
        assert_eq!(found.runs, [Run { left: (4, 7), right: (5, 8) }, Run { left: (2, 3), right: (0, 1) },]);
    }
}
