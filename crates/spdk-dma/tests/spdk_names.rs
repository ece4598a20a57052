//! A program in C that was written to SPDK's names, against both libraries of this build.
//!
//! In: `examples/c/spdk_names.c`. Out: its words, and what the library said about its wrong frees.
#![expect(clippy::unwrap_used, reason = "a test that cannot compile or run a program fails")]

use program::{Link, run};
use std::path::Path;

#[path = "../../capi/tests/c/program.rs"]
mod program;

fn spdk_names(link: Link, environment: &[(&str, &str)]) -> Result<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = folder.join("examples/c/spdk_names.c");
    run(&source, &folder.join("include"), "headwater_spdk_dma", link, environment)
}

const SMALL: (&str, &str) = ("HEADWATER_POOL_CAP", "8M");

#[test]
fn programs_written_to_spdk_run_and_their_wrong_frees_are_told() {
    for link in [Link::Static, Link::Shared] {
        let said = spdk_names(link, &[SMALL, ("HEADWATER_POOL_CHUNK", "2M")]).unwrap();
        assert!(said.contains("SPDK's names work"), "{said}");
        for wrong in ["points into a buffer", "not of this memory", "freed before"] {
            assert_eq!(said.matches(wrong).count(), 1, "{wrong}: {said}");
        }
    }
}

#[test]
fn a_wrong_free_ends_the_program_that_asked_for_it() {
    let said = spdk_names(Link::Static, &[SMALL, ("HEADWATER_POOL_MISUSE", "abort")]).unwrap_err();
    assert!(said.contains("points into a buffer") && !said.contains("SPDK's names work"), "{said}");
}

#[test]
fn an_environment_that_makes_no_sense_is_told_and_gives_no_memory() {
    let said = spdk_names(Link::Shared, &[("HEADWATER_POOL_CAP", "much")]).unwrap_err();
    assert_eq!(said.matches("HEADWATER_POOL_CAP is \"much\"").count(), 1, "{said}");
}

#[test]
fn the_header_declares_what_the_library_exports_and_nothing_else() {
    let names = |text: &str, before: &str| {
        let lines = text.lines().filter(|line| line.contains(before) && line.contains("spdk_"));
        let name = |line: &str| {
            let start = line.find("spdk_").unwrap();
            line[start..].split('(').next().unwrap().to_owned()
        };
        let mut names: Vec<String> = lines.map(name).collect();
        names.sort();
        names
    };
    let declared = names(include_str!("../include/headwater/spdk_dma.h"), "void ");
    let source = [include_str!("../src/allocate.rs"), include_str!("../src/release.rs")].concat();
    assert_eq!(declared, names(&source, "pub extern \"C\" fn"));
    assert_eq!(declared.len(), 10);
}
