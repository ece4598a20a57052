//! Inside `ssd` and `io` a module imports only from its own layer and those below; no cycle of imports is long.
//!
//! Input: the imports of each crate. Output: one violation for each upward import and for each long cycle.

use crate::imports::{CrateImports, ModulePath, imports_of};
use crate::tree::Tree;
use crate::violation::Violation;
use std::collections::{BTreeMap, BTreeSet};

/// Most files of a cycle of imports.
pub(crate) const CYCLE_MAX: usize = 6;

/// The layers of a crate from the bottom up, by the first part of a module's path.
type Layers = &'static [&'static [&'static str]];

/// Crates with layers.
const LAYERED: &[(&str, Layers)] = &[(
    "ssd",
    &[
        &["mutant"],
        &["limits", "config", "command", "namespace"],
        &["media"],
        &["log"],
        &["index"],
        &["ftl"],
        &["engine"],
        &["nvme"],
    ],
)];

/// Finds upward imports, modules without a layer, and long cycles.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    check_against(tree, LAYERED)
}

fn check_against(tree: &Tree, layered: &[(&str, Layers)]) -> Vec<Violation> {
    let mut found = Vec::new();
    for room in rooms_of(tree) {
        let imports = imports_of(tree, &room);
        if let Some((_, layers)) = layered.iter().find(|(name, _)| *name == room) {
            found.extend(upward(&room, layers, &imports));
        }
        found.extend(cycles_of(&imports).into_iter().filter(|cycle| cycle.len() > CYCLE_MAX).map(|cycle| {
            let names: Vec<String> = cycle.iter().map(|module| module.join("/")).collect();
            violation(
                &room,
                &cycle[0],
                format!("{} files import each other: {}", cycle.len(), names.join(", ")),
            )
        }));
    }
    found
}

/// Returns the crates of the tree.
pub(crate) fn rooms_of(tree: &Tree) -> BTreeSet<String> {
    let rooms = tree.rust().filter_map(|(path, _)| path.strip_prefix("crates/")?.split_once("/src/"));
    rooms.map(|(room, _)| room.to_owned()).collect()
}

fn upward(room: &str, layers: Layers, imports: &CrateImports) -> Vec<Violation> {
    let layer_of = |module: &ModulePath| {
        let first = module.first()?;
        layers.iter().position(|layer| layer.contains(&first.as_str()))
    };
    let mut found = Vec::new();
    for (from, targets) in imports.edges.iter().filter(|(from, _)| !from.is_empty()) {
        let Some(layer) = layer_of(from) else {
            found.push(violation(room, from, "stands in no layer of xtask/src/checks/layers.rs".to_owned()));
            continue;
        };
        for to in targets {
            if layer_of(to).is_none_or(|other| other > layer) {
                found.push(violation(room, from, format!("imports upwards from {}", to.join("/"))));
            }
        }
    }
    found
}

/// Returns the sets of modules that import each other, directly or through one another, largest first.
pub(crate) fn cycles_of(imports: &CrateImports) -> Vec<Vec<ModulePath>> {
    let reach: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> =
        imports.edges.keys().map(|from| (from, reachable(imports, from))).collect();
    let mut seen: BTreeSet<&ModulePath> = BTreeSet::new();
    let mut cycles = Vec::new();
    for (from, targets) in &reach {
        if !seen.contains(from) && targets.contains(from) {
            let cycle: Vec<&ModulePath> = targets
                .iter()
                .filter(|to| reach.get(*to).is_some_and(|back| back.contains(from)))
                .copied()
                .collect();
            seen.extend(&cycle);
            cycles.push(cycle.into_iter().cloned().collect::<Vec<_>>());
        }
    }
    cycles.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
    cycles
}

fn reachable<'a>(imports: &'a CrateImports, from: &ModulePath) -> BTreeSet<&'a ModulePath> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&ModulePath> = imports.edges.get(from).into_iter().flatten().collect();
    while let Some(module) = open.pop() {
        if found.insert(module) {
            open.extend(imports.edges.get(module).into_iter().flatten());
        }
    }
    found
}

fn violation(room: &str, module: &ModulePath, what: String) -> Violation {
    let file = if module.is_empty() { "lib".to_owned() } else { module.join("/") };
    Violation {
        path: format!("crates/{room}/src/{file}.rs"),
        line: 1,
        what,
        why: "a layer that knows the one above cannot be read or changed without it",
        remedy: "move the shared type down to the layer that owns it, or pass a value or a trait",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[(&str, Layers)] = &[("a", &[&["low"], &["high"]])];

    fn whats(files: &[(&str, &str)]) -> Vec<String> {
        check_against(&Tree::of(files), TWO).into_iter().map(|violation| violation.what).collect()
    }

    #[test]
    fn an_upward_import_is_found_and_a_downward_one_is_not() {
        let found = whats(&[
            ("crates/a/src/lib.rs", "mod low;\nmod high;\n"),
            ("crates/a/src/low.rs", "use crate::high::Top;\n"),
            ("crates/a/src/high.rs", "use crate::low::Bottom;\npub struct Top;\n"),
        ]);
        assert_eq!(found, ["imports upwards from high"]);
    }

    #[test]
    fn a_module_without_a_layer_is_found() {
        let found =
            whats(&[("crates/a/src/lib.rs", "mod attic;\n"), ("crates/a/src/attic.rs", "fn f() {}\n")]);
        assert_eq!(found, ["stands in no layer of xtask/src/checks/layers.rs"]);
    }

    #[test]
    fn a_ring_of_seven_files_is_found_and_one_of_six_is_not() {
        let ring = |files: usize| -> Vec<(String, String)> {
            (0..files)
                .map(|n| (format!("crates/b/src/m{n}.rs"), format!("use crate::m{}::X;\n", (n + 1) % files)))
                .collect()
        };
        let count = |files: usize| {
            let ring = ring(files);
            let borrowed: Vec<(&str, &str)> = ring.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            check(&Tree::of(&borrowed)).len()
        };
        assert_eq!((count(6), count(7)), (0, 1));
    }
}
