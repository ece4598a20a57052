//! The walks of ARCHITECTURE.md lead through files that exist, in the order of the page, and are short.
//!
//! Input: ARCHITECTURE.md. A walk is a heading `## Walk: NAME (at most N files)` and steps below it of the form
//! `` 3. `crates/ssd/src/engine.rs` - `Device::submit` `` with prose behind them. Output: steps that lead nowhere, gaps,
//! walks with more files than their heading allows, and steps that the code does not connect: the file of a step must name
//! something of the next step's file or hold the function that calls it through a trait, which the page marks with
//! `(through `TRAIT`)`.

use crate::tree::Tree;
use crate::violation::Violation;
use std::collections::BTreeSet;

const PAGE: &str = "ARCHITECTURE.md";
const HEADING: &str = "## Walk: ";

/// The walks that the page must have, their name in the report, and the most files that each may pass through.
const WALKS: &[(&str, &str, usize)] = &[("a RESP GET", "get", 14), ("an `io` read", "read", 9)];

/// One step of a walk.
#[derive(Clone, Debug)]
struct WalkStep<'a> {
    line: usize,
    number: usize,
    path: &'a str,
    name: &'a str,
    /// The trait through which the previous step calls this one.
    through: Option<&'a str>,
}

/// Finds walks that are missing or too long, and steps that lead nowhere.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let Some(page) = tree.text(PAGE) else {
        return vec![violation(1, "the page is missing".to_owned())];
    };
    let mut found = Vec::new();
    for (name, _, files_max) in WALKS {
        let steps = steps_of(page, name);
        if steps.is_empty() {
            found.push(violation(1, format!("there is no walk `{name}`")));
        }
        let files = files_in(&steps);
        if files > *files_max {
            found.push(violation(
                steps[0].line,
                format!("`{name}` passes {files} files, {files_max} are the most"),
            ));
        }
        found.extend(broken_steps(tree, &steps));
    }
    found
}

/// Returns each walk's name in the report and the number of files that it passes through.
pub(crate) fn walk_files(tree: &Tree) -> Vec<(&'static str, usize)> {
    let page = tree.text(PAGE).unwrap_or("");
    WALKS.iter().map(|(name, short, _)| (*short, files_in(&steps_of(page, name)))).collect()
}

fn files_in(steps: &[WalkStep<'_>]) -> usize {
    steps.iter().map(|step| step.path).collect::<BTreeSet<_>>().len()
}

fn broken_steps(tree: &Tree, steps: &[WalkStep<'_>]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        if step.number != index + 1 {
            found.push(violation(step.line, format!("step {} stands at place {}", step.number, index + 1)));
        }
        let Some(source) = tree.text(step.path) else {
            found.push(violation(step.line, format!("`{}` does not exist", step.path)));
            continue;
        };
        if !contains_word(source, identifier(step.name)) {
            found.push(violation(step.line, format!("`{}` does not contain `{}`", step.path, step.name)));
        }
        let Some(before) = index.checked_sub(1).and_then(|before| steps.get(before)) else { continue };
        let caller = tree.text(before.path).unwrap_or("");
        let called = step.through.unwrap_or(step.name);
        if before.path != step.path && !contains_word(caller, identifier(called)) {
            let what = format!(
                "`{}` does not name `{called}`, so step {} does not lead to it",
                before.path, before.number
            );
            found.push(violation(step.line, what));
        }
    }
    found
}

/// Returns the steps below the heading of a walk.
fn steps_of<'a>(page: &'a str, walk: &str) -> Vec<WalkStep<'a>> {
    let mut inside = false;
    let mut steps = Vec::new();
    for (index, line) in page.lines().enumerate() {
        if line.starts_with("## ") {
            inside = line.strip_prefix(HEADING).is_some_and(|name| name.starts_with(walk));
        } else if inside && let Some(step) = step_of(index + 1, line) {
            steps.push(step);
        }
    }
    steps
}

fn step_of(line: usize, text: &str) -> Option<WalkStep<'_>> {
    let (number, rest) = text.trim_start().split_once(". `")?;
    let number = number.parse().ok()?;
    let (path, rest) = rest.split_once('`')?;
    let (name, rest) = rest.strip_prefix(" - `")?.split_once('`')?;
    let through = rest.trim_start().strip_prefix("(through `").and_then(|rest| rest.split_once('`'));
    Some(WalkStep { line, number, path, name, through: through.map(|(name, _)| name) })
}

/// Returns the last part of a path: `Device::<M>::submit()` is looked up as `submit`.
fn identifier(name: &str) -> &str {
    let last = name.rsplit("::").next().unwrap_or(name);
    let end = last.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(last.len());
    &last[..end]
}

fn contains_word(source: &str, word: &str) -> bool {
    !word.is_empty()
        && source.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|candidate| candidate == word)
}

fn violation(line: usize, what: String) -> Violation {
    Violation {
        path: PAGE.to_owned(),
        line,
        what,
        why: "a newcomer follows a request by this page",
        remedy: "walk it again in the code and write down each file: N. `path` - `function or type`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: &str = "## Walk: an `io` read (at most 9 files)\n\n1. `crates/a/src/ring.rs` - `ring`\n";

    fn whats(get: &str) -> Vec<String> {
        let page = format!("## Walk: a RESP GET (at most 14 files)\n\n{get}\n{READ}");
        let many: Vec<(String, String)> =
            (1..=15).map(|n| (format!("crates/a/src/m{n}.rs"), "fn view() {}".to_owned())).collect();
        let mut files = vec![
            (PAGE, page.as_str()),
            ("crates/a/src/ring.rs", "fn ring() {}"),
            ("crates/a/src/device.rs", "fn submit() { view(); Media::poll(); }"),
            ("crates/a/src/media.rs", "fn view() {} fn poll() {}"),
        ];
        files.extend(many.iter().map(|(path, text)| (path.as_str(), text.as_str())));
        check(&Tree::of(&files)).into_iter().map(|violation| violation.what).collect()
    }

    #[test]
    fn a_walk_that_the_code_follows_passes() {
        let get = "1. `crates/a/src/device.rs` - `Device::submit()` takes it.\n2. `crates/a/src/media.rs` - `view`\n";
        assert_eq!(whats(get), Vec::<String>::new());
    }

    #[test]
    fn steps_that_lead_nowhere_are_found() {
        let get = "1. `crates/a/src/gone.rs` - `x`\n2. `crates/a/src/media.rs` - `views`\n";
        assert_eq!(
            whats(get),
            [
                "`crates/a/src/gone.rs` does not exist",
                "`crates/a/src/media.rs` does not contain `views`",
                "`crates/a/src/gone.rs` does not name `views`, so step 1 does not lead to it",
            ]
        );
    }

    #[test]
    fn a_step_that_the_code_does_not_reach_is_found() {
        let get = "1. `crates/a/src/media.rs` - `view`\n2. `crates/a/src/device.rs` - `submit`\n";
        assert_eq!(
            whats(get),
            ["`crates/a/src/media.rs` does not name `submit`, so step 1 does not lead to it"]
        );
        let through = "1. `crates/a/src/device.rs` - `submit`\n2. `crates/a/src/media.rs` - `view` (through `Media::poll`) reads.\n";
        assert_eq!(whats(through), Vec::<String>::new());
    }

    #[test]
    fn a_fifteenth_file_and_a_gap_are_found() {
        let long: String = (1..=15).map(|n| format!("{n}. `crates/a/src/m{n}.rs` - `view`\n")).collect();
        assert_eq!(whats(&long), ["`a RESP GET` passes 15 files, 14 are the most"]);
        let gap = "1. `crates/a/src/media.rs` - `view`\n3. `crates/a/src/media.rs` - `poll`\n";
        assert_eq!(whats(gap), ["step 3 stands at place 2"]);
    }

    #[test]
    fn a_page_without_a_walk_is_found() {
        assert_eq!(whats("nothing"), ["there is no walk `a RESP GET`"]);
    }
}
