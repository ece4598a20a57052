//! Taking a backup: copies the pages of a snapshot that no archive has.
//!
//! Input: a data directory with a running node, and a backup folder. Output: a new manifest and a new archive. Invariant: a
//! page is taken from an older archive only if its block has the same life in the same file.
//!
//! A snapshot that is lost is not the end: blocks that have the same life in the next one are copied already, so each
//! attempt has less to copy.

use super::BackupError;
use super::folder::BackupFolder;
use super::manifest::{ArchivedPiece, BackupManifest, BlockLife, covered_pages};
use super::source::{SnapshotLink, SnapshotParts, SourceFile};
use headwater_host::copy::crc32c;
use headwater_ssd::media::PAGES_PER_BLOCK;
use headwater_ssd::media::file::image::SUPERBLOCK_BYTES;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Snapshots that may be lost before the backup is given up.
const ATTEMPTS_MAX: u32 = 50;

/// The size of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenBackup {
    /// Its number.
    pub number: u32,
    /// The last sequence in it.
    pub sequence: u64,
    /// Bytes of pages that were copied.
    pub copied: u64,
    /// Bytes of pages in it.
    pub total: u64,
    /// Snapshots that were lost before the one that it is of.
    pub lost: u32,
}

/// A receiver of the progress: bytes copied, and bytes to copy.
pub type CopyProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// Takes a backup of the data directory of a running node.
///
/// # Errors
/// [`BackupError`]; the backups of the folder are as before then.
pub fn take(
    data: &Path,
    folder: &BackupFolder,
    wall_ms: u64,
    progress: CopyProgress<'_>,
) -> Result<TakenBackup, BackupError> {
    folder.prune(None)?;
    let source = SourceFile::open(data)?;
    let mut copy = BlockCopy::start(folder, &source)?;
    for lost in 0..ATTEMPTS_MAX {
        let mut link = SnapshotLink::request(data, &copy.whole_blocks())?;
        let Some(parts) = link.parts()? else {
            continue;
        };
        copy.copy_blocks(&parts, &mut link, progress)?;
        if !link.is_held()? {
            continue;
        }
        let manifest = copy.finish(&parts, wall_ms)?;
        // Everything was read while the snapshot was held.
        drop(link);
        return Ok(TakenBackup {
            number: manifest.number,
            sequence: manifest.sequence,
            copied: copy.written,
            total: manifest.page_bytes_total(),
            lost,
        });
    }
    Err(BackupError::TooBusy { data: data.to_owned(), attempts: ATTEMPTS_MAX })
}

/// The copying of blocks into one archive.
struct BlockCopy<'a> {
    folder: &'a BackupFolder,
    source: &'a SourceFile,
    number: u32,
    archive: File,
    written: u64,
    pieces: BTreeMap<BlockLife, Vec<ArchivedPiece>>,
}

impl<'a> BlockCopy<'a> {
    /// Begins an archive behind those of the newest backup, whose pieces count if it is of the same file.
    fn start(folder: &'a BackupFolder, source: &'a SourceFile) -> Result<Self, BackupError> {
        let newest = folder.numbers()?.last().map(|&number| folder.manifest(number)).transpose()?;
        let number = newest.as_ref().map_or(1, |newest| newest.number + 1);
        let same = newest.filter(|newest| newest.source == source.identity);
        let pieces = same.map(|newest| newest.blocks).unwrap_or_default();
        let archive = folder.create_archive(number)?;
        Ok(Self { folder, source, number, archive, written: 0, pieces })
    }

    /// Returns the blocks of which every page is copied.
    fn whole_blocks(&self) -> Vec<BlockLife> {
        let whole = |pieces: &[ArchivedPiece]| usize::from(covered_pages(pieces)) >= PAGES_PER_BLOCK;
        self.pieces.iter().filter(|(_, pieces)| whole(pieces)).map(|(life, _)| *life).collect()
    }

    /// Copies the pages of a snapshot that are not copied yet.
    fn copy_blocks(
        &mut self,
        parts: &SnapshotParts,
        link: &mut SnapshotLink,
        progress: CopyProgress<'_>,
    ) -> Result<(), BackupError> {
        let page_bytes = u64::from(parts.header.page_bytes.get());
        let missing = |life: &BlockLife, pages: u16| {
            let covered = self.pieces.get(life).map_or(0, |pieces| covered_pages(pieces));
            u64::from(pages.saturating_sub(covered)) * page_bytes
        };
        let total: u64 = parts.blocks.iter().map(|(life, pages)| missing(life, *pages)).sum();
        let begin = self.written;
        let mut bytes = Vec::new();
        for (index, &(life, pages)) in parts.blocks.iter().enumerate() {
            let covered = self.pieces.get(&life).map_or(0, |pieces| covered_pages(pieces));
            if covered < pages {
                let (first, count) = (covered, pages - covered);
                bytes.resize(usize::from(count) * parts.header.page_bytes.get() as usize, 0);
                let from = life.0 + u64::from(first) * page_bytes;
                let read = self.source.file.read_exact_at(&mut bytes, from);
                read.map_err(BackupError::system(&self.source.path, "read the flash file"))?;
                self.append(life, (first, count), &bytes)?;
                progress(self.written - begin, total);
            }
            link.note_copied(index);
        }
        Ok(())
    }

    fn append(
        &mut self,
        life: BlockLife,
        (first, pages): (u16, u16),
        bytes: &[u8],
    ) -> Result<(), BackupError> {
        let piece =
            ArchivedPiece { first, pages, archive: self.number, offset: self.written, crc: crc32c(0, bytes) };
        let written = self.archive.write_all(bytes);
        let path = self.folder.archive_path(self.number);
        written.map_err(BackupError::system(&path, "write the archive"))?;
        self.written += bytes.len() as u64;
        self.pieces.entry(life).or_default().push(piece);
        Ok(())
    }

    /// Makes the archive durable, and writes the manifest of a snapshot whose blocks are all copied.
    fn finish(&mut self, parts: &SnapshotParts, wall_ms: u64) -> Result<BackupManifest, BackupError> {
        let path = self.folder.archive_path(self.number);
        self.archive.sync_all().map_err(BackupError::system(&path, "sync the archive"))?;
        let mut held = Vec::new();
        for offset in parts.header.superblocks {
            let mut bytes = vec![0; SUPERBLOCK_BYTES];
            let read = self.source.file.read_exact_at(&mut bytes, offset.get());
            read.map_err(BackupError::system(&self.source.path, "read the flash file"))?;
            held.push((offset.get(), bytes));
        }
        held.extend(parts.records.iter().cloned());
        let blocks = parts.blocks.iter().map(|&(life, pages)| (life, self.pieces_of(life, pages)));
        let manifest = BackupManifest {
            number: self.number,
            wall_ms,
            source: self.source.identity,
            file_bytes: parts.header.file_bytes.get(),
            page_bytes: parts.header.page_bytes.get(),
            sequence: parts.header.sequence.get(),
            parts: held,
            blocks: blocks.collect(),
        };
        self.folder.finish(&manifest)?;
        Ok(manifest)
    }

    /// Returns the pieces with the first pages of a block. An attempt before may have copied more of it.
    fn pieces_of(&self, life: BlockLife, pages: u16) -> Vec<ArchivedPiece> {
        let all = self.pieces.get(&life).map_or(&[][..], |pieces| pieces);
        all.iter().copied().filter(|piece| piece.first < pages).collect()
    }
}
