//! The counters of the SMART log, as commit records keep them (`docs/formats/medium-2.md`).
//!
//! Input: counts since an opening, and those of the record before it. Output: totals, and 72 bytes of a record. Invariant:
//! a record without counters, or with counters of a later version, counts nothing: a later device starts from zero.

use std::ops::Add;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of the layout; 0 says that a record has no counters.
const HEALTH_VERSION: u32 = 1;

/// The counters of the SMART log over the life of a medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthCounters {
    /// Commands that read.
    pub reads: u64,
    /// Bytes that hosts read.
    pub bytes_read: u64,
    /// Commands that wrote.
    pub writes: u64,
    /// Bytes that hosts wrote.
    pub bytes_written: u64,
    /// Records and pages that were found damaged.
    pub media_errors: u64,
    /// Openings for writing.
    pub power_cycles: u64,
    /// Openings behind one that did not close the medium.
    pub unsafe_shutdowns: u64,
    /// Seconds for which the medium was open.
    pub power_on_seconds: u64,
}

/// The part of the counters that this opening adds, and its end.
#[derive(Debug, Default)]
pub(crate) struct HealthState {
    /// Counts of reads and writes of hosts since the opening.
    pub(crate) traffic: HealthCounters,
    /// True while the device closes.
    pub(crate) is_closing: bool,
    /// True if the last commit record says that the device closed.
    pub(crate) is_closed: bool,
}

/// The counters in a commit record.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct HealthLayout {
    version: U32,
    zero: U32,
    counters: [U64; 8],
}

const _: () = assert!(size_of::<HealthLayout>() == 72);

impl From<Option<HealthCounters>> for HealthLayout {
    fn from(health: Option<HealthCounters>) -> Self {
        let version = U32::new(if health.is_some() { HEALTH_VERSION } else { 0 });
        Self { version, zero: U32::ZERO, counters: health.unwrap_or_default().fields().map(U64::new) }
    }
}

impl HealthLayout {
    /// Returns the counters, if there are any of this version.
    pub(super) fn counters(&self) -> Option<HealthCounters> {
        let counters = HealthCounters::from_fields(self.counters.map(U64::get));
        (self.version.get() == HEALTH_VERSION).then_some(counters)
    }
}

impl HealthCounters {
    /// Makes counters from those in the order of the layout.
    fn from_fields(fields: [u64; 8]) -> Self {
        let [
            reads,
            bytes_read,
            writes,
            bytes_written,
            media_errors,
            power_cycles,
            unsafe_shutdowns,
            power_on_seconds,
        ] = fields;
        Self {
            reads,
            bytes_read,
            writes,
            bytes_written,
            media_errors,
            power_cycles,
            unsafe_shutdowns,
            power_on_seconds,
        }
    }

    /// Returns the counters in the order of the layout.
    fn fields(self) -> [u64; 8] {
        [
            self.reads,
            self.bytes_read,
            self.writes,
            self.bytes_written,
            self.media_errors,
            self.power_cycles,
            self.unsafe_shutdowns,
            self.power_on_seconds,
        ]
    }
}

/// The sums; a counter that a medium brings is input, and stays at its largest value.
impl Add for HealthCounters {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        let (fields, more) = (self.fields(), more.fields());
        Self::from_fields(std::array::from_fn(|at| fields[at].saturating_add(more[at])))
    }
}
