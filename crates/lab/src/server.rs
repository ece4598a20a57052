//! The compared servers: a Headwater node and a peer with Redis's options, each a child process with its own folder.
//!
//! Input: a program and a durability.
//! Output: the address of a ready server, and the account of its CPU time.
//! Invariant: dropping the handle of a server ends exactly that process, by its process id.

use crate::cpu_account::CpuAccount;
use crate::experiment::{LabError, RunContext};
use crate::resp_load::ping;
use headwater_host::clock::{Clock, Nanos};
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Maximum time until a server responds.
const READY_MAX: Nanos = Nanos::from_millis(10_000);
const READY_POLL_INTERVAL: Nanos = Nanos::from_millis(5);

/// The durability of acknowledged writes, in modes that both servers support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RespDurability {
    /// At a time that the system chooses.
    OnFlush,
    /// Within a second.
    EverySecond,
    /// Before it is acknowledged.
    Always,
}

impl RespDurability {
    /// Returns the value of Headwater's `--durability`.
    pub(crate) fn ours(self) -> &'static str {
        match self {
            Self::OnFlush => "on-flush",
            Self::EverySecond => "interval=1000",
            Self::Always => "always",
        }
    }

    /// Returns the value of Redis's `appendfsync`, for use with the append-only file on.
    pub(crate) fn redis(self) -> &'static str {
        match self {
            Self::OnFlush => "no",
            Self::EverySecond => "everysec",
            Self::Always => "always",
        }
    }
}

/// A child process that serves RESP.
#[derive(Debug)]
pub(crate) struct RespServer {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl RespServer {
    /// Starts a Headwater node on an empty data directory.
    pub(crate) fn ours(context: &RunContext, mode: RespDurability) -> Result<Self, LabError> {
        Self::ours_with(context, mode, &[])
    }

    /// Starts a Headwater node with more options on an empty data directory.
    pub(crate) fn ours_with(
        context: &RunContext,
        mode: RespDurability,
        options: &[&str],
    ) -> Result<Self, LabError> {
        let program = context.binary()?;
        let folder = folder_for(context, &format!("headwater-{}", mode.ours().replace('=', "-")))?;
        let ready = folder.join("ready.json");
        let mut command = Command::new(&program);
        command
            .arg("serve")
            .args(["--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0"])
            .args(["--durability", mode.ours()])
            .args(options)
            .arg("--data")
            .arg(folder.join("data"))
            .arg("--ready-file")
            .arg(&ready);
        let mut starting = StartingServer::spawn("headwater serve", command, &folder)?;
        let address = starting.wait_until_ready(|| resp_address(&ready))?;
        starting.into_server(address, folder)
    }

    /// Starts a server that takes Redis's options on an empty folder, without snapshots or rewrites.
    pub(crate) fn redis(
        context: &RunContext,
        program: &str,
        folder: &str,
        options: &[&str],
    ) -> Result<Self, LabError> {
        let folder = folder_for(context, folder)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let mut command = Command::new(program);
        command
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
            .args(["--save", "", "--auto-aof-rewrite-percentage", "0", "--daemonize", "no"])
            .args(options)
            .arg("--dir")
            .arg(&folder);
        let mut starting = StartingServer::spawn(program, command, &folder)?;
        starting.wait_until_ready(|| ping(address).then_some(()))?;
        starting.into_server(address, folder)
    }

    /// Returns the address on which it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the path of the socket through which other processes attach to a Headwater node.
    pub(crate) fn attach_socket(&self) -> PathBuf {
        self.folder.join("data").join("attach.sock")
    }

    /// Returns the path of the flash file of a Headwater node.
    pub(crate) fn flash_file(&self) -> PathBuf {
        self.folder.join("data").join("flash")
    }

    /// Returns the process id, which is also the id of a node's core thread.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its resident set, in bytes; `None` if it has ended.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        resident_bytes(self.child.id())
    }

    /// Returns the account of the CPU time that it uses.
    pub(crate) fn account(&self) -> CpuAccount {
        CpuAccount::Process(self.child.id())
    }
}

impl Drop for RespServer {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

/// Returns the resident set of a process, in bytes.
fn resident_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1_024)
}

/// A child process that is not ready yet. Dropping it stops the process.
#[derive(Debug)]
struct StartingServer {
    program: String,
    child: Option<Child>,
    log: PathBuf,
}

impl StartingServer {
    fn spawn(program: &str, mut command: Command, folder: &Path) -> Result<Self, LabError> {
        let log = folder.join("log");
        let child = Some(spawn_with_log(program, &mut command, &log)?);
        Ok(Self { program: program.to_owned(), child, log })
    }

    /// Polls until `look` returns a value, the child has ended, or [`READY_MAX`] has passed.
    fn wait_until_ready<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Result<T, LabError> {
        let clock = Clock::start();
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            if let Some(child) = self.child.as_mut()
                && let Ok(Some(status)) = child.try_wait()
            {
                return Err(self.failed(&format!("it ended with {status}")));
            }
            if clock.now() > READY_MAX {
                return Err(self.failed(&format!("it was not ready within {READY_MAX}")));
            }
            Clock::sleep(READY_POLL_INTERVAL);
        }
    }

    fn failed(&self, what: &str) -> LabError {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let last = log.lines().rev().find(|line| !line.trim().is_empty());
        LabError::Start {
            program: self.program.clone(),
            reason: format!("{what}; last line of its log: {}", last.unwrap_or("none")),
        }
    }

    fn into_server(mut self, address: SocketAddr, folder: PathBuf) -> Result<RespServer, LabError> {
        let child = self.child.take().ok_or_else(|| self.failed("it is gone"))?;
        Ok(RespServer { child, address, folder })
    }
}

impl Drop for StartingServer {
    fn drop(&mut self) {
        if let Some(child) = self.child.as_mut() {
            stop(child);
        }
    }
}

/// Starts a program that writes into a new file `log`. Errors call it `program`.
pub(crate) fn spawn_with_log(program: &str, command: &mut Command, log: &Path) -> Result<Child, LabError> {
    let failed = |reason: String| LabError::Start { program: program.to_owned(), reason };
    let out = File::create(log).map_err(|source| LabError::Scratch { path: log.to_owned(), source })?;
    let err = out.try_clone().map_err(|error| failed(error.to_string()))?;
    command
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn()
        .map_err(|error| failed(format!("{error}: is it installed and on the PATH?")))
}

/// Kills a child. Its data is scratch, so no orderly shutdown is requested: draining could take longer than the run.
pub(crate) fn stop(child: &mut Child) {
    // The child may have ended already.
    let _ = child.kill();
    let _ = child.wait();
}

fn folder_for(context: &RunContext, name: &str) -> Result<PathBuf, LabError> {
    let folder = context.scratch().join(name);
    fs::create_dir_all(&folder).map_err(|source| LabError::Scratch { path: folder.clone(), source })?;
    Ok(folder)
}

/// Returns a port that was free a moment ago. Redis cannot choose a port itself.
fn free_port() -> Result<u16, LabError> {
    let port =
        || -> io::Result<u16> { Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port()) };
    port().map_err(|source| LabError::Io { what: "find a free port", source })
}

/// Returns the `resp` address in a node's ready file, once the file is complete.
pub(crate) fn resp_address(ready: &Path) -> Option<SocketAddr> {
    let text = fs::read_to_string(ready).ok()?;
    let json: serde_json::Value = serde_json::from_str(&text).ok()?;
    json.get("resp")?.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::RunOptions;

    #[test]
    fn resident_set_of_this_process_grows_with_what_it_touches() {
        let before = resident_bytes(std::process::id()).unwrap();
        let block = vec![7_u8; 64 << 20];
        let after = resident_bytes(std::process::id()).unwrap();
        assert!(after >= before + (32 << 20), "{before} {after} {}", block[block.len() - 1]);
    }

    #[test]
    fn incomplete_ready_file_is_ignored() {
        let context = RunContext::open(RunOptions::default()).unwrap();
        let path = context.scratch().join("ready.json");
        assert_eq!(resp_address(&path), None);
        fs::write(&path, r#"{"resp": "127.0.0."#).unwrap();
        assert_eq!(resp_address(&path), None);
        fs::write(&path, r#"{"resp": "127.0.0.1:7379", "metrics": "127.0.0.1:7380"}"#).unwrap();
        assert_eq!(resp_address(&path), Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 7379))));
    }

    #[test]
    fn start_error_of_a_program_that_exits_quotes_its_log() {
        let context =
            RunContext::open(RunOptions { binary: Some(PathBuf::from("/bin/sh")), ..RunOptions::default() })
                .unwrap();
        // A shell that is started with a script named `serve` prints that it cannot find it, and ends.
        let error = RespServer::ours(&context, RespDurability::Always).unwrap_err().to_string();
        assert!(error.contains("it ended with"), "{error}");
        assert!(error.contains("serve"), "{error}");
    }

    #[test]
    fn missing_program_is_a_start_error() {
        let context = RunContext::open(RunOptions {
            binary: Some(PathBuf::from("/nowhere/headwater")),
            ..RunOptions::default()
        })
        .unwrap();
        let error = RespServer::ours(&context, RespDurability::OnFlush).unwrap_err();
        assert!(matches!(error, LabError::Start { .. }), "{error}");
    }
}
