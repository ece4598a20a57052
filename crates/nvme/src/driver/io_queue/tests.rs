//! Tests of an I/O queue against a controller that the test plays itself: it writes arbitrary completion entries.

use super::*;
use crate::driver::lifecycle::DriverPhase;
use crate::driver::memory::DmaBlock;
use crate::driver::ring_pair::{DoorbellOffsets, PairMemory};
use crate::ring::layout::QueueSlots;
use crate::spec::completion::{CompletionEntry, PhaseTag as Tag};
use headwater_host::registers::SimulatedRegisters;
use headwater_host::ring_memory::HeapWords;
use zerocopy::little_endian::U16;

const DEPTH: u32 = 3;
const SLOTS: u32 = DEPTH + 1;
const TAIL: usize = 0x1008;
const HEAD: usize = 0x100C;
const TIMEOUT: Nanos = Nanos(400);

struct QueueHarness {
    queue: IoQueue<HeapWords, SimulatedRegisters, usize>,
    /// The context of the next command: commands are counted.
    submitted: usize,
    registers: SimulatedRegisters,
    completions: HeapWords,
    life: SharedLifecycle,
    tail: u32,
    tag: Tag,
}

fn puppet() -> QueueHarness {
    let words = HeapWords::zeroed(64);
    let completions = HeapWords::zeroed(8);
    let memory = PairMemory {
        submissions: DmaBlock { words: words.clone(), address: 0x1000 },
        completions: DmaBlock { words: completions.clone(), address: 0x2000 },
    };
    let registers = SimulatedRegisters::new(0x2000);
    let doorbells = DoorbellOffsets { tail: TAIL, head: HEAD };
    let pair = RingPair::new(1, QueueSlots::new(SLOTS).unwrap(), &memory, registers.clone(), doorbells);
    let lists = DmaBlock { words: HeapWords::zeroed(512), address: 0x3000 };
    let lists = ListPages::within(&lists, crate::data_pointer::PageBytes::MIN);
    let life = SharedLifecycle::new();
    life.set(DriverPhase::Ready);
    let rules = TransferRules { sgl: SglUse::Never, transfer_bytes_max: 1 << 20 };
    let queue = IoQueue::new(pair, lists, rules, life.clone(), TIMEOUT, Nanos::ZERO).carrying();
    QueueHarness { queue, submitted: 0, registers, completions, life, tail: 0, tag: Tag::One }
}

impl QueueHarness {
    fn submit(&mut self) -> CommandId {
        let command = self.queue.submit(SubmissionEntry::default(), &[], self.submitted).unwrap();
        self.submitted += 1;
        command
    }

    /// Posts a completion with these fields, valid or not.
    fn post(&mut self, command: u16, queue: u16, head: u16) {
        let entry = CompletionEntry {
            command_id: U16::new(command),
            submission_queue: U16::new(queue),
            submission_head: U16::new(head),
            ..CompletionEntry::default()
        };
        let [first, second] = entry.with_phase(self.tag).to_words();
        self.completions.store_relaxed(self.tail as usize * 2, first);
        self.completions.store_release(self.tail as usize * 2 + 1, second);
        self.tail = (self.tail + 1) % SLOTS;
        if self.tail == 0 {
            self.tag = self.tag.flipped();
        }
    }
}

#[test]
fn completions_are_reaped_over_many_wraps_and_the_doorbells_follow() {
    let mut puppet = puppet();
    for round in 0..50_u32 {
        let command = puppet.submit();
        puppet.queue.ring();
        assert_eq!(puppet.registers.load32(TAIL), (round + 1) % SLOTS);
        assert_eq!(puppet.queue.reap(), None, "entries of the last wrap are not new");
        puppet.post(command.number(), 1, u16::try_from((round + 1) % SLOTS).unwrap());
        assert_eq!(puppet.queue.reap().unwrap().command, command);
        puppet.queue.ring();
        assert_eq!(puppet.registers.load32(HEAD), (round + 1) % SLOTS);
    }
    assert_eq!((puppet.queue.stray_completions(), puppet.queue.fault()), (0, None));
}

#[test]
fn duplicate_stale_unknown_and_foreign_completions_are_dropped() {
    let mut puppet = puppet();
    let first = puppet.submit();
    let second = puppet.submit();
    puppet.queue.ring();
    puppet.post(first.number(), 1, 1);
    puppet.post(first.number(), 1, 1);
    assert_eq!(puppet.queue.reap().unwrap().command, first);
    assert_eq!(puppet.queue.reap(), None, "duplicate");
    puppet.post(second.number(), 2, 1);
    assert_eq!(puppet.queue.reap(), None, "another queue's");
    puppet.post(0x7777, 1, 1);
    assert_eq!(puppet.queue.reap(), None, "never allocated");
    assert_eq!((puppet.queue.stray_completions(), puppet.queue.in_flight()), (3, 1));
    puppet.post(second.number(), 1, 2);
    assert_eq!(puppet.queue.reap().unwrap().command, second);
    // The slot of the first is used again: its old id is stale.
    let (third, fourth) = (puppet.submit(), puppet.submit());
    puppet.queue.ring();
    puppet.post(first.number(), 1, 3);
    assert_eq!(puppet.queue.reap(), None, "stale");
    puppet.post(fourth.number(), 1, 0);
    puppet.post(third.number(), 1, 0);
    assert_eq!(puppet.queue.reap().unwrap().command, fourth, "out of order");
    assert_eq!(puppet.queue.reap().unwrap().command, third);
    assert_eq!((puppet.queue.in_flight(), puppet.queue.fault()), (0, None));
}

#[test]
fn too_many_strays_and_an_impossible_head_are_queue_faults() {
    let mut flooded = puppet();
    let command = flooded.submit();
    flooded.queue.ring();
    for _ in 0..STRAYS_MAX {
        flooded.post(command.number() ^ 0x8000, 1, 0);
        assert_eq!(flooded.queue.reap(), None);
    }
    assert_eq!(flooded.queue.fault(), Some(QueueFault::StrayCompletions { count: STRAYS_MAX }));
    let mut wrong = puppet();
    let command = wrong.submit();
    wrong.queue.ring();
    wrong.post(command.number(), 1, 3);
    assert_eq!(wrong.queue.reap().unwrap().command, command, "the completion itself is valid");
    assert_eq!(wrong.queue.fault(), Some(QueueFault::Head { head: 3 }));
}

#[test]
fn overdue_commands_are_reported_once_per_timeout_and_not_before() {
    let mut puppet = puppet();
    let early = puppet.submit();
    let mut found = Vec::new();
    let mut at = |puppet: &mut QueueHarness, now| {
        found.clear();
        puppet.queue.check_timeouts(Nanos(now), |overdue| found.push(overdue));
        found.clone()
    };
    for now in [99, 100, 200, 300, 400] {
        assert_eq!(at(&mut puppet, now), [], "{now}");
    }
    let late = puppet.submit();
    assert_eq!(at(&mut puppet, 500), [OverdueCommand::Abort(early)]);
    for now in [600, 700, 800] {
        assert_eq!(at(&mut puppet, now), [], "{now}");
    }
    assert_eq!(at(&mut puppet, 900), [OverdueCommand::Abort(late)]);
    assert_eq!(at(&mut puppet, 1_000), [OverdueCommand::Stuck(early)]);
    assert_eq!(puppet.queue.next_timeout_check(), Nanos(1_100));
}

#[test]
fn no_doorbell_is_rung_and_no_command_accepted_during_a_reset() {
    let mut puppet = puppet();
    puppet.submit();
    puppet.queue.ring();
    puppet.submit();
    puppet.life.set(DriverPhase::Recovering);
    puppet.queue.ring();
    assert_eq!(puppet.registers.load32(TAIL), 1);
    assert_eq!(puppet.queue.submit(SubmissionEntry::default(), &[], 7), Err((SubmitFault::NotLive, 7)));
    let queue = puppet.queue.abandon().unwrap_err();
    puppet.life.next_epoch();
    puppet.life.set(DriverPhase::Ready);
    assert_eq!(queue.state(), IoQueueState::Lost, "the epoch has advanced");
    assert_eq!(queue.abandon().unwrap(), [0, 1]);
}
