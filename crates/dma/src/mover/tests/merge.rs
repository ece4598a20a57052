//! Tests of merged steps: a channel gets fewer, and the job returns with those that were given.

use super::*;
use crate::mover::merge::MERGED_BYTES_MAX;

/// The bytes of each memory.
const BYTES: usize = 4_096;

/// A job of runs of steps, most of which continue the step before them.
struct DrawnJob {
    job: MoveJob,
    shared: SharedMemory,
    /// The bytes of a text, of shared memory and of a vector, as a byte loop leaves them.
    expected: [Vec<u8>; 3],
    results: Vec<StepResult>,
}

impl DrawnJob {
    fn new(random: &mut fastrand::Rng) -> Self {
        let expected: [Vec<u8>; 3] = std::array::from_fn(|_| (0..BYTES).map(|_| random.u8(..)).collect());
        let shared = SharedMemory::anonymous(BYTES).unwrap();
        shared.copy_out(0, &expected[1]).unwrap();
        let mut job = MoveJob::new();
        job.add_memory(Bytes::from(expected[0].clone()));
        job.add_memory(shared.clone());
        job.add_memory(expected[2].clone());
        let mut drawn = Self { job, shared, expected, results: Vec::new() };
        for _ in 0..random.usize(1..6) {
            drawn.add_run(random);
        }
        drawn
    }

    fn add_run(&mut self, random: &mut fastrand::Rng) {
        let (operation, value) = (random.usize(..4), random.u8(..));
        let (from, to) = (random.usize(..3), random.usize(1..3));
        let mut at = random.usize(..BYTES / 2);
        // Often so close that one step would overlap where two do not.
        let mut into = if random.bool() { at + random.usize(..400) } else { random.usize(..BYTES / 2) };
        for _ in 0..random.usize(1..6) {
            let bytes = random.usize(..200);
            self.add_step((operation, value), (from, at), (to, into), bytes);
            let gap = usize::from(random.usize(..8) == 0);
            (at, into) = (at + bytes, into + bytes + gap);
        }
    }

    fn add_step(
        &mut self,
        (operation, value): (usize, u8),
        (from, at): (usize, usize),
        (to, into): (usize, usize),
        bytes: usize,
    ) {
        // A dualcast reads the text and writes the two other memories.
        let from = if operation == 3 { 0 } else { from };
        let content = self.expected[from][at..at + bytes].to_vec();
        let is_apart = from != to || at + bytes <= into || into + bytes <= at;
        let (source, target) = (MemoryPlace::new(from, at).range(bytes), MemoryPlace::new(to, into));
        let (step, result) = match operation {
            0 if is_apart => (MoveStep::Copy { from: source, to: target }, StepResult::Done),
            1 => (MoveStep::Fill { to: target.range(bytes), value }, StepResult::Done),
            2 if is_apart => {
                let crc = StepResult::Crc32c(crc32c(0, &content));
                (MoveStep::CopyCrc32c { from: source, to: target, seed: 0 }, crc)
            }
            3 => {
                let to = [MemoryPlace::new(1, into), MemoryPlace::new(2, into)];
                (MoveStep::Dualcast { from: source, to }, StepResult::Done)
            }
            _ => return,
        };
        match operation {
            1 => self.expected[to][into..into + bytes].fill(value),
            3 => (1..3).for_each(|to| self.expected[to][into..into + bytes].copy_from_slice(&content)),
            _ => self.expected[to][into..into + bytes].copy_from_slice(&content),
        }
        self.job.add_step(step);
        self.results.push(result);
    }
}

#[test]
fn merged_steps_leave_the_bytes_and_results_of_the_given_ones_on_every_fault_of_a_channel() {
    use ChannelFault::{Abandons, Full, Late, Reordered, Stuck};
    for fault in [Full, Stuck, Reordered, Abandons, Late] {
        let (mut merged, mut given) = (0, 0);
        for seed in 0..300_u64 {
            let DrawnJob { mut job, shared, expected, results } =
                DrawnJob::new(&mut fastrand::Rng::with_seed(seed));
            let steps = job.steps().to_vec();
            given += steps.len();
            let mut mover = mover_of(vec![FaultyChannel::boxed(fault)]);
            // A started job is not taken back from a channel that is stuck.
            if seed.is_multiple_of(2) || fault == Stuck {
                mover.run(&mut job).unwrap();
            } else {
                let ticket = mover.start(job).unwrap();
                job = mover.wait(&ticket, LONG).unwrap();
            }
            merged += mover.channel_counters().merged_steps;
            assert_eq!(job.steps(), steps, "seed {seed}, {fault:?}");
            assert_eq!(job.results(), results, "seed {seed}, {fault:?}");
            let mut found = vec![0; BYTES];
            shared.copy_in(0, &mut found).unwrap();
            assert!(found == expected[1], "shared memory, seed {seed}, {fault:?}");
            let vector = job.into_memories().into_iter().find_map(MoveMemory::into_vec);
            assert!(vector.unwrap() == expected[2], "vector, seed {seed}, {fault:?}");
        }
        // A step that no channel took counts as none.
        assert_eq!(merged > 100, fault != Full, "{fault:?}: {merged} of {given} steps were merged");
    }
}

#[test]
fn steps_that_continue_each_other_are_one_and_the_rest_stays_apart() {
    let copy = |from: (usize, usize), to: (usize, usize), bytes: usize| MoveStep::Copy {
        from: MemoryPlace::new(from.0, from.1).range(bytes),
        to: MemoryPlace::new(to.0, to.1),
    };
    let fill = |at: usize, value: u8| MoveStep::Fill { to: MemoryPlace::new(1, at).range(50), value };
    let crc = |at: usize| MoveStep::Crc32c { of: MemoryPlace::new(0, at).range(8), seed: 0 };
    // Memories: 0 a text, 1 and 3 one shared memory, 2 a vector of 100 bytes that may grow.
    let cases = [
        (vec![copy((0, 0), (1, 0), 8), copy((0, 8), (1, 8), 16), copy((0, 24), (1, 24), 8)], 1),
        (vec![copy((0, 0), (1, 0), 8), copy((0, 8), (1, 9), 8)], 2),
        (vec![copy((0, 0), (1, 0), 8), copy((0, 9), (1, 8), 8)], 2),
        (vec![copy((0, 0), (1, 0), 8), copy((0, 8), (2, 8), 8)], 2),
        (vec![copy((0, 8), (1, 8), 8), copy((0, 0), (1, 0), 8)], 2),
        (vec![fill(0, 1), fill(50, 1), fill(100, 2), fill(150, 2)], 2),
        (vec![crc(0), crc(8)], 2),
        // The second copy reads what the first one writes, by one name of the memory and by two.
        (vec![copy((1, 0), (1, 100), 100), copy((1, 100), (1, 200), 100)], 2),
        (vec![copy((1, 0), (3, 100), 100), copy((1, 100), (3, 200), 100)], 2),
        (vec![copy((1, 200), (1, 0), 100), copy((1, 300), (1, 100), 100)], 1),
        // Writes that extend the vector, and one that ends where the vector does.
        (vec![copy((0, 0), (2, 100), 8), copy((0, 8), (2, 108), 8)], 1),
        (vec![copy((0, 0), (2, 92), 8), copy((0, 8), (2, 100), 8)], 2),
    ];
    for (steps, expected) in cases {
        let shared = SharedMemory::anonymous(4_096).unwrap();
        let mut vector = Vec::with_capacity(300);
        vector.resize(100, 0);
        let mut job = MoveJob::new();
        job.add_memory(Bytes::from(vec![3; 4_096]));
        job.add_memory(shared.clone());
        job.add_memory(vector);
        job.add_memory(shared);
        steps.iter().for_each(|step| job.add_step(*step));
        job.check().unwrap();
        let bytes = job.bytes();
        assert_eq!(job.merge_steps(), steps.len() - expected, "{steps:?}");
        assert_eq!((job.steps().len(), job.bytes()), (expected, bytes), "{steps:?}");
        run::run(&mut job);
        job.restore_steps();
        assert_eq!(job.steps(), steps);
        assert_eq!(job.results().len(), steps.len());
    }
}

#[test]
fn merged_step_ends_where_the_next_one_would_make_it_too_long() {
    const STEP_BYTES: usize = MERGED_BYTES_MAX / 4;
    let mut job = MoveJob::new();
    job.add_memory(vec![0; 5 * MERGED_BYTES_MAX]);
    let mut at = 0;
    for bytes in [[STEP_BYTES; 9].as_slice(), &[2 * MERGED_BYTES_MAX, STEP_BYTES]].concat() {
        job.add_step(MoveStep::Fill { to: MemoryPlace::new(0, at).range(bytes), value: 7 });
        at += bytes;
    }
    let steps = job.steps().to_vec();
    job.check().unwrap();
    assert_eq!(job.merge_steps(), 6);
    let merged: Vec<usize> = job.steps().iter().map(MoveStep::bytes).collect();
    // A step that was given longer stays as it is.
    let expected = [MERGED_BYTES_MAX, MERGED_BYTES_MAX, STEP_BYTES, 2 * MERGED_BYTES_MAX, STEP_BYTES];
    assert_eq!(merged, expected);
    run::run(&mut job);
    job.restore_steps();
    assert_eq!((job.steps(), job.results().len()), (steps.as_slice(), 11));
}
