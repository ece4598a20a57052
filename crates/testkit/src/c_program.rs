//! A C program: compiled by gcc against a library of this build, and run.
//!
//! Input: a source file, and how to link. Output: the output of the program, as an error if it fails. Invariant:
//! warnings are errors, and a program that hangs is killed.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The linkage of a program against the library.
#[derive(Clone, Copy, Debug)]
pub enum LinkMode {
    /// Against the archive.
    Static,
    /// Against the shared object, loaded at start.
    Shared,
}

/// Seconds after which a running program is killed.
const SECONDS_MAX: &str = "120";

/// The system libraries that the archive needs: `rustc --print native-static-libs`.
const SYSTEM_LIBRARIES: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

/// Returns the folder of the built libraries: that of the running test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// Compiles `source` against library `name`, runs it and returns its output.
///
/// # Errors
/// The exit status and the output of a program that failed.
///
/// # Panics
/// gcc is missing or refuses the program.
pub fn run(
    source: &Path,
    include: &Path,
    name: &str,
    link: LinkMode,
    environment: &[(&str, &str)],
) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let libraries = libraries();
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-pthread"]);
    gcc.arg("-I").arg(include).arg(source).arg("-o").arg(&program);
    match link {
        LinkMode::Static => gcc.arg(libraries.join(format!("lib{name}.a"))).args(SYSTEM_LIBRARIES),
        LinkMode::Shared => gcc.arg("-L").arg(&libraries).arg(format!("-l{name}")),
    };
    let compiled = gcc.output().unwrap();
    assert!(compiled.status.success(), "{gcc:?}\n{}", String::from_utf8_lossy(&compiled.stderr));
    let mut run = Command::new("timeout");
    run.arg(SECONDS_MAX).arg(&program).env("LD_LIBRARY_PATH", &libraries);
    let ran = run.envs(environment.iter().copied()).output().unwrap();
    let output = [ran.stdout, ran.stderr].concat();
    let output = String::from_utf8_lossy(&output).into_owned();
    if ran.status.success() { Ok(output) } else { Err(format!("{}: {output}", ran.status)) }
}
