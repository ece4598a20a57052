//! A controller that is slow, mute, broken or gone.

use crate::machine::Faults;
use crate::shop::{Queue, Shop, config, run, small, spec, succeeded};
use headwater_host::clock::Nanos;
use headwater_nvme::controller::ControllerConfig;
use headwater_nvme::driver::{
    AdminBytes, CapabilityFault, Death, DriverConfig, Fate, FunctionError, Phase, RequestError, Trouble,
};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;

fn with_commands(shop: &mut Shop, count: u32) -> Box<Queue> {
    let mut queue = shop.queue(31);
    let buffer = shop.buffer(4_096);
    for _ in 0..count {
        queue.submit(small(false, 0, 512), &[run(&buffer, 0, 512)]).unwrap();
    }
    queue.ring();
    queue
}

fn set(shop: &Shop, change: impl FnOnce(&mut Faults)) {
    change(&mut shop.machine.lock().faults);
}

fn refuse(shop: &Shop, opcode: AdminOpcode) {
    shop.machine.lock().faults.refuses.insert(opcode.number(), Status::INTERNAL_ERROR);
}

#[test]
fn a_command_that_takes_too_long_is_aborted_and_answered_once() {
    let mut shop = Shop::ready();
    set(&shop, |faults| faults.holds = true);
    let mut queue = with_commands(&mut shop, 9);
    let answers = shop.answers(&mut queue);
    assert_eq!(answers.len(), 9);
    assert!(answers.iter().all(|done| done.status == Status::ABORT_REQUESTED));
    assert_eq!((shop.driver.resets(), queue.fate()), (0, Fate::Live));
    set(&shop, |faults| faults.holds = false);
    let buffer = shop.buffer(4_096);
    succeeded(shop.one(&mut queue, small(false, 0, 512), &[run(&buffer, 0, 512)]));
}

#[test]
fn a_lost_completion_costs_an_abort_and_then_a_reset() {
    let mut shop = Shop::ready();
    set(&shop, |faults| faults.lost = 1);
    let mut queue = with_commands(&mut shop, 5);
    set(&shop, |faults| faults.ignores_aborts = true);
    let answers = shop.answers(&mut queue);
    assert_eq!(answers.len(), 4, "those that were told");
    set(&shop, |faults| faults.ignores_aborts = false);
    assert_eq!(shop.settle(), Phase::Ready);
    assert_eq!(shop.driver.resets(), 1);
    assert_eq!(queue.fate(), Fate::Lost);
    assert_eq!(queue.abandon().unwrap().len(), 1, "the one that was not");
}

#[test]
fn answers_out_of_order_and_late_ones_reach_their_commands() {
    let mut shop = Shop::ready();
    set(&shop, |faults| faults.holds = true);
    let mut queue = with_commands(&mut shop, 20);
    shop.turn();
    assert_eq!(shop.machine.lock().held.len(), 20);
    shop.machine.lock().release();
    let answers = shop.answers(&mut queue);
    assert_eq!(answers.len(), 20);
    answers.into_iter().for_each(succeeded);
}

#[test]
fn a_fatal_status_is_recovered_from_and_a_lasting_one_ends() {
    let mut shop = Shop::ready();
    let queue = with_commands(&mut shop, 3);
    set(&shop, |faults| faults.fatal = true);
    shop.driver.poll(shop.now);
    assert!(matches!(shop.driver.trouble(), Some(Trouble::Fatal { status: 3 })));
    set(&shop, |faults| faults.fatal = false);
    assert_eq!(shop.settle(), Phase::Ready);
    assert_eq!(queue.fate(), Fate::Lost);
    set(&shop, |faults| faults.fatal = true);
    assert_eq!(shop.settle(), Phase::Dead);
    assert!(matches!(shop.driver.death(), Some(Death::GaveUp { resets: 3, trouble: Trouble::Fatal { .. } })));
    assert_eq!(queue.abandon().unwrap().len(), 3);
}

#[test]
fn a_mute_controller_is_given_up_after_as_many_resets_as_allowed() {
    let mut shop = Shop::ready();
    set(&shop, |faults| faults.mute = true);
    let mut queue = with_mute_commands(&mut shop);
    let before = shop.now;
    let _ = shop.answers(&mut queue);
    assert_eq!(shop.settle(), Phase::Dead);
    let Some(Death::GaveUp { resets: 3, trouble }) = shop.driver.death() else {
        panic!("{:?}", shop.driver.death())
    };
    assert!(matches!(trouble, Trouble::AdminTimeout { .. }), "{trouble}");
    assert!(shop.now.since(before) < Nanos::from_millis(60_000), "it ends in bounded time");
    assert_eq!(queue.abandon().unwrap().len(), 4);
    assert!(!shop.machine.lock().mastering);
}

fn with_mute_commands(shop: &mut Shop) -> Box<Queue> {
    set(shop, |faults| faults.mute = false);
    let queue = shop.queue(4);
    set(shop, |faults| faults.mute = true);
    let mut queue = queue;
    let buffer = shop.buffer(4_096);
    for _ in 0..4 {
        queue.submit(small(false, 0, 512), &[run(&buffer, 0, 512)]).unwrap();
    }
    queue.ring();
    queue
}

#[test]
fn resets_are_counted_anew_after_a_quiet_time() {
    let mut shop = Shop::ready();
    for round in 1..=10_u64 {
        shop.driver.reset(shop.now);
        assert_eq!(shop.settle(), Phase::Ready);
        assert_eq!(shop.driver.resets(), round);
        let quiet = shop.now.after(config().settle);
        while shop.now <= quiet {
            shop.turn();
        }
    }
    for _ in 0..3 {
        shop.driver.reset(shop.now);
        assert_eq!(shop.settle(), Phase::Ready);
    }
    shop.driver.reset(shop.now);
    assert_eq!(shop.settle(), Phase::Dead, "the fourth in a row");
}

#[test]
fn removal_is_death_at_once_and_answers_everything() {
    let mut shop = Shop::ready();
    set(&shop, |faults| faults.holds = true);
    let mut queue = with_commands(&mut shop, 6);
    let entry = SubmissionEntry { opcode: AdminOpcode::KeepAlive.number(), ..SubmissionEntry::default() };
    set(&shop, |faults| faults.mute = true);
    let asked = shop.driver.admin(entry, AdminBytes::None, shop.now).unwrap();
    let making = shop.driver.make_queue(spec(3), shop.now).unwrap();
    set(&shop, |faults| faults.removed = true);
    assert_eq!(shop.turn(), Phase::Dead);
    assert_eq!((shop.driver.death(), shop.driver.is_quiet()), (Some(Death::Removed), true));
    assert_eq!((queue.fate(), queue.reap()), (Fate::Dead, None));
    queue.ring();
    assert_eq!(queue.abandon().unwrap().len(), 6);
    assert_eq!(shop.driver.take_reply(asked).unwrap().status, Status::ABORTED_BY_HOST);
    assert!(shop.driver.take_queue(making).unwrap().is_err());
    assert_eq!(shop.driver.admin(entry, AdminBytes::None, shop.now), Err(RequestError::NotReady));
}

#[test]
fn a_controller_that_is_not_there_is_told_from_one_that_makes_no_sense() {
    let mut shop = Shop::new();
    set(&shop, |faults| faults.removed = true);
    assert_eq!(shop.start(), Phase::Dead);
    assert_eq!(shop.driver.death(), Some(Death::Implausible(CapabilityFault::Absent)));
    let mut shop = Shop::new();
    set(&shop, |faults| faults.no_mastering = true);
    assert_eq!(shop.start(), Phase::Dead);
    assert_eq!(shop.driver.death(), Some(Death::Mastering(FunctionError { errno: 5 })));
    let mut shop = Shop::new();
    shop.machine.lock().memory_max = 8_192;
    assert_eq!(shop.start(), Phase::Dead);
    assert_eq!(shop.driver.death(), Some(Death::NoMemory));
}

#[test]
fn a_controller_that_does_not_stop_is_reset_as_a_function() {
    let mut shop = Shop::ready();
    let queue = with_commands(&mut shop, 3);
    set(&shop, |faults| faults.stuck_ready = true);
    shop.driver.reset(shop.now);
    assert_eq!(queue.fate(), Fate::Waiting, "nobody knows yet that it stopped");
    set(&shop, |faults| faults.holds = false);
    assert_eq!(shop.settle(), Phase::Ready);
    assert_eq!(shop.machine.lock().function_resets, 1);
    assert_eq!(queue.fate(), Fate::Lost);
    set(&shop, |faults| faults.no_reset = true);
    shop.driver.reset(shop.now);
    assert_eq!(shop.settle(), Phase::Dead);
    assert_eq!(shop.driver.death(), Some(Death::Unstoppable(FunctionError { errno: 95 })));
    assert!(shop.driver.is_quiet(), "its bus mastering is off");
}

#[test]
fn a_controller_that_nothing_stops_keeps_what_it_was_lent() {
    let mut shop = Shop::ready();
    set(&shop, |faults| (faults.stuck_ready, faults.no_reset, faults.no_mastering) = (true, true, true));
    shop.driver.reset(shop.now);
    assert_eq!(shop.settle(), Phase::Dead);
    assert!(!shop.driver.is_quiet());
    let before = shop.driver.death();
    shop.driver.close(shop.now);
    assert_eq!(shop.driver.death(), before, "the first reason stays");
}

#[test]
fn a_controller_that_never_becomes_ready_is_given_up() {
    let mut shop = Shop::new();
    set(&shop, |faults| faults.never_ready = true);
    assert_eq!(shop.start(), Phase::Dead);
    assert!(matches!(
        shop.driver.death(),
        Some(Death::GaveUp { resets: 3, trouble: Trouble::EnableTimeout { status: 0 } })
    ));
}

#[test]
fn what_nothing_goes_without_is_tried_again_and_then_told_by_name() {
    for (opcode, expected) in [
        (AdminOpcode::Identify, "Identify Controller"),
        (AdminOpcode::SetFeatures, "Set Features Number of Queues"),
    ] {
        let mut shop = Shop::new();
        refuse(&shop, opcode);
        assert_eq!(shop.start(), Phase::Dead);
        let Some(Death::GaveUp { trouble: Trouble::Refused { what, status }, .. }) = shop.driver.death()
        else {
            panic!("{:?}", shop.driver.death())
        };
        assert_eq!((what, status), (expected, Status::INTERNAL_ERROR));
    }
    let mut shop = Shop::new();
    refuse(&shop, AdminOpcode::GetLogPage);
    assert_eq!(shop.start(), Phase::Ready, "what can be done without is");
}

#[test]
fn recovery_of_a_controller_with_one_reset_allowed_is_one_reset() {
    let config = DriverConfig { resets_max: 1, ..config() };
    let mut shop = Shop::with(ControllerConfig::pcie(1), config);
    assert_eq!(shop.start(), Phase::Ready);
    shop.driver.reset(shop.now);
    assert_eq!(shop.settle(), Phase::Ready);
    shop.driver.reset(shop.now);
    assert_eq!(shop.settle(), Phase::Dead);
}
