//! Which file of a crate imports from which: the edges that layers and cycles are checked on.
//!
//! Input: the files of one crate's `src`. Output: for each file the files whose items its code names. A name that a module
//! re-exports leads to the file that defines it, because a re-export is an address and not a dependence. Modules of tests
//! do not count.

use crate::rust_text::code_before_tests;
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// A module by its path below the crate root; the root is empty.
pub(crate) type ModulePath = Vec<String>;

/// The imports of one crate.
#[derive(Debug, Default)]
pub(crate) struct CrateImports {
    /// The modules that each module imports from.
    pub(crate) edges: BTreeMap<ModulePath, BTreeSet<ModulePath>>,
}

/// Returns the imports of the crate in `crates/ROOM`.
pub(crate) fn imports_of(tree: &Tree, room: &str) -> CrateImports {
    let folder = format!("crates/{room}/src/");
    let mut codes = BTreeMap::new();
    let mut tests = BTreeSet::new();
    for (path, text) in tree.rust() {
        let Some(rest) = path.strip_prefix(&folder).and_then(|rest| rest.strip_suffix(".rs")) else {
            continue;
        };
        let module: ModulePath = match rest {
            "lib" | "main" => Vec::new(),
            rest => rest.split('/').map(str::to_owned).collect(),
        };
        let code = code_before_tests(text);
        tests.extend(test_modules(&code).into_iter().map(|name| child(&module, &name)));
        codes.insert(module, code);
    }
    codes.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
    let modules: BTreeSet<ModulePath> = codes.keys().cloned().collect();
    let mut exports = BTreeMap::new();
    for (module, code) in &codes {
        for (path, public) in uses_of(code) {
            if public
                && let Some(target) = absolute(&modules, module, &path)
                && let Some(name) = target.last().cloned()
            {
                exports.insert((module.clone(), name), target);
            }
        }
    }
    let mut edges = BTreeMap::new();
    for (module, code) in &codes {
        let named = uses_of(code).into_iter().filter(|(_, public)| !public).map(|(path, _)| path);
        let targets = named.chain(inline_paths(code)).filter_map(|path| absolute(&modules, module, &path));
        let files = targets.filter_map(|target| defining_file(&modules, &exports, target));
        edges.insert(module.clone(), files.filter(|file| file != module).collect());
    }
    CrateImports { edges }
}

fn child(module: &[String], name: &str) -> ModulePath {
    let mut path = module.to_vec();
    path.push(name.to_owned());
    path
}

/// Returns the names of modules that exist only in tests or models.
fn test_modules(code: &str) -> Vec<String> {
    let lines: Vec<&str> = code.lines().map(str::trim).collect();
    let mut names = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let conditional = line.starts_with("#[cfg(") && (line.contains("test") || line.contains("loom"));
        let next = lines[index + 1..].iter().find(|next| !next.starts_with("#["));
        if conditional
            && let Some(next) = next
            && let Some((_, name)) = next.split_once("mod ")
        {
            names.push(name.trim_end_matches(';').to_owned());
        }
    }
    names
}

/// Returns every imported path of the file, and whether it is re-exported.
fn uses_of(code: &str) -> Vec<(Vec<String>, bool)> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some((at, public)) = next_use(rest) {
        let Some(end) = rest[at..].find(';') else { break };
        for path in expand(&rest[at..at + end]) {
            found.push((path, public));
        }
        rest = &rest[at + end..];
    }
    found
}

/// Returns where the tree of the next `use` starts, and whether the `use` is public.
fn next_use(code: &str) -> Option<(usize, bool)> {
    let mut offset = 0;
    for line in code.split_inclusive('\n') {
        let trimmed = line.trim_start();
        let public = trimmed.starts_with("pub");
        let statement = match trimmed.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => {
                rest.split_once(')').map_or("", |(_, rest)| rest.trim_start())
            }
            Some(rest) => rest.trim_start(),
            None => trimmed,
        };
        if let Some(tree) = statement.strip_prefix("use ") {
            return Some((offset + line.len() - tree.len(), public));
        }
        offset += line.len();
    }
    None
}

/// Returns the paths of a use tree.
fn expand(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or("");
        return vec![path.split("::").map(|part| part.trim().to_owned()).collect()];
    };
    let prefix: Vec<String> =
        tree[..open].split("::").map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect();
    let body = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
    let mut parts = vec![String::new()];
    let mut depth = 0_u32;
    for character in body.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if character == ',' && depth == 0 {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(character);
        }
    }
    let inner = parts.iter().filter(|part| !part.trim().is_empty()).flat_map(|part| expand(part));
    inner.map(|path| prefix.iter().cloned().chain(path).collect()).collect()
}

/// Returns the code without its `use` statements.
fn without_uses(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some((at, _)) = next_use(rest) {
        let Some(end) = rest[at..].find(';') else { break };
        kept.push_str(&rest[..at]);
        rest = &rest[at + end..];
    }
    kept.push_str(rest);
    kept
}

/// Returns the paths behind `crate::` and `super::` outside of `use` statements.
fn inline_paths(code: &str) -> Vec<Vec<String>> {
    let code = without_uses(code);
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let end = code[at..].find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
            let path = &code[at..end.map_or(code.len(), |end| at + end)];
            found.push(path.trim_end_matches(':').split("::").map(str::to_owned).collect());
        }
    }
    found
}

/// Returns the path from the crate root; `None` for another crate's item.
fn absolute(modules: &BTreeSet<ModulePath>, module: &[String], path: &[String]) -> Option<ModulePath> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    let first = path.first()?.as_str();
    let (base, rest) = match first {
        "crate" => (Vec::new(), &path[1..]),
        "self" => (module.to_vec(), &path[1..]),
        "super" => (module.get(..module.len().checked_sub(supers)?)?.to_vec(), &path[supers..]),
        name if modules.contains(&child(module, name)) => (module.to_vec(), path),
        _ => return None,
    };
    Some(base.into_iter().chain(rest.iter().filter(|part| *part != "self").cloned()).collect())
}

/// Returns the file that defines what a path names, through at most eight re-exports.
fn defining_file(
    modules: &BTreeSet<ModulePath>,
    exports: &BTreeMap<(ModulePath, String), ModulePath>,
    mut path: ModulePath,
) -> Option<ModulePath> {
    const REEXPORTS_MAX: usize = 8;
    for _ in 0..REEXPORTS_MAX {
        let step = (0..path.len()).rev().find_map(|at| {
            let (module, name) = (path[..at].to_vec(), path[at].clone());
            let is_module = modules.contains(&path[..=at]);
            let target = exports.get(&(module, name)).filter(|_| !is_module)?;
            Some(target.iter().chain(&path[at + 1..]).cloned().collect::<ModulePath>())
        });
        match step {
            Some(next) if next != path => path = next,
            _ => break,
        }
    }
    while !modules.contains(&path) {
        path.pop()?;
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let imports = imports_of(&Tree::of(files), "a");
        let pairs = imports.edges.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
        pairs.map(|(from, to)| format!("{} -> {}", from.join("/"), to.join("/"))).collect()
    }

    #[test]
    fn an_import_leads_to_the_file_that_defines_the_name() {
        let found = edges(&[
            ("crates/a/src/lib.rs", "mod low;\nmod high;\n"),
            ("crates/a/src/low.rs", "pub mod deep;\npub use deep::Thing;\n"),
            ("crates/a/src/low/deep.rs", "pub struct Thing;\n"),
            ("crates/a/src/high.rs", "use crate::low::{Thing, deep::{self, Other}};\nuse std::fmt;\n"),
        ]);
        assert_eq!(found, ["high -> low/deep"]);
    }

    #[test]
    fn inline_paths_count_and_tests_do_not() {
        let found = edges(&[
            ("crates/a/src/lib.rs", "mod b;\nmod c;\n"),
            ("crates/a/src/b.rs", "fn f() { crate::c::g(); }\n#[cfg(test)]\nmod tests;\n"),
            ("crates/a/src/b/tests.rs", "use super::f;\n"),
            ("crates/a/src/c.rs", "// use crate::b;\n#[cfg(test)]\nmod tests {\n    use crate::b::f;\n}\n"),
        ]);
        assert_eq!(found, ["b -> c"]);
    }

    #[test]
    fn a_child_that_its_parent_calls_is_an_edge() {
        let found = edges(&[
            ("crates/a/src/lib.rs", "mod b;\n"),
            ("crates/a/src/b.rs", "mod c;\nuse c::work;\npub struct State;\n"),
            ("crates/a/src/b/c.rs", "use super::State;\npub fn work() {}\n"),
        ]);
        assert_eq!(found, ["b -> b/c", "b/c -> b"]);
    }
}
