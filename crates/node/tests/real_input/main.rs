//! A test with real files: a tree of files survives SIGKILL, deletion and overwriting on a nearly full device, and damage
//! to its file is never silent.
//!
//! `HEADWATER_PROOF_DIR` names the tree (default `/usr/share`), `HEADWATER_BIN` a binary to test instead of the one
//! built with this test. A tree of fewer than 1,000 files, or too small for a device, is skipped with a message.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]
#![expect(clippy::print_stderr, reason = "the test prints its counts and its seed")]

mod damage;
mod node;
mod tree;

use damage::ExpectedFiles;
use headwater_host::clock::{Clock, Nanos};
use headwater_node::kv::target::{BATCH_BYTES, BATCH_ITEMS, KeyValueRecord, KvTarget as _, StoreResult};
use headwater_node::load::manifest::{ManifestLine, read_manifest};
use node::ProofNode;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};
use tree::{TreeFile, ValueGrowth};

const FILES_MIN: usize = 1_000;
const ROUNDS: u8 = 3;

fn tree_of_files() -> Option<(PathBuf, Vec<TreeFile>)> {
    let root = std::env::var_os("HEADWATER_PROOF_DIR").unwrap_or_else(|| "/usr/share".into());
    let root = PathBuf::from(root);
    let items = tree::walk(&root);
    if items.len() < FILES_MIN || !tree::are_enough(&items) {
        eprintln!(
            "skipped: {} holds {} files, the test needs {FILES_MIN} of about 35 MB; set HEADWATER_PROOF_DIR",
            root.display(),
            items.len()
        );
        return None;
    }
    Some((root, items))
}

#[test]
fn two_thousand_real_files_survive_kills_deletion_and_overwriting() {
    let Some((_, items)) = tree_of_files() else { return };
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("files");
    let items = tree::sample(&items, 2_000, 60 << 20, &root);
    SurvivalProof::new(dir.path(), root, items).run();
}

#[test]
#[ignore = "minutes; make proof"]
fn every_real_file_survives_kills_deletion_and_overwriting() {
    let Some((root, items)) = tree_of_files() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    SurvivalProof::new(dir.path(), root, items).run();
}

struct SurvivalProof {
    folder: PathBuf,
    root: PathBuf,
    items: Vec<TreeFile>,
    blocks: u64,
    random: fastrand::Rng,
    clock: Clock,
}

impl SurvivalProof {
    fn new(folder: &Path, root: PathBuf, items: Vec<TreeFile>) -> Self {
        let seed = fastrand::u64(..);
        let blocks = tree::blocks_for(&items);
        let bytes: u64 = items.iter().map(|item| item.bytes).sum();
        eprintln!("{} files, {bytes} bytes, device of {blocks} blocks, seed {seed}", items.len());
        Self {
            folder: folder.to_owned(),
            root,
            items,
            blocks,
            random: fastrand::Rng::with_seed(seed),
            clock: Clock::start(),
        }
    }

    fn run(mut self) {
        self.kill_during_load();
        self.kill_after_load();
        let (gone, kept, manifest) = self.delete_half_and_overwrite_rest();
        self.check_last_round(&gone, &manifest);
        assert_eq!(node::check_status(&self.folder), 0);
        self.say("device check: every record whole");
        let growth = ValueGrowth::between(&self.items, &kept);
        let kept = kept.into_iter().map(|file| (file, ROUNDS)).collect();
        self.damage_while_it_serves(ExpectedFiles { gone: &gone, kept, growth });
    }

    fn say(&self, what: &str) {
        let Nanos(nanos) = self.clock.now();
        eprintln!("{:6}.{:01} s  {what}", nanos / 1_000_000_000, nanos / 100_000_000 % 10);
    }

    fn start(&self) -> ProofNode {
        let before = self.clock.now();
        let node = ProofNode::start(&self.folder, tree::flash_bytes(self.blocks));
        let took = self.clock.now().since(before).0 / 1_000_000;
        self.say(&format!("started, ready after {took} ms"));
        node
    }

    /// Kills the node when about half of the files are acknowledged. If the load ends before the kill, the attempt is
    /// repeated with the same files, which then overwrite themselves.
    fn kill_during_load(&self) {
        for attempt in 1..=5 {
            let manifest = self.folder.join(format!("middle-{attempt}.jsonl"));
            let node = self.start();
            let mut load = node.load(&self.root, &manifest);
            let mut acknowledged = GrowingLines::of(&manifest);
            while acknowledged.count() < self.items.len() / 2 && !load.ended() {
                Clock::sleep(Nanos::from_micros(200));
            }
            node.kill();
            let interrupted = !load.wait().success();
            let listed = manifest_keys(&manifest);
            let node = self.start();
            assert_eq!(node.verify(&manifest), listed);
            self.say(&format!("killed in the load: {listed} acknowledged, all byte-identical"));
            node.kill();
            if interrupted && listed > 0 {
                assert!(listed < u64::try_from(self.items.len()).unwrap());
                return;
            }
        }
        panic!("five loads ended before the node could be killed");
    }

    /// Loads all files, kills the node at once, and asserts that every value equals its file on disk.
    fn kill_after_load(&self) {
        let manifest = self.folder.join("end.jsonl");
        let node = self.start();
        let before = self.clock.now();
        let status = node.load(&self.root, &manifest).wait();
        let seconds = self.clock.now().since(before).to_duration().as_secs_f64();
        let numbers = node.info();
        node.kill();
        assert!(status.success(), "the load ended with {status}");
        self.say(&format!("loaded everything in {seconds:.1} s; {}", wear(&numbers)));
        let expected = read_manifest(BufReader::new(File::open(&manifest).unwrap())).unwrap();
        for item in &self.items {
            // The manifest entry matches the file: the two are computed independently.
            assert!(expected[&item.key].matches(&item.original()), "{item:?}");
        }
        assert_eq!(expected.len(), self.items.len(), "every file, and nothing else");
        let node = self.start();
        assert_eq!(node.verify(&manifest), u64::try_from(expected.len()).unwrap());
        let full = self.full_percent(&node.info());
        self.say(&format!("killed at the end: all byte-identical, device {full} % full"));
        node.kill();
    }

    fn full_percent(&self, numbers: &BTreeMap<String, u64>) -> u64 {
        let full = numbers["device_live_bytes"] * 100 / tree::data_bytes(self.blocks);
        assert!((80..=90).contains(&full), "the device is {full} % full");
        full
    }

    /// Deletes half of the keys and overwrites the rest three times in random order, with longer values, so that the
    /// device is as full as before. Returns the deleted keys, the files that are left and the manifest of the last round.
    fn delete_half_and_overwrite_rest(&mut self) -> (Vec<Vec<u8>>, Vec<TreeFile>, PathBuf) {
        let node = self.start();
        let mut target = node.connect();
        let mut shuffled = self.items.clone();
        self.random.shuffle(&mut shuffled);
        let mut kept = shuffled.split_off(shuffled.len() / 2);
        let gone: Vec<Vec<u8>> = shuffled.into_iter().map(|item| item.key).collect();
        for keys in gone.chunks(BATCH_ITEMS) {
            assert_eq!(target.del(keys).unwrap(), u64::try_from(keys.len()).unwrap());
        }
        self.say(&format!("deleted {} keys", gone.len()));
        let growth = ValueGrowth::between(&self.items, &kept);
        let manifest = self.folder.join("rewritten.jsonl");
        for round in 1..=ROUNDS {
            self.random.shuffle(&mut kept);
            let bytes = overwrite(&node, &kept, (round, growth), &manifest);
            let numbers = node.info();
            let full = self.full_percent(&numbers);
            self.say(&format!(
                "round {round}: {} keys, {bytes} bytes, device {full} % full; {}",
                kept.len(),
                wear(&numbers)
            ));
        }
        let numbers = node.info();
        assert!(numbers["device_erases"] > 0, "collection erased nothing: {numbers:?}");
        assert!(numbers["device_moved_bytes"] > 0, "collection moved nothing: {numbers:?}");
        assert_eq!(numbers["device_damaged_records"], 0);
        check_metrics_agree(&node);
        node.kill();
        (gone, kept, manifest)
    }

    fn check_last_round(&self, gone: &[Vec<u8>], manifest: &Path) {
        let node = self.start();
        let mut target = node.connect();
        let kept = u64::try_from(self.items.len() - gone.len()).unwrap();
        for keys in gone.chunks(BATCH_ITEMS) {
            let found = target.exists(keys).unwrap();
            assert!(!found.contains(&true), "a deleted key came back");
        }
        assert_eq!(target.key_count().unwrap(), kept, "nothing else is there");
        assert_eq!(node.verify(manifest), kept);
        self.say(&format!(
            "killed after the overwriting: {} deleted keys absent, {kept} keys byte-identical to round {ROUNDS}",
            gone.len()
        ));
        node.kill();
    }
}

/// Overwrites every item once and writes the manifest. Returns the bytes of the values.
fn overwrite(
    node: &ProofNode,
    items: &[TreeFile],
    (round, growth): (u8, ValueGrowth),
    manifest: &Path,
) -> u64 {
    let mut target = node.connect();
    let mut lines = BufWriter::new(File::create(manifest).unwrap());
    let mut batch = Vec::new();
    let mut batch_bytes = 0;
    let mut all_bytes = 0;
    for (at, item) in items.iter().enumerate() {
        let value = item.rewritten(round, growth);
        batch_bytes += value.len();
        batch.push(KeyValueRecord { key: item.key.clone(), value, expiry_ms: None });
        if batch.len() == BATCH_ITEMS || batch_bytes >= BATCH_BYTES || at + 1 == items.len() {
            let mut refused = Vec::new();
            let stored = target.set(&batch, &mut |index, stored| {
                let record = &batch[index];
                if let StoreResult::Refused(why) = stored {
                    refused.push((record.value.len(), why));
                    return Ok(());
                }
                serde_json::to_writer(&mut lines, &ManifestLine::from_record(record)).unwrap();
                lines.write_all(b"\n").unwrap();
                Ok(())
            });
            stored.unwrap();
            assert_eq!(
                refused.first(),
                None,
                "round {round}, {} of {} items: {} records (bytes, why) of a batch were refused; {:?}",
                at + 1,
                items.len(),
                refused.len(),
                node.info()
            );
            batch.clear();
            all_bytes += u64::try_from(std::mem::take(&mut batch_bytes)).unwrap();
        }
    }
    lines.flush().unwrap();
    all_bytes
}

/// Returns write amplification and other counters of the device as text.
fn wear(numbers: &BTreeMap<String, u64>) -> String {
    let hundredths = numbers["device_programmed_bytes"] * 100 / numbers["device_client_bytes"].max(1);
    format!(
        "WAF {}.{:02} (since the start), {} bytes moved, {} erases, {} flushes",
        hundredths / 100,
        hundredths % 100,
        numbers["device_moved_bytes"],
        numbers["device_erases"],
        numbers["device_flushes"]
    )
}

/// Asserts that INFO and `/metrics` become equal; the counters of `/metrics` are published later.
fn check_metrics_agree(node: &ProofNode) {
    let pairs = [
        ("device_client_bytes", "headwater_client_bytes_total"),
        ("device_programmed_bytes", "headwater_programmed_bytes_total"),
        ("device_moved_bytes", "headwater_gc_moved_bytes_total"),
        ("device_erases", "headwater_erases_total"),
        ("device_flushes", "headwater_flushes_total"),
        ("device_live_bytes", "headwater_live_bytes"),
        ("device_free_blocks", "headwater_free_blocks"),
    ];
    let mut found = Vec::new();
    for _ in 0..200 {
        let (info, metrics) = (node.info(), node.metrics());
        found = pairs
            .iter()
            .map(|(name, metric)| (*name, info.get(*name).copied(), metrics.get(*metric).copied()))
            .collect();
        if found.iter().all(|(_, value, metric)| value.is_some() && value == metric) {
            return;
        }
        Clock::sleep(Nanos::from_millis(20));
    }
    panic!("INFO and /metrics disagree: {found:?}");
}

/// Returns the number of keys in the complete lines of a manifest.
fn manifest_keys(manifest: &Path) -> u64 {
    let Ok(file) = File::open(manifest) else { return 0 };
    u64::try_from(read_manifest(BufReader::new(file)).unwrap().len()).unwrap()
}

/// A counter of the lines of a growing file.
struct GrowingLines {
    path: PathBuf,
    file: Option<File>,
    lines: usize,
}

impl GrowingLines {
    fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None, lines: 0 }
    }

    fn count(&mut self) -> usize {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        if let Some(file) = &mut self.file {
            let mut more = Vec::new();
            file.read_to_end(&mut more).unwrap();
            self.lines += more.iter().filter(|&&byte| byte == b'\n').count();
        }
        self.lines
    }
}
