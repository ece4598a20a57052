//! A node for the soak: a process with every front end, whose log is a file.

use headwater_host::clock::{Clock, Nanos};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Returns a command of the binary under test: the one built with this test, or the one that `HEADWATER_BIN` names.
fn command() -> Command {
    let built = || env!("CARGO_BIN_EXE_headwater").into();
    let mut command = Command::new(std::env::var_os("HEADWATER_BIN").unwrap_or_else(built));
    command.env_remove("HEADWATER_RESP").stdin(Stdio::null());
    command
}

/// A node that serves.
pub(crate) struct SoakNode {
    child: Child,
    folder: PathBuf,
    /// The address for Redis clients.
    pub(crate) resp: String,
    /// The address of metrics and health.
    pub(crate) metrics: String,
    /// The address for NVMe/TCP hosts.
    pub(crate) nvme_tcp: String,
}

impl SoakNode {
    /// Starts a node with its data in `folder/data` and waits until it serves.
    pub(crate) fn start(folder: &Path) -> Self {
        let ready = folder.join("ready.json");
        let _left_by_a_killed_node = std::fs::remove_file(&ready);
        let log = folder.join("node.log");
        let mut start = command();
        start
            .args(["serve", "--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--nvme-tcp", "127.0.0.1:0"])
            .args(["--capacity", "256MiB", "--memory", "32MiB", "--vfio-user"])
            .arg(folder.join("vfio.sock"))
            .arg("--data")
            .arg(folder.join("data"))
            .arg("--ready-file")
            .arg(&ready)
            .stdout(Stdio::null())
            .stderr(OpenOptions::new().create(true).append(true).open(&log).unwrap());
        let mut child = start.spawn().unwrap();
        let text = loop {
            if let Ok(text) = std::fs::read_to_string(&ready) {
                break text;
            }
            if let Some(status) = child.try_wait().unwrap() {
                panic!(
                    "the node ended with {status} before it served: {}",
                    std::fs::read_to_string(&log).unwrap()
                );
            }
            Clock::sleep(Nanos::from_millis(1));
        };
        let ready: serde_json::Value = serde_json::from_str(&text).expect("the ready file is whole");
        let address = |key: &str| ready[key].as_str().expect("an address").to_owned();
        let (resp, metrics, nvme_tcp) = (address("resp"), address("metrics"), address("nvme-tcp"));
        Self { child, folder: folder.to_owned(), resp, metrics, nvme_tcp }
    }

    /// Returns the process number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the path of the flash file.
    pub(crate) fn flash(&self) -> PathBuf {
        self.folder.join("data/flash")
    }

    /// Returns the path of the attach socket.
    pub(crate) fn attach(&self) -> PathBuf {
        self.folder.join("data/attach.sock")
    }

    /// Returns the path of the socket for backups.
    pub(crate) fn backup(&self) -> PathBuf {
        self.folder.join("data/backup.sock")
    }

    /// Returns the path of the vfio-user socket.
    pub(crate) fn vfio_user(&self) -> PathBuf {
        self.folder.join("vfio.sock")
    }

    /// Kills the node with SIGKILL. It must not have ended before.
    pub(crate) fn kill(mut self) {
        self.assert_serves();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops the node with SIGTERM; its exit code must be 0.
    pub(crate) fn stop(mut self) {
        self.assert_serves();
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{}", self.last_lines());
    }

    fn assert_serves(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "the node ended with {ended:?}: {}", self.last_lines());
    }

    fn last_lines(&self) -> String {
        let log = std::fs::read_to_string(self.folder.join("node.log")).unwrap();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for SoakNode {
    fn drop(&mut self) {
        // The process has already ended unless the test failed; a failed test must not leave its node behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `device check` on the data directory of a stopped node. Returns its exit code.
pub(crate) fn check_status(folder: &Path) -> i32 {
    let check = command().args(["device", "check"]).arg(folder.join("data")).output().unwrap();
    let complaint = String::from_utf8_lossy(&check.stderr);
    check.status.code().unwrap_or_else(|| panic!("the check crashed: {complaint}"))
}
