//! Trusted clients that drive queues of the controller: they ring its doorbells, and their commands bypass the node.

use crate::harness::{BLOCK, NAMESPACE, machine};
use crate::host::{MediatedHost, own_uid};
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_host::clock::Nanos;
use headwater_host::shared_memory::SharedMemory;
use headwater_io::attach::admin::{AccessGrant, AdminAnswer, AdminRequest, GrantSubject};
use headwater_io::attach::connection::AttachConnection;
use headwater_io::attach::protocol::{AttachReply, AttachRequest, QueueTrouble};
use headwater_io::{Command, Device as Client, IoError, Queue, WriteDurability};
use headwater_nvme::spec::status::Status;
use std::collections::BTreeMap;
use std::os::fd::AsFd as _;

fn read(client: &mut Client, block: u64) -> Command {
    let buffer = client.buffer(BLOCK).unwrap();
    Command::read(NAMESPACE, block, 4_096, buffer).unwrap()
}

/// Submits reads and rings the doorbell.
fn submit(client: &mut Client, queue: &mut Queue, tokens: std::ops::Range<u64>) {
    for token in tokens {
        queue.submit(read(client, token), token).unwrap();
    }
    queue.ring().unwrap();
}

/// Waits for `count` completions with different tokens.
fn answers(queue: &mut Queue, count: usize) -> BTreeMap<u64, Status> {
    let mut answers = BTreeMap::new();
    while answers.len() < count {
        let done =
            queue.wait(Some(Nanos::from_millis(20_000))).unwrap().expect("no completion before the timeout");
        assert!(answers.insert(done.token, done.status).is_none(), "a command completed twice");
    }
    answers
}

fn pattern(blocks: usize, seed: u8) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| u8::try_from(at / 512 % 251).unwrap() ^ seed).collect()
}

#[test]
fn a_direct_client_and_a_mediated_one_share_the_controller() {
    let host = MediatedHost::start(GrantPolicy::new([]));
    let (mut direct, mut mediated) = (host.direct(), host.client());
    for (seed, writer) in [1, 2].into_iter().zip([true, false]) {
        let data = pattern(300, seed);
        let mut found = vec![0; data.len()];
        let (from, to) = if writer { (&mut direct, &mut mediated) } else { (&mut mediated, &mut direct) };
        from.write(10, &data, WriteDurability::NamespaceDefault).unwrap();
        from.flush().unwrap();
        to.read(10, &mut found).unwrap();
        assert!(found == data);
        assert!(host.machine.lock().blocks[&NAMESPACE][10 * BLOCK..310 * BLOCK] == *data);
    }
    host.until(|held| held.clients == 2 && held.queues == 2);
    // Commands of the direct client never pass through the node.
    host.machine.lock().faults.holds_commands = true;
    let mut queue = direct.queue(16).unwrap();
    submit(&mut direct, &mut queue, 0..16);
    while host.machine.lock().held.len() < 16 {
        std::thread::yield_now();
    }
    assert_eq!(host.observed().in_flight, 0);
    host.machine.lock().complete_held();
    assert!(answers(&mut queue, 16).values().all(|status| status.is_success()));
    drop((queue, direct, mediated));
    host.until_lent(0);
    host.end();
}

#[test]
fn a_direct_client_needs_a_direct_grant_without_a_block_range() {
    let host = MediatedHost::start(GrantPolicy::new([AccessGrant::everything(GrantSubject::Uid(own_uid()))]));
    let refused = host.try_client(true).unwrap_err();
    assert!(
        matches!(refused, IoError::Daemon { .. }) && refused.to_string().contains("--direct"),
        "{refused}"
    );
    let direct = AccessGrant { direct: true, ..AccessGrant::everything(GrantSubject::Uid(own_uid())) };
    let window = AccessGrant { blocks: Some((0, 10)), ..direct.clone() };
    let refused = host.admin(AdminRequest::Grant(window)).unwrap_err();
    assert!(refused.to_string().contains("access every block"), "{refused}");
    assert_eq!(host.admin(AdminRequest::Grant(direct)).unwrap(), AdminAnswer::Reached(1));
    let mut client = host.direct();
    client.write(0, &pattern(1, 3), WriteDurability::Immediate).unwrap();
    // Without its direct grant the client is disconnected.
    let mut queue = client.queue(4).unwrap();
    host.machine.lock().faults.holds_commands = true;
    submit(&mut client, &mut queue, 0..4);
    let plain = AccessGrant::everything(GrantSubject::Uid(own_uid()));
    assert_eq!(host.admin(AdminRequest::Grant(plain)).unwrap(), AdminAnswer::Reached(2));
    let ended = answers(&mut queue, 4);
    let aborted = [Status::ABORTED_SQ_DELETION, Status::HOST_PATHING_ERROR, Status::ABORTED_BY_HOST];
    assert!(ended.values().all(|status| aborted.contains(status)), "{ended:?}");
    // Commands that it still submits are completed too; then a submission fails.
    let refused = loop {
        match queue.submit(read(&mut client, 0), 9) {
            Err(rejected) => break rejected.to_string(),
            Ok(()) => assert_ne!(answers(&mut queue, 1)[&9], Status::SUCCESS),
        }
    };
    assert!(refused.contains("gone"), "{refused}");
    drop((queue, client));
    host.until_lent(0);
    host.end();
}

#[test]
fn a_direct_client_that_disconnects_leaks_nothing() {
    let host = MediatedHost::start(GrantPolicy::new([]));
    let mut good = host.direct();
    good.write(0, &pattern(1, 1), WriteDurability::NamespaceDefault).unwrap();
    let had = host.machine.lock().lent.len();
    let mut dying = AttachConnection::open_direct(&host.path).unwrap();
    let (_, memfd) = SharedMemory::memfd(1 << 20).unwrap();
    let region = AttachRequest::Region { start: 1 << 32, bytes: 1 << 20, offset: 0 };
    let AttachReply::Region { address } = dying.call(&region, &[memfd.as_fd()]).unwrap().0 else { panic!() };
    let (reply, descriptors) = dying.call(&AttachRequest::Queue { depth: 8 }, &[]).unwrap();
    let AttachReply::Queue { lent: Some(text), .. } = reply else { panic!("{reply:?}") };
    assert_ne!(text.address, address);
    assert_eq!(descriptors.len(), 3);
    assert_eq!(host.machine.lock().lent.len(), had + 2, "rings and region");
    // The controller deletes queues slowly: until it has, no memory of the dead client is unmapped.
    host.machine.lock().faults.unresponsive = true;
    drop((dying, descriptors));
    host.until(|held| held.clients == 1);
    assert_eq!(host.machine.lock().lent.len(), had + 2);
    host.machine.lock().faults.unresponsive = false;
    host.until_lent(had);
    good.write(1, &pattern(1, 2), WriteDurability::NamespaceDefault).unwrap();
    drop(good);
    host.end();
}

#[test]
fn a_reset_completes_commands_in_flight_and_the_queue_is_lent_again() {
    let host = MediatedHost::start(GrantPolicy::new([]));
    let mut client = host.direct();
    let mut queue = client.queue(8).unwrap();
    for round in 0..3 {
        host.machine.lock().faults.holds_commands = true;
        submit(&mut client, &mut queue, 0..8);
        while host.machine.lock().held.len() < 8 {
            std::thread::yield_now();
        }
        host.machine.lock().faults.holds_commands = false;
        // Another client reports that the controller violates the protocol.
        let mut other = AttachConnection::open_direct(&host.path).unwrap();
        let (reply, _descriptors) = other.call(&AttachRequest::Queue { depth: 1 }, &[]).unwrap();
        let AttachReply::Queue { id, .. } = reply else { panic!("{reply:?}") };
        let broken = AttachRequest::Trouble { queue: id, trouble: QueueTrouble::Broken };
        assert_eq!(other.call(&broken, &[]).unwrap().0, AttachReply::Done);
        let lost = answers(&mut queue, 8);
        assert!(lost.values().all(|status| *status == Status::ABORTED_BY_HOST), "round {round}: {lost:?}");
        submit(&mut client, &mut queue, 10..14);
        assert!(answers(&mut queue, 4).values().all(|status| status.is_success()), "round {round}");
    }
    drop((queue, client));
    host.until_lent(0);
    host.end();
}

#[test]
fn an_overdue_command_is_aborted_by_the_node_on_its_clients_request() {
    let timeout = Nanos::from_millis(300);
    let host = MediatedHost::start_at(tempfile::tempdir().unwrap(), machine(), GrantPolicy::new([]), timeout);
    let mut client = host.direct();
    let mut queue = client.queue(4).unwrap();
    host.machine.lock().faults.holds_commands = true;
    submit(&mut client, &mut queue, 0..3);
    let late = answers(&mut queue, 3);
    assert!(late.values().all(|status| *status == Status::ABORT_REQUESTED), "{late:?}");
    // A controller that does not complete the Abort either is reset.
    host.machine.lock().faults.ignores_aborts = true;
    submit(&mut client, &mut queue, 0..3);
    let lost = answers(&mut queue, 3);
    assert!(lost.values().all(|status| *status == Status::ABORTED_BY_HOST), "{lost:?}");
    drop((queue, client));
    host.end();
}

#[test]
fn a_client_survives_a_node_restart_and_uses_the_new_addresses_of_its_regions() {
    let mut host = MediatedHost::start(GrantPolicy::new([]));
    let mut client = host.direct();
    let mut queue = client.queue(8).unwrap();
    let data = pattern(200, 5);
    for round in 0..3_u64 {
        client.write(round * 200, &data, WriteDurability::Immediate).unwrap();
        let (folder, machine) = host.end();
        // The next node maps regions at other addresses.
        let elsewhere = SharedMemory::anonymous(4_096 << round).unwrap();
        machine.lock().lent.insert(0x90_0000_0000 + (round << 32), elsewhere);
        host = MediatedHost::start_at(folder, machine, GrantPolicy::new([]), Nanos::from_millis(30_000));
        let mut found = vec![0; data.len()];
        // A command in flight at the end fails with an unknown result; the next one succeeds.
        if client.read(round * 200, &mut found).is_err() {
            client.read(round * 200, &mut found).unwrap();
        }
        assert!(found == data, "round {round}");
        submit(&mut client, &mut queue, 0..8);
        let again = answers(&mut queue, 8);
        assert!(again.values().all(|status| status.is_success()), "{again:?}");
        host.machine.lock().lent.retain(|&at, _| at != 0x90_0000_0000 + (round << 32));
    }
    drop((queue, client));
    host.until_lent(0);
    host.end();
}

#[test]
fn a_client_can_name_only_its_own_queues() {
    let host = MediatedHost::start(GrantPolicy::new([]));
    let owner = host.direct();
    let mut other = AttachConnection::open_direct(&host.path).unwrap();
    let mut mediated = AttachConnection::open(&host.path).unwrap();
    let bell = headwater_host::wake::WakeDescriptor::new().unwrap();
    drop(owner);
    let mut owner = host.direct();
    let _queue = owner.queue(4).unwrap();
    for queue in 0..6 {
        for connection in [&mut other, &mut mediated] {
            let trouble = AttachRequest::Trouble { queue, trouble: QueueTrouble::Broken };
            assert!(connection.call(&trouble, &[]).is_err(), "queue {queue}");
            assert!(connection.call(&AttachRequest::Interrupts { queue }, &[bell.as_fd()]).is_err());
            assert!(connection.call(&AttachRequest::DeleteQueue { id: queue }, &[]).is_err());
        }
    }
    let (reply, _descriptors) = other.call(&AttachRequest::Queue { depth: 2 }, &[]).unwrap();
    let AttachReply::Queue { id, .. } = reply else { panic!() };
    // A descriptor that is no eventfd is refused.
    let (_, memfd) = SharedMemory::memfd(4_096).unwrap();
    assert!(other.call(&AttachRequest::Interrupts { queue: id }, &[memfd.as_fd()]).is_err());
    assert!(other.call(&AttachRequest::Interrupts { queue: id }, &[]).is_err());
    assert_eq!(
        other.call(&AttachRequest::Interrupts { queue: id }, &[bell.as_fd()]).unwrap().0,
        AttachReply::Done
    );
    assert_eq!(other.call(&AttachRequest::DeleteQueue { id }, &[]).unwrap().0, AttachReply::Done);
    assert!(other.call(&AttachRequest::Queue { depth: 5_000 }, &[]).is_err(), "deeper than any queue");
    drop((other, mediated, owner));
    drop(_queue);
    host.until_lent(0);
    host.end();
}
