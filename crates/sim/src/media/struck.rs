//! The bytes that a lie struck, and the writes that may then be gone without a word.
//!
//! Input: the bytes that a medium should hold and does not, and the medium at rest. Output: the sequence behind which
//! acknowledged writes may be missing. Invariant: nothing is excused but the last commit, and only while no record that was
//! itself durable at the power cut says that it is (`docs/formats/medium-2.md`, the last but one fault). A page of a commit
//! that was never complete may say so and survive the cut by luck: a device need not search the whole medium for it.
//!
//! It reads records as the format has them and asks nothing of the device's recovery.

use crate::flash::{CELLS, SimFlash, pages_of};
use crate::simulated_file::SimFile;
use headwater_host::copy::crc32c;
use headwater_ssd::command::Sequence;
use headwater_ssd::log::commit_record::CommitRecord;
use headwater_ssd::log::page::{PageKind, PageSpare};
use headwater_ssd::log::prefix::{Prefix, Tick};
use headwater_ssd::media::file::zones::{FileZones, ZoneOwner};
use headwater_ssd::media::{BlockId, CELL_BYTES, CellNumber, FlashGeometry, PageAddress};

/// The uuid of every simulated file.
pub const FILE_UUID: [u8; 16] = *b"simulated flash.";

/// A page or a commit cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumPlace {
    /// A page, with its spare.
    Page(PageAddress),
    /// A commit cell.
    Cell(CellNumber),
}

/// A place, and the bytes that it should hold.
#[derive(Clone, Debug)]
pub struct StruckPlace {
    /// The place.
    pub place: MediumPlace,
    /// The bytes.
    pub wanted: Vec<u8>,
}

/// A medium on which no device runs.
#[derive(Clone, Copy, Debug)]
pub enum RestingMedium<'a> {
    /// Simulated flash.
    Flash(&'a SimFlash),
    /// A simulated file of this geometry, whose uuid is [`FILE_UUID`].
    File(&'a SimFile, FlashGeometry),
}

impl RestingMedium<'_> {
    pub(super) fn seed(&self) -> u32 {
        match self {
            Self::Flash(_) => 0,
            Self::File(..) => crc32c(0, &FILE_UUID),
        }
    }

    pub(super) fn bytes(&self, place: MediumPlace) -> Option<Vec<u8>> {
        match (self, place) {
            (Self::Flash(flash), MediumPlace::Page(page)) => Some(flash.durable_page(page)?.bytes().to_vec()),
            (Self::Flash(flash), MediumPlace::Cell(cell)) => Some(flash.durable_cell(cell)?.to_vec()),
            (Self::File(file, geometry), _) => {
                let owner = match place {
                    MediumPlace::Page(page) => ZoneOwner::Slot(page),
                    MediumPlace::Cell(cell) => ZoneOwner::Cell(cell),
                };
                Some(file.bytes(FileZones::new(*geometry).range(owner)))
            }
        }
    }

    fn records(&self) -> impl Iterator<Item = CommitRecord> {
        let cells = (0..CELLS.0 + CELLS.1).map(CellNumber);
        cells.filter_map(|cell| {
            let record =
                CommitRecord::decode(&self.bytes(MediumPlace::Cell(cell))?[..CELL_BYTES], self.seed())?;
            (cell_of(record.number) == cell).then_some(record)
        })
    }

    /// Returns for each side the latest epoch that an intact record is of.
    pub(super) fn epochs(&self) -> [u64; 2] {
        let mut epochs = [0; 2];
        for record in self.records() {
            let side = &mut epochs[usize::from(record.number % 2 == 1)];
            *side = record.epoch.max(*side);
        }
        epochs
    }

    /// Returns the longest prefix that an intact record calls durable. Pages say no more, except those of a commit that was
    /// never complete.
    fn durable(&self) -> Prefix {
        self.records().flat_map(|record| [record.durable, record.accepted]).max().unwrap_or_default()
    }
}

/// Returns the cell of a record with this number.
fn cell_of(number: u64) -> CellNumber {
    let (first, count) = if number.is_multiple_of(2) { (0, CELLS.0) } else { (CELLS.0, CELLS.1) };
    CellNumber(first + u16::try_from(number / 2 % u64::from(count)).unwrap_or(0))
}

/// Returns the structures that lie in a range of a file, each with the bytes that the range should hold there.
#[must_use]
pub fn places_in(geometry: FlashGeometry, start: u64, wanted: &[u8]) -> Vec<StruckPlace> {
    let zones = FileZones::new(geometry);
    let pages = (0..geometry.blocks).map(BlockId).flat_map(pages_of).map(MediumPlace::Page);
    let places = pages.chain((0..CELLS.0 + CELLS.1).map(CellNumber).map(MediumPlace::Cell));
    let inside = places.filter_map(|place| {
        let range = zones.range(match place {
            MediumPlace::Page(page) => ZoneOwner::Slot(page),
            MediumPlace::Cell(cell) => ZoneOwner::Cell(cell),
        });
        let from = usize::try_from(range.start.checked_sub(start)?).ok()?;
        let bytes = usize::try_from(range.end - range.start).ok()?;
        Some(StruckPlace { place, wanted: wanted.get(from..from + bytes)?.to_vec() })
    });
    inside.collect()
}

/// Returns the sequence behind which acknowledged writes may be gone without a word: a lie struck the last commit, and
/// nothing on the medium, as a power cut leaves it at least, says that this commit is durable.
#[must_use]
pub fn unwitnessed_above(
    struck: &[StruckPlace],
    medium: RestingMedium<'_>,
    at_least: RestingMedium<'_>,
) -> Option<Sequence> {
    let seed = medium.seed();
    let gone = struck.iter().filter(|struck| medium.bytes(struck.place).as_ref() != Some(&struck.wanted));
    // The end of the log that the lie took, by page or by both records.
    let mut ends: Vec<Tick> = Vec::new();
    for StruckPlace { place, wanted } in gone {
        match place {
            MediumPlace::Page(page) => {
                let spare = PageSpare::of_intact(wanted, *page, seed);
                ends.extend(spare.and_then(|spare| match spare.kind {
                    PageKind::Log => Some(spare.tick),
                    // It may be of a value of the last commit.
                    PageKind::Extent => medium.records().map(|record| record.end.tick).max(),
                    PageKind::Checkpoint | PageKind::Guard => None,
                }));
            }
            MediumPlace::Cell(_) => {
                let record = CommitRecord::decode(&wanted[..CELL_BYTES], seed);
                let lost = record.filter(|record| !medium.records().any(|other| other.end == record.end));
                ends.extend(lost.map(|record| record.end.tick));
            }
        }
    }
    let last = ends.into_iter().max()?;
    let durable = at_least.durable();
    (last > durable.tick).then_some(durable.sequence)
}
