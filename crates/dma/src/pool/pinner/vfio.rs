//! A pinner for memory that PCI devices access through an IOMMU.
//!
//! Input: ranges. Output: the device address of each, one mapping per chunk. Invariant: memory that was not unmapped
//! completely is never reused.

use super::{MemoryPinner, PinError, PinToken, within_memlock};
use headwater_host::pinning::MemoryRange;
use headwater_host::pinning::vfio::{IommuBackend, IovaMapping, KernelIommu, UnmapError, VfioContainer};
use headwater_host::width::to_usize;
use std::sync::Arc;

/// A pinner that maps memory into a VFIO type 1 container.
#[derive(Debug)]
pub struct VfioPinner<K = KernelIommu> {
    container: Arc<VfioContainer<K>>,
}

impl<K> VfioPinner<K> {
    /// Creates a pinner for the devices of this container.
    #[must_use]
    pub fn new(container: Arc<VfioContainer<K>>) -> Self {
        Self { container }
    }
}

impl<K: IommuBackend> MemoryPinner for VfioPinner<K> {
    fn name(&self) -> &'static str {
        "vfio"
    }

    fn preflight(&self, bytes: usize) -> Result<(), PinError> {
        within_memlock(bytes)
    }

    /// Returns false: each chunk has its own device address; two adjacent in the process need not be adjacent for the
    /// device.
    fn can_merge(&self) -> bool {
        false
    }

    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError> {
        let mapping = self.container.map(MemoryRange::at(address, bytes))?;
        Ok(PinToken { iova: Some(mapping.iova), ..PinToken::at(address, bytes) })
    }

    fn unpin(&self, token: PinToken) -> Result<(), PinError> {
        let PinToken { address, bytes, .. } = token;
        let Some(iova) = token.iova else {
            return Err(PinError::Short { bytes, unpinned: 0 });
        };
        let unmapped = self.container.unmap(IovaMapping { iova, memory: MemoryRange::at(address, bytes) });
        unmapped.map_err(|error| match error {
            UnmapError::Short { unmapped, .. } => PinError::Short { bytes, unpinned: to_usize(unmapped) },
            UnmapError::Refused { errno, .. } => PinError::from_errno(bytes, errno),
            _ => PinError::Short { bytes, unpinned: 0 },
        })
    }
}
