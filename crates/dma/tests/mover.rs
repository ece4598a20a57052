//! Jobs of the mover against a byte loop over vectors.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_dma::frame::{FRAME_BYTES, MediaFrame};
use headwater_dma::iova::{ClientMemory, Iova};
use headwater_dma::mover::policy::PolicyConfig;
use headwater_dma::mover::{
    CacheIntent, ChannelCounters, InvalidStep, LARGE_JOB_BYTES, MemoryPlace, MoveChannel, MoveDurability,
    MoveJob, MoveMemory, MoveStep, Mover, SoftwareChannel, StepResult,
};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::copy::persist::{DrainPromise, WriteBackInstruction, write_back_instruction};
use headwater_host::lent_bytes::LentBytes;
use headwater_host::shared_memory::SharedMemory;

#[path = "mover/dsa.rs"]
mod dsa;
#[path = "mover/dsa_operations.rs"]
mod dsa_operations;
#[path = "mover/gpu.rs"]
mod gpu;
#[path = "mover/gpu_memory.rs"]
mod gpu_memory;
// By its path: the crate of the fixtures depends on half of the workspace.
#[path = "../../testkit/src/software_gpu.rs"]
pub mod software_gpu;

fn noise(bytes: usize, random: &mut fastrand::Rng) -> Vec<u8> {
    (0..bytes).map(|_| random.u8(..)).collect()
}

/// Returns the CRC-32C, bit by bit.
fn crc_of(seed: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!seed, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82F6_3B78 & 0_u32.wrapping_sub(crc & 1)))
    })
}

/// Memories of every kind, and a handle to the shared ones to read them back.
struct AllMemories {
    client: ClientMemory,
    shared: SharedMemory,
    /// The bytes of each memory, by its number in a job.
    expected: Vec<Vec<u8>>,
}

impl AllMemories {
    fn new(job: &mut MoveJob, random: &mut fastrand::Rng) -> Self {
        let mut client = ClientMemory::default();
        let region = SharedMemory::anonymous(16_384).unwrap();
        let first = noise(9_000, random);
        region.copy_out(0, &first).unwrap();
        client.register(Iova(0), region).unwrap();
        let shared = SharedMemory::anonymous(16_384).unwrap();
        let second = noise(16_384, random);
        shared.copy_out(0, &second).unwrap();
        let mut frame = MediaFrame::zeroed();
        let third = noise(FRAME_BYTES, random);
        frame.copy_from_slice(&third);
        let mut vector = Vec::with_capacity(20_000);
        let fourth = noise(5_000, random);
        vector.extend_from_slice(&fourth);
        let fifth = noise(12_000, random);
        let lent = noise(7_001, random);
        job.add_memory(client.resolve(Iova(0), 9_000).unwrap());
        job.add_memory(shared.clone());
        job.add_memory(frame);
        job.add_memory(LentBytes::from(lent.clone().leak()));
        job.add_memory(vector);
        job.add_memory(Bytes::from(fifth.clone()));
        Self { client, shared, expected: vec![first, second, third, lent, fourth, fifth] }
    }

    fn check(&self, job: MoveJob, seed: u64) {
        for (number, (memory, expected)) in job.into_memories().into_iter().zip(&self.expected).enumerate() {
            let found = match memory {
                MoveMemory::Client(_) => {
                    let mut bytes = vec![0; expected.len()];
                    self.client.resolve(Iova(0), 9_000).unwrap().copy_in(0, &mut bytes);
                    bytes
                }
                MoveMemory::Shared(_) => {
                    let mut bytes = vec![0; expected.len()];
                    self.shared.copy_in(0, &mut bytes).unwrap();
                    bytes
                }
                MoveMemory::Frame(frame) => frame.to_vec(),
                MoveMemory::Vec(bytes) => bytes,
                MoveMemory::Bytes(bytes) => bytes.to_vec(),
                MoveMemory::Lent(lent) => lent.as_bytes().to_vec(),
                other => panic!("{other:?} was not added"),
            };
            assert!(found == *expected, "memory {number}, seed {seed}");
        }
    }
}

/// Number of the memory that can only be read, and of the one that grows.
const READ_ONLY: usize = 5;
const GROWING: usize = 4;
const GROWN_MAX: usize = 20_000;

/// Draws a step that is allowed now, does it on the model, and returns it with its result.
fn draw(expected: &mut [Vec<u8>], random: &mut fastrand::Rng, is_persistent: bool) -> (MoveStep, StepResult) {
    let bytes = [0, 1, 63, 64, 700, 1_024, 4_096, 5_000][random.usize(..8)].min(4_500);
    let place = |memory: usize, random: &mut fastrand::Rng, expected: &[Vec<u8>]| {
        let room = expected[memory].len() - bytes;
        MemoryPlace::new(memory, random.usize(..=room))
    };
    let target = |random: &mut fastrand::Rng, expected: &[Vec<u8>]| {
        let first = usize::from(is_persistent);
        let memory = random.usize(first..READ_ONLY);
        if memory == GROWING && random.bool() && expected[GROWING].len() + bytes <= GROWN_MAX {
            return MemoryPlace::new(GROWING, expected[GROWING].len());
        }
        place(memory, random, expected)
    };
    let is_apart = |a: MemoryPlace, b: MemoryPlace| {
        a.memory != b.memory || a.offset + bytes <= b.offset || b.offset + bytes <= a.offset
    };
    let write = |expected: &mut [Vec<u8>], to: MemoryPlace, from: &[u8]| {
        let into = &mut expected[to.memory];
        into.resize(into.len().max(to.offset + from.len()), 0);
        into[to.offset..to.offset + from.len()].copy_from_slice(from);
    };
    loop {
        let memory = random.usize(..=READ_ONLY);
        let from = place(memory, random, expected);
        let content = expected[memory][from.offset..from.offset + bytes].to_vec();
        let (to, second) = (target(random, expected), target(random, expected));
        let seed = random.u32(..);
        let (step, result) = match random.usize(..8) {
            0 | 1 if is_apart(from, to) => {
                write(expected, to, &content);
                (MoveStep::Copy { from: from.range(bytes), to }, StepResult::Done)
            }
            2 if is_apart(from, to) => {
                write(expected, to, &content);
                let step = MoveStep::CopyCrc32c { from: from.range(bytes), to, seed };
                (step, StepResult::Crc32c(crc_of(seed, &content)))
            }
            3 if is_apart(from, to)
                && is_apart(from, second)
                && is_apart(to, second)
                && second.offset + bytes <= expected[second.memory].len() =>
            {
                write(expected, to, &content);
                write(expected, second, &content);
                (MoveStep::Dualcast { from: from.range(bytes), to: [to, second] }, StepResult::Done)
            }
            4 => {
                let value = random.u8(..);
                write(expected, to, &vec![value; bytes]);
                (MoveStep::Fill { to: to.range(bytes), value }, StepResult::Done)
            }
            5 if to.offset + bytes <= expected[to.memory].len() => {
                let with = &expected[to.memory][to.offset..to.offset + bytes];
                let at = content.iter().zip(with).position(|(a, b)| a != b);
                let result = at.map_or(StepResult::Equal, StepResult::DiffersAt);
                (MoveStep::Compare { range: from.range(bytes), with: to }, result)
            }
            6 => {
                let step = MoveStep::Crc32c { of: from.range(bytes), seed };
                (step, StepResult::Crc32c(crc_of(seed, &content)))
            }
            // Of memory whose lines may be written back: not of a client.
            7 if is_persistent && to.offset + bytes <= expected[to.memory].len() => {
                (MoveStep::Flush { of: to.range(bytes) }, StepResult::Done)
            }
            _ => continue,
        };
        return (step, result);
    }
}

#[test]
fn jobs_move_what_a_byte_loop_moves() {
    check_jobs(&mut Mover::default());
}

#[test]
fn jobs_split_over_channels_move_what_a_byte_loop_moves() {
    for channels in [1, 3] {
        // A channel whose thread lost its core rests, on a busy machine after its first part: movers begin anew until one
        // of which no channel was late did its share, or all of them together did.
        let (mut parts, mut movers) = (0, 0);
        while parts <= 20 {
            assert!(movers < 50, "{parts} parts went to {channels} channels of {movers} movers");
            parts += split_jobs(channels).channel_jobs;
            movers += 1;
        }
    }
}

/// Checks jobs of a new mover, whose channels get parts of every job.
fn split_jobs(channels: usize) -> ChannelCounters {
    let clock = Clock::start();
    let channels = (0..channels).map(|_| {
        let channel = SoftwareChannel::start(clock, Nanos::from_millis(60_000)).unwrap();
        Box::new(channel) as Box<dyn MoveChannel>
    });
    // Channels seem fast.
    let eager = PolicyConfig {
        threshold_bytes: [1; 4],
        part_min_bytes: 1,
        cpu_bytes_per_ns: 0.5,
        channel_bytes_per_ns: 0.5,
        channel_fixed_ns: 0.0,
        ..PolicyConfig::default()
    };
    let mut mover = Mover::with_channels(channels.collect(), eager, clock);
    mover.policy_mut().unwrap().freeze();
    check_jobs(&mut mover);
    let counters = mover.channel_counters();
    assert_eq!(counters.abandoned, 0);
    counters
}

fn check_jobs(mover: &mut Mover) {
    (0..400).for_each(|seed| check_job(mover, seed));
}

fn check_job(mover: &mut Mover, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let is_persistent = random.bool();
    let mut job = MoveJob::new()
        .with_durability(if is_persistent { MoveDurability::Persistent } else { MoveDurability::Visible })
        .with_cache_intent(if random.bool() { CacheIntent::NotSoon } else { CacheIntent::ReadSoon });
    let mut memories = AllMemories::new(&mut job, &mut random);
    let mut results = Vec::new();
    for _ in 0..random.usize(..20) {
        let (step, result) = draw(&mut memories.expected, &mut random, is_persistent);
        job.add_step(step);
        results.push(result);
    }
    mover.run(&mut job).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert_eq!(job.results(), results, "seed {seed}");
    let has_instruction = write_back_instruction() != WriteBackInstruction::Unavailable;
    let promise = if has_instruction { DrainPromise::PersistenceDomain } else { DrainPromise::VisibleOnly };
    assert_eq!(job.promise(), is_persistent.then_some(promise), "seed {seed}");
    memories.check(job, seed);
}

#[test]
fn ranges_of_one_memory_that_overlap_are_refused_and_those_apart_are_copied() {
    let mut mover = Mover::default();
    for (from, to, bytes) in [(0, 1, 2), (1, 0, 2), (5, 5, 1), (0, 99, 100)] {
        let mut job = MoveJob::new();
        let memory = job.add_memory((0..200).collect::<Vec<u8>>());
        job.add_step(MoveStep::Copy {
            from: MemoryPlace::new(memory, from).range(bytes),
            to: MemoryPlace::new(memory, to),
        });
        assert_eq!(mover.run(&mut job), Err(InvalidStep::Overlap { step: 0, memory }));
        assert!(job.results().is_empty());
        assert_eq!(job.into_memories().remove(0).into_vec().unwrap(), (0..200).collect::<Vec<u8>>());
    }
    for (from, to, bytes) in [(0, 2, 2), (2, 0, 2), (5, 5, 0), (0, 100, 100)] {
        let mut job = MoveJob::new();
        let memory = job.add_memory((0..200).collect::<Vec<u8>>());
        job.add_step(MoveStep::Copy {
            from: MemoryPlace::new(memory, from).range(bytes),
            to: MemoryPlace::new(memory, to),
        });
        mover.run(&mut job).unwrap();
        let mut expected: Vec<u8> = (0..200).collect();
        expected.copy_within(from..from + bytes, to);
        assert_eq!(job.into_memories().remove(0).into_vec().unwrap(), expected);
    }
}

#[test]
fn steps_beyond_their_memories_are_refused_before_any_is_done() {
    let mut mover = Mover::default();
    let steps = [
        MoveStep::Fill { to: MemoryPlace::new(3, 0).range(1), value: 1 },
        MoveStep::Fill { to: MemoryPlace::new(0, 8).range(1), value: 1 },
        MoveStep::Fill { to: MemoryPlace::new(0, usize::MAX).range(2), value: 1 },
        MoveStep::Fill { to: MemoryPlace::new(0, 0).range(usize::MAX), value: 1 },
        MoveStep::Fill { to: MemoryPlace::new(1, 0).range(1), value: 1 },
        MoveStep::Crc32c { of: MemoryPlace::new(1, usize::MAX).range(usize::MAX), seed: 0 },
        MoveStep::Copy { from: MemoryPlace::new(1, 1).range(8), to: MemoryPlace::new(0, 0) },
        MoveStep::Dualcast {
            from: MemoryPlace::new(1, 0).range(8),
            to: [MemoryPlace::new(0, 0), MemoryPlace::new(0, 4)],
        },
        MoveStep::Compare { range: MemoryPlace::new(1, 0).range(8), with: MemoryPlace::new(0, 1) },
    ];
    for step in steps {
        let mut job = MoveJob::new();
        let target = job.add_memory(vec![7; 8].into_boxed_slice().into_vec());
        job.add_memory(Bytes::from_static(b"read it!"));
        job.add_step(MoveStep::Fill { to: MemoryPlace::new(target, 0).range(8), value: 9 });
        job.add_step(step);
        let error = mover.run(&mut job).expect_err("the step names what the job does not have");
        assert!(error.to_string().contains("step 1"), "{error}");
        assert_eq!(job.into_memories().remove(0).into_vec().unwrap(), [7; 8]);
    }
    assert_eq!(mover.counters().small_jobs, 0);
}

#[test]
fn client_memory_gets_no_promise_of_persistence() {
    let mut client = ClientMemory::default();
    client.register(Iova(0), SharedMemory::anonymous(4_096).unwrap()).unwrap();
    let mut job = MoveJob::new().with_durability(MoveDurability::Persistent);
    let memory = job.add_memory(client.resolve(Iova(0), 64).unwrap());
    job.add_step(MoveStep::Fill { to: MemoryPlace::new(memory, 0).range(64), value: 1 });
    assert_eq!(Mover::default().run(&mut job), Err(InvalidStep::NotPersistent { step: 0, memory }));
}

#[test]
fn large_and_small_jobs_are_counted_by_their_bytes() {
    let mut mover = Mover::default();
    for bytes in [0, 1, LARGE_JOB_BYTES - 1, LARGE_JOB_BYTES, 3 * LARGE_JOB_BYTES] {
        let mut job = MoveJob::new();
        let memory = job.add_memory(vec![0; bytes]);
        job.add_step(MoveStep::Crc32c { of: MemoryPlace::new(memory, 0).range(bytes), seed: 0 });
        mover.run(&mut job).unwrap();
    }
    let counters = mover.counters();
    assert_eq!((counters.small_jobs, counters.large_jobs), (3, 2));
    assert_eq!(counters.small_bytes, LARGE_JOB_BYTES as u64);
    assert_eq!(counters.large_bytes, 4 * LARGE_JOB_BYTES as u64);
}

#[test]
fn a_part_of_client_memory_holds_the_bytes_of_its_range() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut client = ClientMemory::new();
    // Regions side by side: a range over them has several pieces.
    let lengths = [4_096, 8_192, 4_096, 12_288];
    let mut start = 0;
    for bytes in lengths {
        let region = SharedMemory::anonymous(bytes).unwrap();
        region.copy_out(0, &noise(bytes, &mut random)).unwrap();
        client.register(Iova(start), region).unwrap();
        start += bytes as u64;
    }
    let whole_bytes: usize = lengths.iter().sum();
    let whole = client.resolve(Iova(0), start).unwrap();
    let mut content = vec![0; whole_bytes];
    assert_eq!(whole.copy_in(0, &mut content), whole_bytes);
    for _ in 0..2_000 {
        let skip = random.usize(..=whole_bytes + 10);
        let wanted = random.usize(..=whole_bytes);
        let part = whole.part(skip, wanted);
        let first = skip.min(whole_bytes);
        let expected = &content[first..whole_bytes.min(first + wanted)];
        let mut found = vec![0; part.bytes()];
        assert_eq!(part.copy_in(0, &mut found), expected.len(), "{wanted} bytes from {skip}");
        assert!(found == expected, "{wanted} bytes from {skip}");
    }
}

#[test]
fn lent_memory_is_changed_in_place_by_its_parts() {
    let mut random = fastrand::Rng::with_seed(12);
    let content = noise(100_000, &mut random);
    let source: &'static [u8] = content.clone().leak();
    let mut job = MoveJob::new();
    let (front, back) = LentBytes::from(vec![0; 100_000].leak()).split_at(40_000);
    let address = front.as_bytes().as_ptr();
    let from = job.add_memory(LentBytes::from(source));
    for (part, at) in [(front, 0), (back, 40_000)] {
        let bytes = part.len();
        let to = job.add_memory(part);
        job.add_step(MoveStep::CopyCrc32c {
            from: MemoryPlace::new(from, at).range(bytes),
            to: MemoryPlace::new(to, 0),
            seed: 0,
        });
    }
    Mover::default().run(&mut job).unwrap();
    assert_eq!(job.crc32c(1), Some(crc_of(0, &content[40_000..])));
    let parts: Vec<LentBytes> = job.into_memories().into_iter().filter_map(MoveMemory::into_lent).collect();
    assert!(parts[0].as_bytes() == source && parts[1].as_bytes() == &content[..40_000]);
    assert!(parts[2].as_bytes() == &content[40_000..] && parts[1].as_bytes().as_ptr() == address);
}

#[test]
fn memory_lent_to_read_is_never_a_target() {
    let source: &'static [u8] = b"read it!";
    for durability in [MoveDurability::Visible, MoveDurability::Persistent] {
        let mut job = MoveJob::new().with_durability(durability);
        let memory = job.add_memory(LentBytes::from(source));
        job.add_step(MoveStep::Fill { to: MemoryPlace::new(memory, 0).range(1), value: 1 });
        assert_eq!(Mover::default().run(&mut job), Err(InvalidStep::ReadOnly { step: 0, memory }));
    }
}
