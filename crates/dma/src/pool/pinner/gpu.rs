//! A pinner for memory that GPUs access.
//!
//! Input: ranges. Output: ranges that are registered with the driver. Invariant: memory that the driver did not unregister is
//! never reused.

use super::{MemoryPinner, PinError, PinToken};
use headwater_host::gpu::HostRegistrations;
use headwater_host::pinning::MemoryRange;

/// A pinner that registers memory with the driver of the GPUs. Not yet run on a GPU.
#[derive(Debug)]
pub struct GpuPinner {
    registrations: HostRegistrations,
}

impl GpuPinner {
    /// Creates a pinner for the GPUs of these registrations.
    #[must_use]
    pub fn new(registrations: HostRegistrations) -> Self {
        Self { registrations }
    }
}

impl MemoryPinner for GpuPinner {
    fn name(&self) -> &'static str {
        "gpu"
    }

    /// Returns false: one transfer does not cross from one registration into the next.
    fn can_merge(&self) -> bool {
        false
    }

    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError> {
        let registered = self.registrations.register(MemoryRange::at(address, bytes));
        registered.map_err(|failure| PinError::Gpu { bytes, code: failure.code })?;
        Ok(PinToken::at(address, bytes))
    }

    fn unpin(&self, token: PinToken) -> Result<(), PinError> {
        let PinToken { address, bytes, .. } = token;
        let unregistered = self.registrations.unregister(MemoryRange::at(address, bytes));
        unregistered.map_err(|failure| PinError::Gpu { bytes, code: failure.code })
    }
}
