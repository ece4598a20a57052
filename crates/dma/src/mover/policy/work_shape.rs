//! The description of a job that the policy decides about.

use headwater_host::clock::Nanos;
use headwater_host::numa::NodeId;

/// The operation of a job, as far as it decides the speed of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MoveOperation {
    /// A copy.
    Copy,
    /// A copy with the CRC-32C of its bytes.
    CopyCrc32c,
    /// A copy to two places.
    Dualcast,
    /// A fill with one value.
    Fill,
    /// A comparison of two ranges.
    Compare,
    /// The CRC-32C of a range.
    Crc32c,
    /// A write of cache lines back to memory.
    Flush,
}

impl MoveOperation {
    /// Every operation.
    pub const ALL: [Self; 7] =
        [Self::Copy, Self::CopyCrc32c, Self::Dualcast, Self::Fill, Self::Compare, Self::Crc32c, Self::Flush];
}

/// A set of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationSet(u8);

impl OperationSet {
    /// Every operation.
    pub const ALL: Self = Self((1 << MoveOperation::ALL.len()) - 1);

    /// Returns the set of the named operations.
    #[must_use]
    pub fn of(operations: &[MoveOperation]) -> Self {
        Self(operations.iter().fold(0, |set, operation| set | Self::bit(*operation)))
    }

    /// Returns true if the set has the operation.
    #[must_use]
    pub const fn contains(self, operation: MoveOperation) -> bool {
        self.0 & Self::bit(operation) != 0
    }

    const fn bit(operation: MoveOperation) -> u8 {
        match operation {
            MoveOperation::Copy => 1,
            MoveOperation::CopyCrc32c => 1 << 1,
            MoveOperation::Dualcast => 1 << 2,
            MoveOperation::Fill => 1 << 3,
            MoveOperation::Compare => 1 << 4,
            MoveOperation::Crc32c => 1 << 5,
            MoveOperation::Flush => 1 << 6,
        }
    }
}

/// The kinds of memory that a job reads and writes. It is a type of its own, so that no two callers can mean opposite
/// things by one flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MoveDirection {
    /// From DRAM to DRAM.
    BetweenDram,
    /// From DRAM to persistent memory.
    ToPersistent,
    /// From persistent memory to DRAM.
    FromPersistent,
    /// From persistent memory to persistent memory.
    BetweenPersistent,
}

impl MoveDirection {
    /// Every direction.
    pub const ALL: [Self; 4] =
        [Self::BetweenDram, Self::ToPersistent, Self::FromPersistent, Self::BetweenPersistent];

    /// Returns true if the job writes to persistent memory.
    #[must_use]
    pub const fn writes_persistent(self) -> bool {
        matches!(self, Self::ToPersistent | Self::BetweenPersistent)
    }

    pub(super) const fn index(self) -> usize {
        match self {
            Self::BetweenDram => 0,
            Self::ToPersistent => 1,
            Self::FromPersistent => 2,
            Self::BetweenPersistent => 3,
        }
    }
}

/// The permission to do a job in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobSplit {
    /// Several engines may each do a part of it.
    Allowed,
    /// One engine does all of it, as for a CRC that each byte continues.
    Forbidden,
}

/// The state of the owner of a job until the job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// It waits: only the end of the job counts.
    Waiting,
    /// It does other work, if the CPU does not do the job: the time of the CPU counts by
    /// [`PolicyConfig::busy_cpu_factor`](super::PolicyConfig::busy_cpu_factor).
    Working,
}

/// A job that the policy decides about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkShape {
    /// The operation.
    pub operation: MoveOperation,
    /// The length in bytes.
    pub bytes: u64,
    /// The kinds of memory.
    pub direction: MoveDirection,
    /// The NUMA node of the bytes to read, if it is known.
    pub source: Option<NodeId>,
    /// The NUMA node of the bytes to write, if it is known.
    pub target: Option<NodeId>,
    /// The permission to do it in parts.
    pub split: JobSplit,
    /// The state of its owner.
    pub owner: OwnerState,
    /// The time to its deadline, if it has one.
    pub time_left: Option<Nanos>,
}

impl WorkShape {
    /// Returns the shape of a copy between DRAM of unknown nodes that may be split, and whose owner waits.
    #[must_use]
    pub const fn copy(bytes: u64) -> Self {
        Self {
            operation: MoveOperation::Copy,
            bytes,
            direction: MoveDirection::BetweenDram,
            source: None,
            target: None,
            split: JobSplit::Allowed,
            owner: OwnerState::Waiting,
            time_left: None,
        }
    }

    /// Returns true if both jobs have the operation, the direction and the nodes in common.
    pub(super) fn is_alike(&self, other: &Self) -> bool {
        self.operation == other.operation
            && self.direction == other.direction
            && self.source == other.source
            && self.target == other.target
    }
}
