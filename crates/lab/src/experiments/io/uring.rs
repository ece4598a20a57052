//! The `io_uring` backend compared with fio's engine: random reads of 4 KiB of one file with direct I/O.
//!
//! Input: a fully written file in the scratch folder.
//! Output: reads a second and CPU for a read at depth 1 and 32, in pairs that ran one after the other, and system calls
//! for a read. Both sides submit until the depth is reached, sleep in the kernel for the first completion and take all
//! that are available. CPU is that of the submitting thread, on both sides.

use super::fio::{Fio, ReadResult, SyscallCounter};
use super::{PAGE_BYTES, decimal, failed, measured, median, seconds};
use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::measure::{CompareCase, SampleSpread, run_interleaved};
use crate::report::ReportRow;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::width::narrow;
use headwater_io::backend::{CompletedCommand, DeviceBackend as _};
use headwater_io::completion::{CompletionAggregation, CompletionPolicy};
use headwater_io::uring::{UringDevice, UringOptions};
use headwater_io::{Buffer, Command, Handle, IoError, IoRequest, Queue, TransferData};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const FILE_BYTES: u64 = 256 << 20;
const DEPTHS: [u32; 2] = [1, 32];
const IOPS_MIN: f64 = 0.98;
const IOPS_UNIT: &str = "upper end of the 95 % interval of the IOPS ratio";
const CPU_UNIT: &str = "ratio of CPU a read";
const CALLS_UNIT: &str = "ratio of system calls a read";
const NAMES: [&str; 3] = ["queue", "handle, interrupt policy", "fio"];
const FIO: usize = 2;

pub(super) fn run(context: &RunContext, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let path = context.scratch().join("reads");
    prepare(&path, context.seed()).map_err(|source| LabError::Io { what: "write the test file", source })?;
    let fio = match Fio::find(&path, FILE_BYTES) {
        Ok(fio) => fio,
        Err(why) => {
            DEPTHS.iter().for_each(|&depth| not_run(findings, depth, &why));
            return Ok(());
        }
    };
    let (rounds, span) = if context.is_quick() { (9, 300) } else { (15, 2_000) };
    let span = Nanos::from_millis(span);
    for depth in DEPTHS {
        compare(context, findings, (&fio, &path), (depth, rounds, span))?;
    }
    Ok(())
}

fn names(depth: u32) -> [String; 3] {
    ["iops", "cpu", "calls"].map(|what| format!("p4.uring.d{depth}.{what}"))
}

fn not_run(findings: &mut ExperimentFindings, depth: u32, why: &str) {
    let [iops, cpu, calls] = names(depth);
    findings.claims.push(LabClaim::not_run(iops, ClaimGoal::AtLeast(IOPS_MIN), IOPS_UNIT, why));
    findings.claims.push(LabClaim::not_run(cpu, ClaimGoal::AtMost(1.0), CPU_UNIT, why));
    findings.claims.push(LabClaim::not_run(calls, ClaimGoal::AtMost(1.0), CALLS_UNIT, why));
}

fn compare(
    context: &RunContext,
    findings: &mut ExperimentFindings,
    (fio, path): (&Fio, &Path),
    (depth, rounds, span): (u32, usize, Nanos),
) -> Result<(), LabError> {
    let mut queue = UringReader::open(path, depth, ReaderKind::Queue, context.seed()).map_err(failed)?;
    let mut handle = UringReader::open(path, depth, ReaderKind::Handle, context.seed()).map_err(failed)?;
    let mut of_queue = || queue.run(span).map_err(failed);
    let mut of_handle = || handle.run(span).map_err(failed);
    let mut of_fio = || fio.run(depth, span);
    let mut contestants: [CompareCase<'_, ReadResult, LabError>; 3] =
        [&mut of_queue, &mut of_handle, &mut of_fio];
    let samples = match run_interleaved(rounds, &mut contestants) {
        Ok(samples) => samples,
        Err(error @ LabError::Measure { .. }) => {
            not_run(findings, depth, &format!("NOT MEASURED: {error}"));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let iops: Vec<Vec<f64>> = samples.iter().map(|runs| runs.iter().map(|ran| ran.iops).collect()).collect();
    let cpu: Vec<Vec<f64>> = samples.iter().map(|runs| runs.iter().map(|ran| ran.cpu_ns).collect()).collect();
    let ours = calls_of(&mut queue, context.scratch(), span);
    let theirs = fio.calls(depth, span, context.scratch());
    for (index, name) in NAMES.iter().enumerate() {
        let calls = [ours.as_ref().ok(), None, theirs.as_ref().ok()][index].copied();
        findings.rows.push(
            ReportRow::new()
                .with("4 KiB random reads, O_DIRECT", *name)
                .with("depth", u64::from(depth))
                .with("iops", SampleSpread::of(&iops[index]))
                .with("cpu_ns", SampleSpread::of(&cpu[index]))
                .with("calls_a_read", calls),
        );
    }
    let [iops_name, cpu_name, calls_name] = names(depth);
    let ratios = quotients(&iops[0], &iops[FIO]);
    let (low, high) = interval(&ratios);
    let baseline = format!(
        "{}, {:.0} reads/s; ratio {:.3}, 95 % interval {low:.3} to {high:.3} of {rounds} pairs",
        fio.version,
        median(&iops[FIO]),
        median(&ratios)
    );
    let goal = ClaimGoal::AtLeast(IOPS_MIN);
    findings.claims.push(LabClaim::found(
        iops_name,
        goal,
        (high, IOPS_UNIT),
        EvidenceLabel::Measured,
        baseline,
    ));
    let baseline =
        format!("{}, {:.0} ns a read, ours {:.0} ns", fio.version, median(&cpu[FIO]), median(&cpu[0]));
    let ratios = quotients(&cpu[0], &cpu[FIO]);
    findings.claims.push(measured(cpu_name, ClaimGoal::AtMost(1.0), (&ratios, CPU_UNIT), &baseline));
    findings.claims.push(match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => {
            let baseline =
                format!("{}, {theirs:.3} a read, ours {ours:.3}; io_uring_enter alone", fio.version);
            LabClaim::found(
                calls_name,
                ClaimGoal::AtMost(1.0),
                (ours / theirs, CALLS_UNIT),
                EvidenceLabel::Measured,
                baseline,
            )
        }
        (Err(why), _) | (_, Err(why)) => {
            LabClaim::not_run(calls_name, ClaimGoal::AtMost(1.0), CALLS_UNIT, why)
        }
    });
    Ok(())
}

fn quotients(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
}

/// Returns the samples between which the median lies with a probability of at least 95 %, for any distribution: at each
/// end it omits as many samples as the binomial distribution allows.
fn interval(samples: &[f64]) -> (f64, f64) {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    // The probability that exactly `left` of the samples lie below the median, then that so many or fewer do.
    let mut exactly = 0.5_f64.powi(narrow(count));
    let (mut at_most, mut left) = (exactly, 0);
    while 2.0 * at_most <= 0.05 && left < count {
        exactly *= decimal((count - left) as u64) / decimal(left as u64 + 1);
        at_most += exactly;
        left += 1;
    }
    let left = left.saturating_sub(1).min(count / 2);
    match (sorted.get(left), sorted.get(count.saturating_sub(left + 1))) {
        (Some(&low), Some(&high)) => (low, high),
        _ => (f64::NAN, f64::NAN),
    }
}

/// Returns the number of system calls for each read of a round, including those before and after it.
fn calls_of(reader: &mut UringReader, scratch: &Path, span: Nanos) -> Result<f64, String> {
    let counter = SyscallCounter::start(scratch)?;
    let ran = reader.run(span);
    let calls = counter.stop()?;
    let ran = ran.map_err(|error| format!("NOT MEASURED: {error}"))?;
    Ok(decimal(calls) / decimal(ran.reads.max(1)))
}

/// Creates a file whose every byte is written, because unwritten bytes cost the disk nothing to read.
fn prepare(path: &Path, seed: u64) -> io::Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut part = vec![0; 4 << 20];
    let file = File::create(path)?;
    for at in (0..FILE_BYTES).step_by(part.len()) {
        random.fill(&mut part);
        file.write_all_at(&part, at)?;
    }
    file.sync_all()
}

#[derive(Clone, Copy)]
enum ReaderKind {
    Queue,
    Handle,
}

enum ReadPath {
    /// A queue that sleeps as soon as no completion is available.
    Queue(Queue),
    /// The same queue through a handle.
    Handle(Box<Handle>),
}

/// A client of the `io_uring` backend.
struct UringReader {
    path: ReadPath,
    free: Vec<Buffer>,
    block_bytes: u32,
    random: fastrand::Rng,
    clock: Clock,
    // Dropped last, because the queue belongs to it.
    _device: UringDevice,
}

impl UringReader {
    fn open(path: &Path, depth: u32, kind: ReaderKind, seed: u64) -> Result<Self, IoError> {
        let mut device = UringDevice::open(path, UringOptions::default())?;
        let facts = device.namespaces()?.into_iter().next();
        let facts =
            facts.ok_or_else(|| IoError::Device { reason: "the file has no namespace".to_owned() })?;
        let mut queue = Queue::over(device.queue(depth)?);
        queue.set_spin(Nanos::ZERO);
        let way = match kind {
            ReaderKind::Queue => ReadPath::Queue(queue),
            ReaderKind::Handle => {
                let policy = CompletionPolicy::Interrupt(CompletionAggregation::NONE);
                ReadPath::Handle(Box::new(Handle::builder(&facts).queue(queue).completion(policy).build()?))
            }
        };
        let free = (0..depth).map(|_| device.region(PAGE_BYTES)).collect::<Result<_, _>>()?;
        let random = fastrand::Rng::with_seed(seed);
        Ok(Self {
            path: way,
            free,
            block_bytes: facts.block_bytes,
            random,
            clock: Clock::start(),
            _device: device,
        })
    }

    /// Reads for `span`, then takes the outstanding completions.
    fn run(&mut self, span: Nanos) -> Result<ReadResult, IoError> {
        let (began, cpu) = (self.clock.now(), Clock::thread_cpu());
        let mut reads = 0;
        while self.clock.now().since(began) < span {
            self.submit()?;
            reads += self.take()?;
        }
        while self.in_flight() > 0 {
            reads += self.take()?;
        }
        let (took, used) = (self.clock.now().since(began), Clock::thread_cpu().since(cpu));
        let cpu_ns = decimal(used.0) / decimal(reads.max(1));
        Ok(ReadResult { iops: decimal(reads) / seconds(took), cpu_ns, reads })
    }

    fn submit(&mut self) -> Result<(), IoError> {
        while let Some(buffer) = self.free.pop() {
            let offset = self.random.u64(..FILE_BYTES / PAGE_BYTES as u64) * PAGE_BYTES as u64;
            match &mut self.path {
                ReadPath::Queue(queue) => {
                    let lba = offset / u64::from(self.block_bytes);
                    queue.submit(Command::read(1, lba, self.block_bytes, buffer)?, offset)?;
                }
                ReadPath::Handle(handle) => handle.submit(IoRequest::read(offset, buffer), offset)?,
            }
        }
        Ok(())
    }

    fn in_flight(&self) -> u32 {
        match &self.path {
            ReadPath::Queue(queue) => queue.in_flight(),
            ReadPath::Handle(handle) => handle.outstanding(),
        }
    }

    /// Waits for a completion and takes all that are available. Returns their number.
    fn take(&mut self) -> Result<u64, IoError> {
        let mut next = match &mut self.path {
            ReadPath::Queue(queue) => queue.wait_command(None)?,
            ReadPath::Handle(handle) => handle.wait(None)?,
        };
        let mut taken = 0;
        while let Some(CompletedCommand { completion, data }) = next {
            completion.into_result()?;
            taken += 1;
            if let TransferData::FromDevice(buffer) = data {
                self.free.push(buffer);
            }
            next = match &mut self.path {
                ReadPath::Queue(queue) => queue.poll_command()?,
                ReadPath::Handle(handle) => handle.poll()?,
            };
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_omits_as_many_samples_as_the_binomial_allows() {
        let samples = |count: u32| (1..=count).rev().map(f64::from).collect::<Vec<_>>();
        // 2 * (1 + 9) / 2^9 = 3.9 %; one more at each end would be 18 %.
        assert_eq!(interval(&samples(9)), (2.0, 8.0));
        assert_eq!(interval(&samples(15)), (4.0, 12.0));
        // Three samples are too few for 95 %, so the interval is all of them.
        assert_eq!(interval(&samples(3)), (1.0, 3.0));
        assert!(interval(&[]).0.is_nan());
    }
}
