//! The pool of a device behind an IOMMU: each chunk is one mapping of its container.
//!
//! Input: a container. Output: buffers with the device's addresses. Invariant: the pool, which is never freed as a
//! whole, keeps no device open; closing the container removes all its mappings.

use crate::buffer_pool::BufferPool;
use crate::error::IoError;
use crate::pool_settings::{PoolDefaults, PoolSettings};
use headwater_dma::pool::{MemoryPinner, PinError, PinToken, PoolConfig, VfioPinner};
use headwater_host::pinning::vfio::{KernelIommu, VfioContainer};
use std::sync::{Arc, Weak};

/// A pinner that maps chunks in a container as long as the container exists.
#[derive(Debug)]
struct ContainerPinner {
    container: Weak<VfioContainer<KernelIommu>>,
}

impl ContainerPinner {
    fn type1(&self) -> Option<VfioPinner> {
        self.container.upgrade().map(VfioPinner::new)
    }
}

impl MemoryPinner for ContainerPinner {
    fn name(&self) -> &'static str {
        "vfio"
    }

    fn preflight(&self, bytes: usize) -> Result<(), PinError> {
        self.type1().map_or(Ok(()), |type1| type1.preflight(bytes))
    }

    fn can_merge(&self) -> bool {
        false
    }

    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError> {
        let type1 = self.type1().ok_or(PinError::Refused { bytes, errno: 0 })?;
        type1.pin(address, bytes)
    }

    fn unpin(&self, token: PinToken) -> Result<(), PinError> {
        // Closing the container removed all mappings.
        self.type1().map_or(Ok(()), |type1| type1.unpin(token))
    }
}

/// Opens a pool for the devices of a container.
pub(super) fn open(
    container: &Arc<VfioContainer<KernelIommu>>,
    settings: &PoolSettings,
) -> Result<BufferPool, IoError> {
    BufferPool::open(settings.apply(PoolConfig {
        pinner: Arc::new(ContainerPinner { container: Arc::downgrade(container) }),
        ..PoolDefaults::PINNED.config()
    })?)
}
