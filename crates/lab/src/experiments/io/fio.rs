//! fio as the baseline of the `io_uring` backend, and perf as the counter of system calls.
//!
//! Input: a file, a depth and a span.
//! Output: the result that fio reports, or the reason why there is none.
//! Invariant: fio runs its `io_uring` engine on the same file, with registered buffers and files, with batches as large
//! as the depth, and without optional clock reads, maps and statistics.

use super::{PAGE_BYTES, failed};
use crate::experiment::LabError;
use headwater_host::clock::{Clock, Nanos};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The tracepoint of the system call of a ring.
const EVENT: &str = "syscalls:sys_enter_io_uring_enter";
/// Time to wait until perf counts; more than it needs.
const ATTACH: Nanos = Nanos::from_millis(700);

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiments) struct ReadResult {
    /// Reads a second.
    pub(in crate::experiments) iops: f64,
    /// CPU nanoseconds for a read, of the submitting thread.
    pub(in crate::experiments) cpu_ns: f64,
    /// Number of reads.
    pub(in crate::experiments) reads: u64,
}

/// An installed fio, its version, and the file that it reads.
pub(in crate::experiments) struct Fio {
    pub(in crate::experiments) version: String,
    file: PathBuf,
    file_bytes: u64,
}

impl Fio {
    /// Finds fio; the error is the reason why it cannot run.
    pub(in crate::experiments) fn find(file: &Path, file_bytes: u64) -> Result<Self, String> {
        let output = Command::new("fio")
            .arg("--version")
            .output()
            .map_err(|error| format!("NOT MEASURED: fio cannot be run from PATH ({error}); install it"))?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Self { version, file: file.to_owned(), file_bytes })
    }

    fn arguments(&self, depth: u32, span: Nanos) -> Vec<String> {
        let millis = span.0 / 1_000_000;
        let mut arguments: Vec<String> = [
            "--name=reads",
            "--ioengine=io_uring",
            "--fixedbufs=1",
            "--registerfiles=1",
            "--direct=1",
            "--rw=randread",
            "--norandommap=1",
            "--randrepeat=0",
            "--gtod_reduce=1",
            "--readonly",
            "--thread",
            "--time_based=1",
            "--iodepth_batch_complete_min=1",
            "--output-format=json",
        ]
        .map(str::to_owned)
        .into();
        arguments.push(format!("--filename={}", self.file.display()));
        arguments.push(format!("--size={}", self.file_bytes));
        arguments.push(format!("--bs={PAGE_BYTES}"));
        arguments.push(format!("--runtime={millis}ms"));
        for option in ["iodepth", "iodepth_batch", "iodepth_batch_complete_max"] {
            arguments.push(format!("--{option}={depth}"));
        }
        arguments
    }

    /// Runs reads for `span`.
    pub(in crate::experiments) fn run(&self, depth: u32, span: Nanos) -> Result<ReadResult, LabError> {
        let mut command = Command::new("fio");
        command.args(self.arguments(depth, span));
        ran(command)
    }

    /// Returns the number of system calls on its ring for each read.
    pub(in crate::experiments) fn calls(
        &self,
        depth: u32,
        span: Nanos,
        scratch: &Path,
    ) -> Result<f64, String> {
        let counts = scratch.join("calls");
        let mut command = Command::new("perf");
        command.args(["stat", "-x,", "-e", EVENT, "-o"]).arg(&counts).arg("fio");
        command.args(self.arguments(depth, span));
        let ran = ran(command).map_err(|error| not_counted(&error.to_string()))?;
        Ok(super::decimal(counted(&counts)?) / super::decimal(ran.reads.max(1)))
    }
}

fn ran(mut command: Command) -> Result<ReadResult, LabError> {
    let output = command.stdin(Stdio::null()).output().map_err(failed)?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).ok_or_else(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        let line = errors.lines().next().unwrap_or("nothing");
        LabError::Measure { program: "fio".to_owned(), reason: format!("it printed {line:?}") }
    })
}

/// Parses the result of the only job from fio's JSON. fio may print a line or two before it.
fn parse(text: &str) -> Option<ReadResult> {
    let json: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    let job = json.get("jobs")?.get(0)?;
    let read = job.get("read")?;
    let reads = read.get("total_ios")?.as_u64().filter(|&reads| reads > 0)?;
    let percent = job.get("usr_cpu")?.as_f64()? + job.get("sys_cpu")?.as_f64()?;
    let nanos = job.get("job_runtime")?.as_f64()? * 1e6;
    Some(ReadResult {
        iops: read.get("iops")?.as_f64()?,
        cpu_ns: percent / 100.0 * nanos / super::decimal(reads),
        reads,
    })
}

/// A counter of the system calls of one thread of this process on its rings, until it is stopped.
pub(in crate::experiments) struct SyscallCounter {
    perf: Child,
    counts: PathBuf,
}

impl SyscallCounter {
    /// Starts to count the calls of the calling thread.
    pub(in crate::experiments) fn start(scratch: &Path) -> Result<Self, String> {
        let counts = scratch.join("calls");
        let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
        let perf = Command::new("perf")
            .args(["stat", "-x,", "-e", EVENT, "-t", &thread, "-o"])
            .arg(&counts)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| not_counted(&error.to_string()))?;
        Clock::sleep(ATTACH);
        Ok(Self { perf, counts })
    }

    /// Stops the count. Returns the number of calls.
    pub(in crate::experiments) fn stop(mut self) -> Result<u64, String> {
        let pid = i32::try_from(self.perf.id()).ok().and_then(Pid::from_raw);
        // A perf that ended early has written the reason to its file, or no file.
        let _ = pid.map(|pid| kill_process(pid, Signal::INT));
        let _ = self.perf.wait();
        counted(&self.counts)
    }
}

fn counted(path: &Path) -> Result<u64, String> {
    let text = fs::read_to_string(path).map_err(|error| not_counted(&error.to_string()))?;
    let line = text.lines().find(|line| line.contains(EVENT));
    let count = line.and_then(|line| line.split(',').next()?.parse().ok());
    count.ok_or_else(|| not_counted(line.unwrap_or("it counted nothing")))
}

fn not_counted(why: &str) -> String {
    format!("NOT MEASURED: perf could not count system calls ({why}); it needs tracepoints, mostly root's")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_accepts_a_fio_job_and_rejects_other_output() {
        let text = r#"fio: a note
            {"jobs": [{"read": {"iops": 1000.5, "total_ios": 2000}, "usr_cpu": 5.0, "sys_cpu": 15.0, "job_runtime": 2000}]}"#;
        let ran = parse(text).unwrap();
        assert_eq!((ran.reads, ran.iops), (2_000, 1_000.5));
        assert!((ran.cpu_ns - 200_000.0).abs() < 1e-6, "{ran:?}");
        let none = r#"{"jobs": [{"read": {"iops": 0, "total_ios": 0}}]}"#;
        assert!(["", "fio: no such engine", "{}", none].iter().all(|text| parse(text).is_none()));
    }
}
