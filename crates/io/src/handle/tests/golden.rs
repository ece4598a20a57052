//! Tests of every operation, divided, merged and vectored, under changing policies, against a plain array of bytes.

use super::*;

const BLOCKS: u64 = SIZE / 512;

fn policies(rng: &mut fastrand::Rng, handle: &mut Handle) {
    handle.set_scheduling(match rng.u8(..5) {
        0 => SchedulingPolicy::Priority { overtakes_max: rng.u32(..5) },
        1 => SchedulingPolicy::share(&[1, 2, 3]),
        2 => SchedulingPolicy::deadline(Nanos::from_millis(5)),
        _ => SchedulingPolicy::Fifo,
    });
    handle.set_merging(if rng.bool() { MergePolicy::Adjacent } else { MergePolicy::Off });
    handle.set_in_flight_max(if rng.bool() { u32::MAX } else { rng.u32(1..9) });
    let completion = match rng.u8(..4) {
        0 => CompletionPolicy::Paced(PollPace::Adaptive),
        1 => CompletionPolicy::Paced(PollPace::Part(50)),
        2 => CompletionPolicy::Interrupt(CompletionAggregation { count: 3, time: Nanos::from_micros(30) }),
        _ => CompletionPolicy::Inline,
    };
    handle.set_completion(completion).unwrap();
}

/// Uses disjoint ranges in one round, so that the order of requests does not matter.
#[test]
fn operations_change_the_device_as_they_change_an_array() {
    for seed in 0..30 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let time = IoClock::virtual_at_zero();
        let service = ServiceTimes { jitter_percent: 50, units: 3, ..ServiceTimes::default() };
        let mut model = timed_model(&time, 4_096 << rng.u32(..3), service);
        let mut handle = Handle::builder(model.facts())
            .queue(model_queue(&mut model, rng.u32(1..20)))
            .queue(model_queue(&mut model, rng.u32(1..20)))
            .selector(QueueSelector::MostRoom)
            .clock(time.clone())
            .build()
            .unwrap();
        let mut array = vec![0_u8; usize::try_from(SIZE).unwrap()];
        for round in 0..20 {
            let what = format!("seed {seed}, round {round}");
            let mut expected: BTreeMap<u64, (Status, Option<Vec<u8>>)> = BTreeMap::new();
            let mut lba = rng.u64(..8);
            let mut token = 0;
            while lba < BLOCKS && token < 60 {
                let longest = if rng.u8(..8) == 0 { 200 } else { 9 };
                let blocks = rng.u64(1..longest).min(BLOCKS - lba);
                let request = request(&mut rng, &mut model, lba, blocks, &mut array, &mut expected, token);
                handle.submit(request, token).unwrap_or_else(|refused| panic!("{what}: {refused}"));
                token += 1;
                lba += blocks + if rng.bool() { 0 } else { rng.u64(..50) };
                if rng.u8(..10) == 0 {
                    policies(&mut rng, &mut handle);
                }
            }
            let answers = drain(&mut handle);
            assert_eq!(answers.len(), expected.len(), "{what}");
            for (token, (status, data)) in answers {
                let (expected_status, bytes) = &expected[&token];
                assert_eq!(status, *expected_status, "{what}, request {token}");
                if let Some(bytes) = bytes {
                    assert!(bytes_of(&data) == *bytes, "{what}, request {token}: wrong bytes");
                }
            }
        }
    }
}

/// Makes a random request, applies it to the array, and records the expected completion.
#[expect(clippy::too_many_arguments, reason = "the state of one round, for one caller")]
fn request(
    rng: &mut fastrand::Rng,
    model: &mut ModelDevice,
    lba: u64,
    blocks: u64,
    array: &mut [u8],
    expected: &mut BTreeMap<u64, (Status, Option<Vec<u8>>)>,
    token: u64,
) -> IoRequest {
    let (offset, bytes) = (lba * 512, usize::try_from(blocks * 512).unwrap());
    let start = usize::try_from(offset).unwrap();
    let kept = &mut array[start..start + bytes];
    let fill = rng.u8(1..);
    let durable = if rng.bool() { WriteDurability::Immediate } else { WriteDurability::NamespaceDefault };
    let mut parts = |fill| -> Vec<Buffer> {
        let first = rng.u64(..=blocks);
        let lengths = [first, blocks - first].into_iter().filter(|&blocks| blocks > 0);
        lengths.map(|blocks| filled(model, usize::try_from(blocks * 512).unwrap(), fill)).collect()
    };
    let (request, status, bytes_after) = match fill % 8 {
        0 | 1 => (IoRequest::read(offset, filled(model, bytes, 0)), Status::SUCCESS, Some(kept.to_vec())),
        2 => (IoRequest::read_scattered(offset, parts(0)), Status::SUCCESS, Some(kept.to_vec())),
        3 => {
            kept.fill(fill);
            (IoRequest::write_gathered(offset, parts(fill), durable), Status::SUCCESS, None)
        }
        4 => {
            kept.fill(0);
            (IoRequest::write_zeroes(offset, blocks * 512, durable), Status::SUCCESS, None)
        }
        5 => {
            kept.fill(0);
            let list = filled(model, 4_096, fill);
            (IoRequest::discard(offset, blocks * 512, list), Status::SUCCESS, None)
        }
        6 => {
            let with = filled(model, bytes, fill);
            let same = kept.iter().all(|&byte| byte == fill);
            let status = if same { Status::SUCCESS } else { Status::COMPARE_FAILURE };
            (IoRequest::compare(offset, with), status, None)
        }
        _ => {
            kept.fill(fill);
            (IoRequest::write(offset, filled(model, bytes, fill), durable), Status::SUCCESS, None)
        }
    };
    expected.insert(token, (status, bytes_after));
    let class = RequestClass::new(fill % 3).unwrap();
    request.with_class(class)
}

#[test]
fn blocking_calls_move_bytes_and_keep_other_completions() {
    let time = IoClock::virtual_at_zero();
    let mut model = timed_model(&time, 4_096, ServiceTimes::default());
    let own = model_queue(&mut model, 4);
    let mut handle = Handle::builder(model.facts()).queue(own).clock(time.clone()).build().unwrap();
    let other = model.region(512).unwrap();
    handle.submit(IoRequest::read(0, other), 42).unwrap();
    let buffer = handle.write(8_192, filled(&mut model, 16_384, 9), WriteDurability::Immediate).unwrap();
    let buffer = handle.read(4_096, buffer).unwrap();
    let mut bytes = vec![0; 16_384];
    buffer.read(0, &mut bytes).unwrap();
    assert_eq!((bytes[4_095], bytes[4_096]), (0, 9));
    handle.write_zeroes(8_192, 512, WriteDurability::Immediate).unwrap();
    let list = model.region(4_096).unwrap();
    assert_eq!(handle.discard(9_216, 512, list).unwrap().bytes(), 4_096);
    let (same, with) = handle.compare(8_704, filled(&mut model, 512, 9)).unwrap();
    assert!(same);
    assert!(!handle.compare(8_192, with).unwrap().0);
    assert!(!handle.compare(9_216, filled(&mut model, 512, 9)).unwrap().0);
    handle.flush().unwrap();
    let answers = drain(&mut handle);
    assert_eq!(answers.into_keys().collect::<Vec<_>>(), [42]);
}

#[test]
fn adjacent_waiting_requests_become_one_command() {
    let time = IoClock::virtual_at_zero();
    let service =
        ServiceTimes { units: 1, fixed: Nanos::from_micros(100), per_kib: Nanos::ZERO, jitter_percent: 0 };
    let mut model = timed_model(&time, 65_536, service);
    let own = model_queue(&mut model, 8);
    let mut handle = Handle::builder(model.facts())
        .queue(own)
        .merging(MergePolicy::Adjacent)
        .clock(time.clone())
        .build()
        .unwrap();
    for token in [3, 1, 2, 0] {
        let from = filled(&mut model, 512, u8::try_from(token + 1).unwrap());
        handle.submit(IoRequest::write(token * 512, from, WriteDurability::Immediate), token).unwrap();
    }
    let answers = drain(&mut handle);
    assert_eq!(answers.len(), 4);
    assert!(time.now() <= Nanos::from_micros(210), "the requests were not merged: they took {}", time.now());
    let back = handle.read(0, model.region(2_048).unwrap()).unwrap();
    let mut bytes = [0; 2_048];
    back.read(0, &mut bytes).unwrap();
    assert_eq!([bytes[0], bytes[512], bytes[1_024], bytes[1_536]], [1, 2, 3, 4]);
}
