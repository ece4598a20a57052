//! An idle node sleeps, and the controller's interrupt wakes it.

use crate::harness::{BLOCK, NAMESPACE, TestExecutor, TestMapper, device_with, machine, no_queues};
use headwater_frontend::attach::AttachFrontEnd;
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_frontend::core_device::CoreWork as _;
use headwater_frontend::mediated::{InterruptEventfd, MediatedExecutor};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::wake::WakeDescriptor;
use headwater_io::attach::{AttachBackend, AttachOptions};
use headwater_io::{Device as Client, WriteDurability};
use headwater_node::daemon::core_loop::{CoreLoop, DrainResult, PollSchedule};
use headwater_node::daemon::metrics::MetricsBoard;
use headwater_node::daemon::stop::StopSignal;
use headwater_testkit::nvme_machine::SharedMachine;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs the node's core loop, which sleeps when there is no progress.
fn serve(path: &Path, machine: &SharedMachine, stop: &StopSignal) {
    let clock = Clock::start();
    let bell = InterruptEventfd { descriptor: WakeDescriptor::new().unwrap(), vector: 1 };
    machine.lock().interrupt_receivers.extend([(0, bell.descriptor.clone()), (1, bell.descriptor.clone())]);
    // No command becomes overdue during this test: only an interrupt ends a sleep.
    let mut device = device_with(machine, Nanos::from_millis(3_600_000), Some(bell));
    machine.lock().is_awake = false;
    let executor: TestExecutor =
        MediatedExecutor::new(Box::new(TestMapper(machine.clone())), no_queues()).unwrap();
    let front_end = AttachFrontEnd::bind(path, GrantPolicy::new([]), executor).unwrap();
    let board = MetricsBoard::default();
    let mut core = CoreLoop {
        device: &mut device,
        front_ends: vec![Box::new(front_end)],
        clock,
        spin: Nanos::ZERO,
        board: &board,
        schedule: PollSchedule::default(),
    };
    assert_eq!(core.run(stop).unwrap(), DrainResult::Drained);
    drop(core);
    machine.lock().is_awake = true;
    device.shutdown(&clock).unwrap();
}

#[test]
fn an_interrupt_of_the_controller_wakes_a_sleeping_node() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("attach.sock");
    let machine = machine();
    let (stop, mut handle) = StopSignal::manual().unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&path, &machine, &stop));
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                machine.lock().work();
                Clock::sleep(Nanos::from_micros(300));
            }
        });
        let options = AttachOptions::default();
        let backend = loop {
            // Retries until the node listens.
            match AttachBackend::connect(&path, options) {
                Ok(backend) => break backend,
                Err(_) => Clock::sleep(Nanos::from_millis(5)),
            }
        };
        let mut client = Client::over(Box::new(backend), NAMESPACE).unwrap();
        let mut found = vec![0; BLOCK];
        for round in 0..50_u8 {
            client.write(7, &vec![round; BLOCK], WriteDurability::NamespaceDefault).unwrap();
            client.read(7, &mut found).unwrap();
            assert!(found.iter().all(|byte| *byte == round));
        }
        drop(client);
        handle.request();
        serving.join().unwrap();
        over.store(true, Ordering::Relaxed);
    });
}
