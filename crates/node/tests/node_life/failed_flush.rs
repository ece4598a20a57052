//! A flush that fails while a node serves: the system call of the node returns the error of a disk.
//!
//! What this cannot show is the page cache of a kernel whose write-back failed: no disk fails here, so what the next node
//! reads is what the last one wrote.
#![expect(clippy::unwrap_used, reason = "a metric that is missing fails the test")]
#![expect(clippy::print_stdout, reason = "a test that is skipped says why")]

use crate::running::RunningNode;
use crate::supervised::FlushSupervisor;
use headwater_host::clock::{Clock, Nanos};
use std::process::Output;

/// Looks at the metrics in a row that must show no flush; they are at most a tenth of a second old.
const QUIET_LOOKS: u32 = 5;

/// Waits until the checkpoint of the start is durable, so that the next flush is that of a client.
fn wait_for_the_last_flush(node: &RunningNode) {
    let count = || {
        let metrics = node.http("/metrics");
        let count = metrics.lines().find_map(|line| line.strip_prefix("headwater_flushes_total "));
        count.unwrap().parse::<u64>().unwrap()
    };
    let (mut last, mut quiet) = (count(), 0);
    while quiet < QUIET_LOOKS {
        Clock::sleep(Nanos::from_millis(120));
        let now = count();
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
    }
}

fn assert_refused(failed: &Output) {
    let complaint = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("MISCONF a write or a flush of the flash failed"), "{complaint}");
}

#[test]
fn after_a_failed_flush_the_node_says_so_refuses_writes_for_good_and_answers_reads() {
    let dir = tempfile::tempdir().unwrap();
    let supervisor = match FlushSupervisor::compile(dir.path()) {
        Ok(supervisor) => supervisor,
        Err(reason) => {
            println!("skipped: fdatasync cannot be made to fail here: {reason}");
            return;
        }
    };
    let switch = dir.path().join("fail");
    let always = ["--durability", "always"];
    let node = RunningNode::start_by(dir.path(), &always, |args| supervisor.failing(&switch, args));
    assert_eq!(node.kv(&["put", "kept", "before"]).status.code(), Some(0));
    assert!(node.http("/metrics").contains("headwater_writes_failed 0"));
    wait_for_the_last_flush(&node);

    std::fs::write(&switch, "").unwrap();
    assert_refused(&node.kv(&["put", "lost", "after"]));
    let health = node.http_until("/healthz", "HTTP/1.1 503");
    assert!(health.contains("writes fail: a flush failed: ") && health.contains("(os error 5)"), "{health}");
    assert!(node.http("/metrics").contains("headwater_writes_failed 1"));
    // What was durable is read, and what was not is not shown, nor called absent.
    assert_eq!(node.kv(&["get", "kept"]).stdout, b"before");
    let lost = node.kv(&["get", "lost"]);
    assert_eq!((lost.status.code(), lost.stdout.len()), (Some(1), 0));
    assert!(String::from_utf8_lossy(&lost.stderr).contains("unrecovered error"), "{lost:?}");
    let failed = std::fs::metadata(&switch).unwrap().len();
    assert_eq!(failed, 1, "{failed} flushes failed: the first one is final");

    // The disk is well again. That the next flush would succeed means nothing.
    std::fs::remove_file(&switch).unwrap();
    assert_refused(&node.kv(&["put", "kept", "after"]));
    assert_refused(&node.kv(&["del", "kept"]));
    assert!(node.http("/healthz").starts_with("HTTP/1.1 503"));
    assert_eq!(node.kv(&["get", "kept"]).stdout, b"before");
    let flash = format!("{}/flash: a flush failed: ", node.data());
    let (code, log) = node.end();
    assert_eq!(code, Some(1), "a node that could not write its checkpoint ended as if it had: {log}");
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(&flash)).collect();
    assert_eq!(lines.len(), 1, "one line names the file:\n{log}");
    assert!(lines[0].contains("(os error 5); the node refuses every write from now on"), "{log}");

    let node = RunningNode::start(dir.path(), &[]);
    assert_eq!(node.kv(&["get", "kept"]).stdout, b"before");
    // The commit may be there or not, as after a power cut; it is answered without an error.
    let lost = node.kv(&["get", "lost"]);
    assert!(lost.stdout == b"after" || lost.stdout.is_empty(), "{lost:?}");
    assert!(!String::from_utf8_lossy(&lost.stderr).contains("error"), "{lost:?}");
    assert_eq!(node.kv(&["put", "kept", "again"]).status.code(), Some(0));
    assert!(node.http("/healthz").starts_with("HTTP/1.1 200"));
    node.stop();
}
