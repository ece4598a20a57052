//! The superblock of a flash file: for any copies and any length, the file opens as one that was made, or is refused with
//! a reason; a refused file, and one that is only read, are not changed.
//!
//! Input: a script, one or a few bytes for each step, that changes the four copies of a new file, with and without valid
//! checksums, and its length. Purely random bytes would stop at the checksum.

use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use headwater_host::copy::crc32c;
use headwater_host::uring::{FileTransfer, FinishedTransfer, RejectedTransfer};
use headwater_ssd::media::file::zones::{FileZones, ZoneOwner};
use headwater_ssd::media::file::{
    FileMedia, FileMediaError, OpenAccess, StartupFile, TransferRing, ZeroFillMode, write_new_file,
};
use headwater_ssd::media::{
    BlockId, CellNumber, FlashGeometry, Media, MediaOp, MediaToken, MediumVersion, PageAddress,
};
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

const COPY_BYTES: usize = 4_096;
const CRC_AT: usize = COPY_BYTES - 4;
const REVISION_AT: usize = 96;
const COPIES: usize = 4;
const EIO: i32 = 5;

/// Changes the superblocks of a file and opens it.
///
/// # Panics
/// If a file is refused without a reason, if it is changed when it must not be, if an open file has structures outside
/// of its length, or if one bad copy is more than the file can bear.
pub fn body(bytes: &[u8]) {
    let geometry = FlashGeometry::with_blocks(1);
    let file = ScriptedFile::new(geometry);
    let changed = file.run(bytes);
    let before = file.bytes.borrow().clone();
    let read = file.open(OpenAccess::ReadOnly);
    assert!(*file.bytes.borrow() == before, "reading changed the file");
    let write = file.open(OpenAccess::ReadWrite);
    let one_bad = before.len() as u64 == FileZones::new(geometry).file_bytes() && changed.len() <= 1;
    match (read, write) {
        (Ok(mut read), write) => {
            touch_ends(&mut read);
            assert!(!one_bad || read.geometry() == geometry, "one bad copy counted");
            match write {
                Ok(mut media) => {
                    touch_ends(&mut media);
                    assert_eq!(media.geometry(), read.geometry(), "the same superblock counts");
                    let again = file.open(OpenAccess::ReadOnly).expect("what opened opens again");
                    assert_eq!(again.bad_superblocks(), [], "bad copies are written again");
                }
                Err(error) => assert!(matches!(error, FileMediaError::ReadCompatible { .. }), "{error}"),
            }
        }
        (Err(error), write) => {
            assert!(write.is_err(), "a file that cannot be read was opened for writing");
            assert!(*file.bytes.borrow() == before, "a refused file was changed");
            let text = error.to_string();
            assert!(!text.is_empty() && text.len() < 400, "a refusal is short: {text}");
            assert!(!one_bad || matches!(error, FileMediaError::Version { .. }), "one bad copy: {text}");
        }
    }
}

/// Reads the first and the last of everything that the file should hold; the ring checks that it lies in the file.
fn touch_ends(media: &mut FileMedia<RangeRing>) {
    let traits = media.traits();
    let last = BlockId(media.geometry().blocks - 1);
    let mut ops = vec![
        MediaOp::Read { page: PageAddress::new(BlockId(0), 0), frame: MediaFrame::zeroed() },
        MediaOp::Read { page: PageAddress::new(last, 63), frame: MediaFrame::zeroed() },
    ];
    if traits.version == MediumVersion::Two {
        for cell in [0, traits.cell_count() - 1] {
            ops.push(MediaOp::ReadCell { cell: CellNumber(cell), frame: MediaFrame::zeroed() });
        }
    }
    for op in ops {
        media.submit(MediaToken(0), op, Nanos::ZERO).expect("it is in the geometry");
    }
    let mut done = Vec::new();
    while media.in_flight() > 0 {
        media.wait(Nanos::ZERO);
        media.poll(Nanos::ZERO, &mut done);
    }
}

/// A file in memory.
struct ScriptedFile {
    bytes: RefCell<Vec<u8>>,
}

impl ScriptedFile {
    fn new(geometry: FlashGeometry) -> Self {
        let length =
            usize::try_from(FileZones::new(geometry).file_bytes()).expect("one block fits in memory");
        let file = Self { bytes: RefCell::new(vec![0; length]) };
        write_new_file(&file, geometry, *b"fuzzed superbloc").expect("memory takes every write");
        file
    }

    fn open(&self, access: OpenAccess) -> Result<FileMedia<RangeRing>, FileMediaError> {
        let ring = RangeRing { length: self.bytes.borrow().len() as u64, failed: Vec::new() };
        FileMedia::open_over(self, ring, PathBuf::from("flash"), access, ZeroFillMode::Never)
    }

    /// Runs a script, and returns the copies that it changed.
    fn run(&self, script: &[u8]) -> Vec<usize> {
        let mut script = script.iter().copied();
        let mut changed = Vec::new();
        let mut bytes = self.bytes.borrow_mut();
        let copies: Vec<Range<usize>> = (0_u8..4).map(copy_range).collect();
        while let Some(step) = script.next() {
            let copy = usize::from(step / 8) % COPIES;
            let mut small = || usize::from(script.next().unwrap_or(0));
            if step % 8 == 6 {
                // Whole sectors and single bytes, longer and shorter.
                let (length, by) = (bytes.len(), small() * [1, 512, 4_096, 8_192][copy]);
                let new = if small() % 2 == 0 { length.saturating_sub(by) } else { length + by };
                bytes.resize(new.min(2 << 20), 0);
                continue;
            }
            let from = copies[small() % COPIES].clone();
            if bytes.len() < copies[3].end {
                continue;
            }
            let source = bytes[from].to_vec();
            let piece = &mut bytes[copies[copy].clone()];
            let at = (small() * 256 + small()) % COPY_BYTES;
            match step % 8 {
                0 | 1 => piece[at] ^= 1 << (small() % 8),
                2 => piece[at] = u8::try_from(small()).unwrap_or(0),
                3 => piece.copy_from_slice(&source),
                4 => {
                    let end = (at + small() % 16).min(COPY_BYTES);
                    piece[at..end].iter_mut().for_each(|byte| *byte = u8::try_from(small()).unwrap_or(0));
                }
                5 => piece.fill(0),
                _ => piece[REVISION_AT] = u8::try_from(small()).unwrap_or(0),
            }
            if !matches!(step % 8, 0 | 3 | 5) {
                let crc = crc32c(0, &piece[..CRC_AT]);
                piece[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
            }
            if !changed.contains(&copy) {
                changed.push(copy);
            }
        }
        changed
    }
}

/// Returns the bytes of a copy in a file of one block.
fn copy_range(copy: u8) -> Range<usize> {
    let range = FileZones::new(FlashGeometry::with_blocks(1)).range(ZoneOwner::Superblock { copy });
    let number = |offset: u64| usize::try_from(offset).expect("the file fits in memory");
    number(range.start)..number(range.end)
}

impl StartupFile for ScriptedFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.bytes.borrow().len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let file = self.bytes.borrow();
        let found = file.get(start..start + bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(found);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).expect("the file fits in memory");
        self.bytes.borrow_mut()[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A ring that checks that each transfer lies in the file, and fails it.
#[derive(Debug)]
struct RangeRing {
    length: u64,
    failed: Vec<FinishedTransfer>,
}

impl TransferRing for RangeRing {
    fn in_flight(&self) -> usize {
        self.failed.len()
    }

    fn room(&self) -> usize {
        1
    }

    fn submit(&mut self, id: u64, transfer: FileTransfer) -> Result<(), RejectedTransfer> {
        if let FileTransfer::Read { offset, buffers } = &transfer {
            let bytes: usize = buffers.iter().map(|buffer| buffer.len()).sum();
            assert!(offset + bytes as u64 <= self.length, "a read at {offset} behind the end of the file");
        }
        self.failed.push(transfer.into_failed(id, EIO));
        Ok(())
    }

    fn kick(&mut self) {}

    fn poll(&mut self, _now: Nanos, done: &mut Vec<FinishedTransfer>) {
        done.append(&mut self.failed);
    }

    fn wait(&mut self, now: Nanos) -> Nanos {
        now
    }
}
