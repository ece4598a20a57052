//! A controller that is reset, loses commands or is removed: each command of each client has one completion.

use crate::harness::{MediatedClient, MediatedHarness, NAMESPACE, at};
use headwater_frontend::attach::executor::EntryExecutor as _;
use headwater_nvme::driver::DeathCause;
use headwater_nvme::spec::nvm::{self, BlockOptions, BlockRange};
use headwater_nvme::spec::status::Status;
use headwater_ssd::nvme::rings::rights::AccessLevel;

fn read(start: u64) -> headwater_nvme::spec::command::SubmissionEntry {
    nvm::read(NAMESPACE, BlockRange { start, blocks: 1 }, at(0), BlockOptions::NONE)
}

/// Creates two clients with commands that the controller holds and does not complete.
fn waiting() -> (MediatedHarness, [MediatedClient; 2]) {
    let mut harness = MediatedHarness::new();
    let mut clients =
        [harness.client(AccessLevel::Write, 0..100, 32), harness.client(AccessLevel::Write, 100..200, 32)];
    harness.machine.lock().faults.holds_commands = true;
    for (client, first) in clients.iter_mut().zip([0, 100]) {
        for block in 0..20 {
            client.submit(read(first + block));
        }
    }
    harness.turns(3);
    assert_eq!(harness.machine.lock().held.len(), 40);
    (harness, clients)
}

#[test]
fn a_reset_completes_every_command_of_every_client_once() {
    let (mut harness, mut clients) = waiting();
    harness.machine.lock().faults.fatal = true;
    harness.turn();
    {
        let faults = &mut harness.machine.lock().faults;
        (faults.fatal, faults.holds_commands) = (false, false);
    }
    // Submitted while the controller accepts no command.
    let late = clients[1].submit(read(150));
    for (client, count) in clients.iter_mut().zip([20, 21]) {
        let answers = harness.wait_completions(client, count);
        assert_eq!(answers.len(), count);
        let lost = answers.values().filter(|status| **status == Status::ABORTED_BY_HOST).count();
        assert_eq!(lost, 20);
        if count == 21 {
            assert_eq!(answers[&late], Status::SUCCESS, "it must wait until the controller is ready again");
        }
    }
    assert_eq!(harness.device.driver().resets(), 1);
    assert_eq!(harness.run_one(&mut clients[0], read(5)), Status::SUCCESS);
    assert_eq!((harness.executor.rings().in_flight(), harness.mapped_regions()), (0, 2));
}

#[test]
fn commands_completed_before_a_reset_keep_their_status() {
    let (mut harness, mut clients) = waiting();
    harness.machine.lock().complete_held();
    harness.machine.lock().faults.fatal = true;
    harness.device.poll_controller(harness.now);
    harness.machine.lock().faults.fatal = false;
    for client in &mut clients {
        assert!(harness.wait_completions(client, 20).values().all(|status| status.is_success()));
    }
}

#[test]
fn a_lost_completion_leads_to_a_reset_that_completes_the_command() {
    let mut harness = MediatedHarness::new();
    let mut client = harness.client(AccessLevel::Write, 0..100, 32);
    {
        let faults = &mut harness.machine.lock().faults;
        (faults.lost_completions, faults.ignores_aborts) = (1, true);
    }
    for block in 0..5 {
        client.submit(read(block));
    }
    let mut answers = harness.wait_completions(&mut client, 4);
    assert!(answers.values().all(|status| status.is_success()));
    answers = harness.wait_completions(&mut client, 1);
    assert_eq!(answers.into_values().collect::<Vec<_>>(), [Status::ABORTED_BY_HOST]);
    assert_eq!(harness.device.driver().resets(), 1);
}

#[test]
fn commands_of_a_removed_controller_fail_in_flight_and_later() {
    let (mut harness, mut clients) = waiting();
    harness.machine.lock().faults.removed = true;
    for client in &mut clients {
        let answers = harness.wait_completions(client, 20);
        assert!(answers.values().all(|status| *status == Status::ABORTED_BY_HOST));
    }
    assert_eq!(harness.device.death(), Some(DeathCause::Removed));
    assert_eq!(harness.run_one(&mut clients[0], read(1)), Status::INTERNAL_ERROR);
    for client in clients {
        harness.executor.rings_mut().remove_client(client.id);
    }
    assert_eq!(harness.mapped_regions(), 0);
}

#[test]
fn commands_submitted_before_a_drain_complete() {
    let (mut harness, mut clients) = waiting();
    harness.executor.rings_mut().drain();
    harness.turns(3);
    assert!(!harness.executor.rings().is_drained());
    harness.machine.lock().complete_held();
    for client in &mut clients {
        assert!(harness.wait_completions(client, 20).values().all(|status| status.is_success()));
    }
    assert!(harness.executor.rings().is_drained());
}
