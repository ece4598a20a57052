//! Tests of shared queues and of completion threads, in the machine's time.

use super::*;

const READS: u64 = 2_000;

fn read_all(mut handle: Handle, mut model: ModelDevice, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut sent, mut answered) = (0, 0);
    let mut expected = BTreeMap::new();
    while answered < READS {
        while sent < READS && handle.outstanding() < 4 {
            let bytes = 512 * rng.usize(1..9);
            let offset = rng.u64(..100) * 4_096;
            let buffer = model.region(bytes).unwrap();
            let address = buffer.address();
            handle.submit(IoRequest::read(offset, buffer), sent).unwrap();
            expected.insert(sent, address);
            sent += 1;
        }
        let answer = handle.wait(None).unwrap().expect("wait returned none with requests outstanding");
        let buffer = &answer.data.buffers()[0];
        assert_eq!(expected.remove(&answer.completion.token), Some(buffer.address()), "seed {seed}");
        answered += 1;
    }
    assert_eq!(handle.outstanding(), 0);
}

fn fast_service() -> ServiceTimes {
    ServiceTimes { fixed: Nanos::from_micros(5), per_kib: Nanos::ZERO, jitter_percent: 50, units: 4 }
}

#[test]
fn threads_sharing_a_queue_each_receive_their_own_completions() {
    for policy in [
        CompletionPolicy::Inline,
        CompletionPolicy::Paced(PollPace::Adaptive),
        CompletionPolicy::Interrupt(CompletionAggregation::NONE),
        CompletionPolicy::Thread(PollPace::Adaptive, CompletionAggregation::NONE),
        CompletionPolicy::Thread(
            PollPace::Busy,
            CompletionAggregation { count: 3, time: Nanos::from_micros(20) },
        ),
    ] {
        let mut model = ModelDevice::new(ModelSettings::latency_model(SIZE, fast_service())).unwrap();
        let shared = SharedQueue::new(model_queue(&mut model, 8));
        let threads: Vec<_> = (0..3)
            .map(|seed| {
                let builder = Handle::builder(model.facts()).queue(shared.clone()).completion(policy);
                let (handle, model) = (builder.build().unwrap(), model.clone());
                std::thread::spawn(move || read_all(handle, model, seed))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }
}

/// Covers B10: a condition variable was never initialised, a thread spun on another's state, and a thread that was
/// never created was joined. Threads start and stop with commands in flight, and the handle then owns its queue again.
#[test]
fn b10_completion_threads_start_and_stop_with_commands_in_flight() {
    let mut model = ModelDevice::new(ModelSettings::latency_model(SIZE, fast_service())).unwrap();
    let own = model_queue(&mut model, 8);
    let mut handle = Handle::builder(model.facts()).queue(own).build().unwrap();
    let mut answered = 0;
    for round in 0..60_u64 {
        for token in 0..6 {
            let buffer = model.region(4_096).unwrap();
            handle.submit(IoRequest::read(token * 4_096, buffer), round * 6 + token).unwrap();
        }
        handle.ring().unwrap();
        let policy = match round % 3 {
            0 => CompletionPolicy::Thread(PollPace::Adaptive, CompletionAggregation::NONE),
            1 => {
                CompletionPolicy::Thread(PollPace::Fixed(Nanos::from_micros(50)), CompletionAggregation::NONE)
            }
            _ => CompletionPolicy::Inline,
        };
        handle.set_completion(policy).unwrap();
        while handle.outstanding() > usize::try_from(round % 4).map_or(0, |keep| u32::try_from(keep).unwrap())
        {
            answered += u64::from(handle.wait(None).unwrap().is_some());
        }
    }
    handle.set_completion(CompletionPolicy::Inline).unwrap();
    while handle.wait(None).unwrap().is_some() {
        answered += 1;
    }
    assert_eq!(answered, 360);
    assert!(handle.fast_path, "the handle did not get its queue back");
}

#[test]
fn dropping_a_handle_with_requests_outstanding_leaves_the_shared_queue_usable() {
    let mut model = ModelDevice::new(ModelSettings::latency_model(SIZE, fast_service())).unwrap();
    let shared = SharedQueue::new(model_queue(&mut model, 4));
    for _ in 0..50 {
        let mut one = Handle::builder(model.facts()).queue(shared.clone()).build().unwrap();
        let mut other = Handle::builder(model.facts()).queue(shared.clone()).build().unwrap();
        for token in 0..3 {
            one.submit(IoRequest::read(0, model.region(512).unwrap()), token).unwrap();
        }
        one.ring().unwrap();
        drop(one);
        assert!(other.read(4_096, model.region(4_096).unwrap()).is_ok());
    }
    assert!(shared.into_queue().is_ok(), "a dropped handle still holds the shared queue");
}
