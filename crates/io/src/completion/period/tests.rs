//! Tests of the period on a latency model in virtual time, compared with busy polling.

use super::*;
use crate::completion::{CommandProfile, TransferDirection};

/// A device that serves `units` commands at a time, each for a random time.
#[derive(Clone, Copy)]
struct SimulatedLoad {
    bytes: usize,
    service: Nanos,
    /// The deviation of the service time, in percent, up and down.
    jitter_percent: u64,
    units: usize,
    depth: usize,
    /// The most that a sleep exceeds its requested length.
    lateness_max: u64,
}

/// The counters of a run.
#[derive(Debug)]
struct SimulatedRun {
    answers: u64,
    polls: u64,
    sleeps: u64,
    /// The time spent on polls and on the cost of sleeps.
    busy: u64,
}

const POLL_COST: u64 = 100;
const RUN_TIME: Nanos = Nanos::from_millis(500);

fn run(bench: &SimulatedLoad, pace: PollPace, seed: u64) -> SimulatedRun {
    run_with(bench, &mut PollPeriod::new(pace), seed)
}

fn run_with(bench: &SimulatedLoad, period: &mut PollPeriod, seed: u64) -> SimulatedRun {
    let mut rng = fastrand::Rng::with_seed(seed);
    let class = CommandProfile { direction: TransferDirection::Read, bytes: bench.bytes }.class();
    let mut units = vec![Nanos::ZERO; bench.units];
    // The times of submission and completion.
    let mut in_flight: Vec<(Nanos, Nanos)> = Vec::new();
    let mut ran = SimulatedRun { answers: 0, polls: 0, sleeps: 0, busy: 0 };
    let mut now = Nanos::ZERO;
    while now < RUN_TIME {
        while in_flight.len() < bench.depth {
            let spread = bench.service.0 * bench.jitter_percent / 100;
            let service = bench.service.0 - spread + rng.u64(..=2 * spread);
            let unit = units.iter_mut().min().unwrap();
            *unit = (*unit).max(now).after(Nanos(service));
            in_flight.push((now, *unit));
        }
        now = now.after(Nanos(POLL_COST));
        ran.polls += 1;
        ran.busy += POLL_COST;
        in_flight.retain(|&(submitted, answered)| {
            let come = answered <= now;
            if come {
                period.observe_completion(class, now.since(submitted));
                ran.answers += 1;
            }
            !come
        });
        period.observe_poll();
        if in_flight.len() < bench.depth {
            continue;
        }
        let span = period.next_sleep(now, in_flight.iter().map(|&(submitted, _)| (submitted, class)));
        if span > Nanos::ZERO {
            let took = span.after(Nanos(rng.u64(..=bench.lateness_max)));
            now = now.after(took);
            period.observe_sleep(span, took);
            ran.sleeps += 1;
            ran.busy += SLEEP_COST.0;
        }
    }
    ran
}

#[test]
fn from_8_to_64_kib_at_most_2_percent_of_iops_are_lost_for_a_quarter_of_the_polls() {
    for (kib, jitter_percent) in [8, 16, 32, 64].into_iter().flat_map(|kib| [(kib, 0), (kib, 10), (kib, 20)])
    {
        for (depth, units) in [(1, 8), (4, 8), (8, 8)] {
            let bench = SimulatedLoad {
                bytes: kib << 10,
                service: Nanos(60_000 + 1_500 * u64::try_from(kib).unwrap()),
                jitter_percent,
                units,
                depth,
                lateness_max: 2_000,
            };
            let busy = run(&bench, PollPace::Busy, 1);
            let adaptive = run(&bench, PollPace::Adaptive, 1);
            let what =
                format!("{kib} KiB, depth {depth}, jitter {jitter_percent}%: {adaptive:?} for {busy:?}");
            assert!(adaptive.answers * 100 >= busy.answers * 98, "{what}");
            if depth == 1 {
                assert!(adaptive.polls * 4 <= busy.polls, "{what}");
                assert!(adaptive.busy * 4 <= busy.busy, "{what}");
            }
        }
    }
}

#[test]
fn at_4_kib_on_a_fast_device_the_sleep_is_near_zero_and_no_iops_are_lost() {
    for (service, late_max) in [(8_000, 50_000), (5_000, 2_000), (2_000, 0)] {
        let bench = SimulatedLoad {
            bytes: 4_096,
            service: Nanos(service),
            jitter_percent: 10,
            units: 4,
            depth: 1,
            lateness_max: late_max,
        };
        let busy = run(&bench, PollPace::Busy, 2);
        let adaptive = run(&bench, PollPace::Adaptive, 2);
        assert!(adaptive.answers * 1_000 >= busy.answers * 990, "{adaptive:?} for {busy:?}");
    }
}

#[test]
fn late_sleeps_cost_no_more_iops() {
    for late_max in [5_000, 50_000, 200_000] {
        let bench = SimulatedLoad {
            bytes: 16 << 10,
            service: Nanos(100_000),
            jitter_percent: 5,
            units: 8,
            depth: 1,
            lateness_max: late_max,
        };
        let busy = run(&bench, PollPace::Busy, 3);
        let adaptive = run(&bench, PollPace::Adaptive, 3);
        assert!(adaptive.answers * 100 >= busy.answers * 96, "{late_max}: {adaptive:?} for {busy:?}");
    }
}

#[test]
fn fixed_period_is_kept_and_part_pace_sleeps_its_part() {
    let bench = SimulatedLoad {
        bytes: 8_192,
        service: Nanos(100_000),
        jitter_percent: 0,
        units: 8,
        depth: 1,
        lateness_max: 0,
    };
    let busy = run(&bench, PollPace::Busy, 4);
    let fixed = run(&bench, PollPace::Fixed(Nanos(300_000)), 4);
    assert!(fixed.answers * 100 <= busy.answers * 35, "{fixed:?} for {busy:?}");
    let half = run(&bench, PollPace::Part(50), 4);
    assert!(half.answers * 100 >= busy.answers * 99, "{half:?} for {busy:?}");
    assert!(half.polls * 100 <= busy.polls * 52, "{half:?} for {busy:?}");
    assert_eq!(PollPeriod::new(PollPace::Fixed(Nanos(7))).next_sleep(Nanos(9), std::iter::empty()), Nanos(7));
}

#[test]
fn estimate_follows_a_device_ten_times_slower_or_faster() {
    let class = CommandProfile { direction: TransferDirection::Write, bytes: 8_192 }.class();
    for (before, after) in [(20_000, 200_000), (200_000, 20_000)] {
        let mut period = PollPeriod::new(PollPace::Adaptive);
        for latency in [before; 100].into_iter().chain([after; 400]) {
            period.observe_completion(class, Nanos(latency));
            period.observe_poll();
        }
        let low = period.estimator().low(class).unwrap().0;
        assert!(low * 100 <= after * 101 && low * 10 >= after * 9, "{low} for {after}");
    }
}

/// Guards against a regression: after late sleeps no more sleeps were taken, so the lateness was never learnt anew.
#[test]
fn sleeps_are_retried_after_a_period_of_late_sleeps() {
    let calm = SimulatedLoad {
        bytes: 16 << 10,
        service: Nanos(80_000),
        jitter_percent: 5,
        units: 8,
        depth: 1,
        lateness_max: 2_000,
    };
    let mut period = PollPeriod::new(PollPace::Adaptive);
    let noisy = SimulatedLoad { lateness_max: 500_000, ..calm };
    let busy = run(&calm, PollPace::Busy, 5);
    let before = run_with(&noisy, &mut period, 5);
    assert!(before.answers * 100 >= busy.answers * 95, "{before:?} for {busy:?}");
    run_with(&calm, &mut period, 6);
    let after = run_with(&calm, &mut period, 7);
    assert!(
        after.polls * 4 <= busy.polls && after.answers * 100 >= busy.answers * 98,
        "{after:?} for {busy:?}"
    );
}
