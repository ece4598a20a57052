//! Tests of the scheduler against naive models, and of the policies' guarantees on a serial device in virtual time.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

fn waiting(slot: u32, class: u8, bytes: u64, arrived: Nanos) -> WaitingRequest {
    WaitingRequest {
        slot,
        class: RequestClass::new(class).unwrap(),
        bytes,
        arrived_at: arrived,
        deadline: None,
    }
}

fn policies(rng: &mut fastrand::Rng) -> SchedulingPolicy {
    match rng.u8(..4) {
        0 => SchedulingPolicy::Fifo,
        1 => SchedulingPolicy::deadline(Nanos(rng.u64(..1_000))),
        2 => SchedulingPolicy::share(&[rng.u16(..9), rng.u16(..9), rng.u16(..9)]),
        _ => SchedulingPolicy::Priority { overtakes_max: rng.u32(..5) },
    }
}

#[test]
fn pushed_requests_come_out_once_across_policy_changes() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut scheduler = RequestScheduler::new(policies(&mut rng));
        let mut model = BTreeSet::new();
        for slot in 0..2_000 {
            match rng.u8(..10) {
                0..5 => {
                    let (class, bytes) = (rng.u8(..8), rng.u64(..100_000));
                    scheduler.push(waiting(slot, class, bytes, Nanos(slot.into())));
                    assert!(model.insert(slot), "seed {seed}");
                }
                5..8 => {
                    let popped = scheduler.pop(Nanos(slot.into()));
                    assert_eq!(popped.is_some(), !model.is_empty(), "seed {seed}");
                    if let Some(SchedulerDecision::Serve(slot) | SchedulerDecision::Cancel(slot)) = popped {
                        assert!(model.remove(&slot), "seed {seed}");
                    }
                }
                8 => {
                    let slot = rng.u32(..=slot);
                    assert_eq!(scheduler.remove(slot), model.remove(&slot), "seed {seed}");
                }
                _ if rng.u8(..10) == 0 => scheduler.set_policy(policies(&mut rng)),
                _ => scheduler.charge_class(RequestClass::FIRST, 512),
            }
            assert_eq!(scheduler.len(), model.len(), "seed {seed}");
        }
    }
}

#[test]
fn fifo_keeps_arrival_order_after_another_policy() {
    let mut scheduler = RequestScheduler::new(SchedulingPolicy::Priority { overtakes_max: 3 });
    for slot in 0..100 {
        scheduler.push(waiting(slot, u8::try_from(slot * 7 % 8).unwrap(), 512, Nanos::ZERO));
    }
    scheduler.set_policy(SchedulingPolicy::Fifo);
    for slot in 0..100 {
        assert_eq!(scheduler.pop(Nanos::ZERO), Some(SchedulerDecision::Serve(slot)));
    }
}

#[test]
fn bytes_of_busy_classes_are_within_a_tenth_of_their_weights() {
    for seed in 0..50 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let weights: Vec<u16> = (0..4).map(|_| rng.u16(1..16)).collect();
        let mut scheduler = RequestScheduler::new(SchedulingPolicy::share(&weights));
        let (mut sizes, mut served) = (BTreeMap::new(), [0_u64; 4]);
        let mut slot = 0;
        // Each class keeps eight requests waiting; sizes depend on class and chance.
        let mut send =
            |class: usize, scheduler: &mut RequestScheduler, sizes: &mut BTreeMap<u32, (usize, u64)>| {
                let bytes = 4_096 << rng.u32(..u32::try_from(class + 2).unwrap());
                slot += 1;
                sizes.insert(slot, (class, bytes));
                scheduler.push(waiting(slot, u8::try_from(class).unwrap(), bytes, Nanos::ZERO));
            };
        for class in (0..4).cycle().take(32) {
            send(class, &mut scheduler, &mut sizes);
        }
        for _ in 0..20_000 {
            let Some(SchedulerDecision::Serve(slot)) = scheduler.pop(Nanos::ZERO) else {
                panic!("none was served")
            };
            let (class, bytes) = sizes.remove(&slot).unwrap();
            served[class] += bytes;
            send(class, &mut scheduler, &mut sizes);
        }
        for (one, other) in (0..4).flat_map(|one| (0..4).map(move |other| (one, other))) {
            // served[one] / served[other] >= 0.9 * weights[one] / weights[other]
            let left = u128::from(served[one]) * u128::from(weights[other]) * 10;
            let right = u128::from(served[other]) * u128::from(weights[one]) * 9;
            assert!(left >= right, "{served:?} for {weights:?}, seed {seed}");
        }
    }
}

#[test]
fn idle_class_gains_no_credit_and_loses_no_share() {
    let mut scheduler = RequestScheduler::new(SchedulingPolicy::share(&[1, 1]));
    for slot in 0..1_000 {
        scheduler.push(waiting(slot, 0, 4_096, Nanos::ZERO));
    }
    for _ in 0..900 {
        scheduler.pop(Nanos::ZERO);
    }
    for slot in 2_000..2_100 {
        scheduler.push(waiting(slot, 1, 4_096, Nanos::ZERO));
    }
    let next: Vec<u32> = std::iter::from_fn(|| scheduler.pop(Nanos::ZERO))
        .take(50)
        .map(|next| matches!(next, SchedulerDecision::Serve(2_000..)).into())
        .collect();
    let of_late = next.iter().sum::<u32>();
    assert!((24..=26).contains(&of_late), "{of_late} of 50 requests were of the late class");
}

#[test]
fn class_is_overtaken_at_most_as_often_as_the_bound() {
    for seed in 0..100 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let overtakes_max = rng.u32(..20);
        let mut scheduler = RequestScheduler::new(SchedulingPolicy::Priority { overtakes_max });
        let (mut classes, mut since) = (BTreeMap::new(), [0_u32; CLASSES]);
        let mut count = [0_u32; CLASSES];
        for slot in 0..5_000 {
            for number in 0..rng.u32(..3) {
                let class = rng.u8(..8).min(rng.u8(..8));
                let slot = slot * 4 + number;
                if count[usize::from(class)] == 0 {
                    since[usize::from(class)] = 0;
                }
                count[usize::from(class)] += 1;
                classes.insert(slot, class);
                scheduler.push(waiting(slot, class, 512, Nanos::ZERO));
            }
            let Some(SchedulerDecision::Serve(served)) = scheduler.pop(Nanos::ZERO) else { continue };
            let class = usize::from(classes.remove(&served).unwrap());
            count[class] -= 1;
            for (other, since) in since.iter_mut().enumerate() {
                *since = if other == class || count[other] == 0 { 0 } else { *since + 1 };
                assert!(
                    *since <= overtakes_max + 8,
                    "class {other} was overtaken {since} times, seed {seed}"
                );
            }
        }
    }
}

#[test]
fn most_urgent_class_is_served_first_within_the_bound() {
    let mut scheduler = RequestScheduler::new(SchedulingPolicy::Priority { overtakes_max: 100 });
    for slot in 0..24 {
        scheduler.push(waiting(slot, 7 - u8::try_from(slot / 3).unwrap(), 512, Nanos::ZERO));
    }
    for urgent in (0..8).rev() {
        for member in 0..3 {
            assert_eq!(scheduler.pop(Nanos::ZERO), Some(SchedulerDecision::Serve(urgent * 3 + member)));
        }
    }
}

/// The results of a simulated run: latencies of class 0 from arrival to completion or cancellation, and the numbers of
/// requests served and cancelled.
struct OverloadRun {
    urgent: Vec<u64>,
    served: u32,
    given_up: u32,
}

/// Simulates open arrivals at a serial device; requests beyond the window wait in the scheduler. One arrival in ten is
/// of class 0, the rest of class 1.
fn overload(scheduling: SchedulingPolicy, service: Nanos, between: Nanos, seed: u64) -> OverloadRun {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut scheduler = RequestScheduler::new(scheduling);
    let mut window = InFlightWindow::new(32, scheduler.latency_target());
    let mut arrivals = Vec::new();
    let mut at_device = VecDeque::new();
    let mut run = OverloadRun { urgent: Vec::new(), served: 0, given_up: 0 };
    let (mut now, mut arrival, mut free_at) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
    while arrivals.len() < 30_000 {
        let next_answer = at_device.front().map(|&(_, _, at): &(u32, Nanos, Nanos)| at);
        now = next_answer.map_or(arrival, |at| at.min(arrival)).max(now);
        if next_answer == Some(now) {
            let (slot, given, _) = at_device.pop_front().unwrap();
            window.observe(now.since(given));
            run.served += 1;
            let (class, arrived): (u8, Nanos) = arrivals[usize::try_from(slot).unwrap()];
            if class == 0 {
                run.urgent.push(now.since(arrived).0);
            }
        }
        if now >= arrival {
            let class = u8::from(!rng.u8(..10).eq(&0));
            scheduler.push(waiting(u32::try_from(arrivals.len()).unwrap(), class, 4_096, now));
            arrivals.push((class, now));
            arrival = now.after(Nanos(rng.u64(..between.0 * 2)));
        }
        while at_device.len() < usize::try_from(window.limit()).unwrap() {
            match scheduler.pop(now) {
                Some(SchedulerDecision::Serve(slot)) => {
                    free_at = free_at.max(now).after(service);
                    at_device.push_back((slot, now, free_at));
                }
                Some(SchedulerDecision::Cancel(slot)) => {
                    run.given_up += 1;
                    let (class, arrived) = arrivals[usize::try_from(slot).unwrap()];
                    if class == 0 {
                        run.urgent.push(now.since(arrived).0);
                    }
                }
                None => break,
            }
        }
    }
    run.urgent.sort_unstable();
    run
}

fn p99(sorted: &[u64]) -> u64 {
    sorted[sorted.len() * 99 / 100]
}

#[test]
fn under_overload_p99_of_requests_with_a_deadline_is_within_twice_the_deadline() {
    let (service, between) = (Nanos::from_micros(100), Nanos::from_micros(60));
    let deadline = Nanos::from_millis(2);
    for seed in 0..5 {
        let mut within = [Nanos::from_millis(60_000); CLASSES];
        within[0] = deadline;
        let served = overload(
            SchedulingPolicy::Deadline { deadlines: within, late_policy: LatePolicy::Serve },
            service,
            between,
            seed,
        );
        assert!(p99(&served.urgent) <= 2 * deadline.0, "{} ns, seed {seed}", p99(&served.urgent));
        let fifo = overload(SchedulingPolicy::Fifo, service, between, seed);
        assert!(p99(&fifo.urgent) > 20 * deadline.0, "the load does not overload the device");
    }
}

#[test]
fn cancelling_late_requests_under_overload_keeps_p99_low_and_the_device_busy() {
    let (service, between) = (Nanos::from_micros(100), Nanos::from_micros(60));
    let deadline = Nanos::from_millis(2);
    for seed in 0..5 {
        let scheduling =
            SchedulingPolicy::Deadline { deadlines: [deadline; CLASSES], late_policy: LatePolicy::Cancel };
        let run = overload(scheduling, service, between, seed);
        assert!(p99(&run.urgent) <= 2 * deadline.0, "{} ns, seed {seed}", p99(&run.urgent));
        let (served, all) = (u64::from(run.served), u64::from(run.served + run.given_up));
        // The device can serve 60 of 100.
        assert!(served * 100 >= all * 57, "{served} of {all} were served, seed {seed}");
    }
}
