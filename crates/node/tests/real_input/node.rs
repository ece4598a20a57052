//! A node for the test with real files: a process that is killed with SIGKILL, and its counters.

use headwater_host::clock::{Clock, Nanos};
use headwater_node::kv::resp_client::{DecodedReply, NodeEndpoint, RespClient};
use headwater_node::kv::target::live::LiveTarget;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Returns a command of the binary under test: the one built with this test, or the one that `HEADWATER_BIN` names.
fn command() -> Command {
    let built = || env!("CARGO_BIN_EXE_headwater").into();
    let mut command = Command::new(std::env::var_os("HEADWATER_BIN").unwrap_or_else(built));
    command.env_remove("HEADWATER_RESP").stdin(Stdio::null());
    command
}

/// A process that ends with the test.
pub(crate) struct TestProcess(Child);

impl TestProcess {
    /// Returns true if the process has ended.
    pub(crate) fn ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Waits for the end of the process.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        // The process has already ended unless the test failed; a failed test must not leave its processes behind.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node that serves.
pub(crate) struct ProofNode {
    process: TestProcess,
    resp: String,
    metrics: String,
}

impl ProofNode {
    /// Starts a node with its data in `folder/data` and waits until it serves.
    pub(crate) fn start(folder: &Path, capacity: u64) -> Self {
        let ready = folder.join("ready.json");
        let _left_by_a_killed_node = std::fs::remove_file(&ready);
        let log = folder.join("node.log");
        let mut start = command();
        start
            .args(["serve", "--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0"])
            .args(["--capacity", &capacity.to_string()])
            .arg("--data")
            .arg(folder.join("data"))
            .arg("--ready-file")
            .arg(&ready)
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap());
        let mut process = TestProcess(start.spawn().unwrap());
        let text = loop {
            if let Ok(text) = std::fs::read_to_string(&ready) {
                break text;
            }
            assert!(
                !process.ended(),
                "the node ended before it served: {}",
                std::fs::read_to_string(&log).unwrap()
            );
            Clock::sleep(Nanos::from_millis(1));
        };
        let ready: serde_json::Value = serde_json::from_str(&text).expect("the ready file is whole");
        let address = |key: &str| ready[key].as_str().expect("an address").to_owned();
        Self { process, resp: address("resp"), metrics: address("metrics") }
    }

    /// Kills the node with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.process.0.kill().unwrap();
        self.process.wait();
    }

    fn kv(&self) -> Command {
        let mut kv = command();
        kv.args(["kv", "--timeout", "120", "--resp", &self.resp]);
        kv
    }

    /// Starts `kv load FOLDER --manifest FILE`.
    pub(crate) fn load(&self, folder: &Path, manifest: &Path) -> TestProcess {
        let mut load = self.kv();
        load.args([OsStr::new("load"), OsStr::new("--skip-large"), folder.as_os_str()])
            .arg("--manifest")
            .arg(manifest)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        TestProcess(load.spawn().unwrap())
    }

    /// Runs `kv dump --verify FILE` and returns the number of byte-identical keys; different or missing keys fail the
    /// test.
    pub(crate) fn verify(&self, manifest: &Path) -> u64 {
        let dump = self.kv().args(["dump", "--json", "--verify"]).arg(manifest).output().unwrap();
        let report = String::from_utf8_lossy(&dump.stdout);
        let complaint = String::from_utf8_lossy(&dump.stderr);
        assert_eq!(dump.status.code(), Some(0), "{report} {complaint}");
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["different"], 0, "{report}");
        assert_eq!(report["missing"], 0, "{report}");
        report["verified"].as_u64().unwrap()
    }

    /// Connects to the node.
    pub(crate) fn connect(&self) -> LiveTarget {
        LiveTarget::connect(&self.endpoint(), Duration::from_secs(120), 1, None).unwrap()
    }

    /// Connects to the node, for single commands.
    pub(crate) fn client(&self) -> RespClient {
        RespClient::connect(&self.endpoint(), Duration::from_secs(120)).unwrap()
    }

    fn endpoint(&self) -> NodeEndpoint {
        NodeEndpoint::Tcp(self.resp.clone())
    }

    /// Returns the integers of INFO by name.
    pub(crate) fn info(&self) -> BTreeMap<String, u64> {
        let DecodedReply::Bulk(text) = self.client().call(&[b"INFO", b"everything"]).unwrap() else {
            panic!("the reply to INFO is not a bulk string");
        };
        numbers(&String::from_utf8(text).unwrap(), ':')
    }

    /// Returns the integers of `/metrics` without labels, by name.
    pub(crate) fn metrics(&self) -> BTreeMap<String, u64> {
        let mut stream = std::net::TcpStream::connect(&self.metrics).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        numbers(&answer, ' ')
    }
}

fn numbers(text: &str, separator: char) -> BTreeMap<String, u64> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.trim().split_once(separator)?;
            Some((name.to_owned(), value.parse().ok()?))
        })
        .collect()
}

/// Runs `device check` on the data directory of a killed node. Returns its exit code.
pub(crate) fn check_status(folder: &Path) -> i32 {
    let data: PathBuf = folder.join("data");
    let check = command().args(["device", "check"]).arg(data).output().unwrap();
    let complaint = String::from_utf8_lossy(&check.stderr);
    check.status.code().unwrap_or_else(|| panic!("the check crashed: {complaint}"))
}
