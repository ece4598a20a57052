//! Clients who are trusted with queues of the controller: they ring its doorbells, and the node sees nothing of a command.

use crate::desk::{BLOCK, NAMESPACE, machine};
use crate::host::{Host, own_uid};
use headwater_frontend::attach::policy::Policy;
use headwater_host::clock::Nanos;
use headwater_host::foreign::Foreign;
use headwater_io::attach::admin::{AdminAnswer, AdminRequest, Grant, Who};
use headwater_io::attach::connection::Connection;
use headwater_io::attach::protocol::{QueueTrouble, Reply, Request};
use headwater_io::{Command, Device as Client, Durable, IoError, Queue};
use headwater_nvme::spec::status::Status;
use std::collections::BTreeMap;
use std::os::fd::AsFd as _;

fn read(client: &mut Client, block: u64) -> Command {
    let buffer = client.buffer(BLOCK).unwrap();
    Command::read(NAMESPACE, block, 4_096, buffer).unwrap()
}

/// Submits reads, and rings.
fn submit(client: &mut Client, queue: &mut Queue, tokens: std::ops::Range<u64>) {
    for token in tokens {
        queue.submit(read(client, token), token).unwrap();
    }
    queue.ring().unwrap();
}

/// Waits for so many answers, each of another token.
fn answers(queue: &mut Queue, count: usize) -> BTreeMap<u64, Status> {
    let mut answers = BTreeMap::new();
    while answers.len() < count {
        let done = queue.wait(Some(Nanos::from_millis(20_000))).unwrap().expect("an answer in time");
        assert!(answers.insert(done.token, done.status).is_none(), "answered twice");
    }
    answers
}

fn pattern(blocks: usize, seed: u8) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| u8::try_from(at / 512 % 251).unwrap() ^ seed).collect()
}

#[test]
fn a_direct_client_and_a_mediated_one_share_the_controller() {
    let host = Host::start(Policy::new([]));
    let (mut direct, mut mediated) = (host.direct(), host.client());
    for (seed, writer) in [1, 2].into_iter().zip([true, false]) {
        let data = pattern(300, seed);
        let mut found = vec![0; data.len()];
        let (from, to) = if writer { (&mut direct, &mut mediated) } else { (&mut mediated, &mut direct) };
        from.write(10, &data, Durable::AsPromised).unwrap();
        from.flush().unwrap();
        to.read(10, &mut found).unwrap();
        assert!(found == data);
        assert!(host.machine.lock().blocks[&NAMESPACE][10 * BLOCK..310 * BLOCK] == *data);
    }
    host.until(|held| held.clients == 2 && held.queues == 2);
    // Commands of the direct client stay its own: the node never has one of them.
    host.machine.lock().faults.holds = true;
    let mut queue = direct.queue(16).unwrap();
    submit(&mut direct, &mut queue, 0..16);
    while host.machine.lock().held.len() < 16 {
        std::thread::yield_now();
    }
    assert_eq!(host.seen().in_flight, 0);
    host.machine.lock().release();
    assert!(answers(&mut queue, 16).values().all(|status| status.is_success()));
    drop((queue, direct, mediated));
    host.until_lent(0);
    host.end();
}

#[test]
fn who_is_not_trusted_is_refused_by_name_and_trust_goes_with_no_window() {
    let host = Host::start(Policy::new([Grant::everything(Who::Uid(own_uid()))]));
    let refused = host.try_client(true).unwrap_err();
    assert!(
        matches!(refused, IoError::Refused { .. }) && refused.to_string().contains("--direct"),
        "{refused}"
    );
    let direct = Grant { direct: true, ..Grant::everything(Who::Uid(own_uid())) };
    let window = Grant { blocks: Some((0, 10)), ..direct.clone() };
    let refused = host.admin(AdminRequest::Grant(window)).unwrap_err();
    assert!(refused.to_string().contains("reaches every block"), "{refused}");
    assert_eq!(host.admin(AdminRequest::Grant(direct)).unwrap(), AdminAnswer::Reached(1));
    let mut client = host.direct();
    client.write(0, &pattern(1, 3), Durable::Now).unwrap();
    // Trust that is taken away ends its client.
    let mut queue = client.queue(4).unwrap();
    host.machine.lock().faults.holds = true;
    submit(&mut client, &mut queue, 0..4);
    let plain = Grant::everything(Who::Uid(own_uid()));
    assert_eq!(host.admin(AdminRequest::Grant(plain)).unwrap(), AdminAnswer::Reached(2));
    let ended = answers(&mut queue, 4);
    let aborted = [Status::ABORTED_SQ_DELETION, Status::HOST_PATHING_ERROR, Status::ABORTED_BY_HOST];
    assert!(ended.values().all(|status| aborted.contains(status)), "{ended:?}");
    // What it still submits before it notices is answered too, and then it is told.
    let told = loop {
        match queue.submit(read(&mut client, 0), 9) {
            Err(rejected) => break rejected.to_string(),
            Ok(()) => assert_ne!(answers(&mut queue, 1)[&9], Status::SUCCESS),
        }
    };
    assert!(told.contains("gone"), "{told}");
    drop((queue, client));
    host.until_lent(0);
    host.end();
}

#[test]
fn a_direct_client_that_is_gone_in_mid_flight_leaves_nothing_behind_and_others_alone() {
    let host = Host::start(Policy::new([]));
    let mut good = host.direct();
    good.write(0, &pattern(1, 1), Durable::AsPromised).unwrap();
    let had = host.machine.lock().lent.len();
    let mut dying = Connection::open_direct(&host.path).unwrap();
    let (_, memfd) = Foreign::memfd(1 << 20).unwrap();
    let region = Request::Region { start: 1 << 32, bytes: 1 << 20, offset: 0 };
    let Reply::Region { address } = dying.call(&region, &[memfd.as_fd()]).unwrap().0 else { panic!() };
    let (reply, descriptors) = dying.call(&Request::Queue { depth: 8 }, &[]).unwrap();
    let Reply::Queue { lent: Some(text), .. } = reply else { panic!("{reply:?}") };
    assert_ne!(text.address, address);
    assert_eq!(descriptors.len(), 3);
    assert_eq!(host.machine.lock().lent.len(), had + 2, "rings and region");
    // The controller is slow to delete: until it has, nothing of the dead one is unmapped.
    host.machine.lock().faults.mute = true;
    drop((dying, descriptors));
    host.until(|held| held.clients == 1);
    assert_eq!(host.machine.lock().lent.len(), had + 2);
    host.machine.lock().faults.mute = false;
    host.until_lent(had);
    good.write(1, &pattern(1, 2), Durable::AsPromised).unwrap();
    drop(good);
    host.end();
}

#[test]
fn a_reset_answers_what_was_in_flight_and_the_queue_is_lent_again() {
    let host = Host::start(Policy::new([]));
    let mut client = host.direct();
    let mut queue = client.queue(8).unwrap();
    for round in 0..3 {
        host.machine.lock().faults.holds = true;
        submit(&mut client, &mut queue, 0..8);
        while host.machine.lock().held.len() < 8 {
            std::thread::yield_now();
        }
        host.machine.lock().faults.holds = false;
        // Another client finds that the controller breaks the protocol.
        let mut other = Connection::open_direct(&host.path).unwrap();
        let (reply, _descriptors) = other.call(&Request::Queue { depth: 1 }, &[]).unwrap();
        let Reply::Queue { id, .. } = reply else { panic!("{reply:?}") };
        let broken = Request::Trouble { queue: id, trouble: QueueTrouble::Broken };
        assert_eq!(other.call(&broken, &[]).unwrap().0, Reply::Done);
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
fn a_command_that_takes_too_long_is_aborted_by_the_node_at_its_clients_word() {
    let timeout = Nanos::from_millis(300);
    let host = Host::start_at(tempfile::tempdir().unwrap(), machine(), Policy::new([]), timeout);
    let mut client = host.direct();
    let mut queue = client.queue(4).unwrap();
    host.machine.lock().faults.holds = true;
    submit(&mut client, &mut queue, 0..3);
    let late = answers(&mut queue, 3);
    assert!(late.values().all(|status| *status == Status::ABORT_REQUESTED), "{late:?}");
    // One that does not even answer the abort is reset.
    host.machine.lock().faults.ignores_aborts = true;
    submit(&mut client, &mut queue, 0..3);
    let lost = answers(&mut queue, 3);
    assert!(lost.values().all(|status| *status == Status::ABORTED_BY_HOST), "{lost:?}");
    drop((queue, client));
    host.end();
}

#[test]
fn a_client_outlives_its_node_and_finds_its_regions_at_the_next_ones_addresses() {
    let mut host = Host::start(Policy::new([]));
    let mut client = host.direct();
    let mut queue = client.queue(8).unwrap();
    let data = pattern(200, 5);
    for round in 0..3_u64 {
        client.write(round * 200, &data, Durable::Now).unwrap();
        let (folder, machine) = host.end();
        // The next node lends at other addresses.
        let elsewhere = Foreign::anonymous(4_096 << round).unwrap();
        machine.lock().lent.insert(0x90_0000_0000 + (round << 32), elsewhere);
        host = Host::start_at(folder, machine, Policy::new([]), Nanos::from_millis(30_000));
        let mut found = vec![0; data.len()];
        // A command that met the end says that nobody knows; the next one goes on.
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
fn only_its_own_queues_are_a_clients_to_speak_of() {
    let host = Host::start(Policy::new([]));
    let owner = host.direct();
    let mut stranger = Connection::open_direct(&host.path).unwrap();
    let mut mediated = Connection::open(&host.path).unwrap();
    let bell = headwater_host::wake::WakeDescriptor::new().unwrap();
    drop(owner);
    let mut owner = host.direct();
    let _queue = owner.queue(4).unwrap();
    for queue in 0..6 {
        for connection in [&mut stranger, &mut mediated] {
            let trouble = Request::Trouble { queue, trouble: QueueTrouble::Broken };
            assert!(connection.call(&trouble, &[]).is_err(), "queue {queue}");
            assert!(connection.call(&Request::Interrupts { queue }, &[bell.as_fd()]).is_err());
            assert!(connection.call(&Request::DeleteQueue { id: queue }, &[]).is_err());
        }
    }
    let (reply, _descriptors) = stranger.call(&Request::Queue { depth: 2 }, &[]).unwrap();
    let Reply::Queue { id, .. } = reply else { panic!() };
    // A descriptor that is no eventfd rings nothing.
    let (_, memfd) = Foreign::memfd(4_096).unwrap();
    assert!(stranger.call(&Request::Interrupts { queue: id }, &[memfd.as_fd()]).is_err());
    assert!(stranger.call(&Request::Interrupts { queue: id }, &[]).is_err());
    assert_eq!(stranger.call(&Request::Interrupts { queue: id }, &[bell.as_fd()]).unwrap().0, Reply::Done);
    assert_eq!(stranger.call(&Request::DeleteQueue { id }, &[]).unwrap().0, Reply::Done);
    assert!(stranger.call(&Request::Queue { depth: 5_000 }, &[]).is_err(), "deeper than any queue");
    drop((stranger, mediated, owner));
    drop(_queue);
    host.until_lent(0);
    host.end();
}
