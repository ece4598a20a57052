//! Tests of one cache used by several threads.

use crate::fake::{FakeDevice, buffer, bytes_of, memory, small_config, write};
use headwater_host::clock::Nanos;
use headwater_io::cache::{
    BlockCache, CacheConfig, CacheMember, CacheRequest, DeviceShape, FinishedRequest, SharedCache,
    SubmitResult,
};
use headwater_nvme::spec::status::Status;

fn run(member: &mut CacheMember<FakeDevice>, request: CacheRequest) -> FinishedRequest {
    match member.submit(request, 1).unwrap() {
        SubmitResult::Done(finished) => finished,
        SubmitResult::Pending => loop {
            if let Some(finished) = member.poll(Nanos::ZERO) {
                return finished;
            }
            std::thread::yield_now();
        },
    }
}

#[test]
fn threads_sharing_a_cache_read_their_writes_and_depend_on_no_other_poller() {
    const EACH: usize = 64 * 4_096;
    let shape = DeviceShape { device_bytes: u64::try_from(4 * EACH).unwrap(), block_bytes: 512 };
    let cache = BlockCache::new(shape, CacheConfig { pages: 64, ..small_config() }, &mut memory).unwrap();
    let shared = SharedCache::new(cache, FakeDevice::new(4 * EACH, 9));
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let mut member = shared.join();
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(u64::from(thread));
                let base = usize::from(thread) * EACH;
                let mut wanted: Vec<Option<u8>> = vec![None; EACH];
                for round in 0..400 {
                    let start = random.usize(0..EACH);
                    let bytes = random.usize(1..10_000).min(EACH - start);
                    let offset = u64::try_from(base + start).unwrap();
                    if random.bool() {
                        let byte = random.u8(..);
                        let finished = run(&mut member, write(offset, &vec![byte; bytes]));
                        assert_eq!(finished.status, Status::SUCCESS);
                        wanted[start..start + bytes].fill(Some(byte));
                    } else {
                        let into = buffer(&vec![0; bytes]);
                        let finished = run(&mut member, CacheRequest::Read { offset, into });
                        let read = bytes_of(&finished.data.unwrap());
                        let range = &wanted[start..start + bytes];
                        let same = range.iter().zip(&read).all(|(w, r)| w.is_none_or(|w| w == *r));
                        assert!(same, "thread {thread} round {round}");
                    }
                }
                assert_eq!(run(&mut member, CacheRequest::Flush).status, Status::SUCCESS);
            });
        }
    });
    assert_eq!(shared.statistics().dirty_bytes, 0);
}
