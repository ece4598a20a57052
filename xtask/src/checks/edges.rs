//! A crate depends only on rooms below its own, the way a read travels.

use crate::tree::Tree;
use crate::violation::Violation;

/// The rooms from the bottom up. Rooms on one line do not know each other.
const FLOORS: &[&[&str]] = &[
    &["host"],
    &["dma", "baselines"],
    &["nvme"],
    &["io"],
    &["ssd", "volume"],
    &["headwater"],
    &["frontend"],
    &["sim"],
    &["lab"],
    &["node", "capi", "spdk-dma", "preload", "python"],
    // Fixtures; see FIXTURES.
    &["testkit"],
    &["fuzz-bodies"],
];

/// Crates of fixtures that any room may name in `[dev-dependencies]`, and nowhere else.
const FIXTURES: &[&str] = &["testkit"];

/// Crates that only the listed crates may name. A test that needs the simulator lives in it.
const USERS: &[(&str, &[&str])] = &[("sim", &["lab", "node"]), ("baselines", &["lab"])];

/// Finds dependencies that point upward or sideways, and rooms that stand on no floor.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.files() {
        let Some(room) = path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        let Some(floor) = floor_of(room) else {
            found.push(Violation {
                path: path.to_owned(),
                line: 1,
                what: format!("the room `{room}` stands on no floor"),
                why: "every crate has a place in the order a read travels",
                remedy: "add it to FLOORS in xtask/src/checks/edges.rs",
            });
            continue;
        };
        for (line, other, dependencies) in edges_of(text) {
            if FIXTURES.contains(&other) {
                if dependencies != Dependencies::OfTests && room != "fuzz-bodies" {
                    found.push(violation(path, line, &format!("{room} ships the fixtures of {other}")));
                }
                continue;
            }
            if floor_of(other).is_none_or(|below| below >= floor) {
                found.push(violation(path, line, &format!("{room} depends on {other}")));
            } else if USERS.iter().any(|(named, users)| other == *named && !users.contains(&room)) {
                found.push(violation(path, line, &format!("{room} names {other}")));
            }
        }
    }
    found
}

fn floor_of(room: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&room))
}

/// Which build a dependency belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dependencies {
    OfTheCrate,
    OfTests,
}

impl Dependencies {
    /// Returns the dependencies that a manifest's table names, if it is such a table.
    fn of_table(table: &str) -> Option<Self> {
        if !table.contains("dependencies") {
            None
        } else if table.contains("dev-dependencies") {
            Some(Self::OfTests)
        } else {
            Some(Self::OfTheCrate)
        }
    }
}

/// Returns the rooms that a manifest names in any of its dependency tables, with the line and the table of each.
fn edges_of(manifest: &str) -> Vec<(usize, &str, Dependencies)> {
    let mut current = None;
    let mut edges = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if let Some(table) = line.strip_prefix('[') {
            let table = table.trim_end_matches(']');
            current = Dependencies::of_table(table);
            // [dependencies.headwater-sim] is a table of its own.
            if let Some((_, name)) = table.split_once("dependencies.")
                && let Some(room) = name.strip_prefix("headwater-")
                && let Some(dependencies) = current
            {
                edges.push((index + 1, room, dependencies));
            }
        } else if let Some(dependencies) = current
            && let Some(rest) = line.strip_prefix("headwater-")
        {
            let end = rest.find(['.', ' ', '=']).unwrap_or(rest.len());
            edges.push((index + 1, &rest[..end], dependencies));
        }
    }
    edges
}

fn violation(path: &str, line: usize, what: &str) -> Violation {
    Violation {
        path: path.to_owned(),
        line,
        what: what.to_owned(),
        why: "a lower room never names a higher one, nor its neighbour",
        remedy: "take what is needed from above as a trait or a value; tests that need the simulator live in crates/sim",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_go_down_and_only_down() {
        let tree = Tree::of(&[
            ("crates/nvme/Cargo.toml", "[dependencies]\nheadwater-dma.workspace = true\n"),
            ("crates/dma/Cargo.toml", "[dependencies]\nheadwater-nvme = { path = \"../nvme\" }\n"),
            ("crates/volume/Cargo.toml", "[dependencies.headwater-ssd]\npath = \"x\"\n"),
        ]);
        let found = check(&tree);
        let whats: Vec<&str> = found.iter().map(|violation| violation.what.as_str()).collect();
        assert_eq!(whats, ["dma depends on nvme", "volume depends on ssd"]);
        assert_eq!(found[0].line, 2);
    }

    #[test]
    fn tests_are_no_excuse_to_look_up() {
        let tree = Tree::of(&[(
            "crates/ssd/Cargo.toml",
            "[package]\nname = \"headwater-ssd\"\n[dev-dependencies]\nheadwater-sim.workspace = true\n",
        )]);
        assert_eq!(check(&tree)[0].line, 4);
    }

    #[test]
    fn only_the_lab_and_the_node_name_the_simulator() {
        let manifest = "[dependencies]\nheadwater-sim.workspace = true\n";
        let tree = Tree::of(&[
            ("crates/lab/Cargo.toml", manifest),
            ("crates/node/Cargo.toml", manifest),
            ("crates/capi/Cargo.toml", manifest),
        ]);
        let found = check(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "crates/capi/Cargo.toml");
    }

    #[test]
    fn only_the_lab_names_the_baseline_allocators() {
        let manifest = "[dependencies]\nheadwater-baselines.workspace = true\n";
        let tree = Tree::of(&[
            ("crates/lab/Cargo.toml", manifest),
            ("crates/node/Cargo.toml", manifest),
            ("crates/dma/Cargo.toml", manifest),
            ("crates/baselines/Cargo.toml", "[dependencies]\nheadwater-host.workspace = true\n"),
        ]);
        let whats: Vec<String> = check(&tree).into_iter().map(|violation| violation.what).collect();
        assert_eq!(whats, ["dma depends on baselines", "node names baselines"]);
    }

    #[test]
    fn fixtures_are_for_tests_only() {
        let manifest = "[dependencies]\nheadwater-testkit.workspace = true\n[dev-dependencies]\nheadwater-testkit.workspace = true\n";
        let found = check(&Tree::of(&[("crates/nvme/Cargo.toml", manifest)]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 2);
    }

    #[test]
    fn a_new_room_must_find_its_floor() {
        let tree = Tree::of(&[("crates/attic/Cargo.toml", "[dependencies]\n")]);
        assert_eq!(check(&tree).len(), 1);
    }
}
