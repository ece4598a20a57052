//! A type of one word exists once in the workspace, so that its name says which one is meant.
//!
//! Input: every Rust file, tests and examples included. Output: one violation for each further definition of a one-word
//! name. Associated types do not count: their trait names them.

use crate::rust_text::code_of;
use crate::tree::Tree;
use crate::violation::Violation;
use std::collections::BTreeMap;

/// One-word names that may be defined twice, and where the second definition stands.
const TWICE: &[(&str, &str)] = &[
    // The facade's device opens by a URL and owns the memory; the device of `io` is what it opens.
    ("Device", "crates/io/src/device.rs"),
];

/// The definition of a type.
#[derive(Clone, Debug)]
pub(crate) struct TypeDefinition {
    pub(crate) path: String,
    pub(crate) line: usize,
}

/// Finds one-word types that are defined again.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (name, places) in definitions(tree).into_iter().filter(|(name, _)| is_one_word(name)) {
        let mut counted: Vec<_> = places
            .into_iter()
            .filter(|place| !TWICE.contains(&(name.as_str(), place.path.as_str())))
            .collect();
        if counted.len() < 2 {
            continue;
        }
        let first = counted.remove(0);
        found.extend(counted.into_iter().map(|place| Violation {
            path: place.path,
            line: place.line,
            what: format!("`{name}` is defined here and at {}:{}", first.path, first.line),
            why: "one word names one thing in the workspace",
            remedy: "put what it belongs to in front (`ArbiterState`, `PrpSegment`)",
        }));
    }
    found
}

/// Returns every definition of a struct, enum, trait, union or type alias, by its name.
pub(crate) fn definitions(tree: &Tree) -> BTreeMap<String, Vec<TypeDefinition>> {
    let mut found: BTreeMap<String, Vec<TypeDefinition>> = BTreeMap::new();
    for (path, text) in tree.rust() {
        for (index, line) in code_of(text).lines().enumerate() {
            if let Some(name) = defined_by(line) {
                found
                    .entry(name.to_owned())
                    .or_default()
                    .push(TypeDefinition { path: path.to_owned(), line: index + 1 });
            }
        }
    }
    found
}

/// Returns whether a name is one word: a capital, then small letters and digits.
pub(crate) fn is_one_word(name: &str) -> bool {
    name.chars().skip(1).all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
}

fn defined_by(line: &str) -> Option<&str> {
    let indented = line.starts_with(' ');
    let mut rest = line.trim_start();
    if let Some(public) = rest.strip_prefix("pub") {
        rest = match public.strip_prefix('(') {
            Some(limited) => limited.split_once(')')?.1,
            None => public,
        };
    }
    let mut words = rest.split_whitespace();
    let mut keyword = words.next()?;
    if keyword == "unsafe" {
        keyword = words.next()?;
    }
    let defines = match keyword {
        "struct" | "enum" | "trait" | "union" => true,
        // Behind an indentation it is an associated type.
        "type" => !indented,
        _ => false,
    };
    let name = words.next().filter(|_| defines)?;
    let end = name.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(name.len());
    name[..end].starts_with(|c: char| c.is_ascii_uppercase()).then_some(&name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_definition_of_one_word_is_found() {
        let tree = Tree::of(&[
            ("crates/a/src/a.rs", "pub(crate) struct State {\n}\nenum QueueState {}\n"),
            ("crates/b/tests/b.rs", "    enum State {}\n// struct State;\nstruct QueueState;\n"),
        ]);
        let found = check(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].path.as_str(), found[0].line), ("crates/b/tests/b.rs", 1));
    }

    #[test]
    fn associated_types_are_named_by_their_trait() {
        let tree = Tree::of(&[("a.rs", "type Err = u8;\nimpl X for Y {\n    type Err = u8;\n}\n")]);
        assert_eq!(definitions(&tree)["Err"].len(), 1);
    }
}
