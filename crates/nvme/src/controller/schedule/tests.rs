//! Examples of the schedule, a naive model of it, and bounds on the wait of a queue.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The number of waiting entries, by queue.
type WaitingEntries = BTreeMap<u16, u32>;

/// Takes the next entry and returns its queue.
fn take(schedule: &mut ArbitrationSchedule, waiting: &mut WaitingEntries) -> Option<u16> {
    let mut search = schedule.search();
    while let Some(id) = schedule.candidate(&mut search) {
        match waiting.get_mut(&id.0) {
            Some(left @ 1..) => {
                *left -= 1;
                schedule.record_entry(&search);
                return Some(id.0);
            }
            _ => schedule.record_empty(&mut search),
        }
    }
    None
}

fn take_all(schedule: &mut ArbitrationSchedule, waiting: &mut WaitingEntries) -> Vec<u16> {
    std::iter::from_fn(|| take(schedule, waiting)).collect()
}

fn weighted(dword: u32, queues: &[(u16, QueuePriority)]) -> ArbitrationSchedule {
    let settings = ArbitrationSettings::from_dword(dword);
    let mut schedule = ArbitrationSchedule::new(QueueArbitration::WeightedWithUrgent, settings);
    queues.iter().for_each(|&(id, priority)| schedule.add(QueueId(id), priority));
    schedule
}

/// Builds dword 11 of Set Features; the weights are 0's based.
const fn dword(burst: u32, high: u32, medium: u32, low: u32) -> u32 {
    burst | low << 8 | medium << 16 | high << 24
}

#[test]
fn arbitration_feature_decodes_as_specified() {
    let settings = ArbitrationSettings::from_dword(dword(3, 9, 5, 0));
    assert_eq!(settings, ArbitrationSettings { burst: 8, weights: [10, 6, 1] });
    let unlimited = ArbitrationSettings::from_dword(dword(7, 255, 0, 255));
    assert_eq!(unlimited, ArbitrationSettings { burst: BURST_UNLIMITED, weights: [256, 1, 256] });
    assert_eq!(ArbitrationSettings::from_dword(0).burst, 1);
}

#[test]
fn round_robin_takes_the_admin_queue_in_turn_and_ignores_priorities() {
    let settings = ArbitrationSettings::from_dword(dword(1, 0, 0, 0));
    let mut schedule = ArbitrationSchedule::new(QueueArbitration::RoundRobin, settings);
    schedule.add(QueueId::ADMIN, QueuePriority::Urgent);
    schedule.add(QueueId(1), QueuePriority::Low);
    schedule.add(QueueId(2), QueuePriority::Urgent);
    let mut waiting = WaitingEntries::from([(0, 3), (1, 3), (2, 3)]);
    assert_eq!(take_all(&mut schedule, &mut waiting), [0, 0, 1, 1, 2, 2, 0, 1, 2]);
}

#[test]
fn admin_precedes_urgent_and_urgent_precedes_weighted_classes() {
    let queues = [
        (0, QueuePriority::Urgent),
        (1, QueuePriority::High),
        (2, QueuePriority::Urgent),
        (3, QueuePriority::Low),
    ];
    let mut schedule = weighted(dword(0, 0, 0, 0), &queues);
    let mut waiting = WaitingEntries::from([(0, 1), (1, 2), (2, 2), (3, 2)]);
    assert_eq!(take(&mut schedule, &mut waiting), Some(0));
    assert_eq!(take(&mut schedule, &mut waiting), Some(2));
    waiting.insert(0, 1);
    assert_eq!(take_all(&mut schedule, &mut waiting), [0, 2, 1, 3, 1, 3]);
}

#[test]
fn classes_share_by_weight_and_a_burst_ends_with_the_credits() {
    let queues = [
        (1, QueuePriority::High),
        (2, QueuePriority::High),
        (3, QueuePriority::Medium),
        (4, QueuePriority::Low),
    ];
    // Burst 2; weights 3, 2, 1.
    let mut schedule = weighted(dword(1, 2, 1, 0), &queues);
    let mut waiting = WaitingEntries::from([(1, 50), (2, 50), (3, 50), (4, 50)]);
    let order: Vec<u16> = (0..12).filter_map(|_| take(&mut schedule, &mut waiting)).collect();
    // The second queue's turn ended with the class's credits, so the next round begins with the first.
    assert_eq!(order, [1, 1, 2, 3, 3, 4, 1, 1, 2, 3, 3, 4]);
}

#[test]
fn an_idle_class_does_not_delay_another_class() {
    let mut schedule = weighted(dword(0, 9, 9, 0), &[(1, QueuePriority::High), (2, QueuePriority::Low)]);
    let mut waiting = WaitingEntries::from([(1, 0), (2, 3)]);
    assert_eq!(take_all(&mut schedule, &mut waiting), [2, 2, 2]);
    assert_eq!(take(&mut schedule, &mut waiting), None);
    assert_eq!(take(&mut weighted(0, &[]), &mut waiting), None);
}

#[test]
fn new_weights_apply_to_the_current_round() {
    let mut schedule = weighted(dword(7, 9, 0, 0), &[(1, QueuePriority::High), (2, QueuePriority::Low)]);
    let mut waiting = WaitingEntries::from([(1, 20), (2, 20)]);
    assert_eq!(take(&mut schedule, &mut waiting), Some(1));
    schedule.set(ArbitrationSettings::from_dword(dword(7, 1, 0, 0)));
    let order: Vec<u16> = (0..6).filter_map(|_| take(&mut schedule, &mut waiting)).collect();
    assert_eq!(order, [1, 2, 1, 1, 2, 1]);
}

/// Weighted round robin as the specification states it: lists, rounds and turns.
struct ArbitrationModel {
    burst: u32,
    weights: [u32; 3],
    /// Admin, urgent, high, medium, low; the queue whose turn it is comes first.
    classes: [Vec<u16>; 5],
    /// Entries that the first queue of each class has taken in its turn.
    taken: [u32; 5],
    class: usize,
    credits: u32,
}

impl ArbitrationModel {
    /// Returns the first queue of a class that has entries, with turns of `burst`.
    fn first_of(&mut self, class: usize, waiting: &WaitingEntries) -> Option<u16> {
        if self.classes[class].is_empty() {
            return None;
        }
        for _ in 0..=self.classes[class].len() {
            let front = self.classes[class][0];
            if self.taken[class] < self.burst && waiting[&front] > 0 {
                return Some(front);
            }
            self.end_turn(class);
        }
        None
    }

    fn end_turn(&mut self, class: usize) {
        self.classes[class].rotate_left(1);
        self.taken[class] = 0;
    }

    fn take(&mut self, waiting: &mut WaitingEntries) -> Option<u16> {
        for class in [0, 1] {
            if let Some(id) = self.first_of(class, waiting) {
                self.taken[class] += 1;
                waiting.entry(id).and_modify(|left| *left -= 1);
                return Some(id);
            }
        }
        for seen in 0..4 {
            let class = 2 + self.class;
            if self.credits > 0
                && let Some(id) = self.first_of(class, waiting)
            {
                self.taken[class] += 1;
                self.credits -= 1;
                waiting.entry(id).and_modify(|left| *left -= 1);
                return Some(id);
            }
            if seen == 3 {
                return None;
            }
            if self.taken[class] > 0 {
                self.end_turn(class);
            }
            self.class = (self.class + 1) % 3;
            self.credits = self.weights[self.class];
        }
        None
    }
}

fn class_of(id: u16, bits: u32) -> usize {
    match (id, QueuePriority::from_bits(bits)) {
        (0, _) => 0,
        (_, QueuePriority::Urgent) => 1,
        (_, QueuePriority::High) => 2,
        (_, QueuePriority::Medium) => 3,
        (_, QueuePriority::Low) => 4,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn weighted_round_robin_agrees_with_a_naive_model(
        priorities in prop::collection::vec(0..4_u32, 1..9),
        dword in any::<u32>().prop_map(|dword| dword & 0x0303_0307),
        steps in prop::collection::vec((0..12_u16, 0..4_u32), 1..200),
    ) {
        let settings = ArbitrationSettings::from_dword(dword);
        let mut schedule = ArbitrationSchedule::new(QueueArbitration::WeightedWithUrgent, settings);
        let ArbitrationSettings { burst, weights } = settings;
        let mut model =
            ArbitrationModel { burst, weights, classes: Default::default(), taken: [0; 5], class: 0, credits: weights[0] };
        let mut waiting = WaitingEntries::new();
        for (id, &bits) in (0_u16..).zip(&priorities) {
            schedule.add(QueueId(id), QueuePriority::from_bits(bits));
            model.classes[class_of(id, bits)].push(id);
            waiting.insert(id, 0);
        }
        for (id, more) in steps {
            // An id without a queue adds no entries in this step.
            waiting.entry(id).and_modify(|left| *left += more);
            waiting.retain(|&id, _| usize::from(id) < priorities.len());
            for _ in 0..2 {
                let mut of_model = waiting.clone();
                let expected = model.take(&mut of_model);
                prop_assert_eq!(take(&mut schedule, &mut waiting), expected);
                prop_assert_eq!(&waiting, &of_model);
            }
        }
    }

    #[test]
    fn queue_wait_is_bounded(
        priorities in prop::collection::vec(1..4_u32, 2..7),
        burst in 0..4_u32,
        weights in prop::array::uniform3(0..4_u32),
        mechanism in prop_oneof![Just(QueueArbitration::RoundRobin), Just(QueueArbitration::WeightedWithUrgent)],
    ) {
        let settings = ArbitrationSettings::from_dword(dword(burst, weights[0], weights[1], weights[2]));
        let mut schedule = ArbitrationSchedule::new(mechanism, settings);
        let mut waiting = WaitingEntries::new();
        for (id, &bits) in (1_u16..).zip(&priorities) {
            schedule.add(QueueId(id), QueuePriority::from_bits(bits));
            waiting.insert(id, 1_000_000);
        }
        let queues = u32::try_from(priorities.len()).expect("few queues");
        let round = settings.weights.iter().sum::<u32>();
        // A burst of each other queue; or, with weights, one round for each entry that other queues of the class may
        // take first.
        let bound = match mechanism {
            QueueArbitration::RoundRobin => (queues - 1) * settings.burst,
            QueueArbitration::WeightedWithUrgent => queues * settings.burst * round,
        };
        let mut since = BTreeMap::<u16, u32>::new();
        for _ in 0..500 {
            let Some(id) = take(&mut schedule, &mut waiting) else {
                return Err(TestCaseError::fail("entries wait but none was taken"));
            };
            for queue in waiting.keys() {
                *since.entry(*queue).or_default() += 1;
                prop_assert!(since[queue] <= bound + 1, "queue {queue} waited for {} entries", since[queue]);
            }
            since.insert(id, 0);
        }
    }

    #[test]
    fn removing_queues_loses_no_entry_of_other_queues(
        leaving in prop::collection::vec(1..8_u16, 1..7),
        mechanism in prop_oneof![Just(QueueArbitration::RoundRobin), Just(QueueArbitration::WeightedWithUrgent)],
    ) {
        let mut schedule = ArbitrationSchedule::new(mechanism, ArbitrationSettings::from_dword(1));
        let mut waiting = WaitingEntries::new();
        for id in 1..8_u16 {
            schedule.add(QueueId(id), QueuePriority::from_bits(u32::from(id)));
            waiting.insert(id, 5);
        }
        for id in leaving {
            let _ = take(&mut schedule, &mut waiting);
            schedule.remove(QueueId(id));
            waiting.remove(&id);
        }
        let left: u32 = waiting.values().sum();
        prop_assert_eq!(take_all(&mut schedule, &mut waiting).len(), usize::try_from(left).expect("few entries"));
    }
}
