//! The examples in C, against both libraries of this build.
//!
//! In: `examples/c`. Out: programs that ran to their end. Each checks what it shows and ends with a failure if it is not so.
#![expect(clippy::unwrap_used, reason = "a test that cannot compile or run a program fails")]

use program::{Link, run};
use std::path::Path;

#[path = "c/program.rs"]
mod program;

fn both(name: &str, last_words: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    for link in [Link::Static, Link::Shared] {
        let source = folder.join("examples/c").join(name);
        let scratch = tempfile::tempdir().unwrap();
        let environment = [("HEADWATER_EXAMPLE_FOLDER", scratch.path().to_str().unwrap())];
        let said = run(&source, &folder.join("include"), "headwater_capi", link, &environment).unwrap();
        assert!(said.contains(last_words), "{name} {link:?}: {said}");
    }
}

#[test]
fn a_pool_is_opened_used_and_closed_from_c() {
    both("pool.c", "a pool opened, used and closed");
}

#[test]
fn double_foreign_and_interior_frees_and_every_other_misuse_have_their_code() {
    both("misuse.c", "every misuse had its code");
}

#[test]
fn segments_are_iovecs_and_are_freed_all_or_none() {
    both("scatter.c", "50 pieces went through a file and came back");
}

#[test]
fn what_one_thread_allocates_another_frees_once() {
    both("threads.c", "each buffer was freed once");
}

#[test]
fn a_child_gets_a_code_and_its_parent_keeps_its_memory() {
    both("fork.c", "the child was told, and the parent went on");
}

#[test]
fn pairs_of_any_size_come_to_an_end() {
    both("pairs.c", "1000 pairs of 4096 bytes");
}

#[test]
fn the_family_of_calls_of_nvmedirect_works_and_its_misuse_has_codes() {
    both("device.c", "every call of the family was made");
}
