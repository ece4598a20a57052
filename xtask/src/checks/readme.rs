//! The README fits three screens.

use crate::tree::Tree;
use crate::violation::Violation;

const PAGE: &str = "README.md";
/// Most lines of the README.
pub(crate) const LINES_MAX: usize = 120;

/// Finds a README that is too long or missing.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let lines = lines_of(tree);
    let what = match lines {
        Some(lines) if lines <= LINES_MAX => return Vec::new(),
        Some(lines) => format!("{lines} lines, {LINES_MAX} are the most"),
        None => "is missing".to_owned(),
    };
    vec![Violation {
        path: PAGE.to_owned(),
        line: 1,
        what,
        why: "a first page that scrolls is not read",
        remedy: "move figures to docs/figures.md and details to docs/operating",
    }]
}

/// Returns the number of lines of the README.
pub(crate) fn lines_of(tree: &Tree) -> Option<usize> {
    tree.text(PAGE).map(|text| text.lines().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_readme_of_three_screens_passes_and_a_longer_one_does_not() {
        let page = |lines: usize| "x\n".repeat(lines);
        assert!(check(&Tree::of(&[(PAGE, &page(LINES_MAX))])).is_empty());
        assert_eq!(check(&Tree::of(&[(PAGE, &page(LINES_MAX + 1))])).len(), 1);
        assert_eq!(check(&Tree::of(&[])).len(), 1);
    }
}
