//! The manifest of a backup: where each page of the flash file lies in the archives (`docs/formats/backup.md`).
//!
//! Input: the parts of a snapshot, and what was copied. Output: bytes with a checksum, and the manifest again. Invariant:
//! the pieces of a block follow each other without a gap from its first page.

use headwater_host::copy::crc32c;
use std::collections::BTreeMap;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"HWBKUP1\0";
const CRC_BYTES: usize = 4;

/// The life of a block: its offset in the flash file, and its order. Equal lives hold equal pages.
pub type BlockLife = (u64, u64);

/// A run of pages of one block in an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchivedPiece {
    /// Its first page in the block.
    pub first: u16,
    /// Its pages.
    pub pages: u16,
    /// The number of the archive.
    pub archive: u32,
    /// The offset in the archive, in bytes.
    pub offset: u64,
    /// The CRC-32C of its bytes.
    pub crc: u32,
}

/// A backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupManifest {
    /// The number of the backup in its folder, from 1.
    pub number: u32,
    /// The time at which it was complete, in milliseconds since 1970.
    pub wall_ms: u64,
    /// The identity of the flash file: its inode and the time of its creation in nanoseconds.
    pub source: (u64, u64),
    /// The bytes of the flash file.
    pub file_bytes: u64,
    /// The bytes of a page in the file.
    pub page_bytes: u32,
    /// The last sequence in the backup.
    pub sequence: u64,
    /// Bytes of the file that are held here, with their offsets: superblocks and commit records.
    pub parts: Vec<(u64, Vec<u8>)>,
    /// The pieces of each block.
    pub blocks: BTreeMap<BlockLife, Vec<ArchivedPiece>>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ManifestHeader {
    magic: [u8; 8],
    number: U32,
    page_bytes: U32,
    wall_ms: U64,
    inode: U64,
    born_ns: U64,
    file_bytes: U64,
    sequence: U64,
    parts: U32,
    pieces: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PartHeader {
    offset: U64,
    bytes: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PieceLayout {
    block: U64,
    order: U64,
    archive_offset: U64,
    archive: U32,
    crc: U32,
    first: U16,
    pages: U16,
}

const _: () = assert!(size_of::<ManifestHeader>() == 64);
const _: () = assert!(size_of::<PartHeader>() == 12 && size_of::<PieceLayout>() == 36);

/// Returns the pages that pieces cover from the first one on.
#[must_use]
pub fn covered_pages(pieces: &[ArchivedPiece]) -> u16 {
    pieces.last().map_or(0, |last| last.first.saturating_add(last.pages))
}

impl BackupManifest {
    /// Returns the bytes of the pages in the backup.
    #[must_use]
    pub fn page_bytes_total(&self) -> u64 {
        let pages: u64 = self.blocks.values().map(|pieces| u64::from(covered_pages(pieces))).sum();
        pages * u64::from(self.page_bytes)
    }

    /// Encodes the manifest.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let count = |items: usize| U32::new(u32::try_from(items).unwrap_or(u32::MAX));
        let header = ManifestHeader {
            magic: MAGIC,
            number: self.number.into(),
            page_bytes: self.page_bytes.into(),
            wall_ms: self.wall_ms.into(),
            inode: self.source.0.into(),
            born_ns: self.source.1.into(),
            file_bytes: self.file_bytes.into(),
            sequence: self.sequence.into(),
            parts: count(self.parts.len()),
            pieces: count(self.blocks.values().map(Vec::len).sum()),
        };
        let mut bytes = header.as_bytes().to_vec();
        for (offset, part) in &self.parts {
            let header = PartHeader { offset: (*offset).into(), bytes: count(part.len()) };
            bytes.extend(header.as_bytes());
            bytes.extend(part);
        }
        for (&(block, order), pieces) in &self.blocks {
            for piece in pieces {
                let layout = PieceLayout {
                    block: block.into(),
                    order: order.into(),
                    archive_offset: piece.offset.into(),
                    archive: piece.archive.into(),
                    crc: piece.crc.into(),
                    first: piece.first.into(),
                    pages: piece.pages.into(),
                };
                bytes.extend(layout.as_bytes());
            }
        }
        let crc = crc32c(0, &bytes);
        bytes.extend(crc.to_le_bytes());
        bytes
    }

    /// Decodes a manifest.
    ///
    /// # Errors
    /// Says what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let split = bytes.len().checked_sub(CRC_BYTES).ok_or("the manifest is cut off")?;
        let (body, crc) = bytes.split_at(split);
        if crc32c(0, body).to_le_bytes() != *crc {
            return Err("the manifest fails its checksum".to_owned());
        }
        let cut = |_| "the manifest is shorter than its header says".to_owned();
        let (header, mut rest) =
            ManifestHeader::read_from_prefix(body).map_err(|_| "the manifest is cut off")?;
        if header.magic != MAGIC {
            return Err("this is no manifest of a backup that this program knows".to_owned());
        }
        let mut manifest = Self {
            number: header.number.get(),
            wall_ms: header.wall_ms.get(),
            source: (header.inode.get(), header.born_ns.get()),
            file_bytes: header.file_bytes.get(),
            page_bytes: header.page_bytes.get(),
            sequence: header.sequence.get(),
            ..Self::default()
        };
        for _ in 0..header.parts.get() {
            let (part, behind) = PartHeader::read_from_prefix(rest).map_err(|_| cut(()))?;
            let bytes = part.bytes.get() as usize;
            let (held, behind) = behind.split_at_checked(bytes).ok_or_else(|| cut(()))?;
            manifest.parts.push((part.offset.get(), held.to_vec()));
            rest = behind;
        }
        for _ in 0..header.pieces.get() {
            let (piece, behind) = PieceLayout::read_from_prefix(rest).map_err(|_| cut(()))?;
            manifest.add(&piece)?;
            rest = behind;
        }
        if rest.is_empty() {
            Ok(manifest)
        } else {
            Err("the manifest is longer than its header says".to_owned())
        }
    }

    fn add(&mut self, layout: &PieceLayout) -> Result<(), String> {
        let life = (layout.block.get(), layout.order.get());
        let pieces = self.blocks.entry(life).or_default();
        let piece = ArchivedPiece {
            first: layout.first.get(),
            pages: layout.pages.get(),
            archive: layout.archive.get(),
            offset: layout.archive_offset.get(),
            crc: layout.crc.get(),
        };
        if piece.first != covered_pages(pieces) {
            return Err(format!("the pieces of the block at {} leave a gap", life.0));
        }
        pieces.push(piece);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> BackupManifest {
        let piece = |first, pages| ArchivedPiece { first, pages, archive: 2, offset: 4_608, crc: 9 };
        BackupManifest {
            number: 3,
            wall_ms: 1_000,
            source: (7, 8),
            file_bytes: 1 << 30,
            page_bytes: 4_608,
            sequence: 99,
            parts: vec![(0, vec![1; 4_096]), (8_192, vec![2; 1_024])],
            blocks: [((139_264, 5), vec![piece(0, 10), piece(10, 54)]), ((434_176, 6), vec![piece(0, 64)])]
                .into(),
        }
    }

    #[test]
    fn manifest_decodes_to_itself() {
        assert_eq!(BackupManifest::decode(&manifest().encode()), Ok(manifest()));
    }

    #[test]
    fn manifest_with_any_damaged_or_missing_byte_is_refused() {
        let good = manifest().encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(BackupManifest::decode(&bad).is_err(), "byte {at}");
            assert!(BackupManifest::decode(&good[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn counts_beyond_the_bytes_are_refused_whatever_the_checksum_says() {
        let mut bytes = manifest().encode();
        bytes.truncate(bytes.len() - CRC_BYTES);
        for at in [56, 60] {
            let mut bad = bytes.clone();
            bad[at..at + 4].fill(0xFF);
            let crc = crc32c(0, &bad);
            bad.extend(crc.to_le_bytes());
            assert!(BackupManifest::decode(&bad).is_err(), "count at {at}");
        }
    }
}
