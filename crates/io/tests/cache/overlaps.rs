//! Tests of concurrent writes to the same bytes, cached and direct: any order is allowed, but the result must be one of
//! them.

use crate::fake::{FakeDevice, buffer, bytes_of, memory, small_config, write};
use headwater_host::clock::Nanos;
use headwater_io::cache::{BlockCache, CacheConfig, CacheRequest, DeviceShape, SubmitResult, WritePolicy};
use headwater_io::command::WriteDurability;

const PAGES: usize = 6;

#[test]
fn cache_and_device_agree_after_overlapping_writes_by_every_path() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes = PAGES * 4_096;
        let shape = DeviceShape { device_bytes: u64::try_from(bytes).unwrap(), block_bytes: 512 };
        let policy = [WritePolicy::Back, WritePolicy::Through][random.usize(0..2)];
        let config = CacheConfig { pages: 8, block_pages: 4, policy, ..small_config() };
        let mut cache = BlockCache::new(shape, config, &mut memory).unwrap();
        let owners = [cache.join(), cache.join()];
        let mut lower = FakeDevice::new(bytes, seed);
        lower.now.fill(0);
        // Every value written to each byte, and zero.
        let mut written = vec![vec![0_u8]; bytes];
        let mut pending = 0_usize;
        for step in 1..=200_u64 {
            let byte = u8::try_from(step).unwrap();
            let start = random.usize(0..bytes / 512) * 512;
            let length = (random.usize(1..20) * 512).min(bytes - start);
            let (offset, from) = (u64::try_from(start).unwrap(), buffer(&vec![byte; length]));
            let durable = WriteDurability::NamespaceDefault;
            let request = match random.u32(0..5) {
                0 | 1 => CacheRequest::DirectWrite { offset, from, durable },
                2 => CacheRequest::Read { offset, into: from },
                _ => write(offset, &vec![byte; length]),
            };
            if !matches!(request, CacheRequest::Read { .. }) {
                written[start..start + length].iter_mut().for_each(|seen| seen.push(byte));
            }
            let owner = owners[random.usize(0..2)];
            let submitted = cache.submit(&mut lower, owner, request, step).unwrap();
            pending += usize::from(matches!(submitted, SubmitResult::Pending));
            if random.u32(0..3) == 0 {
                cache.poll(&mut lower, Nanos(step));
            }
            while cache.take_finished(owners[0]).or_else(|| cache.take_finished(owners[1])).is_some() {
                pending -= 1;
            }
        }
        for _ in 0..20_000 {
            cache.poll(&mut lower, Nanos(1_000));
            while cache.take_finished(owners[0]).or_else(|| cache.take_finished(owners[1])).is_some() {
                pending -= 1;
            }
        }
        assert_eq!(pending, 0, "seed {seed}");
        let mut ask = |request: CacheRequest| {
            cache.submit(&mut lower, owners[0], request, 0).unwrap();
            for _ in 0..20_000 {
                cache.poll(&mut lower, Nanos(1_000));
                if let Some(finished) = cache.take_finished(owners[0]) {
                    return finished;
                }
            }
            panic!("seed {seed}: a request does not finish")
        };
        // Neither finishes at once: the flush needs the device, and after it the direct read finds no dirty pages.
        assert!(ask(CacheRequest::Flush).status.is_success(), "seed {seed}");
        let read = ask(CacheRequest::DirectRead { offset: 0, into: buffer(&vec![0; bytes]) });
        let device = bytes_of(&read.data.unwrap());
        assert!(device == lower.now, "seed {seed}");
        let mut cached = vec![0; bytes];
        for (page, cached) in cached.chunks_mut(4_096).enumerate() {
            let offset = u64::try_from(page).unwrap() * 4_096;
            if cache.read_hit(owners[0], offset, cached) {
                assert!(*cached == device[page * 4_096..][..4_096], "seed {seed} page {page}");
            }
        }
        let known = device.iter().zip(&written).all(|(byte, seen)| seen.contains(byte));
        assert!(known, "seed {seed}");
        assert!(lower.durable == device, "seed {seed}");
    }
}
