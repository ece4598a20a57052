//! Damage to a medium at rest: between two boots, at places that hold something.
//!
//! Input: the fault, and the medium as the power cut left it. Output: the places that it changes, each with the bytes that
//! it holds from now on. Invariant: the same random stream damages the same medium in the same way.

use super::struck::{MediumPlace, RestingMedium, StruckPlace};
use crate::faults::RestingFault;
use crate::flash::{CELLS, SimFlash, pages_of};
use crate::simulated_file::{FileDamage, SimFile};
use headwater_ssd::command::{NamespaceId, Sequence};
use headwater_ssd::log::page::{PageKind, PageSpare};
use headwater_ssd::log::record::{HEADER_BYTES, RecordHeader};
use headwater_ssd::media::file::zones::{FileZones, ZoneOwner};
use headwater_ssd::media::{BlockId, CellNumber, FlashGeometry, PAGE_DATA_BYTES, PageAddress};
use std::collections::BTreeMap;

/// The last pages of the log, one of which every other fault of a single page strikes.
const LAST_PAGES: usize = 48;
/// Bytes of a page in which its first record has its header.
const HEADER_REACH: usize = 128;
/// Offsets of the fields of a page's spare (`docs/formats/medium-2.md`).
const SPARE_FIELDS: [usize; 19] = [0, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 48, 56, 64, 72, 80, 88];

/// A place, and the bytes that it holds from now on; `None` for nothing.
type PlaceChange = (MediumPlace, Option<Vec<u8>>);

/// Damages flash, and returns the places with the bytes that they should hold.
pub(super) fn strike_flash(
    flash: &mut SimFlash,
    fault: RestingFault,
    rng: &mut fastrand::Rng,
) -> Vec<StruckPlace> {
    let (changes, struck) = changes_of(RestingMedium::Flash(flash), flash.geometry(), fault, rng);
    for (place, bytes) in changes {
        match (place, bytes) {
            (MediumPlace::Page(page), None) => flash.blank_page(page),
            (MediumPlace::Page(page), Some(bytes)) => {
                flash.change_page(page, |held| held.copy_from_slice(&bytes));
            }
            (MediumPlace::Cell(cell), None) => drop(flash.change_cell(cell, |held| held.fill(0))),
            (MediumPlace::Cell(cell), Some(bytes)) => {
                flash.change_cell(cell, |held| held.copy_from_slice(&bytes));
            }
        }
    }
    struck
}

/// Damages a file, and returns the places with the bytes that they should hold.
pub(super) fn strike_file(
    file: &SimFile,
    geometry: FlashGeometry,
    fault: RestingFault,
    rng: &mut fastrand::Rng,
) -> Vec<StruckPlace> {
    let zones = FileZones::new(geometry);
    let (changes, struck) = changes_of(RestingMedium::File(file, geometry), geometry, fault, rng);
    for (place, bytes) in changes {
        let range = zones.range(match place {
            MediumPlace::Page(page) => ZoneOwner::Slot(page),
            MediumPlace::Cell(cell) => ZoneOwner::Cell(cell),
        });
        file.damage(&match bytes {
            Some(bytes) => FileDamage::Overwrite { offset: range.start, bytes },
            None => FileDamage::Fill { range, byte: 0 },
        });
    }
    struck
}

fn changes_of(
    medium: RestingMedium<'_>,
    geometry: FlashGeometry,
    fault: RestingFault,
    rng: &mut fastrand::Rng,
) -> (Vec<PlaceChange>, Vec<StruckPlace>) {
    let places = match fault {
        RestingFault::SideZeroed => {
            let side = if rng.bool() { 0..CELLS.0 } else { CELLS.0..CELLS.0 + CELLS.1 };
            side.map(CellNumber).map(MediumPlace::Cell).collect()
        }
        RestingFault::BlockZeroed => {
            let page = choose_page(medium, geometry, rng);
            page.into_iter().flat_map(|page| pages_of(page.block)).map(MediumPlace::Page).collect()
        }
        RestingFault::Flipped | RestingFault::Zeroed => choose_place(medium, geometry, rng),
        RestingFault::SpareFlipped => {
            choose_page(medium, geometry, rng).map(MediumPlace::Page).into_iter().collect()
        }
        RestingFault::IndexAndPage => {
            let block = youngest_checkpoint_block(medium, geometry);
            let pages = block.into_iter().flat_map(pages_of).chain(choose_page(medium, geometry, rng));
            pages.map(MediumPlace::Page).collect()
        }
        RestingFault::StaleRecord => Vec::new(),
    };
    let places: Vec<(MediumPlace, Vec<u8>)> =
        places.into_iter().filter_map(|place| Some((place, medium.bytes(place)?))).collect();
    let changes = places.iter().map(|(place, held)| {
        let bytes = match fault {
            RestingFault::Flipped => Some(flipped(*place, held.clone(), rng)),
            RestingFault::SpareFlipped => Some(with_flipped_spare(held.clone(), rng)),
            _ => None,
        };
        (*place, bytes)
    });
    let changes = changes.collect();
    (changes, places.into_iter().map(|(place, wanted)| StruckPlace { place, wanted }).collect())
}

/// Returns a page, or in one of eight cases a cell.
fn choose_place(
    medium: RestingMedium<'_>,
    geometry: FlashGeometry,
    rng: &mut fastrand::Rng,
) -> Vec<MediumPlace> {
    if rng.u8(0..8) > 0 {
        return choose_page(medium, geometry, rng).map(MediumPlace::Page).into_iter().collect();
    }
    let cells = (0..CELLS.0 + CELLS.1).map(CellNumber).map(MediumPlace::Cell);
    let written = cells.filter(|cell| medium.bytes(*cell).is_some_and(|bytes| bytes.iter().any(|&b| b != 0)));
    rng.choice(written.collect::<Vec<_>>()).into_iter().collect()
}

/// Returns a page that proves itself: any, or in every other case one of the last of the log.
fn choose_page(
    medium: RestingMedium<'_>,
    geometry: FlashGeometry,
    rng: &mut fastrand::Rng,
) -> Option<PageAddress> {
    let seed = medium.seed();
    let mut pages: Vec<(u64, PageAddress)> = Vec::new();
    for page in (0..geometry.blocks).map(BlockId).flat_map(pages_of) {
        let bytes = medium.bytes(MediumPlace::Page(page));
        let spare = bytes.and_then(|bytes| PageSpare::of_intact(&bytes, page, seed));
        pages.extend(spare.filter(|spare| spare.kind != PageKind::Guard).map(|spare| (spare.tick.0, page)));
    }
    if rng.bool() {
        pages.sort_unstable_by_key(|(tick, page)| (*tick, page.index()));
        pages.drain(..pages.len().saturating_sub(LAST_PAGES));
    }
    rng.choice(pages).map(|(_, page)| page)
}

/// Returns the block of a checkpoint that was opened last.
fn youngest_checkpoint_block(medium: RestingMedium<'_>, geometry: FlashGeometry) -> Option<BlockId> {
    let spare = |block| {
        let page = PageAddress::new(block, 0);
        PageSpare::of_intact(&medium.bytes(MediumPlace::Page(page))?, page, medium.seed())
    };
    let spares = (0..geometry.blocks).map(BlockId).filter_map(|block| Some((spare(block)?, block)));
    let parts = spares.filter(|(spare, _)| spare.kind == PageKind::Checkpoint);
    parts.map(|(spare, block)| (spare.order, block)).max().map(|(_, block)| block)
}

/// Flips a bit: of a field of the spare, of the first header, or of anything.
fn flipped(place: MediumPlace, mut bytes: Vec<u8>, rng: &mut fastrand::Rng) -> Vec<u8> {
    let at = match (place, rng.u8(0..3)) {
        (MediumPlace::Page(_), 0) => return with_flipped_spare(bytes, rng),
        (_, 1) => rng.usize(0..HEADER_REACH),
        _ => rng.usize(0..bytes.len()),
    };
    bytes[at] ^= 1 << rng.u8(0..8);
    bytes
}

/// Flips a bit of a field of the spare.
fn with_flipped_spare(mut bytes: Vec<u8>, rng: &mut fastrand::Rng) -> Vec<u8> {
    let at = PAGE_DATA_BYTES + SPARE_FIELDS[rng.usize(0..SPARE_FIELDS.len())];
    bytes[at] ^= 1 << rng.u8(0..8);
    bytes
}

/// The first record of a page: its namespace, key and length of the value, and its sequence.
type FirstRecord = ((NamespaceId, Vec<u8>, u32), Sequence);

/// Sets the page with the newest record of a key back to a moment at which it held an older record of that key. Returns
/// what it held.
pub(super) fn restore_record(
    flash: &mut SimFlash,
    earlier: &SimFlash,
    rng: &mut fastrand::Rng,
) -> Option<StruckPlace> {
    let first = |flash: &SimFlash, page| first_record(flash.durable_page(page)?.bytes(), page);
    let pages = || (0..flash.geometry().blocks).map(BlockId).flat_map(pages_of);
    let mut newest = BTreeMap::new();
    for (key, sequence) in pages().filter_map(|page| first(flash, page)) {
        let last: &mut Sequence = newest.entry(key).or_default();
        *last = sequence.max(*last);
    }
    let is_stale = |page: &PageAddress| match (first(flash, *page), first(earlier, *page)) {
        (Some((key, now)), Some((other, then))) => {
            key == other && then < now && newest.get(&key) == Some(&now)
        }
        _ => false,
    };
    let page = rng.choice(pages().filter(is_stale).collect::<Vec<_>>())?;
    let wanted = flash.durable_page(page)?.bytes().to_vec();
    let old = earlier.durable_page(page)?.bytes();
    flash.change_page(page, |held| held.copy_from_slice(old));
    Some(StruckPlace { place: MediumPlace::Page(page), wanted })
}

fn first_record(bytes: &[u8], page: PageAddress) -> Option<FirstRecord> {
    let spare = PageSpare::of_intact(bytes, page, 0)?;
    let record = bytes[..PAGE_DATA_BYTES].get(usize::from(spare.first)..)?;
    let header = RecordHeader::decode(record.first_chunk()?).ok()?;
    let key = record.get(HEADER_BYTES..HEADER_BYTES + usize::from(header.key_bytes))?;
    Some(((header.namespace, key.to_vec(), header.value_bytes), header.sequence))
}
