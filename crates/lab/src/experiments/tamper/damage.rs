//! One damage to a flash file: a fault of the table in `docs/formats/medium-2.md`, drawn from a seed.
//!
//! Input: an image and a seed. Output: the changes of its bytes. Invariant: one seed and one image give one damage.

use super::image::FlashImage;
use headwater_dma::frame::FRAME_BYTES;
use headwater_ssd::log::page::PageKind;
use headwater_ssd::media::PAGE_DATA_BYTES;
use std::fmt;
use std::ops::Range;

const SECTOR_BYTES: usize = 512;
const SLOT_BYTES: usize = FRAME_BYTES;

/// A kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DamageKind {
    /// One bit has the other value.
    Bit,
    /// A sector holds zeroes, ones or anything.
    Sector,
    /// A page, data and spare, holds zeroes, ones or anything.
    Page,
    /// Two pages lie in each other's place.
    Swapped,
    /// A page lies in another page's place too.
    Misdirected,
    /// A page holds what it held at an earlier time.
    Stale,
    /// The file ends early.
    Truncated,
    /// The superblocks or the cells of one side are damaged, zero or of an earlier time.
    Metadata,
    /// A field of a spare has another value.
    Spare,
}

/// Every kind, in the order of the report.
pub(super) const DAMAGE_KINDS: [DamageKind; 9] = [
    DamageKind::Bit,
    DamageKind::Sector,
    DamageKind::Page,
    DamageKind::Swapped,
    DamageKind::Misdirected,
    DamageKind::Stale,
    DamageKind::Truncated,
    DamageKind::Metadata,
    DamageKind::Spare,
];

impl DamageKind {
    /// Returns its name in the report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bit => "bit",
            Self::Sector => "sector",
            Self::Page => "page",
            Self::Swapped => "swapped pages",
            Self::Misdirected => "misdirected page",
            Self::Stale => "stale page",
            Self::Truncated => "truncation",
            Self::Metadata => "superblocks or cells",
            Self::Spare => "spare of a page",
        }
    }
}

/// A damage to an image.
pub(super) struct Damage {
    /// Its kind.
    pub(super) kind: DamageKind,
    /// New bytes, each from an offset of the file on.
    pub(super) writes: Vec<(usize, Vec<u8>)>,
    /// The new length of the file.
    pub(super) bytes: usize,
    seed: u64,
    is_aimed: bool,
}

impl Damage {
    /// Draws a damage; an aimed one strikes a page, a cell or a superblock that recovery needs.
    pub(super) fn draw(image: &FlashImage, is_aimed: bool, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let kind = DAMAGE_KINDS[random.usize(..DAMAGE_KINDS.len())];
        let kind = if !is_aimed && kind == DamageKind::Spare { DamageKind::Bit } else { kind };
        let mut damage = Self { kind, writes: Vec::new(), bytes: image.bytes.len(), seed, is_aimed };
        damage.fill(image, &mut random);
        damage
    }

    /// Returns the seed that it was drawn from.
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    fn fill(&mut self, image: &FlashImage, random: &mut fastrand::Rng) {
        let bytes = &image.bytes;
        match self.kind {
            DamageKind::Bit => {
                let at = self.place(image, random, 1);
                self.writes.push((at, vec![bytes[at] ^ 1 << random.u8(..8)]));
            }
            DamageKind::Sector => {
                let at = self.place(image, random, SECTOR_BYTES);
                self.writes.push((at, pattern(random, SECTOR_BYTES)));
            }
            DamageKind::Page => {
                let at = self.slot(image, random);
                self.writes.push((at, pattern(random, SLOT_BYTES)));
            }
            DamageKind::Swapped => {
                let (one, other) = (self.slot(image, random), self.slot(image, random));
                self.writes.push((one, bytes[other..other + SLOT_BYTES].to_vec()));
                self.writes.push((other, bytes[one..one + SLOT_BYTES].to_vec()));
            }
            DamageKind::Misdirected => {
                let (from, to) = (self.slot(image, random), self.slot(image, random));
                self.writes.push((to, bytes[from..from + SLOT_BYTES].to_vec()));
            }
            DamageKind::Stale => {
                let at = self.slot(image, random);
                let older = &image.older[random.usize(..image.older.len())];
                self.writes.push((at, older[at..at + SLOT_BYTES].to_vec()));
            }
            DamageKind::Truncated => self.bytes = random.usize(..bytes.len()),
            DamageKind::Metadata => self.strike_metadata(image, random),
            DamageKind::Spare => {
                let at = self.slot(image, random) + PAGE_DATA_BYTES + random.usize(..128);
                self.writes.push((at, vec![random.u8(..)]));
            }
        }
    }

    /// Damages one superblock, one cell, or all cells of a side.
    fn strike_metadata(&mut self, image: &FlashImage, random: &mut fastrand::Rng) {
        let [_, first, second, third] = &image.superblocks;
        let side = if random.bool() { first.end..image.slots.start } else { second.end..third.start };
        let range = match random.u8(..3) {
            0 => image.superblocks[random.usize(..image.superblocks.len())].clone(),
            1 => image.cells[random.usize(..image.cells.len())].clone(),
            _ => side,
        };
        let older = &image.older[random.usize(..image.older.len())];
        let new = if random.bool() { pattern(random, range.len()) } else { older[range.clone()].to_vec() };
        self.writes.push((range.start, new));
    }

    /// Returns the offset of `bytes` aligned bytes.
    fn place(&self, image: &FlashImage, random: &mut fastrand::Rng, bytes: usize) -> usize {
        if self.is_aimed {
            return self.slot(image, random) + random.usize(..PAGE_DATA_BYTES + 128) / bytes * bytes;
        }
        // Most of the file is in use; a third of the damages strikes anywhere.
        if random.u8(..3) == 0 {
            return random.usize(..image.bytes.len() / bytes) * bytes;
        }
        let used = |range: Range<usize>| image.bytes[range].iter().any(|byte| *byte != 0);
        loop {
            let at = random.usize(..image.bytes.len() / bytes) * bytes;
            let sector = at / SECTOR_BYTES * SECTOR_BYTES;
            if used(sector..sector + SECTOR_BYTES) {
                return at;
            }
        }
    }

    /// Returns the offset of a page.
    fn slot(&self, image: &FlashImage, random: &mut fastrand::Rng) -> usize {
        if !self.is_aimed {
            return image.slots.start + random.usize(..image.slots.len() / SLOT_BYTES) * SLOT_BYTES;
        }
        // Half of them strike the few pages that are no pages of records.
        let of_any_kind = random.bool();
        loop {
            let (at, kind) = image.pages[random.usize(..image.pages.len())];
            if of_any_kind || kind != PageKind::Log {
                return at;
            }
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let aimed = if self.is_aimed { "aimed" } else { "random" };
        write!(f, "{} ({aimed}, seed {})", self.kind.name(), self.seed)?;
        for (at, bytes) in &self.writes {
            write!(f, ", {} bytes at {at}", bytes.len())?;
        }
        Ok(())
    }
}

fn pattern(random: &mut fastrand::Rng, bytes: usize) -> Vec<u8> {
    match random.u8(..3) {
        0 => vec![0; bytes],
        1 => vec![0xFF; bytes],
        _ => std::iter::repeat_with(|| random.u8(..)).take(bytes).collect(),
    }
}
