//! Restarts of the daemon: clients reconnect, and every command has exactly one completion.

use crate::host::{AttachHost, media};
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_host::clock::{Clock, Nanos};
use headwater_io::Device as Client;
use headwater_io::attach::{AttachBackend, AttachOptions};
use headwater_io::error::IoError;
use headwater_io::{Command, StoreCondition};
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn clients_continue_across_restarts_and_acknowledged_writes_survive() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
    let path = host.path.clone();
    let stored = AtomicU64::new(0);
    let wanted = 4_000;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let backend = AttachBackend::connect(&path, AttachOptions::default()).unwrap();
            let mut client = Client::over(Box::new(backend), 1).unwrap();
            let buffer = client.buffer(16 * 64).unwrap();
            let mut queue = client.queue(16).unwrap();
            let (mut sent, mut answered) = (0_u64, vec![0_u32; wanted]);
            while stored.load(Ordering::Relaxed) < wanted as u64 {
                while sent < wanted as u64 && queue.in_flight() < 16 {
                    let slot = buffer.slice(usize::try_from(sent % 16).unwrap() * 64, 64).unwrap();
                    slot.write(0, &sent.to_le_bytes()).unwrap();
                    let put = Command::put(1, &sent.to_le_bytes(), slot, StoreCondition::Always).unwrap();
                    queue.submit(put, sent).unwrap();
                    sent += 1;
                }
                let answer = queue
                    .wait(Some(Nanos::from_millis(20_000)))
                    .unwrap()
                    .expect("no completion before the timeout");
                answer.into_result().unwrap();
                answered[usize::try_from(answer.token).unwrap()] += 1;
                stored.fetch_add(1, Ordering::Relaxed);
            }
            assert!(answered.iter().all(|&times| times == 1), "each command is completed once");
        });
        for restart in 1..=5 {
            while stored.load(Ordering::Relaxed) < restart * 600 && !writer.is_finished() {
                Clock::sleep(Nanos::from_millis(1));
            }
            let medium = host.end_in_place();
            host = AttachHost::start(folder.path(), GrantPolicy::new([]), medium);
        }
        writer.join().unwrap();
    });
    let mut reader = host.client();
    for key in 0..wanted as u64 {
        assert!(reader.exist(&key.to_le_bytes()).unwrap(), "acknowledged key {key} is lost");
    }
    drop(host.end());
}

#[test]
fn blocking_calls_wait_until_the_daemon_is_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
    let mut client = host.client();
    let buffer = client.buffer(4_096).unwrap();
    client.put(b"k", b"v").unwrap();
    let medium = host.end();
    let folder_path = folder.path().to_owned();
    let later = std::thread::spawn(move || {
        Clock::sleep(Nanos::from_millis(100));
        AttachHost::start(&folder_path, GrantPolicy::new([]), medium)
    });
    assert_eq!(client.get(b"k").unwrap().unwrap(), b"v");
    // Memory registered with the old daemon is registered with the new one too.
    let mut queue = client.queue(1).unwrap();
    queue.submit(Command::get(1, b"k", buffer.clone()).unwrap(), 7).unwrap();
    assert_eq!(queue.wait(None).unwrap().unwrap().into_result().unwrap(), 1);
    let mut byte = [0];
    buffer.read(0, &mut byte).unwrap();
    assert_eq!(&byte, b"v");
    drop(later.join().unwrap().end());
}

#[test]
fn a_daemon_that_does_not_return_is_reported_as_gone() {
    let folder = tempfile::tempdir().unwrap();
    let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
    let options = AttachOptions { retry_for: Nanos::from_millis(50), ..AttachOptions::default() };
    let backend = AttachBackend::connect(&host.path, options).unwrap();
    let mut client = Client::over(Box::new(backend), 1).unwrap();
    client.put(b"k", b"v").unwrap();
    drop(host.end());
    let gone = client.get(b"k").unwrap_err();
    assert!(matches!(&gone, IoError::Gone { .. }), "{gone}");
    assert!(client.get(b"k").is_err(), "later calls fail too");
}
