//! Tests of the border from which copies pass the cache by.

use super::*;
use crate::mover::run::STREAMED_RANGES;

const BORDER: usize = 16_384;

/// Runs copies of a page, below the border, at it and above it. Returns the lengths of those that passed the cache by.
fn streamed_by(mut mover: Mover, intent: CacheIntent) -> Vec<usize> {
    let lengths = [4_096, BORDER - 1, BORDER, 2 * BORDER];
    let mut job = MoveJob::new().with_cache_intent(intent);
    job.add_memory(Bytes::from(vec![7; 2 * BORDER]));
    for bytes in lengths {
        let to = job.add_memory(vec![0; bytes]);
        let from = MemoryPlace::new(0, 0).range(bytes);
        job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(to, 0) });
    }
    STREAMED_RANGES.take();
    mover.run(&mut job).unwrap();
    let streamed = STREAMED_RANGES.take().into_iter().map(|range| range.bytes).collect();
    for vector in job.into_memories().into_iter().filter_map(MoveMemory::into_vec) {
        assert!(vector.iter().all(|byte| *byte == 7));
    }
    streamed
}

#[test]
fn border_of_a_mover_reaches_the_choice_of_each_copy() {
    let of = |bytes| Mover::default().with_streaming_border(StreamingBorder::from_bytes(bytes));
    let not_soon = |mover| streamed_by(mover, CacheIntent::NotSoon);
    assert_eq!(not_soon(Mover::default()), [4_096, BORDER - 1, BORDER, 2 * BORDER]);
    assert_eq!(not_soon(of(BORDER as u64)), [BORDER, 2 * BORDER]);
    assert!(not_soon(of(u64::MAX)).is_empty());
    assert!(streamed_by(of(BORDER as u64), CacheIntent::ReadSoon).is_empty());
    assert_eq!(of(BORDER as u64).streaming_border().bytes(), BORDER);
}

#[test]
fn border_stays_with_a_part_that_is_split_off() {
    let mut whole = job(4);
    whole.begin(StreamingBorder::from_bytes(BORDER as u64));
    let (part, _rest) = whole.split_off(2).unwrap();
    assert_eq!(part.streaming_border.bytes(), BORDER);
}
