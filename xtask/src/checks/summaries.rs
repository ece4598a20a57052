//! Doc summaries: a function's starts with a verb in the third person, and none starts with a question word.
//!
//! Input: every Rust file. Output: one violation for each summary that starts otherwise. A verb that is missing from the
//! table is added there.

use super::verbs::VERBS;
use crate::tree::Tree;
use crate::violation::Violation;

/// Words that start a question and not a summary.
const QUESTIONS: &[&str] = &["What", "Whether", "Who", "Whom", "How", "Where", "When", "Why"];

/// Finds summaries that do not start as STYLE.md asks.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.rust() {
        for summary in summaries_of(text) {
            let what = if QUESTIONS.contains(&summary.first) {
                format!("a summary starts with `{}`", summary.first)
            } else if summary.of_function && !VERBS.contains(&summary.first) {
                format!("a function's summary starts with `{}`", summary.first)
            } else {
                continue;
            };
            found.push(Violation {
                path: path.to_owned(),
                line: summary.line,
                what,
                why: "a summary states what the item does or is",
                remedy: "start a function's with a verb in the third person (\"Returns ...\"), a type's with a noun; a verb that is missing joins xtask/src/checks/verbs.rs",
            });
        }
    }
    found
}

/// The first line of a doc comment.
#[derive(Debug)]
pub(crate) struct DocSummary<'a> {
    pub(crate) line: usize,
    pub(crate) first: &'a str,
    pub(crate) of_function: bool,
}

impl DocSummary<'_> {
    /// Returns whether it starts with a question word.
    pub(crate) fn is_question(&self) -> bool {
        QUESTIONS.contains(&self.first)
    }
}

/// Returns every summary of the file: of items, and of the file itself.
pub(crate) fn summaries_of(text: &str) -> Vec<DocSummary<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at].trim_start();
        let Some(mark) = ["///", "//!"].into_iter().find(|mark| line.starts_with(mark)) else {
            at += 1;
            continue;
        };
        let start = at;
        while at < lines.len() && lines[at].trim_start().starts_with(mark) {
            at += 1;
        }
        let sentence = line[mark.len()..].trim_start();
        let end = sentence.find(|c: char| !(c.is_alphanumeric() || c == '-')).unwrap_or(sentence.len());
        found.push(DocSummary {
            line: start + 1,
            first: &sentence[..end],
            of_function: mark == "///" && documents_function(&lines[at..]),
        });
    }
    found
}

/// Returns whether the item behind a doc comment is a function.
fn documents_function(lines: &[&str]) -> bool {
    let mut depth = 0_i32;
    for line in lines {
        let line = line.trim();
        let opens_attribute = depth == 0 && line.starts_with("#[");
        if opens_attribute || depth > 0 {
            depth += balance(line);
            continue;
        }
        return line.split_once("fn ").is_some_and(|(before, _)| {
            before.chars().all(|c| c.is_ascii_lowercase() || " ()\"C".contains(c))
        });
    }
    false
}

fn balance(line: &str) -> i32 {
    line.chars().map(|c| i32::from(c == '[') - i32::from(c == ']')).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(text: &str) -> Vec<String> {
        check(&Tree::of(&[("a.rs", text)])).into_iter().map(|violation| violation.what).collect()
    }

    #[test]
    fn a_function_starts_with_a_verb_in_the_third_person() {
        let good = "/// Returns it.\n#[must_use]\npub(crate) const fn it() {}\n/// A noun.\nstruct Noun;\n";
        assert_eq!(whats(good), Vec::<String>::new());
        let bad = "/// The thing.\n#[expect(\n    dead_code,\n    reason = \"x\"\n)]\npub fn it() {}\n";
        assert_eq!(whats(bad), ["a function's summary starts with `The`"]);
    }

    #[test]
    fn no_summary_starts_with_a_question_word() {
        let text = "//! How it works.\n\n/// Whether it is so.\nis_so: bool,\n";
        assert_eq!(whats(text), ["a summary starts with `How`", "a summary starts with `Whether`"]);
    }

    #[test]
    fn a_noun_that_ends_like_a_verb_is_no_verb() {
        assert_eq!(whats("/// Bytes of it.\nfn bytes() {}\n"), ["a function's summary starts with `Bytes`"]);
    }
}
