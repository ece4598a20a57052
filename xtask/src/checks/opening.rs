//! Every Rust file opens with its story: what flows in, what flows out, which invariant it keeps.

use crate::tree::Tree;
use crate::violation::Violation;

/// Finds Rust files that do not open with a module doc.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    tree.rust()
        .filter(|(_, text)| !opens_with_a_sentence(text))
        .map(|(path, _)| Violation {
            path: path.to_owned(),
            line: 1,
            what: "does not open with `//!`".to_owned(),
            why: "a file's first line tells a reader whether to read the second",
            remedy: "say what flows in, what flows out and which invariant it keeps",
        })
        .collect()
}

fn opens_with_a_sentence(text: &str) -> bool {
    text.lines()
        .next()
        .and_then(|line| line.strip_prefix("//!"))
        .is_some_and(|sentence| sentence.trim().len() >= 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_a_sentence() {
        let tree = Tree::of(&[
            ("good.rs", "//! Frames.\n"),
            ("late.rs", "use a;\n//! Frames.\n"),
            ("mute.rs", "//!\n"),
            ("void.rs", ""),
            ("other.md", "no matter"),
        ]);
        let paths: Vec<String> = check(&tree).into_iter().map(|violation| violation.path).collect();
        assert_eq!(paths, ["late.rs", "mute.rs", "void.rs"]);
    }
}
