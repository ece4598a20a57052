//! `RocksDB` in a process of its own, driven by lines.
//!
//! Input: the source of the driver, a C++ compiler and the installed library. Output: the time and CPU of operations.
//! Invariant: dropping the handle ends the process.

use crate::experiment::{LabError, RunContext};
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SOURCE: &str = include_str!("rocksdb.cc");

/// A running driver.
pub(super) struct RocksPeer {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Name and version of the library.
    pub(super) version: String,
}

/// The sizes with which a store is opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreSizes {
    pub(super) keys: u32,
    pub(super) value_bytes: usize,
    pub(super) memory_bytes: u64,
    /// Operations in flight, or threads.
    pub(super) depth: usize,
}

/// The result of one command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RocksResult {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) read_bytes: u64,
}

impl RocksPeer {
    /// Compiles the driver and starts it on an empty folder. The error is the reason why there is no baseline.
    pub(super) fn start(context: &RunContext, sizes: StoreSizes) -> Result<Self, String> {
        let program = compile(context.scratch())?;
        let mut child = Command::new(program)
            .arg(context.scratch().join("rocksdb"))
            .args(
                [u64::from(sizes.keys), sizes.value_bytes as u64, sizes.memory_bytes, sizes.depth as u64]
                    .map(|number| number.to_string()),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("the driver of RocksDB cannot be run: {error}"))?;
        let (Some(commands), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the driver of RocksDB has no pipes".to_owned());
        };
        let (answers, version) = (BufReader::new(answers), String::new());
        let mut peer = Self { child, commands, answers, version };
        let line = peer.answer().map_err(|error| error.to_string())?;
        peer.version = line;
        Ok(peer)
    }

    /// Stores every key once.
    pub(super) fn load(&mut self) -> Result<RocksResult, LabError> {
        self.command("load")
    }

    /// Carries out the operations of a file.
    pub(super) fn run(&mut self, operations: &Path) -> Result<RocksResult, LabError> {
        self.command(&format!("run {}", operations.display()))
    }

    fn command(&mut self, line: &str) -> Result<RocksResult, LabError> {
        writeln!(self.commands, "{line}").map_err(failed)?;
        let answer = self.answer()?;
        parse(&answer).ok_or_else(|| failed(format!("it answered {answer:?}")))
    }

    /// Reads one line, and returns the text behind its `ok`.
    fn answer(&mut self) -> Result<String, LabError> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(failed)?;
        match line.trim_end().strip_prefix("ok ") {
            Some(rest) => Ok(rest.to_owned()),
            None => Err(failed(format!("it answered {:?}", line.trim_end()))),
        }
    }
}

impl Drop for RocksPeer {
    fn drop(&mut self) {
        crate::server::stop(&mut self.child);
    }
}

fn parse(answer: &str) -> Option<RocksResult> {
    let mut words = answer.split_whitespace();
    Some(RocksResult {
        seconds: words.next()?.parse().ok()?,
        cpu_seconds: words.next()?.parse().ok()?,
        read_bytes: words.next()?.parse().ok()?,
    })
}

fn compile(folder: &Path) -> Result<PathBuf, String> {
    let (source, program) = (folder.join("rocksdb.cc"), folder.join("rocksdb-driver"));
    std::fs::write(&source, SOURCE).map_err(|error| format!("cannot write the driver's source: {error}"))?;
    let output = Command::new("g++")
        .args(["-O2", "-std=c++17", "-o"])
        .arg(&program)
        .arg(&source)
        .args(["-lrocksdb", "-lpthread"])
        .output()
        .map_err(|error| format!("g++ cannot be run ({error}): apt-get install g++ librocksdb-dev"))?;
    if output.status.success() {
        return Ok(program);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("error")).unwrap_or("no message");
    Err(format!("the driver of RocksDB does not compile ({line}): apt-get install g++ librocksdb-dev"))
}

fn failed(reason: impl Display) -> LabError {
    LabError::Measure { program: "RocksDB".to_owned(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::workload::{UPDATE, write_operations};
    use super::*;
    use crate::experiment::RunOptions;

    #[test]
    fn answers_are_parsed_by_position() {
        let result = RocksResult { seconds: 1.5, cpu_seconds: 0.25, read_bytes: 7 };
        assert_eq!(parse("1.5 0.25 7"), Some(result));
        assert_eq!(parse("RocksDB 7.8.3"), None);
    }

    #[test]
    fn driver_counts_the_bytes_that_it_reads() {
        let context = RunContext::open(RunOptions::default()).unwrap();
        let sizes = StoreSizes { keys: 1_000, value_bytes: 100, memory_bytes: 8 << 20, depth: 2 };
        let mut peer = match RocksPeer::start(&context, sizes) {
            Ok(peer) => peer,
            Err(why) => {
                assert!(why.contains("apt-get install"), "{why}");
                return;
            }
        };
        assert!(peer.version.starts_with("RocksDB "), "{}", peer.version);
        assert_eq!(peer.load().unwrap().read_bytes, 0);
        let operations = context.scratch().join("operations");
        write_operations(&operations, &[1, 2 | UPDATE, 999]).unwrap();
        assert_eq!(peer.run(&operations).unwrap().read_bytes, 200);
        write_operations(&operations, &[1_000]).unwrap();
        assert!(peer.run(&operations).is_err(), "a key that was never stored is an error");
    }
}
