//! Glob patterns of KEYS, SCAN and CONFIG GET: `*`, `?`, `[a-z]`, `[^x]` and backslash, matched as in Redis.
//!
//! Input: a pattern and a text. Output: true if they match. Time is bounded by the product of their lengths: the
//! matcher backtracks only to the last star.

/// The case sensitivity of a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseSensitivity {
    /// Upper and lower case differ.
    Sensitive,
    /// Upper and lower case are equal.
    Insensitive,
}

/// Returns true if the whole text matches the whole pattern.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8], case: CaseSensitivity) -> bool {
    let mut comparison = GlobMatch::default();
    loop {
        let mut steps = usize::MAX;
        if let Some(result) = comparison.advance(pattern, text, case, &mut steps) {
            return result;
        }
    }
}

/// A comparison that can be interrupted: a long text and a long pattern may take as many steps as the product of their
/// lengths.
#[derive(Clone, Copy, Debug, Default)]
pub struct GlobMatch {
    at: usize,
    text_at: usize,
    /// The offset behind the last star, and the offset in the text that it has reached.
    star: Option<(usize, usize)>,
}

impl GlobMatch {
    /// Goes on with the comparison of always the same pattern and text. Returns `None` if it takes more than `steps`,
    /// of which it subtracts those that it took.
    pub fn advance(
        &mut self,
        pattern: &[u8],
        text: &[u8],
        case: CaseSensitivity,
        steps: &mut usize,
    ) -> Option<bool> {
        while *steps > 0 {
            *steps -= 1;
            if pattern.get(self.at) == Some(&b'*') {
                self.at += 1;
                self.star = Some((self.at, self.text_at));
                continue;
            }
            if let Some(&byte) = text.get(self.text_at) {
                if let Some(next) = match_element(pattern, self.at, byte, case, steps) {
                    self.at = next;
                    self.text_at += 1;
                    continue;
                }
            } else if self.at >= pattern.len() {
                return Some(true);
            }
            match self.star {
                Some((behind, from)) if from < text.len() => {
                    self.at = behind;
                    self.text_at = from + 1;
                    self.star = Some((behind, from + 1));
                }
                _ => return Some(false),
            }
        }
        None
    }
}

/// Matches one byte against the pattern's element at `at`; returns the offset of the next element on a match.
fn match_element(
    pattern: &[u8],
    at: usize,
    byte: u8,
    case: CaseSensitivity,
    steps: &mut usize,
) -> Option<usize> {
    match *pattern.get(at)? {
        b'?' => Some(at + 1),
        b'[' => class(pattern, at + 1, byte, case, steps),
        b'\\' if at + 1 < pattern.len() => same(pattern[at + 1], byte, case).then_some(at + 2),
        literal => same(literal, byte, case).then_some(at + 1),
    }
}

fn class(pattern: &[u8], mut at: usize, byte: u8, case: CaseSensitivity, steps: &mut usize) -> Option<usize> {
    let negated = pattern.get(at) == Some(&b'^');
    at += usize::from(negated);
    let mut found = false;
    loop {
        *steps = steps.saturating_sub(1);
        match pattern.get(at..).unwrap_or_default() {
            // An unclosed class ends with the pattern.
            [] => return (found != negated).then_some(at),
            [b']', ..] => return (found != negated).then_some(at + 1),
            [b'\\', escaped, ..] => {
                found |= same(*escaped, byte, case);
                at += 2;
            }
            [low, b'-', high, ..] => {
                let (low, high) = (fold(*low, case), fold(*high, case));
                found |= (low.min(high)..=low.max(high)).contains(&fold(byte, case));
                at += 3;
            }
            [literal, ..] => {
                found |= same(*literal, byte, case);
                at += 1;
            }
        }
    }
}

fn same(left: u8, right: u8, case: CaseSensitivity) -> bool {
    fold(left, case) == fold(right, case)
}

fn fold(byte: u8, case: CaseSensitivity) -> u8 {
    match case {
        CaseSensitivity::Sensitive => byte,
        CaseSensitivity::Insensitive => byte.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("h?llo", "hello", true),
            ("h*llo", "heeeello", true),
            ("h*l*o", "hxlyl", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("[abc", "c", true),
            ("", "", true),
            ("", "a", false),
            ("a*", "b", false),
            ("*a*b*c*", "xxaxxbxxcxx", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes(), CaseSensitivity::Sensitive),
                expected,
                "{pattern} {text}"
            );
        }
        assert!(matches(b"MAX*", b"maxmemory", CaseSensitivity::Insensitive));
    }

    #[test]
    fn a_pattern_of_many_stars_matches_in_bounded_time() {
        let pattern = b"a*".repeat(200);
        let text = vec![b'a'; 20_000];
        assert!(!matches(&[&pattern[..], b"b"].concat(), &text, CaseSensitivity::Sensitive));
    }
}
