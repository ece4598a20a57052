//! Tests of movers over modelled channels: every byte against a byte loop, every job once, and the times of the model.

use super::machine::{AffineTime, to_float};
use super::policy_run::{channel_traits, draw_machine};
use super::*;
use bytes::Bytes;
use fastrand::Rng;
use headwater_dma::mover::policy::{CHANNELS_MAX, PolicyConfig};
use headwater_dma::mover::{
    ChannelCounters, JobEnd, MemoryPlace, MoveDurability, MoveJob, MoveMemory, MoveStep, MoveTicket, Mover,
    StepResult, VirtualTime as _,
};
use headwater_host::clock::Nanos;

const LONG: Nanos = Nanos::from_millis(1_000);

fn machine(channels: usize, engines: usize) -> MoveMachine {
    MoveMachine {
        cpu: AffineTime { fixed_ns: 0.0, bytes_per_ns: 10.0 },
        submit_ns: 100.0,
        channels: vec![ChannelModel { engines, depth: 4, ..ChannelModel::affine(1_000.0, 30.0) }; channels],
        ceiling_bytes_per_ns: 1e9,
        sharing: BandwidthSharing::Proportional,
    }
}

fn modelled(machine: &MoveMachine, seed: u64) -> ModelledMachine {
    ModelledMachine::new(machine.clone(), JobCosts::default(), seed)
}

fn mover_of(machine: &ModelledMachine, model: &MoveMachine, faults: ChannelFaults, seed: u64) -> Mover {
    let channels = machine.channels(|channel| channel_traits(&model.channels[channel]), faults, seed);
    let eager = PolicyConfig { threshold_bytes: [64; 4], part_min_bytes: 64, ..PolicyConfig::default() };
    Mover::with_virtual_time(channels, eager, Box::new(machine.clone()))
}

/// Returns the CRC-32C, bit by bit.
fn crc_of(seed: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!seed, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82F6_3B78 & 0_u32.wrapping_sub(crc & 1)))
    })
}

/// A job, and what a byte loop leaves in its memories.
struct ExpectedJob {
    memories: Vec<Vec<u8>>,
    results: Vec<StepResult>,
}

impl ExpectedJob {
    /// Draws a job of up to twelve steps. Half of them read and write the same memories in turn, so that a step that is done
    /// twice, left out or done early leaves other bytes.
    fn draw(rng: &mut Rng) -> (MoveJob, Self) {
        let durability = [MoveDurability::Visible, MoveDurability::Persistent][rng.usize(..2)];
        let mut job = MoveJob::new().with_durability(durability);
        let (count, is_chain) = (rng.usize(1..12), rng.bool());
        let bytes_max = if rng.u8(..8) == 0 { 60_000 } else { 3_000 };
        let bytes = rng.usize(1..bytes_max);
        let mut expected = Self { memories: Vec::new(), results: Vec::new() };
        let memories = if is_chain { 3 } else { 2 * count + 1 };
        for memory in 0..memories {
            let filled: Vec<u8> = (0..bytes).map(|_| rng.u8(..)).collect();
            expected.memories.push(filled.clone());
            if memory == 0 {
                job.add_memory(Bytes::from(filled))
            } else {
                job.add_memory(filled)
            };
        }
        for step in 0..count {
            let (from, to) = if is_chain {
                let to = rng.usize(1..3);
                (if rng.bool() { 0 } else { 3 - to }, to)
            } else {
                (if rng.bool() { 0 } else { 2 * step + 2 }, 2 * step + 1)
            };
            let (length, at) = (rng.usize(..=bytes), |length, rng: &mut Rng| rng.usize(..=bytes - length));
            let range = MemoryPlace::new(from, at(length, rng)).range(length);
            let to = MemoryPlace::new(to, at(length, rng));
            let seed = rng.u32(..);
            job.add_step(match rng.u8(..6) {
                0 => MoveStep::CopyCrc32c { from: range, to, seed },
                1 => MoveStep::Fill { to: to.range(length), value: rng.u8(..) },
                2 => MoveStep::Compare { range, with: to },
                3 => MoveStep::Crc32c { of: range, seed },
                _ => MoveStep::Copy { from: range, to },
            });
            expected.apply(&job.steps()[step]);
        }
        (job, expected)
    }

    fn apply(&mut self, step: &MoveStep) {
        let mut result = StepResult::Done;
        match *step {
            MoveStep::Copy { from, to } | MoveStep::CopyCrc32c { from, to, .. } => {
                for at in 0..from.bytes {
                    let byte = self.memories[from.start.memory][from.start.offset + at];
                    self.memories[to.memory][to.offset + at] = byte;
                }
            }
            MoveStep::Fill { to, value } => {
                let target = &mut self.memories[to.start.memory];
                (0..to.bytes).for_each(|at| target[to.start.offset + at] = value);
            }
            MoveStep::Compare { range, with } => {
                let (one, other) = (&self.memories[range.start.memory], &self.memories[with.memory]);
                let differs = |at: &usize| one[range.start.offset + at] != other[with.offset + at];
                let found = (0..range.bytes).find(differs);
                result = found.map_or(StepResult::Equal, StepResult::DiffersAt);
            }
            _ => {}
        }
        if let MoveStep::CopyCrc32c { from: of, seed, .. } | MoveStep::Crc32c { of, seed } = *step {
            let bytes = &self.memories[of.start.memory][of.start.offset..of.start.offset + of.bytes];
            result = StepResult::Crc32c(crc_of(seed, bytes));
        }
        self.results.push(result);
    }

    fn check(&self, job: MoveJob) {
        assert_eq!(job.results(), self.results);
        for (memory, expected) in job.into_memories().into_iter().zip(&self.memories) {
            match memory {
                MoveMemory::Vec(bytes) => assert!(bytes == *expected),
                MoveMemory::Bytes(bytes) => assert!(bytes == *expected),
                other => panic!("{other:?} was no memory of the job"),
            }
        }
    }
}

/// Runs and starts jobs on a machine of the seed. Returns the counters of the channels.
fn run_jobs(seed: u64) -> ChannelCounters {
    let mut rng = Rng::with_seed(seed);
    let model = draw_machine(&mut rng);
    let costs = JobCosts { noise: 0.05, flush_line_ns: 2.0, ..JobCosts::default() };
    let machine = ModelledMachine::new(model.clone(), costs, seed);
    let faults = ChannelFaults {
        refused_share: [0.0, 0.0, 0.2][rng.usize(..3)],
        shared_share: 0.1,
        dies_after: rng.bool().then(|| rng.u64(1..30)),
        takes_back: [TakeBack::Never, TakeBack::BeforeBegin][rng.usize(..2)],
    };
    let mut mover = mover_of(&machine, &model, faults, seed);
    let mut started: Vec<(MoveTicket, ExpectedJob)> = Vec::new();
    for _ in 0..60 {
        let (mut job, expected) = ExpectedJob::draw(&mut rng);
        match rng.u8(..4) {
            0 | 1 => {
                mover.run(&mut job).unwrap();
                expected.check(job);
            }
            2 => started.push((mover.start(job).unwrap(), expected)),
            _ => {
                if let Some((number, job)) = mover.poll_any() {
                    let at = started.iter().position(|(ticket, _)| ticket.number() == number);
                    let (ticket, expected) = started.swap_remove(at.expect("a job returned twice"));
                    expected.check(job);
                    assert!(mover.poll(&ticket).is_none(), "a job returned twice");
                }
            }
        }
    }
    if rng.bool() {
        let begun = machine.now();
        while !mover.drain(Nanos(rng.u64(..2_000))) {
            assert!(machine.now().since(begun) < LONG, "started jobs do not end");
        }
    }
    for (ticket, expected) in started {
        expected.check(mover.wait(&ticket, LONG).expect("a started job did not return"));
        assert!(mover.poll(&ticket).is_none(), "a job returned twice");
    }
    assert!(mover.poll_any().is_none(), "a job returned that was not started");
    mover.channel_counters()
}

#[test]
#[expect(clippy::print_stdout, reason = "a failing run is repeated from its seed")]
fn movers_over_modelled_channels_move_every_byte_once_under_every_fault() {
    let mut sum = ChannelCounters::default();
    for seed in 0..300 {
        println!("seed {seed}");
        let counters = run_jobs(seed);
        sum.channel_jobs += counters.channel_jobs;
        sum.taken_back += counters.taken_back;
        sum.abandoned += counters.abandoned;
        sum.refused += counters.refused;
        sum.not_split += counters.not_split;
    }
    println!("{sum:?}");
    // The seeds reach each of these many times.
    for reached in [sum.channel_jobs, sum.taken_back, sum.abandoned, sum.refused, sum.not_split] {
        assert!(reached >= 20, "{sum:?}");
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "a failing run is repeated from its seed")]
fn parts_of_one_job_end_at_the_times_of_the_model() {
    for seed in 0..200 {
        println!("seed {seed}");
        let mut rng = Rng::with_seed(seed);
        let model = draw_machine(&mut rng);
        let machine = modelled(&model, seed);
        let traits = |channel: usize| channel_traits(&model.channels[channel]);
        let mut channels = machine.channels(traits, ChannelFaults::default(), seed);
        let mut parts = [0.0; CHANNELS_MAX];
        for (token, channel) in channels.iter_mut().enumerate() {
            let bytes = rng.usize(1..400_000);
            parts[token] = to_float(bytes as u64);
            channel.submit(token as u64, copy_of(bytes), machine.now()).unwrap();
        }
        let mut own = copy_of(rng.usize(1..200_000));
        own.run_steps(usize::MAX);
        machine.cpu_did(own.steps());
        let cpu_end = machine.cpu_times().now_ns;
        let expected = model.times(to_float(own.bytes() as u64), &parts, &[]);
        assert!((cpu_end - expected.cpu).abs() < 1.0, "{cpu_end} {expected:?}");
        for (index, channel) in channels.iter_mut().enumerate() {
            let submitted = model.submit_ns * to_float(index as u64);
            let ended = loop {
                match channel.poll(machine.now()) {
                    Some(ended) => break ended,
                    None => machine.wait(),
                }
            };
            assert_eq!((ended.token, ended.end), (index as u64, JobEnd::Done));
            let end = to_float(ended.elapsed.0) + submitted;
            assert!((end - expected.channels[index]).abs() < 2.0, "{index}: {end} {expected:?}");
        }
    }
}

fn copy_of(bytes: usize) -> MoveJob {
    let mut job = MoveJob::new();
    job.add_memory(vec![7; bytes]);
    job.add_memory(vec![0; bytes]);
    job.add_step(MoveStep::Copy { from: MemoryPlace::new(0, 0).range(bytes), to: MemoryPlace::new(1, 0) });
    job
}

#[test]
fn a_drain_takes_virtual_time_to_the_last_end_or_to_its_limit() {
    let model = machine(2, 1);
    let machine = modelled(&model, 3);
    let mut mover = mover_of(&machine, &model, ChannelFaults::default(), 3);
    // Each is long, so that the policy chooses a channel for it.
    let tickets = [900_000, 600_000].map(|bytes| mover.start(copy_of(bytes)).unwrap());
    let begun = machine.now();
    assert!(!mover.drain(Nanos::ZERO));
    assert!(!mover.drain(Nanos(10)));
    assert!(machine.now().since(begun) >= Nanos(10));
    assert!(mover.drain(LONG) && mover.drain(Nanos::ZERO));
    for ticket in tickets {
        assert_eq!(mover.wait(&ticket, Nanos::ZERO).unwrap().results(), [StepResult::Done]);
    }
    assert_eq!(mover.channel_counters().channel_jobs, 2);
}

#[test]
fn short_jobs_overtake_a_long_one_where_a_channel_has_several_engines() {
    let order = |engines| {
        let model = machine(1, engines);
        let machine = modelled(&model, 1);
        let mut channels =
            machine.channels(|_| channel_traits(&model.channels[0]), ChannelFaults::default(), 1);
        for (token, bytes) in [(1, 900_000), (2, 600), (3, 600)] {
            channels[0].submit(token, copy_of(bytes), machine.now()).unwrap();
        }
        let mut ended = Vec::new();
        while ended.len() < 3 {
            match channels[0].poll(machine.now()) {
                Some(job) => ended.push(job.token),
                None => machine.wait(),
            }
        }
        ended
    };
    assert_eq!(order(1), [1, 2, 3]);
    assert_eq!(order(2), [2, 3, 1]);
}

/// Submits copies of 30,000 bytes at once to a channel, and returns the times from the first submission to their ends.
fn ends_of(engines: usize, jobs: u64, taken_back: Option<u64>) -> Vec<u64> {
    let model = MoveMachine { submit_ns: 0.0, ..machine(1, engines) };
    let machine = modelled(&model, 1);
    let faults = ChannelFaults { takes_back: TakeBack::BeforeBegin, ..ChannelFaults::default() };
    let mut channels = machine.channels(|_| channel_traits(&model.channels[0]), faults, 6);
    for token in 0..jobs {
        channels[0].submit(token, copy_of(30_000), machine.now()).unwrap();
    }
    if let Some(token) = taken_back {
        let job = channels[0].take_back(token).expect("no engine has begun it");
        assert_eq!(job.results(), []);
        assert!(channels[0].take_back(token).is_none());
    }
    let mut ends = Vec::new();
    while (ends.len() as u64) < jobs - u64::from(taken_back.is_some()) {
        match channels[0].poll(machine.now()) {
            Some(ended) => ends.push(ended.elapsed.0),
            None => machine.wait(),
        }
    }
    ends
}

#[test]
fn engines_of_a_channel_share_its_rate() {
    assert_eq!(ends_of(1, 2, None), [2_000, 3_000]);
    assert_eq!(ends_of(2, 2, None), [3_000, 3_000]);
    assert_eq!(ends_of(2, 3, None), [3_000, 3_000, 4_000]);
}

#[test]
fn job_that_was_taken_back_delays_no_other_job() {
    assert_eq!(ends_of(1, 3, None), [2_000, 3_000, 4_000]);
    assert_eq!(ends_of(1, 3, Some(1)), [2_000, 3_000]);
}

#[test]
fn job_that_an_engine_has_begun_is_not_taken_back() {
    let model = machine(1, 1);
    let machine = modelled(&model, 1);
    let faults = ChannelFaults { takes_back: TakeBack::BeforeBegin, ..ChannelFaults::default() };
    let mut channels = machine.channels(|_| channel_traits(&model.channels[0]), faults, 1);
    channels[0].submit(1, copy_of(90_000), machine.now()).unwrap();
    channels[0].submit(2, copy_of(90_000), machine.now()).unwrap();
    machine.wait();
    machine.wait();
    assert!(channels[0].take_back(1).is_none());
    assert!(channels[0].take_back(2).is_some());
}

#[test]
fn channel_is_full_at_its_depth_and_has_room_after_an_end() {
    let model = machine(1, 1);
    let machine = modelled(&model, 1);
    let mut channels = machine.channels(|_| channel_traits(&model.channels[0]), ChannelFaults::default(), 1);
    for token in 0..4 {
        channels[0].submit(token, copy_of(100), machine.now()).unwrap();
    }
    let refused = channels[0].submit(4, copy_of(100), machine.now()).unwrap_err();
    assert_eq!(refused.job.results(), []);
    while channels[0].poll(machine.now()).is_none() {
        machine.wait();
    }
    channels[0].submit(4, copy_of(100), machine.now()).unwrap();
}

#[test]
fn equal_seeds_give_equal_times() {
    let times = |seed| {
        let model = machine(2, 2);
        let machine =
            ModelledMachine::new(model.clone(), JobCosts { noise: 0.1, ..JobCosts::default() }, seed);
        let mut mover = mover_of(&machine, &model, ChannelFaults::default(), seed);
        for bytes in [10_000, 70_000, 400_000] {
            mover.run(&mut copy_of(bytes)).unwrap();
        }
        machine.cpu_times()
    };
    assert_eq!(times(3), times(3));
    assert_ne!(times(3), times(4));
}

#[test]
fn costs_beside_the_affine_time_take_the_time_that_they_say() {
    let costs = JobCosts {
        operation_min_ns: 50.0,
        unaligned_ns: 200.0,
        unaligned_operation: Some(AffineTime { fixed_ns: 700.0, bytes_per_ns: 40.0 }),
        flush_line_ns: 3.0,
        ..JobCosts::default()
    };
    let elapsed = |lists: &[(usize, usize)], durability| {
        let model = machine(1, 1);
        let machine = ModelledMachine::new(model.clone(), costs, 1);
        let traits = headwater_dma::mover::policy::ChannelTraits {
            cache_writes: headwater_dma::mover::policy::CacheWrites::Allocating,
            ..channel_traits(&model.channels[0])
        };
        let mut channels = machine.channels(|_| traits, ChannelFaults::default(), 1);
        let mut job = MoveJob::new().with_durability(durability);
        job.add_memory(vec![7; 4_096]);
        job.add_memory(vec![0; 4_096]);
        for (offset, bytes) in lists {
            let from = MemoryPlace::new(0, *offset).range(*bytes);
            job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(1, 0) });
        }
        channels[0].submit(1, job, machine.now()).unwrap();
        loop {
            match channels[0].poll(machine.now()) {
                Some(ended) => break ended.elapsed.0,
                None => machine.wait(),
            }
        }
    };
    let visible = MoveDurability::Visible;
    // 100 ns to submit, 1,000 ns of latency, 30 bytes a nanosecond.
    assert_eq!(elapsed(&[(0, 3_000)], visible), 1_200);
    assert_eq!(elapsed(&[(1, 3_000)], visible), 1_400);
    assert_eq!(elapsed(&[(0, 300), (64, 300), (128, 3_000)], visible), 1_300);
    assert_eq!(elapsed(&[(0, 3_000), (65, 400)], visible), 1_910);
    assert_eq!(elapsed(&[(0, 3_000)], MoveDurability::Persistent), 1_200 + 47 * 3);
}
