//! The C examples, against both libraries of this build.
//!
//! Input: `examples/c`. Output: programs that ran to their end. Each checks what it shows and exits with a failure if a
//! check fails.
#![expect(clippy::unwrap_used, reason = "a test that cannot compile or run a program fails")]

use headwater_testkit::c_program::{LinkMode, run};
use headwater_testkit::software_gpu::SoftwareGpu;
use std::path::Path;

fn run_linked_both_ways(name: &str, last_line: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    for link in [LinkMode::Static, LinkMode::Shared] {
        let source = folder.join("examples/c").join(name);
        let scratch = tempfile::tempdir().unwrap();
        let environment = [("HEADWATER_EXAMPLE_FOLDER", scratch.path().to_str().unwrap())];
        let output = run(&source, &folder.join("include"), "headwater_capi", link, &environment).unwrap();
        assert!(output.contains(last_line), "{name} {link:?}: {output}");
    }
}

#[test]
fn gpu_of_a_mover_moves_registered_memory_and_nothing_else() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    for faults in ["", "hang 3", "async 5 700", "fail cuMemcpyDtoHAsync 4 1"] {
        let gpu = SoftwareGpu::with_faults(faults);
        let library = gpu.library();
        let kind = if faults.is_empty() { "works" } else { "fails" };
        let environment = [("HEADWATER_LIBCUDA", library.to_str().unwrap()), ("SOFTWARE_GPU", kind)];
        let source = folder.join("examples/c/gpu.c");
        let output = run(&source, &folder.join("include"), "headwater_capi", LinkMode::Shared, &environment);
        let output = output.unwrap();
        assert!(output.contains("every job ended once"), "{faults}: {output}");
        assert_eq!(gpu.misuses(), [""; 0], "{faults}");
        assert!(gpu.transfers()[1] > 0, "{faults}");
    }
}

#[test]
fn a_pool_is_opened_used_and_closed_from_c() {
    run_linked_both_ways("pool.c", "a pool opened, used and closed");
}

#[test]
fn double_foreign_and_interior_frees_and_every_other_misuse_return_their_code() {
    run_linked_both_ways("misuse.c", "every misuse returned its code");
}

#[test]
fn segments_are_iovecs_and_are_freed_all_or_none() {
    run_linked_both_ways("scatter.c", "50 pieces written to a file and read back");
}

#[test]
fn buffer_of_one_thread_is_freed_once_by_another() {
    run_linked_both_ways("threads.c", "each buffer was freed once");
}

#[test]
fn forked_child_gets_a_code_and_parent_keeps_its_memory() {
    run_linked_both_ways("fork.c", "the child got HW_CODE_FORKED, and the parent kept its memory");
}

#[test]
fn allocate_and_free_pairs_finish() {
    run_linked_both_ways("pairs.c", "1000 pairs of 4096 bytes");
}

#[test]
fn device_calls_work_and_their_misuse_returns_codes() {
    run_linked_both_ways("device.c", "every device call returned its code");
}

#[test]
fn threads_share_a_cache_whose_pages_reach_the_device_without_a_call() {
    run_linked_both_ways("cache.c", "four threads shared a cache");
}

#[test]
fn device_memory_comes_in_tiers_and_waits_in_order_with_timeout_and_cancel() {
    run_linked_both_ways("memory.c", "memory of every tier waited in order");
}

#[test]
fn a_mover_does_jobs_of_threads_and_every_misuse_returns_its_code() {
    run_linked_both_ways("mover.c", "every job moved its bytes, and every misuse returned its code");
}
