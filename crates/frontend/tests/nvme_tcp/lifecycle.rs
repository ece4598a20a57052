//! Lifetimes of hosts and queues: Keep Alive, Disconnect, restarts of the device, a sanitize operation.

use crate::host::TcpTestNode;
use crate::wire::{RawConnection, TcpHarness};
use headwater_frontend::nvme_tcp::limits::IO_QUEUES_MAX;
use headwater_host::clock::Nanos;
use headwater_io::{Command, Device, IoError, NvmeTcp, NvmeTcpTarget, StoreCondition};
use headwater_nvme::controller::admin::NamespaceAction;
use headwater_nvme::spec::fabrics::{connect_status, disconnect_entry};
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::{CommandId, CommandTransfer, DigestSettings};
use headwater_ssd::command::FrontEndId;
use headwater_ssd::engine::administration::AdminTicket;

/// Creates a Flush of namespace 1.
fn flush() -> headwater_nvme::spec::command::SubmissionEntry {
    Command::flush(1).entry
}

#[test]
fn a_disconnect_is_answered_last_and_frees_the_queue() {
    let mut bench = TcpHarness::new();
    let (_admin, controller) = bench.controller();
    let mut queue = RawConnection::open(&mut bench);
    assert!(queue.connect(&mut bench, 1, controller).status().is_success());
    let mut taken = RawConnection::open(&mut bench);
    assert!(!taken.connect(&mut bench, 1, controller).status().is_success(), "the number is in use");
    for _ in 0..5 {
        queue.send(flush(), CommandTransfer::None);
    }
    queue.send(disconnect_entry(), CommandTransfer::None);
    // A command after the Disconnect is discarded.
    queue.send(flush(), CommandTransfer::None);
    let place = |id: u16| CommandId(id).slot();
    let mut answers: Vec<usize> =
        (0..6).map(|_| place(queue.wait_completion(&mut bench).command_id.get())).collect();
    assert_eq!(answers.pop(), Some(5), "the Disconnect must be answered last");
    answers.sort_unstable();
    assert_eq!(answers, [0, 1, 2, 3, 4]);
    let mut next = RawConnection::open(&mut bench);
    assert!(next.connect(&mut bench, 1, controller).status().is_success(), "the number is free");
    assert!(queue.is_closed(&mut bench));
    assert!(next.call(&mut bench, flush(), CommandTransfer::None).status().is_success());
}

#[test]
fn a_disconnect_of_the_admin_queue_or_of_another_format_is_refused() {
    let mut bench = TcpHarness::new();
    let (mut admin, controller) = bench.controller();
    let refused = admin.call(&mut bench, disconnect_entry(), CommandTransfer::None).status();
    assert_eq!(refused, connect_status::INVALID_QUEUE_TYPE);
    let mut queue = RawConnection::open(&mut bench);
    assert!(queue.connect(&mut bench, 1, controller).status().is_success());
    let mut other = disconnect_entry();
    other.cdw10 = 1.into();
    let refused = queue.call(&mut bench, other, CommandTransfer::None).status();
    assert_eq!(refused, connect_status::INCOMPATIBLE_FORMAT);
    assert!(
        queue.call(&mut bench, flush(), CommandTransfer::None).status().is_success(),
        "the queue remains usable"
    );
}

#[test]
fn commands_are_refused_during_a_sanitize_operation() {
    let mut bench = TcpHarness::new();
    let (_admin, controller) = bench.controller();
    let mut queue = RawConnection::open(&mut bench);
    assert!(queue.connect(&mut bench, 1, controller).status().is_success());
    assert!(queue.call(&mut bench, flush(), CommandTransfer::None).status().is_success());
    queue.send(flush(), CommandTransfer::None);
    let ticket = AdminTicket { front_end: FrontEndId(9), token: 0 };
    bench.device.administer(ticket, NamespaceAction::Sanitize { command: 2 });
    assert!(bench.device.is_sanitizing());
    assert_eq!(queue.wait_completion(&mut bench).status(), Status::SANITIZE_IN_PROGRESS);
}

#[test]
fn a_host_sends_keep_alives_while_it_has_queues() {
    let node = TcpTestNode::start();
    let keep_alive = Nanos::from_millis(3_000);
    let target = NvmeTcpTarget { keep_alive, ..node.target(DigestSettings::default()) };
    let mut client = Device::over(Box::new(NvmeTcp::open(target).unwrap()), 1).unwrap();
    client.put(b"k", b"v").unwrap();
    let queue = client.queue(4).unwrap();
    drop(client);
    let done =
        |numbers: &headwater_frontend::counters::FrontEndCounters| numbers.commands.values().sum::<u64>();
    let before = node.numbers();
    // Only Keep Alive is sent: more often than fits one timeout.
    node.until("Keep Alives", |numbers| done(numbers) >= done(&before) + 4);
    drop(queue);
    node.until("the end", |numbers| numbers.connections == 0);
}

#[test]
fn commands_in_flight_complete_after_a_restart_of_the_device() {
    let mut node = TcpTestNode::start();
    let target = node.target(DigestSettings::default());
    let mut client = Device::over(Box::new(NvmeTcp::open(target).unwrap()), 1).unwrap();
    let buffer = client.buffer(16 << 12).unwrap();
    let mut queue = client.queue(16).unwrap();
    for round in 0..6_u8 {
        let mut answered = [0; 16];
        for slot in 0..16_u8 {
            let slice = buffer.slice(usize::from(slot) << 12, 4_096).unwrap();
            slice.write(0, &[round * 16 + slot; 4_096]).unwrap();
            let put = Command::put(1, &[b'k', slot], slice, StoreCondition::Always).unwrap();
            queue.submit(put, u64::from(slot)).unwrap();
        }
        // In even rounds the device received the commands, and may have executed them; in odd rounds it did not.
        if round % 2 == 0 {
            queue.ring().unwrap();
        }
        let address = node.address;
        node = TcpTestNode::over(node.end(), address);
        while let Some(done) = queue.wait(Some(Nanos::from_millis(20_000))).unwrap() {
            done.into_result().unwrap();
            answered[usize::try_from(done.token).unwrap()] += 1;
        }
        assert_eq!(answered, [1; 16], "each put is completed once");
        for slot in 0..16_u8 {
            let value = client.get(&[b'k', slot]).unwrap().unwrap();
            assert_eq!(value, [round * 16 + slot; 4_096], "key {slot} after round {round}");
        }
    }
}

#[test]
fn queue_numbers_are_reused_after_queues_are_dropped() {
    let node = TcpTestNode::start();
    let mut client = node.client(DigestSettings::default());
    for _ in 0..3 {
        let mut crowd = Vec::new();
        let refused = loop {
            match client.queue(4) {
                Ok(queue) => crowd.push(queue),
                Err(error) => break error.to_string(),
            }
        };
        assert!(refused.contains("in use"), "{refused}");
        assert_eq!(crowd.len(), usize::from(IO_QUEUES_MAX));
        for queue in &mut crowd {
            queue.submit(Command::flush(1), 7).unwrap();
            assert_eq!(queue.wait(None).unwrap().unwrap().token, 7);
        }
    }
}

#[test]
fn a_device_that_does_not_return_is_reported_as_gone() {
    let node = TcpTestNode::start();
    let target =
        NvmeTcpTarget { retry_for: Nanos::from_millis(50), ..node.target(DigestSettings::default()) };
    let mut client = Device::over(Box::new(NvmeTcp::open(target).unwrap()), 1).unwrap();
    client.put(b"k", b"v").unwrap();
    drop(node.end());
    for _ in 0..2 {
        let lost = client.get(b"k").unwrap_err();
        assert!(matches!(lost, IoError::Gone { .. } | IoError::Submit(_)), "{lost}");
    }
    assert!(matches!(client.namespaces().unwrap_err(), IoError::Gone { .. }));
}
