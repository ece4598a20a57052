//! A node for tests: a real process with its own ports, ended with the test.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use headwater_host::clock::{Clock, Nanos};
use rustix::process::{Resource, Rlimit};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Runs the binary to its end.
pub(crate) fn headwater(args: &[&str]) -> Output {
    command(args).output().expect("the binary starts")
}

/// Returns a command of the binary, not yet started.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    command.args(args).env_remove("HEADWATER_RESP").stdin(Stdio::null());
    command
}

/// A node that serves.
pub(crate) struct RunningNode {
    child: Child,
    folder: PathBuf,
    resp: String,
    metrics: String,
}

impl RunningNode {
    /// Starts a node with its data in `folder/data` and waits until it serves.
    pub(crate) fn start(folder: &Path, more: &[&str]) -> Self {
        Self::start_by(folder, more, command)
    }

    /// Starts a node as [`start`](Self::start) does, by the command that `run` makes of the arguments.
    pub(crate) fn start_by(folder: &Path, more: &[&str], run: impl FnOnce(&[&str]) -> Command) -> Self {
        let ready = folder.join("ready.json");
        let data = folder.join("data");
        let mut args = vec!["serve", "--resp", "127.0.0.1:0"];
        if !more.contains(&"--metrics") {
            args.extend(["--metrics", "127.0.0.1:0"]);
        }
        args.extend(["--data", data.to_str().unwrap(), "--ready-file", ready.to_str().unwrap()]);
        if !data.exists() && !more.contains(&"--capacity") {
            args.extend(["--capacity", "512MiB"]);
        }
        args.extend(more);
        let _left_by_a_killed_node = std::fs::remove_file(&ready);
        let mut child = run(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let text = loop {
            if let Ok(text) = std::fs::read_to_string(&ready) {
                break text;
            }
            if let Some(status) = child.try_wait().unwrap() {
                let mut complaint = String::new();
                child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
                panic!("the node ended with {status} before it served: {complaint}");
            }
            std::thread::yield_now();
        };
        let ready: serde_json::Value = serde_json::from_str(&text).expect("the ready file is whole");
        let address = |key: &str| ready[key].as_str().expect("an address").to_owned();
        Self { child, folder: folder.to_owned(), resp: address("resp"), metrics: address("metrics") }
    }

    /// Returns a `kv` command for the node, not yet started.
    pub(crate) fn kv_command(&self, args: &[&str]) -> Command {
        command(&[&["kv", "--resp", &self.resp], args].concat())
    }

    /// Runs a `kv` command against the node.
    pub(crate) fn kv(&self, args: &[&str]) -> Output {
        self.kv_command(args).output().unwrap()
    }

    /// Runs a benchmark against the node.
    pub(crate) fn bench(&self, args: &[&str]) -> Output {
        command(&[&["bench", "--resp", &self.resp], args].concat()).output().unwrap()
    }

    /// Opens a connection for Redis commands.
    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.resp).unwrap()
    }

    /// Returns how often the core thread of the node slept of its own accord.
    pub(crate) fn sleeps(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse().unwrap()
    }

    /// Returns the response of the metrics address to a GET request.
    pub(crate) fn http(&self, path: &str) -> String {
        self.http_with(path, "")
    }

    /// Returns the response to a GET request with a header more, which ends with a line end.
    pub(crate) fn http_with(&self, path: &str, header: &str) -> String {
        let mut stream = TcpStream::connect(&self.metrics).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{header}Connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Repeats a GET request until the response contains this text.
    pub(crate) fn http_until(&self, path: &str, text: &str) -> String {
        // The numbers are at most a tenth of a second old.
        let responses = (0..500).map(|_| {
            Clock::sleep(Nanos::from_millis(10));
            self.http(path)
        });
        let mut last = String::new();
        for response in responses {
            if response.contains(text) {
                return response;
            }
            last = response;
        }
        panic!("{path} never contains {text:?}:\n{last}");
    }

    /// Returns the path of the data directory.
    pub(crate) fn data(&self) -> String {
        self.folder.join("data").to_str().unwrap().to_owned()
    }

    /// Returns the path of the ready file.
    pub(crate) fn ready_path(&self) -> PathBuf {
        self.folder.join("ready.json")
    }

    /// Returns the process number of the node.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM to the node and asserts that it ends with exit code 0.
    pub(crate) fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        let mut complaint = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
        assert_eq!(status.code(), Some(0), "{complaint}");
    }

    /// Sends SIGTERM to the node, and returns its exit code and its log.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap().code(), log)
    }

    /// Sets a resource limit of the running node; `None` is no limit.
    pub(crate) fn set_limit(&self, resource: Resource, limit: Option<u64>) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let maximum = rustix::process::getrlimit(resource).maximum;
        rustix::process::prlimit(Some(pid), resource, Rlimit { current: limit.or(maximum), maximum })
            .unwrap();
    }

    /// Kills the node with SIGKILL, and waits until nothing is left that could write to its log.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child.stderr.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
    }
}

impl Drop for RunningNode {
    fn drop(&mut self) {
        // The process has already ended unless the test failed; a failed test must not leave its node behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
