//! The description of a container: valid addresses, page sizes and the limit of mappings.
//!
//! Input: the result of VFIO_IOMMU_GET_INFO, a structure followed by a chain of capabilities. Output: [`ContainerLimits`].
//! Invariant: no chain makes this read beyond the result or loop for ever.

use std::ops::RangeInclusive;

/// The limit of mappings of a container that does not report one.
pub const MAPPINGS_DEFAULT: u32 = 65_535;
/// The size of the result buffer: 512 ranges fit.
pub(super) const INFO_BYTES_MAX: usize = 16_384;

/// Flags and the capability ids used here (`linux/vfio.h`).
const FLAG_PAGE_SIZES: u32 = 1;
const FLAG_CAPABILITIES: u32 = 2;
const CAPABILITY_RANGES: u16 = 1;
const CAPABILITY_AVAILABLE: u16 = 3;
const CAPABILITIES_MAX: usize = 64;

/// Page sizes to which addresses are aligned: 1 GiB and 2 MiB.
const LARGE_PAGES: [u64; 2] = [1 << 30, 2 << 20];
const SMALL_PAGE: u64 = 4_096;

/// The limits of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerLimits {
    /// Addresses that the IOMMU translates.
    pub ranges: Vec<RangeInclusive<u64>>,
    /// The page sizes, a bit for each power of two.
    pub page_sizes: u64,
    /// The maximum number of mappings.
    pub mappings_max: u32,
}

impl ContainerLimits {
    /// Returns the unit of mappings in bytes: the smallest page, at least 4 KiB.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        let smallest = self.page_sizes & self.page_sizes.wrapping_neg();
        smallest.max(SMALL_PAGE)
    }

    /// Returns the alignments for a mapping of `bytes` bytes, the best first.
    pub(super) fn alignments(&self, bytes: u64) -> impl Iterator<Item = u64> + use<> {
        let (sizes, page) = (self.page_sizes, self.page_bytes());
        let useful = move |size: &u64| sizes & size != 0 && bytes >= *size && *size > page;
        LARGE_PAGES.into_iter().filter(useful).chain([page])
    }

    /// Parses a result of the kernel.
    pub(super) fn read(answer: &[u8]) -> Option<Self> {
        let (flags, mut at) = (read_u32(answer, 4)?, read_u32(answer, 16).unwrap_or(0));
        let sizes = read_u64(answer, 8)?;
        // A kernel that reports nothing translates 64-bit addresses in pages of 4 KiB.
        let mut limits = Self { ranges: Vec::new(), page_sizes: SMALL_PAGE, mappings_max: MAPPINGS_DEFAULT };
        if flags & FLAG_PAGE_SIZES != 0 && sizes != 0 {
            limits.page_sizes = sizes;
        }
        let mut described = false;
        for _ in 0..CAPABILITIES_MAX {
            if flags & FLAG_CAPABILITIES == 0 || at == 0 {
                break;
            }
            let here = answer.get(at as usize..)?;
            let kind = u16::from_le_bytes(here.get(..2)?.try_into().ok()?);
            match kind {
                CAPABILITY_RANGES => {
                    described = true;
                    limits.ranges = ranges(here)?;
                }
                CAPABILITY_AVAILABLE => limits.mappings_max = read_u32(here, 8)?,
                _ => {}
            }
            at = read_u32(here, 4)?;
        }
        if !described {
            limits.ranges.push(0..=u64::MAX);
        }
        Some(limits)
    }
}

/// Parses `struct vfio_iommu_type1_info_cap_iova_range`.
fn ranges(capability: &[u8]) -> Option<Vec<RangeInclusive<u64>>> {
    let count = read_u32(capability, 8)? as usize;
    let end = count.checked_mul(16)?.checked_add(16)?;
    let entries = capability.get(16..end)?.chunks_exact(16);
    entries.map(|entry| Some(read_u64(entry, 0)?..=read_u64(entry, 8)?)).collect()
}

/// Reads a number of the result; the supported kernels are little-endian.
fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    field.try_into().ok().map(u32::from_le_bytes)
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(8)?)?;
    field.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of a virtual Intel IOMMU of 39 bits.
    fn answer() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut words = |list: &[u32]| list.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        words(&[24 + 48 + 12, 3, 0xffff_f000, 0xffff_ffff, 24, 0]);
        // Two ranges around the interrupts' window, and a chain that continues.
        words(&[0x1_0001, 72, 2, 0, 0, 0, 0xfedf_ffff, 0, 0xfef0_0000, 0, 0xffff_ffff, 0x7f]);
        words(&[0x1_0003, 0, 65_000]);
        bytes
    }

    #[test]
    fn ranges_page_sizes_and_mapping_limit_are_parsed() {
        let limits = ContainerLimits::read(&answer()).unwrap();
        assert_eq!(limits.ranges, [0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff]);
        assert_eq!((limits.page_bytes(), limits.mappings_max), (4_096, 65_000));
        assert!(limits.alignments(3 << 20).eq([2 << 20, 4_096]));
        assert!(limits.alignments(1 << 30).eq([1 << 30, 2 << 20, 4_096]));
        assert!(limits.alignments(4_096).eq([4_096]));
    }

    #[test]
    fn iommu_without_description_has_all_addresses_and_default_limit() {
        let mut old = answer();
        old[4] = 0;
        let limits = ContainerLimits::read(&old[..24]).unwrap();
        assert_eq!(limits.ranges, [0..=u64::MAX]);
        assert_eq!((limits.page_bytes(), limits.mappings_max), (4_096, MAPPINGS_DEFAULT));
    }

    #[test]
    fn malformed_result_is_never_read_beyond_its_end_or_for_ever() {
        let whole = answer();
        for end in 0..whole.len() {
            let _ = ContainerLimits::read(&whole[..end]);
        }
        let mut round = answer();
        round[24 + 4] = 24;
        assert!(ContainerLimits::read(&round).is_some());
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let mut bytes = answer();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            let _ = ContainerLimits::read(&bytes);
        }
    }
}
