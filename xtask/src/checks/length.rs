//! No Rust file is longer than a reader can hold in mind, tables excepted by name.

use crate::tree::Tree;
use crate::violation::Violation;

/// Most lines of a Rust file.
const LINES_MAX: usize = 500;

/// Files that are one table and nothing else: a longer table is not harder to read.
const TABLES: &[&str] = &[];

/// Finds files that are too long, and table entries that lead nowhere.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    check_against(tree, TABLES)
}

fn check_against(tree: &Tree, tables: &[&str]) -> Vec<Violation> {
    let too_long = tree
        .rust()
        .filter(|(path, _)| !tables.contains(path))
        .filter_map(|(path, text)| {
            let lines = text.lines().count();
            (lines > LINES_MAX).then(|| Violation {
                path: path.to_owned(),
                line: LINES_MAX + 1,
                what: format!("{lines} lines, {LINES_MAX} are the most"),
                why: "a long file hides two nouns",
                remedy: "move one noun with its tests into a file named for it (a pure table: list it in xtask/src/checks/length.rs)",
            })
        });
    let stale = tables.iter().filter(|path| tree.text(path).is_none()).map(|path| Violation {
        path: "xtask/src/checks/length.rs".to_owned(),
        line: 1,
        what: format!("TABLES names {path}, which is not there"),
        why: "an exception outlived its file",
        remedy: "take it off the list",
    });
    too_long.chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_hundred_lines_pass_and_one_more_does_not() {
        let full = "x\n".repeat(LINES_MAX);
        let over = "x\n".repeat(LINES_MAX + 1);
        let tree = Tree::of(&[("a.rs", &full), ("b.rs", &over), ("long.md", &over)]);
        let found = check(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "b.rs");
    }

    #[test]
    fn a_listed_table_may_be_long_and_must_exist() {
        let over = "x\n".repeat(LINES_MAX + 1);
        let tree = Tree::of(&[("table.rs", &over)]);
        assert!(check_against(&tree, &["table.rs"]).is_empty());
        assert_eq!(check_against(&tree, &["table.rs", "gone.rs"]).len(), 1);
    }
}
