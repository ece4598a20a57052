//! Source is ASCII, and nothing names a folder of the machine it was written on.

use crate::tree::{Tree, is_test_path, lines_before_tests};
use crate::violation::Violation;

/// Folders of one developer's machine, in any file. Put together so that this file does not name them.
const MACHINES: &[&str] = &[concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/")];
/// The folder for scratch files, which only tests may take for granted.
const SCRATCH: &str = concat!("/", "tmp/");

/// Finds machine paths in any text, and scratch paths and characters beyond ASCII in source.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.files() {
        for (index, line) in text.lines().enumerate() {
            for machine in MACHINES.iter().filter(|machine| names_root(line, machine)) {
                found.push(machine_path(path, index + 1, machine));
            }
        }
        found.extend(beyond_ascii(path, text));
        if is_source(path) && !is_test_path(path) {
            for (line, text) in lines_before_tests(text) {
                if names_root(text, SCRATCH) {
                    found.push(machine_path(path, line, SCRATCH));
                }
            }
        }
    }
    found
}

/// Returns one violation for a file: a diagram has many such lines and one cause.
fn beyond_ascii(path: &str, text: &str) -> Option<Violation> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.is_ascii());
    let (first, _) = lines.next().filter(|_| is_source(path))?;
    Some(Violation {
        path: path.to_owned(),
        line: first + 1,
        what: format!("characters beyond ASCII, here and in {} lines more", lines.count()),
        why: "source reads the same in every terminal and diff",
        remedy: "write it in ASCII (-- > | + for drawings), or as \\u{...} in a string",
    })
}

fn is_source(path: &str) -> bool {
    [".rs", ".toml", ".sh"].iter().any(|end| path.ends_with(end)) || path == "Makefile" || path == ".ci/run"
}

/// Returns whether the line holds the folder at the start of a path, not in the middle of a longer one.
fn names_root(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-}".contains(c))
    })
}

fn machine_path(path: &str, line: usize, folder: &str) -> Violation {
    Violation {
        path: path.to_owned(),
        line,
        what: format!("names `{folder}`"),
        why: "that folder is on one machine only",
        remedy: "take the path as an argument, from the environment, or relative to the checkout",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_paths_are_found_in_every_file() {
        let path = format!("see {}x\n", MACHINES[0]);
        let tree = Tree::of(&[("docs/a.md", &path), ("crates/a/tests/b.rs", &path)]);
        assert_eq!(check(&tree).len(), 2);
    }

    #[test]
    fn scratch_files_belong_to_tests() {
        let path = format!("let dir = \"{SCRATCH}x\";\n");
        let in_test = format!("#[cfg(test)]\n{path}");
        let tree = Tree::of(&[
            ("crates/a/src/a.rs", &path),
            ("crates/a/src/b.rs", &in_test),
            ("crates/a/tests/c.rs", &path),
            ("docs/d.md", &path),
        ]);
        let found = check(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "crates/a/src/a.rs");
    }

    #[test]
    fn a_folder_inside_a_longer_path_is_another_folder() {
        let inside = format!("net{}x and $HOME{}x\n", MACHINES[0], MACHINES[1]);
        let tree = Tree::of(&[("docs/a.md", &inside)]);
        assert_eq!(check(&tree), vec![]);
    }

    #[test]
    fn source_is_ascii_and_prose_need_not_be() {
        let twice = "let x = '\u{b5}';\n".repeat(2);
        let tree = Tree::of(&[("a.rs", &twice), ("a.md", "5 \u{b5}s\n")]);
        let found = check(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].path.as_str(), found[0].line), ("a.rs", 1));
    }
}
