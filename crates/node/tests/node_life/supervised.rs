//! A node whose flushes a second process answers: the call of the node fails like that of a disk, or the state that is
//! durable behind it is kept.
//!
//! `flush_supervisor.c` starts the node, of which nothing is replaced. Only the flushes of io_uring cannot be answered,
//! because they are no system calls, so that the node runs on its other ring.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use crate::running::command;
use std::path::Path;
use std::process::Command;

/// The exit code of the supervisor without the system's support.
const NO_FILTER: i32 = 77;

/// The program that starts supervised nodes.
pub(crate) struct FlushSupervisor {
    program: String,
}

impl FlushSupervisor {
    /// Compiles the program into a folder.
    ///
    /// # Errors
    /// The reason why it cannot run on this system.
    pub(crate) fn compile(folder: &Path) -> Result<Self, String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node_life/flush_supervisor.c");
        let program = folder.join("flush_supervisor").to_str().unwrap().to_owned();
        let mut gcc = Command::new("gcc");
        gcc.args([
            "-std=c11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Wshadow",
            "-Werror",
            "-o",
            &program,
        ]);
        let compiled = gcc.arg(source).output().map_err(|error| format!("gcc: {error}"))?;
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let tried = Command::new(&program).args(["fail", "/nowhere", "/bin/true"]).output().unwrap();
        match tried.status.code() {
            Some(0) => Ok(Self { program }),
            Some(NO_FILTER) => Err(String::from_utf8_lossy(&tried.stderr).into_owned()),
            _ => panic!("{tried:?}"),
        }
    }

    /// Returns a command of the binary whose flushes fail while a file exists. Each of them appends a byte to it.
    pub(crate) fn failing(&self, switch: &Path, args: &[&str]) -> Command {
        self.supervised(&["fail", switch.to_str().unwrap()], args)
    }

    /// Returns a command of the binary that copies its flash file at each flush.
    pub(crate) fn copying(&self, flash: &Path, durable: &Path, args: &[&str]) -> Command {
        self.supervised(&["copy", flash.to_str().unwrap(), durable.to_str().unwrap()], args)
    }

    fn supervised(&self, how: &[&str], args: &[&str]) -> Command {
        let node = command(args);
        let mut under = Command::new(&self.program);
        under.args(how).arg(node.get_program()).args(node.get_args());
        under.env_remove("HEADWATER_RESP").stdin(std::process::Stdio::null());
        under
    }
}
