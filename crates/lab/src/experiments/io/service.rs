//! Differentiated service: figure 4 of the `NVMeDirect` paper, and deadlines under overload, in virtual time.
//!
//! Input: a model device that serves two commands at a time, each in 61 us with a random deviation of up to 10 %.
//! Output: writes a second of each of four threads that keep four random writes of 4 KiB in flight: each with its own
//! queue (non-boosted), one with its own queue and three on another (boosted), and the same with a device that serves
//! its queues by weight (WRR). Then the effect of a deadline under more load than the device can serve.
//!
//! The threads are four handles that one thread drives in rotation, so the order does not depend on this machine. The
//! paper's kernel bars need a block device of the kernel's: `tests/vm/more/figure4.sh` measures them in a guest.

use super::{PAGE_BYTES, decimal, failed, seconds};
use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::report::ReportRow;
use headwater_host::clock::Nanos;
use headwater_io::backend::DeviceBackend as _;
use headwater_io::clock::IoClock;
use headwater_io::model::{ArbitrationMode, ModelDevice, ModelSettings, ServiceTimes};
use headwater_io::scheduler::{CLASSES, LatePolicy, RequestClass, SchedulingPolicy};
use headwater_io::{Buffer, Handle, IoError, IoRequest, Queue, SharedQueue, TransferData, WriteDurability};
use headwater_nvme::spec::priority::QueuePriority;
use headwater_nvme::spec::status::Status;

const SIZE: u64 = 1 << 30;
const THREADS: usize = 4;
const IN_FLIGHT: u32 = 4;
/// Virtual time that passes after each handle was driven once.
const STEP: Nanos = Nanos::from_micros(1);
const BOOST_MIN: f64 = 2.5;
const WEIGHT_PART_MIN: f64 = 0.9;
/// Weights of the classes high and low.
const WEIGHTS: (u8, u8) = (3, 1);
const DEADLINE: Nanos = Nanos::from_millis(5);
const DEADLINES_MAX: f64 = 2.0;

#[derive(Clone, Copy)]
enum QueueSetup {
    NonBoosted,
    Boosted,
    Weighted,
}

pub(super) fn run(context: &RunContext, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let span = Nanos::from_millis(if context.is_quick() { 300 } else { 3_000 });
    let setups = [QueueSetup::NonBoosted, QueueSetup::Boosted, QueueSetup::Weighted];
    let [plain, boosted, weighted] =
        setups.map(|setup| figure_4(setup, span, context.seed()).map_err(failed));
    let (plain, boosted, weighted) = (plain?, boosted?, weighted?);
    for (name, rates) in [
        ("non-boosted: a queue each", &plain),
        ("boosted: one has a queue, three share one", &boosted),
        ("boosted, WRR 3 to 1", &weighted),
    ] {
        findings.rows.push(
            ReportRow::new()
                .with("figure 4, model device, random writes", name)
                .with("prioritised_iops", rates[0])
                .with("second_iops", rates[1])
                .with("third_iops", rates[2])
                .with("fourth_iops", rates[3]),
        );
    }
    let max_of_rest = |rates: &[f64; THREADS]| rates[1..].iter().copied().fold(0.0, f64::max);
    let unit = "times the IOPS of the best other thread";
    let baseline = format!("without a boost {:.2} times", plain[0] / max_of_rest(&plain));
    let value = (boosted[0] / max_of_rest(&boosted), unit);
    findings.claims.push(LabClaim::found(
        "p4.service.rr",
        ClaimGoal::AtLeast(BOOST_MIN),
        value,
        EvidenceLabel::Model,
        baseline,
    ));
    let ratio = f64::from(WEIGHTS.0) / f64::from(WEIGHTS.1);
    let shares = weighted[0] / weighted[1..].iter().sum::<f64>();
    let baseline = format!("weights {} to {}; IOPS {shares:.2} to 1, of queues", WEIGHTS.0, WEIGHTS.1);
    let value = (shares / ratio, "of the ratio of the weights");
    let goal = ClaimGoal::AtLeast(WEIGHT_PART_MIN);
    findings.claims.push(LabClaim::found("p4.service.wrr", goal, value, EvidenceLabel::Model, baseline));
    deadlines(context, findings)
}

fn model(arbitration: ArbitrationMode, time: &IoClock) -> Result<ModelDevice, IoError> {
    let service = ServiceTimes { jitter_percent: 10, units: 2, ..ServiceTimes::default() };
    let settings = ModelSettings { arbitration, ..ModelSettings::latency_model(SIZE, service) };
    ModelDevice::with_clock(settings, time.clone())
}

/// Returns the writes a second of each thread.
fn figure_4(setup: QueueSetup, span: Nanos, seed: u64) -> Result<[f64; THREADS], IoError> {
    let time = IoClock::virtual_at_zero();
    // NVMe Base 2.0 figure 320: burst, then the weights of low, medium and high, counted from 0.
    let settings = u32::from_le_bytes([0, WEIGHTS.1 - 1, 0, WEIGHTS.0 - 1]);
    let arbitration = match setup {
        QueueSetup::NonBoosted | QueueSetup::Boosted => ArbitrationMode::RoundRobin,
        QueueSetup::Weighted => ArbitrationMode::Weighted { settings },
    };
    let mut model = model(arbitration, &time)?;
    let shared_depth = u32::try_from(THREADS - 1).unwrap_or(0) * IN_FLIGHT;
    let first = Queue::over(model.queue_of_class(IN_FLIGHT, QueuePriority::High)?);
    let shared = SharedQueue::new(Queue::over(model.queue_of_class(shared_depth, QueuePriority::Low)?));
    let mut handles = vec![Handle::builder(model.facts()).queue(first).clock(time.clone()).build()?];
    for _ in 1..THREADS {
        let builder = Handle::builder(model.facts()).clock(time.clone());
        handles.push(match setup {
            QueueSetup::NonBoosted => builder.queue(Queue::over(model.queue(IN_FLIGHT)?)).build()?,
            QueueSetup::Boosted | QueueSetup::Weighted => builder.queue(shared.clone()).build()?,
        });
    }
    let mut free = Vec::new();
    for _ in 0..THREADS {
        free.push((0..IN_FLIGHT).map(|_| model.region(PAGE_BYTES)).collect::<Result<Vec<Buffer>, _>>()?);
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut counts = [0_u64; THREADS];
    while time.now() < span {
        for ((handle, free), count) in handles.iter_mut().zip(&mut free).zip(&mut counts) {
            while let Some(buffer) = free.pop() {
                handle.submit(
                    IoRequest::write(page(&mut random), buffer, WriteDurability::NamespaceDefault),
                    0,
                )?;
            }
            while let Some(answer) = handle.poll()? {
                answer.completion.into_result()?;
                *count += 1;
                if let TransferData::ToDevice(buffer) = answer.data {
                    free.push(buffer);
                }
            }
        }
        time.sleep(STEP);
    }
    Ok(counts.map(|count| decimal(count) / seconds(span)))
}

fn page(random: &mut fastrand::Rng) -> u64 {
    random.u64(..SIZE / PAGE_BYTES as u64) * PAGE_BYTES as u64
}

/// The outcome of a load.
#[derive(Default)]
struct LoadOutcome {
    /// Latencies of the served writes with a deadline.
    latencies: Vec<Nanos>,
    served: u64,
    cancelled: u64,
}

impl LoadOutcome {
    fn p99_ms(&mut self) -> f64 {
        self.latencies.sort_unstable();
        let index = self.latencies.len() * 99 / 100;
        self.latencies.get(index).map_or(f64::NAN, |latency| seconds(*latency) * 1e3)
    }
}

/// The load on the device.
#[derive(Clone, Copy)]
struct DeadlineLoad {
    /// Time between two writes with the deadline.
    interval: Nanos,
    /// Constant number of writes in flight without a deadline.
    background: usize,
}

fn deadlines(context: &RunContext, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let span = Nanos::from_millis(if context.is_quick() { 300 } else { 3_000 });
    let mut within = [Nanos::from_millis(1_000); CLASSES];
    within[0] = DEADLINE;
    let beside = DeadlineLoad { interval: Nanos::from_micros(100), background: 512 };
    let beyond = DeadlineLoad { interval: Nanos::from_micros(16), background: 0 };
    let served = SchedulingPolicy::Deadline { deadlines: within, late_policy: LatePolicy::Serve };
    let given_up = SchedulingPolicy::Deadline { deadlines: within, late_policy: LatePolicy::Cancel };
    for (name, what, load, scheduling) in [
        ("p4.deadline.beside_flood", "10,000/s with a deadline beside 512 that have time", beside, served),
        ("p4.deadline.overload", "62,500/s with a deadline, where 32,700/s fit", beyond, given_up),
    ] {
        let mut outcomes = [scheduling, SchedulingPolicy::Fifo]
            .map(|scheduling| loaded(scheduling, load, span, context.seed()).map_err(failed))
            .into_iter()
            .collect::<Result<Vec<LoadOutcome>, _>>()?;
        let p99: Vec<f64> = outcomes.iter_mut().map(LoadOutcome::p99_ms).collect();
        for ((outcome, p99), policy) in outcomes.iter().zip(&p99).zip(["deadline", "fifo"]) {
            findings.rows.push(
                ReportRow::new()
                    .with("deadline of 5 ms, model device", what)
                    .with("scheduler", policy)
                    .with("p99_ms", *p99)
                    .with("served", outcome.served)
                    .with("given_up", outcome.cancelled),
            );
        }
        let (given_up, all) = (outcomes[0].cancelled, outcomes[0].cancelled + outcomes[0].served);
        let baseline = format!("fifo {:.1} ms; {what}; {given_up} of {all} given up", p99[1]);
        let value = (p99[0] / (seconds(DEADLINE) * 1e3), "times the deadline, p99 of those served");
        let goal = ClaimGoal::AtMost(DEADLINES_MAX);
        findings.claims.push(LabClaim::found(name, goal, value, EvidenceLabel::Model, baseline));
    }
    Ok(())
}

/// The token of writes without a deadline; the token of a write with a deadline is its time of submission.
const NO_DEADLINE: u64 = u64::MAX;
/// Maximum number of waiting writes.
const WAITING_MAX: u32 = 8_192;

fn loaded(
    scheduling: SchedulingPolicy,
    load: DeadlineLoad,
    span: Nanos,
    seed: u64,
) -> Result<LoadOutcome, IoError> {
    let time = IoClock::virtual_at_zero();
    let mut model = model(ArbitrationMode::RoundRobin, &time)?;
    let queue = Queue::over(model.queue(64)?);
    let builder = Handle::builder(model.facts()).queue(queue).scheduling(scheduling);
    let mut handle = builder.waiting_max(WAITING_MAX).clock(time.clone()).build()?;
    let data = model.region(PAGE_BYTES)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut outcome, mut next, mut unhurried) = (LoadOutcome::default(), Nanos::ZERO, 0);
    while time.now() < span {
        while unhurried < load.background {
            let request =
                IoRequest::write(page(&mut random), data.clone(), WriteDurability::NamespaceDefault);
            handle.submit(request.with_class(RequestClass::LAST), NO_DEADLINE)?;
            unhurried += 1;
        }
        // A full handle refuses requests; refused requests do not count as served.
        if time.now() >= next && handle.outstanding() < handle.capacity() {
            next = next.after(load.interval);
            let request =
                IoRequest::write(page(&mut random), data.clone(), WriteDurability::NamespaceDefault);
            handle.submit(request, time.now().0)?;
        }
        while let Some(answer) = handle.poll()? {
            match (answer.completion.token, answer.completion.status) {
                (NO_DEADLINE, _) => unhurried -= 1,
                (_, Status::ABORT_REQUESTED) => outcome.cancelled += 1,
                (submitted, _) => {
                    outcome.served += 1;
                    outcome.latencies.push(time.now().since(Nanos(submitted)));
                }
            }
        }
        time.sleep(STEP);
    }
    Ok(outcome)
}
