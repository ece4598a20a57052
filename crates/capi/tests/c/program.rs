//! A program in C: compiled by gcc against a library of this build, and run.
//!
//! In: a source file, and how to link. Out: nothing, or the compiler's or the program's words. Invariant: warnings are
//! errors, and a program that hangs is ended.

use std::path::{Path, PathBuf};
use std::process::Command;

/// How a program gets the library.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Link {
    /// From the archive.
    Static,
    /// From the shared object, when it starts.
    Shared,
}

/// Seconds after which a program that has not ended is ended.
const SECONDS_MAX: &str = "120";

/// What an archive that holds the Rust library needs beside itself: `rustc --print native-static-libs`.
const SYSTEM: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

/// Where cargo put the libraries: beside the test that is running.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// Compiles `source` against library `name` and runs it: what it said, as an error if it failed.
pub(crate) fn run(
    source: &Path,
    include: &Path,
    name: &str,
    link: Link,
    environment: &[(&str, &str)],
) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let libraries = libraries();
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-pthread"]);
    gcc.arg("-I").arg(include).arg(source).arg("-o").arg(&program);
    match link {
        Link::Static => gcc.arg(libraries.join(format!("lib{name}.a"))).args(SYSTEM),
        Link::Shared => gcc.arg("-L").arg(&libraries).arg(format!("-l{name}")),
    };
    let compiled = gcc.output().unwrap();
    assert!(compiled.status.success(), "{gcc:?}\n{}", String::from_utf8_lossy(&compiled.stderr));
    let mut run = Command::new("timeout");
    run.arg(SECONDS_MAX).arg(&program).env("LD_LIBRARY_PATH", &libraries);
    let ran = run.envs(environment.iter().copied()).output().unwrap();
    let said = [ran.stdout, ran.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if ran.status.success() { Ok(said) } else { Err(format!("{}: {said}", ran.status)) }
}
