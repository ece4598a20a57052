//! The configuration of a driver.
//!
//! Input: choices of the caller that opens a controller. Output: the same. Invariant: with any value, the driver's
//! bring-up and recovery end in bounded time.

use super::pointer_builder::SglUse;
use headwater_host::clock::Nanos;

/// Weights of the classes of weighted round robin (NVMe Base 2.0 section 5.27.1.1), 1 to 256 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArbitrationWeights {
    /// Commands of a round from queues of high priority.
    pub high: u16,
    /// Of medium priority.
    pub medium: u16,
    /// Of low priority.
    pub low: u16,
    /// Commands taken in a row from one queue, as a power of two; 7 for no limit.
    pub burst_log2: u8,
}

impl ArbitrationWeights {
    /// Returns dword 11 of Set Features.
    pub(super) fn dword(self) -> u32 {
        let field = |weight: u16| u32::from(weight.clamp(1, 256) - 1);
        field(self.high) << 24
            | field(self.medium) << 16
            | field(self.low) << 8
            | u32::from(self.burst_log2.min(7))
    }
}

/// The configuration of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverConfig {
    /// I/O queue pairs to request.
    pub io_queues: u16,
    /// Time until an I/O command is aborted, and again until the controller is reset.
    pub command_timeout: Nanos,
    /// Time until the controller is reset for an admin command without completion.
    pub admin_timeout: Nanos,
    /// Resets in a row after which the driver gives the controller up.
    pub resets_max: u32,
    /// Time in the ready state after which a controller counts as recovered and its count of resets returns to 0.
    pub settle_time: Nanos,
    /// Most bytes in one command; the controller's limit applies too.
    pub transfer_bytes_max: u64,
    /// The use of SGLs, if the controller supports them.
    pub sgl: SglUse,
    /// The weights of weighted round robin, if the controller supports it.
    pub weights: Option<ArbitrationWeights>,
}

impl Default for DriverConfig {
    fn default() -> Self {
        Self {
            io_queues: 8,
            command_timeout: Nanos::from_millis(30_000),
            admin_timeout: Nanos::from_millis(10_000),
            resets_max: 3,
            settle_time: Nanos::from_millis(10_000),
            transfer_bytes_max: 16 << 20,
            sgl: SglUse::Needed,
            weights: None,
        }
    }
}
