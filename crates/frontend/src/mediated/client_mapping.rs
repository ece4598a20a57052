//! IOMMU mappings of client memory for the controller.
//!
//! Input: regions that clients registered. Output: the controller's address of each, while it is in use. Invariant: a
//! region is unmapped once, after the client has released it or is gone, and when no command in flight uses it.

use headwater_dma::iova::DeviceMapping;
use headwater_host::pinning::MemoryRange;
use headwater_host::pinning::vfio::{IommuBackend, IovaMapping, VfioContainer};
use headwater_host::shared_memory::SharedMemory;
use std::fmt;
use std::sync::Arc;

/// Maximum bytes of a region: pinning one blocks the core that serves all clients, so this bounds the delay.
pub const REGION_BYTES_MAX: usize = 64 << 20;
/// Bytes of a page, the granularity of a mapping.
const PAGE_BYTES: usize = 4_096;

/// A mapper of memory for the controller.
pub trait MemoryMapper: Send + fmt::Debug {
    /// Maps a region.
    ///
    /// # Errors
    /// The reason of the refusal, and a remedy.
    fn map(&self, region: &SharedMemory) -> Result<Box<dyn DeviceMapping>, String>;
}

/// Validates the length of a region.
///
/// # Errors
/// The accepted lengths.
pub(super) fn validate_length(region: &SharedMemory) -> Result<(), String> {
    let bytes = region.bytes();
    if !bytes.is_multiple_of(PAGE_BYTES) {
        return Err(format!(
            "{bytes} bytes are not whole pages of {PAGE_BYTES} bytes, as this device requires"
        ));
    }
    if bytes > REGION_BYTES_MAX {
        return Err(format!(
            "{bytes} bytes exceed the limit of {REGION_BYTES_MAX} bytes of one region; register several"
        ));
    }
    Ok(())
}

#[derive(Debug)]
struct ClientRegionMapping<K: IommuBackend> {
    container: Arc<VfioContainer<K>>,
    mapping: IovaMapping,
}

impl<K: IommuBackend + 'static> MemoryMapper for Arc<VfioContainer<K>> {
    fn map(&self, region: &SharedMemory) -> Result<Box<dyn DeviceMapping>, String> {
        let memory = MemoryRange::at(region.address(), region.bytes());
        let mapping = VfioContainer::map(self, memory).map_err(|error| error.to_string())?;
        Ok(Box::new(ClientRegionMapping { container: Self::clone(self), mapping }))
    }
}

impl<K: IommuBackend> DeviceMapping for ClientRegionMapping<K> {
    fn address(&self) -> u64 {
        self.mapping.iova
    }
}

impl<K: IommuBackend> Drop for ClientRegionMapping<K> {
    fn drop(&mut self) {
        // The container never reuses such an address, and the kernel keeps the pages.
        if let Err(error) = self.container.unmap(self.mapping) {
            tracing::error!(%error, "unmapping a client region failed; it stays mapped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_dma::iova::{ClientMemory, Iova};
    use headwater_host::pinning::vfio::{ContainerLimits, MAPPINGS_DEFAULT, SimulatedIommu};

    #[test]
    fn a_region_stays_mapped_until_its_last_command_completes() {
        let limits = ContainerLimits {
            ranges: vec![0x1_0000..=0xFFFF_FFFF],
            page_sizes: 4_096,
            mappings_max: MAPPINGS_DEFAULT,
        };
        let container = Arc::new(VfioContainer::new(SimulatedIommu::new(limits.clone()), limits));
        let region = SharedMemory::anonymous(8_192).unwrap();
        validate_length(&region).unwrap();
        let reach = container.map(&region).unwrap();
        let address = reach.address();
        let found = |at| container.kernel().translate(at);
        assert_eq!(found(address + 4_097), Some(region.address() + 4_097));
        let mut memory = ClientMemory::new();
        memory.register_mapped(Iova(7 << 20), region, reach).unwrap();
        let in_flight = memory.resolve(Iova((7 << 20) + 5_000), 100).unwrap();
        drop(memory);
        assert!(found(address).is_some(), "unmapped while a command in flight uses it");
        drop(in_flight);
        assert_eq!((found(address), container.kernel().mappings()), (None, 0));
    }

    #[test]
    fn an_invalid_region_length_is_refused_with_a_remedy() {
        let error = validate_length(&SharedMemory::anonymous(5_000).unwrap()).unwrap_err();
        assert!(error.contains("whole pages"), "{error}");
        let error = validate_length(&SharedMemory::anonymous(REGION_BYTES_MAX + 4_096).unwrap()).unwrap_err();
        assert!(error.contains("register several"), "{error}");
    }
}
