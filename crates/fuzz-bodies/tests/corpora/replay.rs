//! Replay of a fuzz body over its corpus in an ordinary test, so that fixed bugs stay fixed.
//!
//! Each test file in this folder passes a body and the name of its corpus.

use std::fs;
use std::path::{Path, PathBuf};

/// Runs `body` over every file of `fuzz/corpus/TARGET`, and over variants of each: cut short, or with one bit flipped.
///
/// # Panics
/// If the corpus is empty or cannot be read, and whenever the body panics.
#[expect(
    clippy::print_stderr,
    reason = "shown only when the test fails: the last line names the failing input"
)]
pub(crate) fn replay(target: &str, body: impl Fn(&[u8])) {
    let folder = corpus(target);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a corpus can be listed").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        let seed = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        eprintln!("{}", file.display());
        body(&seed);
        for length in (0..seed.len()).step_by(1 + seed.len() / 64) {
            eprintln!("{} cut to {length}", file.display());
            body(&seed[..length]);
        }
        for bit in (0..seed.len() * 8).step_by(1 + seed.len() / 16) {
            let mut damaged = seed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            eprintln!("{} with bit {bit} flipped", file.display());
            body(&damaged);
        }
    }
}

/// Asserts that a file of the corpus holds what an encoder writes.
///
/// # Panics
/// If it holds other bytes, or cannot be read.
pub(crate) fn assert_seed(target: &str, name: &str, written: &[u8]) {
    let path = corpus(target).join(name);
    let seed = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(seed == written, "{} is not what the encoder writes now", path.display());
}

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}
