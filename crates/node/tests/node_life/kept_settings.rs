//! Passwords and settings of a node over restarts and kills: CONFIG REWRITE, password files with hashes, precedence.
#![expect(clippy::unwrap_used, reason = "an unexpected result fails the test")]
#![expect(clippy::print_stdout, reason = "the log states the seed and what was found")]

use crate::running::{RunningNode, command, headwater};
use headwater_host::clock::{Clock, Nanos};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

struct InlineClient(BufReader<TcpStream>);

impl InlineClient {
    fn connect(node: &RunningNode) -> Self {
        Self(BufReader::new(node.connect()))
    }

    /// Sends a command as a line and returns the first line of the reply; empty if the node ended.
    fn call(&mut self, line: &str) -> String {
        let sent = self.0.get_mut().write_all(format!("{line}\r\n").as_bytes());
        let mut reply = String::new();
        // A node that is killed leaves a part of a line, or nothing.
        match sent.and_then(|()| self.0.read_line(&mut reply)) {
            Ok(_) if reply.ends_with("\r\n") => reply.trim_end().to_owned(),
            _ => String::new(),
        }
    }

    /// Returns the value of a parameter.
    fn parameter(&mut self, name: &str) -> String {
        assert_eq!(self.call(&format!("CONFIG GET {name}")), "*2");
        let mut lines = [const { String::new() }; 4];
        for line in &mut lines {
            self.0.read_line(line).unwrap();
        }
        lines[3].trim_end().to_owned()
    }
}

fn private_file(path: PathBuf, text: &str) -> String {
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Returns the hash that `headwater password-hash` prints.
fn hash_of(password: &str) -> String {
    let mut child = command(&["password-hash"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{password}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// Asserts that a node does not start, for a reason.
fn refused(folder: &Path, part: &str) {
    let data = folder.join("data");
    let args =
        ["serve", "--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--data", data.to_str().unwrap()];
    let output = headwater(&args);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("settings.json") && complaint.contains(part), "{complaint}");
}

#[test]
fn password_and_settings_persist_over_a_restart_and_wrong_ones_stay_throttled() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let mut client = InlineClient::connect(&node);
    assert_eq!(client.call("CONFIG SET requirepass \"open sesame\" timeout 300"), "+OK");
    assert_eq!(client.call("CONFIG REWRITE"), "+OK");
    node.kill();
    let kept = dir.path().join("data/settings.json");
    let text = std::fs::read_to_string(&kept).unwrap();
    assert!(text.contains("$scrypt$") && !text.contains("sesame"), "{text}");
    assert_eq!(kept.metadata().unwrap().permissions().mode() & 0o777, 0o600);

    let node = RunningNode::start(dir.path(), &[]);
    let mut client = InlineClient::connect(&node);
    assert!(client.call("GET k").starts_with("-NOAUTH"));
    let password = private_file(dir.path().join("password"), "open sesame\n");
    assert_eq!(node.kv(&["--resp-password", &password, "put", "k", "v"]).status.code(), Some(0));
    // The check is fast now: ten wrong passwords come within the period.
    for _ in 0..10 {
        assert!(client.call("AUTH wrong").starts_with("-WRONGPASS"));
    }
    let reply = client.call("AUTH \"open sesame\"");
    assert!(reply.contains("wait 10 seconds"), "{reply}");
    node.stop();
}

#[test]
fn password_file_may_hold_the_hash_that_the_command_line_makes() {
    let dir = tempfile::tempdir().unwrap();
    let hash = hash_of("open sesame");
    let hashed = private_file(dir.path().join("hash"), &format!("{hash}\n"));
    let plain = private_file(dir.path().join("plain"), "open sesame\n");
    let node = RunningNode::start(dir.path(), &["--resp-password", &hashed]);
    assert_eq!(node.kv(&["--resp-password", &plain, "put", "k", "v"]).status.code(), Some(0));
    let refused = node.kv(&["--resp-password", &hashed, "get", "k"]);
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(complaint.contains("a client needs the password itself"), "{complaint}");
    let mut client = InlineClient::connect(&node);
    assert!(client.call(&format!("AUTH {hash}")).starts_with("-WRONGPASS"), "the hash is no password");
    assert_eq!(client.call("AUTH \"open sesame\""), "+OK");
    assert_eq!(client.parameter("requirepass"), hash);
    node.stop();
}

#[test]
fn password_of_the_command_line_precedes_the_kept_one_and_the_log_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let first = private_file(dir.path().join("first"), "first\n");
    let toml = dir.path().join("node.toml");
    std::fs::write(&toml, format!("version = 1\nresp-password = \"{first}\"\n")).unwrap();
    let with_file = ["--config", toml.to_str().unwrap()];
    let node = RunningNode::start(dir.path(), &with_file);
    let mut client = InlineClient::connect(&node);
    assert_eq!(client.call("AUTH first"), "+OK");
    assert_eq!(client.call("CONFIG SET requirepass kept"), "+OK");
    assert_eq!(client.call("CONFIG REWRITE"), "+OK");
    node.stop();

    let node = RunningNode::start(dir.path(), &with_file);
    assert!(InlineClient::connect(&node).call("AUTH first").starts_with("-WRONGPASS"));
    assert_eq!(InlineClient::connect(&node).call("AUTH kept"), "+OK");
    let (code, log) = node.end();
    assert_eq!(code, Some(0));
    assert!(log.contains("the password that CONFIG REWRITE kept applies"), "{log}");

    let given = private_file(dir.path().join("given"), "given\n");
    let node = RunningNode::start(dir.path(), &["--resp-password", &given]);
    assert!(InlineClient::connect(&node).call("AUTH kept").starts_with("-WRONGPASS"));
    assert_eq!(InlineClient::connect(&node).call("AUTH given"), "+OK");
    let (code, log) = node.end();
    assert_eq!(code, Some(0));
    assert!(log.contains("the password of --resp-password applies"), "{log}");
}

/// Kills nodes in the middle of rewrites. A setting that was kept is there afterwards, or the one after it.
#[test]
fn kill_during_a_rewrite_keeps_the_last_acknowledged_settings_or_the_next() {
    let seed = 0x5e77;
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut number = 1_000;
    let mut acknowledged = 0;
    for round in 0..12 {
        let node = RunningNode::start(dir.path(), &[]);
        let mut client = InlineClient::connect(&node);
        if round > 0 {
            let kept: u64 = client.parameter("timeout").parse().unwrap();
            assert!(kept == acknowledged || kept == number, "{kept}, not {acknowledged} or {number}");
            acknowledged = kept;
        }
        let wait = Nanos::from_micros(random.u64(500..30_000));
        let killer = std::thread::spawn(move || {
            Clock::sleep(wait);
            node.kill();
        });
        loop {
            number += 1;
            if client.call(&format!("CONFIG SET timeout {number}")) != "+OK" {
                number -= 1;
                break;
            }
            if client.call("CONFIG REWRITE") != "+OK" {
                break;
            }
            acknowledged = number;
        }
        killer.join().unwrap();
    }
    assert!(acknowledged > 1_000, "no rewrite was acknowledged before a kill");
    let left = std::fs::read_dir(dir.path().join("data")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    println!("{} rewrites, {left:?}", acknowledged - 1_000);
}

#[test]
fn damaged_settings_are_refused_by_name_and_an_unfinished_rewrite_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let mut client = InlineClient::connect(&node);
    assert_eq!(client.call("CONFIG SET requirepass secret"), "+OK");
    assert_eq!(client.call("CONFIG REWRITE"), "+OK");
    node.stop();
    let path = dir.path().join("data/settings.json");
    let whole = std::fs::read(&path).unwrap();
    // A kill after half of the new file was written, and one before it was renamed.
    for length in [whole.len() / 2, whole.len()] {
        std::fs::write(dir.path().join("data/settings.json.new"), &whole[..length]).unwrap();
        let node = RunningNode::start(dir.path(), &[]);
        let mut client = InlineClient::connect(&node);
        assert_eq!(client.call("AUTH secret"), "+OK");
        assert_eq!(client.call("CONFIG REWRITE"), "+OK");
        node.stop();
    }
    let at = whole.windows(8).position(|part| part == b"$scrypt$").unwrap() + 70;
    let mut damaged = whole.clone();
    damaged[at] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    refused(dir.path(), "move it away");
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    refused(dir.path(), "damaged");
    let newer = String::from_utf8(whole).unwrap().replace("\"version\": 1", "\"version\": 7");
    std::fs::write(&path, newer).unwrap();
    refused(dir.path(), "version 7");
    std::fs::remove_file(&path).unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    assert_eq!(InlineClient::connect(&node).call("SET k v"), "+OK");
    node.stop();
}
