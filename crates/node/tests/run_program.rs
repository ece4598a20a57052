//! `headwater run --mover`: the program becomes the process, with the library; programs that would not load it are refused.
//!
//! The library here is a stand-in that says that it was loaded; the real one is tested in its own crate, and both together in
//! the boot `preload-dax`. gcc must be installed.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]
#![expect(clippy::print_stdout, reason = "a test says why it is skipped")]
#![cfg(target_arch = "x86_64")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const LIBRARY: &str = r#"
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>
void *memcpy(void *to, const void *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at++)
        ((volatile char *)to)[at] = ((const volatile char *)from)[at];
    return to;
}
__attribute__((constructor)) static void start(void)
{
    if (getenv("SAY_LOADED") && write(1, "loaded\n", 7) != 7)
        abort();
}
"#;
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments)
{
    for (int at = 0; at < count; at++)
        puts(arguments[at]);
    fprintf(stderr, "preload=%s\n", getenv("LD_PRELOAD"));
    return count + 40;
}
"#;

/// A folder with a library and a program.
struct RunFolder(tempfile::TempDir);

impl RunFolder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.compile(LIBRARY, "lib.so", &["-shared", "-fPIC", "-fno-builtin"]);
        folder.compile(PROGRAM, "program", &[]);
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn compile(&self, source: &str, name: &str, arguments: &[&str]) {
        let text = self.path(&format!("{name}.c"));
        std::fs::write(&text, source).unwrap();
        let mut gcc = Command::new("gcc");
        gcc.arg(&text).args(arguments).arg("-o").arg(self.path(name));
        let compiled = gcc.output().expect("gcc compiles the programs of this test: install gcc");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    }

    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        let mut run = Command::new(env!("CARGO_BIN_EXE_headwater"));
        run.args(["run", "--mover", "--library"])
            .arg(self.path("lib.so"))
            .arg("--")
            .arg(program)
            .args(arguments);
        run.env("SAY_LOADED", "1").env_remove("LD_PRELOAD").output().unwrap()
    }

    fn refused(&self, program: &Path, reason: &str) {
        let output = self.run(program, &[]);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{complaint}");
        assert!(complaint.contains(reason) && output.stdout.is_empty(), "{complaint}");
    }
}

#[test]
fn program_runs_with_the_library_its_arguments_and_its_exit_code() {
    let folder = RunFolder::new();
    let program = folder.path("program");
    let output = folder.run(&program, &["--library", "two words"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, format!("loaded\n{}\n--library\ntwo words\n", program.display()));
    assert_eq!(output.status.code(), Some(43));
}

#[test]
fn library_is_added_before_those_that_are_preloaded_already() {
    let folder = RunFolder::new();
    folder.compile("int other;", "other.so", &["-shared", "-fPIC"]);
    let mut run = Command::new(env!("CARGO_BIN_EXE_headwater"));
    run.args(["run", "--mover", "--"]).arg(folder.path("program"));
    run.env("HEADWATER_PRELOAD_LIBRARY", folder.path("lib.so")).env("LD_PRELOAD", folder.path("other.so"));
    let output = run.output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    let real = folder.path("lib.so").canonicalize().unwrap();
    let expected = format!("preload={} {}\n", real.display(), folder.path("other.so").display());
    assert_eq!((output.status.code(), complaint), (Some(41), expected));
}

#[test]
fn a_signal_that_ends_the_program_is_seen() {
    use std::os::unix::process::ExitStatusExt as _;
    let folder = RunFolder::new();
    let script = folder.script("killed", "#!/bin/sh\nkill -9 $$\n");
    assert_eq!(folder.run(&script, &[]).status.signal(), Some(9));
}

#[test]
fn interpreters_of_scripts_load_the_library() {
    let folder = RunFolder::new();
    for first in ["#!/bin/sh", "#! /usr/bin/env sh", "#!/usr/bin/env -S sh -e"] {
        let script = folder.script("script", &format!("{first}\nexit 7\n"));
        let output = folder.run(&script, &[]);
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        assert!(output.stdout.starts_with(b"loaded\n"), "{output:?}");
    }
    let circle = folder.path("circle");
    folder.script("circle", &format!("#!{}\n", circle.display()));
    folder.refused(&circle, "interpreters are scripts");
}

#[test]
fn programs_that_would_not_load_the_library_are_refused() {
    let folder = RunFolder::new();
    folder.compile(PROGRAM, "static", &["-static"]);
    folder.refused(&folder.path("static"), "linked statically");
    let script = folder.script("script", &format!("#!{}\n", folder.path("static").display()));
    folder.refused(&script, "linked statically");
    folder.compile(PROGRAM, "loader", &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]);
    folder.refused(&folder.path("loader"), "GNU C library");
    let mut other = std::fs::read(folder.path("program")).unwrap();
    other[18] = 183; // EM_AARCH64
    folder.refused(&folder.script("arm", ""), "not a program for 64-bit machines");
    std::fs::write(folder.path("arm"), &other).unwrap();
    folder.refused(&folder.path("arm"), "another machine");
    folder.refused(&folder.path("absent"), "was not found");
    folder.refused(Path::new("no-such-program-anywhere"), "was not found in PATH");
    std::fs::set_permissions(folder.path("program"), std::fs::Permissions::from_mode(0o644)).unwrap();
    folder.refused(&folder.path("program"), "was not found");
}

// Root alone may make a program of another user.
#[test]
fn programs_with_other_rights_are_refused() {
    let folder = RunFolder::new();
    let program = folder.path("program");
    let given = Command::new("chown").arg("65534:65534").arg(&program).output().unwrap();
    if !given.status.success() {
        println!("skipped: this user cannot give a file to another one");
        return;
    }
    for mode in [0o4755, 0o2755] {
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        folder.refused(&program, "set-uid");
    }
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(folder.run(&program, &[]).status.code(), Some(41));
}

#[test]
fn a_missing_or_wrong_library_is_named() {
    let folder = RunFolder::new();
    let run = |library: &Path| {
        let mut run = Command::new(env!("CARGO_BIN_EXE_headwater"));
        run.args(["run", "--mover", "--library"]).arg(library).arg("--").arg(folder.path("program"));
        let output = run.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let absent = run(&folder.path("absent.so"));
    assert!(absent.contains("absent.so") && absent.contains("cargo build"), "{absent}");
    assert!(run(&folder.path("lib.so.c")).contains("is not the preload library"));
    folder.compile("int other;", "other.so", &["-shared", "-fPIC"]);
    assert!(run(&folder.path("other.so")).contains("no function `memcpy`"));
    std::fs::copy(folder.path("lib.so"), folder.path("two words.so")).unwrap();
    assert!(run(&folder.path("two words.so")).contains("LD_PRELOAD cannot hold"));
}

#[test]
fn the_mode_and_the_program_must_be_named() {
    for arguments in [&["run"][..], &["run", "--mover"], &["run", "--", "true"], &["run", "--mover", "true"]]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_headwater")).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
