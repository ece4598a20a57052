//! A pinner for memory that PCI devices access through an IOMMU.
//!
//! Input: ranges. Output: the device address of each, one mapping per chunk. Invariant: memory that was not unmapped
//! completely is never reused.

use super::{PinError, PinToken, Pinner, within_memlock};
use headwater_host::pinning::Memory;
use headwater_host::pinning::vfio::{Container, Mapping, Type1, TypeOne, UnmapError};
use std::sync::Arc;

/// A pinner that maps memory into a VFIO type 1 container.
#[derive(Debug)]
pub struct VfioType1<K = Type1> {
    container: Arc<Container<K>>,
}

impl<K> VfioType1<K> {
    /// Creates a pinner for the devices of this container.
    #[must_use]
    pub fn new(container: Arc<Container<K>>) -> Self {
        Self { container }
    }
}

impl<K: TypeOne> Pinner for VfioType1<K> {
    fn name(&self) -> &'static str {
        "vfio"
    }

    fn preflight(&self, bytes: usize) -> Result<(), PinError> {
        within_memlock(bytes)
    }

    /// Returns false: each chunk has its own device address; two adjacent in the process need not be adjacent for the
    /// device.
    fn joins(&self) -> bool {
        false
    }

    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError> {
        let mapping = self.container.map(Memory::at(address, bytes))?;
        Ok(PinToken { iova: Some(mapping.iova), ..PinToken::at(address, bytes) })
    }

    fn unpin(&self, token: PinToken) -> Result<(), PinError> {
        let PinToken { address, bytes, .. } = token;
        let Some(iova) = token.iova else {
            return Err(PinError::Short { bytes, unpinned: 0 });
        };
        let unmapped = self.container.unmap(Mapping { iova, memory: Memory::at(address, bytes) });
        unmapped.map_err(|error| match error {
            UnmapError::Short { unmapped, .. } => {
                PinError::Short { bytes, unpinned: usize::try_from(unmapped).unwrap_or(bytes) }
            }
            UnmapError::Refused { errno, .. } => PinError::from_errno(bytes, errno),
            _ => PinError::Short { bytes, unpinned: 0 },
        })
    }
}
