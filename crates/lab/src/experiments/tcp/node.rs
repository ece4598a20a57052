//! A node with an NVMe/TCP front end, as a child process that waits by sleeping or by polling.
//!
//! Input: the program. Output: a device over the network.
//! Invariant: dropping the handle ends the child, by its own process id.

use crate::cpu_account::CpuAccount;
use crate::experiment::{LabError, RunContext};
use headwater_host::calibration::SPIN_VARIABLE;
use headwater_host::clock::{Clock, Nanos};
use headwater_io::{Device, IoError, NvmeTcp, NvmeTcpTarget};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Maximum time until the node is ready.
const READY_MAX: Nanos = Nanos::from_millis(10_000);
/// Microseconds of polling before sleep: longer than nearly every time between two completions, so that the node sleeps
/// only while the floor is measured.
const SPIN_LONG_US: &str = "5000";

/// The way in which host and node wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitMode {
    /// They poll.
    Polls,
    /// They sleep until the kernel wakes them.
    Sleeps,
}

/// The child process.
#[derive(Debug)]
pub(super) struct TcpNode {
    child: Child,
    address: SocketAddr,
}

impl TcpNode {
    pub(super) fn start(context: &RunContext, waiting: WaitMode) -> Result<Self, LabError> {
        let folder = context.scratch().join(format!("tcp-{waiting:?}"));
        let scratch = |source| LabError::Scratch { path: folder.clone(), source };
        fs::create_dir_all(&folder).map_err(scratch)?;
        let ready = folder.join("ready.json");
        let log = File::create(folder.join("log")).map_err(scratch)?;
        let child = Command::new(context.binary()?)
            .arg("serve")
            .args(["--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--nvme-tcp", "127.0.0.1:0"])
            .args(["--durability", "on-flush"])
            .arg("--data")
            .arg(folder.join("data"))
            .arg("--ready-file")
            .arg(&ready)
            .env(SPIN_VARIABLE, if waiting == WaitMode::Polls { SPIN_LONG_US } else { "0" })
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| start_error(&error.to_string()))?;
        let mut node = Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let clock = Clock::start();
        loop {
            if let Some(address) = address_in(&ready) {
                node.address = address;
                return Ok(node);
            }
            if clock.now() > READY_MAX || node.child.try_wait().is_ok_and(|status| status.is_some()) {
                let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
                return Err(start_error(log.lines().last().unwrap_or("it was not ready in time")));
            }
            Clock::sleep(Nanos::from_millis(5));
        }
    }

    /// Returns the address of its NVMe/TCP front end.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Opens its device over the network; `by` may be the address of a relay.
    pub(super) fn device(&self, by: SocketAddr) -> Result<Device, LabError> {
        let names = NvmeTcp::discover(self.address).map_err(|error| failed(&error))?;
        let name = names.first().ok_or_else(|| start_error("discovery finds no subsystem"))?;
        let backend = NvmeTcp::open(NvmeTcpTarget::new(by, name)).map_err(|error| failed(&error))?;
        Device::over(Box::new(backend), 1).map_err(|error| failed(&error))
    }

    pub(super) fn account(&self) -> CpuAccount {
        CpuAccount::Process(self.child.id())
    }
}

impl Drop for TcpNode {
    fn drop(&mut self) {
        // The child may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the NVMe/TCP address in a node's ready file, once the file is complete.
fn address_in(ready: &Path) -> Option<SocketAddr> {
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(ready).ok()?).ok()?;
    json.get("nvme-tcp")?.as_str()?.parse().ok()
}

fn start_error(reason: &str) -> LabError {
    LabError::Start { program: "headwater serve".to_owned(), reason: reason.to_owned() }
}

/// Returns the error of a node that stopped responding or returned an invalid response.
pub(super) fn failed(error: &IoError) -> LabError {
    LabError::Measure { program: "headwater serve".to_owned(), reason: error.to_string() }
}
