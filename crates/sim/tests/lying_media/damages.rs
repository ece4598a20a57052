//! The damages that are aimed at the zones of a file, each with a name.
//!
//! Input: a history. Output: [`AimedDamage`]s. Invariant: a damage changes something; the same history gives the same
//! list.

use crate::history::{BLOCKS, DeviceHistory};
use headwater_sim::faults::{FaultPlace, FaultyOperation, OperationError};
use headwater_sim::simulated_file::{FileDamage, SECTOR_BYTES, SimFile};
use headwater_ssd::log::page::{PageKind, PageSpare};
use headwater_ssd::media::file::zones::{FileZone, FileZones, ZoneOwner};
use headwater_ssd::media::{BlockId, FlashGeometry, PAGES_PER_BLOCK, PageAddress};
use std::ops::Range;

/// The kernel's numbers of a medium error and of an input/output error.
const ENODATA: i32 = 61;
const EIO: i32 = 5;

/// One damage to one place.
pub(crate) struct AimedDamage {
    /// The kind of the damage, without the place.
    pub(crate) name: String,
    damage: Vec<FileDamage>,
    error: Option<OperationError>,
}

impl AimedDamage {
    fn new(name: impl Into<String>, damage: Vec<FileDamage>) -> Self {
        Self { name: name.into(), damage, error: None }
    }

    /// Returns a damaged copy of a file.
    pub(crate) fn apply(&self, file: &SimFile) -> SimFile {
        let copy = file.snapshot();
        for damage in &self.damage {
            copy.damage(damage);
        }
        copy.set_faults(self.error, None);
        copy
    }
}

/// Returns damages to the structures in front of the slots, and to the length of the file.
pub(crate) fn metadata_damages(history: &DeviceHistory) -> Vec<AimedDamage> {
    let zones = FileZones::new(FlashGeometry::with_blocks(BLOCKS));
    let mut found = vec![AimedDamage::new(
        "file truncated in the last block",
        vec![FileDamage::Truncate { length: zones.file_bytes() - 100 * SECTOR_BYTES }],
    )];
    for owner in zones.metadata() {
        structure_damages(history, &zones, owner, &mut found);
    }
    let both = |owners: [ZoneOwner; 2]| owners.map(|owner| zero(zones.range(owner))).to_vec();
    let sessions = both([0, 1].map(|copy| ZoneOwner::Session { copy }));
    found.push(AimedDamage::new("both session records zeroed", sessions));
    let tables = both([0, 1].map(|copy| ZoneOwner::Table { number: 0, copy }));
    found.push(AimedDamage::new("both erase table copies zeroed", tables));
    found
}

/// Returns read errors of a sample of the programmed pages.
pub(crate) fn read_errors(history: &DeviceHistory) -> Vec<AimedDamage> {
    let zones = FileZones::new(FlashGeometry::with_blocks(BLOCKS));
    let pages = programmed_pages(&history.file, &zones);
    let mut found = Vec::new();
    for (index, &(page, kind)) in pages.iter().enumerate() {
        if kind != "checkpoint" && index % if kind == "log" { 3 } else { 90 } > 0 {
            continue;
        }
        let slot = zones.range(ZoneOwner::Slot(page));
        found.push(unreadable(&format!("{kind} page lost for good"), slot.clone(), ENODATA));
        found.push(unreadable(&format!("{kind} page unreadable"), slot.clone(), EIO));
        found.push(unreadable_once(&format!("{kind} page unreadable once"), slot));
    }
    found
}

/// Returns damages to a sample of the programmed pages.
pub(crate) fn page_damages(history: &DeviceHistory) -> Vec<AimedDamage> {
    let zones = FileZones::new(FlashGeometry::with_blocks(BLOCKS));
    let pages = programmed_pages(&history.file, &zones);
    let mut found = Vec::new();
    for (index, &(page, kind)) in pages.iter().enumerate() {
        let every = match kind {
            "log" => 11,
            "guard" => 90,
            _ => 1,
        };
        if index % every == 0 {
            let other = pages[(index + pages.len() / 2) % pages.len()].0;
            slot_damages(history, &zones, (page, kind), other, &mut found);
        }
    }
    found
}

fn structure_damages(
    history: &DeviceHistory,
    zones: &FileZones,
    owner: ZoneOwner,
    found: &mut Vec<AimedDamage>,
) {
    let name = match owner {
        ZoneOwner::Superblock => "superblock".to_owned(),
        ZoneOwner::Session { copy } => format!("{} session record", age(history, zones, owner, 8, copy)),
        ZoneOwner::Table { copy, .. } => format!("{} erase table copy", age(history, zones, owner, 0, copy)),
        ZoneOwner::Slot(_) => return,
    };
    for FileZone { field, range, .. } in zones.fields(owner) {
        let offset = range.start + (range.end - range.start) / 2;
        found.push(AimedDamage::new(
            format!("bit of {name}: {field}"),
            vec![FileDamage::Flip { offset, bit: 3 }],
        ));
    }
    let range = zones.range(owner);
    found.push(AimedDamage::new(format!("{name} zeroed"), vec![zero(range.clone())]));
    if history.earlier.bytes(range.clone()) != history.file.bytes(range.clone()) {
        let stale = FileDamage::Restore { range: range.clone(), moment: history.earlier.clone() };
        found.push(AimedDamage::new(format!("{name} stale"), vec![stale]));
    }
    found.push(unreadable(&format!("{name} unreadable"), range.clone(), EIO));
    found.push(unreadable_once(&format!("{name} unreadable once"), range));
}

/// Returns "newer" or "older" for one of two copies, which number their writes at `offset`.
fn age(
    history: &DeviceHistory,
    zones: &FileZones,
    owner: ZoneOwner,
    offset: u64,
    copy: usize,
) -> &'static str {
    let other = match owner {
        ZoneOwner::Session { .. } => ZoneOwner::Session { copy: 1 - copy },
        ZoneOwner::Table { number, .. } => ZoneOwner::Table { number, copy: 1 - copy },
        alone => alone,
    };
    let write = |owner| u64_at(&history.file, zones.range(owner).start + offset);
    if write(owner) > write(other) { "newer" } else { "older" }
}

fn slot_damages(
    history: &DeviceHistory,
    zones: &FileZones,
    (page, kind): (PageAddress, &'static str),
    other: PageAddress,
    found: &mut Vec<AimedDamage>,
) {
    let owner = ZoneOwner::Slot(page);
    let slot = zones.range(owner);
    let bytes = slot.end - slot.start;
    for FileZone { field, range, .. } in zones.fields(owner) {
        let offset = match field {
            // Behind the fields of a spare, and in padding, no bit has a meaning.
            "spare" => range.start + 20,
            _ => range.start + (range.end - range.start) / 3,
        };
        let flip = |offset| FileDamage::Flip { offset, bit: 3 };
        let name = format!("bit of a {kind} page: {field}");
        if field == "data" {
            // In the header of the first record that begins in most pages.
            found.push(AimedDamage::new(name.clone(), vec![flip(range.start + 20)]));
        }
        found.push(AimedDamage::new(name, vec![flip(offset)]));
    }
    let ones = FileDamage::Fill { range: slot.clone(), byte: 0xFF };
    let first = slot.start..slot.start + SECTOR_BYTES;
    let last = slot.end - SECTOR_BYTES..slot.end;
    let swap =
        FileDamage::Swap { first: slot.start, second: zones.range(ZoneOwner::Slot(other)).start, bytes };
    found.extend([
        AimedDamage::new(format!("{kind} page zeroed"), vec![zero(slot.clone())]),
        AimedDamage::new(format!("{kind} page of ones"), vec![ones]),
        AimedDamage::new(format!("first sector of a {kind} page zeroed"), vec![zero(first)]),
        AimedDamage::new(format!("last sector of a {kind} page zeroed"), vec![zero(last)]),
        AimedDamage::new(format!("{kind} page swapped with another"), vec![swap]),
    ]);
    if history.earlier.bytes(slot.clone()) != history.file.bytes(slot.clone()) {
        let stale = FileDamage::Restore { range: slot, moment: history.earlier.clone() };
        found.push(AimedDamage::new(format!("{kind} page stale"), vec![stale]));
    }
}

fn zero(range: Range<u64>) -> FileDamage {
    FileDamage::Fill { range, byte: 0 }
}

fn unreadable(name: &str, range: Range<u64>, errno: i32) -> AimedDamage {
    AimedDamage::new(name, vec![FileDamage::Unreadable { range, errno }])
}

fn unreadable_once(name: &str, range: Range<u64>) -> AimedDamage {
    let place = FaultPlace::Range { start: range.start, end: range.end };
    let error = OperationError { operation: FaultyOperation::Read, place, times: 1, errno: EIO };
    AimedDamage { error: Some(error), ..AimedDamage::new(name, Vec::new()) }
}

/// Returns the pages that the medium takes for programmed, each with the kind of its contents.
fn programmed_pages(file: &SimFile, zones: &FileZones) -> Vec<(PageAddress, &'static str)> {
    let tables = [0, 1].map(|copy| zones.range(ZoneOwner::Table { number: 0, copy }).start);
    let table = tables.into_iter().max_by_key(|&start| u64_at(file, start)).unwrap();
    let pages = (0..BLOCKS).flat_map(|block| {
        (0..u8::try_from(PAGES_PER_BLOCK).unwrap()).map(move |page| PageAddress::new(BlockId(block), page))
    });
    pages
        .filter_map(|page| {
            let slot = zones.range(ZoneOwner::Slot(page));
            let stamp =
                zones.fields(ZoneOwner::Slot(page)).into_iter().find(|zone| zone.field == "generation");
            let generation = u64_at(file, table + 16 + 8 * u64::from(page.block.0));
            let programmed = generation != 0 && u64_at(file, stamp.unwrap().range.start) == generation;
            let spare = PageSpare::decode(&file.bytes(slot), page.page)?;
            let kind = match spare.kind {
                PageKind::Log => "log",
                PageKind::Checkpoint => "checkpoint",
                PageKind::Guard => "guard",
            };
            programmed.then_some((page, kind))
        })
        .collect()
}

fn u64_at(file: &SimFile, offset: u64) -> u64 {
    u64::from_le_bytes(file.bytes(offset..offset + 8).try_into().unwrap())
}
