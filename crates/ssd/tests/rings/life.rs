//! The life of queues and regions, and sleep on both sides.

use crate::desk::{BASE, Bench, OTHER, WALL, at, key};
use headwater_dma::iova::Iova;
use headwater_host::clock::Nanos;
use headwater_nvme::controller::QueueKind;
use headwater_nvme::queue_pair::Sleep;
use headwater_nvme::ring::Wake;
use headwater_nvme::spec::kv::{StoreOptions, exist, flush, store};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Command, NamespaceId};
use headwater_ssd::engine::Device;
use headwater_ssd::limits::OPERATIONS_MAX;
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::nvme::rings::RingFace;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_revoked_region_is_not_named_by_commands_that_are_over() {
    let mut bench = Bench::new();
    let mut client = bench.client(8, QueueKind::Standard);
    let put = store(1, key(b"k"), at(0, 4_096), StoreOptions::NONE);
    client.submit(put);
    bench.face.poll(&mut bench.device);
    let table = bench.face.rings.memory(client.id).unwrap();
    let revocation = table.revoke(Iova(BASE)).unwrap();
    assert!(!revocation.is_quiet(), "the device is about to copy from it");
    assert_eq!(bench.answers(&mut client).len(), 1);
    assert!(revocation.is_quiet());
    assert_eq!(bench.run(&mut client, put).0, Status::DATA_TRANSFER_ERROR);
}

#[test]
fn a_busy_device_holds_the_command_and_loses_none() {
    let mut bench = Bench::new();
    let mut client = bench.client(8, QueueKind::Standard);
    for token in 0..OPERATIONS_MAX as u64 {
        bench.device.submit(OTHER, NamespaceId::FIRST, token, Command::Flush).unwrap();
    }
    let ids: Vec<_> = (0..8).map(|_| client.submit(exist(1, key(b"k")))).collect();
    assert!(!bench.face.poll(&mut bench.device), "nothing can move");
    assert_eq!(bench.face.rings.in_flight(), 1, "one is held, the others stay in their ring");
    assert!(!bench.face.poll(&mut bench.device));
    let answers = bench.answers(&mut client);
    assert_eq!(answers.len(), ids.len());
    assert!(answers.values().all(|(status, _)| *status == Status::KEY_DOES_NOT_EXIST));
}

#[test]
fn deleting_a_queue_answers_what_was_rung_for() {
    let mut bench = Bench::new();
    let mut client = bench.client(8, QueueKind::Standard);
    let taken: Vec<_> = (0..3).map(|_| client.submit(exist(1, key(b"k")))).collect();
    bench.face.poll(&mut bench.device);
    let late: Vec<_> = (0..3).map(|_| client.submit(exist(1, key(b"k")))).collect();
    bench.face.rings.delete_queue(client.queue.id).unwrap();
    let answers = bench.answers(&mut client);
    for id in taken {
        assert_eq!(answers[&id].0, Status::KEY_DOES_NOT_EXIST);
    }
    for id in late {
        assert_eq!(answers[&id].0, Status::ABORTED_SQ_DELETION);
    }
    assert_eq!(bench.face.rings.queue_state(client.queue.id), None);
    assert!(bench.face.rings.delete_queue(client.queue.id).is_err());
    let again = bench.face.rings.create_queue_pair(client.id, 4, QueueKind::Standard).unwrap();
    assert_eq!(again.id, client.queue.id, "the number is free again");
    bench.face.rings.drain();
    bench.settle();
    assert!(bench.face.rings.is_drained());
    assert!(bench.face.rings.create_queue_pair(client.id, 4, QueueKind::Standard).is_err());
}

#[test]
fn wake_ups_go_to_sleepers_only() {
    let mut bench = Bench::new();
    let mut client = bench.client(8, QueueKind::Standard);
    bench.run(&mut client, flush(1));
    assert_eq!(bench.face.rings.stats().wakes, 0, "a client that polls is not woken");
    assert_eq!(bench.face.rings.prepare_sleep(), Sleep::Until);
    client.queue.pair.submit(flush(1)).unwrap();
    assert_eq!(client.queue.pair.ring(), Wake::Needed);
    assert_eq!(client.queue.pair.prepare_sleep().1, Sleep::Until);
    bench.settle();
    assert_eq!(bench.face.rings.stats().wakes, 1);
    assert!(client.queue.pair.reap().unwrap().is_some());
    client.queue.pair.awake();
    client.queue.pair.submit(flush(1)).unwrap();
    assert_eq!(client.queue.pair.ring(), Wake::NotNeeded, "a face that polls is not woken");
    assert_eq!(bench.face.rings.prepare_sleep(), Sleep::No, "a command came before the sleep");
    bench.settle();
}

/// A core that sleeps whenever nothing moves, as the node's does.
fn core(mut device: Device<MemoryMedia>, mut face: RingFace, stop: &AtomicBool) -> RingFace {
    loop {
        let mut moved = face.poll(&mut device);
        moved |= device.poll(Nanos::ZERO, WALL);
        if moved {
            continue;
        }
        if stop.load(Ordering::Acquire) {
            return face;
        }
        if face.rings.prepare_sleep() == Sleep::Until {
            face.rings.descriptor().wait(Some(Nanos::from_millis(10_000))).expect("a wait");
        }
    }
}

#[test]
fn a_client_and_a_core_that_both_sleep_never_miss_each_other() {
    const COMMANDS: u32 = 20_000;
    let mut bench = Bench::new();
    let mut client = bench.client(4, QueueKind::Standard);
    let Bench { device, face } = bench;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| core(device, face, &stop));
        let value = client.write(0, b"value");
        let (mut sent, mut answered) = (0, 0);
        while answered < COMMANDS {
            while sent < COMMANDS {
                let name = key(&(sent % 100).to_le_bytes());
                if client.queue.pair.submit(store(1, name, value, StoreOptions::NONE)).is_err() {
                    break;
                }
                sent += 1;
            }
            let (wake, sleep) = client.queue.pair.prepare_sleep();
            if wake == Wake::Needed {
                client.queue.device.wake().unwrap();
            }
            if sleep == Sleep::Until {
                client.queue.bell.wait(Some(Nanos::from_millis(10_000))).unwrap();
            }
            client.queue.pair.awake();
            while let Some(completion) = client.queue.pair.reap().unwrap() {
                assert_eq!(completion.status, Status::SUCCESS);
                answered += 1;
            }
        }
        stop.store(true, Ordering::Release);
        client.queue.device.wake().unwrap();
        let face = running.join().unwrap();
        assert_eq!(face.rings.stats().answered, u64::from(COMMANDS));
        assert_eq!(face.rings.in_flight(), 0);
    });
}
