//! A second definition of what a power cut can leave, and a seeded comparison with the sweep.
//!
//! Input: recorded operations. Output: the set of durable bytes that a machine can reach which writes one piece of one
//! line at a time, whenever it likes. Invariant: the machine knows nothing of prefixes and subsets: it only moves pieces,
//! under the rule that a piece stored through the cache waits for those of earlier calls to its line.

use super::*;
use std::collections::BTreeSet;
use std::convert::Infallible;

/// A piece that is not durable: its operation, its bytes, and the state of its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WaitingPiece {
    operation: usize,
    start: usize,
    bytes: Vec<u8>,
    is_streaming: bool,
    is_flushed: bool,
}

/// Durable bytes, each with the operation that stored it, and the pieces that wait.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MachineState {
    durable: Vec<(u8, usize)>,
    waiting: Vec<WaitingPiece>,
}

impl MachineState {
    /// Writes one waiting piece to memory. A byte of a later operation stays.
    fn write(&mut self, nth: usize) {
        let piece = self.waiting.remove(nth);
        for (place, byte) in piece.bytes.iter().enumerate() {
            let durable = &mut self.durable[piece.start + place];
            if durable.1 <= piece.operation {
                *durable = (*byte, piece.operation);
            }
        }
    }

    fn may_write(&self, nth: usize) -> bool {
        let piece = &self.waiting[nth];
        let line = piece.start / LINE_BYTES;
        let is_before = |other: &WaitingPiece| {
            !other.is_streaming && other.start / LINE_BYTES == line && other.operation < piece.operation
        };
        piece.is_streaming || !self.waiting.iter().any(is_before)
    }

    fn apply(&mut self, number: usize, operation: &MemoryOperation) {
        match operation {
            MemoryOperation::Store { offset, bytes } | MemoryOperation::StoreStreaming { offset, bytes } => {
                let is_streaming = matches!(operation, MemoryOperation::StoreStreaming { .. });
                let mut at = 0;
                while at < bytes.len() {
                    let start = offset + at;
                    let is_word = start.is_multiple_of(8) && bytes.len() - at >= 8;
                    let part = bytes[at..at + if is_word { 8 } else { 1 }].to_vec();
                    at += part.len();
                    let piece = WaitingPiece {
                        operation: number,
                        start,
                        bytes: part,
                        is_streaming,
                        is_flushed: false,
                    };
                    self.waiting.push(piece);
                }
            }
            MemoryOperation::Flush(range) => {
                let is_covered = |piece: &WaitingPiece| {
                    let line = piece.start / LINE_BYTES * LINE_BYTES;
                    line < range.end && range.start < line + LINE_BYTES
                };
                for piece in self.waiting.iter_mut().filter(|piece| is_covered(piece)) {
                    piece.is_flushed = true;
                }
            }
            MemoryOperation::Fence => {
                let is_due = |piece: &WaitingPiece| piece.is_streaming || piece.is_flushed;
                while let Some(nth) = self.waiting.iter().position(is_due) {
                    self.write(nth);
                }
            }
        }
    }
}

/// Returns every durable content that the machine can have after the operations.
fn reachable(bytes: usize, operations: &[MemoryOperation]) -> BTreeSet<Vec<u8>> {
    let start = MachineState { durable: vec![(0, 0); bytes], waiting: Vec::new() };
    let mut states = BTreeSet::from([start]);
    for (number, operation) in operations.iter().enumerate() {
        let mut work: Vec<MachineState> = states.into_iter().collect();
        work.iter_mut().for_each(|state| state.apply(number, operation));
        states = BTreeSet::new();
        while let Some(state) = work.pop() {
            if states.insert(state.clone()) {
                for nth in (0..state.waiting.len()).filter(|nth| state.may_write(*nth)) {
                    let mut next = state.clone();
                    next.write(nth);
                    work.push(next);
                }
            }
        }
    }
    states.iter().map(|state| state.durable.iter().map(|(byte, _)| *byte).collect()).collect()
}

/// Runs random operations on two lines. Few pieces wait at a time, or the machine has too many states.
fn run_random(random: &mut fastrand::Rng) -> SimPersistentMemory {
    let memory = SimPersistentMemory::zeroed(2 * LINE_BYTES);
    for value in 1..=random.u8(2..8) {
        let word = [0, 8, 56, 64, 72][random.usize(0..5)];
        match random.u8(0..8) {
            0 | 1 => memory.store_word(word, u64::from(value)),
            2 => memory.store(word, &[value; 16]),
            3 => memory.store(word + 7, &[value; 2]),
            4 => memory.store_streaming(word, &[value; 8]),
            5 => memory.flush(word..word + random.usize(1..=56)),
            6 => memory.write_word(word, u64::from(value)),
            _ => memory.fence().unwrap(),
        }
    }
    memory
}

#[test]
fn sweep_finds_exactly_the_states_that_the_machine_reaches() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for run in 0..300 {
        let memory = run_random(&mut random);
        let operations = memory.operations();
        let mut found = vec![BTreeSet::new(); operations.len() + 1];
        let sweep = memory.crash_sweep(CrashBounds::sampled(1 << 16, seed), |image| {
            found[image.point].insert(image.bytes.clone());
            Ok::<(), Infallible>(())
        });
        assert_eq!(sweep.unwrap().sampled_points, 0);
        for (point, found) in found.iter().enumerate() {
            let expected = reachable(2 * LINE_BYTES, &operations[..point]);
            assert!(*found == expected, "run {run}, point {point} of {operations:?}, seed {seed}");
        }
        // A sample finds no state that is not reachable.
        let expected = reachable(2 * LINE_BYTES, &operations);
        let sampled = memory.crash_sweep(CrashBounds::sampled(2, seed), |image| {
            let is_reachable = image.point < operations.len() || expected.contains(&image.bytes);
            if is_reachable { Ok(()) } else { Err(format!("run {run}, seed {seed}")) }
        });
        sampled.unwrap();
    }
}
