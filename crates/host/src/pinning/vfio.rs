//! VFIO type 1: memory mapped at I/O virtual addresses, behind an IOMMU.
//!
//! Input: ranges of mapped memory. Output: the addresses by which the devices of a container access them. Invariant:
//! the container's records of what is mapped and the kernel's mappings are the same, down to the byte. When they turn
//! out to differ, the address is never used again (an unmap that came back short) or nothing is ever mapped again (an
//! address that was taken): a device that writes through a stale mapping corrupts memory silently.
//!
//! # The number of mappings
//! A container has room for 65,535 mappings by default (`dma_entry_limit` of `vfio_iommu_type1`), of any length. One
//! mapping takes a whole range: chunks of 4 MiB reach 256 GiB under the default limit, where pages of 4 KiB would end at
//! 256 MiB.
//!
//! # What this does not do
//! It does not keep memory mapped in the process; the kernel holds its pages until they are unmapped here.

mod container_limits;
mod device;
mod error;
mod interrupts;
mod ioctls;
mod iova_allocator;
mod kernel;
mod simulated;

#[cfg(test)]
mod tests;

pub use container_limits::{ContainerLimits, MAPPINGS_DEFAULT};
pub use device::{AssignedDevice, BusMastering, DeviceRegion, PciClass};
pub use error::{OpenError, UnmapError};
pub use kernel::KernelIommu;
pub use simulated::SimulatedIommu;

use super::{MemoryRange, PinError};
use crate::sync::{Mutex, MutexGuard};
use crate::width::narrow;
use iova_allocator::IovaAllocator;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::PoisonError;

const MAP: &str = "VFIO map";

/// The mapping operations of a kernel with VFIO. Errors are the kernel's numbers.
pub trait IommuBackend: Send + Sync + fmt::Debug {
    /// Maps memory for reading and writing at an I/O virtual address (VFIO_IOMMU_MAP_DMA).
    ///
    /// # Errors
    /// Nothing is mapped.
    fn map(&self, memory: MemoryRange, iova: u64) -> Result<(), i32>;

    /// Unmaps a range (VFIO_IOMMU_UNMAP_DMA). Returns how many bytes of it were mapped and no longer are.
    ///
    /// # Errors
    /// The state of the range is then unknown.
    fn unmap(&self, iova: u64, bytes: u64) -> Result<u64, i32>;
}

/// Memory mapped at an I/O virtual address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IovaMapping {
    /// The I/O virtual address of the first byte.
    pub iova: u64,
    /// The memory.
    pub memory: MemoryRange,
}

/// An address space that devices share, and its mappings.
pub struct VfioContainer<K> {
    kernel: K,
    limits: ContainerLimits,
    records: Mutex<MappingRecords>,
}

#[derive(Debug)]
struct MappingRecords {
    addresses: IovaAllocator,
    mapped: BTreeMap<u64, MemoryRange>,
    /// The number of mappings that the kernel may or may not still have.
    lost: u32,
    /// The error after which nothing is mapped any more.
    stopped: Option<PinError>,
}

impl<K: IommuBackend> VfioContainer<K> {
    /// Creates the records of a kernel's container in which nothing is mapped.
    pub fn new(kernel: K, limits: ContainerLimits) -> Self {
        let addresses = IovaAllocator::from_ranges(&limits.ranges, limits.page_bytes());
        let books = MappingRecords { addresses, mapped: BTreeMap::new(), lost: 0, stopped: None };
        Self { kernel, limits, records: Mutex::new(books) }
    }

    /// Returns the limits of the container.
    #[must_use]
    pub fn limits(&self) -> &ContainerLimits {
        &self.limits
    }

    /// Returns the kernel interface.
    #[must_use]
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    /// Returns the number of mappings that can still be made.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.locked().room(&self.limits)
    }

    /// Returns the bytes that are mapped.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.locked().mapped.values().map(|memory| memory.bytes()).sum()
    }

    /// Maps a range as one mapping. The I/O virtual address is congruent to the process's address modulo the largest
    /// page that fits, so that the IOMMU can use pages of that size.
    ///
    /// # Errors
    /// [`PinError`] names the remedy. An address that is free in the records but taken in the kernel (EEXIST) stops the
    /// container: every later call returns the same error.
    pub fn map(&self, memory: MemoryRange) -> Result<IovaMapping, PinError> {
        let mut books = self.locked();
        self.map_locked(&mut books, memory)
    }

    /// Unmaps a mapping as a whole.
    ///
    /// # Errors
    /// The mapping is not one of this container; or the kernel refused, or unmapped another number of bytes: then a
    /// device may still access the memory, which must never be used for anything else.
    pub fn unmap(&self, mapping: IovaMapping) -> Result<(), UnmapError> {
        let mut books = self.locked();
        self.unmap_locked(&mut books, mapping)
    }

    fn map_locked(&self, books: &mut MappingRecords, memory: MemoryRange) -> Result<IovaMapping, PinError> {
        if let Some(error) = books.stopped {
            return Err(error);
        }
        let refused = |errno| PinError::new(MAP, memory.bytes(), errno);
        let page = self.limits.page_bytes();
        let (address, bytes) = (memory.address() as u64, memory.bytes() as u64);
        if bytes == 0 || !address.is_multiple_of(page) || !bytes.is_multiple_of(page) {
            return Err(refused(libc::EINVAL));
        }
        if books.room(&self.limits) == 0 {
            return Err(refused(libc::ENOSPC));
        }
        let mut aligned = self.limits.alignments(bytes);
        let found = aligned.find_map(|align| books.addresses.allocate(bytes, align, address % align));
        let iova = found.ok_or(refused(libc::EADDRNOTAVAIL))?;
        match self.kernel.map(memory, iova) {
            Ok(()) => {
                let earlier = books.mapped.insert(iova, memory);
                assert!(earlier.is_none(), "I/O virtual address {iova:#x} was allocated while it was mapped");
                Ok(IovaMapping { iova, memory })
            }
            Err(errno) => {
                let error = refused(errno);
                if errno == libc::EEXIST {
                    // Another mapping, or a stale one of this container, is there. The address stays taken.
                    books.stopped = Some(error);
                } else {
                    books.addresses.free(iova, bytes);
                }
                Err(error)
            }
        }
    }

    fn unmap_locked(&self, books: &mut MappingRecords, mapping: IovaMapping) -> Result<(), UnmapError> {
        let IovaMapping { iova, memory } = mapping;
        if books.mapped.get(&iova) != Some(&memory) {
            return Err(UnmapError::Unknown { iova });
        }
        let bytes = memory.bytes() as u64;
        let answer = self.kernel.unmap(iova, bytes);
        books.mapped.remove(&iova);
        match answer {
            Ok(unmapped) if unmapped == bytes => {
                books.addresses.free(iova, bytes);
                Ok(())
            }
            Ok(unmapped) => {
                books.lost += 1;
                Err(UnmapError::Short { iova, bytes, unmapped })
            }
            Err(errno) => {
                books.lost += 1;
                Err(UnmapError::Refused { iova, bytes, errno })
            }
        }
    }

    fn locked(&self) -> MutexGuard<'_, MappingRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MappingRecords {
    fn room(&self, limits: &ContainerLimits) -> u32 {
        limits.mappings_max.saturating_sub(narrow(self.mapped.len())).saturating_sub(self.lost)
    }
}

impl<K> fmt::Debug for VfioContainer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let books = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        write!(f, "VfioContainer({} mappings, {} lost)", books.mapped.len(), books.lost)
    }
}
