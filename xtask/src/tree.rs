//! The checkout as a map from path to text.
//!
//! In: a folder. Out: every text file in it that people write, by its path from the root with `/` between the parts,
//! in one fixed order. Build output, corpora and whatever is not UTF-8 stay out (a Rust file that is not UTF-8 does not
//! compile). Checks see only this map, so a test hands them one made by hand.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

/// Folders, from the root, that no person writes.
const SKIPPED: &[&str] =
    &[".git", "target", "data", "fuzz/target", "fuzz/artifacts", "fuzz/corpus", "fuzz/open", "fuzz/coverage"];

/// Text files by path.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    texts: BTreeMap<String, String>,
    /// Files that are there but are not text, and folders: links may point at them.
    not_text: Vec<String>,
}

impl Tree {
    /// Reads a checkout.
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.read_folder(root, "")?;
        Ok(tree)
    }

    /// Returns a tree made by hand.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let texts = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        Self { texts, not_text: Vec::new() }
    }

    /// Returns the number of text files.
    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    /// Returns the text of a file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// Returns whether a file or a folder is there.
    pub(crate) fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.texts.contains_key(path)
            || self.not_text.iter().any(|other| other == path.trim_end_matches('/'))
            || self.texts.keys().any(|file| file.starts_with(&folder))
    }

    /// Iterates over every file and its text.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Iterates over every Rust file and its text.
    pub(crate) fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// Iterates over every Markdown file and its text.
    pub(crate) fn markdown(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".md"))
    }

    fn read_folder(&mut self, folder: &Path, below: &str) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let path = if below.is_empty() { name.to_owned() } else { format!("{below}/{name}") };
            if SKIPPED.contains(&path.as_str()) {
                self.not_text.push(path);
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.not_text.push(path.clone());
                self.read_folder(&entry.path(), &path)?;
            } else if kind.is_file() {
                match String::from_utf8(fs::read(entry.path())?) {
                    Ok(text) => drop(self.texts.insert(path, text)),
                    Err(_) => self.not_text.push(path),
                }
            }
        }
        Ok(())
    }
}

/// Returns whether a path lies in a folder of tests or is a file of tests.
pub(crate) fn is_test_path(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs" || part == "benches")
}

/// Returns the lines of a Rust file, numbered from 1, up to where its own tests begin.
pub(crate) fn lines_before_tests(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
        .take_while(|(_, line)| line.trim() != "#[cfg(test)]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_exists_when_a_file_lies_in_it() {
        let tree = Tree::of(&[("docs/formats/record.md", "")]);
        assert!(tree.has("docs/formats"));
        assert!(tree.has("docs/formats/"));
        assert!(tree.has("docs/formats/record.md"));
        assert!(!tree.has("docs/form"));
    }

    #[test]
    fn the_checkout_this_was_built_from_can_be_read() {
        let tree = Tree::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
        assert!(tree.text("xtask/src/tree.rs").is_some());
        assert!(tree.files().all(|(path, _)| !path.starts_with("target/")));
    }

    #[test]
    fn a_files_own_tests_are_not_its_source() {
        let lines: Vec<_> = lines_before_tests("a\n\n#[cfg(test)]\nmod tests {}\n").collect();
        assert_eq!(lines, vec![(1, "a"), (2, "")]);
    }
}
