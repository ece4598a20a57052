//! Memory that PCI devices reach through an IOMMU.
//!
//! In: ranges. Out: the device's address of each, one mapping a chunk. Invariant: what did not come back whole from the
//! device is never used for anything else.

use super::{PinError, PinToken, Pinner, within_memlock};
use headwater_host::pinning::Memory;
use headwater_host::pinning::vfio::{Container, Mapping, Type1, TypeOne, UnmapError};
use std::sync::Arc;

/// Maps memory into a container of VFIO type 1.
#[derive(Debug)]
pub struct VfioType1<K = Type1> {
    container: Arc<Container<K>>,
}

impl<K> VfioType1<K> {
    /// A pinner for the devices of this container.
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

    /// Each chunk has an address of its own; two that touch in the process need not touch for the device.
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
