//! Clients killed at any moment leak nothing. A separate test process, because it counts descriptors.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

#[path = "../attach/host.rs"]
#[expect(dead_code, reason = "this test uses only a part of it")]
mod host;

use headwater_frontend::attach::AttachHoldings;
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_host::clock::{Clock, Nanos};
use headwater_io::attach::{AttachBackend, AttachOptions};
use headwater_io::{Command, Device as Client, StoreCondition};
use host::{AttachHost, media};
use std::process::{Child, Stdio};

/// The environment variable with the socket's path for a child; absent in an ordinary run of the tests.
const SOCKET: &str = "HEADWATER_TEST_ATTACH_SOCKET";

/// Runs random commands until killed. This is the child process of the next test, not a separate test.
#[test]
fn child_process_runs_random_commands_until_killed() {
    let Some(path) = std::env::var_os(SOCKET) else {
        return;
    };
    let mut random = fastrand::Rng::new();
    // Ends when killed, or when the daemon is gone.
    loop {
        let Ok(backend) = AttachBackend::connect(
            path.as_ref(),
            AttachOptions { retry_for: Nanos::ZERO, ..AttachOptions::default() },
        ) else {
            return;
        };
        let mut client = Client::over(Box::new(backend), 1).unwrap();
        let buffer = client.buffer(random.usize(1..=16) * 4_096).unwrap();
        let mut queue = client.queue(random.u32(1..=64)).unwrap();
        for round in 0..random.u64(..200) {
            let key = random.u64(..50).to_le_bytes();
            let slice = buffer.slice(0, random.usize(..=4_096)).unwrap();
            let command = match random.u32(..4) {
                0 => Command::put(1, &key, slice, StoreCondition::Always),
                1 => Command::get(1, &key, slice),
                2 => Command::delete(1, &key),
                _ => Command::list(1, None, buffer.clone()),
            };
            let _ = queue.submit(command.unwrap(), round);
            let _ = if random.bool() { queue.poll() } else { queue.wait(Some(Nanos::from_micros(50))) };
        }
    }
}

fn child(host: &AttachHost) -> Child {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process_runs_random_commands_until_killed", "--test-threads=1"])
        .env(SOCKET, &host.path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn shared_maps() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:headwater").count()
}

#[test]
fn a_client_killed_a_thousand_times_leaks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
    // The scheduler determines where a kill hits, so no seed would reproduce a run.
    let mut random = fastrand::Rng::new();
    let mut good = host.client();
    good.put(b"good", b"client").unwrap();
    // The client has a region for short buffers, and from its first get on one for the buffer of it.
    assert_eq!(good.get(b"good").unwrap().unwrap(), b"client");
    // The pool of a client gives a region back after ten seconds in which it was empty at each tick, and a slow machine
    // needs longer than that for the kills.
    let short = good.buffer(1).unwrap();
    let held = AttachHoldings { clients: 1, queues: 1, regions: 2, in_flight: 0 };
    let (files, maps) = (descriptors(), shared_maps());
    let kills = std::env::var("HEADWATER_TEST_KILLS").map_or(1_000, |text| text.parse().unwrap());
    let mut at_work = 0;
    for round in 0..kills {
        let mut victim = child(&host);
        // From before its first instruction to the middle of its work, which it reaches after about 3 ms.
        Clock::sleep(Nanos(random.u64(..12_000_000)));
        at_work += u32::from(host.thread.seen().clients > 1);
        victim.kill().unwrap();
        victim.wait().unwrap();
        if round % 100 == 0 {
            assert_eq!(good.get(b"good").unwrap().unwrap(), b"client");
        }
    }
    assert!(at_work > kills / 10, "{at_work} of {kills} were connected when they were killed");
    assert!(host.until_holdings(held) < Nanos::from_millis(1_500));
    // No other test runs in this process: the child's test returns at once.
    assert_eq!((descriptors(), shared_maps()), (files, maps), "descriptors or mappings leaked");
    good.delete(b"good").unwrap();
    drop((short, good));
    host.until_holdings(AttachHoldings::default());
    drop(host.end());
}
