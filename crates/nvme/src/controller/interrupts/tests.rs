//! Examples of coalescing, and a naive model that keeps every completion separately.

use super::*;
use proptest::prelude::*;

fn fired(interrupts: &mut InterruptVectors, now: Nanos) -> Vec<u16> {
    let mut fired = Vec::new();
    interrupts.fire_due(now, |vector| fired.push(vector));
    fired
}

/// A threshold of four and a time of 200 us.
const FOUR_OR_200_MICROS: u32 = 3 | 2 << 8;

#[test]
fn without_coalescing_each_batch_fires_one_interrupt_at_once() {
    let mut interrupts = InterruptVectors::new(2);
    interrupts.record_posted(1, 3, InterruptUrgency::Coalesced, Nanos(5));
    assert_eq!(fired(&mut interrupts, Nanos(5)), [1]);
    assert_eq!(fired(&mut interrupts, Nanos(6)), [] as [u16; 0]);
    assert_eq!(interrupts.next_deadline(), None);
}

#[test]
fn coalescing_waits_for_the_threshold_or_the_time() {
    let mut interrupts = InterruptVectors::new(1);
    interrupts.set_coalescing(InterruptCoalescing::from_dword(FOUR_OR_200_MICROS));
    interrupts.record_posted(0, 3, InterruptUrgency::Coalesced, Nanos(0));
    assert_eq!(fired(&mut interrupts, Nanos(199_999)), [] as [u16; 0]);
    assert_eq!(interrupts.next_deadline(), Some(Nanos::from_micros(200)));
    interrupts.record_posted(0, 1, InterruptUrgency::Coalesced, Nanos(199_999));
    assert_eq!(fired(&mut interrupts, Nanos(199_999)), [0], "the fourth completion reaches the threshold");
    interrupts.record_posted(0, 1, InterruptUrgency::Coalesced, Nanos(300_000));
    interrupts.record_posted(0, 1, InterruptUrgency::Coalesced, Nanos(450_000));
    assert_eq!(interrupts.next_deadline(), Some(Nanos(500_000)), "counted from the first that waits");
    assert_eq!(fired(&mut interrupts, Nanos(500_000)), [0]);
}

#[test]
fn a_time_of_zero_turns_coalescing_off() {
    let mut interrupts = InterruptVectors::new(1);
    interrupts.set_coalescing(InterruptCoalescing::from_dword(255));
    interrupts.record_posted(0, 1, InterruptUrgency::Coalesced, Nanos(7));
    assert_eq!(fired(&mut interrupts, Nanos(7)), [0]);
}

#[test]
fn admin_completions_and_vectors_without_coalescing_fire_at_once() {
    let mut interrupts = InterruptVectors::new(3);
    interrupts.set_coalescing(InterruptCoalescing::from_dword(FOUR_OR_200_MICROS));
    assert!(interrupts.set_vector(2, VectorCoalescing::Disabled));
    assert!(!interrupts.set_vector(3, VectorCoalescing::Disabled));
    interrupts.record_posted(0, 1, InterruptUrgency::Coalesced, Nanos(0));
    interrupts.record_posted(1, 1, InterruptUrgency::Coalesced, Nanos(0));
    interrupts.record_posted(0, 1, InterruptUrgency::Immediate, Nanos(10));
    interrupts.record_posted(2, 1, InterruptUrgency::Coalesced, Nanos(10));
    assert_eq!(fired(&mut interrupts, Nanos(10)), [0, 2]);
}

#[test]
fn a_missing_vector_never_fires() {
    let mut interrupts = InterruptVectors::new(0);
    interrupts.record_posted(0, 1, InterruptUrgency::Immediate, Nanos(0));
    assert_eq!(fired(&mut interrupts, Nanos(1)), [] as [u16; 0]);
    assert!(!interrupts.has_vector(0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_completion_is_announced_in_time_and_no_interrupt_is_spurious(
        threshold in 0..6_u32,
        steps in 0..4_u32,
        disabled in 0..3_u16,
        events in prop::collection::vec((0..3_u16, 0..3_u32, 0..120_000_u64), 1..150),
    ) {
        let time = u64::from(steps) * 100_000;
        let mut interrupts = InterruptVectors::new(3);
        interrupts.set_coalescing(InterruptCoalescing::from_dword(threshold | steps << 8));
        interrupts.set_vector(disabled, VectorCoalescing::Disabled);
        // The time at which each unannounced completion was posted.
        let mut model: [Vec<u64>; 3] = Default::default();
        let mut now = 0;
        for (vector, completions, later) in events {
            now += later;
            if completions > 0 {
                interrupts.record_posted(vector, completions, InterruptUrgency::Coalesced, Nanos(now));
                let posted = std::iter::repeat_n(now, usize::try_from(completions).expect("few"));
                model[usize::from(vector)].extend(posted);
            }
            let mut expected = Vec::new();
            for (vector, waiting) in (0_u16..).zip(&mut model) {
                let enough = waiting.len() > usize::try_from(threshold).expect("small");
                let late = waiting.first().is_some_and(|&first| first + time <= now);
                if enough || late || vector == disabled && !waiting.is_empty() {
                    waiting.clear();
                    expected.push(vector);
                }
            }
            prop_assert_eq!(fired(&mut interrupts, Nanos(now)), expected);
            let deadline = model.iter().filter_map(|waiting| waiting.first()).min().map(|first| first + time);
            prop_assert_eq!(interrupts.next_deadline().map(|deadline| deadline.0), deadline);
        }
    }
}
