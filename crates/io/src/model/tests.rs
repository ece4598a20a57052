//! Tests that the models complete commands as a device does, with the service times of their settings.

use super::*;
use crate::backend::CompletedCommand;
use crate::command::{Command, TransferData, WriteDurability};
use crate::queue::Queue;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;

fn buffer(model: &mut ModelDevice, bytes: usize, fill: u8) -> Buffer {
    let mut buffer = model.region(bytes).unwrap();
    buffer.bytes_mut().unwrap().fill(fill);
    buffer
}

fn model_with_memory(bytes: u64, time: &IoClock, service: ServiceTimes) -> ModelDevice {
    let settings =
        ModelSettings { contents: ModelContents::Memory, ..ModelSettings::latency_model(bytes, service) };
    ModelDevice::with_clock(settings, time.clone()).unwrap()
}

fn run_one(queue: &mut dyn QueueTransport, command: Command) -> CompletedCommand {
    queue.submit(command, 9).unwrap();
    queue.ring().unwrap();
    loop {
        if let Some(answer) = queue.reap().unwrap() {
            assert_eq!(answer.completion.token, 9);
            return answer;
        }
        queue.sleep(None).unwrap();
    }
}

#[test]
fn the_null_device_completes_every_command_at_the_doorbell_and_transfers_no_data() {
    let mut model = ModelDevice::new(ModelSettings::null_device(1 << 20)).unwrap();
    let mut queue = Queue::over(model.queue(4).unwrap());
    for round in 0..10_u8 {
        for token in 0..4 {
            let into = buffer(&mut model, 4_096, 7);
            queue.submit(Command::read(1, token * 8, 512, into).unwrap(), token).unwrap();
        }
        let full = buffer(&mut model, 4_096, 0);
        assert!(queue.submit(Command::read(1, 0, 512, full).unwrap(), 4).is_err(), "round {round}");
        for token in 0..4 {
            let answer = queue.poll_command().unwrap().unwrap();
            assert_eq!((answer.completion.token, answer.completion.status), (token, Status::SUCCESS));
            let TransferData::FromDevice(mut back) = answer.data else {
                panic!("the completion lacks the buffer")
            };
            assert_eq!(back.bytes_mut().unwrap(), [7; 4_096]);
        }
        assert!(queue.poll_command().unwrap().is_none());
    }
}

#[test]
fn invalid_commands_complete_with_the_specified_status() {
    let mut model = ModelDevice::new(ModelSettings::null_device(1 << 20)).unwrap();
    let mut queue = model.queue(4).unwrap();
    let mut read = |namespace, lba| {
        let into = model.region(4_096).unwrap();
        run_one(queue.as_mut(), Command::read(namespace, lba, 512, into).unwrap()).completion.status
    };
    assert_eq!(read(1, 2_040), Status::SUCCESS);
    assert_eq!(read(1, 2_041), Status::LBA_OUT_OF_RANGE);
    assert_eq!(read(1, u64::MAX), Status::LBA_OUT_OF_RANGE);
    assert_eq!(read(2, 0), Status::INVALID_NAMESPACE);
    assert!(
        ModelDevice::new(ModelSettings { block_bytes: 600, ..ModelSettings::null_device(1 << 20) }).is_err()
    );
    assert!(ModelDevice::new(ModelSettings::null_device(511)).is_err());
}

#[test]
fn a_model_with_memory_keeps_written_data() {
    let time = IoClock::virtual_at_zero();
    let mut model = model_with_memory(1 << 20, &time, ServiceTimes::default());
    let mut queue = model.queue(4).unwrap();
    let queue = queue.as_mut();
    let from = buffer(&mut model, 2_048, 0xAB);
    let status = |answer: CompletedCommand| answer.completion.status;
    assert_eq!(
        status(run_one(queue, Command::write(1, 3, 512, from, WriteDurability::Immediate).unwrap())),
        Status::SUCCESS
    );
    assert_eq!(
        status(run_one(queue, Command::write_zeroes(1, 4, 1, WriteDurability::Immediate).unwrap())),
        Status::SUCCESS
    );
    let list = buffer(&mut model, 4_096, 0);
    assert_eq!(status(run_one(queue, Command::discard(1, &[(6, 1)], &list).unwrap())), Status::SUCCESS);
    let beyond = Command::discard(1, &[(2_047, 2)], &list).unwrap();
    assert_eq!(status(run_one(queue, beyond)), Status::LBA_OUT_OF_RANGE);
    let parts = vec![buffer(&mut model, 1_536, 1), buffer(&mut model, 1_536, 1)];
    let answer = run_one(queue, Command::read_scattered(1, 2, 512, parts).unwrap());
    let mut back = Vec::new();
    for part in answer.data.buffers() {
        let mut bytes = vec![0; part.bytes()];
        part.read(0, &mut bytes).unwrap();
        back.extend(bytes);
    }
    let blocks: Vec<u8> = back.chunks(512).map(|block| block[0]).collect();
    assert_eq!(blocks, [0, 0xAB, 0, 0xAB, 0, 0]);
    let same = buffer(&mut model, 512, 0xAB);
    assert_eq!(status(run_one(queue, Command::compare(1, 3, 512, same.clone()).unwrap())), Status::SUCCESS);
    assert_eq!(status(run_one(queue, Command::compare(1, 4, 512, same).unwrap())), Status::COMPARE_FAILURE);
}

#[test]
fn only_commands_that_access_faulty_blocks_fail() {
    let mut model = model_with_memory(1 << 20, &IoClock::virtual_at_zero(), ServiceTimes::default());
    model.set_faults(BlockFaults::default().with(8, 9, Status::UNRECOVERED_READ_ERROR));
    let mut queue = model.queue(4).unwrap();
    let mut read = |lba, bytes| {
        let into = model.region(bytes).unwrap();
        run_one(queue.as_mut(), Command::read(1, lba, 512, into).unwrap()).completion.status
    };
    assert_eq!(read(0, 4_096), Status::SUCCESS);
    assert_eq!(read(7, 1_024), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(read(9, 512), Status::SUCCESS);
}

#[test]
fn service_time_depends_on_size_and_concurrency_on_units() {
    let time = IoClock::virtual_at_zero();
    let service =
        ServiceTimes { fixed: Nanos::from_micros(10), per_kib: Nanos(500), jitter_percent: 0, units: 2 };
    let mut model =
        ModelDevice::with_clock(ModelSettings::latency_model(1 << 30, service), time.clone()).unwrap();
    let mut queue = model.queue(8).unwrap();
    for (token, kib) in [(1, 4), (2, 64), (3, 4)] {
        let into = model.region(kib << 10).unwrap();
        queue.submit(Command::read(1, 0, 512, into).unwrap(), token).unwrap();
    }
    queue.ring().unwrap();
    let mut answers = Vec::new();
    while queue.in_flight() > 0 {
        match queue.reap().unwrap() {
            Some(answer) => answers.push((answer.completion.token, time.now().0 / 1_000)),
            None => queue.sleep(None).unwrap(),
        }
    }
    assert_eq!(answers, [(1, 12), (3, 24), (2, 42)]);
}

/// Returns the completions of each queue in one second; each queue keeps its given depth in flight.
fn answered(arbitration: ArbitrationMode, queues: &[(QueuePriority, u32)]) -> Vec<u64> {
    let time = IoClock::virtual_at_zero();
    let service =
        ServiceTimes { fixed: Nanos::from_micros(100), per_kib: Nanos::ZERO, jitter_percent: 10, units: 2 };
    let settings = ModelSettings { arbitration, ..ModelSettings::latency_model(1 << 30, service) };
    let mut model = ModelDevice::with_clock(settings, time.clone()).unwrap();
    let mut all: Vec<_> =
        queues.iter().map(|&(class, depth)| model.queue_of_class(depth, class).unwrap()).collect();
    let mut counts = vec![0; all.len()];
    while time.now() < Nanos::from_millis(1_000) {
        for (queue, count) in all.iter_mut().zip(&mut counts) {
            while queue.submit(Command::flush(1), 0).is_ok() {}
            queue.ring().unwrap();
            while queue.reap().unwrap().is_some() {
                *count += 1;
            }
        }
        time.sleep(Nanos::from_micros(10));
    }
    counts
}

#[test]
fn round_robin_gives_a_private_queue_three_times_the_share_of_a_shared_queues_user() {
    // The paper's figure 4: four threads with four in flight each; one has a queue, three share the other.
    let counts =
        answered(ArbitrationMode::RoundRobin, &[(QueuePriority::Medium, 4), (QueuePriority::Medium, 12)]);
    let (private, shared) = (counts[0] * 10, counts[1] * 10 / 3);
    assert!(private * 10 >= shared * 25, "{counts:?}");
}

#[test]
fn weighted_arbitration_serves_queues_within_a_tenth_of_their_weights() {
    // Low 1, medium 3, high 6; 0's based.
    let settings = u32::from_le_bytes([0, 0, 2, 5]);
    let queues = [(QueuePriority::High, 16), (QueuePriority::Medium, 16), (QueuePriority::Low, 16)];
    let counts = answered(ArbitrationMode::Weighted { settings }, &queues);
    for ((a, weight_a), (b, weight_b)) in [((0, 6), (1, 3)), ((1, 3), (2, 1)), ((0, 6), (2, 1))] {
        assert!(counts[a] * weight_b * 10 >= counts[b] * weight_a * 9, "{counts:?}");
        assert!(counts[b] * weight_a * 10 >= counts[a] * weight_b * 9, "{counts:?}");
    }
}

#[test]
fn a_command_not_in_service_can_be_cancelled_and_a_dropped_queue_frees_its_number() {
    let service = ServiceTimes { units: 1, ..ServiceTimes::default() };
    let time = IoClock::virtual_at_zero();
    let mut model = model_with_memory(1 << 20, &time, service);
    let mut queue = model.queue(4).unwrap();
    for token in 0..3 {
        let from = model.region(512).unwrap();
        queue
            .submit(Command::write(1, token, 512, from, WriteDurability::NamespaceDefault).unwrap(), token)
            .unwrap();
    }
    queue.cancel(1).unwrap();
    let first = queue.reap().unwrap().unwrap().completion;
    assert_eq!((first.token, first.status), (1, Status::ABORT_REQUESTED));
    drop(queue);
    for _ in 0..2_000 {
        let mut queue = model.queue(1).unwrap();
        assert_eq!(run_one(queue.as_mut(), Command::flush(1)).completion.status, Status::SUCCESS);
    }
}
