//! Plans a round: the next pieces of a job, which the GPU gets together.
//!
//! Input: a job, the settings of an engine, and the registered ranges. Output: transfers, and the pieces of steps that they do.
//! Invariant: a piece lies in one consecutive, registered range of each of its memories; no piece of a round needs what another
//! one writes, or writes what another one needs, so that they run in any order.

use super::super::channel_job::{ChannelJob, PlannedPiece, first_same, part_of};
use super::super::job::{MemoryPlace, MemoryRange, MoveStep};
use headwater_host::gpu::{GpuEngineConfig, GpuTransfer, RegistrationLookup, TransferSource};
use headwater_host::work_memory::WorkPlace;
use std::ops::Range;

/// The most pieces of a round: a driver that has a thousand calls in hand lets the next one wait.
const PIECES_MAX: usize = 256;
/// The most uses of each slot in a round.
const SLOT_USES_MAX: usize = 4;

/// The plan of a round.
#[derive(Debug)]
pub(super) enum RoundPlan {
    /// The GPU does these transfers.
    Transfers(Vec<GpuTransfer>),
    /// The CPU does so many bytes of the present step first: the GPU cannot.
    CpuFirst(usize),
}

/// The bytes of a memory that a round reads and writes: the ranges, and all between them.
#[derive(Clone, Debug, Default)]
struct UsedSpan {
    read: Range<usize>,
    written: Range<usize>,
}

/// The uses of the memories in a round. A piece between two ranges ends a round early, which costs time
/// and nothing else.
struct RoundUses {
    /// For each memory the first one that is the same.
    same: Vec<usize>,
    spans: Vec<UsedSpan>,
}

impl RoundUses {
    fn of(work: &ChannelJob) -> Self {
        let same = first_same(&work.job.memories);
        Self { spans: vec![UsedSpan::default(); same.len()], same }
    }

    fn span(&mut self, MemoryRange { start, bytes }: MemoryRange) -> (&mut UsedSpan, Range<usize>) {
        (&mut self.spans[self.same[start.memory]], start.offset..start.offset + bytes)
    }

    /// Adds what a part reads and writes. Returns false, and adds nothing, if its order among those of the round matters.
    fn add(&mut self, part: &MoveStep) -> bool {
        let mut is_apart = true;
        part.for_each_read(|range| {
            let (span, range) = self.span(range);
            is_apart &= !meets(&span.written, &range);
        });
        part.for_each_write(|range| {
            let (span, range) = self.span(range);
            is_apart &= !meets(&span.written, &range) && !meets(&span.read, &range);
        });
        if is_apart {
            part.for_each_read(|range| {
                let (span, range) = self.span(range);
                extend(&mut span.read, range);
            });
            part.for_each_write(|range| {
                let (span, range) = self.span(range);
                extend(&mut span.written, range);
            });
        }
        is_apart
    }
}

fn meets(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

fn extend(span: &mut Range<usize>, range: Range<usize>) {
    *span = if span.start == span.end { range } else { span.start.min(range.start)..span.end.max(range.end) };
}

/// Plans the next round of a job that is not done.
pub(super) fn plan_round(
    work: &mut ChannelJob,
    config: GpuEngineConfig,
    registered: &RegistrationLookup<'_>,
) -> RoundPlan {
    work.round.clear();
    let mut uses = RoundUses::of(work);
    let mut room = config.slots.saturating_mul(config.slot_bytes).saturating_mul(SLOT_USES_MAX);
    let mut transfers = Vec::new();
    let (mut step, mut at) = (work.step(), work.offset);
    while let Some(described) = work.job.steps.get(step).copied() {
        if at == described.bytes() {
            // A step of no bytes: alone, the CPU does it.
            if transfers.is_empty() {
                return RoundPlan::CpuFirst(0);
            }
            break;
        }
        let rest = part_of(&described, at, described.bytes() - at);
        let (bytes, transfer) = piece_of(work, &rest, config.slot_bytes, registered);
        let Some(transfer) = transfer else {
            if transfers.is_empty() {
                return RoundPlan::CpuFirst(bytes);
            }
            break;
        };
        if transfers.len() == PIECES_MAX || bytes > room || !uses.add(&part_of(&described, at, bytes)) {
            break;
        }
        room -= bytes;
        let operations = transfers.len()..transfers.len() + 1;
        transfers.push(transfer);
        work.round.push(PlannedPiece { at, bytes, step, operations });
        at += bytes;
        if at == described.bytes() {
            (step, at) = (step + 1, 0);
        }
    }
    RoundPlan::Transfers(transfers)
}

/// Returns the next bytes of a step that are one piece, and their transfer if the GPU can make it.
fn piece_of(
    work: &ChannelJob,
    rest: &MoveStep,
    slot_bytes: usize,
    registered: &RegistrationLookup<'_>,
) -> (usize, Option<GpuTransfer>) {
    let (source, to, also_to) = match *rest {
        MoveStep::Copy { from, to } => (TransferSource::Copy(place(from.start)), to, None),
        MoveStep::Dualcast { from, to: [first, second] } => {
            (TransferSource::Copy(place(from.start)), first, Some(second))
        }
        MoveStep::Fill { to, value } => (TransferSource::Fill(value), to.start, None),
        MoveStep::CopyCrc32c { .. }
        | MoveStep::Compare { .. }
        | MoveStep::Crc32c { .. }
        | MoveStep::Flush { .. } => return (rest.bytes(), None),
    };
    let (mut bytes, mut is_reachable) = (rest.bytes(), true);
    let mut limit = |range: MemoryRange| match work.address(range.start) {
        Some((address, consecutive)) => {
            let known = registered.bytes_from(address);
            is_reachable &= known > 0;
            bytes = bytes.min(if known > 0 { consecutive.min(known) } else { consecutive });
        }
        None => is_reachable = false,
    };
    rest.for_each_read(&mut limit);
    rest.for_each_write(&mut limit);
    if !is_reachable {
        return (bytes, None);
    }
    let bytes = bytes.min(slot_bytes);
    (bytes, Some(GpuTransfer { source, to: place(to), also_to: also_to.map(place), bytes }))
}

fn place(place: MemoryPlace) -> WorkPlace {
    WorkPlace { memory: place.memory, offset: place.offset }
}
