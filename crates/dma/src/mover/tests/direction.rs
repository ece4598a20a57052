//! Tests of the direction of a job: each has a threshold of its own, and what is learned for one says nothing of another.

use super::*;
use crate::mover::policy::{MoveDirection, MoveEngine, WorkShape};

/// The properties of a job of each direction, in the order of the directions.
const KINDS: [(SourceKind, MoveDurability); 4] = [
    (SourceKind::Dram, MoveDurability::Visible),
    (SourceKind::Dram, MoveDurability::Persistent),
    (SourceKind::Persistent, MoveDurability::Visible),
    (SourceKind::Persistent, MoveDurability::Persistent),
];

fn job_of((source, durability): (SourceKind, MoveDurability)) -> MoveJob {
    job(4).with_source_kind(source).with_durability(durability)
}

#[test]
fn each_direction_of_a_job_has_its_threshold() {
    for above in 0..MoveDirection::ALL.len() {
        let mut threshold_bytes = [u64::MAX; 4];
        threshold_bytes[above] = 4_000;
        let config = PolicyConfig { threshold_bytes, ..eager() };
        for (nth, kind) in KINDS.into_iter().enumerate() {
            let channel = FaultyChannel::boxed(ChannelFault::Reordered);
            let mut mover = Mover::with_channels(vec![channel], config, Clock::start());
            mover.policy_mut().unwrap().freeze();
            let mut run = job_of(kind);
            mover.run(&mut run).unwrap();
            check(run, 4);
            let ticket = mover.start(job_of(kind)).unwrap();
            check(mover.wait(&ticket, LONG).unwrap(), 4);
            let given = mover.channel_counters().channel_jobs;
            assert_eq!(given > 0, nth == above, "{kind:?}, threshold {above}: {given} jobs");
        }
    }
}

#[test]
fn what_is_learned_of_one_direction_is_not_known_of_another() {
    let mut mover =
        Mover::with_channels(vec![FaultyChannel::boxed(ChannelFault::Reordered)], eager(), Clock::start());
    for (learned, kind) in KINDS.into_iter().enumerate() {
        let mut job = job_of(kind);
        let operation = job.steps()[0].operation();
        mover.run(&mut job).unwrap();
        for (nth, direction) in MoveDirection::ALL.into_iter().enumerate() {
            let shape = WorkShape { operation, direction, ..WorkShape::copy(4_000) };
            let estimate = mover.policy().unwrap().estimate(&shape, MoveEngine::Channel(0), 1);
            assert_eq!(estimate.is_some(), nth <= learned, "{direction:?} behind {kind:?}");
        }
    }
}

#[test]
fn parts_of_a_job_have_its_direction() {
    let mut job = job_of((SourceKind::Persistent, MoveDurability::Persistent));
    let (tail, rest) = job.split_off(2).unwrap();
    assert_eq!((tail.source_kind, tail.durability), (SourceKind::Persistent, MoveDurability::Persistent));
    job.join(tail, rest);
    assert_eq!(job.source_kind, SourceKind::Persistent);
}
