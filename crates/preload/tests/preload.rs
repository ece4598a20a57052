//! C programs under the preload library of this build.
//!
//! Input: the sources in `tests/c`. Output: programs that ran to their end, and the library's report of what it did for them.
//! Each program checks what it does and exits with a failure if a check fails. gcc must be installed.
#![expect(clippy::unwrap_used, reason = "a test that cannot compile or run a program fails")]
#![expect(clippy::print_stderr, reason = "a skipped test prints the reason")]
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};

/// Seconds after which a running program is killed.
const SECONDS_MAX: &str = "180";

/// Returns the library, which lies beside the running test.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("libheadwater_preload.so")
}

/// A compiled program in a folder of its own.
struct CProgram {
    folder: tempfile::TempDir,
    libraries: Vec<PathBuf>,
    settings: Vec<(&'static str, &'static str)>,
}

impl CProgram {
    fn compile(name: &str, arguments: &[&str]) -> Self {
        let program =
            Self { folder: tempfile::tempdir().unwrap(), libraries: vec![library()], settings: Vec::new() };
        let target = program.path("program");
        compile(&[&format!("{name}.c")], &target, &[&["-rdynamic", "-pthread"], arguments].concat());
        program
    }

    fn with(mut self, variable: &'static str, value: &'static str) -> Self {
        self.settings.push((variable, value));
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn output(&self, arguments: &[&str]) -> Output {
        let mut run = Command::new("timeout");
        let libraries: Vec<&str> = self.libraries.iter().map(|path| path.to_str().unwrap()).collect();
        run.arg(SECONDS_MAX).arg("env").arg(format!("LD_PRELOAD={}", libraries.join(" ")));
        run.arg(format!("HEADWATER_PRELOAD_REPORT={}", self.path("report").display()));
        run.args(self.settings.iter().map(|(name, value)| format!("{name}={value}")));
        run.arg(self.path("program")).args(arguments).current_dir(self.folder.path());
        run.output().unwrap()
    }

    /// Runs the program to its end, which prints `last_line`. Returns the counters of the report, summed over the processes
    /// that wrote one.
    fn run(&self, arguments: &[&str], last_line: &str) -> BTreeMap<String, u64> {
        let output = self.output(arguments);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{arguments:?}: {}: {text}", output.status);
        assert!(text.contains(last_line), "{text}");
        let mut counters = BTreeMap::new();
        for line in std::fs::read_to_string(self.path("report")).unwrap().lines() {
            let (name, value) = line.split_once(' ').unwrap();
            *counters.entry(name.to_owned()).or_insert(0) += value.parse::<u64>().unwrap();
        }
        counters
    }
}

/// Compiles sources of `tests/c`. The compiler keeps every call of a memory function, and makes none from a loop.
fn compile(sources: &[&str], target: &Path, arguments: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-nonnull", "-Wno-array-bounds"]);
    gcc.args(["-fno-builtin", "-fno-tree-loop-distribute-patterns", "-U_FORTIFY_SOURCE"]);
    gcc.args(sources.iter().map(|source| folder.join(source))).args(arguments).arg("-o").arg(target);
    let compiled = gcc.output().expect("gcc compiles the programs of this test: install gcc");
    assert!(compiled.status.success(), "{gcc:?}\n{}", String::from_utf8_lossy(&compiled.stderr));
}

fn signal_of(status: ExitStatus) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt as _;
    // `timeout` passes a signal on as 128 + its number.
    status.signal().or_else(|| status.code().filter(|code| *code > 128).map(|code| code - 128))
}

#[test]
fn memory_functions_match_a_byte_loop() {
    let program = CProgram::compile("memory", &[]);
    let counters = program.run(&[], "memory is as a byte loop leaves it");
    assert_eq!((counters["moves"], counters["fills"], counters["compares"]), (0, 0, 0));
}

#[test]
fn relatives_of_memory_functions_match_a_byte_loop() {
    let plain = CProgram::compile("relatives", &[]);
    let counters = plain.run(&[], "relatives are as a byte loop leaves them");
    assert_eq!((counters["moves"], counters["compares"]), (0, 0));
    let long =
        plain.with("HEADWATER_PRELOAD_STREAM_BYTES", "256").with("HEADWATER_PRELOAD_COMPARE_BYTES", "256");
    std::fs::remove_file(long.path("report")).unwrap();
    let counters = long.run(&[], "relatives are as a byte loop leaves them");
    assert!(counters["moves"] > 100 && counters["compares"] > 100, "{counters:?}");
}

#[test]
fn long_memory_functions_match_a_byte_loop() {
    let program = CProgram::compile("memory", &[])
        .with("HEADWATER_PRELOAD_STREAM_BYTES", "256")
        .with("HEADWATER_PRELOAD_COMPARE_BYTES", "256");
    let counters = program.run(&[], "memory is as a byte loop leaves it");
    for name in ["moves", "moves_overlapping", "fills", "compares"] {
        assert!(counters[name] > 300, "{name}: {counters:?}");
    }
    assert!(counters["moved_bytes"] > 256 * counters["moves"], "{counters:?}");
}

/// Returns true if the kernel has the call that populates pages (Linux 5.14). Prints the reason of a skip if it does not.
fn kernel_populates() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|sign: char| !sign.is_ascii_digit()).map_while(|text| text.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let populates = version >= (5, 14);
    if !populates {
        eprintln!("skipped: Linux {} populates no pages, 5.14 and later do", release.trim());
    }
    populates
}

#[test]
fn absent_targets_get_their_pages_and_nothing_else_does() {
    if !kernel_populates() {
        return;
    }
    for stream in ["1048576", "off"] {
        let program = CProgram::compile("prefault", &[])
            .with("HEADWATER_PRELOAD_PREFAULT_BYTES", "1048576")
            .with("HEADWATER_PRELOAD_STREAM_BYTES", stream);
        let counters = program.run(&[], "absent pages became present");
        // Windows of 1 MiB: of the copy, whose first and last page are not whole, of the fill, and of the copy that ends at its
        // source.
        let pages = 1_023 + 1_024 + 1_024;
        assert_eq!(
            (counters["prefaults"], counters["prefaulted_bytes"]),
            (12, pages * 4_096),
            "{counters:?}"
        );
        assert_eq!(counters["prefaults_refused"], 1, "read-only memory: {counters:?}");
        std::fs::remove_file(program.path("report")).unwrap();
        let off = program.with("HEADWATER_PRELOAD_PREFAULT_BYTES", "off");
        let counters = off.run(&[], "absent pages became present");
        assert_eq!((counters["prefaults"], counters["prefaults_refused"]), (0, 0), "{counters:?}");
    }
}

#[test]
fn mapped_files_get_their_pages_once_for_reads_and_once_for_writes() {
    if !kernel_populates() {
        return;
    }
    let program = CProgram::compile("prefault", &[])
        .with("HEADWATER_PRELOAD_PREFAULT_BYTES", "1048576")
        .with("HEADWATER_PRELOAD_FILES", "any");
    let counters = program.run(&["file"], "absent pages became present");
    assert_eq!((counters["mapped_reads"], counters["mapped_writes"]), (2, 1), "{counters:?}");
    // 12 of memory, 8 of the buffer of the first read, and 4 units of the file for each access.
    assert_eq!((counters["prefaults"], counters["prefaults_refused"]), (12 + 8 + 2 * 4, 1), "{counters:?}");
}

#[test]
fn checked_copy_beyond_its_target_ends_the_program() {
    let program = CProgram::compile("memory", &[]);
    assert!(program.output(&["10"]).status.success());
    let output = program.output(&["11"]);
    assert_eq!(signal_of(output.status), Some(6), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("buffer overflow"), "{output:?}");
}

#[test]
fn signal_handlers_copy_read_and_write() {
    let program = CProgram::compile("signals", &[])
        .with("HEADWATER_PRELOAD_STREAM_BYTES", "4096")
        .with("HEADWATER_PRELOAD_COMPARE_BYTES", "4096")
        .with("HEADWATER_PRELOAD_FILES", "any");
    let counters = program.run(&["file"], "handlers copied what they should");
    for name in ["moves", "fills", "compares", "mapped_reads", "mapped_writes"] {
        assert!(counters[name] > 50, "{name}: {counters:?}");
    }
}

#[test]
fn forked_children_of_threads_copy_read_and_write() {
    let program = CProgram::compile("fork", &[])
        .with("HEADWATER_PRELOAD_STREAM_BYTES", "4096")
        .with("HEADWATER_PRELOAD_FILES", "any");
    let counters = program.run(&["file"], "every child copied");
    for name in ["moves", "fills", "mapped_reads", "mapped_writes", "maps_removed"] {
        assert!(counters[name] > 5, "{name}: {counters:?}");
    }
}

#[test]
fn calls_before_the_library_has_started_work() {
    let early = tempfile::tempdir().unwrap();
    let shared = early.path().join("libearly.so");
    compile(&["early_library.c"], &shared, &["-shared", "-fPIC"]);
    let folder = early.path().to_str().unwrap();
    let program = CProgram::compile("early", &["-L", folder, "-learly", &format!("-Wl,-rpath,{folder}")]);
    program.run(&[], "early calls worked");
    // Without the library the program works as well: what it does is allowed.
    let alone = Command::new(program.path("program")).output().unwrap();
    assert!(alone.status.success(), "{alone:?}");
}

#[test]
fn another_preloaded_library_gets_what_this_one_leaves() {
    let mut program = CProgram::compile("chain", &[]);
    let library = library();
    program.run(&[library.to_str().unwrap()], "there is no next library");
    let other = program.path("libother.so");
    compile(&["other_preload.c"], &other, &["-shared", "-fPIC"]);
    program.libraries.push(other);
    program.run(&[library.to_str().unwrap()], "the next library was reached");
}

#[test]
fn mapped_files_are_as_the_kernel_leaves_them() {
    let program = CProgram::compile("files", &[]).with("HEADWATER_PRELOAD_FILES", "any");
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
    // A failure prints the seed, which is an argument.
    let counters = program.run(&["file", &seed.to_string()], "files are as the kernel leaves them");
    for name in ["mapped_reads", "mapped_writes", "maps_plain", "maps_removed"] {
        assert!(counters[name] > 20, "{name}: {counters:?}");
    }
    for name in ["kernel_flags", "kernel_file", "kernel_range", "kernel_faults"] {
        assert!(counters[name] > 0, "{name}: {counters:?}");
    }
    assert_eq!((counters["maps_sync"], counters["kernel_signals"]), (0, 0), "{counters:?}");
}

#[test]
fn files_without_dax_are_left_to_the_kernel() {
    let program = CProgram::compile("files", &[]).with("HEADWATER_PRELOAD_FILES", "dax");
    let counters = program.run(&["file", "1"], "files are as the kernel leaves them");
    assert_eq!((counters["mapped_reads"], counters["mapped_writes"], counters["maps_plain"]), (0, 0, 0));
    assert!(counters["kernel_file"] > 100, "{counters:?}");
    std::fs::remove_file(program.path("report")).unwrap();
    let off = program.with("HEADWATER_PRELOAD_FILES", "off");
    assert_eq!(off.run(&["file", "1"], "files are as the kernel leaves them")["kernel_file"], 0);
}

#[test]
fn descriptors_that_ask_for_more_than_a_mapping_are_left_to_the_kernel() {
    let program = CProgram::compile("descriptors", &[]).with("HEADWATER_PRELOAD_FILES", "any");
    // The report exists although the program wrote over its environment.
    let counters = program.run(&["file", "plain"], "descriptors did what they promise");
    assert_eq!((counters["mapped_writes"], counters["mapped_reads"]), (0, 50), "{counters:?}");
    assert!(counters["maps_plain"] == 1 && counters["maps_removed"] == 0, "{counters:?}");
    std::fs::remove_file(program.path("report")).unwrap();
    let counters = program.run(&["file", "synchronous"], "descriptors did what they promise");
    assert_eq!((counters["mapped_writes"], counters["kernel_flags"]), (0, 50), "{counters:?}");
}

#[test]
fn locks_end_with_each_way_to_close_a_file() {
    let program = CProgram::compile("closes", &[]).with("HEADWATER_PRELOAD_FILES", "any");
    let counters = program.run(&["file"], "locks ended with their files");
    // One for each way, one for the copy of a descriptor, and one for the calls that close nothing.
    assert_eq!((counters["maps_plain"], counters["maps_removed"]), (7, 7), "{counters:?}");
}

#[test]
fn files_that_are_shortened_end_no_program() {
    let program = CProgram::compile("truncation", &[]).with("HEADWATER_PRELOAD_FILES", "any");
    let counters = program.run(&["file", "1500"], "shortened files ended no program");
    assert!(counters["mapped_reads"] > 0 && counters["mapped_writes"] > 0, "{counters:?}");
    // Two by the buffer whose file is too short, and any number by the race.
    assert!(counters["kernel_faults"] >= 2, "{counters:?}");
    assert_eq!(counters["kernel_signals"], 2, "{counters:?}");
}
