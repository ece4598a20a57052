//! Tests of the driver with a controller that is slow, unresponsive, faulty or removed.

use crate::host_harness::{HostHarness, TestQueue, config, run, small, spec, succeeded};
use headwater_host::clock::Nanos;
use headwater_nvme::controller::ControllerConfig;
use headwater_nvme::driver::{
    AdminRequestData, CapabilityFault, DeathCause, DriverConfig, DriverPhase, IoQueueState, PciFunctionError,
    RequestError, ResetCause,
};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use headwater_testkit::nvme_machine::InjectedFaults;

fn with_commands(host: &mut HostHarness, count: u32) -> Box<TestQueue> {
    let mut queue = host.queue(31);
    let buffer = host.buffer(4_096);
    for _ in 0..count {
        queue.submit(small(false, 0, 512), &[run(&buffer, 0, 512)], ()).unwrap();
    }
    queue.ring();
    queue
}

fn set(host: &HostHarness, change: impl FnOnce(&mut InjectedFaults)) {
    change(&mut host.machine.lock().faults);
}

fn refuse(host: &HostHarness, opcode: AdminOpcode) {
    host.machine.lock().faults.refused_opcodes.insert(opcode.number(), Status::INTERNAL_ERROR);
}

#[test]
fn an_overdue_command_is_aborted_and_completes_once() {
    let mut host = HostHarness::ready();
    set(&host, |faults| faults.holds_commands = true);
    let mut queue = with_commands(&mut host, 9);
    let answers = host.drain_completions(&mut queue);
    assert_eq!(answers.len(), 9);
    assert!(answers.iter().all(|done| done.status == Status::ABORT_REQUESTED));
    assert_eq!((host.driver.resets(), queue.state()), (0, IoQueueState::Live));
    set(&host, |faults| faults.holds_commands = false);
    let buffer = host.buffer(4_096);
    succeeded(host.execute(&mut queue, small(false, 0, 512), &[run(&buffer, 0, 512)]));
}

#[test]
fn a_lost_completion_costs_an_abort_and_then_a_reset() {
    let mut host = HostHarness::ready();
    set(&host, |faults| faults.lost_completions = 1);
    let mut queue = with_commands(&mut host, 5);
    set(&host, |faults| faults.ignores_aborts = true);
    let answers = host.drain_completions(&mut queue);
    assert_eq!(answers.len(), 4, "the posted completions");
    set(&host, |faults| faults.ignores_aborts = false);
    assert_eq!(host.settle(), DriverPhase::Ready);
    assert_eq!(host.driver.resets(), 1);
    assert_eq!(queue.state(), IoQueueState::Lost);
    assert_eq!(queue.abandon().unwrap().len(), 1, "the lost completion");
}

#[test]
fn late_and_reordered_completions_reach_their_commands() {
    let mut host = HostHarness::ready();
    set(&host, |faults| faults.holds_commands = true);
    let mut queue = with_commands(&mut host, 20);
    host.turn();
    assert_eq!(host.machine.lock().held.len(), 20);
    host.machine.lock().complete_held();
    let answers = host.drain_completions(&mut queue);
    assert_eq!(answers.len(), 20);
    answers.into_iter().for_each(succeeded);
}

#[test]
fn a_transient_fatal_status_is_recovered_and_a_permanent_one_is_given_up() {
    let mut host = HostHarness::ready();
    let queue = with_commands(&mut host, 3);
    set(&host, |faults| faults.fatal = true);
    host.driver.poll(host.now);
    assert!(matches!(host.driver.reset_cause(), Some(ResetCause::Fatal { status: 3 })));
    set(&host, |faults| faults.fatal = false);
    assert_eq!(host.settle(), DriverPhase::Ready);
    assert_eq!(queue.state(), IoQueueState::Lost);
    set(&host, |faults| faults.fatal = true);
    assert_eq!(host.settle(), DriverPhase::Dead);
    assert!(matches!(
        host.driver.death_cause(),
        Some(DeathCause::GaveUp { resets: 3, cause: ResetCause::Fatal { .. } })
    ));
    assert_eq!(queue.abandon().unwrap().len(), 3);
}

#[test]
fn an_unresponsive_controller_is_given_up_after_the_allowed_resets() {
    let mut host = HostHarness::ready();
    set(&host, |faults| faults.unresponsive = true);
    let mut queue = with_mute_commands(&mut host);
    let before = host.now;
    let _ = host.drain_completions(&mut queue);
    assert_eq!(host.settle(), DriverPhase::Dead);
    let Some(DeathCause::GaveUp { resets: 3, cause: trouble }) = host.driver.death_cause() else {
        panic!("{:?}", host.driver.death_cause())
    };
    assert!(matches!(trouble, ResetCause::AdminTimeout { .. }), "{trouble}");
    assert!(host.now.since(before) < Nanos::from_millis(60_000), "it ends in bounded time");
    assert_eq!(queue.abandon().unwrap().len(), 4);
    assert!(!host.machine.lock().mastering);
}

fn with_mute_commands(host: &mut HostHarness) -> Box<TestQueue> {
    set(host, |faults| faults.unresponsive = false);
    let queue = host.queue(4);
    set(host, |faults| faults.unresponsive = true);
    let mut queue = queue;
    let buffer = host.buffer(4_096);
    for _ in 0..4 {
        queue.submit(small(false, 0, 512), &[run(&buffer, 0, 512)], ()).unwrap();
    }
    queue.ring();
    queue
}

#[test]
fn the_count_of_resets_restarts_after_the_settle_time() {
    let mut host = HostHarness::ready();
    for round in 1..=10_u64 {
        host.driver.reset(host.now);
        assert_eq!(host.settle(), DriverPhase::Ready);
        assert_eq!(host.driver.resets(), round);
        let settled = host.now.after(config().settle_time);
        while host.now <= settled {
            host.turn();
        }
    }
    for _ in 0..3 {
        host.driver.reset(host.now);
        assert_eq!(host.settle(), DriverPhase::Ready);
    }
    host.driver.reset(host.now);
    assert_eq!(host.settle(), DriverPhase::Dead, "the fourth in a row");
}

#[test]
fn removal_is_final_at_once_and_fails_every_request() {
    let mut host = HostHarness::ready();
    set(&host, |faults| faults.holds_commands = true);
    let mut queue = with_commands(&mut host, 6);
    let entry = SubmissionEntry { opcode: AdminOpcode::KeepAlive.number(), ..SubmissionEntry::default() };
    set(&host, |faults| faults.unresponsive = true);
    let asked = host.driver.submit_admin(entry, AdminRequestData::None, host.now).unwrap();
    let making = host.driver.request_queue(spec(3), host.now).unwrap();
    set(&host, |faults| faults.removed = true);
    assert_eq!(host.turn(), DriverPhase::Dead);
    assert_eq!((host.driver.death_cause(), host.driver.is_dma_stopped()), (Some(DeathCause::Removed), true));
    assert_eq!((queue.state(), queue.reap()), (IoQueueState::Dead, None));
    queue.ring();
    assert_eq!(queue.abandon().unwrap().len(), 6);
    assert_eq!(host.driver.take_reply(asked).unwrap().status, Status::ABORTED_BY_HOST);
    assert!(host.driver.take_queue(making).unwrap().is_err());
    assert_eq!(
        host.driver.submit_admin(entry, AdminRequestData::None, host.now),
        Err(RequestError::NotReady)
    );
}

#[test]
fn absent_unstartable_and_out_of_memory_controllers_have_distinct_reasons() {
    let mut host = HostHarness::new();
    set(&host, |faults| faults.removed = true);
    assert_eq!(host.start(), DriverPhase::Dead);
    assert_eq!(host.driver.death_cause(), Some(DeathCause::Implausible(CapabilityFault::Absent)));
    let mut host = HostHarness::new();
    set(&host, |faults| faults.mastering_fails = true);
    assert_eq!(host.start(), DriverPhase::Dead);
    assert_eq!(host.driver.death_cause(), Some(DeathCause::Mastering(PciFunctionError { errno: 5 })));
    let mut host = HostHarness::new();
    host.machine.lock().memory_max = 8_192;
    assert_eq!(host.start(), DriverPhase::Dead);
    assert_eq!(host.driver.death_cause(), Some(DeathCause::NoMemory));
}

#[test]
fn a_controller_that_does_not_stop_gets_a_function_reset() {
    let mut host = HostHarness::ready();
    let queue = with_commands(&mut host, 3);
    set(&host, |faults| faults.stuck_ready = true);
    host.driver.reset(host.now);
    assert_eq!(queue.state(), IoQueueState::Waiting, "the controller may still run");
    set(&host, |faults| faults.holds_commands = false);
    assert_eq!(host.settle(), DriverPhase::Ready);
    assert_eq!(host.machine.lock().function_resets, 1);
    assert_eq!(queue.state(), IoQueueState::Lost);
    set(&host, |faults| faults.reset_fails = true);
    host.driver.reset(host.now);
    assert_eq!(host.settle(), DriverPhase::Dead);
    assert_eq!(host.driver.death_cause(), Some(DeathCause::Unstoppable(PciFunctionError { errno: 95 })));
    assert!(host.driver.is_dma_stopped(), "its bus mastering is off");
}

#[test]
fn a_controller_that_cannot_be_stopped_keeps_its_memory() {
    let mut host = HostHarness::ready();
    set(&host, |faults| {
        (faults.stuck_ready, faults.reset_fails, faults.mastering_fails) = (true, true, true);
    });
    host.driver.reset(host.now);
    assert_eq!(host.settle(), DriverPhase::Dead);
    assert!(!host.driver.is_dma_stopped());
    let before = host.driver.death_cause();
    host.driver.close(host.now);
    assert_eq!(host.driver.death_cause(), before, "the first reason is kept");
}

#[test]
fn a_controller_that_never_becomes_ready_is_given_up() {
    let mut host = HostHarness::new();
    set(&host, |faults| faults.never_ready = true);
    assert_eq!(host.start(), DriverPhase::Dead);
    assert!(matches!(
        host.driver.death_cause(),
        Some(DeathCause::GaveUp { resets: 3, cause: ResetCause::EnableTimeout { status: 0 } })
    ));
}

#[test]
fn a_refused_mandatory_command_is_retried_and_then_named_in_the_error() {
    for (opcode, expected) in [
        (AdminOpcode::Identify, "Identify Controller"),
        (AdminOpcode::SetFeatures, "Set Features Number of Queues"),
    ] {
        let mut host = HostHarness::new();
        refuse(&host, opcode);
        assert_eq!(host.start(), DriverPhase::Dead);
        let Some(DeathCause::GaveUp { cause: ResetCause::Refused { command: what, status }, .. }) =
            host.driver.death_cause()
        else {
            panic!("{:?}", host.driver.death_cause())
        };
        assert_eq!((what, status), (expected, Status::INTERNAL_ERROR));
    }
    let mut host = HostHarness::new();
    refuse(&host, AdminOpcode::GetLogPage);
    assert_eq!(host.start(), DriverPhase::Ready, "an optional command is skipped");
}

#[test]
fn with_one_reset_allowed_the_second_reset_gives_up() {
    let config = DriverConfig { resets_max: 1, ..config() };
    let mut host = HostHarness::with(ControllerConfig::pcie(1), config);
    assert_eq!(host.start(), DriverPhase::Ready);
    host.driver.reset(host.now);
    assert_eq!(host.settle(), DriverPhase::Ready);
    host.driver.reset(host.now);
    assert_eq!(host.settle(), DriverPhase::Dead);
}
