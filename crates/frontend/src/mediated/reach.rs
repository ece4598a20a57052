//! How the controller reaches memory of clients: by mappings of an IOMMU.
//!
//! In: regions that clients registered. Out: the controller's address of each, for as long as somebody needs it. Invariant:
//! a region is unmapped once, when the client has given it up or is gone and no command in flight names it.

use headwater_dma::iova::Reach;
use headwater_host::foreign::Foreign;
use headwater_host::pinning::Memory;
use headwater_host::pinning::vfio::{Container, Mapping, TypeOne};
use std::fmt;
use std::sync::Arc;

/// Most bytes of a region: pinning is work of the core that serves all clients, and this is what one piece of it takes.
pub const REGION_BYTES_MAX: usize = 64 << 20;
/// Bytes of a page, of which a mapping has whole ones.
const PAGE_BYTES: usize = 4_096;

/// Whoever makes memory reachable for the controller.
pub trait Mapper: Send + fmt::Debug {
    /// Maps a region.
    ///
    /// # Errors
    /// Says why it cannot be, and what would help.
    fn map(&self, region: &Foreign) -> Result<Box<dyn Reach>, String>;
}

/// Judges the length of a region.
///
/// # Errors
/// Says what would be taken.
pub(super) fn check_length(region: &Foreign) -> Result<(), String> {
    let bytes = region.bytes();
    if !bytes.is_multiple_of(PAGE_BYTES) {
        return Err(format!("{bytes} bytes are no whole pages of {PAGE_BYTES}, which this device needs"));
    }
    if bytes > REGION_BYTES_MAX {
        return Err(format!(
            "{bytes} bytes are more than the {REGION_BYTES_MAX} of one region here; register several"
        ));
    }
    Ok(())
}

#[derive(Debug)]
struct Mapped<K: TypeOne> {
    container: Arc<Container<K>>,
    mapping: Mapping,
}

impl<K: TypeOne + 'static> Mapper for Arc<Container<K>> {
    fn map(&self, region: &Foreign) -> Result<Box<dyn Reach>, String> {
        let memory = Memory::at(region.address(), region.bytes());
        let mapping = Container::map(self, memory).map_err(|error| error.to_string())?;
        Ok(Box::new(Mapped { container: Self::clone(self), mapping }))
    }
}

impl<K: TypeOne> Reach for Mapped<K> {
    fn address(&self) -> u64 {
        self.mapping.iova
    }
}

impl<K: TypeOne> Drop for Mapped<K> {
    fn drop(&mut self) {
        // The container never gives such an address out again, and the kernel keeps the pages.
        if let Err(error) = self.container.unmap(self.mapping) {
            tracing::error!(%error, "a region of a client stays mapped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_dma::iova::{ClientMemory, Iova};
    use headwater_host::pinning::vfio::{Limits, MAPPINGS_DEFAULT, SimulatedType1};

    #[test]
    fn a_region_is_mapped_until_its_last_command_is_over() {
        let limits = Limits {
            ranges: vec![0x1_0000..=0xFFFF_FFFF],
            page_sizes: 4_096,
            mappings_max: MAPPINGS_DEFAULT,
        };
        let container = Arc::new(Container::new(SimulatedType1::new(limits.clone()), limits));
        let region = Foreign::anonymous(8_192).unwrap();
        check_length(&region).unwrap();
        let reach = container.map(&region).unwrap();
        let address = reach.address();
        let found = |at| container.kernel().translate(at);
        assert_eq!(found(address + 4_097), Some(region.address() + 4_097));
        let mut memory = ClientMemory::new();
        memory.register_with(Iova(7 << 20), region, reach).unwrap();
        let in_flight = memory.resolve(Iova((7 << 20) + 5_000), 100).unwrap();
        drop(memory);
        assert!(found(address).is_some(), "a command in flight names it");
        drop(in_flight);
        assert_eq!((found(address), container.kernel().mappings()), (None, 0));
    }

    #[test]
    fn regions_that_cannot_be_mapped_say_what_would_help() {
        let error = check_length(&Foreign::anonymous(5_000).unwrap()).unwrap_err();
        assert!(error.contains("whole pages"), "{error}");
        let error = check_length(&Foreign::anonymous(REGION_BYTES_MAX + 4_096).unwrap()).unwrap_err();
        assert!(error.contains("register several"), "{error}");
    }
}
