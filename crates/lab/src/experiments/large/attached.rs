//! Gets and puts of large values by an attached client, beside the copy of the same bytes by one core.
//!
//! Input: a node whose flash file is in memory (tmpfs), if the machine has such a folder, and one on the scratch disk.
//! Output: gigabytes a second. The claims are of the flash in memory: there a get is a copy, which the disk of most
//! machines hides. The rows of the disk stand beside what the disk does with one transfer after the other.

use super::{LargePromise, LargeSize, SIZES, memory_option};
use crate::attached_client::{AttachedClient, TransferVerb};
use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::measure::{CompareCase, CorePair, SampleSpread, run_interleaved};
use crate::payload_floor::{FloorWork, PayloadFloor, per_gb};
use crate::report::ReportRow;
use crate::resp_load::{age, flush_all};
use crate::server::{RespDurability, RespServer};
use std::cell::RefCell;
use std::path::Path;

const UNIT: &str = "of the copy bandwidth of one core";
const GET: LargePromise = LargePromise { name: "attach.get", goal: ClaimGoal::AtLeast(0.8), unit: UNIT };
const PUT: LargePromise = LargePromise { name: "attach.put", goal: ClaimGoal::AtLeast(0.6), unit: UNIT };
/// The folder of files in memory.
const MEMORY_FOLDER: &str = "/dev/shm";
const CAPACITY_BYTES: u64 = 1 << 30;
const CAPACITY_BYTES_QUICK: u64 = 640 << 20;
/// Bytes of all values of one length.
const DATA_BYTES: usize = 256 << 20;
const DATA_BYTES_QUICK: usize = 128 << 20;
/// Bytes of the commands in flight, of which there are at least one and at most eight.
const IN_FLIGHT_BYTES: usize = 16 << 20;
const DEPTH_MAX: usize = 8;

struct AttachPlan {
    rounds: usize,
    /// Bytes that each contestant moves in a round.
    bytes: usize,
}

const FULL: AttachPlan = AttachPlan { rounds: 7, bytes: 256 << 20 };
const QUICK: AttachPlan = AttachPlan { rounds: 3, bytes: 32 << 20 };

/// A place for the flash file.
struct FlashPlace<'a> {
    /// The name in rows.
    name: &'static str,
    context: &'a RunContext,
    /// True if the claims are measured there.
    claimed: bool,
}

pub(super) fn run(context: &RunContext, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let Some(cores) = CorePair::first() else {
        let claims = SIZES.into_iter().flat_map(|size| [GET, PUT].map(|promise| (size, promise)));
        findings
            .claims
            .extend(claims.map(|(size, promise)| promise.not_run(size, "the run needs two cores")));
        return Ok(());
    };
    let in_memory = context.with_scratch_in(Path::new(MEMORY_FOLDER)).ok();
    let mut places = Vec::new();
    if let Some(context) = &in_memory {
        places.push(FlashPlace { name: "flash file in memory", context, claimed: true });
    }
    if in_memory.is_none() || !context.is_quick() {
        places.push(FlashPlace { name: "flash file on the disk", context, claimed: in_memory.is_none() });
    }
    for place in places {
        measure_place(&place, cores, findings)?;
    }
    Ok(())
}

fn measure_place(
    place: &FlashPlace<'_>,
    cores: CorePair,
    findings: &mut ExperimentFindings,
) -> Result<(), LabError> {
    let quick = place.context.is_quick();
    let (capacity, data) =
        if quick { (CAPACITY_BYTES_QUICK, DATA_BYTES_QUICK) } else { (CAPACITY_BYTES, DATA_BYTES) };
    let (memory, bytes) = (memory_option(), capacity.to_string());
    let options = ["--memory", &memory, "--capacity", &bytes];
    let node = match RespServer::ours_with(place.context, RespDurability::OnFlush, &options) {
        Ok(node) => node,
        Err(error) if place.claimed => {
            let why = error.to_string();
            let claims = SIZES.into_iter().flat_map(|size| [GET, PUT].map(|promise| (size, promise)));
            findings.claims.extend(claims.map(|(size, promise)| promise.not_run(size, &why)));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    age(node.address(), capacity)?;
    cores.pin_server(node.pid());
    let _client = cores.pin_client();
    let longest = SIZES.map(|size| size.bytes).into_iter().max().unwrap_or(0);
    let floor = RefCell::new(PayloadFloor::create(place.context.scratch(), data.max(longest), longest)?);
    let plan = if quick { QUICK } else { FULL };
    for size in SIZES {
        if let Some(why) = size.refused() {
            if place.claimed {
                findings.claims.extend([GET, PUT].map(|promise| promise.not_run(size, &why)));
            }
            continue;
        }
        flush_all(node.address())?;
        let rates = measure_size(&node, &floor, (size, data), &plan)?;
        rates.report(place, size, findings);
    }
    Ok(())
}

/// Gigabytes a second by contestant.
struct AttachRates([Vec<f64>; 5]);

impl AttachRates {
    const GET: usize = 0;
    const PUT: usize = 1;
    const COPY: usize = 2;
    /// Distance between a transfer and its floor.
    const FLOOR: usize = 3;
    const NAMES: [&'static str; 5] = [
        "attach get",
        "attach put",
        "copy by one core",
        "floor of a get: file, crc",
        "floor of a put: crc, file",
    ];
    const FLOORS: [FloorWork; 3] = [FloorWork::Copy, FloorWork::Read, FloorWork::Write];

    fn report(&self, place: &FlashPlace<'_>, size: LargeSize, findings: &mut ExperimentFindings) {
        for (index, (name, rates)) in Self::NAMES.into_iter().zip(&self.0).enumerate() {
            let floor = self.0.get(index + Self::FLOOR).filter(|_| index < Self::COPY);
            let of_floor = floor.and_then(|floor| SampleSpread::of_ratios(rates, floor));
            findings.rows.push(
                ReportRow::new()
                    .with("over attach", place.name)
                    .with("bytes", size.bytes as u64)
                    .with("what", name)
                    .with("gb_per_s", SampleSpread::of(rates))
                    .with("of_the_copy", SampleSpread::of_ratios(rates, &self.0[Self::COPY]))
                    .with("of_the_floor", of_floor),
            );
        }
        if !place.claimed {
            return;
        }
        let median = |index: usize| SampleSpread::of(&self.0[index]).map_or(f64::NAN, |rate| rate.median);
        for (promise, index) in [(GET, Self::GET), (PUT, Self::PUT)] {
            let ratio = SampleSpread::of_ratios(&self.0[index], &self.0[Self::COPY]);
            let baseline = format!(
                "a copy at {:.1} GB/s; {}; floor: file and crc {:.1} GB/s",
                median(Self::COPY),
                place.name,
                median(index + Self::FLOOR)
            );
            let value = ratio.map_or(f64::NAN, |spread| spread.median);
            findings.claims.push(LabClaim::found(
                promise.claim(size),
                promise.goal,
                (value, UNIT),
                EvidenceLabel::Measured,
                baseline,
            ));
        }
    }
}

fn measure_size(
    node: &RespServer,
    floor: &RefCell<PayloadFloor>,
    (size, data): (LargeSize, usize),
    plan: &AttachPlan,
) -> Result<AttachRates, LabError> {
    let depth = (IN_FLIGHT_BYTES / size.bytes).clamp(1, DEPTH_MAX);
    let mut client = AttachedClient::attach(&node.attach_socket(), size.bytes, depth)?;
    let (keys, count) = (size.keys(data), size.count(plan.bytes));
    let mut next = 0;
    client.transfer(TransferVerb::Put, keys, || {
        next += 1;
        next - 1
    })?;
    let client = RefCell::new((client, fastrand::Rng::with_seed(5)));
    let moved = |verb: TransferVerb| -> Result<f64, LabError> {
        let (client, random) = &mut *client.borrow_mut();
        let took = client.transfer(verb, count, || random.u64(..keys))?;
        Ok(1.0 / per_gb(took, count * size.bytes as u64))
    };
    let least = |work: FloorWork| -> Result<f64, LabError> {
        Ok(floor.borrow_mut().round(work, size.bytes, count)?.gb_per_s())
    };
    let [copied, read, written] = AttachRates::FLOORS;
    let (mut get, mut put) = (|| moved(TransferVerb::Get), || moved(TransferVerb::Put));
    let (mut copy, mut read, mut write) = (|| least(copied), || least(read), || least(written));
    let mut contestants: [CompareCase<'_, f64, LabError>; 5] =
        [&mut get, &mut put, &mut copy, &mut read, &mut write];
    let samples = run_interleaved(plan.rounds, &mut contestants)?;
    let mut rates = AttachRates(Default::default());
    rates.0.iter_mut().zip(samples).for_each(|(rates, samples)| *rates = samples);
    Ok(rates)
}
