//! Tests of the frame pool over memory pools of several sizes.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use super::*;

fn pool(cap: usize) -> Pool {
    Pool::open(PoolConfig { cap, cap_max: cap, ..PoolConfig::default() }).unwrap()
}

fn taken(stock: &mut FramePool, frames: usize) -> Vec<MediaFrame> {
    (0..frames).map(|_| stock.take().unwrap()).collect()
}

#[test]
fn frames_are_aligned_for_direct_io_and_do_not_overlap() {
    let mut stock = FramePool::new(pool(8 << 20), 1_000);
    let mut frames = taken(&mut stock, 1_000);
    for (number, frame) in (0_u32..).zip(&mut frames) {
        assert_eq!((frame.len(), frame.as_ptr().align_offset(SECTOR_BYTES)), (FRAME_BYTES, 0));
        assert!(frame.iter().all(|&byte| byte == 0));
        for word in frame.chunks_exact_mut(4) {
            word.copy_from_slice(&number.to_le_bytes());
        }
    }
    for (number, frame) in (0_u32..).zip(&frames) {
        assert!(frame.chunks_exact(4).all(|word| word == number.to_le_bytes()));
    }
}

/// Checks zeroing: the memory pool returns memory as its last user left it, and a frame is zeroed when it is first
/// taken.
#[test]
fn no_frame_shows_bytes_of_another_user_of_the_memory_pool() {
    let pool = pool(2 << 20);
    let mut held = FramePool::new(pool.clone(), 200);
    taken(&mut held, 200).iter_mut().for_each(|frame| frame.fill(0xAB));
    drop(held);
    let mut stock = FramePool::new(pool, 200);
    let mut used = taken(&mut stock, 3);
    assert!(used.iter().all(|frame| frame.iter().all(|&byte| byte == 0)));
    used.iter_mut().for_each(|frame| frame.fill(0xCD));
    used.into_iter().for_each(|frame| stock.put_back(frame));
    let untouched = taken(&mut stock, 200).into_iter().skip(3);
    assert!(untouched.flat_map(|frame| frame.to_vec()).all(|byte| byte == 0));
}

#[test]
fn a_frame_converts_to_a_ring_buffer_and_back() {
    let mut stock = FramePool::new(pool(4 << 20), 2);
    let mut frame = stock.take().unwrap();
    frame[4_607] = 7;
    let frame = MediaFrame::from_sectors(frame.into_sectors()).unwrap();
    assert_eq!(frame[4_607], 7);
    stock.put_back(frame);
    assert_eq!((stock.kept(), stock.in_use()), (2, 0));
    assert!(MediaFrame::from_sectors(SectorBuffer::zeroed(10)).is_err());
}

#[test]
fn take_returns_none_at_the_limit() {
    let mut stock = FramePool::new(pool(4 << 20), 2);
    let first = stock.take().unwrap();
    let _second = stock.take().unwrap();
    assert!(stock.take().is_none());
    stock.put_back(first);
    assert_eq!(stock.available(), 1);
    assert!(stock.take().is_some());
}

#[test]
fn take_returns_none_until_the_memory_pool_has_room() {
    let pool = pool(2 << 20);
    let held = pool.buffer((2 << 20) - (64 << 10)).unwrap();
    let mut stock = FramePool::new(pool, 1_000);
    let mut frames = Vec::new();
    while let Some(frame) = stock.take() {
        frames.push(frame);
    }
    assert!((8..=14).contains(&frames.len()), "smaller slabs fit where larger ones do not");
    assert!(!stock.reserve(1));
    drop(held);
    assert!(stock.reserve(300));
    assert_eq!(stock.in_use(), frames.len());
}

#[test]
fn reserved_frames_can_be_taken_from_a_full_memory_pool() {
    let pool = pool(4 << 20);
    let mut stock = FramePool::new(pool.clone(), 600);
    assert!(stock.reserve(500));
    let mut held = Vec::new();
    while let Ok(buffer) = pool.buffer(4_096) {
        held.push(buffer);
    }
    assert_eq!(taken(&mut stock, 500).len(), 500);
    assert!(!stock.reserve(600));
}

#[test]
fn unused_slabs_are_returned_and_spare_frames_kept() {
    let pool = pool(16 << 20);
    let mut stock = FramePool::new(pool.clone(), 3_000);
    let before = pool.statistics().in_use_bytes;
    let frames = taken(&mut stock, 2_900);
    let full = pool.statistics().in_use_bytes;
    assert!(full >= before + 2_900 * FRAME_BYTES as u64);
    frames.into_iter().for_each(|frame| stock.put_back(frame));
    assert!((SPARE_FRAMES..SPARE_FRAMES + SLAB_FRAMES).contains(&stock.kept()));
    assert!(pool.statistics().in_use_bytes < full / 4);
    // All frames can be taken again, slab by slab, each once.
    let mut places: Vec<usize> = taken(&mut stock, 3_000).iter().map(|frame| frame.as_ptr().addr()).collect();
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[0] + FRAME_BYTES <= pair[1]));
    assert!(stock.take().is_none());
}

#[test]
fn frames_that_outlive_their_frame_pool_keep_their_memory() {
    let pool = pool(4 << 20);
    let mut stock = FramePool::new(pool.clone(), 10);
    let mut last = stock.take().unwrap();
    drop(stock);
    drop(pool);
    last.fill(9);
    assert!(last.iter().all(|&byte| byte == 9));
}

#[test]
fn a_pool_configured_for_frames_holds_them_and_an_unaddressable_size_is_refused() {
    for frames in [1, 227, 228, 16_384] {
        let pool = Pool::open(FramePool::pool_config_for(frames)).unwrap();
        assert!(FramePool::new(pool, frames).reserve(frames));
    }
    assert!(Pool::open(FramePool::pool_config_for(usize::MAX)).is_err());
}

#[test]
fn a_frame_of_another_pool_is_not_kept() {
    let pool = pool(4 << 20);
    let mut stock = FramePool::new(pool.clone(), 4);
    let mut other = FramePool::new(pool, 4);
    let (_mine, theirs) = (taken(&mut stock, 2), other.take().unwrap());
    stock.put_back(MediaFrame::zeroed());
    stock.put_back(theirs);
    assert_eq!((stock.kept(), stock.in_use()), (2, 2));
}

#[test]
fn release_idle_returns_all_memory_without_frames_in_use() {
    let pool = pool(8 << 20);
    let mut stock = FramePool::new(pool.clone(), 1_000);
    let mut frames = taken(&mut stock, 1_000);
    let last = frames.pop().unwrap();
    frames.into_iter().for_each(|frame| stock.put_back(frame));
    stock.release_idle();
    assert!(stock.kept() < SLAB_FRAMES, "only the slab with a frame in use stays");
    stock.put_back(last);
    stock.release_idle();
    assert_eq!((stock.kept(), stock.in_use(), pool.statistics().in_use_bytes), (0, 0, 0));
    assert_eq!(taken(&mut stock, 1_000).len(), 1_000);
}

#[test]
fn a_seeded_run_never_hands_out_a_frame_twice() {
    let pool = pool(8 << 20);
    let mut stock = FramePool::new(pool.clone(), 1_500);
    let mut rng = fastrand::Rng::with_seed(7);
    let mut out: Vec<(MediaFrame, u8)> = Vec::new();
    for round in 0..40 {
        for _ in 0..rng.usize(0..1_500) {
            let Some(mut frame) = stock.take() else { break };
            let fill = rng.u8(..);
            frame.fill(fill);
            out.push((frame, fill));
        }
        rng.shuffle(&mut out);
        for _ in 0..rng.usize(0..=out.len()) {
            let Some((frame, fill)) = out.pop() else { break };
            assert!(frame.iter().all(|&byte| byte == fill), "round {round}");
            stock.put_back(frame);
        }
        assert_eq!(stock.in_use(), out.len());
        assert!(stock.in_use() + stock.kept() <= 1_500);
    }
    drop((out, stock));
    assert_eq!(pool.statistics().in_use_bytes, 0);
}
