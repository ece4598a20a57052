//! Tests of the states of small runs against states that were counted by hand.

use super::*;
use std::collections::BTreeSet;
use std::convert::Infallible;

const BYTES: usize = 4 * LINE_BYTES;
const ALL: CrashBounds = CrashBounds::sampled(1 << 16, 0);
const ASCENDING: CrashBounds = CrashBounds { order: WordOrder::Ascending, ..ALL };

/// Returns the distinct values of some words that a cut at the last point can leave.
fn words_at_end(memory: &SimPersistentMemory, bounds: CrashBounds, words: &[usize]) -> BTreeSet<Vec<u64>> {
    let mut found = BTreeSet::new();
    let sweep = memory.crash_sweep(bounds, |image| {
        if image.point == memory.point() {
            let next = SimPersistentMemory::with_bytes(image.bytes.clone());
            found.insert(words.iter().map(|word| next.load_word(*word)).collect());
        }
        Ok::<(), Infallible>(())
    });
    assert_eq!(sweep.unwrap().sampled_points, 0);
    found
}

fn values<const N: usize>(of: &[[u64; N]]) -> BTreeSet<Vec<u64>> {
    of.iter().map(|words| words.to_vec()).collect()
}

#[test]
fn stores_to_one_line_become_durable_in_program_order() {
    let memory = SimPersistentMemory::zeroed(BYTES);
    memory.store_word(0, 1);
    memory.store_word(8, 2);
    assert_eq!(words_at_end(&memory, ALL, &[0, 8]), values(&[[0, 0], [1, 0], [1, 2]]));
    memory.store_word(0, 3);
    assert_eq!(words_at_end(&memory, ALL, &[0, 8]), values(&[[0, 0], [1, 0], [1, 2], [3, 2]]));
}

#[test]
fn lines_become_durable_independently() {
    let memory = SimPersistentMemory::zeroed(BYTES);
    memory.store_word(0, 1);
    memory.store_word(64, 2);
    assert_eq!(words_at_end(&memory, ALL, &[0, 64]), values(&[[0, 0], [1, 0], [0, 2], [1, 2]]));
}

#[test]
fn only_a_flush_followed_by_a_fence_makes_a_store_durable() {
    let memory = SimPersistentMemory::zeroed(BYTES);
    memory.store_word(0, 1);
    let either = values(&[[0], [1]]);
    assert_eq!(words_at_end(&memory, ALL, &[0]), either);
    memory.flush(0..8);
    assert_eq!(words_at_end(&memory, ALL, &[0]), either, "a flush alone");
    memory.fence().unwrap();
    assert_eq!(words_at_end(&memory, ALL, &[0]), values(&[[1]]));
    memory.store_word(64, 2);
    memory.fence().unwrap();
    assert_eq!(words_at_end(&memory, ALL, &[64]), values(&[[0], [2]]), "a fence alone");
    memory.flush(64..65);
    memory.store_word(72, 3);
    memory.fence().unwrap();
    let after_flush = values(&[[2, 0], [2, 3]]);
    assert_eq!(words_at_end(&memory, ALL, &[64, 72]), after_flush, "a store behind the flush");
}

#[test]
fn words_of_one_store_become_durable_in_any_order_and_words_of_the_next_after_them() {
    let memory = SimPersistentMemory::zeroed(BYTES);
    let two: Vec<u8> = [1_u64, 2].iter().flat_map(|word| word.to_le_bytes()).collect();
    memory.store(0, &two);
    memory.store_word(16, 3);
    let torn = values(&[[0, 0, 0], [1, 0, 0], [0, 2, 0], [1, 2, 0], [1, 2, 3]]);
    assert_eq!(words_at_end(&memory, ALL, &[0, 8, 16]), torn);
    let ascending = values(&[[0, 0, 0], [1, 0, 0], [1, 2, 0], [1, 2, 3]]);
    assert_eq!(words_at_end(&memory, ASCENDING, &[0, 8, 16]), ascending);
}

#[test]
fn aligned_word_is_never_torn_and_bytes_that_fill_no_word_are() {
    let memory = SimPersistentMemory::zeroed(BYTES);
    memory.store_word(8, u64::MAX);
    assert_eq!(words_at_end(&memory, ALL, &[8]), values(&[[0], [u64::MAX]]));
    let memory = SimPersistentMemory::zeroed(BYTES);
    memory.store(9, &[0xFF; 2]);
    let torn = values(&[[0], [0xFF00], [0x00FF_0000], [0x00FF_FF00]]);
    assert_eq!(words_at_end(&memory, ALL, &[8]), torn);
    // One byte, a word, one byte.
    let memory = SimPersistentMemory::zeroed(BYTES);
    memory.store(7, &[0xFF; 10]);
    let words = words_at_end(&memory, ALL, &[0, 8, 16]);
    assert_eq!(words.len(), 8);
    assert!(words.iter().all(|words| words[1] == 0 || words[1] == u64::MAX));
}

#[test]
fn streaming_stores_become_durable_in_any_order_and_all_at_the_fence() {
    let memory = SimPersistentMemory::zeroed(BYTES);
    memory.store_word(0, 1);
    memory.store_streaming(8, &2_u64.to_le_bytes());
    memory.store_streaming(16, &3_u64.to_le_bytes());
    assert_eq!(words_at_end(&memory, ALL, &[0, 8, 16]).len(), 8);
    memory.fence().unwrap();
    let after = values(&[[0, 2, 3], [1, 2, 3]]);
    assert_eq!(words_at_end(&memory, ALL, &[0, 8, 16]), after, "the store through the cache has no flush");
}

#[test]
fn durable_streaming_store_is_not_undone_by_an_earlier_cached_one() {
    let memory = SimPersistentMemory::zeroed(BYTES);
    memory.store_word(0, 1);
    memory.store_streaming(0, &2_u64.to_le_bytes());
    assert_eq!(words_at_end(&memory, ALL, &[0]), values(&[[0], [1], [2]]));
    memory.fence().unwrap();
    assert_eq!(words_at_end(&memory, ALL, &[0]), values(&[[2]]));
}

#[test]
fn later_store_to_a_flushed_line_is_durable_only_after_a_flush_of_its_own() {
    let memory = SimPersistentMemory::zeroed(BYTES);
    memory.store_word(0, 1);
    memory.flush(0..8);
    memory.store_word(0, 2);
    assert_eq!(words_at_end(&memory, ALL, &[0]), values(&[[0], [1], [2]]));
    memory.fence().unwrap();
    assert_eq!(words_at_end(&memory, ALL, &[0]), values(&[[1], [2]]));
}

#[test]
fn store_over_several_lines_is_divided_at_their_boundaries() {
    let memory = SimPersistentMemory::zeroed(BYTES);
    memory.store(56, &[0xFF; 24]);
    memory.flush(56..64);
    memory.fence().unwrap();
    let full = u64::MAX;
    let words = values(&[[full, 0, 0], [full, full, 0], [full, 0, full], [full, full, full]]);
    assert_eq!(words_at_end(&memory, ALL, &[56, 64, 72]), words);
    memory.flush(64..80);
    memory.fence().unwrap();
    assert_eq!(words_at_end(&memory, ALL, &[56, 64, 72]).len(), 1);
}

#[test]
fn flush_covers_every_line_that_its_range_touches_and_no_other() {
    for (range, durable) in [(63..64, 1), (63..65, 2), (64..65, 1), (0..128, 2), (63..129, 3), (64..64, 0)] {
        let memory = SimPersistentMemory::zeroed(BYTES);
        for word in [0, 64, 128] {
            memory.store_word(word, 1);
        }
        memory.flush(range.clone());
        memory.fence().unwrap();
        let states = words_at_end(&memory, ALL, &[0, 64, 128]);
        assert_eq!(states.len(), 1 << (3 - durable), "{range:?}");
    }
}

#[test]
fn sample_of_many_states_repeats_with_its_seed_and_contains_only_possible_states() {
    let seed = fastrand::u64(..);
    let memory = SimPersistentMemory::zeroed(BYTES);
    for line in 0..4_u8 {
        memory.store(usize::from(line) * LINE_BYTES, &[line + 1; LINE_BYTES]);
    }
    memory.store_word(0, 77);
    let draw = |seed| {
        let mut found = Vec::new();
        let sweep = memory.crash_sweep(CrashBounds::sampled(300, seed), |image| {
            let is_word = |word: &[u8]| word.iter().all(|byte| *byte == word[0]);
            let torn = image.bytes[8..].chunks(8).any(|word| !is_word(word));
            assert!(!torn, "a word is torn; seed {seed}");
            let first = SimPersistentMemory::with_bytes(image.bytes.clone()).load_word(0);
            let is_line_whole = image.bytes[8..LINE_BYTES].iter().all(|byte| *byte == 1);
            assert!(first != 77 || is_line_whole, "a store overtook one to the same line; seed {seed}");
            found.push(image.bytes.clone());
            Ok::<(), Infallible>(())
        });
        (found, sweep.unwrap())
    };
    let (first, sweep) = draw(seed);
    assert!(sweep.sampled_points >= 4, "{sweep}");
    assert_eq!(first, draw(seed).0, "seed {seed}");
    let distinct: BTreeSet<_> = first.iter().collect();
    assert!(distinct.len() > 100, "{} distinct states, seed {seed}", distinct.len());
    assert_eq!(sweep.points, memory.point() + 1);
    assert!(sweep.to_string().contains(&format!("seed {seed}")), "{sweep}");
}

#[test]
fn failure_names_the_point_the_operation_the_lines_and_the_seed() {
    let memory = SimPersistentMemory::zeroed(BYTES);
    memory.store_word(0, 1);
    memory.write_word(64, 1);
    let check = |image: &CrashImage| {
        let next = SimPersistentMemory::with_bytes(image.bytes.clone());
        if next.load_word(64) > next.load_word(0) { Err("the second without the first") } else { Ok(()) }
    };
    let bounds = CrashBounds::sampled(100, 42);
    let failure = memory.crash_sweep(bounds, check).unwrap_err();
    assert_eq!(failure.point, 2);
    let text = failure.to_string();
    let parts =
        ["store of 8 bytes at 64", "line 0 lost, line 1 durable", "seed 42", "second without the first"];
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn misuse_of_flush_and_fence_is_found() {
    let memory = SimPersistentMemory::zeroed(BYTES);
    memory.store_word(0, 1);
    assert_eq!(memory.misuse(), [MemoryMisuse::NeverFlushed { line: 0, operation: 0 }]);
    memory.flush(0..8);
    assert_eq!(memory.misuse(), [MemoryMisuse::NeverFenced { line: 0, operation: 0 }]);
    memory.fence().unwrap();
    assert_eq!(memory.misuse(), []);
    memory.flush(0..128);
    memory.fence().unwrap();
    memory.store_streaming(128, &[1; 64]);
    let expected = [
        MemoryMisuse::RedundantFlush { line: 0, operation: 3 },
        MemoryMisuse::RedundantFlush { line: 1, operation: 3 },
        MemoryMisuse::EmptyFence { operation: 4 },
        MemoryMisuse::NeverFenced { line: 2, operation: 5 },
    ];
    assert_eq!(memory.misuse(), expected);
    assert!(expected[0].to_string().contains("line 0"));
}

#[test]
fn loads_see_stores_that_are_not_durable() {
    let memory = SimPersistentMemory::zeroed(BYTES).with_streaming_from(16);
    memory.write(3, b"abc");
    memory.write(32, &[7; 16]);
    memory.fill(100..110, 9);
    let mut back = [0; 3];
    memory.load(3, &mut back);
    assert_eq!(&back, b"abc");
    assert_eq!(memory.load_word(104), u64::from_le_bytes([9, 9, 9, 9, 9, 9, 0, 0]));
    let operations = memory.operations();
    assert!(matches!(operations[0], MemoryOperation::Store { offset: 3, .. }));
    assert_eq!(operations[1], MemoryOperation::Flush(3..6));
    assert!(matches!(operations[2], MemoryOperation::StoreStreaming { offset: 32, .. }));
    assert_eq!(operations.len(), 4);
}

#[test]
#[should_panic(expected = "do not lie in memory")]
fn range_outside_of_simulated_memory_panics() {
    SimPersistentMemory::zeroed(64).store(60, &[0; 5]);
}
