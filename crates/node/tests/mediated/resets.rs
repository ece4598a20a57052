//! What a controller does that resets, forgets or goes away: each client's commands have one answer each.

use crate::desk::{Client, Desk, NAMESPACE, at};
use headwater_frontend::attach::executor::Executor as _;
use headwater_nvme::driver::Death;
use headwater_nvme::spec::nvm::{self, BlockOptions, BlockRange};
use headwater_nvme::spec::status::Status;
use headwater_ssd::nvme::rings::rights::Access;

fn read(start: u64) -> headwater_nvme::spec::command::SubmissionEntry {
    nvm::read(NAMESPACE, BlockRange { start, blocks: 1 }, at(0), BlockOptions::NONE)
}

/// Two clients with commands that the controller has and does not answer.
fn waiting() -> (Desk, [Client; 2]) {
    let mut desk = Desk::new();
    let mut clients = [desk.client(Access::Write, 0..100, 32), desk.client(Access::Write, 100..200, 32)];
    desk.machine.lock().faults.holds = true;
    for (client, first) in clients.iter_mut().zip([0, 100]) {
        for block in 0..20 {
            client.submit(read(first + block));
        }
    }
    desk.turns(3);
    assert_eq!(desk.machine.lock().held.len(), 40);
    (desk, clients)
}

#[test]
fn a_reset_answers_every_command_of_every_client_once() {
    let (mut desk, mut clients) = waiting();
    desk.machine.lock().faults.fatal = true;
    desk.turn();
    {
        let faults = &mut desk.machine.lock().faults;
        (faults.fatal, faults.holds) = (false, false);
    }
    // Rung while nobody can take it.
    let late = clients[1].submit(read(150));
    for (client, count) in clients.iter_mut().zip([20, 21]) {
        let answers = desk.answers(client, count);
        assert_eq!(answers.len(), count);
        let lost = answers.values().filter(|status| **status == Status::ABORTED_BY_HOST).count();
        assert_eq!(lost, 20);
        if count == 21 {
            assert_eq!(answers[&late], Status::SUCCESS, "it waits for the controller to come back");
        }
    }
    assert_eq!(desk.device.driver().resets(), 1);
    assert_eq!(desk.one(&mut clients[0], read(5)), Status::SUCCESS);
    assert_eq!((desk.executor.rings().in_flight(), desk.lent()), (0, 2));
}

#[test]
fn commands_that_were_answered_before_a_reset_keep_their_answers() {
    let (mut desk, mut clients) = waiting();
    desk.machine.lock().release();
    desk.machine.lock().faults.fatal = true;
    desk.device.turn(desk.now);
    desk.machine.lock().faults.fatal = false;
    for client in &mut clients {
        assert!(desk.answers(client, 20).values().all(|status| status.is_success()));
    }
}

#[test]
fn a_completion_that_never_comes_is_made_up_for_by_a_reset() {
    let mut desk = Desk::new();
    let mut client = desk.client(Access::Write, 0..100, 32);
    {
        let faults = &mut desk.machine.lock().faults;
        (faults.lost, faults.ignores_aborts) = (1, true);
    }
    for block in 0..5 {
        client.submit(read(block));
    }
    let mut answers = desk.answers(&mut client, 4);
    assert!(answers.values().all(|status| status.is_success()));
    answers = desk.answers(&mut client, 1);
    assert_eq!(answers.into_values().collect::<Vec<_>>(), [Status::ABORTED_BY_HOST]);
    assert_eq!(desk.device.driver().resets(), 1);
}

#[test]
fn a_controller_that_is_removed_answers_what_it_has_and_everything_later() {
    let (mut desk, mut clients) = waiting();
    desk.machine.lock().faults.removed = true;
    for client in &mut clients {
        let answers = desk.answers(client, 20);
        assert!(answers.values().all(|status| *status == Status::ABORTED_BY_HOST));
    }
    assert_eq!(desk.device.death(), Some(Death::Removed));
    assert_eq!(desk.one(&mut clients[0], read(1)), Status::INTERNAL_ERROR);
    for client in clients {
        desk.executor.rings_mut().remove_client(client.id);
    }
    assert_eq!(desk.lent(), 0);
}

#[test]
fn what_was_rung_for_before_a_drain_is_answered() {
    let (mut desk, mut clients) = waiting();
    desk.executor.rings_mut().drain();
    desk.turns(3);
    assert!(!desk.executor.rings().is_drained());
    desk.machine.lock().release();
    for client in &mut clients {
        assert!(desk.answers(client, 20).values().all(|status| status.is_success()));
    }
    assert!(desk.executor.rings().is_drained());
}
