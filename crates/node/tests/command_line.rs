//! The command line answers wrong arguments with a clear sentence and the right exit code.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use headwater_testkit::software_gpu::SoftwareGpu;
use headwater_testkit::work_queue_folders::make_work_queue;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn headwater(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_headwater"))
        .args(args)
        .env_remove("HEADWATER_RESP")
        .stdin(Stdio::null())
        .output()
        .expect("the binary starts")
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn refused(args: &[&str], code: i32, what: &str) {
    let output = headwater(args);
    let complaint = complaint(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {complaint}");
    assert!(complaint.contains(what), "{args:?}: {complaint}");
    assert!(!complaint.contains("panicked"), "{args:?}: {complaint}");
}

fn config(folder: &Path, text: &str) -> String {
    let path = folder.join("node.toml");
    std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn missing_or_unknown_command_prints_help_and_exits_with_2() {
    refused(&[], 2, "Start here:");
    refused(&["nonsense"], 2, "nonsense");
    refused(&["kv"], 2, "load");
}

#[test]
fn every_command_has_help_with_exit_code_0() {
    for command in ["serve", "kv", "run", "bench", "device", "doctor", "sim", "lab", "completions"] {
        let output = headwater(&[command, "--help"]);
        assert_eq!(output.status.code(), Some(0), "{command}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("Usage:"), "{command}");
    }
}

#[test]
fn error_names_an_invalid_argument() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    refused(&["serve", "--capacity", "8 GiB"], 2, "`8 GiB` is not a size");
    refused(&["serve", "--capacity", "1K"], 2, "capacity 1 KiB is too small");
    refused(&["serve", "--memory", "-1"], 2, "-1");
    refused(&["serve", "--durability", "sometimes"], 2, "`sometimes` is not a durability mode");
    refused(&["serve", "--resp", "localhost"], 2, "--resp");
    refused(&["serve", "--resp-password", "/nonexistent", "--data", data], 1, "/nonexistent");
    refused(&["kv", "--namespace", "17", "get", "a"], 2, "17");
    refused(&["kv", "put", "", "value"], 2, "1 to 65535 bytes");
    refused(&["bench", "--dist", "zipf:2"], 2, "zipf:2");
    refused(&["bench", "--read-share", "1.5"], 2, "between 0 and 1");
    refused(&["bench", "--sizes", "257M"], 2, "at most 256 MiB");
    refused(&["bench", "--verify", "--sizes", "4"], 2, "cannot be verified");
    refused(&["bench", "--threads", "4", "--connections", "2"], 2, "each thread needs a connection");
    refused(&["bench", "--rate", "0"], 2, "at least 1 command a second");
}

#[test]
fn address_beyond_this_machine_needs_a_password_from_a_private_file() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let password = dir.path().join("password");
    let (data, file) = (data.to_str().unwrap(), password.to_str().unwrap());
    refused(&["serve", "--data", data, "--resp", "0.0.0.0:0"], 1, "--resp-password");
    std::fs::write(&password, "\n").unwrap();
    let with_file = ["serve", "--data", data, "--resp", "0.0.0.0:0", "--resp-password", file];
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o644)).unwrap();
    refused(&with_file, 1, "chmod 600");
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o600)).unwrap();
    refused(&with_file, 1, "first line is empty");
    std::fs::write(&password, "$scrypt$ln=31,r=8,p=1$c2FsdHNhbHRzYWx0c2FsdA$WrWEpPhlz0z1ZyvxTxjZ0w\n")
        .unwrap();
    refused(&with_file, 1, "choose smaller ln");
    refused(&["password-hash"], 2, "first line of standard input");
}

#[test]
fn metrics_beyond_this_machine_need_a_token_from_a_private_file() {
    let dir = tempfile::tempdir().unwrap();
    let (data, token) = (dir.path().join("data"), dir.path().join("token"));
    let (data, file) = (data.to_str().unwrap(), token.to_str().unwrap());
    let without = ["serve", "--data", data, "--resp", "127.0.0.1:0", "--metrics", "0.0.0.0:0"];
    refused(&without, 1, "--metrics-token");
    let with_file = [&without[..], &["--metrics-token", file]].concat();
    refused(&with_file, 1, file);
    std::fs::write(&token, "0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o640)).unwrap();
    refused(&with_file, 1, "chmod 600");
    std::fs::write(&token, "short\n").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    refused(&with_file, 1, "at least 16");
}

#[test]
fn invalid_configuration_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    for (text, what) in [
        ("version = 1\ncapcity = \"1G\"\n", "node.toml:2: capcity: unknown field"),
        ("version = 9\n", "node.toml:1: version 9 is unknown"),
        ("data = \"x\"\n", "no format version"),
        ("version = 1\nmemory = \"lots\"\n", "node.toml:2: memory: `lots` is not a size"),
        ("version = 1\n[namespace.17]\ndurability = \"always\"\n", "[namespace.17]"),
    ] {
        let path = config(dir.path(), text);
        refused(&["serve", "--data", data, "--config", &path], 2, what);
    }
    refused(&["serve", "--data", data, "--config", "/nonexistent.toml"], 2, "/nonexistent.toml");
    assert!(!Path::new(data).exists(), "a refused configuration created the data directory");
}

#[test]
fn error_without_a_node_names_the_remedy() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for args in [
        &["kv", "--resp", &free, "get", "a"][..],
        &["kv", "--resp", &free, "load", "/nonexistent"],
        &["bench", "--resp", &free],
    ] {
        refused(args, 1, "headwater serve");
    }
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("nothing");
    refused(&["kv", "--data", missing.to_str().unwrap(), "get", "a"], 1, "no data directory here");
    assert!(!missing.exists());
}

#[test]
fn server_that_is_not_resp_is_detected() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        // The connection stays open until the client closes it.
        std::io::copy(&mut peer, &mut std::io::sink()).unwrap_or(0)
    });
    refused(&["kv", "--resp", &address, "get", "a"], 1, "does not speak RESP2");
    server.join().unwrap();
}

/// Runs a node that wants work queues of DSA devices below `root`, and returns its complaint.
fn refused_work_queues(root: &Path, more: &[&str]) -> String {
    let data = root.join("data");
    let output = Command::new(env!("CARGO_BIN_EXE_headwater"))
        .args(["serve", "--data", data.to_str().unwrap(), "--capacity", "32MiB", "--resp", "127.0.0.1:0"])
        .args(["--metrics", "127.0.0.1:0"])
        .args(more)
        .env("HEADWATER_DSA_ROOT", root)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", complaint(&output));
    complaint(&output)
}

#[test]
fn a_node_that_wants_work_queues_does_not_start_without_one_and_says_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    let complaint = refused_work_queues(root.path(), &["--mover-dsa"]);
    assert!(complaint.contains("mover-dsa") && complaint.contains("modprobe idxd"), "{complaint}");
    assert!(!root.path().join("data/flash").exists(), "nothing was created");
    make_work_queue(root.path(), "wq0.0");
    let config = config(root.path(), "version = 1\nmover-dsa = true\n");
    let complaint = refused_work_queues(root.path(), &["--config", &config]);
    // The processor lacks the instruction, or the file is missing.
    assert!(complaint.contains("no work queue can be used"), "{complaint}");
    assert!(complaint.contains("ENQCMD") || complaint.contains("accel-config enable-wq"), "{complaint}");
    std::fs::write(root.path().join("sys/bus/dsa/devices/dsa0/wq0.0/state"), "disabled").unwrap();
    let complaint = refused_work_queues(root.path(), &["--mover-dsa"]);
    assert!(complaint.contains("wq0.0: its state is disabled"), "{complaint}");
    assert!(complaint.contains("accel-config config-wq"), "{complaint}");
}

#[test]
fn doctor_lists_copies_and_work_queues_for_the_mover() {
    let root = tempfile::tempdir().unwrap();
    make_work_queue(root.path(), "wq0.0");
    let doctor = |more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_headwater"))
            .args(["doctor", "--mover"])
            .args(more)
            .env("HEADWATER_DSA_ROOT", root.path())
            .env("XDG_CACHE_HOME", root.path().join("cache"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = doctor(&[]);
    assert!(text.contains("sw channel") && text.contains("not yet run on silicon"), "{text}");
    assert!(text.contains("wq0.0") && text.contains("shared, 16 entries"), "{text}");
    let chosen = doctor(&["--mover-threads", "1"]);
    assert!(chosen.contains("thread 0") && chosen.contains("shorter than the threshold"), "{chosen}");
    let json: serde_json::Value = serde_json::from_str(&doctor(&["--json"])).unwrap();
    assert_eq!(json["rows"].as_array().map(Vec::len), Some(6));
    assert!(json["rows"][0]["cached_ns"].as_u64() > Some(0));
}

#[test]
fn node_that_wants_gpus_does_not_start_without_them_and_says_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    let library = SoftwareGpu::with_faults("");
    let refused = |library: &Path, more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_headwater"))
            .args(["serve", "--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--data"])
            .arg(root.path().join("data"))
            .args(more)
            .env("HEADWATER_LIBCUDA", library)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(!output.status.success(), "{}", complaint(&output));
        complaint(&output)
    };
    let missing = refused(&root.path().join("libcuda.so.1"), &["--mover-gpu", "1"]);
    assert!(missing.contains("mover-gpu") && missing.contains("install the driver"), "{missing}");
    let config = config(root.path(), "version = 1\nmover-gpu = 2\n");
    let few = refused(&library.library(), &["--config", &config]);
    assert!(few.contains("there is no GPU 1: the driver knows 1"), "{few}");
    let many = refused(&library.library(), &["--mover-gpu", "17"]);
    assert!(many.contains("mover-gpu = 17") && many.contains("at most 16"), "{many}");
    assert!(!root.path().join("data/flash").exists(), "nothing was created");
}

#[test]
fn doctor_measures_gpus_for_the_mover() {
    let library = SoftwareGpu::with_faults("");
    // A calibration beside other tests is not stored for this user.
    let cache = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_headwater"))
        .args(["doctor", "--mover"])
        .env("XDG_CACHE_HOME", cache.path())
        .env("HEADWATER_LIBCUDA", library.library())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let heading = text.lines().find(|line| line.contains("CPU alone")).unwrap();
    assert!(heading.contains("gpu 0"), "{text}");
    assert!(text.contains("software GPU 0") && text.contains("not yet run on a GPU"), "{text}");
    let longest =
        text.lines().find(|line| line.trim_start().starts_with("4 MiB") && line.contains('%')).unwrap();
    assert!(!longest.contains(" - "), "the GPU did the job: {text}");
    assert_eq!(library.misuses(), [""; 0]);
}

#[test]
fn doctor_prints_json_and_completions_print_a_script() {
    let dir = tempfile::tempdir().unwrap();
    let output = headwater(&["doctor", "--json", "--data", dir.path().to_str().unwrap()]);
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let what: Vec<_> =
        findings.as_array().unwrap().iter().map(|finding| finding["what"].as_str().unwrap()).collect();
    for expected in
        ["copy and CRC", "idle spin", "io_uring", "direct I/O", "locked memory", "NUMA nodes", "free disk"]
    {
        assert!(what.contains(&expected), "{expected} is not among {what:?}");
    }
    let script = headwater(&["completions", "bash"]);
    assert!(String::from_utf8_lossy(&script.stdout).contains("_headwater"));
}

#[test]
fn lab_compare_fails_exactly_if_a_claim_differs_by_more_than_the_bound() {
    let dir = tempfile::tempdir().unwrap();
    let run = |name: &str, value: f64, canned: &str| {
        let json = serde_json::json!({
            "experiment": "resp", "command": "headwater lab run resp", "date": "2026-11-28", "quick": false,
            "machine": {"cpu": "A CPU", "load_1m": 0.1},
            "claims": [{
                "name": "p1.resp.p1.get.100", "unit": "ratio", "value": value,
                "baseline": format!("redis-server 7.0.15 at 2 us an operation; canned replies {canned} us")
            }],
        });
        let path = dir.path().join(name);
        std::fs::write(&path, json.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (first, near, far) =
        (run("a.json", 1.0, "1.00"), run("b.json", 1.05, "1.00"), run("c.json", 1.5, "1.50"));
    let agree = headwater(&["lab", "compare", &first, &near]);
    assert_eq!(agree.status.code(), Some(0), "{}", complaint(&agree));
    assert!(String::from_utf8_lossy(&agree.stdout).contains("0 of 1 claims differ by more than 10.00 %"));
    let differ = headwater(&["lab", "compare", &first, &far]);
    assert_eq!(differ.status.code(), Some(1));
    let text = String::from_utf8_lossy(&differ.stdout);
    assert!(text.contains("p1.resp.p1.get.100") && text.contains("canned replies 1.50 (x1.50) us"), "{text}");
    let json = headwater(&["lab", "compare", &first, &near, "--within", "0.01", "--json"]);
    assert_eq!(json.status.code(), Some(1));
    let comparison: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(comparison["claims"][0]["agreement"], "outside");
    refused(&["lab", "compare", &first, &near, "--within", "ten"], 2, "`ten` is not a share");
    refused(&["lab", "compare", &first, "/nonexistent.json"], 1, "/nonexistent.json");
}
