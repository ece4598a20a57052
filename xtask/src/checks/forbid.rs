//! Every crate root forbids unsafe code, except in the rooms that exist for it.

use crate::tree::Tree;
use crate::violation::Violation;

/// Crates that may write `unsafe`: the room for it, the three borders to C, and the third-party allocators of the lab.
const UNSAFE_ROOMS: &[&str] = &["host", "capi", "spdk-dma", "preload", "baselines"];

/// Finds crate roots that leave the door open.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.rust() {
        let Some(room) = room_of_root(path) else { continue };
        let has = |wanted: &str| text.lines().any(|line| line.trim() == wanted);
        if !UNSAFE_ROOMS.contains(&room) {
            if !has("#![forbid(unsafe_code)]") {
                found.push(Violation {
                    path: path.to_owned(),
                    line: 1,
                    what: "the crate root does not say `#![forbid(unsafe_code)]`".to_owned(),
                    why: "unsafe lives in host and at the borders to C, where it is argued",
                    remedy: "add the line; move what needs unsafe into crates/host behind a safe type",
                });
            }
        } else if !text.contains("#![expect(") || !text.contains("unsafe_code") {
            found.push(Violation {
                path: path.to_owned(),
                line: 1,
                what: "a room for unsafe does not say so".to_owned(),
                why: "the exception is written where a reader enters",
                remedy: "add `#![expect(unsafe_code, reason = \"...\")]`",
            });
        }
    }
    found
}

/// Returns the crate whose root this file is.
fn room_of_root(path: &str) -> Option<&str> {
    let mut parts = path.split('/');
    let room = match parts.next()? {
        "crates" => parts.next()?,
        "xtask" => "xtask",
        _ => return None,
    };
    let rest: Vec<&str> = parts.collect();
    matches!(rest.as_slice(), ["src", "lib.rs" | "main.rs"] | ["src", "bin", _]).then_some(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_root_but_the_rooms_for_unsafe_forbids_it() {
        let tree = Tree::of(&[
            ("crates/dma/src/lib.rs", "//! x\n#![forbid(unsafe_code)]\n"),
            ("crates/dma/src/frame.rs", "//! x\n"),
            ("crates/io/src/lib.rs", "//! x\n"),
            ("crates/node/src/bin/other.rs", "//! x\n// #![forbid(unsafe_code)]\n"),
            ("xtask/src/main.rs", "//! x\n"),
        ]);
        let paths: Vec<String> = check(&tree).into_iter().map(|violation| violation.path).collect();
        assert_eq!(paths, ["crates/io/src/lib.rs", "crates/node/src/bin/other.rs", "xtask/src/main.rs"]);
    }

    #[test]
    fn the_room_for_unsafe_says_that_it_is_one() {
        let open = Tree::of(&[("crates/host/src/lib.rs", "//! x\n")]);
        assert_eq!(check(&open).len(), 1);
        let said = Tree::of(&[(
            "crates/host/src/lib.rs",
            "//! x\n#![expect(\n    unsafe_code,\n    reason = \"y\"\n)]\n",
        )]);
        assert!(check(&said).is_empty());
    }
}
