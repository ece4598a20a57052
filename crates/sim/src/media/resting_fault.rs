//! Damage to a medium at rest: between two boots, at places that hold something.
//!
//! Input: the fault, and the medium as the power cut left it. Output: the places that it changes, each with the bytes that
//! it holds from now on. Invariant: the same random stream damages the same medium in the same way.

use super::struck::{MediumPlace, RestingMedium, StruckPlace};
use crate::faults::RestingFault;
use crate::flash::{CELLS, SimFlash, pages_of};
use crate::simulated_file::{FileDamage, SimFile};
use headwater_ssd::log::page::{PageKind, PageSpare};
use headwater_ssd::media::file::zones::{FileZones, ZoneOwner};
use headwater_ssd::media::{BlockId, CellNumber, FlashGeometry, PAGE_DATA_BYTES, PageAddress};

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
    };
    let places: Vec<(MediumPlace, Vec<u8>)> =
        places.into_iter().filter_map(|place| Some((place, medium.bytes(place)?))).collect();
    let changes = places.iter().map(|(place, held)| {
        let bytes = (fault == RestingFault::Flipped).then(|| flipped(*place, held.clone(), rng));
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

/// Flips a bit: of a field of the spare, of the first header, or of anything.
fn flipped(place: MediumPlace, mut bytes: Vec<u8>, rng: &mut fastrand::Rng) -> Vec<u8> {
    let at = match (place, rng.u8(0..3)) {
        (MediumPlace::Page(_), 0) => PAGE_DATA_BYTES + SPARE_FIELDS[rng.usize(0..SPARE_FIELDS.len())],
        (_, 1) => rng.usize(0..HEADER_REACH),
        _ => rng.usize(0..bytes.len()),
    };
    bytes[at] ^= 1 << rng.u8(0..8);
    bytes
}
