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
#[derive(Debug, Default)]
pub(crate) struct CommonSubsequence {
    /// The bytes.
    pub(crate) bytes: Vec<u8>,
    /// The runs, from the end to the start.
    pub(crate) runs: Vec<CommonRun>,
}

/// The computation of the longest common subsequence of two strings, in parts.
///
/// The table of lengths has a cell for each pair of bytes. Only one row of it is kept, along the shorter string, and one
/// bit of each cell: the direction in which the subsequence goes on where the two bytes differ.
#[derive(Debug)]
pub(crate) struct LcsComputation {
    left: Vec<u8>,
    right: Vec<u8>,
    /// The lengths of the present row, from the present cell on those of the row before.
    row: Vec<u32>,
    /// The length in the cell before the present one, of the row before.
    diagonal: u32,
    /// The present cell: an index of the longer string, and one of the shorter.
    at: (usize, usize),
    /// The directions: true if the left string is one byte shorter in the next cell.
    directions: Vec<u8>,
    /// The cell from which the rest of the subsequence is found: lengths of both strings.
    back: (usize, usize),
    /// True if the last byte that was found belongs to the last run.
    run_open: bool,
    found: CommonSubsequence,
}

impl LcsComputation {
    /// Creates the computation for two strings.
    pub(crate) fn new(left: Vec<u8>, right: Vec<u8>) -> Self {
        let shorter = left.len().min(right.len());
        let bytes = left.len().max(right.len()) * shorter.div_ceil(8);
        Self {
            row: vec![0; shorter + 1],
            diagonal: 0,
            at: (0, 0),
            directions: vec![0; bytes],
            back: (left.len(), right.len()),
            run_open: false,
            found: CommonSubsequence { bytes: Vec::new(), runs: Vec::new() },
            left,
            right,
        }
    }

    /// Returns the bytes of memory for the table of two strings of these lengths.
    pub(crate) fn table_bytes(left: usize, right: usize) -> usize {
        let (longer, shorter) = (left.max(right), left.min(right));
        longer.saturating_mul(shorter.div_ceil(8)) + shorter * 4
    }

    /// Goes on for so many steps. Returns true once the computation is done; `row_only` ends it with the length.
    pub(crate) fn advance(&mut self, mut steps: usize, row_only: bool) -> bool {
        self.fill(&mut steps);
        if steps == 0 {
            return false;
        }
        row_only || self.trace(steps)
    }

    /// Returns the length of the subsequence, once the computation is done.
    pub(crate) fn length(&self) -> usize {
        self.row.last().map_or(0, |&length| length as usize)
    }

    /// Takes the subsequence, once the computation is done.
    pub(crate) fn take(&mut self) -> CommonSubsequence {
        std::mem::take(&mut self.found)
    }

    /// Fills cells of the table.
    fn fill(&mut self, steps: &mut usize) {
        let left_is_longer = self.left.len() >= self.right.len();
        let (longer, shorter) =
            if left_is_longer { (&self.left, &self.right) } else { (&self.right, &self.left) };
        let (mut outer, mut inner) = self.at;
        while *steps > 0 && outer < longer.len() && !shorter.is_empty() {
            let byte = longer[outer];
            // The cells of one byte of the directions.
            let byte_at = outer * shorter.len().div_ceil(8) + inner / 8;
            let end = shorter.len().min(inner / 8 * 8 + 8).min(inner.saturating_add(*steps));
            *steps -= end - inner;
            let (mut before, mut diagonal, mut directions) = (self.row[inner], self.diagonal, 0_u8);
            for ((cell, &other), bit) in
                self.row[inner + 1..=end].iter_mut().zip(&shorter[inner..end]).zip(inner % 8..)
            {
                let above = *cell;
                // Above is one byte less of the longer string, before one byte less of the shorter.
                let less_left = if left_is_longer { above > before } else { before > above };
                directions |= u8::from(less_left) << bit;
                before = if byte == other { diagonal + 1 } else { above.max(before) };
                *cell = before;
                diagonal = above;
            }
            self.directions[byte_at] |= directions;
            self.diagonal = diagonal;
            inner = end;
            if inner == shorter.len() {
                (outer, inner) = (outer + 1, 0);
                self.diagonal = 0;
            }
        }
        self.at = (outer, inner);
    }

    /// Finds the bytes of the subsequence from the end. Returns true if it is complete.
    fn trace(&mut self, steps: usize) -> bool {
        for _ in 0..steps {
            let (i, j) = self.back;
            if i == 0 || j == 0 {
                self.found.bytes.reverse();
                return true;
            }
            if self.left[i - 1] == self.right[j - 1] {
                self.found.bytes.push(self.left[i - 1]);
                let open = self.run_open;
                match self.found.runs.last_mut().filter(|run| open && run.left.0 == i && run.right.0 == j) {
                    Some(run) => {
                        run.left.0 -= 1;
                        run.right.0 -= 1;
                    }
                    None => {
                        self.found.runs.push(CommonRun { left: (i - 1, i - 1), right: (j - 1, j - 1) });
                    }
                }
                self.run_open = true;
                self.back = (i - 1, j - 1);
            } else {
                self.run_open = false;
                // For equally long subsequences, the direction is the same as in Redis.
                let left_is_longer = self.left.len() >= self.right.len();
                let (outer, inner) = if left_is_longer { (i - 1, j - 1) } else { (j - 1, i - 1) };
                let byte_at = outer * self.left.len().min(self.right.len()).div_ceil(8) + inner / 8;
                let less_left = self.directions[byte_at] >> (inner % 8) & 1 == 1;
                self.back = if less_left { (i - 1, j) } else { (i, j - 1) };
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compute(left: &[u8], right: &[u8], steps: usize) -> CommonSubsequence {
        let mut computation = LcsComputation::new(left.to_vec(), right.to_vec());
        while !computation.advance(steps, false) {}
        let length = computation.length();
        let found = computation.take();
        assert_eq!(length, found.bytes.len());
        found
    }

    /// Computes the same with the whole table, as Redis does.
    fn compute_with_table(left: &[u8], right: &[u8]) -> Vec<u8> {
        let width = right.len() + 1;
        let mut table = vec![0_u32; (left.len() + 1) * width];
        for (row, &a) in left.iter().enumerate() {
            for (column, &b) in right.iter().enumerate() {
                let at = (row + 1) * width + column + 1;
                table[at] =
                    if a == b { table[at - width - 1] + 1 } else { table[at - width].max(table[at - 1]) };
            }
        }
        let (mut bytes, mut i, mut j) = (Vec::new(), left.len(), right.len());
        while i > 0 && j > 0 {
            if left[i - 1] == right[j - 1] {
                bytes.push(left[i - 1]);
                (i, j) = (i - 1, j - 1);
            } else if table[(i - 1) * width + j] > table[i * width + j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        bytes.reverse();
        bytes
    }

    #[test]
    fn the_example_of_the_redis_documentation_matches() {
        for steps in [1, 2, 7, 1_000] {
            let found = compute(b"ohmytext", b"mynewtext", steps);
            assert_eq!(found.bytes, b"mytext");
            assert_eq!(
                found.runs,
                [CommonRun { left: (4, 7), right: (5, 8) }, CommonRun { left: (2, 3), right: (0, 1) },]
            );
        }
    }

    #[test]
    #[expect(clippy::print_stderr, reason = "a seeded test prints its seed")]
    fn result_in_parts_is_that_of_the_whole_table() {
        let seed = 0x7a11;
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..2_000 {
            let mut text = || (0..random.usize(..40)).map(|_| random.u8(b'a'..=b'd')).collect::<Vec<u8>>();
            let (left, right) = (text(), text());
            let steps = random.usize(1..300);
            assert_eq!(compute(&left, &right, steps).bytes, compute_with_table(&left, &right));
        }
    }

    #[test]
    fn part_takes_no_more_steps_than_it_may() {
        let (left, right) = (vec![b'a'; 1_000], vec![b'b'; 3]);
        let mut computation = LcsComputation::new(left, right);
        let mut parts = 1;
        while !computation.advance(100, false) {
            parts += 1;
        }
        // 3,000 cells, and at least 3 steps back.
        assert!((30..=42).contains(&parts), "{parts} parts");
    }
}
