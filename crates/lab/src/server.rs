//! The servers that are compared: a node of ours and a redis-server, each a child process with a folder of its own.
//!
//! In: a program and a durability. Out: an address that answers, and the account of the CPU it used. Invariant: a server
//! that was started is ended when its handle goes, by its own process id, and nothing else is.

use crate::cpu_account::CpuAccount;
use crate::experiment::{Context, LabError};
use crate::load::ping;
use headwater_host::clock::{Clock, Nanos};
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// How long a server may take until it answers.
const READY_MAX: Nanos = Nanos::from_millis(10_000);
const LOOK_AGAIN: Nanos = Nanos::from_millis(5);

/// When an acknowledged write is on the medium, in words both servers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Whenever the system likes.
    OnFlush,
    /// Within a second.
    EverySecond,
    /// Before it is acknowledged.
    Always,
}

impl Mode {
    /// Our `--durability`.
    pub(crate) fn ours(self) -> &'static str {
        match self {
            Self::OnFlush => "on-flush",
            Self::EverySecond => "interval=1000",
            Self::Always => "always",
        }
    }

    /// Redis's `appendfsync`, with the append-only file on.
    fn redis(self) -> &'static str {
        match self {
            Self::OnFlush => "no",
            Self::EverySecond => "everysec",
            Self::Always => "always",
        }
    }
}

/// A child process that answers RESP.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Server {
    /// Starts a node of ours on an empty data directory.
    pub(crate) fn ours(context: &Context, mode: Mode) -> Result<Self, LabError> {
        let program = context.binary()?;
        let folder = folder_for(context, &format!("headwater-{}", mode.ours().replace('=', "-")))?;
        let ready = folder.join("ready.json");
        let mut command = Command::new(&program);
        command
            .arg("serve")
            .args(["--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0"])
            .args(["--durability", mode.ours()])
            .arg("--data")
            .arg(folder.join("data"))
            .arg("--ready-file")
            .arg(&ready);
        let mut starting = Starting::spawn("headwater serve", command, &folder)?;
        let address = starting.until(|| resp_address(&ready))?;
        starting.into_server(address, folder)
    }

    /// Starts a redis-server on an empty folder, with its append-only file on and no snapshots or rewrites.
    pub(crate) fn redis(context: &Context, mode: Mode) -> Result<Self, LabError> {
        let folder = folder_for(context, &format!("redis-{}", mode.redis()))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
            .args(["--save", "", "--appendonly", "yes", "--appendfsync", mode.redis()])
            .args(["--auto-aof-rewrite-percentage", "0", "--daemonize", "no"])
            .arg("--dir")
            .arg(&folder);
        let mut starting = Starting::spawn("redis-server", command, &folder)?;
        starting.until(|| ping(address).then_some(()))?;
        starting.into_server(address, folder)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where a node of ours lets other processes attach.
    pub(crate) fn attach_socket(&self) -> PathBuf {
        self.folder.join("data").join("attach.sock")
    }

    /// The process, whose first thread is a node's core.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whose CPU time it uses.
    pub(crate) fn account(&self) -> CpuAccount {
        CpuAccount::Process(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

/// What the installed redis-server calls itself, or why there is none.
pub(crate) fn redis_version() -> Result<String, String> {
    let output = Command::new("redis-server")
        .arg("--version")
        .output()
        .map_err(|error| format!("redis-server cannot be run ({error}): apt-get install redis-server"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    version
        .map(|version| format!("redis-server {version}"))
        .ok_or_else(|| "redis-server does not tell its version".to_owned())
}

/// A child that does not answer yet. Dropped, it is stopped.
#[derive(Debug)]
struct Starting {
    program: &'static str,
    child: Option<Child>,
    log: PathBuf,
}

impl Starting {
    fn spawn(program: &'static str, mut command: Command, folder: &Path) -> Result<Self, LabError> {
        let failed = |reason: String| LabError::Start { program: program.to_owned(), reason };
        let log = folder.join("log");
        let out = File::create(&log).map_err(|source| LabError::Scratch { path: log.clone(), source })?;
        let err = out.try_clone().map_err(|error| failed(error.to_string()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(|error| failed(format!("{error}: is it installed and on the PATH?")))?;
        Ok(Self { program, child: Some(child), log })
    }

    /// Looks until there is an answer, the child has ended, or it took too long.
    fn until<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Result<T, LabError> {
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
                return Err(self.failed(&format!("it did not answer within {READY_MAX}")));
            }
            Clock::sleep(LOOK_AGAIN);
        }
    }

    fn failed(&self, what: &str) -> LabError {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let last = log.lines().rev().find(|line| !line.trim().is_empty());
        LabError::Start {
            program: self.program.to_owned(),
            reason: format!("{what}; its last words: {}", last.unwrap_or("none")),
        }
    }

    fn into_server(mut self, address: SocketAddr, folder: PathBuf) -> Result<Server, LabError> {
        let child = self.child.take().ok_or_else(|| self.failed("it is gone"))?;
        Ok(Server { child, address, folder })
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(child) = self.child.as_mut() {
            stop(child);
        }
    }
}

/// Ends a child. Its data is scratch, so it is not asked to drain: that could take longer than the run.
fn stop(child: &mut Child) {
    // It may have ended by itself; then there is nothing left to end.
    let _ = child.kill();
    let _ = child.wait();
}

fn folder_for(context: &Context, name: &str) -> Result<PathBuf, LabError> {
    let folder = context.scratch().join(name);
    fs::create_dir_all(&folder).map_err(|source| LabError::Scratch { path: folder.clone(), source })?;
    Ok(folder)
}

/// A port that was free a moment ago. Redis cannot be told to pick one itself.
fn free_port() -> Result<u16, LabError> {
    let port =
        || -> io::Result<u16> { Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port()) };
    port().map_err(|source| LabError::Io { what: "find a free port", source })
}

/// The `resp` address in a node's ready file, once it is whole.
fn resp_address(ready: &Path) -> Option<SocketAddr> {
    let text = fs::read_to_string(ready).ok()?;
    let json: serde_json::Value = serde_json::from_str(&text).ok()?;
    json.get("resp")?.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Options;

    #[test]
    fn a_ready_file_counts_only_when_it_is_whole() {
        let context = Context::open(Options::default()).unwrap();
        let path = context.scratch().join("ready.json");
        assert_eq!(resp_address(&path), None);
        fs::write(&path, r#"{"resp": "127.0.0."#).unwrap();
        assert_eq!(resp_address(&path), None);
        fs::write(&path, r#"{"resp": "127.0.0.1:7379", "metrics": "127.0.0.1:7380"}"#).unwrap();
        assert_eq!(resp_address(&path), Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 7379))));
    }

    #[test]
    fn a_program_that_ends_at_once_is_told_with_its_last_words() {
        let context =
            Context::open(Options { binary: Some(PathBuf::from("/bin/sh")), ..Options::default() }).unwrap();
        // A shell asked to run a script named `serve` says that it cannot find it, and ends.
        let error = Server::ours(&context, Mode::Always).unwrap_err().to_string();
        assert!(error.contains("it ended with"), "{error}");
        assert!(error.contains("serve"), "{error}");
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let context = Context::open(Options {
            binary: Some(PathBuf::from("/nowhere/headwater")),
            ..Options::default()
        })
        .unwrap();
        let error = Server::ours(&context, Mode::OnFlush).unwrap_err();
        assert!(matches!(error, LabError::Start { .. }), "{error}");
    }
}
