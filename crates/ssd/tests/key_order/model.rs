//! A seeded run against a model that carries out each command at its submission.

use super::host::{
    DoneCommand, OrderHost, PART_WRITES, batch, copy, deallocate, delete, long_store, range, read, retrieve,
    value_in, write,
};
use fastrand::Rng;
use headwater_host::width::to_usize;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Lba, LbaRange, SsdCommand};
use headwater_ssd::engine::DeviceConfig;
use headwater_ssd::limits::COPY_PART_BYTES;
use std::collections::{BTreeMap, BTreeSet};

const SEEDS: u64 = 24;
const COMMANDS: u64 = 400;
const IN_FLIGHT_MAX: usize = 40;
const KEYS: usize = 8;
const BLOCKS: usize = 64;

/// The effect of a command.
#[derive(Clone, Debug)]
enum Effect {
    Put { keys: Vec<u64>, value: u64 },
    Remove(u64),
    Get(u64),
    Write { range: LbaRange, value: u64 },
    Discard(Vec<LbaRange>),
    Copy { source: LbaRange, destination: u64 },
    Read(LbaRange),
}

impl Effect {
    fn random(random: &mut Rng, value: u64) -> Self {
        let start = random.usize(..BLOCKS);
        let blocks = random.usize(1..=(BLOCKS - start).min(4 * PART_WRITES));
        let destination = random.usize(..=BLOCKS - blocks) as u64;
        let range = range(start as u64, u32::try_from(blocks).unwrap());
        let mut keys: Vec<u64> = (0..KEYS as u64).collect();
        random.shuffle(&mut keys);
        match random.u32(..20) {
            0..3 => Self::Put { keys: vec![keys[0]], value },
            3..7 => Self::Put { keys: keys.split_off(random.usize(1..KEYS)), value },
            7..9 => Self::Remove(keys[0]),
            9..12 => Self::Get(keys[0]),
            12..15 => Self::Write { range, value },
            15 => Self::Discard(vec![range, LbaRange { start: Lba(destination), blocks: 1 }]),
            16 => Self::Copy { source: range, destination },
            _ => Self::Read(range),
        }
    }

    /// Returns the command with the effect. The keys of some batches are few, of some many, and some values are long.
    fn command(&self, random: &mut Rng) -> SsdCommand {
        match self {
            Self::Put { keys, value } if keys.len() == 1 => {
                let bytes = *random.choice(&[8, 8, 5_000, COPY_PART_BYTES + 8_000]).unwrap();
                long_store(keys[0], *value, bytes)
            }
            Self::Put { keys, value } => {
                let fillers = *random.choice(&[0, 0, 10, 10, 550]).unwrap();
                let first = 1_000 + random.u64(..2_000);
                batch(keys.iter().copied().chain(first..first + fillers), *value)
            }
            Self::Remove(key) => delete(*key),
            Self::Get(key) => retrieve(*key),
            Self::Write { range, value } => write(*range, *value),
            Self::Discard(ranges) => deallocate(ranges.clone()),
            Self::Copy { source, destination } => copy(*source, *destination),
            Self::Read(range) => read(*range),
        }
    }
}

/// The keys and blocks, on which one command after another takes effect.
struct OrderModel {
    keys: BTreeMap<u64, u64>,
    blocks: [u64; BLOCKS],
}

impl OrderModel {
    fn blocks_of(&mut self, range: LbaRange) -> &mut [u64] {
        &mut self.blocks[to_usize(range.start.0)..][..range.blocks as usize]
    }

    /// Applies an effect, and checks that the command saw those before it and no later one.
    fn apply(&mut self, effect: &Effect, done: &DoneCommand, context: &str) {
        let mut wanted = Status::SUCCESS;
        match effect {
            Effect::Put { keys, value } => self.keys.extend(keys.iter().map(|key| (*key, *value))),
            Effect::Remove(key) => {
                if self.keys.remove(key).is_none() {
                    wanted = Status::KEY_DOES_NOT_EXIST;
                }
            }
            Effect::Get(key) => {
                assert_eq!(done.value(), self.keys.get(key).copied(), "{context}");
                wanted = done.completion.status;
            }
            Effect::Write { range, value } => self.blocks_of(*range).fill(*value),
            Effect::Discard(ranges) => ranges.iter().for_each(|range| self.blocks_of(*range).fill(0)),
            Effect::Copy { source, destination } => {
                let from = self.blocks_of(*source).to_vec();
                self.blocks_of(LbaRange { start: Lba(*destination), ..*source }).copy_from_slice(&from);
            }
            Effect::Read(range) => {
                let values = done.completion.sink.chunks(512).map(value_in);
                assert_eq!(values.collect::<Vec<_>>(), self.blocks_of(*range), "{context}");
            }
        }
        assert_eq!(done.completion.status, wanted, "{context}");
    }
}

#[test]
fn commands_on_several_keys_or_blocks_run_as_if_one_after_another() {
    for seed in 0..SEEDS {
        eprintln!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let config = DeviceConfig {
            batch_part_writes: PART_WRITES,
            frames_max: 4_096,
            // Keys that share a hash keep their order too.
            hash_bits: if seed % 4 == 0 { 8 } else { 60 },
            ..DeviceConfig::default()
        };
        let mut host = OrderHost::with_config(config);
        let (mut submitted, mut aborted) = (Vec::new(), BTreeSet::new());
        for value in 1..=COMMANDS {
            let effect = Effect::random(&mut random, value);
            let token = host.submit(effect.command(&mut random));
            submitted.push((token, effect));
            if random.u32(..6) == 0 {
                let recent = submitted.len().saturating_sub(10);
                let (token, _) = submitted[random.usize(recent..submitted.len())];
                if host.abort(token) {
                    aborted.insert(token);
                }
            }
            let turns = if random.bool() { 0 } else { random.usize(..4) };
            (0..turns).for_each(|_| host.poll());
            while host.device.in_flight() > IN_FLIGHT_MAX {
                host.poll();
            }
        }
        let rest =
            (0..KEYS as u64).map(Effect::Get).chain([Effect::Read(range(0, u32::try_from(BLOCKS).unwrap()))]);
        for effect in rest {
            let token = host.submit(effect.command(&mut random));
            submitted.push((token, effect));
        }
        let done = host.finish();
        assert_eq!(host.device.in_flight(), 0);
        let mut model = OrderModel { keys: BTreeMap::new(), blocks: [0; BLOCKS] };
        for (token, effect) in submitted {
            if aborted.contains(&token) {
                assert_eq!(done[&token].completion.status, Status::ABORT_REQUESTED);
            } else {
                model.apply(&effect, &done[&token], &format!("command {token}, {effect:?}"));
            }
        }
        assert!(aborted.len() > 10, "{} commands were aborted", aborted.len());
    }
}
