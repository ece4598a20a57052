//! The program as a child process over one data directory: a node that serves, and the check.
//!
//! Input: a data directory. Output: a connection to the node, or how the program ended. Invariant: a child ends with its
//! handle, by its process id.

use super::resp::RespClient;
use crate::experiment::{LabError, RunContext};
use crate::server::{resp_address, spawn_with_log, stop};
use headwater_host::clock::{Clock, Nanos};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

/// Time after which a program that neither serves nor ends hangs.
const END_MAX: Nanos = Nanos::from_millis(20_000);
const POLL_INTERVAL: Nanos = Nanos::from_millis(1);

/// A folder with a data directory, in which one program runs at a time.
pub(super) struct NodeFolder {
    program: PathBuf,
    folder: PathBuf,
}

/// The result of starting a node.
pub(super) enum NodeStart {
    /// It serves.
    Serves(ServingNode, RespClient),
    /// It ended.
    Ended(ExitStatus),
    /// It did neither within [`END_MAX`].
    Hangs,
}

/// A node that serves; it is killed when dropped.
pub(super) struct ServingNode {
    child: Child,
}

impl NodeFolder {
    /// Creates the folder.
    pub(super) fn new(context: &RunContext, name: &str) -> Result<Self, LabError> {
        let folder = context.scratch().join(name);
        let data = folder.join("data");
        fs::create_dir_all(&data).map_err(|source| LabError::Scratch { path: data, source })?;
        Ok(Self { program: context.binary()?, folder })
    }

    /// Returns the path of the flash file.
    pub(super) fn flash(&self) -> PathBuf {
        self.folder.join("data").join("flash")
    }

    /// Returns what the last program wrote.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Starts a node. `capacity` is of a flash file that does not exist yet.
    pub(super) fn start(&self, capacity: Option<&str>) -> Result<NodeStart, LabError> {
        let ready = self.folder.join("ready.json");
        // There is none before the first start.
        let _ = fs::remove_file(&ready);
        let mut args = vec!["serve", "--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--attach", "off"];
        // The files are made after the node was idle: until then no acknowledged write needs to be durable.
        args.extend(["--durability", "interval=20"]);
        args.extend(capacity.iter().flat_map(|capacity| ["--capacity", capacity]));
        let mut child =
            self.spawn(&args, &[("--data", self.folder.join("data")), ("--ready-file", ready.clone())])?;
        let clock = Clock::start();
        while clock.now() < END_MAX {
            if let Some(address) = resp_address(&ready) {
                let node = ServingNode { child };
                let connected = RespClient::connect(address);
                let client =
                    connected.map_err(|source| LabError::Io { what: "connect to the node", source })?;
                return Ok(NodeStart::Serves(node, client));
            }
            if let Some(status) = ended(&mut child)? {
                return Ok(NodeStart::Ended(status));
            }
            Clock::sleep(POLL_INTERVAL);
        }
        drop(ServingNode { child });
        Ok(NodeStart::Hangs)
    }

    /// Runs the check. Returns how it ended, or `None` if it hangs.
    pub(super) fn check(&self) -> Result<Option<ExitStatus>, LabError> {
        let mut child = self.spawn(&["device", "check"], &[("--json", self.folder.join("data"))])?;
        let status = wait(&mut child)?;
        if status.is_none() {
            drop(ServingNode { child });
        }
        Ok(status)
    }

    fn spawn(&self, args: &[&str], paths: &[(&str, PathBuf)]) -> Result<Child, LabError> {
        let mut command = Command::new(&self.program);
        command.args(args);
        for (flag, path) in paths {
            command.arg(flag).arg(path);
        }
        spawn_with_log(&self.program.display().to_string(), &mut command, &self.folder.join("log"))
    }
}

impl ServingNode {
    /// Stops the node in order, and waits for its end.
    pub(super) fn stop(mut self) -> Result<(), LabError> {
        let signalled = kill_process(Pid::from_child(&self.child), Signal::TERM);
        signalled.map_err(|error| LabError::Io { what: "stop the node", source: error.into() })?;
        match wait(&mut self.child)? {
            Some(status) if status.success() => Ok(()),
            status => Err(LabError::Measure {
                program: "headwater serve".to_owned(),
                reason: format!("a node that was stopped ended with {status:?}"),
            }),
        }
    }
}

impl Drop for ServingNode {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

fn ended(child: &mut Child) -> Result<Option<ExitStatus>, LabError> {
    child.try_wait().map_err(|source| LabError::Io { what: "wait for a program", source })
}

/// Waits for the end of a program; `None` after [`END_MAX`].
fn wait(child: &mut Child) -> Result<Option<ExitStatus>, LabError> {
    let clock = Clock::start();
    while clock.now() < END_MAX {
        if let Some(status) = ended(child)? {
            return Ok(Some(status));
        }
        Clock::sleep(POLL_INTERVAL);
    }
    Ok(None)
}
