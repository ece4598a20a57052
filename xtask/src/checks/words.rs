//! Words that STYLE.md refuses, in every text that people write: comments, messages, names and pages.
//!
//! Input: every file of the tree. Output: one violation for each refused word. An identifier is read word by word
//! (`RingWish` is "ring wish", `is_told` is "is told").

use crate::tree::Tree;
use crate::violation::Violation;

/// Words that name no role, or a metaphor where a term exists.
pub(crate) const REFUSED: &[&str] = &[
    "anybody",
    "cease",
    "ceased",
    "ceases",
    "debris",
    "desk",
    "desks",
    "errand",
    "errands",
    "everybody",
    "everyone",
    "fate",
    "fates",
    "meanwhile",
    "nobody",
    "others",
    "rivals",
    "shops",
    "somebody",
    "stairs",
    "stranger",
    "strangers",
    "timepiece",
    "whoever",
    "whomever",
    "wish",
    "wishes",
    "wreck",
];

/// Two words in a row that name no role.
const REFUSED_PAIRS: &[[&str; 2]] = &[["one", "who"], ["those", "who"], ["of", "whom"], ["whatever", "it"]];

/// Keys of a wire or a file that other programs read: a path and the refused word in it. A key of JSON cannot be renamed
/// without a new version of its format. Nothing else joins this list.
const WIRE_KEYS: &[(&str, &str)] = &[
    // The change of a namespace in a message of the attach protocol, which older clients send.
    ("crates/io/src/attach/admin.rs", "wish"),
    ("docs/formats/attach.md", "wish"),
];

/// Words in the names of an earlier version, in the list that translates them to the present ones.
const FORMER_NAMES: &[(&str, &str)] = &[("CHANGELOG.md", "timepiece"), ("CHANGELOG.md", "wish")];

/// Files that list the refused words.
const LISTS: &[&str] = &["xtask/src/checks/words.rs", "STYLE.md"];

/// Endings of the files that people write.
const WRITTEN: &[&str] = &[".rs", ".md", ".py", ".sh", ".c", ".h", ".toml", "Makefile", ".ci/run"];

/// Finds refused words.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.files() {
        if LISTS.contains(&path) || !WRITTEN.iter().any(|end| path.ends_with(end)) {
            continue;
        }
        for (index, line) in text.lines().enumerate() {
            for word in refused_in(line) {
                let here = (path, word.as_str());
                if WIRE_KEYS.contains(&here) || FORMER_NAMES.contains(&here) {
                    continue;
                }
                found.push(Violation {
                    path: path.to_owned(),
                    line: index + 1,
                    what: format!("the word `{word}`"),
                    why: "a sentence names its actor by role, and a thing by the field's term",
                    remedy: "name the client, host, caller, waiter or thread; the glossary of STYLE.md has the terms",
                });
            }
        }
    }
    found
}

fn refused_in(line: &str) -> Vec<String> {
    let words = words_of(line);
    let single = words.iter().filter(|word| REFUSED.contains(&word.as_str())).cloned();
    let pairs = words.windows(2).filter_map(|pair| {
        let [first, second] = pair else { return None };
        let refused = REFUSED_PAIRS.iter().any(|[a, b]| a == first && b == second);
        refused.then(|| format!("{first} {second}"))
    });
    single.chain(pairs).collect()
}

/// Returns the words of a line in lower case; a capital behind a small letter starts a word.
fn words_of(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut after_small = false;
    for character in line.chars() {
        if !character.is_ascii_alphabetic() || (character.is_ascii_uppercase() && after_small) {
            words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
        }
        if character.is_ascii_alphabetic() {
            word.push(character.to_ascii_lowercase());
        }
        after_small = character.is_ascii_lowercase();
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_words_are_found_in_prose_and_in_names() {
        let tree = Tree::of(&[
            ("a.rs", "// Nobody waits.\nstruct RingWish;\nfn no_fates() {}\n"),
            ("b.md", "One who asks, and the dishwasher.\n"),
            ("c.json", "nobody\n"),
        ]);
        let whats: Vec<String> = check(&tree).into_iter().map(|violation| violation.what).collect();
        assert_eq!(whats, ["the word `nobody`", "the word `wish`", "the word `fates`", "the word `one who`"]);
    }

    #[test]
    fn a_key_of_a_wire_keeps_its_word_where_it_is_defined() {
        let line = "#[serde(rename = \"wish\")]\n";
        assert!(check(&Tree::of(&[("crates/io/src/attach/admin.rs", line)])).is_empty());
        assert_eq!(check(&Tree::of(&[("crates/io/src/attach/session.rs", line)])).len(), 1);
        let found = check(&Tree::of(&[("crates/io/src/attach/admin.rs", "// Nobody.\n")]));
        assert_eq!(found[0].what, "the word `nobody`");
    }

    #[test]
    fn the_lists_themselves_may_hold_them() {
        let tree = Tree::of(&[("STYLE.md", "nobody\n"), ("xtask/src/checks/words.rs", "nobody\n")]);
        assert!(check(&tree).is_empty());
    }
}
