//! Figure 3 of the `NVMeDirect` paper: the IOPS that a polling period costs and the CPU that it saves, by size, on a
//! model device in the machine's time.
//!
//! Input: a model whose reads take 60 us and 0.3 us for each KiB (a data-centre SSD), and for 4 KiB one that takes 6
//! us, with which a period can only lose.
//! Output: reads a second and CPU of the process by waiting method, at depth 1. The first method is the paper's: a
//! thread that polls, with fixed periods, without a period, and adaptive. The second has no thread: the caller polls,
//! busily or with an adaptive period. All methods run interleaved; ratios are to busy polling of the same round. The
//! floor is a thread that only sleeps, for half of a read's time: no waiting method that sleeps once for each read
//! costs less. The CPU is claimed where that floor says that a sleep pays: it takes at most half of the CPU of polling
//! for a whole read.

use super::{PAGE_BYTES, decimal, failed, seconds};
use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::measure::{CompareCase, SampleSpread, run_interleaved};
use crate::report::ReportRow;
use headwater_host::clock::{Clock, Nanos};
use headwater_io::backend::DeviceBackend as _;
use headwater_io::completion::{CompletionAggregation, CompletionPolicy, PollPace};
use headwater_io::model::{ModelDevice, ModelSettings, ServiceTimes};
use headwater_io::{Buffer, Handle, IoError, Queue, SharedQueue};

const SIZE: u64 = 1 << 30;
const IOPS_MIN: f64 = 0.98;
/// Maximum ratio of CPU where a sleep pays.
const CPU_MAX: f64 = 0.5;
/// Maximum CPU of a sleep that pays, as a share of polling for a whole read.
const PAYING_SLEEP_MAX: f64 = 0.5;
/// Minimum ratio of IOPS that counts as no loss: the medians differ by less than the machine's noise.
const NOTHING_LOST_MIN: f64 = 0.99;
/// Maximum period that counts as near zero.
const NEAR_ZERO_US: f64 = 1.0;
/// The figure's periods, in microseconds.
const FIXED_US: [u64; 4] = [1, 20, 70, 200];

/// Number of sleeps of the floor.
const FLOOR_SLEEPS: u64 = 500;

/// The thread that polls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PollingSide {
    Thread,
    Caller,
}

impl PollingSide {
    fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Caller => "caller",
        }
    }
}

/// One waiting method at one size.
struct WaitMethod {
    pace: PollPace,
    handle: Handle,
    /// The queue of a polling thread, which holds the period.
    shared: Option<SharedQueue>,
    buffer: Option<Buffer>,
    random: fastrand::Rng,
    clock: Clock,
}

/// The result of a round.
#[derive(Clone, Copy)]
struct PeriodSample {
    iops: f64,
    /// CPU time as a share of one processor, over all threads.
    cpu: f64,
    period_us: f64,
}

pub(super) fn run(context: &RunContext, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let (rounds, span) = if context.is_quick() { (5, 40) } else { (11, 300) };
    let span = Nanos::from_millis(span);
    for looker in [PollingSide::Thread, PollingSide::Caller] {
        for bytes in [PAGE_BYTES, 2 * PAGE_BYTES, 4 * PAGE_BYTES, 16 * PAGE_BYTES] {
            let fixed = FIXED_US.map(|us| PollPace::Fixed(Nanos::from_micros(us)));
            let fixed = if looker == PollingSide::Thread { fixed.as_slice() } else { &[] };
            let lines = [&[PollPace::Busy, PollPace::Adaptive], fixed].concat().into_iter();
            let lines: Result<Vec<WaitMethod>, IoError> =
                lines.map(|pace| WaitMethod::open(looker, pace, bytes, context.seed())).collect();
            let mut lines = lines.map_err(failed)?;
            let mut turns: Vec<_> = lines.iter_mut().map(|line| || line.run(span).map_err(failed)).collect();
            let mut contestants: Vec<CompareCase<'_, PeriodSample, LabError>> = Vec::new();
            for turn in &mut turns {
                contestants.push(turn);
            }
            let points = run_interleaved(rounds, &mut contestants)?;
            drop(contestants);
            drop(turns);
            report(findings, (looker, bytes), &lines, &points, floor(bytes));
        }
    }
    Ok(())
}

/// The CPU of one sleep for half of a read's time.
#[derive(Clone, Copy)]
struct SleepFloor {
    /// Microseconds of CPU.
    cpu_us: f64,
    /// Microseconds that the sleep really took.
    took_us: f64,
    /// The CPU as a share of one processor during the whole read, if the rest of it costs nothing.
    share: f64,
}

/// Measures what one sleep costs.
fn floor(bytes: usize) -> SleepFloor {
    let ServiceTimes { fixed, per_kib, .. } = service_of(bytes);
    let latency = fixed.0 + per_kib.0 * (bytes as u64 / 1_024);
    let (clock, used) = (Clock::start(), Clock::process_cpu());
    for _ in 0..FLOOR_SLEEPS {
        Clock::sleep_precisely(Nanos(latency / 2));
    }
    let (cpu, took) = (decimal(Clock::process_cpu().since(used).0), decimal(clock.now().0));
    let sleeps = decimal(FLOOR_SLEEPS);
    SleepFloor {
        cpu_us: cpu / sleeps / 1_000.0,
        took_us: took / sleeps / 1_000.0,
        share: cpu / (decimal(latency) * sleeps),
    }
}

/// Returns the service times of a data-centre SSD; for 4 KiB of one that is ten times as fast.
fn service_of(bytes: usize) -> ServiceTimes {
    let usual = ServiceTimes::default();
    if bytes == PAGE_BYTES { ServiceTimes { fixed: Nanos(4_800), ..usual } } else { usual }
}

fn column(points: &[PeriodSample], pick: fn(&PeriodSample) -> f64) -> Vec<f64> {
    points.iter().map(pick).collect()
}

fn report(
    findings: &mut ExperimentFindings,
    (looker, bytes): (PollingSide, usize),
    lines: &[WaitMethod],
    points: &[Vec<PeriodSample>],
    floor: SleepFloor,
) {
    let [busy, adaptive, ..] = points else {
        return;
    };
    let (busy_iops, busy_cpu) = (column(busy, |point| point.iops), column(busy, |point| point.cpu));
    let kib = bytes as u64 / 1_024;
    for (line, points) in lines.iter().zip(points) {
        let (iops, cpu) = (column(points, |point| point.iops), column(points, |point| point.cpu));
        findings.rows.push(
            ReportRow::new()
                .with("figure 3, model device", format!("{} looks", looker.name()))
                .with("kib", kib)
                .with("period", pace_name(line.pace))
                .with("period_us", SampleSpread::of(&column(points, |point| point.period_us)))
                .with("iops", SampleSpread::of(&iops))
                .with("iops_ratio", SampleSpread::of_ratios(&iops, &busy_iops))
                .with("cpu_cores", SampleSpread::of(&cpu))
                .with("cpu_ratio", SampleSpread::of_ratios(&cpu, &busy_cpu)),
        );
    }
    let ratio = |points: &[PeriodSample], pick: fn(&PeriodSample) -> f64, busy: &[f64]| {
        SampleSpread::of_ratios(&column(points, pick), busy).map_or(f64::NAN, |spread| spread.median)
    };
    let iops = ratio(adaptive, |point| point.iops, &busy_iops);
    let cpu = ratio(adaptive, |point| point.cpu, &busy_cpu);
    let baseline = format!(
        "model device of {}; busy polling {:.0} reads/s on {:.2} cores; floor: one sleep of half a read takes {:.1} us \
         of CPU ({:.2} cores) and lasts {:.1} us",
        if bytes == PAGE_BYTES { "6 us" } else { "60 us and 0.3 us a KiB" },
        super::median(&busy_iops),
        super::median(&busy_cpu),
        floor.cpu_us,
        floor.share,
        floor.took_us
    );
    let mut claim = |what: &str, goal, value, unit| {
        let name = format!("p4.period.{}.{kib}k.{what}", looker.name());
        findings.claims.push(LabClaim::found(
            name,
            goal,
            (value, unit),
            EvidenceLabel::Measured,
            baseline.clone(),
        ));
    };
    let unit = "of the IOPS of busy polling, adaptive period";
    if bytes == PAGE_BYTES {
        claim("iops", ClaimGoal::AtLeast(NOTHING_LOST_MIN), iops, unit);
        let period = super::median(&column(adaptive, |point| point.period_us));
        claim("period", ClaimGoal::AtMost(NEAR_ZERO_US), period, "us of adaptive period");
        return;
    }
    claim("iops", ClaimGoal::AtLeast(IOPS_MIN), iops, unit);
    if floor.share <= PAYING_SLEEP_MAX {
        claim("cpu", ClaimGoal::AtMost(CPU_MAX), cpu, "of the CPU of busy polling, adaptive period");
        return;
    }
    let row = ReportRow::new().with("figure 3, model device", format!("{} looks", looker.name()));
    let why = format!("no sleep pays: {baseline}");
    findings.rows.push(row.with("kib", kib).with("status", "NOT CLAIMED").with("why", why));
}

fn pace_name(pace: PollPace) -> String {
    match pace {
        PollPace::Busy => "busy".to_owned(),
        PollPace::Adaptive => "adaptive".to_owned(),
        PollPace::Part(percent) => format!("{percent} % of the latency"),
        PollPace::Fixed(span) => format!("{} us", span.0 / 1_000),
    }
}

impl WaitMethod {
    fn open(looker: PollingSide, pace: PollPace, bytes: usize, seed: u64) -> Result<Self, IoError> {
        let mut model = ModelDevice::new(ModelSettings::latency_model(SIZE, service_of(bytes)))?;
        let queue = Queue::over(model.queue(1)?);
        let buffer = Some(model.region(bytes)?);
        let builder = Handle::builder(model.facts());
        let (builder, shared) = match looker {
            PollingSide::Caller => (builder.queue(queue).completion(CompletionPolicy::Paced(pace)), None),
            PollingSide::Thread => {
                let shared = SharedQueue::new(queue);
                let policy = CompletionPolicy::Thread(pace, CompletionAggregation::NONE);
                (builder.queue(shared.clone()).completion(policy), Some(shared))
            }
        };
        let random = fastrand::Rng::with_seed(seed);
        Ok(Self { pace, handle: builder.build()?, shared, buffer, random, clock: Clock::start() })
    }

    fn run(&mut self, span: Nanos) -> Result<PeriodSample, IoError> {
        let (began, used) = (self.clock.now(), Clock::process_cpu());
        let (mut reads, mut periods) = (0_u64, Nanos::ZERO);
        while self.clock.now().since(began) < span {
            let Some(into) = self.buffer.take() else {
                return Err(IoError::Device { reason: "the read did not return its buffer".to_owned() });
            };
            let bytes = into.bytes() as u64;
            let offset = self.random.u64(..SIZE / bytes) * bytes;
            self.buffer = Some(self.handle.read(offset, into).map_err(|failed| failed.error)?);
            reads += 1;
            periods = periods.after(match &self.shared {
                Some(shared) => shared.period(),
                None => self.handle.period(),
            });
        }
        let (took, used) = (self.clock.now().since(began), Clock::process_cpu().since(used));
        Ok(PeriodSample {
            iops: decimal(reads) / seconds(took),
            cpu: decimal(used.0) / decimal(took.0),
            period_us: decimal(periods.0) / decimal(reads.max(1)) / 1_000.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings_at(looker: PollingSide, bytes: usize, share: f64) -> ExperimentFindings {
        let open = |pace| WaitMethod::open(PollingSide::Caller, pace, bytes, 1).unwrap();
        let lines = [open(PollPace::Busy), open(PollPace::Adaptive)];
        let point = PeriodSample { iops: 1_000.0, cpu: 1.0, period_us: 0.5 };
        let floor = SleepFloor { cpu_us: 12.5, took_us: 50.0, share };
        let mut findings = ExperimentFindings::default();
        report(&mut findings, (looker, bytes), &lines, &[vec![point], vec![point]], floor);
        findings
    }

    #[test]
    fn every_claim_of_a_period_names_the_floor_of_one_sleep() {
        for looker in [PollingSide::Thread, PollingSide::Caller] {
            for bytes in [PAGE_BYTES, 2 * PAGE_BYTES, 16 * PAGE_BYTES] {
                let claims = findings_at(looker, bytes, 0.25).claims;
                assert_eq!(claims.len(), 2);
                let of_cpu = claims.iter().any(|claim| claim.name.ends_with(".cpu"));
                assert_eq!(of_cpu, bytes != PAGE_BYTES);
                for claim in claims {
                    let floor = "floor: one sleep of half a read takes 12.5 us of CPU (0.25 cores)";
                    assert!(claim.baseline.contains(floor), "{}: {}", claim.name, claim.baseline);
                }
            }
        }
    }

    #[test]
    fn cpu_is_not_claimed_where_no_sleep_pays_and_the_floor_says_why() {
        let findings = findings_at(PollingSide::Caller, 2 * PAGE_BYTES, 0.6);
        assert!(findings.claims.iter().all(|claim| !claim.name.ends_with(".cpu")));
        let why = findings.rows.iter().find_map(|row| row.get("why")).unwrap();
        assert!(format!("{why:?}").contains("floor: one sleep"), "{why:?}");
    }
}
