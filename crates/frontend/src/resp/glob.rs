//! Patterns of KEYS, SCAN and CONFIG GET: `*`, `?`, `[a-z]`, `[^x]` and backslash, as Redis matches them.
//!
//! In: a pattern and a text. Out: whether they match. Time is bounded by the product of their lengths: only the last star is
//! ever gone back to.

/// Whether upper and lower case differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// They do.
    Sensitive,
    /// They do not.
    Insensitive,
}

/// Whether the whole text matches the whole pattern.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8], case: Case) -> bool {
    let (mut at, mut text_at) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, text_at));
            continue;
        }
        if let Some(&byte) = text.get(text_at) {
            if let Some(next) = one(pattern, at, byte, case) {
                at = next;
                text_at += 1;
                continue;
            }
        } else if at >= pattern.len() {
            return true;
        }
        match star {
            Some((behind, from)) if from < text.len() => {
                at = behind;
                text_at = from + 1;
                star = Some((behind, from + 1));
            }
            _ => return false,
        }
    }
}

/// Matches one byte against the pattern's element at `at`; the place of the next element if it does.
fn one(pattern: &[u8], at: usize, byte: u8, case: Case) -> Option<usize> {
    match *pattern.get(at)? {
        b'?' => Some(at + 1),
        b'[' => class(pattern, at + 1, byte, case),
        b'\\' if at + 1 < pattern.len() => same(pattern[at + 1], byte, case).then_some(at + 2),
        literal => same(literal, byte, case).then_some(at + 1),
    }
}

fn class(pattern: &[u8], mut at: usize, byte: u8, case: Case) -> Option<usize> {
    let negated = pattern.get(at) == Some(&b'^');
    at += usize::from(negated);
    let mut found = false;
    loop {
        match pattern.get(at..).unwrap_or_default() {
            // A class that is never closed ends with the pattern.
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

fn same(left: u8, right: u8, case: Case) -> bool {
    fold(left, case) == fold(right, case)
}

fn fold(byte: u8, case: Case) -> u8 {
    match case {
        Case::Sensitive => byte,
        Case::Insensitive => byte.to_ascii_lowercase(),
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
                matches(pattern.as_bytes(), text.as_bytes(), Case::Sensitive),
                expected,
                "{pattern} {text}"
            );
        }
        assert!(matches(b"MAX*", b"maxmemory", Case::Insensitive));
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        let pattern = b"a*".repeat(200);
        let text = vec![b'a'; 20_000];
        assert!(!matches(&[&pattern[..], b"b"].concat(), &text, Case::Sensitive));
    }
}
