//! The longest common subsequence of two values.
//!
//! Input: two byte strings. Output: their longest common subsequence and its runs, last run first, as Redis's LCS
//! reports them. Time and memory are proportional to the product of the lengths, which the caller bounds.

/// A run of bytes that is contiguous in both strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommonRun {
    /// First and last byte in the first string.
    pub(crate) left: (usize, usize),
    /// First and last byte in the second string.
    pub(crate) right: (usize, usize),
}

impl CommonRun {
    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.left.1 - self.left.0 + 1
    }
}

/// The longest common subsequence of two strings.
#[derive(Debug)]
pub(crate) struct CommonSubsequence {
    /// The bytes.
    pub(crate) bytes: Vec<u8>,
    /// The runs, from the end to the start.
    pub(crate) runs: Vec<CommonRun>,
}

/// Computes the longest common subsequence of two strings.
pub(crate) fn longest_common_subsequence(left: &[u8], right: &[u8]) -> CommonSubsequence {
    let width = right.len() + 1;
    let mut table = vec![0_u32; (left.len() + 1) * width];
    for (row, &a) in left.iter().enumerate() {
        for (column, &b) in right.iter().enumerate() {
            let at = (row + 1) * width + column + 1;
            table[at] = if a == b { table[at - width - 1] + 1 } else { table[at - width].max(table[at - 1]) };
        }
    }
    let mut bytes = Vec::new();
    let mut runs: Vec<CommonRun> = Vec::new();
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
                None => runs.push(CommonRun { left: (i - 1, i - 1), right: (j - 1, j - 1) }),
            }
            open = true;
            i -= 1;
            j -= 1;
        } else {
            open = false;
            // For equally long subsequences, choose the same one as Redis.
            if table[(i - 1) * width + j] > table[i * width + j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
        }
    }
    bytes.reverse();
    CommonSubsequence { bytes, runs }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_redis_documentation_matches() {
        let found = longest_common_subsequence(b"ohmytext", b"mynewtext");
        assert_eq!(found.bytes, b"mytext");
        assert_eq!(
            found.runs,
            [CommonRun { left: (4, 7), right: (5, 8) }, CommonRun { left: (2, 3), right: (0, 1) },]
        );
    }
}
