//! The time from opening a flash file to the device's first completion.
//!
//! Input: a flash file full of small records, shut down cleanly.
//! Output: seconds until the device serves, from its checkpoint and, with that checkpoint damaged, from a scan of the
//! whole log. The floor of each is a plain read of the bytes that it requires: the checkpoint, or the used blocks. That
//! read goes through the page cache, which the device bypasses.
//!
//! Every open counts the keys and reads one back; a lost key is an error, not a figure.

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::flash_zones::zones_of;
use crate::measure::SampleSpread;
use crate::report::ReportRow;
use crate::store_client::StoreClient;
use bytes::Bytes;
use headwater_dma::frame::FRAME_BYTES;
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;
use headwater_ssd::command::NamespaceId;
use headwater_ssd::engine::{DeviceConfig, Durability};
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::log::commit_record::CommitRecord;
use headwater_ssd::log::page::{PageKind, PageSpare};
use headwater_ssd::log::record::{UNIT_BYTES, record_units};
use headwater_ssd::media::file::zones::ZoneOwner;
use headwater_ssd::media::file::{FLASH_FILE_NAME, FileMedia, FileOptions};
use headwater_ssd::media::geometry::{BLOCK_DATA_BYTES, BlockId};
use headwater_ssd::media::{CELL_BYTES, FlashGeometry, PAGES_PER_BLOCK, PageAddress};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "recovery",
    summary: "seconds from opening a flash file until the device serves, by checkpoint and by full scan",
    baseline: "a plain read of the checkpoint; a plain read of the used blocks",
    claims: &["p1.recovery.ready"],
    run,
};

const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 100;
/// Bytes of a slot of the flash file.
const SLOT_BYTES: usize = FRAME_BYTES;

/// A promise: the number of keys, and the time until the device is ready.
struct RecoverySize {
    keys: u64,
    rounds: usize,
    seconds_max: f64,
    unit: &'static str,
}

const FULL: RecoverySize =
    RecoverySize { keys: 10_000_000, rounds: 3, seconds_max: 10.0, unit: "s for ten million keys" };
/// A twentieth of the keys in a twentieth of the time: fixed costs make this goal harder.
const QUICK: RecoverySize = RecoverySize {
    keys: 500_000,
    rounds: 3,
    seconds_max: 0.5,
    unit: "s for 500,000 keys (a full run takes ten million)",
};

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let size = if context.is_quick() { QUICK } else { FULL };
    let folder = context.scratch();
    let blocks = blocks_for(size.keys);
    let began = context.clock().now();
    let checkpoint_pages = load(context, &size, blocks)?;
    let load_seconds = seconds_since(context, began);

    let mut ready = Vec::new();
    let mut floor = Vec::new();
    let mut last = None;
    for _ in 0..size.rounds {
        floor.push(timed_read(context, folder, checkpoint_pages * SLOT_BYTES as u64)?);
        let opened = open_and_count(context, &size)?;
        ready.push(opened.seconds);
        last = Some(opened);
    }
    let used = damage_checkpoint(context, blocks)?;
    let scan_floor = timed_read(context, folder, used * (PAGES_PER_BLOCK * SLOT_BYTES) as u64)?;
    let scanned = open_and_count(context, &size)?;

    let row = |how: &str,
               spread: Option<SampleSpread>,
               floor: Option<SampleSpread>,
               opened: Option<&RecoveryResult>| {
        ReportRow::new()
            .with("how", how)
            .with("keys", size.keys)
            .with("ready_seconds", spread)
            .with("floor_seconds", floor)
            .with("checkpoint_pages", checkpoint_pages)
            .with("used_blocks", used)
            .with("index_bytes", opened.map(|opened| opened.index_bytes))
            .with("mode", opened.map(|opened| opened.mode.clone()))
            .with("load_seconds", load_seconds)
    };
    let (ready, floor) = (SampleSpread::of(&ready), SampleSpread::of(&floor));
    let by_scan = SampleSpread::of(&[scanned.seconds]);
    let claim = LabClaim::found(
        "p1.recovery.ready",
        ClaimGoal::AtMost(size.seconds_max),
        (ready.map_or(f64::NAN, |spread| spread.median), size.unit),
        EvidenceLabel::Measured,
        format!(
            "plain read of the checkpoint {:.3} s; full scan instead {:.2} s",
            floor.map_or(f64::NAN, |spread| spread.median),
            scanned.seconds
        ),
    );
    Ok(ExperimentFindings {
        rows: vec![
            row("checkpoint", ready, floor, last.as_ref()),
            row("full scan", by_scan, SampleSpread::of(&[scan_floor]), Some(&scanned)),
        ],
        claims: vec![claim],
    })
}

/// The result of one open.
struct RecoveryResult {
    seconds: f64,
    index_bytes: u64,
    mode: String,
}

/// Returns the number of blocks for `keys` records at about four fifths full, plus two checkpoints and the reserve.
fn blocks_for(keys: u64) -> u32 {
    let record = u64::from(record_units(KEY_BYTES, VALUE_BYTES)) * UNIT_BYTES as u64;
    let block = BLOCK_DATA_BYTES as u64;
    let data = (keys * record).div_ceil(block);
    narrow(data / 4 * 5 + 2 * (keys * 16).div_ceil(block) + 32)
}

fn config() -> DeviceConfig {
    DeviceConfig { durability: [Durability::OnFlush; NAMESPACES], ..DeviceConfig::default() }
}

fn key(number: u64) -> Bytes {
    let mut bytes = [b'k'; KEY_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Bytes::copy_from_slice(&bytes)
}

/// Returns the uuid of the flash file.
fn uuid(context: &RunContext) -> [u8; 16] {
    (u128::from(context.seed()) | 1 << 127).to_le_bytes()
}

/// Fills a new flash file and shuts it down. Returns the number of pages of its checkpoint.
fn load(context: &RunContext, size: &RecoverySize, blocks: u32) -> Result<u64, LabError> {
    let geometry = FlashGeometry::with_blocks(blocks);
    let media = FileMedia::create(context.scratch(), geometry, uuid(context), FileOptions::default())
        .map_err(|error| flash_failed(&error))?;
    let mut stores = StoreClient::open(media, config(), context.clock())?;
    let value = Bytes::from(vec![0x5a; VALUE_BYTES]);
    for number in 0..size.keys {
        stores.store(key(number), value.clone())?;
    }
    stores.drain()?;
    let before = stores.stats().checkpoint_pages;
    stores.shutdown()?;
    Ok(stores.stats().checkpoint_pages - before)
}

/// Opens the file, measures the time until the device serves, and checks that no key is missing.
fn open_and_count(context: &RunContext, size: &RecoverySize) -> Result<RecoveryResult, LabError> {
    let began = context.clock().now();
    let media =
        FileMedia::open(context.scratch(), FileOptions::default()).map_err(|error| flash_failed(&error))?;
    let mode = format!("{:?}, {:?}", media.mode(), media.ring_kind());
    let mut stores = StoreClient::open(media, config(), context.clock())?;
    let seconds = seconds_since(context, began);
    let stats = stores.stats();
    let keys = stats.keys[NamespaceId::FIRST.index()];
    let value = stores.get(key(size.keys / 2))?;
    if keys != size.keys || value != [0x5a; VALUE_BYTES] {
        return Err(LabError::Measure {
            program: "the device".to_owned(),
            reason: format!("recovery found {keys} of {} keys, or returned a wrong value", size.keys),
        });
    }
    Ok(RecoveryResult { seconds, index_bytes: stats.index_bytes, mode })
}

/// Corrupts the first index page of the newest checkpoint, as a bad medium might. Returns the number of blocks that the
/// log uses.
fn damage_checkpoint(context: &RunContext, blocks: u32) -> Result<u64, LabError> {
    let failed = io_failed("damage the checkpoint of the scratch flash file");
    let path = context.scratch().join(FLASH_FILE_NAME);
    let zones = zones_of(&path)?;
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(&failed)?;
    let seed = zones.checksum_seed();
    let mut newest = None;
    for cell in zones.metadata().into_iter().filter(|owner| matches!(owner, ZoneOwner::Cell(_))) {
        let at = zones.range(cell).start;
        let mut cell = [0; CELL_BYTES];
        file.read_exact_at(&mut cell, at).map_err(&failed)?;
        let record = CommitRecord::decode(&cell, seed);
        newest = record.into_iter().chain(newest).max_by_key(|record| record.number);
    }
    let root = newest.ok_or_else(|| flash_failed(&"there is no commit record"))?.root;
    let index_page = root.number << 32 | u64::from(root.index.first);
    let (mut used, mut damaged) = (0, 0);
    for block in 0..blocks {
        for page in 0..narrow(PAGES_PER_BLOCK) {
            let address = PageAddress::new(BlockId(block), page);
            let slot = zones.range(ZoneOwner::Slot(address)).start;
            let mut bytes = [0; SLOT_BYTES];
            file.read_exact_at(&mut bytes, slot).map_err(&failed)?;
            match PageSpare::decode(&bytes, address, seed) {
                Some(PageSpare { kind: PageKind::Checkpoint, continues, .. }) if continues == index_page => {
                    file.write_all_at(&[0; 128], slot).map_err(&failed)?;
                    damaged += 1;
                }
                Some(PageSpare { kind: PageKind::Checkpoint, .. }) => {}
                Some(_) => {
                    used += 1;
                    break;
                }
                None => break,
            }
        }
    }
    file.sync_all().map_err(&failed)?;
    if damaged != 1 {
        return Err(flash_failed(&format!("{damaged} pages are the first of the checkpoint's index")));
    }
    Ok(used)
}

/// Returns the seconds that a plain read of `bytes` of the flash file takes.
fn timed_read(context: &RunContext, folder: &Path, bytes: u64) -> Result<f64, LabError> {
    let failed = io_failed("read the scratch flash file");
    let file = File::open(folder.join("flash")).map_err(&failed)?;
    let mut buffer = vec![0; 1 << 20];
    let began = context.clock().now();
    let mut at = 0;
    while at < bytes {
        let read = file.read_at(&mut buffer, at).map_err(&failed)?;
        if read == 0 {
            break;
        }
        at += read as u64;
    }
    Ok(seconds_since(context, began))
}

#[expect(clippy::cast_precision_loss, reason = "52 bits of nanoseconds are 52 days")]
fn seconds_since(context: &RunContext, began: Nanos) -> f64 {
    context.clock().now().since(began).0 as f64 / 1e9
}

fn flash_failed(error: &dyn std::fmt::Display) -> LabError {
    LabError::Measure { program: "the flash file".to_owned(), reason: error.to_string() }
}

fn io_failed(what: &'static str) -> impl Fn(io::Error) -> LabError {
    move |source| LabError::Io { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_recovers_all_keys_by_checkpoint_and_by_scan() {
        let context = RunContext::open(crate::RunOptions::default()).unwrap();
        let size = RecoverySize { keys: 20_000, ..QUICK };
        let blocks = blocks_for(size.keys);
        let pages = load(&context, &size, blocks).unwrap();
        assert!(pages > 0, "a clean shutdown writes a checkpoint");
        open_and_count(&context, &size).unwrap();
        let used = damage_checkpoint(&context, blocks).unwrap();
        assert!(used >= 20_000 * 176 / BLOCK_DATA_BYTES as u64);
        assert!(used < u64::from(blocks));
        open_and_count(&context, &size).unwrap();
    }

    #[test]
    fn lost_key_is_an_error_and_not_a_figure() {
        let context = RunContext::open(crate::RunOptions::default()).unwrap();
        let size = RecoverySize { keys: 1_000, ..QUICK };
        load(&context, &size, blocks_for(size.keys)).unwrap();
        let more = RecoverySize { keys: 1_001, ..QUICK };
        assert!(open_and_count(&context, &more).is_err());
    }
}
