//! Runs a C program written to SPDK's names, against both libraries of this build.
//!
//! Input: `examples/c/spdk_names.c`. Output: its output, and what the library printed about its wrong frees.

use headwater_testkit::c_program::{LinkMode, run};
use std::path::Path;

fn spdk_names(link: LinkMode, environment: &[(&str, &str)]) -> Result<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = folder.join("examples/c/spdk_names.c");
    run(&source, &folder.join("include"), "headwater_spdk_dma", link, environment)
}

const SMALL: (&str, &str) = ("HEADWATER_POOL_CAP", "8M");

#[test]
fn spdk_program_runs_and_its_wrong_frees_are_reported() {
    for link in [LinkMode::Static, LinkMode::Shared] {
        let output = spdk_names(link, &[SMALL, ("HEADWATER_POOL_CHUNK", "2M")]).unwrap();
        assert!(output.contains("SPDK's names work"), "{output}");
        for wrong in ["points into a buffer", "not of this memory", "freed before"] {
            assert_eq!(output.matches(wrong).count(), 1, "{wrong}: {output}");
        }
    }
}

#[test]
fn wrong_free_aborts_if_configured() {
    let output = spdk_names(LinkMode::Static, &[SMALL, ("HEADWATER_POOL_MISUSE", "abort")]).unwrap_err();
    assert!(output.contains("points into a buffer") && !output.contains("SPDK's names work"), "{output}");
}

#[test]
fn invalid_environment_is_reported_and_gives_no_memory() {
    let output = spdk_names(LinkMode::Shared, &[("HEADWATER_POOL_CAP", "much")]).unwrap_err();
    assert_eq!(output.matches("HEADWATER_POOL_CAP is \"much\"").count(), 1, "{output}");
}

#[test]
fn header_declares_exactly_the_exported_functions() {
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
