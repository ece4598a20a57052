//! Seeded runs of block commands against a map of blocks, with collection, restarts and media that must be read.

use super::host::{NamespaceHost, blocks, range, write};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Fua, Lba, NamespaceId, SsdCommand};
use headwater_ssd::engine::{DeviceConfig, Durability};
use headwater_ssd::limits::{BATCH_PART_WRITES, NAMESPACES};
use headwater_ssd::media::file::{FileMedia, FileOptions};
use headwater_ssd::media::{FlashGeometry, Media};
use headwater_ssd::namespace::{BlockFormat, NamespaceChange};
use std::collections::BTreeMap;
use tempfile::TempDir;

/// The expected contents of one namespace.
struct ModelDisk {
    namespace: NamespaceId,
    format: BlockFormat,
    size: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl ModelDisk {
    fn expected(&self, start: u64, blocks: u32) -> Vec<u8> {
        let block = |lba| self.blocks.get(&lba).cloned().unwrap_or_else(|| vec![0; self.format.bytes()]);
        (start..start + u64::from(blocks)).flat_map(block).collect()
    }

    fn put(&mut self, start: u64, data: &[u8]) {
        for (lba, block) in (start..).zip(data.chunks(self.format.bytes())) {
            self.blocks.insert(lba, block.to_vec());
        }
    }
}

struct ModelRun<M> {
    host: NamespaceHost<M>,
    disks: Vec<ModelDisk>,
    random: fastrand::Rng,
    seed: u64,
}

impl<M: Media + std::fmt::Debug> ModelRun<M> {
    fn new(host: NamespaceHost<M>, seed: u64) -> Self {
        let mut run = Self { host, disks: Vec::new(), random: fastrand::Rng::with_seed(seed), seed };
        for (format, size) in
            [(BlockFormat::B512, 700), (BlockFormat::B4096, 300), (BlockFormat::B512, 1 << 30)]
        {
            let namespace = run.host.create(blocks(format, size));
            run.disks.push(ModelDisk { namespace, format, size, blocks: BTreeMap::new() });
        }
        run
    }

    /// Returns a random range of blocks of a disk; of the largest disk near one of its ends.
    fn random_range(&mut self, disk: usize) -> (u64, u32) {
        let ModelDisk { size, .. } = self.disks[disk];
        let max = if self.random.u8(0..8) == 0 { 60 } else { 6 };
        let blocks = self.random.u32(1..=max);
        let near = size.min(400) - u64::from(blocks);
        let start = self.random.u64(0..=near);
        let far = size > 1_000 && self.random.bool();
        (if far { size - 400 + start } else { start }, blocks)
    }

    fn step(&mut self) {
        let at = self.random.usize(0..self.disks.len());
        let (start, blocks) = self.random_range(at);
        let seed = self.seed;
        let disk = &mut self.disks[at];
        let namespace = disk.namespace;
        match self.random.u8(0..16) {
            0..=5 => {
                let bytes = blocks as usize * disk.format.bytes();
                let data: Vec<u8> = (0..bytes).map(|_| self.random.u8(..)).collect();
                let fua = if self.random.bool() { Fua::Yes } else { Fua::No };
                let status = self.host.run(namespace, write(start, data.clone(), fua)).status;
                assert_eq!(status, Status::SUCCESS, "seed {seed}");
                disk.put(start, &data);
            }
            6 | 7 => {
                assert_eq!(
                    self.host.deallocate(namespace, &[(start, blocks)]),
                    Status::SUCCESS,
                    "seed {seed}"
                );
                disk.blocks.retain(|lba, _| !(start..start + u64::from(blocks)).contains(lba));
            }
            8 => {
                let data = disk.expected(start, blocks);
                let to = self.random.u64(0..=disk.size - u64::from(blocks));
                let sources = vec![range(start, blocks)];
                let copy = SsdCommand::Copy { sources, destination: Lba(to), fua: Fua::No };
                assert_eq!(self.host.run(namespace, copy).status, Status::SUCCESS, "seed {seed}");
                disk.put(to, &data);
                // A block of zeroes has no record.
                disk.blocks.retain(|_, block| block.iter().any(|byte| *byte != 0));
            }
            9 => {
                let mut data = disk.expected(start, blocks);
                let differs = self.random.bool();
                if differs {
                    let at = self.random.usize(0..data.len());
                    data[at] ^= 1;
                }
                let compare = SsdCommand::Compare { start: Lba(start), data: data.into() };
                let expected = if differs { Status::COMPARE_FAILURE } else { Status::SUCCESS };
                assert_eq!(self.host.run(namespace, compare).status, expected, "seed {seed}");
            }
            10 if self.random.u8(0..20) == 0 => {
                let format = headwater_ssd::namespace::NamespaceKind::Block(disk.format);
                assert_eq!(self.host.change(namespace, NamespaceChange::Format(format)), Status::SUCCESS);
                disk.blocks.clear();
            }
            11 if self.random.u8(0..20) == 0 && disk.size < 1_000 => {
                let size = self.random.u64(300..700);
                assert_eq!(self.host.change(namespace, NamespaceChange::Resize(size)), Status::SUCCESS);
                disk.size = size;
                disk.blocks.retain(|lba, _| *lba < size);
            }
            12 if self.random.u8(0..40) == 0 => {
                let all = u32::try_from(disk.size).unwrap();
                assert_eq!(self.host.deallocate(namespace, &[(0, all)]), Status::SUCCESS, "seed {seed}");
                disk.blocks.clear();
            }
            _ => {
                let read = self.host.read(namespace, start, blocks).unwrap();
                assert!(read == disk.expected(start, blocks), "seed {seed}: {namespace} from {start}");
            }
        }
    }

    fn check(&mut self) {
        for disk in &self.disks {
            let ends =
                if disk.size > 1_000 { vec![(0, 400), (disk.size - 400, 400)] } else { vec![(0, disk.size)] };
            for (start, blocks) in ends {
                for start in (start..start + blocks).step_by(100) {
                    let here = u32::try_from((disk.size - start).min(100)).unwrap();
                    let read = self.host.read(disk.namespace, start, here).unwrap();
                    assert!(read == disk.expected(start, here), "seed {}: {}", self.seed, disk.namespace);
                }
            }
            let verify = SsdCommand::Verify { range: range(0, u32::try_from(disk.size).unwrap()) };
            assert_eq!(self.host.run(disk.namespace, verify).status, Status::SUCCESS);
            let held = disk.blocks.len() as u64;
            assert_eq!(self.host.device.namespace_usage(disk.namespace), held, "seed {}", self.seed);
        }
    }
}

fn config(seed: u64) -> DeviceConfig {
    let durability = if seed.is_multiple_of(2) { Durability::OnFlush } else { Durability::Always };
    let batch_part_writes = [BATCH_PART_WRITES, 1, 3][(seed % 3) as usize];
    let durability = [durability; NAMESPACES];
    DeviceConfig { durability, frames_max: 512, batch_part_writes, ..DeviceConfig::default() }
}

#[test]
fn blocks_match_a_map_across_collection_and_restarts() {
    for seed in 0..4 {
        let mut run = ModelRun::new(NamespaceHost::new(40, config(seed)), seed);
        for round in 0..4 {
            for _ in 0..1_500 {
                run.step();
            }
            run.check();
            let ModelRun { mut host, disks, random, seed } = run;
            assert_eq!(host.run(NamespaceId::FIRST, SsdCommand::Flush).status, Status::SUCCESS);
            let before = host.device.stats().live_bytes - host.device.stats().tombstone_bytes;
            assert!(round == 0 || host.device.stats().erases > 0, "seed {seed}: nothing was collected");
            let host = if (seed + round).is_multiple_of(2) { host.reopened() } else { host.restarted() };
            let after = host.device.stats().live_bytes - host.device.stats().tombstone_bytes;
            assert_eq!(before, after, "seed {seed}: live bytes differ after recovery");
            run = ModelRun { host, disks, random, seed };
            run.check();
        }
    }
}

#[test]
fn blocks_read_from_a_file_match_a_map() {
    for seed in 100..102 {
        let directory = TempDir::new().unwrap();
        let options = FileOptions::default();
        let media =
            FileMedia::create(directory.path(), FlashGeometry::with_blocks(40), [3; 16], options).unwrap();
        let mut run = ModelRun::new(NamespaceHost::on(media, config(seed)), seed);
        for _ in 0..2 {
            for _ in 0..600 {
                run.step();
            }
            run.check();
            assert!(run.host.device.stats().cache_misses > 0, "everything was in memory");
            let ModelRun { host, disks, random, seed } = run;
            let mut device = host.device;
            device.shutdown(headwater_host::clock::Nanos::ZERO, super::host::WALL).unwrap();
            drop(device);
            let media = FileMedia::open(directory.path(), options).unwrap();
            run = ModelRun { host: NamespaceHost::on(media, config(seed)), disks, random, seed };
            run.check();
        }
    }
}
