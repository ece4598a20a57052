//! The pool of a device behind an IOMMU: each chunk is one mapping of its container.
//!
//! Input: a container. Output: buffers with the device's addresses. Invariant: the pool, which is never freed as a
//! whole, keeps no device open; closing the container removes all its mappings.

use crate::buffer_pool::BufferPool;
use crate::error::IoError;
use crate::pool_settings::PoolSettings;
use headwater_dma::pool::{
    ChunkRule, MemoryPinner, PinError, PinToken, PoolConfig, STATIC_BYTES_DEFAULT, VfioPinner,
};
use headwater_host::pinning::vfio::{KernelIommu, VfioContainer};
use std::sync::{Arc, Weak};

/// Bytes of the first chunk, and the range in which the chunk size adapts to the load.
const CHUNK: usize = 2 << 20;
const CHUNKS: ChunkRule = ChunkRule::Adaptive { min: 2 << 20, max: 64 << 20 };
/// Maximum bytes of a device's buffers.
const CAP: usize = 4 << 30;

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
        static_bytes: STATIC_BYTES_DEFAULT,
        chunk: CHUNK,
        chunk_rule: CHUNKS,
        cap: CAP,
        cap_max: CAP,
        pinner: Arc::new(ContainerPinner { container: Arc::downgrade(container) }),
        ..PoolConfig::default()
    })?)
}
