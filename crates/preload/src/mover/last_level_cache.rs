//! The size of the last cache before memory, as the processor says it.
//!
//! Input: the CPUID instruction. Output: bytes. Invariant: no file is opened and nothing is allocated, so that the start of a
//! program can ask. The library names no other crate: `topology` of `headwater-host` reads the same leaves, change both.

use std::arch::x86_64::{__cpuid, __cpuid_count};

/// The leaf of Intel's processors, and the one of AMD's with the same format.
const LEAVES: [u32; 2] = [0x4, 0x8000_001D];
/// More caches than any processor has.
const CACHES_MAX: u32 = 16;

/// Returns the bytes of the cache of data with the highest level; `None` if the processor describes none.
pub(super) fn last_level_cache_bytes() -> Option<usize> {
    let is_known = |leaf: u32| __cpuid(leaf & 0x8000_0000).eax >= leaf;
    let of_leaf = |leaf: u32| {
        (0..CACHES_MAX)
            .map(move |cache| __cpuid_count(leaf, cache))
            .take_while(|found| found.eax & 0x1F != 0)
            .filter_map(|found| described_cache([found.eax, found.ebx, found.ecx]))
    };
    last_of(LEAVES.into_iter().filter(|leaf| is_known(*leaf)).flat_map(of_leaf))
}

/// Returns the bytes of the cache with the highest level.
fn last_of(caches: impl Iterator<Item = (u32, u64)>) -> Option<usize> {
    let (_, bytes) = caches.filter(|(_, bytes)| *bytes > 0).max()?;
    usize::try_from(bytes).ok()
}

/// Returns the level and the bytes of the cache that EAX, EBX and ECX describe; `None` for one of instructions.
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
    fn caches_are_described_as_by_a_zen_3_and_the_highest_level_is_the_last() {
        let described = [
            // Level 1 of data and of instructions, 32 KiB each; level 3, 32 MiB; level 2, 512 KiB.
            [0x121, 0x01C0_003F, 0x3F],
            [0x122, 0x01C0_003F, 0x3F],
            [0x4163, 0x03C0_003F, 0x7FFF],
            [0x143, 0x01C0_003F, 0x3FF],
        ];
        let caches = described.map(described_cache);
        assert_eq!(caches, [Some((1, 32 << 10)), None, Some((3, 32 << 20)), Some((2, 512 << 10))]);
        assert_eq!(last_of(caches.into_iter().flatten()), Some(32 << 20));
        assert_eq!(last_of(std::iter::empty()), None);
        assert_eq!(last_of([(3, 0)].into_iter()), None);
    }

    #[test]
    fn this_processor_has_a_cache_or_describes_none() {
        assert!(last_level_cache_bytes().is_none_or(|bytes| bytes >= 16 << 10));
    }
}
