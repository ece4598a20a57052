//! Seeded runs of queues that a host creates separately: several submission queues per completion queue against a plain
//! model, and a host that writes any value anywhere.

use crate::guest::{
    GuestCompletion, GuestSubmission, ShadowDoorbells, completion, controller, serve, submission,
    submission_spec,
};
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::{HeapWords, RingMemory as _};
use headwater_nvme::controller::{
    DoorbellCells, FetchedCommand, QueueArbiter, QueueArbitration, QueueId, SubmissionQueueSpec,
};
use headwater_nvme::spec::priority::QueuePriority;
use headwater_nvme::spec::status::Status;
use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};

const SUBMISSIONS: usize = 4;
const SLOTS: u32 = 4;

/// One step of a run.
#[derive(Clone, Debug)]
enum HostQueueStep {
    Submit(usize),
    Fetch,
    Complete(usize),
    Reap(usize),
    Interrupt,
    Sleep,
    /// Doorbell Buffer Config.
    Share,
    /// Delete a submission queue, and create it again when it is gone.
    Delete(usize),
    Reset,
}

fn step() -> impl Strategy<Value = HostQueueStep> {
    prop_oneof![
        8 => (0..SUBMISSIONS).prop_map(HostQueueStep::Submit),
        8 => Just(HostQueueStep::Fetch),
        8 => (0..64_usize).prop_map(HostQueueStep::Complete),
        4 => (0..2_usize).prop_map(HostQueueStep::Reap),
        2 => Just(HostQueueStep::Interrupt),
        2 => Just(HostQueueStep::Sleep),
        1 => Just(HostQueueStep::Share),
        1 => (0..SUBMISSIONS).prop_map(HostQueueStep::Delete),
        1 => Just(HostQueueStep::Reset),
    ]
}

/// A submission queue and the state of a plain model of it.
struct ModelQueue {
    queue: GuestSubmission<HeapWords>,
    /// Commands that have no completion yet.
    incomplete: BTreeSet<u16>,
    next_id: u16,
    deleting: bool,
}

struct HostQueueRun {
    arbiter: QueueArbiter<HeapWords>,
    subjects: Vec<ModelQueue>,
    answers: Vec<GuestCompletion<HeapWords>>,
    live: Vec<FetchedCommand>,
    /// By completion queue, the order of completion: what the guest must read.
    answered: [VecDeque<(u16, u16)>; 2],
    shadow: Option<ShadowDoorbells<HeapWords>>,
    /// True after `prepare_sleep` found no work: the guest must notify.
    asleep: bool,
}

fn spec_of(at: usize) -> SubmissionQueueSpec {
    // Two submission queues to each completion queue.
    let to = u16::try_from(at / 2 + 1).unwrap();
    let priority = QueuePriority::from_bits(u32::try_from(at).unwrap());
    SubmissionQueueSpec { priority, ..submission_spec(SLOTS, to) }
}

fn id_of(at: usize) -> u16 {
    u16::try_from(at + 1).unwrap()
}

impl HostQueueRun {
    fn new() -> Self {
        let mut run = Self {
            arbiter: controller(),
            subjects: Vec::new(),
            answers: Vec::new(),
            live: Vec::new(),
            answered: Default::default(),
            shadow: None,
            asleep: false,
        };
        run.create_queues();
        run
    }

    /// Resets the controller and creates the host's queues.
    fn create_queues(&mut self) {
        self.arbiter.reset(QueueArbitration::WeightedWithUrgent);
        self.shadow = None;
        self.answered = Default::default();
        self.answers = (1..3).map(|id| completion(&mut self.arbiter, id, SLOTS, Some(id))).collect();
        self.subjects = (0..SUBMISSIONS)
            .map(|at| ModelQueue {
                queue: submission(&mut self.arbiter, id_of(at), spec_of(at)),
                incomplete: BTreeSet::new(),
                next_id: 0,
                deleting: false,
            })
            .collect();
    }

    fn submit(&mut self, at: usize) {
        let subject = &mut self.subjects[at];
        // The guest learns of free slots from the completions that it read.
        if subject.deleting || subject.incomplete.len() + 1 >= usize::try_from(SLOTS).unwrap() {
            return;
        }
        let idle = self.arbiter.queue(subject.queue.id).unwrap();
        let may_notify = self.asleep && self.shadow.is_some() && idle.unposted() == 0;
        subject.incomplete.insert(subject.next_id);
        let notified = subject.queue.submit(&mut self.arbiter, subject.next_id);
        subject.next_id = subject.next_id.wrapping_add(1);
        if self.shadow.is_some() {
            assert!(self.asleep || !notified, "an awake controller was notified");
            assert!(
                !may_notify || notified || subject.incomplete.len() > 1,
                "a sleeping controller missed it"
            );
        }
    }

    fn answer(&mut self, fetched: FetchedCommand) {
        let (queue, id) = (fetched.token.queue(), fetched.token.command_id());
        if self.arbiter.is_current(&fetched.token) {
            let to = usize::from(queue.0 - 1) / 2;
            self.answered[to].push_back((queue.0, id));
        }
        self.arbiter.complete(fetched.token, u32::from(id), Status::SUCCESS);
    }

    fn reap(&mut self, which: usize) {
        let mut any = false;
        while let Some(entry) = self.answers[which].take() {
            any = true;
            let (queue, id) = (entry.submission_queue.get(), entry.command_id.get());
            if entry.status() == Status::SUCCESS {
                assert_eq!(self.answered[which].pop_front(), Some((queue, id)), "in order of completion");
                assert_eq!(entry.result.get(), u32::from(id));
            } else {
                assert_eq!(entry.status(), Status::ABORTED_SQ_DELETION);
            }
            let subject = &mut self.subjects[usize::from(queue - 1)];
            assert!(subject.incomplete.remove(&id), "command {id} of queue {queue} has a second completion");
        }
        if any {
            self.answers[which].ring(&mut self.arbiter);
        }
    }

    fn share(&mut self) {
        let shadow = ShadowDoorbells { doorbells: HeapWords::zeroed(64), events: HeapWords::zeroed(64) };
        self.arbiter.set_doorbell_cells(DoorbellCells {
            doorbells: shadow.doorbells.clone(),
            events: Some(shadow.events.clone()),
            stride_log2: 0,
        });
        for subject in &mut self.subjects {
            subject.queue.doorbell.shadow = Some(shadow.clone());
        }
        for answers in &mut self.answers {
            answers.doorbell.shadow = Some(shadow.clone());
        }
        self.shadow = Some(shadow);
    }

    /// Creates deleted queues again, after checking that all their completions were posted.
    fn recreate_deleted(&mut self) {
        while let Some(gone) = self.arbiter.next_deleted() {
            let at = usize::from(gone.0 - 1);
            self.reap(at / 2);
            let subject = &mut self.subjects[at];
            assert!(
                subject.deleting && subject.incomplete.is_empty(),
                "{gone} lacks {:?}",
                subject.incomplete
            );
            subject.queue = submission(&mut self.arbiter, gone.0, spec_of(at));
            subject.queue.doorbell.shadow = self.shadow.clone();
            subject.deleting = false;
        }
    }

    fn step(&mut self, step: &HostQueueStep) {
        let awake = std::mem::take(&mut self.asleep);
        if let HostQueueStep::Submit(at) = *step {
            self.asleep = awake;
            self.submit(at);
            return;
        }
        self.arbiter.disarm();
        match *step {
            HostQueueStep::Submit(_) => {}
            HostQueueStep::Fetch => self.live.extend(self.arbiter.fetch()),
            HostQueueStep::Complete(at) if !self.live.is_empty() => {
                let fetched = self.live.swap_remove(at % self.live.len());
                self.answer(fetched);
            }
            HostQueueStep::Complete(_) => {}
            HostQueueStep::Reap(which) => self.reap(which),
            HostQueueStep::Interrupt => self.arbiter.fire_interrupts(Nanos(0), |_| ()),
            HostQueueStep::Sleep => {
                self.asleep =
                    self.arbiter.prepare_sleep() == headwater_nvme::queue_pair::SleepDecision::UntilWoken;
            }
            HostQueueStep::Share => self.share(),
            HostQueueStep::Delete(at) => {
                if !self.subjects[at].deleting {
                    self.arbiter.delete_submission_queue(QueueId(id_of(at))).unwrap();
                    self.subjects[at].deleting = true;
                }
            }
            HostQueueStep::Reset => self.create_queues(),
        }
        self.recreate_deleted();
        for view in self.arbiter.queues() {
            assert!(view.unposted() <= usize::try_from(SLOTS).unwrap());
        }
        assert_eq!(self.arbiter.take_doorbell_error(), None, "all doorbell values are valid");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_command_gets_its_completion_in_order_across_deletion_and_reset(
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut run = HostQueueRun::new();
        steps.iter().for_each(|step| run.step(step));
        for _ in 0..64 {
            run.step(&HostQueueStep::Fetch);
            run.step(&HostQueueStep::Complete(0));
            run.step(&HostQueueStep::Reap(0));
            run.step(&HostQueueStep::Reap(1));
            run.step(&HostQueueStep::Interrupt);
        }
        prop_assert!(run.live.is_empty());
        for subject in &run.subjects {
            prop_assert!(subject.incomplete.is_empty(), "{} lacks {:?}", subject.queue.id, subject.incomplete);
        }
    }

    #[test]
    fn arbitrary_ring_and_doorbell_writes_harm_only_their_own_queues(
        shares in any::<bool>(),
        writes in prop::collection::vec(
            (0..6_u8, 0..64_usize, prop_oneof![0..6_u64, any::<u64>()]),
            1..300,
        ),
    ) {
        let mut arbiter = controller();
        let cells = HeapWords::zeroed(64);
        let events = HeapWords::zeroed(64);
        if shares {
            let (doorbells, events) = (cells.clone(), Some(events.clone()));
            arbiter.set_doorbell_cells(DoorbellCells { doorbells, events, stride_log2: 0 });
        }
        let bad_answers = completion(&mut arbiter, 1, 5, Some(1));
        let bad: Vec<_> =
            (1..3).map(|id| submission(&mut arbiter, id, submission_spec(5, 1))).collect();
        let mut answers = completion(&mut arbiter, 2, 5, Some(2));
        let mut honest = submission(&mut arbiter, 3, submission_spec(5, 2));
        if shares {
            let shadow = ShadowDoorbells { doorbells: cells.clone(), events: events.clone() };
            honest.doorbell.shadow = Some(shadow.clone());
            answers.doorbell.shadow = Some(shadow);
        }
        for (round, (target, word, value)) in (0_u16..).zip(writes) {
            let [a, b, c, d, ..] = value.to_le_bytes();
            let low = u32::from_le_bytes([a, b, c, d]);
            match target {
                0 => bad_answers.memory.store_relaxed(word % bad_answers.memory.words(), value),
                1 => bad[0].memory.store_relaxed(word % bad[0].memory.words(), value),
                // Doorbells and EventIdx of queues 1 and 2 and of completion queue 1.
                2 => cells.store_cell_release([2, 3, 4][word % 3], low),
                3 => events.store_cell_release([2, 3, 4][word % 3], low),
                4 => drop(arbiter.write_submission_doorbell(QueueId(u16::from(word % 2 == 0) + 1), low)),
                _ => drop(arbiter.write_completion_doorbell(QueueId(1), low)),
            }
            honest.submit(&mut arbiter, round);
            serve(&mut arbiter);
            arbiter.fire_interrupts(Nanos(u64::from(round)), |_| ());
            let _ = arbiter.prepare_sleep();
            arbiter.disarm();
            prop_assert_eq!(answers.reap(&mut arbiter), [(3, round, Status::SUCCESS)]);
            prop_assert!(arbiter.queue(QueueId(1)).unwrap().unposted() <= 6);
            while let Some(error) = arbiter.take_doorbell_error() {
                prop_assert!(!error.to_string().contains("queue 3"), "{}", error);
            }
        }
        arbiter.reset(QueueArbitration::RoundRobin);
        prop_assert_eq!(arbiter.queues().count(), 0);
    }
}
