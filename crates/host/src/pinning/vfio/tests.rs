//! Tests of a container's records against a simulated kernel that checks them.
#![expect(clippy::print_stderr, reason = "the printed seed reproduces a failing run")]

use super::*;
use crate::pinning::PinCause;
use fastrand::Rng;

const PAGE: usize = 4_096;
const MIB: usize = 1 << 20;

fn limits(mappings_max: u32) -> ContainerLimits {
    let ranges = vec![0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff];
    ContainerLimits { ranges, page_sizes: !0xfff, mappings_max }
}

fn container(mappings_max: u32) -> VfioContainer<SimulatedIommu> {
    let limits = limits(mappings_max);
    VfioContainer::new(SimulatedIommu::new(limits.clone()), limits)
}

fn memory(address: usize, bytes: usize) -> MemoryRange {
    MemoryRange::new(address, bytes)
}

#[test]
fn random_maps_and_unmaps_agree_with_the_kernel() {
    let seed = Rng::new().u64(..);
    eprintln!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let container = container(200);
    let mut live: Vec<IovaMapping> = Vec::new();
    for step in 0..4_000 {
        if random.u8(..) < 140 {
            // Anywhere in the process, overlapping or not: two mappings may name the same memory.
            let place = memory(random.usize(1..1 << 34) * PAGE, random.usize(1..3_000) * PAGE);
            match container.map(place) {
                Ok(mapping) => live.push(mapping),
                Err(error) => assert_eq!((error.cause, live.len()), (PinCause::TooMany, 200)),
            }
        } else if !live.is_empty() {
            let gone = live.swap_remove(random.usize(..live.len()));
            container.unmap(gone).unwrap();
            assert_eq!(container.unmap(gone), Err(UnmapError::Unknown { iova: gone.iova }));
        }
        assert_eq!(container.kernel().mappings(), live.len(), "step {step}");
        for mapping in &live {
            let within = random.usize(..mapping.memory.bytes());
            let found = container.kernel().translate(mapping.iova + within as u64);
            assert_eq!(found, Some(mapping.memory.address() + within));
        }
    }
    let bytes: usize = live.iter().map(|mapping| mapping.memory.bytes()).sum();
    assert_eq!(container.mapped_bytes(), bytes);
    live.into_iter().for_each(|mapping| container.unmap(mapping).unwrap());
    let books = container.locked();
    let fresh = IovaAllocator::from_ranges(&container.limits.ranges, PAGE as u64);
    assert_eq!((&books.addresses, books.mapped.len()), (&fresh, 0));
}

#[test]
fn mapping_keeps_offset_within_large_pages() {
    let container = container(100);
    for (address, bytes) in [(0x7f00_0000_3000, 5 * MIB), (0x7f00_0020_0000, 2 * MIB), (0x7000_0000, 1 << 31)]
    {
        let mapping = container.map(memory(address, bytes)).unwrap();
        let large = if bytes >= 1 << 30 { 1 << 30 } else { 2 << 20 };
        assert_eq!(mapping.iova % large, address as u64 % large, "{address:#x}");
    }
    // Where no large page fits, a small one does.
    let tight = ContainerLimits { ranges: vec![0x20_1000..=0x50_0fff], ..limits(9) };
    let container = VfioContainer::new(SimulatedIommu::new(tight.clone()), tight);
    assert_eq!(container.map(memory(0x1000_0000, 3 * MIB)).unwrap().iova, 0x20_1000);
    let error = container.map(memory(0x1000_0000, PAGE)).unwrap_err();
    assert_eq!((error.cause, error.errno), (PinCause::NoAddress, libc::EADDRNOTAVAIL));
}

#[test]
fn whole_chunks_stay_under_the_limit_that_small_pages_exceed() {
    let small = container(65_535);
    let pages = (0..65_536).map(|index| memory((index + 1) * 2 * PAGE, PAGE));
    assert_eq!(pages.map(|page| small.map(page)).filter(Result::is_ok).count(), 65_535);
    let large = container(65_535);
    let chunks = (1..=1_024).map(|index| memory(index * 8 * MIB, 4 * MIB));
    assert_eq!(chunks.map(|chunk| large.map(chunk)).filter(Result::is_ok).count(), 1_024);
    assert_eq!((large.mapped_bytes(), large.kernel().mappings_peak()), (4_096 * MIB, 1_024));
}

#[test]
fn address_taken_in_the_kernel_stops_the_container() {
    let container = container(9);
    let before = container.map(memory(PAGE, PAGE)).unwrap();
    container.kernel().fail_next_map(libc::EEXIST);
    let error = container.map(memory(2 * PAGE, PAGE)).unwrap_err();
    assert_eq!(error.cause, PinCause::Exists);
    assert_eq!(container.map(memory(3 * PAGE, PAGE)), Err(error), "nothing is mapped any more");
    container.unmap(before).unwrap();
}

#[test]
fn address_of_short_unmap_is_never_reused() {
    let container = container(3);
    let first = container.map(memory(PAGE, PAGE)).unwrap();
    container.kernel().ignore_unmaps();
    let short = UnmapError::Short { iova: first.iova, bytes: PAGE as u64, unmapped: 0 };
    assert_eq!(container.unmap(first), Err(short));
    assert_eq!(container.unmap(first), Err(UnmapError::Unknown { iova: first.iova }), "it is reported once");
    assert_eq!(container.room(), 2, "the kernel still counts it");
    let second = container.map(memory(PAGE, PAGE)).unwrap();
    assert_ne!(second.iova, first.iova);
}

#[test]
fn failed_map_leaves_no_state_and_names_its_cause() {
    let container = container(9);
    let causes = [
        (libc::ENOMEM, PinCause::OverLimit),
        (libc::EPERM, PinCause::NotPermitted),
        (libc::ENOSPC, PinCause::TooMany),
        (libc::EFAULT, PinCause::NotMapped),
    ];
    for (errno, cause) in causes {
        container.kernel().fail_next_map(errno);
        assert_eq!(container.map(memory(PAGE, PAGE)).unwrap_err().cause, cause);
    }
    for (address, bytes) in [(PAGE, 0), (PAGE + 512, PAGE), (PAGE, PAGE + 1)] {
        assert_eq!(container.map(memory(address, bytes)).unwrap_err().cause, PinCause::Unaligned);
    }
    assert_eq!(container.map(memory(PAGE, PAGE)).unwrap().iova, PAGE as u64, "no address was lost");
    assert_eq!(container.kernel().mappings(), 1);
}

#[test]
fn opening_without_device_or_iommu_is_refused() {
    assert!(matches!(VfioContainer::open(&[]), Err(OpenError::NoDevice)));
    // No machine has such a device; most have no VFIO either.
    let error = VfioContainer::open(&["ffff:ff:1f.7"]).unwrap_err();
    assert!(matches!(error, OpenError::File { .. } | OpenError::NoSuchDevice { .. }), "{error}");
}
