//! Tests of the life cycle of queues and regions, and of sleep on both sides.

use crate::harness::{BASE, DIRECT_FRONT_END, RingHarness, WALL, at, key};
use headwater_dma::iova::Iova;
use headwater_host::clock::Nanos;
use headwater_nvme::controller::QueueKind;
use headwater_nvme::queue_pair::SleepDecision;
use headwater_nvme::ring::WakeDecision;
use headwater_nvme::spec::kv::{StoreOptions, exist, flush, store};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{NamespaceId, SsdCommand};
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::limits::OPERATIONS_MAX;
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::nvme::rings::RingFrontEnd;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn revoked_region_is_quiet_once_its_commands_are_done() {
    let mut bench = RingHarness::new();
    let mut client = bench.client(8, QueueKind::Standard);
    let put = store(1, key(b"k"), at(0, 4_096), StoreOptions::NONE);
    client.submit(put);
    bench.front_end.poll(&mut bench.device);
    let table = bench.front_end.rings.memory(client.id).unwrap();
    let revocation = table.revoke(Iova(BASE)).unwrap();
    assert!(!revocation.is_drained(), "quiet, though a command in flight names the region");
    assert_eq!(bench.all_completions(&mut client).len(), 1);
    assert!(revocation.is_drained());
    assert_eq!(bench.run(&mut client, put).0, Status::DATA_TRANSFER_ERROR);
}

#[test]
fn busy_device_delays_commands_and_loses_none() {
    let mut bench = RingHarness::new();
    let mut client = bench.client(8, QueueKind::Standard);
    for token in 0..OPERATIONS_MAX as u64 {
        bench.device.submit(DIRECT_FRONT_END, NamespaceId::FIRST, token, SsdCommand::Flush).unwrap();
    }
    let ids: Vec<_> = (0..8).map(|_| client.submit(exist(1, key(b"k")))).collect();
    assert!(!bench.front_end.poll(&mut bench.device), "a full device accepted a command");
    assert_eq!(bench.front_end.rings.in_flight(), 1, "not exactly one entry was fetched");
    assert!(!bench.front_end.poll(&mut bench.device));
    let answers = bench.all_completions(&mut client);
    assert_eq!(answers.len(), ids.len());
    assert!(answers.values().all(|(status, _)| *status == Status::KEY_DOES_NOT_EXIST));
}

#[test]
fn deleting_a_queue_completes_all_commands_rung_for() {
    let mut bench = RingHarness::new();
    let mut client = bench.client(8, QueueKind::Standard);
    let fetched: Vec<_> = (0..3).map(|_| client.submit(exist(1, key(b"k")))).collect();
    bench.front_end.poll(&mut bench.device);
    let late: Vec<_> = (0..3).map(|_| client.submit(exist(1, key(b"k")))).collect();
    bench.front_end.rings.delete_queue(client.queue.id).unwrap();
    let answers = bench.all_completions(&mut client);
    for id in fetched {
        assert_eq!(answers[&id].0, Status::KEY_DOES_NOT_EXIST);
    }
    for id in late {
        assert_eq!(answers[&id].0, Status::ABORTED_SQ_DELETION);
    }
    assert_eq!(bench.front_end.rings.queue_state(client.queue.id), None);
    assert!(bench.front_end.rings.delete_queue(client.queue.id).is_err());
    let again = bench.front_end.rings.create_queue_pair(client.id, 4, QueueKind::Standard).unwrap();
    assert_eq!(again.id, client.queue.id, "the queue number is not free again");
    bench.front_end.rings.drain();
    bench.run_until_idle();
    assert!(bench.front_end.rings.is_drained());
    assert!(bench.front_end.rings.create_queue_pair(client.id, 4, QueueKind::Standard).is_err());
}

#[test]
fn only_sleeping_sides_are_woken() {
    let mut bench = RingHarness::new();
    let mut client = bench.client(8, QueueKind::Standard);
    bench.run(&mut client, flush(1));
    assert_eq!(bench.front_end.rings.stats().wakes, 0, "a polling client was woken");
    assert_eq!(bench.front_end.rings.prepare_sleep(), SleepDecision::UntilWoken);
    client.queue.pair.submit(flush(1), ()).unwrap();
    assert_eq!(client.queue.pair.ring(), WakeDecision::Needed);
    assert_eq!(client.queue.pair.prepare_sleep().1, SleepDecision::UntilWoken);
    bench.run_until_idle();
    assert_eq!(bench.front_end.rings.stats().wakes, 1);
    assert!(client.queue.pair.reap().unwrap().is_some());
    client.queue.pair.disarm();
    client.queue.pair.submit(flush(1), ()).unwrap();
    assert_eq!(client.queue.pair.ring(), WakeDecision::NotNeeded, "a polling front end was woken");
    assert_eq!(
        bench.front_end.rings.prepare_sleep(),
        SleepDecision::WorkPending,
        "the front end may sleep although a command arrived"
    );
    bench.run_until_idle();
}

/// Runs a core loop that sleeps whenever it is idle, like the node's.
fn core(mut device: SsdDevice<MemoryMedia>, mut front_end: RingFrontEnd, stop: &AtomicBool) -> RingFrontEnd {
    loop {
        let mut moved = front_end.poll(&mut device);
        moved |= device.poll(Nanos::ZERO, WALL);
        if moved {
            continue;
        }
        if stop.load(Ordering::Acquire) {
            return front_end;
        }
        if front_end.rings.prepare_sleep() == SleepDecision::UntilWoken {
            front_end.rings.wakeup_descriptor().wait(Some(Nanos::from_millis(10_000))).expect("a wait");
        }
    }
}

#[test]
fn client_and_core_that_both_sleep_miss_no_wake_up() {
    const COMMANDS: u32 = 20_000;
    let mut bench = RingHarness::new();
    let mut client = bench.client(4, QueueKind::Standard);
    let RingHarness { device, front_end } = bench;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| core(device, front_end, &stop));
        let value = client.write(0, b"value");
        let (mut sent, mut answered) = (0, 0);
        while answered < COMMANDS {
            while sent < COMMANDS {
                let name = key(&(sent % 100).to_le_bytes());
                if client.queue.pair.submit(store(1, name, value, StoreOptions::NONE), ()).is_err() {
                    break;
                }
                sent += 1;
            }
            let (wake, sleep) = client.queue.pair.prepare_sleep();
            if wake == WakeDecision::Needed {
                client.queue.device_wakeup.wake().unwrap();
            }
            if sleep == SleepDecision::UntilWoken {
                client.queue.wakeup.wait(Some(Nanos::from_millis(10_000))).unwrap();
            }
            client.queue.pair.disarm();
            while let Some(completion) = client.queue.pair.reap().unwrap() {
                assert_eq!(completion.status, Status::SUCCESS);
                answered += 1;
            }
        }
        stop.store(true, Ordering::Release);
        client.queue.device_wakeup.wake().unwrap();
        let front_end = running.join().unwrap();
        assert_eq!(front_end.rings.stats().completed, u64::from(COMMANDS));
        assert_eq!(front_end.rings.in_flight(), 0);
    });
}
