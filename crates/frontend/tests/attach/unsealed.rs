//! Clients whose memory they can shrink: files of tmpfs and huge pages, and memfds without a seal. And the contrary:
//! memory that the node makes.

use crate::host::{AttachHost, media};
use headwater_frontend::attach::AttachHoldings;
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_host::clock::Nanos;
use headwater_host::shared_memory::SharedMemory;
use headwater_io::attach::admin::{AdminAnswer, AdminRequest};
use headwater_io::attach::connection::AttachConnection;
use headwater_io::attach::protocol::{AttachReply, AttachRequest};
use headwater_io::error::IoError;
use headwater_io::{Buffer, Command, StoreCondition};
use headwater_nvme::spec::status::Status;
use headwater_testkit::unsealed_memory::{
    REGION_START as START, UNSEALED_DEPTH as DEPTH, UnsealedClient, unsealed_files,
};
use rustix::fs::ftruncate;
use std::os::fd::{AsFd as _, OwnedFd};

const BYTES: usize = 4 << 20;
/// Wait for a completion, after which the connection is checked.
const CHECK_AFTER: Nanos = Nanos::from_millis(100);

fn connected(host: &AttachHost, file: &OwnedFd) -> UnsealedClient {
    UnsealedClient::connect(&host.path, file, BYTES)
}

#[test]
fn client_in_unsealed_memory_is_served_like_any_other() {
    for (name, file) in unsealed_files(BYTES as u64) {
        let folder = tempfile::tempdir().unwrap();
        let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
        let mut client = connected(&host, &file);
        let value: Vec<u8> = (0..=u8::MAX).cycle().take(3 << 20).collect();
        client.memory.copy_out(4_000, &value).unwrap();
        let put = client.put(b"key", 4_000, value.len());
        client.queue.submit(put, 1).unwrap();
        assert_eq!(client.queue.wait(None).unwrap().unwrap().status, Status::SUCCESS, "{name}");
        assert!(host.client().get(b"key").unwrap().unwrap() == value, "{name}");
        let AttachReply::Done =
            client.connection.call(&AttachRequest::Release { start: START }, &[]).unwrap().0
        else {
            panic!("{name}: the region is not released")
        };
        drop(client);
        drop(host.end());
    }
}

#[test]
fn truncated_memory_costs_its_client_the_connection_and_no_other_client_anything() {
    for (name, file) in unsealed_files(BYTES as u64) {
        let folder = tempfile::tempdir().unwrap();
        let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
        let mut good = host.client();
        good.put(b"good", b"1").unwrap();
        let mut bad = connected(&host, &file);
        let mut submitted = 0;
        // Commands are in flight all the time, before and after the file shrinks.
        let reason = loop {
            if submitted == 100 {
                ftruncate(&file, 2 << 20).unwrap();
            }
            assert!(submitted < 100_000, "{name}: the client still has its connection");
            bad.queue.submit(bad.put(b"bad", (2 << 20) - 32_768, 65_536), submitted).unwrap();
            submitted += 1;
            if submitted % 25 == 0 {
                assert_eq!(good.get(b"good").unwrap().unwrap(), b"1", "{name}");
            }
            if bad.queue.in_flight() < DEPTH / 2 {
                continue;
            }
            match bad.queue.wait(Some(CHECK_AFTER)).unwrap() {
                Some(done) => assert_eq!(done.status, Status::SUCCESS, "{name}"),
                // A bare queue does not notice the end of its connection.
                None => {
                    if let Err(error) = bad.connection.call(&AttachRequest::Namespaces, &[]) {
                        break error.to_string();
                    }
                }
            }
        };
        assert!(submitted >= 100, "{name}: a command before the truncation has no completion");
        assert!(reason.contains("its file was truncated"), "{name}: {reason}");
        // The good client has one for short buffers, and one for the buffer of a get.
        let left = AttachHoldings { clients: 1, queues: 1, regions: 2, in_flight: 0 };
        host.until_holdings(left);
        good.put(b"good", b"2").unwrap();
        assert_eq!(good.get(b"good").unwrap().unwrap(), b"2", "{name}");
        drop(host.end());
    }
}

/// Checks for a former defect: stores that were in flight when their client truncated its memory stored zeroes.
#[test]
fn store_in_flight_during_a_truncation_stores_all_of_its_value_or_nothing() {
    const VALUE_BYTES: usize = 128 << 10;
    let folder = tempfile::tempdir().unwrap();
    let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
    let mut good = host.client();
    let keys: Vec<Vec<u8>> = (0..8_u8).map(|number| vec![b'k', number]).collect();
    let mut old = 1_u8;
    keys.iter().for_each(|key| good.put(key, &vec![old; VALUE_BYTES]).unwrap());
    for round in 0..24 {
        for (name, file) in unsealed_files(BYTES as u64) {
            let new = if old == u8::MAX { 1 } else { old + 1 };
            let mut bad = connected(&host, &file);
            bad.memory.copy_out(2 << 20, &vec![new; 2 << 20]).unwrap();
            // Before the stores, or while the node copies their values.
            if round % 4 == 0 {
                ftruncate(&file, 2 << 20).unwrap();
            }
            for (number, key) in keys.iter().enumerate() {
                let put = bad.put(key, (2 << 20) + number * VALUE_BYTES, VALUE_BYTES);
                bad.queue.submit(put, number as u64).unwrap();
            }
            bad.queue.ring().unwrap();
            (0..round % 4 * 2_000).for_each(|_| std::hint::spin_loop());
            ftruncate(&file, 2 << 20).unwrap();
            // A store that begins after the truncation ends the connection.
            bad.queue.submit(bad.put(b"last", 2 << 20, VALUE_BYTES), 100).unwrap();
            bad.queue.ring().unwrap();
            while bad.connection.call(&AttachRequest::Namespaces, &[]).is_ok() {}
            assert_eq!(good.get(b"last").unwrap(), None, "{name}: stored from memory that is gone");
            for key in &keys {
                let value = good.get(key).unwrap().unwrap();
                let is_one_of_both = [old, new].iter().any(|&byte| value == vec![byte; VALUE_BYTES]);
                assert!(is_one_of_both, "{name}: {key:?} is neither the older nor the newer value");
                let unchanged = value[0] == old;
                assert!(unchanged || round % 4 != 0, "{name}: {key:?} was stored after the truncation");
                good.put(key, &vec![new; VALUE_BYTES]).unwrap();
            }
            old = new;
        }
    }
    drop(good);
    drop(host.end());
}

#[test]
fn memory_that_the_node_makes_is_sealed_and_counts_against_the_grant() {
    let folder = tempfile::tempdir().unwrap();
    let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
    let mut client = AttachConnection::open(&host.path).unwrap();
    let (reply, descriptors) =
        client.call(&AttachRequest::Memory { start: START, bytes: 5_000 }, &[]).unwrap();
    assert_eq!(reply, AttachReply::Memory { bytes: 8_192 });
    let [file] = <[OwnedFd; 1]>::try_from(descriptors).unwrap();
    assert!(ftruncate(&file, 4_096).is_err(), "the client can shrink it");
    let memory = SharedMemory::map_descriptor(file.as_fd(), 0, 8_192).unwrap();
    let mut bytes = [7; 8_192];
    memory.copy_in(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8_192]);
    for (start, bytes) in [(START, 4_096), (START + 8_191, 1), (0, 0), (0, u64::MAX), (u64::MAX - 10, 4_096)]
    {
        let refused = client.call(&AttachRequest::Memory { start, bytes }, &[]);
        assert!(matches!(refused, Err(IoError::Daemon { .. })), "{start:#x} {bytes}: {refused:?}");
    }
    let held = AttachHoldings { clients: 1, queues: 0, regions: 1, in_flight: 0 };
    host.until_holdings(held);
    let AdminAnswer::List { clients, .. } = host.admin(AdminRequest::List).unwrap() else { panic!() };
    assert_eq!(clients.iter().map(|client| client.memory).collect::<Vec<_>>(), [8_192, 0]);
    assert_eq!(client.call(&AttachRequest::Release { start: START }, &[]).unwrap().0, AttachReply::Done);
    host.until_holdings(AttachHoldings { regions: 0, ..held });
    drop(host.end());
}

#[test]
fn lent_buffer_keeps_its_bytes_over_a_restart_of_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
    let mut client = host.client();
    let (first, second) = (client.lent_buffer(10_000).unwrap(), client.lent_buffer(10_000).unwrap());
    assert_ne!(first.address(), second.address());
    first.write(0, &[5; 10_000]).unwrap();
    let mut queue = client.queue(4).unwrap();
    let mut store = |key: &[u8], buffer: &Buffer| {
        queue.submit(Command::put(1, key, buffer.clone(), StoreCondition::Always).unwrap(), 0).unwrap();
        assert_eq!(queue.wait(None).unwrap().unwrap().status, Status::SUCCESS);
    };
    store(b"before", &first);
    let media = host.end_in_place();
    host = AttachHost::start(folder.path(), GrantPolicy::new([]), media);
    store(b"after", &first);
    store(b"zeroes", &second);
    for (key, byte) in [(b"before".as_slice(), 5), (b"after", 5), (b"zeroes", 0)] {
        assert!(client.get(key).unwrap().unwrap() == [byte; 10_000], "{key:?}");
    }
    drop((queue, client));
    drop(host.end());
}
