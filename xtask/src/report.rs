//! The counts that `tidy --report` prints: one `name value` a line, for people and for the lab.

use crate::checks::{layers, readme, summaries, type_names, walk, words};
use crate::imports::imports_of;
use crate::tree::Tree;
use std::path::Path;
use std::process::Command;

/// Longest subject of a commit.
const SUBJECT_MAX: usize = 72;
/// The last commit before subjects were held to that.
const SUBJECTS_SINCE: &str = "48b7a75";

/// Returns the report on a tree, and on the commits of the checkout at `root`.
pub(crate) fn report(tree: &Tree, root: &Path) -> String {
    let summaries: Vec<_> = tree.rust().flat_map(|(_, text)| summaries::summaries_of(text)).collect();
    let questions = summaries.iter().filter(|summary| summary.is_question()).count();
    let types = type_names::definitions(tree);
    let defined: usize = types.values().map(Vec::len).sum();
    let one_word = types.iter().filter(|(name, _)| type_names::is_one_word(name));
    let one_word_count: usize = one_word.clone().map(|(_, places)| places.len()).sum();
    let most_defined = one_word.map(|(_, places)| places.len()).max().unwrap_or(0);
    let cycle = layers::rooms_of(tree)
        .iter()
        .filter_map(|room| layers::cycles_of(&imports_of(tree, room)).first().map(Vec::len))
        .max()
        .unwrap_or(0);
    let mut lines = vec![
        format!("refused_words {}", words::check(tree).len()),
        format!("question_summaries {questions}"),
        format!("doc_summaries {}", summaries.len()),
        format!("types {defined}"),
        format!("one_word_types_percent {}", one_word_count * 100 / defined.max(1)),
        format!("one_word_type_defined_most {most_defined}"),
        format!("import_cycle_longest {cycle}"),
        format!("readme_lines {}", readme::lines_of(tree).unwrap_or(0)),
    ];
    for (name, files) in walk::walk_files(tree) {
        lines.push(format!("walk_files_{name} {files}"));
    }
    lines.push(match long_subjects(root) {
        Some(count) => format!("commit_subjects_over_{SUBJECT_MAX} {count}"),
        None => {
            format!("commit_subjects_over_{SUBJECT_MAX} unknown (no history behind {SUBJECTS_SINCE} here)")
        }
    });
    lines.join("\n")
}

/// Returns how many commits since the rule have a longer subject; `None` without that history.
fn long_subjects(root: &Path) -> Option<usize> {
    let range = format!("{SUBJECTS_SINCE}..HEAD");
    let log = Command::new("git").current_dir(root).args(["log", "--format=%s", &range]).output().ok()?;
    let text = String::from_utf8(log.stdout).ok().filter(|_| log.status.success())?;
    Some(text.lines().filter(|subject| subject.chars().count() > SUBJECT_MAX).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_counts_what_the_checks_find() {
        let source = format!(
            "//! A.\n\n/// Whether it is.\nstruct State;\n/// A noun.\nstruct QueueState;\n// {}.\n",
            words::REFUSED[0]
        );
        let tree = Tree::of(&[("README.md", "one\ntwo\n"), ("crates/a/src/lib.rs", &source)]);
        let report = report(&tree, Path::new(env!("CARGO_MANIFEST_DIR")));
        for line in [
            "refused_words 1",
            "question_summaries 1",
            "doc_summaries 3",
            "types 2",
            "one_word_types_percent 50",
            "one_word_type_defined_most 1",
            "import_cycle_longest 0",
            "readme_lines 2",
            "walk_files_get 0",
        ] {
            assert!(report.lines().any(|found| found == line), "{line} is not in\n{report}");
        }
    }
}
