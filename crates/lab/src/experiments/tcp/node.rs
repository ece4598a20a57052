//! A node with an NVMe/TCP face, as a child process that sleeps or polls as the experiment wants.
//!
//! In: the program. Out: a device over the network. Invariant: the child is ended when its handle goes, by its own process id.

use crate::cpu_account::CpuAccount;
use crate::experiment::{Context, LabError};
use headwater_host::calibration::SPIN_VARIABLE;
use headwater_host::clock::{Clock, Nanos};
use headwater_io::{Device, IoError, NvmeTcp, NvmeTcpTarget};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// How long the node may take until it answers.
const READY_MAX: Nanos = Nanos::from_millis(10_000);
/// Microseconds of polling before sleep that hardly ever pass between two answers; it sleeps while the floor is measured.
const SPIN_LONG_US: &str = "5000";

/// How host and node wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// They ask again and again.
    Polls,
    /// The kernel wakes them.
    Sleeps,
}

/// The child.
#[derive(Debug)]
pub(super) struct Node {
    child: Child,
    address: SocketAddr,
}

impl Node {
    pub(super) fn start(context: &Context, waiting: Waiting) -> Result<Self, LabError> {
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
            .env(SPIN_VARIABLE, if waiting == Waiting::Polls { SPIN_LONG_US } else { "0" })
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
                return Err(start_error(log.lines().last().unwrap_or("it does not serve in time")));
            }
            Clock::sleep(Nanos::from_millis(5));
        }
    }

    /// Where its hosts reach it.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its device, over the network; `by` may be the address of somebody in between.
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

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing left to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The face's address in a node's ready file, once it is whole.
fn address_in(ready: &Path) -> Option<SocketAddr> {
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(ready).ok()?).ok()?;
    json.get("nvme-tcp")?.as_str()?.parse().ok()
}

fn start_error(reason: &str) -> LabError {
    LabError::Start { program: "headwater serve".to_owned(), reason: reason.to_owned() }
}

/// The node stopped answering, or answered nonsense.
pub(super) fn failed(error: &IoError) -> LabError {
    LabError::Measure { program: "headwater serve".to_owned(), reason: error.to_string() }
}
