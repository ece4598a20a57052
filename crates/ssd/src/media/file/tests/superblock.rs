//! The choice among the copies of the superblock: any two intact ones are enough, and fewer are refused.

use super::super::layout::{PIECE_BYTES, SUPERBLOCK_COPIES};
use super::super::startup::{CheckedFile, check_file, write_new_file};
use super::super::zones::{FileZones, ZoneOwner};
use super::*;
use std::cell::RefCell;
use std::io;

const COPIES: usize = SUPERBLOCK_COPIES as usize;

/// A file in memory, of which some copies of the superblock may be unreadable.
#[derive(Clone)]
struct MemoryFile {
    bytes: RefCell<Vec<u8>>,
    unreadable: RefCell<Vec<u64>>,
    writes: RefCell<Vec<u64>>,
}

impl StartupFile for MemoryFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.bytes.borrow().len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        if self.unreadable.borrow().contains(&offset) {
            return Err(io::Error::from_raw_os_error(61));
        }
        let start = usize::try_from(offset).unwrap();
        bytes.copy_from_slice(&self.bytes.borrow()[start..start + bytes.len()]);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.writes.borrow_mut().push(offset);
        self.unreadable.borrow_mut().retain(|&at| at != offset);
        let start = usize::try_from(offset).unwrap();
        self.bytes.borrow_mut()[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl MemoryFile {
    fn new(uuid: [u8; 16]) -> Self {
        let geometry = FlashGeometry::with_blocks(1);
        let bytes = usize::try_from(FlashLayout::new(geometry, uuid).file_bytes).unwrap();
        let file = Self {
            bytes: RefCell::new(vec![0; bytes]),
            unreadable: RefCell::default(),
            writes: RefCell::default(),
        };
        write_new_file(&file, geometry, uuid).unwrap();
        file.writes.borrow_mut().clear();
        file
    }

    fn offset(copy: usize) -> u64 {
        FlashLayout::new(FlashGeometry::with_blocks(1), UUID).superblock_offset(copy as u8)
    }

    fn copy(&self, copy: usize) -> [u8; PIECE_BYTES] {
        let mut piece = [0; PIECE_BYTES];
        let start = usize::try_from(Self::offset(copy)).unwrap();
        piece.copy_from_slice(&self.bytes.borrow()[start..start + PIECE_BYTES]);
        piece
    }

    fn set_copy(&self, copy: usize, piece: &[u8; PIECE_BYTES]) {
        self.write_at(piece, Self::offset(copy)).unwrap();
        self.writes.borrow_mut().clear();
    }

    fn open(&self, access: OpenAccess) -> Result<CheckedFile, FileMediaError> {
        check_file(Path::new("flash"), self, access)
    }
}

/// Changes a copy of the superblock and gives it a valid checksum.
fn changed(piece: &[u8; PIECE_BYTES], change: impl FnOnce(&mut [u8; PIECE_BYTES])) -> [u8; PIECE_BYTES] {
    let mut piece = *piece;
    change(&mut piece);
    let crc = crc32c(0, &piece[..PIECE_BYTES - 4]);
    piece[PIECE_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    piece
}

fn with_revision(piece: &[u8; PIECE_BYTES], revision: u64) -> [u8; PIECE_BYTES] {
    changed(piece, |piece| piece[96..104].copy_from_slice(&revision.to_le_bytes()))
}

/// A way to damage one copy of the superblock.
#[derive(Clone, Copy, Debug)]
enum CopyDamage {
    Flip,
    Zeros,
    Garbage,
    Torn,
    Stale,
    Newer,
    OtherCopy,
    OtherFile,
    Unreadable,
}

impl CopyDamage {
    const ALL: [Self; 9] = [
        Self::Flip,
        Self::Zeros,
        Self::Garbage,
        Self::Torn,
        Self::Stale,
        Self::Newer,
        Self::OtherCopy,
        Self::OtherFile,
        Self::Unreadable,
    ];

    fn apply(self, file: &MemoryFile, copy: usize, random: &mut fastrand::Rng) {
        let mut piece = file.copy(copy);
        match self {
            Self::Flip => piece[random.usize(0..PIECE_BYTES)] ^= 1 << random.u8(0..8),
            Self::Zeros => piece.fill(0),
            Self::Garbage => random.fill(&mut piece),
            Self::Torn => {
                let newer = with_revision(&piece, 9);
                let arrived = 512 * random.usize(1..8);
                piece[..arrived].copy_from_slice(&newer[..arrived]);
            }
            // Every damaged copy gets bytes of its own, or several of them would agree.
            Self::Stale => piece = with_revision(&piece, 1 + copy as u64),
            Self::Newer => piece = with_revision(&piece, 100 + copy as u64),
            Self::OtherCopy => piece = file.copy((copy + 1) % COPIES),
            Self::OtherFile => {
                piece = changed(&piece, |piece| piece[56..72].fill(copy as u8));
            }
            Self::Unreadable => file.unreadable.borrow_mut().push(MemoryFile::offset(copy)),
        }
        if !matches!(self, Self::Unreadable) {
            file.set_copy(copy, &piece);
        }
    }
}

/// Opens a file whose copies in `damaged` have a fault, and checks what opening makes of it.
fn check_damaged(file: &MemoryFile, whole: &MemoryFile, damaged: &[usize], told: &str) {
    let revision_7 = |copy| with_revision(&whole.copy(copy), 7);
    if damaged.len() > COPIES - 2 {
        for access in [OpenAccess::ReadOnly, OpenAccess::ReadWrite] {
            match file.open(access).unwrap_err() {
                error @ FileMediaError::SuperblockDamaged { .. } => {
                    let text = error.to_string();
                    let named = damaged.iter().filter(|copy| text.contains(&format!("copy {copy}"))).count();
                    assert!(named >= 2, "{told}: {text}");
                }
                // The only intact copy is one that only another one leads to.
                FileMediaError::NotFlash { .. } => {
                    assert!([0, 1, 3].iter().all(|copy| damaged.contains(copy)));
                }
                error => panic!("{told}: {error}"),
            }
        }
        assert!(file.writes.borrow().is_empty(), "{told}: a refused file was changed");
        return;
    }
    let copies = |checked: &CheckedFile| {
        checked.bad_superblocks.iter().map(|bad| usize::from(bad.copy)).collect::<Vec<_>>()
    };
    let read = file.open(OpenAccess::ReadOnly).unwrap_or_else(|error| panic!("{told}: {error}"));
    assert_eq!(copies(&read), damaged, "{told}");
    assert!(file.writes.borrow().is_empty(), "{told}: a file opened read-only was changed");
    let opened = file.open(OpenAccess::ReadWrite).unwrap_or_else(|error| panic!("{told}: {error}"));
    assert_eq!(copies(&opened), damaged, "{told}");
    assert_eq!(opened.layout, read.layout, "{told}");
    assert_eq!(file.writes.borrow().len(), damaged.len(), "{told}");
    for copy in 0..COPIES {
        assert!(file.copy(copy) == revision_7(copy), "{told}: copy {copy} was not written again");
    }
    assert_eq!(file.open(OpenAccess::ReadWrite).unwrap().bad_superblocks, [], "{told}");
}

#[expect(clippy::print_stderr, reason = "a failing run is repeated from its seed")]
#[test]
fn any_two_intact_copies_are_enough_and_fewer_are_refused() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let whole = MemoryFile::new(UUID);
    for round in 0..60 {
        for damaged in 0_u8..1 << COPIES {
            let file = whole.clone();
            for copy in 0..COPIES {
                file.set_copy(copy, &with_revision(&whole.copy(copy), 7));
            }
            let damaged: Vec<usize> = (0..COPIES).filter(|&copy| damaged & 1 << copy != 0).collect();
            let mut told = format!("seed {seed} round {round}");
            // A copy in the place of another is taken before that one is damaged.
            for &copy in &damaged {
                let damage = CopyDamage::ALL[random.usize(0..CopyDamage::ALL.len())];
                told += &format!(", copy {copy} {damage:?}");
                damage.apply(&file, copy, &mut random);
            }
            check_damaged(&file, &whole, &damaged, &told);
        }
    }
}

#[test]
fn the_highest_revision_that_two_copies_agree_on_counts() {
    let whole = MemoryFile::new(UUID);
    // Every assignment of three revisions and a damaged state to the copies.
    for assignment in 0..4_usize.pow(4) {
        let states: Vec<usize> = (0..4).map(|copy| assignment / 4_usize.pow(copy) % 4).collect();
        let file = whole.clone();
        for (copy, &state) in states.iter().enumerate() {
            let piece = match state {
                0 => [0xA5; PIECE_BYTES],
                revision => with_revision(&whole.copy(copy), revision as u64),
            };
            file.set_copy(copy, &piece);
        }
        let agreed =
            (1..4).rev().find(|&revision| states.iter().filter(|&&state| state == revision).count() >= 2);
        match (agreed, file.open(OpenAccess::ReadWrite)) {
            (Some(revision), Ok(_)) => {
                for copy in 0..COPIES {
                    let expected = with_revision(&whole.copy(copy), revision as u64);
                    assert!(file.copy(copy) == expected, "{states:?}: copy {copy}");
                }
            }
            (None, Err(FileMediaError::SuperblockDamaged { .. } | FileMediaError::NotFlash { .. })) => {}
            (agreed, found) => panic!("{states:?}: {agreed:?} instead of {found:?}"),
        }
    }
}

#[test]
fn two_files_that_were_mixed_are_refused() {
    let (one, other) = (MemoryFile::new(UUID), MemoryFile::new([7; 16]));
    for revision in [1, 2] {
        for pair in [[0, 1], [0, 2], [0, 3], [2, 3]] {
            let file = one.clone();
            for copy in pair {
                file.set_copy(copy, &with_revision(&other.copy(copy), revision));
            }
            let opened = file.open(OpenAccess::ReadWrite);
            assert!(matches!(opened, Err(FileMediaError::SuperblockDamaged { .. })), "{pair:?} {opened:?}");
            assert!(file.writes.borrow().is_empty());
        }
    }
}

#[test]
fn unknown_features_decide_who_may_open_the_file() {
    let whole = MemoryFile::new(UUID);
    let with_feature = |offset: usize| {
        let file = whole.clone();
        for copy in 0..COPIES {
            file.set_copy(copy, &changed(&whole.copy(copy), |piece| piece[offset + 7] = 0x40));
        }
        file
    };
    let bits = 0x40 << 56;
    for access in [OpenAccess::ReadOnly, OpenAccess::ReadWrite] {
        let error = with_feature(72).open(access).unwrap_err();
        assert!(matches!(error, FileMediaError::Incompatible { bits: found, .. } if found == bits));
        assert!(error.to_string().contains("0x4000000000000000"), "{error}");
        with_feature(88).open(access).unwrap();
    }
    with_feature(80).open(OpenAccess::ReadOnly).unwrap();
    let error = with_feature(80).open(OpenAccess::ReadWrite).unwrap_err();
    assert!(matches!(error, FileMediaError::ReadCompatible { bits: found, .. } if found == bits));
}

#[test]
fn invalid_fields_are_refused_although_the_checksum_passes() {
    let whole = MemoryFile::new(UUID);
    // Blocks, channels, dies, pages a block, slot bytes, slots offset, file bytes, revision, cells in front and behind.
    for (offset, bytes) in
        [(12, 4), (16, 2), (18, 2), (20, 4), (32, 4), (40, 8), (48, 8), (96, 8), (108, 4), (112, 4)]
    {
        for fill in [0, 0xFF] {
            if (offset, fill) == (96, 0xFF) {
                continue;
            }
            let file = whole.clone();
            for copy in 0..COPIES {
                let damage = |piece: &mut [u8; PIECE_BYTES]| {
                    // One channel and one die are what fewer bytes of ones would leave valid.
                    piece[offset..offset + bytes].fill(fill);
                };
                file.set_copy(copy, &changed(&whole.copy(copy), damage));
            }
            let opened = file.open(OpenAccess::ReadOnly);
            let valid = matches!(offset, 16 | 18) && fill == 0xFF;
            assert_eq!(opened.is_ok(), valid, "{offset} {fill}");
        }
    }
}

#[test]
fn an_unknown_version_is_reported_with_both_numbers() {
    let file = MemoryFile::new(UUID);
    file.set_copy(0, &changed(&file.copy(0), |piece| piece[8] = 9));
    let opened = file.open(OpenAccess::ReadOnly);
    assert!(matches!(opened, Err(FileMediaError::Version { found: 9, known: 2, .. })), "{opened:?}");
}

#[test]
fn map_of_a_file_follows_its_superblock() {
    let file = MemoryFile::new(UUID);
    let zones = FileZones::of_file(&file, Path::new("flash")).unwrap();
    assert_eq!((zones.geometry().blocks, zones.checksum_seed()), (1, crc32c(0, &UUID)));
    assert_eq!(zones.metadata(), FileZones::new(zones.geometry()).metadata());
    // As in an upgraded file: three cells in front, in the same space.
    for copy in 0..COPIES {
        file.set_copy(
            copy,
            &changed(&file.copy(copy), |piece| piece[108..112].copy_from_slice(&[3, 0, 0, 0])),
        );
    }
    let zones = FileZones::of_file(&file, Path::new("flash")).unwrap();
    assert_eq!(zones.metadata().len(), COPIES + 3 + 32);
    let last_in_front = zones.range(ZoneOwner::Cell(CellNumber(2)));
    assert!(last_in_front.end < zones.slots().start, "{last_in_front:?}");
    assert_eq!(zones.range(ZoneOwner::Cell(CellNumber(3))).start, zones.slots().end + PIECE_BYTES as u64);
    file.set_copy(0, &[0; PIECE_BYTES]);
    file.set_copy(3, &[0; PIECE_BYTES]);
    assert_eq!(FileZones::of_file(&file, Path::new("flash")).unwrap().metadata(), zones.metadata());
    file.set_copy(1, &[0; PIECE_BYTES]);
    assert!(FileZones::of_file(&file, Path::new("flash")).is_err());
}
