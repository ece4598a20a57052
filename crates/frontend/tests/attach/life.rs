//! Clients that follow the protocol.

use crate::host::{AttachHost, media};
use headwater_frontend::attach::AttachHoldings;
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_host::clock::Nanos;
use headwater_io::error::SubmitError;
use headwater_io::{Command, RejectedCommand, StoreCondition};
use headwater_nvme::spec::status::Status;

#[test]
fn a_client_reads_values_of_another_client() {
    let folder = tempfile::tempdir().unwrap();
    let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
    let (mut one, mut other) = (host.client(), host.client());
    one.put(b"greeting", b"hello").unwrap();
    assert_eq!(other.get(b"greeting").unwrap().unwrap(), b"hello");
    assert!(other.exist(b"greeting").unwrap());
    assert_eq!(other.list(None).unwrap(), [b"greeting".to_vec()]);
    let taken = one.put_if(b"greeting", b"again", StoreCondition::IfAbsent).unwrap_err();
    assert_eq!(taken.status(), Some(Status::KEY_EXISTS));
    other.delete(b"greeting").unwrap();
    other.delete(b"greeting").unwrap();
    assert_eq!(one.get(b"greeting").unwrap(), None);
    one.flush().unwrap();
    drop(host.end());
}

#[test]
fn values_longer_than_the_first_buffer_are_read_whole() {
    let folder = tempfile::tempdir().unwrap();
    let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
    let value: Vec<u8> = (0..=u8::MAX).cycle().take(3_000_001).collect();
    host.client().put(b"long", &value).unwrap();
    assert_eq!(host.client().get(b"long").unwrap().unwrap(), value);
    drop(host.end());
}

#[test]
fn a_sleeping_daemon_and_a_sleeping_client_wake_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
    let mut client = host.client();
    let buffer = client.buffer(4_096).unwrap();
    let mut queue = client.queue(4).unwrap();
    queue.set_spin(Nanos::ZERO);
    for round in 0..200_u64 {
        if round % 20 == 0 {
            // Long enough for the daemon to sleep.
            headwater_host::clock::Clock::sleep(Nanos::from_millis(5));
        }
        let key = round.to_le_bytes();
        let put = Command::put(1, &key, buffer.slice(0, 100).unwrap(), StoreCondition::Always).unwrap();
        queue.submit(put, round).unwrap();
        let answer = queue.wait(None).unwrap().unwrap();
        assert_eq!((answer.token, answer.status), (round, Status::SUCCESS));
    }
    assert_eq!(queue.wait(None).unwrap(), None, "nothing is in flight");
    drop(host.end());
}

#[test]
fn a_full_queue_is_reported_and_every_accepted_command_is_completed_once() {
    let folder = tempfile::tempdir().unwrap();
    let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
    let mut client = host.client();
    client.put(b"k", &[7; 512]).unwrap();
    let buffer = client.buffer(512 * 32).unwrap();
    let mut queue = client.queue(32).unwrap();
    let (mut sent, mut answered) = (0_u64, vec![0_u32; 5_000]);
    let total = answered.len() as u64;
    while answered.contains(&0) {
        while sent < total {
            let offset = usize::try_from(sent % 32).unwrap() * 512;
            let get = Command::get(1, b"k", buffer.slice(offset, 512).unwrap()).unwrap();
            match queue.submit(get, sent) {
                Ok(()) => sent += 1,
                Err(RejectedCommand { reason: SubmitError::Full, .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(queue.in_flight() <= 32);
        let answer = queue.wait(None).unwrap().unwrap();
        assert_eq!(answer.into_result().unwrap(), 512);
        answered[usize::try_from(answer.token).unwrap()] += 1;
    }
    assert!(answered.iter().all(|&times| times == 1));
    drop(host.end());
}

#[test]
fn a_dropped_queue_and_buffer_are_reclaimed_while_the_client_stays() {
    let folder = tempfile::tempdir().unwrap();
    let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
    let mut client = host.client();
    for _ in 0..100 {
        let buffer = client.buffer(1 << 20).unwrap();
        let queue = client.queue(64).unwrap();
        drop(queue);
        drop(buffer);
    }
    host.until_holdings(AttachHoldings { clients: 1, ..AttachHoldings::default() });
    client.put(b"still", b"served").unwrap();
    drop(client);
    host.until_holdings(AttachHoldings::default());
    drop(host.end());
}
