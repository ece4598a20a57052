//! The checks, one file each.
//!
//! Input: the [`Tree`]. Output: violations, sorted by place. A check reads the tree and nothing else.

mod edges;
mod forbid;
mod formats;
pub(crate) mod layers;
mod length;
mod links;
mod names;
mod opening;
mod portable;
pub(crate) mod readme;
pub(crate) mod summaries;
pub(crate) mod type_names;
mod verbs;
pub(crate) mod walk;
pub(crate) mod words;

use crate::tree::Tree;
use crate::violation::Violation;

/// A check by its name in STYLE.md.
type Check = fn(&Tree) -> Vec<Violation>;

const CHECKS: &[Check] = &[
    edges::check,
    forbid::check,
    formats::check,
    layers::check,
    length::check,
    links::check,
    names::check,
    opening::check,
    portable::check,
    readme::check,
    summaries::check,
    type_names::check,
    walk::check,
    words::check,
];

/// Runs every check.
pub(crate) fn all(tree: &Tree) -> Vec<Violation> {
    let mut found: Vec<Violation> = CHECKS.iter().flat_map(|check| check(tree)).collect();
    found.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_come_in_the_order_of_their_places() {
        let tree = Tree::of(&[
            ("crates/z/src/helpers.rs", "no opening\n"),
            ("crates/a/src/utils.rs", "no opening\n"),
        ]);
        let found = all(&tree);
        let paths: Vec<&str> = found.iter().map(|violation| violation.path.as_str()).collect();
        let mut sorted = paths.clone();
        sorted.sort_unstable();
        assert!(found.len() >= 4);
        assert_eq!(paths, sorted);
    }
}
