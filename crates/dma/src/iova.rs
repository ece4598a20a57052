//! I/O virtual addresses: the addresses by which a client's commands name its memory, resolved through that client's
//! table.
//!
//! Input: regions registered at an address; ranges from commands. Output: copies, or [`ClientSegments`] that keep their
//! regions mapped while a transfer runs. Invariant: regions never overlap, and a range resolves only if all of it is
//! registered.
//!
//! # What this does not do
//! It moves bytes only through `host::shared_memory`, and does not parse PRPs or SGLs.

mod contiguous;
mod segments;

pub use segments::{ClientSegment, ClientSegments, NotDeviceMapped, RegionPiece};

use headwater_host::shared_memory::{SharedMemory, SharedPages};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// An address in a client's own address space. Has no meaning without that client's [`ClientMemory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Iova(pub u64);

impl fmt::Display for Iova {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iova {:#x}", self.0)
    }
}

/// One contiguous range of client memory that a command names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IovaRange {
    /// First address.
    pub start: Iova,
    /// Length in bytes.
    pub bytes: u32,
}

/// Maximum number of regions of one client.
pub const REGIONS_MAX: usize = 65_536;

/// An error for a command that names memory its client has not registered. NVMe calls it Data Transfer Error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataTransferError {
    /// Some address of the range is in no region.
    #[error(
        "{bytes} bytes at {start}: {unmapped} is in no registered region; register it before the command"
    )]
    Unmapped {
        /// First address of the range.
        start: Iova,
        /// Length of the range.
        bytes: u64,
        /// First address that is in no region.
        unmapped: Iova,
    },
    /// The range extends past the end of the address space.
    #[error("{bytes} bytes at {start} extend past the end of the address space; send a shorter range")]
    Overflow {
        /// First address of the range.
        start: Iova,
        /// Length of the range.
        bytes: u64,
    },
    /// The device may only read the memory.
    #[error("{bytes} bytes at {start} lie in memory that the device may only read; map it writable")]
    ReadOnly {
        /// First address of the range.
        start: Iova,
        /// Length of the range.
        bytes: u64,
    },
    /// The range lies in several regions whose pages cannot be mapped contiguously.
    #[error(
        "{bytes} bytes at {start} lie in several regions that cannot be mapped contiguously; register them as one"
    )]
    Scattered {
        /// First address of the range.
        start: Iova,
        /// Length of the range.
        bytes: u64,
    },
}

/// The reason why a region could not be registered or revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Another region has some of these addresses.
    #[error(
        "{bytes} bytes at {start} overlap the region at {other}; revoke that first or choose another address"
    )]
    Overlap {
        /// Requested start of the region.
        start: Iova,
        /// Its length.
        bytes: u64,
        /// Start of the existing region.
        other: Iova,
    },
    /// The region extends past the end of the address space.
    #[error("{bytes} bytes at {start} extend past the end of the address space; choose a lower address")]
    Overflow {
        /// Requested start of the region.
        start: Iova,
        /// Its length.
        bytes: u64,
    },
    /// The client has reached its limit of regions.
    #[error("the client has its limit of {REGIONS_MAX} regions; revoke one or register larger ones")]
    Full,
    /// No region starts at this address.
    #[error("no region starts at {start}; name the address it was registered at")]
    Missing {
        /// The address.
        start: Iova,
    },
}

/// A device's IOMMU mapping of a region: the device can access the memory until this is dropped.
pub trait DeviceMapping: Send + Sync + fmt::Debug {
    /// Returns the device address of the region's first byte.
    fn address(&self) -> u64;
}

/// The access that the device has to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionAccess {
    /// Read and write it.
    ReadWrite,
    /// Read it.
    ReadOnly,
}

#[derive(Debug)]
struct ClientRegion {
    /// Dropped before `memory`, so that the device mapping ends before the memory is unmapped here.
    device_mapping: Option<Box<dyn DeviceMapping>>,
    memory: SharedMemory,
    /// The offset of its first byte in `memory`.
    offset: usize,
    access: RegionAccess,
    /// Length in bytes, as a `u64`.
    bytes: u64,
}

/// A revoked region that transfers in flight may still use.
#[derive(Debug)]
#[must_use = "the client may reuse its memory only when no operation in flight uses it"]
pub struct RegionRevocation {
    region: Arc<ClientRegion>,
}

impl RegionRevocation {
    /// Returns true if no operation in flight uses the region. Once true, it stays true.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        Arc::strong_count(&self.region) == 1
    }
}

/// The memory of one client that the device may access.
#[derive(Debug, Default)]
pub struct ClientMemory {
    /// Regions by first address.
    regions: BTreeMap<Iova, Arc<ClientRegion>>,
}

impl ClientMemory {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a region at the addresses from `start` on.
    ///
    /// # Errors
    /// [`RegisterError`] if addresses are registered already or extend past the end, or the client has too many
    /// regions. Nothing changes.
    pub fn register(&mut self, start: Iova, memory: SharedMemory) -> Result<(), RegisterError> {
        let bytes = memory.bytes();
        let all = SharedPages { region: memory, offset: 0, bytes };
        self.insert_region(start, all, RegionAccess::ReadWrite, None)
    }

    /// Registers a part of a mapping, which other regions may share.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    ///
    /// # Panics
    /// If the part does not lie in the mapping: the caller has mapped it.
    pub fn register_part(
        &mut self,
        start: Iova,
        part: SharedPages,
        access: RegionAccess,
    ) -> Result<(), RegisterError> {
        let end = part.offset.checked_add(part.bytes);
        let (offset, bytes, mapped) = (part.offset, part.bytes, part.region.bytes());
        assert!(
            end.is_some_and(|end| end <= mapped),
            "{bytes} bytes at {offset} do not lie in a mapping of {mapped} bytes"
        );
        self.insert_region(start, part, access, None)
    }

    /// Registers a region together with the device's mapping of it. The mapping is dropped when the region is revoked
    /// or the client is removed, and no operation in flight uses it.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_mapped(
        &mut self,
        start: Iova,
        memory: SharedMemory,
        device_mapping: Box<dyn DeviceMapping>,
    ) -> Result<(), RegisterError> {
        let bytes = memory.bytes();
        let all = SharedPages { region: memory, offset: 0, bytes };
        self.insert_region(start, all, RegionAccess::ReadWrite, Some(device_mapping))
    }

    fn insert_region(
        &mut self,
        start: Iova,
        part: SharedPages,
        access: RegionAccess,
        device_mapping: Option<Box<dyn DeviceMapping>>,
    ) -> Result<(), RegisterError> {
        let SharedPages { region: memory, offset, bytes } = part;
        let bytes = bytes as u64;
        // The last address must exist; so must the one after it, which keeps every sum below exact.
        let end = start.0.checked_add(bytes).ok_or(RegisterError::Overflow { start, bytes })?;
        if self.regions.len() >= REGIONS_MAX {
            return Err(RegisterError::Full);
        }
        if let Some((&other, region)) = self.regions.range(..Iova(end)).next_back()
            && other.0 + region.bytes > start.0
        {
            return Err(RegisterError::Overlap { start, bytes, other });
        }
        let region = ClientRegion { device_mapping, memory, offset, access, bytes };
        let other = self.regions.insert(start, Arc::new(region));
        assert!(other.is_none(), "two regions start at {start}");
        Ok(())
    }

    /// Removes the region registered at `start`. No range resolves to it from now on; segments resolved earlier may
    /// still be copied until [`RegionRevocation::is_drained`].
    ///
    /// # Errors
    /// [`RegisterError::Missing`] when no region starts there.
    pub fn revoke(&mut self, start: Iova) -> Result<RegionRevocation, RegisterError> {
        let region = self.regions.remove(&start).ok_or(RegisterError::Missing { start })?;
        Ok(RegionRevocation { region })
    }

    /// Returns the number of registered regions.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Resolves a range. An empty range needs no memory and resolves at any address.
    ///
    /// # Errors
    /// [`DataTransferError`] when the range is not fully registered or extends past the end of the address space.
    #[inline]
    pub fn resolve(&self, start: Iova, bytes: u64) -> Result<ClientSegments, DataTransferError> {
        let mut segments = ClientSegments::default();
        self.append(&mut segments, start, bytes)?;
        Ok(segments)
    }

    /// Resolves a range and appends it to `segments`: for data that lies in several ranges.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); then `segments` holds a part of the range and must not be used.
    pub fn append(
        &self,
        segments: &mut ClientSegments,
        start: Iova,
        bytes: u64,
    ) -> Result<(), DataTransferError> {
        let end = start.0.checked_add(bytes).ok_or(DataTransferError::Overflow { start, bytes })?;
        let mut at = start.0;
        while at < end {
            let unmapped = DataTransferError::Unmapped { start, bytes, unmapped: Iova(at) };
            let (base, region) = self.regions.range(..=Iova(at)).next_back().ok_or(unmapped)?;
            let into = at - base.0;
            if into >= region.bytes {
                return Err(unmapped);
            }
            let piece = (region.bytes - into).min(end - at);
            // Both are below the length of a mapping, which is a usize.
            let (Ok(offset), Ok(piece_bytes)) = (usize::try_from(into), usize::try_from(piece)) else {
                return Err(unmapped);
            };
            segments.push(Some(Arc::clone(region)), region.offset + offset, piece_bytes);
            at += piece;
        }
        Ok(())
    }

    /// Copies client memory into `into`: for data that must be read once before it is validated, such as a list of
    /// addresses.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    ///
    /// # Panics
    /// Never: a resolved range has the requested length.
    pub fn read(&self, start: Iova, into: &mut [u8]) -> Result<(), DataTransferError> {
        let copied = self.resolve(start, into.len() as u64)?.copy_in(0, into);
        assert_eq!(copied, into.len(), "a resolved range has the requested length");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn region(bytes: usize) -> SharedMemory {
        SharedMemory::anonymous(bytes).unwrap()
    }

    pub(super) fn register_all(regions: &[(u64, usize)]) -> ClientMemory {
        let mut memory = ClientMemory::new();
        for &(start, bytes) in regions {
            memory.register(Iova(start), region(bytes)).unwrap();
        }
        memory
    }

    #[test]
    fn overlapping_regions_are_refused() {
        let mut memory = register_all(&[(1_000, 100), (2_000, 100)]);
        for (start, bytes, other) in [
            (1_000, 100, 1_000),
            (999, 2, 1_000),
            (1_099, 1, 1_000),
            (500, 5_000, 2_000),
            (1_050, 10, 1_000),
            (2_050, 500, 2_000),
        ] {
            assert_eq!(
                memory.register(Iova(start), region(bytes)),
                Err(RegisterError::Overlap { start: Iova(start), bytes: bytes as u64, other: Iova(other) })
            );
        }
        memory.register(Iova(1_100), region(900)).unwrap();
        memory.register(Iova(999), region(1)).unwrap();
        assert_eq!(memory.regions(), 4);
    }

    /// A device mapping whose drop the test observes.
    #[derive(Debug)]
    struct TestMapping {
        address: u64,
        _alive: Arc<()>,
    }

    impl DeviceMapping for TestMapping {
        fn address(&self) -> u64 {
            self.address
        }
    }

    #[test]
    fn a_device_mapping_lives_until_no_operation_in_flight_uses_it() {
        let mut memory = register_all(&[(0, 4_096)]);
        let alive = Arc::new(());
        for (start, address) in [(4_096, 0x10_0000), (8_192, 0x70_0000)] {
            let way = Box::new(TestMapping { address, _alive: Arc::clone(&alive) });
            memory.register_mapped(Iova(start), region(4_096), way).unwrap();
        }
        let in_flight = memory.resolve(Iova(4_106), 4_096).unwrap();
        let mut runs = Vec::new();
        in_flight.device_ranges(&mut runs).unwrap();
        let run = |start, bytes| IovaRange { start: Iova(start), bytes };
        assert_eq!(runs, [run(0x10_000A, 4_086), run(0x70_0000, 10)]);
        assert_eq!(memory.resolve(Iova(4_000), 200).unwrap().device_ranges(&mut runs), Err(NotDeviceMapped));
        let revocation = memory.revoke(Iova(4_096)).unwrap();
        drop(memory);
        assert_eq!(Arc::strong_count(&alive), 3, "the command in flight holds both regions");
        drop(in_flight);
        assert!(revocation.is_drained());
        drop(revocation);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn ranges_past_the_end_of_the_address_space_are_refused() {
        let mut memory = register_all(&[(u64::MAX - 100, 100)]);
        assert!(matches!(memory.register(Iova(u64::MAX), region(1)), Err(RegisterError::Overflow { .. })));
        assert!(matches!(memory.resolve(Iova(u64::MAX - 50), 51), Err(DataTransferError::Overflow { .. })));
        assert_eq!(memory.resolve(Iova(u64::MAX - 50), 50).unwrap().bytes(), 50);
    }

    #[test]
    fn ranges_cross_neighbouring_regions_but_no_gap() {
        let memory = register_all(&[(100, 10), (110, 10), (121, 10)]);
        let segments = memory.resolve(Iova(105), 15).unwrap();
        assert_eq!((segments.pieces(), segments.bytes()), (2, 15));
        assert_eq!(segments.copy_out(0, b"abcdefghijklmnop"), 15);
        let mut back = [0; 20];
        assert_eq!(segments.copy_in(0, &mut back), 15);
        assert_eq!(&back, b"abcdefghijklmno\0\0\0\0\0");
        let mut second = [0; 4];
        assert_eq!(memory.resolve(Iova(110), 4).unwrap().copy_in(0, &mut second), 4);
        assert_eq!(&second, b"fghi");
        for (start, bytes, hole) in [(105, 16, 120), (105, 20, 120), (0, 1, 0), (99, 2, 99), (131, 1, 131)] {
            let unmapped = memory.resolve(Iova(start), bytes).unwrap_err();
            assert_eq!(
                unmapped,
                DataTransferError::Unmapped { start: Iova(start), bytes, unmapped: Iova(hole) }
            );
        }
        assert_eq!(memory.resolve(Iova(u64::MAX), 0).unwrap().pieces(), 0);
    }

    #[test]
    fn appended_ranges_are_one_sequence_of_data() {
        let memory = register_all(&[(0, 4_096), (10_000, 4_096)]);
        let places = [(10_050, 7), (20, 1), (0, 0), (10_000, 30), (4_000, 96)];
        let mut joined = ClientSegments::default();
        for (start, bytes) in places {
            memory.append(&mut joined, Iova(start), bytes).unwrap();
        }
        joined.discard(0);
        joined.discard(5);
        memory.append(&mut joined, Iova(100), 11).unwrap();
        assert_eq!((joined.pieces(), joined.bytes()), (6, 150));
        let data: Vec<u8> = (1..=150).collect();
        // In pieces of any size, at any offset.
        for step in [1, 2, 7, 64, 150, 1_000] {
            for (at, piece) in (0..).step_by(step).zip(data.chunks(step)) {
                assert_eq!(joined.copy_out(at, piece), piece.len());
            }
            let mut kept = data.clone();
            kept[134..139].fill(0);
            let mut back = vec![9; 150];
            for (at, piece) in (0..).step_by(step).zip(back.chunks_mut(step)) {
                assert_eq!(joined.copy_in(at, piece), piece.len());
            }
            assert_eq!(back, kept, "discarded bytes read as zeroes");
            let crc_of = |bytes: &[u8]| headwater_host::copy::crc32c(3, bytes);
            let (mut crc, other) = (3, data.iter().rev().copied().collect::<Vec<u8>>());
            for (at, piece) in (0..).step_by(step).zip(other.chunks(step)) {
                crc = joined.copy_out_crc32c(at, piece, crc);
            }
            assert_eq!(crc, crc_of(&other), "discarded bytes count");
            crc = 3;
            for (at, piece) in (0..).step_by(step).zip(back.chunks_mut(step)) {
                let copied;
                (copied, crc) = joined.copy_in_crc32c(at, piece, crc);
                assert_eq!(copied, piece.len());
            }
            kept.copy_from_slice(&other);
            kept[134..139].fill(0);
            assert_eq!((crc, back), (crc_of(&kept), kept));
        }
        let mut first = [0; 7];
        memory.read(Iova(10_050), &mut first).unwrap();
        assert_eq!(first, [150, 149, 148, 147, 146, 145, 144]);
        assert_eq!(joined.copy_in(150, &mut first), 0);
        assert_eq!(joined.copy_in(usize::MAX - 10, &mut first), 0);
        assert!(memory.read(Iova(4_090), &mut first).is_err());
        assert!(memory.append(&mut joined, Iova(5_000), 1).is_err());
    }

    #[test]
    fn a_revoked_region_is_quiet_when_no_operation_in_flight_uses_it() {
        let mut memory = register_all(&[(4_096, 4_096)]);
        let in_flight = memory.resolve(Iova(5_000), 10).unwrap();
        let revocation = memory.revoke(Iova(4_096)).unwrap();
        assert!(matches!(memory.resolve(Iova(5_000), 10), Err(DataTransferError::Unmapped { .. })));
        assert!(!revocation.is_drained());
        assert_eq!(in_flight.copy_out(0, b"late"), 4, "the pages are still mapped");
        drop(in_flight);
        assert!(revocation.is_drained());
        assert!(matches!(memory.revoke(Iova(4_096)), Err(RegisterError::Missing { .. })));
        memory.register(Iova(4_000), region(8_192)).unwrap();
    }
}
