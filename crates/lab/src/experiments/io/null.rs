//! The cost of a read from a device that takes no time.
//!
//! Input: the null device.
//! Output: CPU nanoseconds from submit to reap of a 4 KiB read at depth 1 and 32: through a handle whose policies were
//! chosen at run time, with its buffer moved in and back; through the queue alone; and the floor, a queue pair and its
//! controller's end without buffers, limits or a handle. All run on one thread, interleaved.

use super::{PAGE_BYTES, failed, measured, median};
use crate::claim::ClaimGoal;
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::measure::{CompareCase, CorePin, SampleSpread, cpu_ns_each, run_interleaved};
use crate::report::ReportRow;
use headwater_io::backend::DeviceBackend as _;
use headwater_io::completion::CompletionPolicy;
use headwater_io::model::{ModelDevice, ModelSettings};
use headwater_io::scheduler::SchedulingPolicy;
use headwater_io::{Buffer, Command, Handle, IoError, IoRequest, Queue, TransferData};
use headwater_nvme::controller::{ControllerQueuePair, FetchOutcome, QueueId, QueueKind};
use headwater_nvme::queue_pair::QueuePair;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use std::hint::black_box;

const SIZE: u64 = 1 << 30;
const NAMES: [&str; 3] = ["queue pair and controller's end alone (floor)", "queue", "handle"];
const HANDLE: usize = 2;
/// Depth, and maximum nanoseconds for a read.
const GOALS: [(u32, f64); 2] = [(32, 60.0), (1, 110.0)];

pub(super) fn run(context: &RunContext, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let _here = CorePin::current_core();
    let (rounds, reads) = if context.is_quick() { (21, 100_000) } else { (101, 400_000) };
    for (depth, goal) in GOALS {
        let mut pair = pair_round(depth, reads)?;
        let mut queue = queue_round(depth, reads).map_err(failed)?;
        let mut handle = handle_round(depth, reads).map_err(failed)?;
        let mut pair = || timed(reads, &mut pair);
        let mut queue = || timed(reads, &mut queue);
        let mut handle = || timed(reads, &mut handle);
        let mut contestants: [CompareCase<'_, f64, LabError>; 3] = [&mut pair, &mut queue, &mut handle];
        let samples = run_interleaved(rounds, &mut contestants)?;
        for (name, samples) in NAMES.iter().zip(&samples) {
            findings.rows.push(
                ReportRow::new()
                    .with("null device, 4 KiB read", *name)
                    .with("depth", u64::from(depth))
                    .with("cpu_ns", SampleSpread::of(samples)),
            );
        }
        let (floor, bare) = (median(&samples[0]), median(&samples[1]));
        let unit = "ns of CPU from submit to reap of a 4 KiB read";
        let baseline = format!("queue pair and controller's end alone {floor:.1} ns, queue {bare:.1} ns");
        let name = format!("p4.null.d{depth}");
        findings.claims.push(measured(name, ClaimGoal::AtMost(goal), (&samples[HANDLE], unit), &baseline));
    }
    Ok(())
}

fn timed(reads: u32, round: &mut impl FnMut() -> Result<(), IoError>) -> Result<f64, LabError> {
    let mut outcome = Ok(());
    let each = cpu_ns_each(reads.into(), || outcome = round());
    outcome.map(|()| each).map_err(failed)
}

fn pair_round(depth: u32, reads: u32) -> Result<impl FnMut() -> Result<(), IoError>, LabError> {
    let (mut host, end) = QueuePair::new(depth).map_err(failed)?;
    let mut device = ControllerQueuePair::new(QueueId(1), QueueKind::Standard, end);
    Ok(move || {
        let mut done = 0;
        while done < reads {
            for _ in 0..depth {
                // The queue is empty here, because everything was reaped.
                let _ = black_box(host.submit(SubmissionEntry::default(), ()));
            }
            let _ = host.ring();
            while let FetchOutcome::Command(fetched) = device.fetch() {
                device.complete(fetched.token, 0, Status::SUCCESS);
            }
            while let Some(completion) = host.reap()? {
                done += u32::from(black_box(completion).status.is_success());
            }
        }
        Ok(())
    })
}

fn buffers(model: &mut ModelDevice, depth: u32) -> Result<Vec<Buffer>, IoError> {
    (0..depth).map(|_| model.region(PAGE_BYTES)).collect()
}

fn queue_round(depth: u32, reads: u32) -> Result<impl FnMut() -> Result<(), IoError>, IoError> {
    let mut model = ModelDevice::new(ModelSettings::null_device(SIZE))?;
    let block_bytes = model.facts().block_bytes;
    let mut queue = Queue::over(model.queue(depth)?);
    let mut free = buffers(&mut model, depth)?;
    Ok(move || {
        let mut done = 0;
        while done < reads {
            while let Some(buffer) = free.pop() {
                let lba = u64::from(done % 200_000) * 8;
                queue.submit(Command::read(1, lba, block_bytes, buffer)?, lba)?;
            }
            while let Some(answer) = queue.poll_command()? {
                done += u32::from(answer.completion.status.is_success());
                if let TransferData::FromDevice(buffer) = answer.data {
                    free.push(buffer);
                }
            }
        }
        Ok(())
    })
}

fn handle_round(depth: u32, reads: u32) -> Result<impl FnMut() -> Result<(), IoError>, IoError> {
    let mut model = ModelDevice::new(ModelSettings::null_device(SIZE))?;
    let queue = Queue::over(model.queue(depth)?);
    let mut handle = Handle::builder(model.facts()).queue(queue).build()?;
    // Chosen at run time, so that the compiler cannot specialize for them.
    handle.set_scheduling(black_box(SchedulingPolicy::Fifo));
    handle.set_completion(black_box(CompletionPolicy::Inline))?;
    let mut free = buffers(&mut model, depth)?;
    Ok(move || {
        let mut done = 0;
        while done < reads {
            while let Some(buffer) = free.pop() {
                let offset = u64::from(done % 200_000) * PAGE_BYTES as u64;
                handle.submit(IoRequest::read(offset, buffer), offset)?;
            }
            while let Some(answer) = handle.poll()? {
                done += u32::from(answer.completion.status.is_success());
                if let TransferData::FromDevice(buffer) = answer.data {
                    free.push(buffer);
                }
            }
        }
        Ok(())
    })
}
