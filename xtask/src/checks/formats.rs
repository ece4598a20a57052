//! The pages in `docs/formats/` and the structs that go to a medium or a wire name each other.
//!
//! A page says `` `RecordHeader` in `crates/ssd/src/record.rs` ``. That file must define that struct; and every
//! struct whose layout is fixed and whose bytes leave the process must be on a page. Two rooms are left out: `host`
//! (the kernel's layouts) and `nvme::spec` (the standard is the page, and every entry cites its clause).

use crate::tree::{Tree, is_test_path, lines_before_tests};
use crate::violation::Violation;

const PAGES: &str = "docs/formats/";
const ELSEWHERE: &[&str] = &["crates/host/", "crates/nvme/src/spec"];

/// Finds pages that name what is not there, and structs that no page names.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut named: Vec<(String, String)> = Vec::new();
    for (path, text) in tree.markdown().filter(|(path, _)| path.starts_with(PAGES)) {
        for (line, name, file) in names_of(text) {
            let defined = tree.text(&file).is_some_and(|source| defines_struct(source, &name));
            if !defined {
                found.push(Violation {
                    path: path.to_owned(),
                    line,
                    what: format!("`{file}` defines no struct `{name}`"),
                    why: "a format page that lags behind the code is worse than none",
                    remedy: "change page and code in one commit",
                });
            }
            named.push((name, file));
        }
    }
    for (path, text) in tree.rust() {
        let ours = path.starts_with("crates/") && !ELSEWHERE.iter().any(|room| path.starts_with(room));
        if !ours || is_test_path(path) {
            continue;
        }
        for (line, name) in wire_structs_of(text) {
            if !named.iter().any(|(n, f)| n == name && f == path) {
                found.push(Violation {
                    path: path.to_owned(),
                    line,
                    what: format!("`{name}` has a fixed layout and stands on no page of {PAGES}"),
                    why: "a reader of our media in ten years has only the page",
                    remedy: "draw it by byte on a page that says: `Struct` in `path`",
                });
            }
        }
    }
    found
}

/// Returns every `` `Name` in `file.rs` `` of a page, with its line. A line break may stand where a space may.
fn names_of(page: &str) -> Vec<(usize, String, String)> {
    let mut found = Vec::new();
    let mut line = 1;
    // Odd pieces stand between backticks.
    let pieces: Vec<&str> = page.split('`').collect();
    for (index, piece) in pieces.iter().enumerate() {
        if index % 2 == 1
            && let (Some(between), Some(file)) = (pieces.get(index + 1), pieces.get(index + 2))
            && between.trim() == "in"
            && file.ends_with(".rs")
        {
            found.push((line, (*piece).to_owned(), (*file).to_owned()));
        }
        line += piece.matches('\n').count();
    }
    found
}

fn defines_struct(source: &str, name: &str) -> bool {
    source.lines().any(|line| struct_name(line) == Some(name))
}

/// Returns the name in `pub struct Name {`, if the line defines a struct.
fn struct_name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let at = line.find("struct ")?;
    let visibility = line[..at].trim();
    if !(visibility.is_empty() || visibility.starts_with("pub")) {
        return None;
    }
    let rest = &line[at + "struct ".len()..];
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
    Some(&rest[..end])
}

/// Returns structs with named fields, `repr(C)` and bytes that can be taken as they are: what a medium or a wire sees.
fn wire_structs_of(source: &str) -> Vec<(usize, &str)> {
    let mut attributes = String::new();
    let mut found = Vec::new();
    for (line, text) in lines_before_tests(source) {
        let trimmed = text.trim();
        if let Some(name) = struct_name(text) {
            let fixed = attributes.contains("repr(C") && attributes.contains("IntoBytes");
            if fixed && trimmed.ends_with('{') {
                found.push((line, name));
            }
            attributes.clear();
        } else if trimmed.is_empty() || trimmed.ends_with(';') || trimmed.ends_with('}') {
            attributes.clear();
        } else if !trimmed.starts_with("//") {
            attributes.push_str(trimmed);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str =
        "//! x\n\n#[derive(FromBytes, IntoBytes)]\n#[repr(C)]\npub struct Header {\n    a: u8,\n}\n";

    #[test]
    fn a_page_and_its_struct_find_each_other_over_a_line_break() {
        let tree = Tree::of(&[
            ("docs/formats/header.md", "Struct: `Header` in\n`crates/ssd/src/header.rs`.\n"),
            ("crates/ssd/src/header.rs", CODE),
        ]);
        assert_eq!(check(&tree), vec![]);
    }

    #[test]
    fn a_page_that_names_a_struct_that_is_gone_is_found() {
        let tree = Tree::of(&[
            ("docs/formats/header.md", "\n`Trailer` in `crates/ssd/src/header.rs`\n`Header` in `gone.rs`\n"),
            ("crates/ssd/src/header.rs", "//! no structs\n"),
        ]);
        let lines: Vec<usize> = check(&tree).iter().map(|violation| violation.line).collect();
        assert_eq!(lines, [2, 3]);
    }

    #[test]
    fn a_struct_that_no_page_names_is_found() {
        let tree = Tree::of(&[("crates/ssd/src/header.rs", CODE)]);
        let found = check(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 5);
    }

    #[test]
    fn memory_layouts_and_the_standards_own_tables_need_no_page() {
        let aligned = "//! x\n#[derive(IntoBytes)]\n#[repr(C, align(512))]\nstruct Sector([u8; 512]);\n";
        let tree = Tree::of(&[
            ("crates/dma/src/frame.rs", aligned),
            ("crates/nvme/src/spec/entry.rs", CODE),
            ("crates/host/src/ring.rs", CODE),
        ]);
        assert_eq!(check(&tree), vec![]);
    }
}
