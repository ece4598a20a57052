//! One broken rule: where, what, why it is a rule, and what to do about it.

use std::fmt;

/// A broken rule at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Path from the root of the checkout.
    pub(crate) path: String,
    /// Line, from 1; 1 when the whole file is meant.
    pub(crate) line: usize,
    /// The finding.
    pub(crate) what: String,
    /// The reason for the rule.
    pub(crate) why: &'static str,
    /// The change that corrects it.
    pub(crate) remedy: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, what, why, remedy } = self;
        write!(f, "{path}:{line}: {what}; {why}; {remedy}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_reads_as_place_what_why_and_remedy() {
        let violation = Violation {
            path: "a/b.rs".to_owned(),
            line: 7,
            what: "wrong".to_owned(),
            why: "it matters",
            remedy: "fix it",
        };
        assert_eq!(violation.to_string(), "a/b.rs:7: wrong; it matters; fix it");
    }
}
