//! What a driver is told before it begins.
//!
//! In: choices of whoever opens a controller. Out: the same. Invariant: every value leads to a driver that ends.

use super::describe::SglUse;
use headwater_host::clock::Nanos;

/// Weights of the classes of weighted round robin (NVMe Base 2.0 section 5.27.1.1), 1 to 256 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Commands of a round from queues of high priority.
    pub high: u16,
    /// Of medium priority.
    pub medium: u16,
    /// Of low priority.
    pub low: u16,
    /// Commands taken in a row from one queue, as a power of two; 7 for no limit.
    pub burst_log2: u8,
}

impl Weights {
    /// Dword 11 of Set Features.
    pub(super) fn dword(self) -> u32 {
        let field = |weight: u16| u32::from(weight.clamp(1, 256) - 1);
        field(self.high) << 24
            | field(self.medium) << 16
            | field(self.low) << 8
            | u32::from(self.burst_log2.min(7))
    }
}

/// How a controller is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverConfig {
    /// I/O queue pairs to ask for.
    pub io_queues: u16,
    /// How long an I/O command may take before it is aborted, and how long again before the controller is reset.
    pub command_timeout: Nanos,
    /// How long an admin command may take before the controller is reset.
    pub admin_timeout: Nanos,
    /// Resets in a row after which the controller is given up.
    pub resets_max: u32,
    /// A controller that was ready for so long did recover: its resets are counted anew.
    pub settle: Nanos,
    /// Most bytes in one command, whatever the controller says.
    pub transfer_bytes_max: u64,
    /// Where SGLs are used if the controller has them.
    pub sgl: SglUse,
    /// Weighted round robin with these weights, where the controller has it.
    pub weights: Option<Weights>,
}

impl Default for DriverConfig {
    fn default() -> Self {
        Self {
            io_queues: 8,
            command_timeout: Nanos::from_millis(30_000),
            admin_timeout: Nanos::from_millis(10_000),
            resets_max: 3,
            settle: Nanos::from_millis(10_000),
            transfer_bytes_max: 16 << 20,
            sgl: SglUse::Needed,
            weights: None,
        }
    }
}
