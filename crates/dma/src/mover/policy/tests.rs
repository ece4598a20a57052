//! Tests of the policy against engines with known times.

#![expect(clippy::print_stdout, reason = "a test prints its seed")]

use super::*;
use fastrand::Rng;
use headwater_host::numa::NodeId;

const KIB: u64 = 1_024;

/// Engines with affine times and a ceiling that those of one job share; the CPU first.
#[derive(Clone, Debug)]
struct TestEngines {
    /// Nanoseconds before the first byte, and bytes a nanosecond.
    engines: Vec<(f64, f64)>,
    ceiling: f64,
}

impl TestEngines {
    fn dsa() -> Self {
        Self { engines: vec![(0.0, 9.6), (1_160.0, 29.9)], ceiling: 1e9 }
    }

    /// Returns the parts of a plan: engine, bytes, and time.
    fn parts(&self, plan: &MovePlan) -> Vec<(MoveEngine, u64, f64)> {
        let cpu = (plan.cpu_bytes() > 0).then(|| (MoveEngine::Cpu, plan.cpu_bytes()));
        let channels = plan.channel_parts().map(|(channel, bytes)| (MoveEngine::Channel(channel), bytes));
        let parts: Vec<_> = cpu.into_iter().chain(channels).collect();
        let wanted: f64 = parts.iter().map(|(engine, _)| self.engines[engine.index()].1).sum();
        let slower = (wanted / self.ceiling).max(1.0);
        let time = |engine: MoveEngine, bytes| {
            let (fixed, rate) = self.engines[engine.index()];
            fixed + learned_class::as_float(bytes) / rate * slower
        };
        parts.into_iter().map(|(engine, bytes)| (engine, bytes, time(engine, bytes))).collect()
    }

    fn end(&self, plan: &MovePlan) -> f64 {
        self.parts(plan).iter().fold(0.0, |end: f64, (_, _, time)| end.max(*time))
    }

    /// Does a job: decides, and reports times with a relative error.
    fn job(&self, policy: &mut MovePolicy, shape: WorkShape, mut error: impl FnMut() -> f64) -> MovePlan {
        let plan = policy.decide(&shape, &[]);
        for (engine, bytes, time) in self.parts(&plan) {
            let elapsed = nanos(time * error());
            let (ahead, together) = (ChannelLoad::default(), plan.together());
            policy.observe(&MoveObservation { shape, engine, bytes, together, ahead, elapsed });
        }
        plan
    }

    fn learn(&self, policy: &mut MovePolicy, jobs: u64) {
        for job in 0..jobs {
            self.job(policy, WorkShape::copy((4 * KIB) << (job * 7 % 13)), || 1.0);
        }
    }
}

fn nanos(time: f64) -> Nanos {
    Nanos(format!("{time:.0}").parse().unwrap())
}

fn channel() -> ChannelTraits {
    ChannelTraits { node: None, depth: 8, cache_writes: CacheWrites::Unknown, operations: OperationSet::ALL }
}

fn policy(channels: usize) -> MovePolicy {
    MovePolicy::new(&vec![channel(); channels], PolicyConfig::default())
}

fn share(bytes: u64, of: u64) -> f64 {
    learned_class::as_float(bytes) / learned_class::as_float(of)
}

#[test]
fn threshold_holds_for_its_direction_and_is_not_counted() {
    let mut config = PolicyConfig::default();
    config.threshold_bytes[MoveDirection::FromPersistent.index()] = 32 * KIB;
    let mut policy = MovePolicy::new(&[channel()], config);
    let shape = WorkShape { direction: MoveDirection::FromPersistent, ..WorkShape::copy(32 * KIB - 1) };
    let plan = policy.decide(&shape, &[]);
    assert_eq!((plan.reason(), plan.cpu_bytes()), (DecisionReason::BelowThreshold, 32 * KIB - 1));
    assert_eq!(policy.counters().total(), 0);
    let other = WorkShape { direction: MoveDirection::ToPersistent, ..shape };
    assert_ne!(policy.decide(&other, &[]).reason(), DecisionReason::BelowThreshold);
    assert_eq!(policy.counters().total(), 1);
}

#[test]
fn channels_at_their_depth_or_without_the_operation_get_nothing() {
    let loads = [ChannelLoad { jobs: 8, bytes: 8 }, ChannelLoad { jobs: 7, bytes: 7 }];
    let mut two = policy(2);
    for _ in 0..200 {
        let plan = two.decide(&WorkShape::copy(1 << 20), &loads);
        assert_eq!(plan.channel_bytes(0), 0, "{plan:?}");
    }
    let plan = policy(1).decide(&WorkShape::copy(1 << 20), &loads);
    assert_eq!((plan.reason(), plan.cpu_bytes()), (DecisionReason::AllBusy, 1 << 20));
    let fills = ChannelTraits { operations: OperationSet::of(&[MoveOperation::Fill]), ..channel() };
    let mut second = MovePolicy::new(&[fills, channel()], PolicyConfig::default());
    let plan = second.decide(&WorkShape::copy(1 << 20), &[]);
    assert!(plan.channel_bytes(0) == 0 && plan.channel_bytes(1) > 0, "{plan:?}");
    let mut fills = MovePolicy::new(&[fills], PolicyConfig::default());
    assert_eq!(fills.decide(&WorkShape::copy(1 << 20), &[]).reason(), DecisionReason::NoChannel);
    let fill = WorkShape { operation: MoveOperation::Fill, ..WorkShape::copy(1 << 20) };
    assert_ne!(fills.decide(&fill, &[]).reason(), DecisionReason::NoChannel);
}

#[test]
fn a_started_job_goes_to_a_channel_that_ends_it_within_the_factor_of_the_cpu() {
    let config = PolicyConfig { busy_cpu_factor: 2.0, ..PolicyConfig::of_software_channels() };
    let mut policy = MovePolicy::new(&[channel()], config);
    policy.freeze();
    let waiting = WorkShape { split: JobSplit::Forbidden, ..WorkShape::copy(64 * KIB) };
    let working = WorkShape { owner: OwnerState::Working, ..waiting };
    assert_eq!(policy.decide(&waiting, &[]).reason(), DecisionReason::CpuFaster);
    let plan = policy.decide(&working, &[]);
    assert_eq!((plan.reason(), plan.channel_bytes(0)), (DecisionReason::ChannelAlone, 64 * KIB));
    // Behind another job the channel takes more than twice the time of the CPU.
    let ahead = [ChannelLoad { jobs: 1, bytes: 64 * KIB }];
    assert_eq!(policy.decide(&working, &ahead).reason(), DecisionReason::CpuFaster);
}

#[test]
fn deadline_passes_over_a_channel_that_might_be_late() {
    let mut policy = policy(1);
    TestEngines::dsa().learn(&mut policy, 400);
    let long = WorkShape { split: JobSplit::Forbidden, ..WorkShape::copy(20 * KIB) };
    let left = |nanos| WorkShape { time_left: Some(Nanos(nanos)), ..long };
    // 1,845 ns on the channel, 7 % more or less, and 2,133 ns on the CPU.
    for elapsed in [1_716, 1_974].into_iter().cycle().take(200) {
        policy.observe(&MoveObservation {
            shape: long,
            engine: MoveEngine::Channel(0),
            bytes: 20 * KIB,
            together: 1,
            ahead: ChannelLoad::default(),
            elapsed: Nanos(elapsed),
        });
    }
    let far = policy.decide(&left(3_000), &[]);
    assert_eq!((far.reason(), far.cpu_bytes()), (DecisionReason::ChannelAlone, 0));
    let near = policy.decide(&left(2_200), &[]);
    assert_eq!((near.reason(), near.cpu_bytes()), (DecisionReason::Deadline, 20 * KIB));
    let too_near = policy.decide(&left(2_000), &[]);
    assert_eq!((too_near.reason(), too_near.cpu_bytes()), (DecisionReason::DeadlineMissed, 0));
    assert_eq!(policy.counters().of(DecisionReason::Deadline), 1);
    assert_eq!(policy.counters().of(DecisionReason::DeadlineMissed), 1);
}

#[test]
fn channel_that_was_never_observed_is_doubted_more_and_a_deadline_explores_nothing() {
    let mut fresh = policy(1);
    let long = WorkShape { split: JobSplit::Forbidden, ..WorkShape::copy(64 * KIB) };
    // 3,352 ns on the channel as far as the settings say, 6,827 ns on the CPU.
    let left = |nanos| WorkShape { time_left: Some(Nanos(nanos)), ..long };
    assert_eq!(fresh.decide(&left(6_900), &[]).reason(), DecisionReason::ChannelAlone);
    assert_eq!(fresh.decide(&left(6_000), &[]).reason(), DecisionReason::DeadlineMissed);
    let mut two = policy(2);
    let explored = |policy: &MovePolicy| policy.counters().of(DecisionReason::Explored);
    for _ in 0..400 {
        two.decide(&WorkShape::copy(64 * KIB), &[]);
    }
    let before = explored(&two);
    assert!(before > 0);
    for _ in 0..400 {
        two.decide(&WorkShape { time_left: Some(Nanos(1_000_000)), ..WorkShape::copy(64 * KIB) }, &[]);
    }
    assert_eq!(explored(&two), before);
}

#[test]
fn split_counts_the_fixed_time_as_the_affine_model_says() {
    let mut policy = policy(1);
    TestEngines::dsa().learn(&mut policy, 400);
    policy.freeze();
    // The table of the affine split: a split by bandwidth alone gives the channel 0.757 at every length.
    for (kibibytes, expected) in [(8, 0.0), (16, 0.24), (32, 0.50), (64, 0.63), (256, 0.73), (1_024, 0.75)] {
        let plan = policy.decide(&WorkShape::copy(kibibytes * KIB), &[]);
        let given = share(plan.channel_bytes(0), kibibytes * KIB);
        assert!((given - expected).abs() < 0.02, "{kibibytes} KiB: {given} instead of {expected}");
    }
}

#[test]
fn job_that_may_not_be_split_has_one_engine() {
    let mut policy = policy(3);
    let engines = TestEngines { engines: vec![(0.0, 9.6); 4], ceiling: 1e9 };
    let shape = WorkShape { split: JobSplit::Forbidden, ..WorkShape::copy(1 << 20) };
    for _ in 0..300 {
        let plan = engines.job(&mut policy, shape, || 1.0);
        assert_eq!(engines.parts(&plan).len(), 1, "{plan:?}");
    }
}

#[test]
fn flush_is_needed_unless_the_channel_passes_the_cache_by() {
    for (cache_writes, direction, expected) in [
        (CacheWrites::Unknown, MoveDirection::ToPersistent, true),
        (CacheWrites::Allocating, MoveDirection::BetweenPersistent, true),
        (CacheWrites::NonAllocating, MoveDirection::ToPersistent, false),
        (CacheWrites::Unknown, MoveDirection::BetweenDram, false),
        (CacheWrites::Allocating, MoveDirection::FromPersistent, false),
    ] {
        let traits = [ChannelTraits { cache_writes, ..channel() }];
        let mut policy = MovePolicy::new(&traits, PolicyConfig::default());
        let plan = policy.decide(&WorkShape { direction, ..WorkShape::copy(1 << 20) }, &[]);
        assert!(plan.channel_bytes(0) > 0);
        assert_eq!(plan.needs_flush(0), expected, "{cache_writes:?} {direction:?}");
        assert!(!plan.needs_flush(1));
        // A declaration says what a channel does not know, and nothing else.
        let declared = PolicyConfig { cache_writes: CacheWrites::NonAllocating, ..PolicyConfig::default() };
        let mut policy = MovePolicy::new(&traits, declared);
        let plan = policy.decide(&WorkShape { direction, ..WorkShape::copy(1 << 20) }, &[]);
        assert_eq!(plan.needs_flush(0), expected && cache_writes == CacheWrites::Allocating);
    }
}

#[test]
fn queue_and_distance_move_bytes_to_another_channel() {
    let on = |node| ChannelTraits { node: Some(NodeId(node)), ..channel() };
    let mut policy = MovePolicy::new(&[on(0), on(1)], PolicyConfig::default());
    let shape = WorkShape { source: Some(NodeId(1)), target: Some(NodeId(1)), ..WorkShape::copy(1 << 20) };
    policy.freeze();
    let plan = policy.decide(&shape, &[]);
    assert!(plan.channel_bytes(1) > plan.channel_bytes(0), "{plan:?}");
    let busy = [ChannelLoad::default(), ChannelLoad { jobs: 1, bytes: 1 << 20 }];
    let plan = policy.decide(&shape, &busy);
    assert!(plan.channel_bytes(1) < plan.channel_bytes(0), "{plan:?}");
}

#[test]
fn queue_share_is_learned_from_jobs_behind_jobs() {
    let mut policy = policy(1);
    TestEngines::dsa().learn(&mut policy, 200);
    let (ahead, shape) = (ChannelLoad { jobs: 2, bytes: 512 * KIB }, WorkShape::copy(64 * KIB));
    let before = policy.decide(&shape, &[ahead]).cpu_bytes();
    for _ in 0..60 {
        // The channel moves its jobs beside each other: two of the same length are moved before the end.
        let elapsed = nanos(1_160.0 + learned_class::as_float(3 * 64 * KIB) / 29.9);
        let engine = MoveEngine::Channel(0);
        policy.observe(&MoveObservation { shape, engine, bytes: 64 * KIB, together: 1, ahead, elapsed });
    }
    policy.freeze();
    let after = policy.decide(&shape, &[ahead]);
    assert!(before == 64 * KIB && after.cpu_bytes() < before, "{before} {after:?}");
}

#[test]
fn ceiling_shows_in_the_rates_of_engines_together_only() {
    let engines = TestEngines { ceiling: 20.0, ..TestEngines::dsa() };
    let mut policy = policy(1);
    engines.learn(&mut policy, 600);
    let rate =
        |engine, together| 1.0 / policy.estimate(&WorkShape::copy(1), engine, together).unwrap().ns_per_byte;
    let together = rate(MoveEngine::Cpu, 2) + rate(MoveEngine::Channel(0), 2);
    assert!((together / 20.0 - 1.0).abs() < 0.05, "{together}");
    assert!((rate(MoveEngine::Cpu, 1) / 9.6 - 1.0).abs() < 0.05);
    // The channel alone reaches the ceiling too, so the CPU has nothing to add and is left to its caller.
    policy.freeze();
    let plan = policy.decide(&WorkShape::copy(16 << 20), &[]);
    assert!((engines.end(&plan) * 20.0 / f64::from(16 << 20) - 1.0).abs() < 0.05, "{plan:?}");
}

#[test]
fn two_late_parts_change_nothing_and_a_slow_engine_is_left() {
    let mut policy = policy(1);
    let (usual, shape) = (TestEngines::dsa(), WorkShape::copy(1 << 20));
    usual.learn(&mut policy, 400);
    let slow = TestEngines { engines: vec![(0.0, 9.6), (11_600.0, 2.99)], ..usual.clone() };
    let mut frozen = policy.clone();
    frozen.freeze();
    let before = frozen.decide(&shape, &[]).channel_bytes(0);
    for _ in 0..2 {
        slow.job(&mut policy, shape, || 1.0);
    }
    let mut frozen = policy.clone();
    frozen.freeze();
    assert!((share(frozen.decide(&shape, &[]).channel_bytes(0), before) - 1.0).abs() < 0.05);
    slow.learn(&mut policy, 60);
    policy.freeze();
    let after = policy.decide(&shape, &[]).channel_bytes(0);
    assert!(after < before / 2, "{before} {after}");
}

#[test]
fn small_change_is_followed_after_a_long_time_without_one() {
    let mut policy = policy(1);
    TestEngines::dsa().learn(&mut policy, 20_000);
    let slower = TestEngines { engines: vec![(0.0, 9.6), (1_160.0, 23.0)], ceiling: 1e9 };
    slower.learn(&mut policy, 200);
    let estimate = policy.estimate(&WorkShape::copy(1), MoveEngine::Channel(0), 2).unwrap();
    assert!((estimate.ns_per_byte * 23.0 - 1.0).abs() < 0.03, "{estimate:?}");
}

#[test]
fn engine_that_became_fast_again_is_found_by_exploration_alone() {
    let slow = TestEngines { engines: vec![(0.0, 9.6), (30_000.0, 1.0)], ceiling: 1e9 };
    let found = |explore_share| {
        let config = PolicyConfig { explore_share, ..PolicyConfig::default() };
        let mut policy = MovePolicy::new(&[channel()], config);
        slow.learn(&mut policy, 400);
        // Short jobs, for which the slow channel is never worth it: exploration saves up for each look at it.
        for _ in 0..200 {
            slow.job(&mut policy, WorkShape::copy(128 * KIB), || 1.0);
        }
        let shape = WorkShape::copy(128 * KIB);
        let is_used = |plan: &MovePlan| plan.reason() == DecisionReason::Split;
        (0..2_000).position(|_| is_used(&TestEngines::dsa().job(&mut policy, shape, || 1.0)))
    };
    let jobs = found(PolicyConfig::default().explore_share);
    assert!(jobs.is_some_and(|jobs| jobs < 500), "{jobs:?}");
    assert_eq!(found(0.0), None);
}

#[test]
fn exploration_costs_about_its_share() {
    let engines = TestEngines { engines: vec![(0.0, 9.6), (60_000.0, 1.0)], ceiling: 1e9 };
    let mut policy = policy(1);
    engines.learn(&mut policy, 400);
    let shape = WorkShape::copy(128 * KIB);
    let (mut taken, mut least) = (0.0, 0.0);
    for _ in 0..2_000 {
        let plan = engines.job(&mut policy, shape, || 1.0);
        taken += engines.end(&plan);
        least += learned_class::as_float(shape.bytes) / 9.6;
    }
    assert!(taken / least < 1.03, "{}", taken / least);
}

#[test]
fn ways_of_nearly_equal_time_do_not_alternate() {
    let seed = 0x5eed;
    println!("seed {seed}");
    // At 16 KiB the CPU and the channel each need 1.71 us.
    let engines = TestEngines::dsa();
    let shape = WorkShape { split: JobSplit::Forbidden, ..WorkShape::copy(16 * KIB) };
    let changes = |margin| {
        let mut policy = MovePolicy::new(&[channel()], PolicyConfig { margin, ..PolicyConfig::default() });
        let mut rng = Rng::with_seed(seed);
        let (mut last, mut changes) = (None, 0);
        for _ in 0..2_000 {
            let plan = engines.job(&mut policy, shape, || 0.9 + 0.2 * rng.f64());
            if plan.reason() != DecisionReason::Explored {
                changes += usize::from(last.replace(plan.reason()) != Some(plan.reason()));
            }
        }
        changes
    };
    let (with, without) = (changes(PolicyConfig::default().margin), changes(0.0));
    assert!(with <= 10 && without > 2 * with, "{with} {without}");
}

#[test]
fn way_of_jobs_with_deadlines_is_not_stale() {
    let mut policy = policy(1);
    let engines = TestEngines::dsa();
    let shape = WorkShape { split: JobSplit::Forbidden, ..WorkShape::copy(1 << 20) };
    for _ in 0..200 {
        engines.job(&mut policy, shape, || 1.0);
    }
    for _ in 0..200 {
        let plan = engines.job(&mut policy, WorkShape { time_left: Some(Nanos(1_000_000)), ..shape }, || 1.0);
        assert_eq!(plan.reason(), DecisionReason::ChannelAlone, "nothing is explored");
    }
    // Another way costs more than what exploration has saved up: the only one to explore is that of the last 200 jobs.
    assert_eq!(policy.decide(&shape, &[]).reason(), DecisionReason::ChannelAlone);
}

#[test]
fn frozen_policy_repeats_its_plans_and_learns_nothing() {
    let mut policy = policy(2);
    let engines = TestEngines { engines: vec![(0.0, 9.6), (1_160.0, 29.9), (900.0, 12.0)], ceiling: 1e9 };
    engines.learn(&mut policy, 300);
    policy.freeze();
    let first = policy.decide(&WorkShape::copy(1 << 20), &[]);
    let slow = TestEngines { engines: vec![(0.0, 1.0); 3], ..engines };
    for _ in 0..500 {
        assert_eq!(slow.job(&mut policy, WorkShape::copy(1 << 20), || 1.0), first);
    }
    assert_eq!(policy.counters().frozen, 501);
    policy.thaw();
    slow.learn(&mut policy, 300);
    assert_ne!(policy.decide(&WorkShape::copy(1 << 20), &[]), first);
}

#[test]
fn directions_and_nodes_are_learned_apart_and_the_oldest_class_is_replaced() {
    let mut policy =
        MovePolicy::new(&[channel()], PolicyConfig { classes_max: 2, ..PolicyConfig::default() });
    TestEngines::dsa().learn(&mut policy, 200);
    let copy = WorkShape::copy(1 << 20);
    let persistent = WorkShape { direction: MoveDirection::ToPersistent, ..copy };
    assert_eq!(policy.estimate(&persistent, MoveEngine::Cpu, 1), None);
    let slow = TestEngines { engines: vec![(0.0, 2.0), (5_000.0, 1.0)], ceiling: 1e9 };
    for _ in 0..100 {
        slow.job(&mut policy, persistent, || 1.0);
    }
    let rate = |shape| 1.0 / policy.estimate(shape, MoveEngine::Cpu, 2).unwrap().ns_per_byte;
    assert!((rate(&copy) / 9.6 - 1.0).abs() < 0.05, "{}", rate(&copy));
    assert!((rate(&persistent) / 2.0 - 1.0).abs() < 0.2, "{}", rate(&persistent));
    policy.decide(&WorkShape { target: Some(NodeId(1)), ..copy }, &[]);
    assert_eq!(policy.estimate(&copy, MoveEngine::Cpu, 1), None);
    assert!(policy.estimate(&persistent, MoveEngine::Cpu, 1).is_some());
}

#[test]
fn every_operation_between_two_nodes_is_remembered() {
    let mut policy = policy(1);
    let nodes = [None, Some(NodeId(0)), Some(NodeId(1))];
    let shapes: Vec<WorkShape> = MoveOperation::ALL
        .into_iter()
        .flat_map(|operation| nodes.map(|source| (operation, source)))
        .flat_map(|(operation, source)| nodes.map(|target| (operation, source, target)))
        .flat_map(|(operation, source, target)| {
            [MoveDirection::BetweenDram, MoveDirection::ToPersistent].map(|direction| {
                let copy = WorkShape::copy(1 << 20);
                WorkShape { operation, direction, source, target, ..copy }
            })
        })
        .collect();
    for shape in &shapes {
        policy.decide(shape, &[]);
    }
    for shape in &shapes {
        assert!(policy.estimate(shape, MoveEngine::Cpu, 1).is_some(), "{shape:?} was forgotten");
    }
}

#[test]
fn memory_of_a_class_is_what_its_setting_says() {
    let fits = |channels: usize| {
        let engines = (1 + channels) * engine_mix::COMPANIES;
        engines * (size_of::<affine_fit::AffineFit>() + 3 * size_of::<f64>())
    };
    let bytes = |channels: usize| size_of::<(u64, LearnedClass)>() + fits(channels) + 24 * channels;
    println!("{} {}", bytes(0), bytes(CHANNELS_MAX));
    assert!(bytes(0) <= 2_048 && bytes(CHANNELS_MAX) <= 2_048 + 512 * CHANNELS_MAX);
}

#[test]
fn every_plan_has_every_byte_once_and_equal_calls_give_equal_plans() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut rng = Rng::with_seed(seed);
        let channels = rng.usize(0..=CHANNELS_MAX);
        let engines = (0..=channels).map(|_| (5_000.0 * rng.f64(), 1.0 + 30.0 * rng.f64())).collect();
        let engines = TestEngines { engines, ceiling: 10.0 + 60.0 * rng.f64() };
        let (mut policy, mut twin) = (policy(channels), policy(channels));
        let mut counted = 0;
        for _ in 0..500 {
            let shape = WorkShape::copy(rng.u64(0..64) << rng.u32(0..20));
            let loads: Vec<_> = (0..channels)
                .map(|_| ChannelLoad { jobs: rng.usize(0..10), bytes: rng.u64(..1 << 20) })
                .collect();
            let plan = policy.decide(&shape, &loads);
            assert_eq!(plan, twin.decide(&shape, &loads));
            let sum = plan.channel_parts().fold(plan.cpu_bytes(), |sum, (_, bytes)| sum + bytes);
            assert_eq!(sum, shape.bytes, "{plan:?}");
            for (channel, bytes) in plan.channel_parts() {
                assert!(loads[channel].jobs < 8, "{plan:?}");
                assert!(bytes % 64 == 0 || plan.cpu_bytes() == 0, "{plan:?}");
            }
            let parts = engines.parts(&plan);
            if parts.len() > 1 && plan.reason() != DecisionReason::Explored {
                // Three quarters of the smallest part, less a rounding.
                assert!(parts.iter().all(|(_, bytes, _)| *bytes >= 704), "{plan:?}");
            }
            counted += u64::from(plan.reason() != DecisionReason::BelowThreshold);
            for (engine, bytes, time) in parts {
                let elapsed = nanos(time * (0.8 + 0.4 * rng.f64()));
                let ahead = match engine {
                    MoveEngine::Cpu => ChannelLoad::default(),
                    MoveEngine::Channel(channel) => loads[channel],
                };
                let together = plan.together();
                let observation = MoveObservation { shape, engine, bytes, together, ahead, elapsed };
                policy.observe(&observation);
                twin.observe(&observation);
            }
        }
        assert_eq!(policy.counters().total(), counted);
    }
}

#[test]
fn observations_of_unknown_channels_and_absurd_times_do_no_harm() {
    let mut policy = policy(1);
    let shape = WorkShape::copy(1 << 20);
    for elapsed in [0, 1, u64::MAX, u64::MAX, u64::MAX, 0, 0, 0, u64::MAX] {
        for engine in [MoveEngine::Cpu, MoveEngine::Channel(0), MoveEngine::Channel(99)] {
            let ahead = ChannelLoad { jobs: usize::MAX, bytes: u64::MAX };
            let elapsed = Nanos(elapsed);
            policy.observe(&MoveObservation { shape, engine, bytes: 1, together: 0, ahead, elapsed });
        }
        let plan = policy.decide(&shape, &[]);
        assert_eq!(plan.cpu_bytes() + plan.channel_bytes(0), 1 << 20);
    }
}
