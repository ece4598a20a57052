//! The upgrade of a flash file of version 1, interrupted at every point of its record of writes: the file opens by the rules
//! of one of the versions with the same records, and the next upgrade finishes it.

use crate::device::{FileDevice, START, config, get, open_device, open_media, run, seeded};
use bytes::Bytes;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use headwater_sim::faults::DamagePlan;
use headwater_sim::simulated_file::SimFile;
use headwater_ssd::command::{Lba, LbaRange, NamespaceId, RecordExpiry, SsdCommand, WriteCondition};
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::engine::upgrade::{UpgradeError, UpgradedFile, upgrade_file};
use headwater_ssd::log::record::{
    FLAG_BATCH_MORE, FLAG_BATCH_REST, FLAG_CLEAR, FLAG_LBA, FLAG_TOMBSTONE, batch_flags,
};
use headwater_ssd::media::file::{OpenAccess, StartupFile};
use headwater_testkit::version1_file::{Version1File, Version1Record};
use std::collections::BTreeMap;

const UUID: [u8; 16] = *b"upgraded file 16";
const BLOCKS: u32 = 40;
const KEYS: u32 = 60;
/// One point in this many is rebuilt and upgraded again, from a random one on.
const EVERY: usize = 3;
/// Events before the end of the change of the version, and before the end of the upgrade, around which every point is rebuilt
/// this many times.
const CLOSE: usize = 26;
const TIMES: usize = 12;

/// The namespace of logical blocks, and the bytes of one.
const BLOCK_NAMESPACE: u8 = 3;
const BLOCK_BYTES: usize = 4_096;
/// The namespace that holds the table of namespaces (`docs/formats/namespace-table.md`).
const SYSTEM_NAMESPACE: u8 = 17;

/// The keys and logical blocks of a file.
#[derive(Default)]
struct FileContents {
    /// The state of each key, by its namespace.
    keys: BTreeMap<(u8, Vec<u8>), Option<Vec<u8>>>,
    /// Every logical block; one that was removed or never written holds zeros.
    blocks: Vec<Option<Vec<u8>>>,
}

impl FileContents {
    /// Returns the number of keys and logical blocks, with the record of the namespace of blocks.
    fn live(&self) -> u64 {
        self.keys.values().chain(&self.blocks).flatten().count() as u64 + 1
    }
}

/// A file of version 1 that is being filled, and what it holds.
struct FilledFile {
    file: Version1File,
    sequence: u64,
    contents: FileContents,
}

impl FilledFile {
    fn new() -> Self {
        Self { file: Version1File::new(BLOCKS, UUID), sequence: 0, contents: FileContents::default() }
    }

    fn append(&mut self, namespace: u8, flags: u8, key: &[u8], value: &[u8]) {
        self.sequence += 1;
        let (key, value) = (key.to_vec(), value.to_vec());
        self.file.append(&Version1Record { namespace, flags, sequence: self.sequence, key, value });
    }

    fn store(&mut self, namespace: u8, key: &[u8], value: Vec<u8>) {
        self.append(namespace, 0, key, &value);
        self.contents.keys.insert((namespace, key.to_vec()), Some(value));
    }

    fn remove(&mut self, namespace: u8, key: &[u8]) {
        self.append(namespace, FLAG_TOMBSTONE, key, &[]);
        self.contents.keys.insert((namespace, key.to_vec()), None);
    }

    /// Creates the namespace of blocks.
    fn create_blocks(&mut self, blocks: usize) {
        let mut table_entry = [0; 64];
        // Version 1 of the table, logical blocks of 4,096 bytes.
        table_entry[..3].copy_from_slice(&[1, 2, 1]);
        table_entry[8..16].copy_from_slice(&(blocks as u64).to_le_bytes());
        table_entry[40..56].copy_from_slice(&UUID);
        self.append(SYSTEM_NAMESPACE, FLAG_LBA, &u64::from(BLOCK_NAMESPACE).to_le_bytes(), &table_entry);
        self.contents.blocks = vec![None; blocks];
    }

    /// Writes or removes a few blocks in a row, all or nothing.
    fn change_blocks(&mut self, rng: &mut fastrand::Rng) {
        let start = rng.usize(..self.contents.blocks.len());
        let last = (start + rng.usize(..5)).min(self.contents.blocks.len() - 1);
        let is_written = rng.u8(0..4) > 0;
        for lba in start..=last {
            let value = is_written.then(|| random_bytes(rng, BLOCK_BYTES));
            self.append_block(lba, batch_flags(lba - start, last - start), value.as_deref());
            self.contents.blocks[lba] = value;
        }
    }

    fn append_block(&mut self, lba: usize, flags: u8, value: Option<&[u8]>) {
        let flags = flags | FLAG_LBA | if value.is_none() { FLAG_TOMBSTONE } else { 0 };
        self.append(BLOCK_NAMESPACE, flags, &(lba as u64).to_le_bytes(), value.unwrap_or_default());
    }
}

fn random_bytes(rng: &mut fastrand::Rng, bytes: usize) -> Vec<u8> {
    let mut value = vec![0; bytes];
    rng.fill(&mut value);
    value
}

/// Fills a file with stores, removals, a clear, a batch, a chained record, logical blocks, an older life of some blocks of
/// the medium, and at its end a batch that a kill left incomplete.
fn fill(rng: &mut fastrand::Rng, blocks: u32) -> (FilledFile, SimFile) {
    let mut filled = FilledFile::new();
    for key in 0..KEYS {
        let value = random_bytes(rng, 9_000);
        filled.append(1, 0, format!("key-{key}").as_bytes(), &value);
        filled.append(1, 0, format!("erased-{key}").as_bytes(), &value);
        filled.contents.keys.insert((1, format!("erased-{key}").into_bytes()), None);
    }
    filled.file.erase_all();
    fill_further(&mut filled, rng, (blocks, KEYS));
    let file = written(&mut filled, rng);
    (filled, file)
}

/// Fills a file up to this many blocks with this many keys, or logical blocks, in each namespace.
fn fill_further(filled: &mut FilledFile, rng: &mut fastrand::Rng, (blocks, keys): (u32, u32)) {
    filled.append(2, 0, b"cleared", b"gone");
    filled.append(2, FLAG_CLEAR, &[], &[]);
    filled.contents.keys.insert((2, b"cleared".to_vec()), None);
    filled.create_blocks(keys as usize);
    filled.store(1, b"chained", random_bytes(rng, 600_000));
    while filled.file.blocks_used() < blocks {
        let (namespace, key) = (rng.u8(1..=2), format!("key-{}", rng.u32(0..keys)).into_bytes());
        match rng.u8(0..13) {
            0..2 => filled.remove(namespace, &key),
            2 => filled.file.end_page(),
            3..6 => filled.change_blocks(rng),
            _ => {
                let bytes = if rng.bool() { rng.usize(0..200) } else { rng.usize(200..20_000) };
                filled.store(namespace, &key, random_bytes(rng, bytes));
            }
        }
    }
    filled.file.end_block();
    for (key, flags) in [("left", FLAG_BATCH_MORE), ("right", FLAG_BATCH_REST)] {
        filled.append(1, flags, key.as_bytes(), b"batch");
        filled.contents.keys.insert((1, key.as_bytes().to_vec()), Some(b"batch".to_vec()));
    }
    filled.store(1, b"kept", b"before the kill".to_vec());
    if rng.bool() {
        filled.append(1, FLAG_TOMBSTONE | FLAG_BATCH_MORE, b"kept", &[]);
    } else {
        filled.append_block(0, FLAG_BATCH_MORE, Some(&[0xEE; BLOCK_BYTES]));
    }
}

/// Writes a file that is filled.
fn written(filled: &mut FilledFile, rng: &mut fastrand::Rng) -> SimFile {
    let file = SimFile::zeroed(filled.file.upgraded_bytes() as u64, rng.u64(..));
    for (offset, bytes) in std::mem::replace(&mut filled.file, Version1File::new(1, UUID)).finish() {
        file.write_at(&bytes, offset as u64).unwrap();
    }
    file.sync().unwrap();
    file
}

fn upgrade(file: &SimFile) -> Result<UpgradedFile, UpgradeError> {
    upgrade_noting(file, &mut Vec::new())
}

/// Upgrades a file, and notes the length of its record of writes at each opening.
fn upgrade_noting(file: &SimFile, openings: &mut Vec<usize>) -> Result<UpgradedFile, UpgradeError> {
    let mut open = || {
        openings.push(file.journal_len());
        Ok((open_media(file, OpenAccess::ReadWrite)?, file.clone()))
    };
    upgrade_file(&mut open, &config(), START, &mut |_| {})
}

/// Reads every key and logical block. Returns the first difference, and the version of the file.
fn check(file: &SimFile, contents: &FileContents) -> Result<u8, String> {
    let media = open_media(file, OpenAccess::ReadWrite).map_err(|error| error.to_string())?;
    let version = if media.version_1_session().is_some() { 1 } else { 2 };
    let mut device =
        SsdDevice::open(media, config(), START, &mut |_| {}).map_err(|error| error.to_string())?;
    let mut now = Nanos::ZERO;
    for ((namespace, key), expected) in &contents.keys {
        let answer = get(&mut device, &mut now, NamespaceId(*namespace), key);
        let found = match answer.status {
            Status::SUCCESS => Some(answer.sink),
            Status::KEY_DOES_NOT_EXIST => None,
            other => return Err(format!("version {version}: key {key:?}: {other:?}")),
        };
        if found != *expected {
            let bytes = |value: &Option<Vec<u8>>| value.as_ref().map(Vec::len);
            let (found, expected) = (bytes(&found), bytes(expected));
            let key = String::from_utf8_lossy(key);
            return Err(format!(
                "version {version}: key {namespace}/{key} has {found:?} bytes, not {expected:?}"
            ));
        }
    }
    check_blocks(&mut device, &mut now, contents).map_err(|wrong| format!("version {version}: {wrong}"))?;
    Ok(version)
}

fn check_blocks(device: &mut FileDevice, now: &mut Nanos, contents: &FileContents) -> Result<(), String> {
    for (lba, expected) in contents.blocks.iter().enumerate() {
        let range = LbaRange { start: Lba(lba as u64), blocks: 1 };
        let read = SsdCommand::Read { range, sink: Vec::new().into() };
        let answer = run(device, now, NamespaceId(BLOCK_NAMESPACE), read);
        if answer.status != Status::SUCCESS {
            return Err(format!("logical block {lba}: {:?}", answer.status));
        }
        if answer.sink != expected.as_deref().unwrap_or(&[0; BLOCK_BYTES]) {
            return Err(format!("logical block {lba} differs; it was written: {}", expected.is_some()));
        }
    }
    Ok(())
}

#[test]
fn upgraded_file_holds_what_it_held_and_is_written_again() {
    let (_, mut rng) = seeded();
    let (filled, file) = fill(&mut rng, 20);
    assert_eq!(check(&file, &filled.contents), Ok(1));
    let upgraded = upgrade(&file).unwrap();
    assert!(upgraded.is_done && upgraded.blocks_left == 0, "{upgraded:?}");
    let live = filled.contents.live();
    assert_eq!(upgraded.switched.map(|switched| switched.records), Some(live));
    assert_eq!(check(&file, &filled.contents), Ok(2));
    assert!(!open_media(&file, OpenAccess::ReadWrite).unwrap().holds_version_1());
    assert!(matches!(upgrade(&file), Err(UpgradeError::NotVersion1)));
    let mut device = open_device(&file, OpenAccess::ReadWrite).unwrap();
    let (key, value) = (Bytes::from("new"), Bytes::from("value").into());
    let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
    let stored = run(
        &mut device,
        &mut Nanos::ZERO.clone(),
        NamespaceId::FIRST,
        SsdCommand::Store { key, value, condition, expiry },
    );
    assert_eq!(stored.status, Status::SUCCESS);
    assert_eq!(file.misuse(), None);
}

#[test]
fn an_upgrade_that_is_interrupted_anywhere_loses_nothing_and_can_be_finished() {
    let (seed, mut rng) = seeded();
    let (filled, file) = fill(&mut rng, 14);
    file.start_journal();
    let mut openings = Vec::new();
    assert!(upgrade_noting(&file, &mut openings).unwrap().is_done);
    let journal = file.take_journal().unwrap();
    let ends = [openings[1], journal.len()];
    let (first, mut rebuilt, mut versions) = (rng.usize(0..EVERY), 0, [0; 3]);
    let replayed: Result<(), String> = journal.replay(|point, rebuild| {
        let is_close = ends.iter().any(|end| (end - CLOSE..=*end).contains(&point));
        for time in 0..if is_close { TIMES } else { 1 } {
            let again = time == 0 && point % EVERY == first;
            if !again && !is_close {
                continue;
            }
            let damage = DamagePlan { unreadable_percent: 0, ..DamagePlan::draw(&mut rng) };
            let told =
                |wrong| format!("seed {seed} point {point} of {}: {wrong} ({damage:?})", journal.len());
            let file = rebuild(&mut rng, &damage);
            versions[usize::from(check(&file.snapshot(), &filled.contents).map_err(told)?)] += 1;
            if again {
                finish(&file, &filled.contents).map_err(told)?;
                rebuilt += 1;
            }
        }
        Ok(())
    });
    println!("{} events, {rebuilt} files upgraded again, versions {versions:?}", journal.len());
    assert_eq!(replayed, Ok(()));
    assert!(versions[1] > 0 && versions[2] > 10, "{versions:?}");
}

/// Upgrades a file of either version to the end, and reads everything.
fn finish(file: &SimFile, contents: &FileContents) -> Result<(), String> {
    match upgrade(file) {
        Ok(upgraded) if upgraded.is_done => {}
        Err(UpgradeError::NotVersion1) => {}
        other => return Err(format!("the second upgrade gave {other:?}")),
    }
    check(file, contents)?;
    let is_left =
        open_media(file, OpenAccess::ReadWrite).map_err(|error| error.to_string())?.holds_version_1();
    if is_left || file.misuse().is_some() {
        return Err(format!("blocks of version 1 are left: {is_left}; misuse: {:?}", file.misuse()));
    }
    Ok(())
}

#[test]
fn a_file_as_full_as_version_1_fills_it_is_upgraded() {
    let (_, mut rng) = seeded();
    // For a record as long as the chained one version 1 keeps five blocks, and its checkpoint takes one or more.
    for free in [0, 6, 7] {
        let mut filled = FilledFile::new();
        // Version 1 keeps a part of its blocks for collection: about one record in five is superseded.
        fill_further(&mut filled, &mut rng, (BLOCKS - 1 - free, 1_800));
        assert_eq!(filled.file.blocks_used(), BLOCKS - free);
        let file = written(&mut filled, &mut rng);
        let upgraded = upgrade(&file);
        println!("{free} blocks free: {upgraded:?}");
        match upgraded {
            Ok(upgraded) => assert!(upgraded.is_done, "{free} blocks free: {upgraded:?}"),
            Err(UpgradeError::NoRoom { .. }) if free == 0 => {}
            Err(error) => panic!("{free} blocks free: {error}"),
        }
        let version = if free == 0 { 1 } else { 2 };
        assert_eq!(check(&file, &filled.contents), Ok(version), "{free} blocks free");
    }
}
