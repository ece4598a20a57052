//! Tests of handles on a model of the device, under every policy and while policies and queues change.

use super::*;
use crate::backend::DeviceBackend as _;
use crate::buffer::Buffer;
use crate::command::WriteDurability;
use crate::completion::{CompletionAggregation, PollPace};
use crate::error::RequestError;
use crate::model::{BlockFaults, ModelContents, ModelDevice, ModelSettings, ServiceTimes};
use crate::queue::Queue;
use crate::scheduler::{CLASSES, RequestClass, SchedulingPolicy};
use crate::selector::QueueName;
use crate::shared_queue::SharedQueue;
use headwater_nvme::spec::status::Status;
use std::collections::BTreeMap;

mod changes;
mod golden;
mod misuse;
mod selection;
mod threads;

const SIZE: u64 = 4 << 20;

/// Returns a model with memory in virtual time, with this limit on a command's length.
fn timed_model(time: &IoClock, transfer_bytes_max: usize, service: ServiceTimes) -> ModelDevice {
    let null = ModelSettings::null_device(SIZE);
    let limits = IoLimits { transfer_bytes_max, segments_max: 4, ..null.limits };
    let settings = ModelSettings { limits, contents: ModelContents::Memory, service: Some(service), ..null };
    ModelDevice::with_clock(settings, time.clone()).unwrap()
}

fn model_queue(model: &mut ModelDevice, depth: u32) -> Queue {
    Queue::over(model.queue(depth).unwrap())
}

fn filled(model: &mut ModelDevice, bytes: usize, fill: u8) -> Buffer {
    let mut buffer = model.region(bytes).unwrap();
    buffer.bytes_mut().unwrap().fill(fill);
    buffer
}

fn bytes_of(data: &TransferData) -> Vec<u8> {
    let mut all = Vec::new();
    for buffer in data.buffers() {
        let mut bytes = vec![0; buffer.bytes()];
        buffer.read(0, &mut bytes).unwrap();
        all.extend(bytes);
    }
    all
}

/// Takes every outstanding completion, by token.
fn drain(handle: &mut Handle) -> BTreeMap<u64, (Status, TransferData)> {
    let mut answers = BTreeMap::new();
    while let Some(CompletedCommand { completion, data }) = handle.wait(None).unwrap() {
        let twice = answers.insert(completion.token, (completion.status, data));
        assert!(twice.is_none(), "token {} completed twice", completion.token);
    }
    assert_eq!(handle.outstanding(), 0);
    answers
}

#[test]
fn fast_path_completes_each_read_with_its_token_and_buffer() {
    let mut model = ModelDevice::new(ModelSettings::null_device(SIZE)).unwrap();
    let own = model_queue(&mut model, 8);
    let mut handle = Handle::builder(model.facts()).queue(own).build().unwrap();
    assert!(handle.fast_path);
    for round in 0..100_u64 {
        for token in 0..8 {
            let buffer = filled(&mut model, 4_096, 3);
            handle.submit(IoRequest::read(token * 4_096, buffer), round * 8 + token).unwrap();
        }
        assert_eq!((handle.slow_requests, handle.outstanding()), (0, 8));
        for token in 0..8 {
            let answer = handle.poll().unwrap().unwrap();
            assert_eq!(answer.completion.token, round * 8 + token);
            assert_eq!(bytes_of(&answer.data), [3; 4_096]);
        }
        assert!(handle.poll().unwrap().is_none());
    }
}

/// Covers B4: a ring keeps one entry empty, so that as many requests as entries overflowed it. A queue of depth d
/// accepts d commands, the next request is refused or waits, and each accepted one completes.
#[test]
fn b4_full_queue_accepts_its_depth_then_waits_or_refuses_with_numbers() {
    for depth in [1, 2, 3, 31, 32, 33] {
        for waiting_max in [0, 5] {
            let mut model = ModelDevice::new(ModelSettings::null_device(SIZE)).unwrap();
            let own = model_queue(&mut model, depth);
            let mut handle =
                Handle::builder(model.facts()).queue(own).waiting_max(waiting_max).build().unwrap();
            let most = depth + waiting_max;
            for token in 0..most {
                let buffer = model.region(512).unwrap();
                handle.submit(IoRequest::read(0, buffer), token.into()).unwrap();
            }
            let buffer = model.region(512).unwrap();
            let Err(refused) = handle.submit(IoRequest::read(0, buffer), 99) else {
                panic!("accepted while full")
            };
            assert_eq!(refused.error, RequestError::Full { outstanding: most, max: most });
            assert_eq!(refused.request.data.bytes(), 512, "the refusal lost the buffer");
            assert_eq!(drain(&mut handle).len(), usize::try_from(most).unwrap());
            assert!(handle.submit(refused.request, 1).is_ok());
            assert_eq!(drain(&mut handle).len(), 1);
        }
    }
}

/// Covers B2: completions had no status, so media errors were reported as success.
#[test]
fn b2_device_failure_is_the_request_status_on_every_path() {
    let time = IoClock::virtual_at_zero();
    for merging in [MergePolicy::Off, MergePolicy::Adjacent] {
        let mut model = timed_model(&time, 16_384, ServiceTimes::default());
        model.set_faults(BlockFaults::default().with(9, 10, Status::UNRECOVERED_READ_ERROR));
        let own = model_queue(&mut model, 8);
        let mut handle =
            Handle::builder(model.facts()).queue(own).merging(merging).clock(time.clone()).build().unwrap();
        for token in 0..8 {
            let buffer = model.region(1_024).unwrap();
            handle.submit(IoRequest::read(token * 1_024, buffer), token).unwrap();
        }
        // Divided: the fault lies in its first part.
        let long = model.region(65_536).unwrap();
        handle.submit(IoRequest::read(0, long), 100).unwrap();
        for (token, (status, data)) in drain(&mut handle) {
            let expected =
                if matches!(token, 4 | 100) { Status::UNRECOVERED_READ_ERROR } else { Status::SUCCESS };
            assert_eq!(status, expected, "request {token}, {merging:?}");
            assert_eq!(data.bytes(), if token == 100 { 65_536 } else { 1_024 });
        }
        let failed = handle.read(4_608, model.region(512).unwrap()).unwrap_err();
        assert_eq!(failed.error.status(), Some(Status::UNRECOVERED_READ_ERROR));
        assert_eq!(failed.data.bytes(), 512);
    }
}

/// Covers B6: there was one list page for each request, 64 for a handle, and a spin when none was free. A request of
/// any length is divided, and waits for room in the queue.
#[test]
fn b6_requests_of_any_length_pass_a_small_queue() {
    let time = IoClock::virtual_at_zero();
    let mut model = timed_model(&time, 4_096, ServiceTimes::default());
    let own = model_queue(&mut model, 3);
    let mut handle = Handle::builder(model.facts()).queue(own).clock(time.clone()).build().unwrap();
    let whole = usize::try_from(SIZE).unwrap();
    let from = filled(&mut model, whole, 7);
    let from = handle.write(0, from, WriteDurability::Immediate).unwrap();
    from.write(0, &vec![0; whole]).unwrap();
    for token in 0..20 {
        let into = model.region(whole / 4).unwrap();
        handle.submit(IoRequest::read(token % 4 * SIZE / 4, into), token).unwrap();
    }
    let answers = drain(&mut handle);
    assert_eq!(answers.len(), 20);
    assert!(
        answers
            .values()
            .all(|(status, data)| { status.is_success() && bytes_of(data).iter().all(|&byte| byte == 7) })
    );
}

/// Covers B12: destroying a handle leaked its mappings. Commands in flight when a handle is dropped go with its queue.
#[test]
fn b12_dropped_handle_leaks_neither_buffers_nor_queues() {
    let time = IoClock::virtual_at_zero();
    let mut model = timed_model(&time, 65_536, ServiceTimes::default());
    // More queues than the device has, created one after the other, each with commands in flight.
    for round in 0..1_500_u64 {
        let own = model_queue(&mut model, 4);
        let mut handle = Handle::builder(model.facts()).queue(own).build().unwrap();
        for token in 0..4 {
            let buffer = model.region(4_096).unwrap();
            handle.submit(IoRequest::read(token * 4_096, buffer), round).unwrap();
        }
        handle.ring().unwrap();
        drop(handle);
        time.sleep(Nanos::from_millis(1));
    }
}

#[test]
fn cancel_completes_a_waiting_request_at_once_and_aborts_one_at_the_device() {
    let time = IoClock::virtual_at_zero();
    let service = ServiceTimes { units: 1, ..ServiceTimes::default() };
    let mut model = timed_model(&time, 65_536, service);
    let own = model_queue(&mut model, 2);
    let mut handle = Handle::builder(model.facts()).queue(own).clock(time.clone()).build().unwrap();
    for token in 0..6 {
        let from = filled(&mut model, 512, 1);
        handle.submit(IoRequest::write(token * 512, from, WriteDurability::Immediate), token).unwrap();
    }
    handle.ring().unwrap();
    assert_eq!(handle.cancel(5), RequestCancellation::NotSubmitted);
    assert_eq!(handle.cancel(1), RequestCancellation::AbortSent);
    assert_eq!(
        handle.cancel(0),
        RequestCancellation::AbortSent,
        "the device already executes it and cannot abort it"
    );
    assert_eq!(handle.cancel(77), RequestCancellation::Unknown);
    let answers = drain(&mut handle);
    for (token, (status, data)) in &answers {
        let expected = if matches!(token, 1 | 5) { Status::ABORT_REQUESTED } else { Status::SUCCESS };
        assert_eq!(*status, expected, "request {token}");
        assert_eq!(data.bytes(), 512);
    }
    assert_eq!(answers.len(), 6);
}

#[test]
fn request_past_its_deadline_is_cancelled_and_completes_once() {
    let time = IoClock::virtual_at_zero();
    let service = ServiceTimes { units: 1, fixed: Nanos::from_micros(100), ..ServiceTimes::default() };
    let mut model = timed_model(&time, 65_536, service);
    let own = model_queue(&mut model, 1);
    let mut handle = Handle::builder(model.facts()).queue(own).clock(time.clone()).build().unwrap();
    for token in 0..20 {
        let buffer = model.region(512).unwrap();
        let request = IoRequest::read(0, buffer).with_timeout(Nanos::from_micros(550));
        handle.submit(request, token).unwrap();
    }
    let answers = drain(&mut handle);
    let served = answers.values().filter(|(status, _)| status.is_success()).count();
    assert_eq!((answers.len(), served), (20, 6));
    assert!(handle.deadlines.is_empty());
}

#[test]
fn deadline_scheduling_keeps_urgent_requests_in_time_under_overload() {
    let time = IoClock::virtual_at_zero();
    let service =
        ServiceTimes { units: 1, fixed: Nanos::from_micros(100), per_kib: Nanos::ZERO, jitter_percent: 10 };
    let mut model = timed_model(&time, 65_536, service);
    let own = model_queue(&mut model, 64);
    let deadline = Nanos::from_millis(2);
    let mut within = [Nanos::from_millis(10_000); CLASSES];
    within[0] = deadline;
    let scheduling =
        SchedulingPolicy::Deadline { deadlines: within, late_policy: crate::scheduler::LatePolicy::Serve };
    let mut handle = Handle::builder(model.facts())
        .queue(own)
        .scheduling(scheduling)
        .waiting_max(1_000)
        .clock(time.clone())
        .build()
        .unwrap();
    let mut latencies = Vec::new();
    let mut sent = BTreeMap::new();
    for round in 0..60_000_u64 {
        // One request every 60 us, one in ten urgent; the device needs 100 us for each.
        let urgent = round % 10 == 0;
        let class = if urgent { RequestClass::FIRST } else { RequestClass::LAST };
        if round % 3 == 0 && handle.outstanding() < 1_000 {
            let buffer = model.region(512).unwrap();
            handle.submit(IoRequest::read(0, buffer).with_class(class), round).unwrap();
            sent.insert(round, (time.now(), urgent));
        }
        time.sleep(Nanos::from_micros(20));
        while let Some(answer) = handle.poll().unwrap() {
            let (at, urgent) = sent.remove(&answer.completion.token).unwrap();
            if urgent && round > 5_000 {
                latencies.push(time.now().since(at));
            }
        }
    }
    latencies.sort_unstable();
    let p99 = latencies[latencies.len() * 99 / 100];
    assert!(
        latencies.len() > 500 && p99 <= Nanos(2 * deadline.0),
        "p99 {p99} of {} latencies",
        latencies.len()
    );
}
