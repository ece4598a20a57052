//! Tests of deadlines and nodes of jobs, by movers over modelled channels.

use super::machine::AffineTime;
use super::policy_run::channel_traits;
use super::*;
use bytes::Bytes;
use fastrand::Rng;
use headwater_dma::mover::policy::{
    ChannelLoad, ChannelTraits, DecisionReason, JobSplit, MoveEngine, PolicyConfig, WorkShape,
};
use headwater_dma::mover::{
    MemoryNodes, MemoryPlace, MoveJob, MoveMemory, MoveStep, MoveTicket, Mover, VirtualTime as _,
};
use headwater_host::clock::Nanos;
use headwater_host::numa::NodeId;

const BYTES: usize = 64 << 10;

fn model(channels: usize) -> MoveMachine {
    MoveMachine {
        cpu: AffineTime { fixed_ns: 0.0, bytes_per_ns: 10.0 },
        submit_ns: 50.0,
        channels: vec![ChannelModel::affine(1_000.0, 16.0); channels],
        ceiling_bytes_per_ns: 1e9,
        sharing: BandwidthSharing::Proportional,
    }
}

fn mover_of(machine: &ModelledMachine, shared_share: f64, traits: impl Fn(usize) -> ChannelTraits) -> Mover {
    let faults = ChannelFaults { shared_share, ..ChannelFaults::default() };
    let channels = machine.channels(traits, faults, 1);
    let config = PolicyConfig { channel_bytes_per_ns: 16.0, ..PolicyConfig::default() };
    Mover::with_virtual_time(channels, config, Box::new(machine.clone()))
}

/// Returns a copy in one step, which one engine does.
fn copy_of(bytes: usize, fill: u8) -> MoveJob {
    let mut job = MoveJob::new();
    job.add_memory(Bytes::from(vec![fill; bytes]));
    job.add_memory(vec![0; bytes]);
    job.add_step(MoveStep::Copy { from: MemoryPlace::new(0, 0).range(bytes), to: MemoryPlace::new(1, 0) });
    job
}

fn check(job: MoveJob, bytes: usize, fill: u8) {
    let copied = job.into_memories().pop().and_then(MoveMemory::into_vec);
    assert_eq!(copied, Some(vec![fill; bytes]));
}

/// The jobs of a run, by their times.
#[derive(Debug, Default)]
struct DeadlineRun {
    jobs: u64,
    late: u64,
    passed_over: u64,
    expected_late: u64,
}

/// Runs copies of 64 KiB, some behind a job in flight, with a deadline 5 to 100 % behind the time of the CPU. The channel is
/// faster than the CPU on average, but shares its engine with other processes during a sixth of its jobs.
fn run_jobs(seed: u64, has_deadlines: bool) -> DeadlineRun {
    let mut rng = Rng::with_seed(seed);
    let model = model(1);
    let machine = ModelledMachine::new(model.clone(), JobCosts::default(), seed);
    let mut mover = mover_of(&machine, 0.16, |_| channel_traits(&model.channels[0]));
    for _ in 0..400 {
        mover.run(&mut copy_of(rng.usize(5_000..200_000), 1)).unwrap();
    }
    let mut run = DeadlineRun::default();
    for nth in 0..200_u8 {
        let ahead = rng.bool().then(|| mover.start(copy_of(rng.usize(5_000..40_000), 2)).unwrap());
        let begun = machine.now();
        let limit = Nanos(6_554 * rng.u64(105..200) / 100);
        let deadline = begun.after(limit);
        let mut job = copy_of(BYTES, nth).with_deadline(has_deadlines.then_some(deadline));
        mover.run(&mut job).unwrap();
        check(job, BYTES, nth);
        run.jobs += 1;
        run.late += u64::from(machine.now() > deadline);
        if let Some(ticket) = ahead {
            mover.wait(&ticket, Nanos::from_millis(1_000)).unwrap();
        }
    }
    let counters = *mover.policy().unwrap().counters();
    run.passed_over = counters.of(DecisionReason::Deadline);
    run.expected_late = counters.of(DecisionReason::DeadlineMissed);
    run
}

#[test]
#[expect(clippy::print_stdout, reason = "a failing run is repeated from its seed")]
fn jobs_with_deadlines_are_late_less_often() {
    let (mut with, mut without) = (DeadlineRun::default(), DeadlineRun::default());
    for seed in 0..20 {
        println!("seed {seed}");
        for (sum, has_deadlines) in [(&mut with, true), (&mut without, false)] {
            let run = run_jobs(seed, has_deadlines);
            sum.jobs += run.jobs;
            sum.late += run.late;
            sum.passed_over += run.passed_over;
            sum.expected_late += run.expected_late;
        }
    }
    println!("{with:?} {without:?}");
    assert!(with.passed_over > 100, "{with:?}");
    assert_eq!((without.passed_over, without.expected_late), (0, 0));
    assert!(2 * with.late < without.late, "{with:?} {without:?}");
}

#[test]
fn job_behind_its_deadline_is_done() {
    let model = model(1);
    let machine = ModelledMachine::new(model.clone(), JobCosts::default(), 1);
    let mut mover = mover_of(&machine, 0.0, |_| channel_traits(&model.channels[0]));
    machine.wait();
    for round in 0..10 {
        let mut job = copy_of(BYTES, round).with_deadline(Some(Nanos(1)));
        if round % 2 == 0 {
            mover.run(&mut job).unwrap();
        } else {
            let ticket = mover.start(job).unwrap();
            job = mover.wait(&ticket, Nanos::from_millis(1_000)).unwrap();
        }
        check(job, BYTES, round);
    }
    assert_eq!(mover.policy().unwrap().counters().of(DecisionReason::DeadlineMissed), 10);
}

/// A mover behind a channel that has a job in flight, and that returns a job which no engine has begun.
struct BusyChannel {
    machine: ModelledMachine,
    mover: Mover,
    ahead: MoveTicket,
}

/// Bytes of the job in flight.
const AHEAD_BYTES: usize = 400_000;

impl BusyChannel {
    /// Creates it by rates in bytes a nanosecond: the CPU's, the channel's, and that which the policy expects of the channel.
    fn new((cpu, channel, expected): (f64, f64, f64)) -> Self {
        let cpu = AffineTime { fixed_ns: 0.0, bytes_per_ns: cpu };
        let channels = vec![ChannelModel::affine(1_000.0, channel)];
        let model = MoveMachine { cpu, channels, ..model(0) };
        let machine = ModelledMachine::new(model.clone(), JobCosts::default(), 1);
        let faults = ChannelFaults { takes_back: TakeBack::BeforeBegin, ..ChannelFaults::default() };
        let channels = machine.channels(|_| channel_traits(&model.channels[0]), faults, 1);
        let config = PolicyConfig {
            cpu_bytes_per_ns: cpu.bytes_per_ns,
            channel_bytes_per_ns: expected,
            ..PolicyConfig::default()
        };
        let mut mover = Mover::with_virtual_time(channels, config, Box::new(machine.clone()));
        let ahead = mover.start(copy_of(AHEAD_BYTES, 1)).unwrap();
        assert_eq!(mover.channel_counters().channel_jobs, 1);
        Self { machine, mover, ahead }
    }

    /// Runs a copy, and returns the time that it took.
    fn run(&mut self, limit: Option<Nanos>) -> Nanos {
        let begun = self.machine.now();
        let mut job = copy_of(BYTES, 2).with_deadline(limit.map(|limit| begun.after(limit)));
        self.mover.run(&mut job).unwrap();
        check(job, BYTES, 2);
        self.machine.now().since(begun)
    }

    fn end(mut self) {
        let ahead = self.mover.wait(&self.ahead, Nanos::from_millis(1_000)).unwrap();
        check(ahead, AHEAD_BYTES, 1);
    }
}

#[test]
fn job_that_no_engine_has_begun_is_done_by_the_cpu_while_it_can_meet_the_deadline() {
    // The policy expects 5.8 us of the channel and 6.6 us of the CPU; the channel begins after 400 us.
    let (limit, look) = (Nanos(13_000), Nanos(1_000));
    for (limit, latest) in [(None, Nanos(20_000)), (Some(limit), limit.after(look))] {
        let mut busy = BusyChannel::new((10.0, 1.0, 100.0));
        let elapsed = busy.run(limit);
        assert_eq!(busy.mover.channel_counters().taken_back, 1);
        assert!(elapsed <= latest, "{elapsed}");
        assert!(limit.is_some() || elapsed > Nanos(15_000), "{elapsed}");
        busy.end();
    }
}

#[test]
fn job_that_was_taken_back_for_its_deadline_teaches_no_time_of_its_channel() {
    let mut busy = BusyChannel::new((10.0, 1.0, 100.0));
    let copy = WorkShape { split: JobSplit::Forbidden, ..WorkShape::copy(BYTES as u64) };
    let loads = [ChannelLoad { jobs: 1, bytes: AHEAD_BYTES as u64 }];
    let known = |mover: &Mover| {
        let mut policy = mover.policy().unwrap().clone();
        policy.freeze();
        (policy.estimate(&copy, MoveEngine::Channel(0), 1), policy.decide(&copy, &loads))
    };
    let before = known(&busy.mover);
    for nth in 1..=20 {
        busy.run(Some(Nanos(13_000)));
        assert_eq!(busy.mover.channel_counters().taken_back, nth);
        assert_eq!(known(&busy.mover), before, "job {nth}");
    }
    busy.end();
}

#[test]
fn job_that_misses_its_deadline_stays_with_the_busy_channel_that_ends_first() {
    // 30 us on the channel, behind the job in flight; 66 us on the CPU.
    let elapsed = [None, Some(Nanos(1)), Some(Nanos(20_000))].map(|limit| {
        let mut busy = BusyChannel::new((1.0, 16.0, 16.0));
        let elapsed = busy.run(limit);
        assert_eq!(busy.mover.channel_counters().taken_back, 0);
        let missed = busy.mover.policy().unwrap().counters().of(DecisionReason::DeadlineMissed);
        assert_eq!(missed, u64::from(limit.is_some()));
        busy.end();
        elapsed
    });
    assert!(elapsed.iter().all(|nanos| *nanos == elapsed[0] && *nanos < Nanos(32_000)), "{elapsed:?}");
}

#[test]
fn channel_of_the_memories_node_gets_the_first_jobs() {
    for node in [0, 1] {
        let model = model(2);
        let machine = ModelledMachine::new(model.clone(), JobCosts::default(), 1);
        let node_of = |channel: usize| Some(NodeId(u32::try_from(channel).unwrap()));
        let traits =
            |channel| ChannelTraits { node: node_of(channel), ..channel_traits(&model.channels[channel]) };
        let mut mover = mover_of(&machine, 0.0, traits);
        let nodes = MemoryNodes { source: node_of(node), target: node_of(node) };
        let mut job = copy_of(1 << 20, 3).with_nodes(nodes);
        mover.run(&mut job).unwrap();
        check(job, 1 << 20, 3);
        let shape = WorkShape { source: nodes.source, target: nodes.target, ..WorkShape::copy(1 << 20) };
        let seen = |channel| {
            let estimate = mover.policy().unwrap().estimate(&shape, MoveEngine::Channel(channel), 1);
            estimate.unwrap().observations
        };
        assert_eq!((seen(node), seen(1 - node)), (1, 0));
        let other = mover.policy().unwrap().estimate(&WorkShape::copy(1), MoveEngine::Cpu, 1);
        assert_eq!(other, None, "what is learned of one node says nothing about another");
    }
}
