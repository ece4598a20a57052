//! The damages that are aimed at the zones of a file, each with a name.
//!
//! Input: a history. Output: [`AimedDamage`]s. Invariant: a damage changes something; the same history gives the same
//! list.

use crate::history::{BLOCKS, DeviceHistory};
use headwater_host::copy::crc32c;
use headwater_sim::faults::{FaultPlace, FaultyOperation, OperationError};
use headwater_sim::media::struck::{FILE_UUID, RestingMedium, places_in, unwitnessed_above};
use headwater_sim::simulated_file::{FileDamage, SECTOR_BYTES, SimFile};
use headwater_ssd::command::Sequence;
use headwater_ssd::log::page::{PageKind, PageSpare};
use headwater_ssd::media::file::zones::{FileZone, FileZones, ZoneOwner};
use headwater_ssd::media::{
    BlockId, CELLS_PER_SIDE, CellNumber, FlashGeometry, PAGES_PER_BLOCK, PageAddress,
};
use std::ops::Range;

/// The kernel's numbers of a medium error and of an input/output error.
const ENODATA: i32 = 61;
const EIO: i32 = 5;
/// The offset of the number in a commit record (`docs/formats/medium-2.md`).
const RECORD_NUMBER_AT: u64 = 16;

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

    /// Returns the sequence behind which writes may be gone without a word: the damage struck the last commit.
    pub(crate) fn unwitnessed_above(&self, file: &SimFile) -> Option<Sequence> {
        let (geometry, damaged) = (FlashGeometry::with_blocks(BLOCKS), self.apply(file));
        let whole = places_in(geometry, 0, &file.bytes(0..FileZones::new(geometry).file_bytes()));
        let medium = RestingMedium::File(&damaged, geometry);
        unwitnessed_above(&whole, medium, medium)
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

/// Returns damages to the structures outside of the slots, and to the length of the file.
pub(crate) fn metadata_damages(history: &DeviceHistory) -> Vec<AimedDamage> {
    let zones = FileZones::new(FlashGeometry::with_blocks(BLOCKS));
    let mut found = vec![AimedDamage::new(
        "file truncated in the last block",
        vec![FileDamage::Truncate { length: zones.file_bytes() - 100 * SECTOR_BYTES }],
    )];
    for owner in zones.metadata() {
        structure_damages(history, &zones, owner, &mut found);
    }
    let zeroed = |name: &str, owners: Vec<ZoneOwner>| {
        AimedDamage::new(name, owners.into_iter().map(|owner| zero(zones.range(owner))).collect())
    };
    let superblocks = |copies: &[u8]| copies.iter().map(|&copy| ZoneOwner::Superblock { copy }).collect();
    found.push(zeroed("two superblocks zeroed", superblocks(&[0, 1])));
    found.push(zeroed("three superblocks zeroed", superblocks(&[0, 1, 3])));
    let cells = |numbers: Range<u16>| numbers.map(CellNumber).map(ZoneOwner::Cell).collect();
    found.push(zeroed("cells in front zeroed", cells(0..CELLS_PER_SIDE)));
    found.push(zeroed("cells behind zeroed", cells(CELLS_PER_SIDE..2 * CELLS_PER_SIDE)));
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
        ZoneOwner::Superblock { .. } => "superblock",
        ZoneOwner::Cell(_) => match cell_age(history, zones, owner) {
            Some(name) => name,
            None => return,
        },
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

/// Returns the name of a cell by the age of its record; `None` if it holds none.
fn cell_age(history: &DeviceHistory, zones: &FileZones, owner: ZoneOwner) -> Option<&'static str> {
    let number = |owner| u64_at(&history.file, zones.range(owner).start + RECORD_NUMBER_AT);
    let cells = zones.metadata().into_iter().filter(|owner| matches!(owner, ZoneOwner::Cell(_)));
    let newest = cells.map(number).max().unwrap_or(0);
    match number(owner) {
        0 => None,
        // A commit writes its record under two numbers.
        this if this + 1 >= newest => Some("newest cell"),
        _ => Some("older cell"),
    }
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
        let offset = range.start + (range.end - range.start) / 3;
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

/// Returns the pages whose spare is intact, each with the kind of its contents.
fn programmed_pages(file: &SimFile, zones: &FileZones) -> Vec<(PageAddress, &'static str)> {
    let pages = (0..BLOCKS).flat_map(|block| {
        (0..u8::try_from(PAGES_PER_BLOCK).unwrap()).map(move |page| PageAddress::new(BlockId(block), page))
    });
    pages
        .filter_map(|page| {
            let slot = zones.range(ZoneOwner::Slot(page));
            let spare = PageSpare::decode(&file.bytes(slot), page, crc32c(0, &FILE_UUID))?;
            let kind = match spare.kind {
                PageKind::Log => "log",
                PageKind::Checkpoint => "checkpoint",
                PageKind::Guard => "guard",
                PageKind::Extent => "extent",
            };
            Some((page, kind))
        })
        .collect()
}

fn u64_at(file: &SimFile, offset: u64) -> u64 {
    u64::from_le_bytes(file.bytes(offset..offset + 8).try_into().unwrap())
}
