//! Relative links in our Markdown lead to something.

use crate::tree::Tree;
use crate::violation::Violation;

/// Finds relative links whose target is not in the checkout.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.markdown() {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut fenced = false;
        for (index, line) in text.lines().enumerate() {
            fenced ^= line.trim_start().starts_with("```");
            if fenced {
                continue;
            }
            for target in targets_of(line) {
                if !resolve(folder, target).is_some_and(|resolved| resolved.is_empty() || tree.has(&resolved))
                {
                    found.push(Violation {
                        path: path.to_owned(),
                        line: index + 1,
                        what: format!("the link to `{target}` leads nowhere"),
                        why: "a reader who follows a link expects a page",
                        remedy: "point it at what is there, or take it out",
                    });
                }
            }
        }
    }
    found
}

/// Returns the relative targets of a line's links, without their anchors. Code spans hold no links.
fn targets_of(line: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    for prose in line.split('`').step_by(2) {
        let mut rest = prose;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, behind)) = after.split_once(')') else {
                break;
            };
            rest = behind;
            let file = target.split(['#', ' ']).next().unwrap_or("");
            if !file.is_empty() && !file.contains("://") && !file.starts_with("mailto:") {
                targets.push(file);
            }
        }
    }
    targets
}

/// Returns a target as a path from the root of the checkout; `None` when it leaves the checkout.
fn resolve(folder: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    if target.starts_with('/') {
        return None;
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_resolve_from_the_folder_they_stand_in() {
        let tree = Tree::of(&[
            (
                "README.md",
                "[style](STYLE.md#rooms), [formats](docs/formats/), [web](https://example.org/x)\n",
            ),
            ("STYLE.md", ""),
            ("docs/formats/record.md", "[up](../../README.md) and [here](#the-page)\n"),
        ]);
        assert_eq!(check(&tree), vec![]);
    }

    #[test]
    fn dead_links_and_links_out_of_the_checkout_are_found() {
        let tree = Tree::of(&[("README.md", "fine\n[gone](GONE.md) [out](../other) [abs](/etc)\n")]);
        let found = check(&tree);
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|violation| violation.line == 2));
    }

    #[test]
    fn what_stands_in_code_is_no_link() {
        let tree = Tree::of(&[("README.md", "`a[0](x)`\n```\n[gone](GONE.md)\n```\n")]);
        assert_eq!(check(&tree), vec![]);
    }
}
