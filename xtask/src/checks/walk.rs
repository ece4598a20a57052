//! ARCHITECTURE.md's walk from the public call to the medium leads through files that exist and say what it says.
//!
//! A step is a line `` 3. `crates/converged/src/device.rs` - `Device::submit` ``, and more prose behind it. Steps count
//! from 1 without a gap, and nine are the most: if a read takes more files to follow, the layers are wrong.

use crate::tree::Tree;
use crate::violation::Violation;

const PAGE: &str = "ARCHITECTURE.md";
const STEPS_MAX: usize = 9;

/// Finds steps that lead nowhere, gaps, and walks that are too long or do not arrive.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let Some(page) = tree.text(PAGE) else {
        return vec![violation(1, "there is no walk: the page is missing".to_owned())];
    };
    let mut found = Vec::new();
    let mut expected = 1;
    let mut arrived = false;
    for (line, number, path, name) in steps_of(page) {
        if number == 1 {
            expected = 1;
        }
        if number != expected {
            found.push(violation(line, format!("step {number} follows step {}", expected - 1)));
        }
        expected = number + 1;
        if number > STEPS_MAX {
            found.push(violation(line, format!("step {number}: {STEPS_MAX} are the most")));
        }
        match tree.text(path) {
            None => found.push(violation(line, format!("`{path}` is not there"))),
            Some(source) if !contains_word(source, identifier(name)) => {
                found.push(violation(line, format!("`{path}` does not contain `{name}`")));
            }
            Some(_) => arrived |= path.contains("media"),
        }
    }
    if !arrived && found.is_empty() {
        found.push(violation(1, "no walk arrives at a file of the medium".to_owned()));
    }
    found
}

/// Every step: its line, its number, the path and the name.
fn steps_of(page: &str) -> Vec<(usize, usize, &str, &str)> {
    let mut steps = Vec::new();
    for (index, line) in page.lines().enumerate() {
        if let Some((number, path, name)) = step_of(line) {
            steps.push((index + 1, number, path, name));
        }
    }
    steps
}

fn step_of(line: &str) -> Option<(usize, &str, &str)> {
    let (number, rest) = line.trim_start().split_once(". `")?;
    let number = number.parse().ok()?;
    let (path, rest) = rest.split_once('`')?;
    let (name, _) = rest.strip_prefix(" - `")?.split_once('`')?;
    Some((number, path, name))
}

/// `Device::<M>::submit()` is looked up as `submit`.
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
        why: "a newcomer follows one get by this page",
        remedy: "walk it again in the code and write down what you meet: N. `path` - `function or type`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(page: &str) -> Vec<String> {
        let tree = Tree::of(&[
            (PAGE, page),
            ("crates/a/src/device.rs", "fn submit() {}"),
            ("crates/a/src/media.rs", "fn view() {}"),
        ]);
        check(&tree).into_iter().map(|violation| violation.what).collect()
    }

    #[test]
    fn a_walk_that_arrives_passes() {
        let page = "# Walk\n\n1. `crates/a/src/device.rs` - `Device::submit()` takes it.\n2. `crates/a/src/media.rs` - `view`\n";
        assert_eq!(whats(page), Vec::<String>::new());
    }

    #[test]
    fn steps_that_lead_nowhere_are_found() {
        let page = "1. `crates/a/src/gone.rs` - `x`\n2. `crates/a/src/device.rs` - `submitted`\n";
        assert_eq!(
            whats(page),
            ["`crates/a/src/gone.rs` is not there", "`crates/a/src/device.rs` does not contain `submitted`"]
        );
    }

    #[test]
    fn gaps_and_a_tenth_step_are_found() {
        let step = |n: usize| format!("{n}. `crates/a/src/media.rs` - `view`\n");
        let long: String = (1..=10).map(step).collect();
        assert_eq!(whats(&long), ["step 10: 9 are the most"]);
        assert_eq!(whats(&(step(1) + &step(3))), ["step 3 follows step 1"]);
    }

    #[test]
    fn a_page_without_a_walk_is_found() {
        assert_eq!(whats("# Nothing\n"), ["no walk arrives at a file of the medium"]);
    }
}
