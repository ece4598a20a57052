//! The size of the last cache before memory, as the kernel and the processor say it.
//!
//! Input: files of the kernel, and the CPUID instruction. Output: [`LastLevelCache`]. Invariant: where both say a size, the
//! smaller one counts: a hypervisor may let the kernel see the caches of a whole socket, of which the processor reaches a part.

use super::{CPU_FOLDER, caches_of};
use std::path::Path;
use std::sync::OnceLock;

/// The size of the last-level cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastLevelCache {
    /// Bytes as the kernel says.
    pub by_kernel: Option<u64>,
    /// Bytes as the processor says.
    pub by_processor: Option<u64>,
}

impl LastLevelCache {
    /// Returns the cache of this machine, which is looked up once.
    #[must_use]
    pub fn of_this_machine() -> Self {
        static FOUND: OnceLock<LastLevelCache> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let caches = caches_of(&Path::new("/").join(CPU_FOLDER));
            Self {
                by_kernel: last_of(caches.iter().map(|cache| (cache.level, cache.bytes))),
                by_processor: last_of(processor_caches()),
            }
        })
    }

    /// Returns its bytes; `None` if neither says a size.
    #[must_use]
    pub fn bytes(self) -> Option<u64> {
        self.by_kernel.into_iter().chain(self.by_processor).min()
    }
}

/// Returns the bytes of the cache with the highest level.
fn last_of(caches: impl IntoIterator<Item = (u32, u64)>) -> Option<u64> {
    caches.into_iter().filter(|(_, bytes)| *bytes > 0).max().map(|(_, bytes)| bytes)
}

/// Returns the level and the bytes of each cache of data that the processor describes.
#[cfg(target_arch = "x86_64")]
fn processor_caches() -> Vec<(u32, u64)> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    /// The leaf of Intel's processors, and the one of AMD's with the same format.
    const LEAVES: [u32; 2] = [0x4, 0x8000_001D];
    /// More caches than any processor has.
    const CACHES_MAX: u32 = 16;
    let is_known = |leaf: u32| __cpuid(leaf & 0x8000_0000).eax >= leaf;
    let of_leaf = |leaf: u32| {
        (0..CACHES_MAX)
            .map(move |cache| __cpuid_count(leaf, cache))
            .take_while(|found| found.eax & 0x1F != 0)
            .filter_map(|found| described_cache([found.eax, found.ebx, found.ecx]))
    };
    LEAVES.into_iter().filter(|leaf| is_known(*leaf)).flat_map(of_leaf).collect()
}

/// Returns nothing: only x86-64 has the instruction.
#[cfg(not(target_arch = "x86_64"))]
fn processor_caches() -> Vec<(u32, u64)> {
    Vec::new()
}

/// Returns the level and the bytes of the cache that EAX, EBX and ECX describe (CPUID leaf 4); `None` for one of
/// instructions.
#[cfg(any(target_arch = "x86_64", test))]
fn described_cache([eax, ebx, ecx]: [u32; 3]) -> Option<(u32, u64)> {
    const INSTRUCTIONS: u32 = 2;
    let level = eax >> 5 & 0b111;
    let (line, partitions, ways) = ((ebx & 0xFFF) + 1, (ebx >> 12 & 0x3FF) + 1, (ebx >> 22) + 1);
    let lines = u64::from(ecx) + 1;
    let bytes = u64::from(line) * u64::from(partitions) * u64::from(ways) * lines;
    (eax & 0x1F != INSTRUCTIONS).then_some((level, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_described_as_by_a_zen_3() {
        // Level 1 of data and of instructions, 32 KiB each; level 2, 512 KiB; level 3, 32 MiB.
        assert_eq!(described_cache([0x121, 0x01C0_003F, 0x3F]), Some((1, 32 << 10)));
        assert_eq!(described_cache([0x122, 0x01C0_003F, 0x3F]), None);
        assert_eq!(described_cache([0x143, 0x01C0_003F, 0x3FF]), Some((2, 512 << 10)));
        assert_eq!(described_cache([0x4163, 0x03C0_003F, 0x7FFF]), Some((3, 32 << 20)));
    }

    #[test]
    fn the_smaller_size_counts_and_the_highest_level_is_the_last() {
        let found = |by_kernel, by_processor| LastLevelCache { by_kernel, by_processor }.bytes();
        assert_eq!(found(Some(256 << 20), Some(32 << 20)), Some(32 << 20));
        assert_eq!([found(Some(5), None), found(None, Some(6)), found(None, None)], [Some(5), Some(6), None]);
        assert_eq!(last_of([(1, 10), (3, 30), (2, 40), (4, 0)]), Some(30));
        assert_eq!(last_of([]), None);
        let here = LastLevelCache::of_this_machine();
        assert!(here.bytes().is_none_or(|bytes| bytes >= 16 << 10), "{here:?}");
    }
}
