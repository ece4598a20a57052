//! Plans a round: the next pieces of a job, which the device gets together.
//!
//! Input: a job, and the limits of a queue. Output: operations, and the pieces of steps that they do. Invariant: a piece lies in
//! one consecutive range of each of its memories; a piece that needs what an earlier one of its round writes, or writes what an
//! earlier one needs, has a fence.

use super::super::channel_job::{ChannelJob, PlannedPiece, first_same, part_of};
use super::super::job::{MemoryPlace, MemoryRange, MoveStep};
use super::super::job_properties::{CacheIntent, MoveDurability};
use headwater_host::dsa::{
    CacheTarget, DsaOpcode, DsaOpcodeSet, DsaOperation, OperationFence, QueueLimits, QueuedOperation,
    WorkPlace,
};

/// The most operations of a round: each is compared with all before it.
const OPERATIONS_MAX: usize = 64;
/// The most bytes of an operation: what a page fault leaves of one the CPU does while the owner of the channel polls, in some
/// 0.1 ms. A device moves so much for far longer than it takes to begin, so that longer operations gain nothing.
const OPERATION_BYTES_MAX: usize = 1 << 20;
/// The low bits in which the targets of a dualcast are alike.
const DUALCAST_BITS: usize = 0xFFF;

/// The plan of a round.
#[derive(Debug)]
pub(super) enum RoundPlan {
    /// The device does these operations.
    Operations(Vec<QueuedOperation>),
    /// The CPU does so many bytes of the present step first: the device cannot.
    CpuFirst(usize),
}

/// A planner of one round.
pub(super) struct RoundPlanner<'a> {
    pub(super) work: &'a mut ChannelJob,
    pub(super) limits: QueueLimits,
    pub(super) opcodes: DsaOpcodeSet,
    /// For each memory the first one that is the same.
    pub(super) same: Vec<usize>,
    operations: Vec<QueuedOperation>,
    /// The pieces since the last fence, as steps.
    unordered: Vec<MoveStep>,
    /// The comparisons of the round. The CPU looks again where one found a difference: nothing may have changed until then.
    comparisons: Vec<MoveStep>,
}

impl<'a> RoundPlanner<'a> {
    pub(super) fn new(work: &'a mut ChannelJob, limits: QueueLimits, opcodes: DsaOpcodeSet) -> Self {
        let same = first_same(&work.job.memories);
        Self {
            work,
            limits,
            opcodes,
            same,
            operations: Vec::new(),
            unordered: Vec::new(),
            comparisons: Vec::new(),
        }
    }

    /// Plans the next round of a job that is not done.
    pub(super) fn plan(mut self) -> RoundPlan {
        self.work.round.clear();
        let (mut step, mut at) = (self.work.step(), self.work.offset);
        while let Some(described) = self.work.job.steps.get(step).copied() {
            let rest = described.bytes() - at;
            described.for_each_write(|range| self.work.extend_to(range));
            let bytes = self.piece_bytes(&part_of(&described, at, rest));
            let part = part_of(&described, at, bytes);
            let Some(operations) = self.operations_of(&part) else {
                if self.operations.is_empty() {
                    return RoundPlan::CpuFirst(bytes);
                }
                break;
            };
            let is_fenced = self.unordered.iter().any(|earlier| self.meets(earlier, &part));
            let changes_compared = self.comparisons.iter().any(|earlier| self.meets(earlier, &part));
            if changes_compared
                || is_fenced && !self.has_batches()
                || self.operations.len() + operations.len() > self.room()
            {
                break;
            }
            let first = self.operations.len();
            for (nth, (operation, fence)) in operations.into_iter().enumerate() {
                let fence = if is_fenced && nth == 0 { OperationFence::AfterEarlier } else { fence };
                if fence == OperationFence::AfterEarlier {
                    self.unordered.clear();
                }
                self.operations.push(QueuedOperation { operation, fence, cache: self.cache_target() });
            }
            self.unordered.push(part);
            if matches!(part, MoveStep::Compare { .. }) {
                self.comparisons.push(part);
            }
            let operations = first..self.operations.len();
            self.work.round.push(PlannedPiece { at, bytes, step, operations });
            at += bytes;
            if at == described.bytes() {
                (step, at) = (step + 1, 0);
            }
        }
        RoundPlan::Operations(self.operations)
    }

    fn has_batches(&self) -> bool {
        self.limits.batch_max > 1
    }

    /// Returns the most operations of a round.
    fn room(&self) -> usize {
        let most = if self.has_batches() { self.limits.batch_max } else { self.limits.entries };
        most.min(OPERATIONS_MAX)
    }

    /// Returns the place of what the operations write. Those of a persistent job are read back if the device can: their bytes have
    /// arrived when the job ends.
    fn cache_target(&self) -> CacheTarget {
        match (self.work.job.durability, self.work.job.cache_intent) {
            (MoveDurability::Persistent, _) if self.limits.can_read_back => CacheTarget::MemoryReadBack,
            (MoveDurability::Visible, CacheIntent::ReadSoon) => CacheTarget::Cache,
            _ => CacheTarget::Memory,
        }
    }

    /// Returns the bytes at the start of a part that lie in one piece of each memory, at most those of an operation. Bytes that
    /// no device can access count as one piece.
    fn piece_bytes(&self, part: &MoveStep) -> usize {
        let transfer_max = usize::try_from(self.limits.transfer_bytes_max).unwrap_or(usize::MAX);
        let mut bytes = part.bytes().min(transfer_max).min(OPERATION_BYTES_MAX);
        let mut shorten = |range: MemoryRange| {
            if let Some((_, found)) = self.work.address(range.start) {
                bytes = bytes.min(found);
            }
        };
        part.for_each_read(&mut shorten);
        part.for_each_write(&mut shorten);
        bytes
    }

    /// Returns the operations that do a part which lies in one piece of each memory; `None` if the device cannot.
    fn operations_of(&self, part: &MoveStep) -> Option<Vec<(DsaOperation, OperationFence)>> {
        let bytes = u32::try_from(part.bytes()).ok().filter(|bytes| *bytes > 0)?;
        let mut is_reachable = true;
        let mut reach = |range: MemoryRange| is_reachable &= self.work.address(range.start).is_some();
        part.for_each_read(&mut reach);
        part.for_each_write(&mut reach);
        if !is_reachable {
            return None;
        }
        let operation = match *part {
            MoveStep::Copy { from, to } => {
                DsaOperation::Move { from: place(from.start), to: place(to), bytes }
            }
            MoveStep::CopyCrc32c { from, to, seed } => {
                DsaOperation::MoveCrc { from: place(from.start), to: place(to), bytes, seed }
            }
            MoveStep::Dualcast { from, to } => return self.dualcast(from, to, bytes),
            MoveStep::Fill { to, value } => DsaOperation::Fill { to: place(to.start), bytes, value },
            MoveStep::Compare { range, with } => {
                DsaOperation::Compare { one: place(range.start), other: place(with), bytes }
            }
            MoveStep::Crc32c { of, seed } => DsaOperation::Crc { of: place(of.start), bytes, seed },
            MoveStep::Flush { of } => DsaOperation::Flush { of: place(of.start), bytes },
        };
        let is_known = self.opcodes.contains(operation.opcode());
        is_known.then(|| vec![(operation, OperationFence::Unordered)])
    }

    /// Returns the operations of a dualcast: one if the targets are aligned alike, else two copies. Memory that a client may
    /// change in between is read once, so that both copies are alike.
    fn dualcast(
        &self,
        from: MemoryRange,
        [first, second]: [MemoryPlace; 2],
        bytes: u32,
    ) -> Option<Vec<(DsaOperation, OperationFence)>> {
        let (one, other) = (self.work.address(first)?.0, self.work.address(second)?.0);
        if one & DUALCAST_BITS == other & DUALCAST_BITS && self.opcodes.contains(DsaOpcode::Dualcast) {
            let operation =
                DsaOperation::Dualcast { from: place(from.start), to: [place(first), place(second)], bytes };
            return Some(vec![(operation, OperationFence::Unordered)]);
        }
        if !self.opcodes.contains(DsaOpcode::MemoryMove) || self.room() < 2 {
            return None;
        }
        let copy = |from, to| DsaOperation::Move { from: place(from), to: place(to), bytes };
        let is_own = |place: MemoryPlace| self.work.job.memories[place.memory].own_bytes().is_some();
        let (again, fence) = if is_own(from.start) {
            (from.start, OperationFence::Unordered)
        } else if is_own(first) && self.has_batches() {
            (first, OperationFence::AfterEarlier)
        } else {
            return None;
        };
        Some(vec![(copy(from.start, first), OperationFence::Unordered), (copy(again, second), fence)])
    }

    /// Returns true if the order of two parts matters.
    fn meets(&self, one: &MoveStep, other: &MoveStep) -> bool {
        let is_met = |a: MemoryRange, b: MemoryRange| {
            self.same[a.start.memory] == self.same[b.start.memory]
                && a.start.offset < b.start.offset + b.bytes
                && b.start.offset < a.start.offset + a.bytes
        };
        let mut meets = false;
        one.for_each_write(|a| {
            other.for_each_read(|b| meets |= is_met(a, b));
            other.for_each_write(|b| meets |= is_met(a, b));
        });
        one.for_each_read(|a| other.for_each_write(|b| meets |= is_met(a, b)));
        meets
    }
}

fn place(place: MemoryPlace) -> WorkPlace {
    WorkPlace { memory: place.memory, offset: place.offset }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mover::MoveJob;
    use headwater_host::clock::Nanos;

    fn limits(can_read_back: bool) -> QueueLimits {
        QueueLimits { entries: 8, transfer_bytes_max: 1 << 31, batch_max: 16, can_read_back }
    }

    /// Returns the operations of the first round of a job, and the pieces that they do.
    fn planned(job: MoveJob, limits: QueueLimits) -> (Vec<QueuedOperation>, Vec<PlannedPiece>) {
        let mut work = ChannelJob::new(job, Nanos::ZERO);
        match RoundPlanner::new(&mut work, limits, DsaOpcodeSet::ALL).plan() {
            RoundPlan::Operations(operations) => (operations, work.round),
            RoundPlan::CpuFirst(bytes) => panic!("the device does not get {bytes} bytes"),
        }
    }

    /// Returns a job that copies, fills, and copies with a CRC.
    fn written(durability: MoveDurability, intent: CacheIntent) -> MoveJob {
        let mut job = MoveJob::new().with_durability(durability).with_cache_intent(intent);
        let (from, to) = (job.add_memory(vec![1; 100]), job.add_memory(vec![0; 300]));
        let from = MemoryPlace::new(from, 0).range(100);
        job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(to, 0) });
        job.add_step(MoveStep::Fill { to: MemoryPlace::new(to, 100).range(100), value: 7 });
        job.add_step(MoveStep::CopyCrc32c { from, to: MemoryPlace::new(to, 200), seed: 0 });
        job
    }

    #[test]
    fn operations_of_a_persistent_job_alone_are_read_back_where_the_device_can() {
        use CacheTarget::{Cache, Memory, MemoryReadBack};
        use MoveDurability::{Persistent, Visible};
        for (durability, intent, can_read_back, expected) in [
            (Persistent, CacheIntent::ReadSoon, true, MemoryReadBack),
            (Persistent, CacheIntent::NotSoon, true, MemoryReadBack),
            (Persistent, CacheIntent::ReadSoon, false, Memory),
            (Visible, CacheIntent::ReadSoon, true, Cache),
            (Visible, CacheIntent::NotSoon, true, Memory),
        ] {
            let (operations, _) = planned(written(durability, intent), limits(can_read_back));
            let found: Vec<CacheTarget> = operations.iter().map(|queued| queued.cache).collect();
            assert_eq!(found, [expected; 3], "{durability:?}, {intent:?}, {can_read_back}");
        }
    }

    #[test]
    fn operations_of_a_long_step_are_short_whatever_the_queue_permits() {
        let bytes = 2 * OPERATION_BYTES_MAX + 5;
        let mut job = MoveJob::new();
        let (from, to) = (job.add_memory(vec![1; bytes]), job.add_memory(vec![0; bytes]));
        let from = MemoryPlace::new(from, 0).range(bytes);
        job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(to, 0) });
        let (operations, pieces) = planned(job, limits(true));
        let found: Vec<(usize, usize)> = pieces.iter().map(|piece| (piece.at, piece.bytes)).collect();
        let expected = [(0, OPERATION_BYTES_MAX), (OPERATION_BYTES_MAX, OPERATION_BYTES_MAX)];
        assert_eq!(found, [expected.as_slice(), &[(2 * OPERATION_BYTES_MAX, 5)]].concat());
        assert_eq!(operations.len(), 3);
    }
}
