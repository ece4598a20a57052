//! Tests of policies and queues that change while commands are in flight.

use super::*;
use crate::error::RequestError;

#[test]
fn requests_complete_once_while_queues_are_attached_and_detached() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let time = IoClock::virtual_at_zero();
        let service = ServiceTimes { jitter_percent: 60, units: 4, ..ServiceTimes::default() };
        let mut model = timed_model(&time, 8_192, service);
        let own = model_queue(&mut model, rng.u32(1..9));
        let mut handle = Handle::builder(model.facts())
            .queue(own)
            .selector(QueueSelector::MostRoom)
            .clock(time.clone())
            .build()
            .unwrap();
        let (mut next, mut answers) = (0_u64, Vec::new());
        for _ in 0..400 {
            match rng.u8(..12) {
                0 => {
                    let attached = model_queue(&mut model, rng.u32(1..9));
                    handle.attach(attached);
                }
                1 => {
                    let names = handle.queues();
                    if names.len() > 1 {
                        let name = names[rng.usize(..names.len())];
                        let left = handle.detach(name, None).unwrap();
                        assert!(matches!(left, Some(QueueAttachment::Own(queue)) if queue.in_flight() == 0));
                    }
                }
                2 => handle.set_scheduling(SchedulingPolicy::share(&[rng.u16(1..5), 1])),
                3 => handle.set_scheduling(SchedulingPolicy::Fifo),
                4 => handle.set_merging(if rng.bool() { MergePolicy::Adjacent } else { MergePolicy::Off }),
                5 => {
                    let selector = if rng.bool() { QueueSelector::First } else { QueueSelector::MostRoom };
                    handle.set_selector(selector);
                }
                _ => {
                    let bytes = 512 * rng.usize(1..40);
                    let offset = rng.u64(..100) * 512;
                    let request = IoRequest::read(offset, model.region(bytes).unwrap());
                    match handle.submit(request, next) {
                        Ok(()) => next += 1,
                        Err(refused) => assert!(matches!(refused.error, RequestError::Full { .. })),
                    }
                }
            }
            if rng.bool() {
                answers.extend(handle.poll().unwrap().map(|answer| answer.completion.token));
            }
        }
        answers.extend(drain(&mut handle).into_keys());
        answers.sort_unstable();
        assert_eq!(answers, (0..next).collect::<Vec<_>>(), "seed {seed}");
    }
}

/// Covers B9: setting a feature of a handle changed a flag that no code read. Each policy takes effect with the next
/// request, and ends when it is unset.
#[test]
fn b9_policy_takes_effect_when_set_and_ends_when_unset() {
    let time = IoClock::virtual_at_zero();
    let service =
        ServiceTimes { units: 1, fixed: Nanos::from_micros(100), per_kib: Nanos::ZERO, jitter_percent: 0 };
    let mut model = timed_model(&time, 65_536, service);
    let own = model_queue(&mut model, 8);
    let mut handle =
        Handle::builder(model.facts()).queue(own).in_flight_max(1).clock(time.clone()).build().unwrap();
    let mut order = |handle: &mut Handle| -> Vec<u64> {
        for token in 0..6 {
            let class = RequestClass::new(u8::try_from(6 - token).unwrap()).unwrap();
            let buffer = model.region(512).unwrap();
            handle.submit(IoRequest::read(token * 4_096, buffer).with_class(class), token).unwrap();
        }
        std::iter::from_fn(|| handle.wait(None).unwrap().map(|answer| answer.completion.token)).collect()
    };
    assert_eq!(order(&mut handle), [0, 1, 2, 3, 4, 5]);
    handle.set_scheduling(SchedulingPolicy::Priority { overtakes_max: 100 });
    assert_eq!(order(&mut handle), [5, 4, 3, 2, 1, 0]);
    handle.set_scheduling(SchedulingPolicy::Fifo);
    assert_eq!(order(&mut handle), [0, 1, 2, 3, 4, 5]);
    assert!(!handle.fast_path);
    handle.set_in_flight_max(u32::MAX);
    assert!(handle.fast_path);
}

/// Covers B8: an error path returned with a lock held, and the next call deadlocked.
#[test]
fn b8_after_any_error_the_next_call_works() {
    let service = ServiceTimes { fixed: Nanos::from_micros(5), ..ServiceTimes::default() };
    let settings =
        ModelSettings { contents: ModelContents::Memory, ..ModelSettings::latency_model(SIZE, service) };
    let mut model = ModelDevice::new(settings).unwrap();
    model.set_faults(BlockFaults::default().with(0, 1, Status::UNRECOVERED_READ_ERROR));
    let shared = SharedQueue::new(model_queue(&mut model, 2));
    let mut one = Handle::builder(model.facts()).queue(shared.clone()).waiting_max(0).build().unwrap();
    let mut other = Handle::builder(model.facts()).queue(shared.clone()).waiting_max(0).build().unwrap();
    for _ in 0..10 {
        assert!(one.read(0, model.region(512).unwrap()).is_err());
        assert!(other.read(1, model.region(512).unwrap()).is_err(), "misaligned");
        let tokens = (0..4).filter(|&token| one.submit(IoRequest::flush(), token).is_ok()).count();
        assert_eq!(tokens, 2);
        assert!(one.detach(QueueName(5), None).is_err());
        while one.outstanding() > 0 {
            one.poll().unwrap();
        }
        assert!(other.read(4_096, model.region(512).unwrap()).is_ok());
    }
    assert!(model.queue(5_000).is_err(), "a queue deeper than the maximum was created");
    assert!(model.queue(4).is_ok());
}
