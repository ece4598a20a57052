//! A file is named for the thing in it; names that fit everything say nothing.

use crate::tree::Tree;
use crate::violation::Violation;

const FORBIDDEN: &[&str] =
    &["util", "utils", "common", "helper", "helpers", "misc", "base", "core", "types", "manager", "mod"];

/// Finds files, folders, crates and modules whose name says nothing.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.rust() {
        for part in path.split('/') {
            let stem = part.strip_suffix(".rs").unwrap_or(part);
            if FORBIDDEN.contains(&stem) {
                found.push(violation(path, 1, part));
            }
        }
        for (index, line) in text.lines().enumerate() {
            if let Some(name) = module_of(line)
                && FORBIDDEN.contains(&name)
            {
                found.push(violation(path, index + 1, &format!("mod {name}")));
            }
        }
    }
    found
}

/// Returns the name in `mod name;` or `pub(crate) mod name {`, if the line declares a module.
fn module_of(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1.trim_start(),
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let name = line.strip_prefix("mod ")?;
    Some(name.trim_end_matches([';', '{', ' ']))
}

fn violation(path: &str, line: usize, name: &str) -> Violation {
    Violation {
        path: path.to_owned(),
        line,
        what: format!("`{name}` could hold anything"),
        why: "a reader finds a thing by its noun",
        remedy: "name it for what it is, or move it to the file of its one caller (queue.rs beside queue/, never mod.rs)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_say_nothing_are_found_wherever_they_stand() {
        let tree = Tree::of(&[
            ("crates/dma/src/utils.rs", "//! x\n"),
            ("crates/common/src/lib.rs", "//! x\n"),
            ("crates/dma/src/queue/mod.rs", "//! x\n"),
            ("crates/dma/src/lib.rs", "//! x\npub(crate) mod helpers;\nmod types {\n"),
        ]);
        let found = check(&tree);
        let places: Vec<(&str, usize)> = found.iter().map(|v| (v.path.as_str(), v.line)).collect();
        assert_eq!(
            places,
            vec![
                ("crates/common/src/lib.rs", 1),
                ("crates/dma/src/lib.rs", 2),
                ("crates/dma/src/lib.rs", 3),
                ("crates/dma/src/queue/mod.rs", 1),
                ("crates/dma/src/utils.rs", 1),
            ]
        );
    }

    #[test]
    fn a_noun_that_contains_a_forbidden_word_is_a_noun() {
        let tree = Tree::of(&[(
            "crates/dma/src/baseline.rs",
            "//! x\nmod core_loop;\nmod models;\nlet base = 1;\n",
        )]);
        assert!(check(&tree).is_empty());
    }
}
