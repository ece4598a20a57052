//! Creates and opens flash files.
//!
//! Input: a data directory. Output: an open, locked, checked file with its layout, or an error that names the faulty
//! part. Invariant: a file named `flash` is complete, because it gets the name last; opening changes nothing but copies
//! of the superblock that do not count.

use super::batches::PageBatches;
use super::cells::CellOperations;
use super::layout::{FlashLayout, PIECE_BYTES, SUPERBLOCK_COPIES, is_valid_geometry};
use super::space_wait::SpaceWait;
use super::superblock::{BadSuperblock, FeatureBits, Superblock, SuperblockFault, VERSION, version_of};
use super::superblock_choice::{ChosenSuperblock, PieceReader, UndecidedSuperblock};
use super::transfers::{FlashTransfers, FlushRequests};
use super::upgrade;
use super::version1::{self, Version1Fault, Version1Pages};
use super::zero_fill::REGION_BYTES;
use super::zero_fill::ZeroFill;
use super::{
    FLASH_FILE_NAME, FileMedia, FileMediaError, FileOptions, HostRing, RING_ENTRIES, StartupFile,
    TransferRing, UNFINISHED_FILE_NAME, ZeroFillMode,
};
use crate::media::{FlashGeometry, NandRules};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::file::{self, AllocateError, FileMode, allocate};
use headwater_host::uring::{FileRing, UringChoice};
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Time to wait for a lock: a child forked by another thread of the last owner holds it until it executes its own
/// program.
const LOCK_WAIT_MAX: Nanos = Nanos::from_millis(200);
const LOCK_POLL_PERIOD: Nanos = Nanos::from_millis(2);
/// Most slabs of frames whose memory is registered with the ring, of 1 MiB each.
const REGISTERED_SLABS_MAX: u32 = 4_096;

/// The access to a flash file that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenAccess {
    /// The file was just created: every block is erased.
    New,
    /// Every block must be erased before it is programmed again. A file of version 1 is opened read-only.
    ReadWrite,
    /// Every operation that would change the file is refused.
    ReadOnly,
}

/// The checked parts of a flash file that is being opened.
#[derive(Debug)]
pub(super) struct CheckedFile {
    pub(super) layout: FlashLayout,
    pub(super) version1: Option<Version1Pages>,
    pub(super) features: FeatureBits,
    pub(super) bad_superblocks: Vec<BadSuperblock>,
}

impl FileMedia {
    /// Creates a flash file in a data directory and opens it, all blocks erased. The whole capacity is allocated.
    ///
    /// # Errors
    /// The file exists, there is too little space, or a system call fails.
    pub fn create(
        directory: &Path,
        geometry: FlashGeometry,
        uuid: [u8; 16],
        options: FileOptions,
    ) -> Result<Self, FileMediaError> {
        create(directory, geometry, uuid)?;
        Self::open_as(directory, OpenAccess::New, options)
    }

    /// Opens the flash file of a data directory. Every block must be erased before it is programmed again. A file of
    /// version 1 is opened read-only.
    ///
    /// # Errors
    /// The file is missing, in use, damaged, of another length or of an unknown version.
    pub fn open(directory: &Path, options: FileOptions) -> Result<Self, FileMediaError> {
        Self::open_as(directory, OpenAccess::ReadWrite, options)
    }

    /// Opens the flash file of a data directory read-only: every operation that would change it is refused. Several
    /// processes may read one file, but not while a node serves from it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_read_only(directory: &Path, options: FileOptions) -> Result<Self, FileMediaError> {
        let options = FileOptions { zero_fill_mode: ZeroFillMode::Never, ..options };
        Self::open_as(directory, OpenAccess::ReadOnly, options)
    }

    fn open_as(directory: &Path, access: OpenAccess, options: FileOptions) -> Result<Self, FileMediaError> {
        let path = directory.join(FLASH_FILE_NAME);
        let writable = access != OpenAccess::ReadOnly;
        let lock =
            OpenOptions::new().read(true).write(writable).open(&path).map_err(system(&path, "open"))?;
        lock_with_wait(&path, || if writable { lock.try_lock() } else { lock.try_lock_shared() })?;
        if access == OpenAccess::ReadWrite {
            // A killed process may have left bytes in the page cache that are not on the disk.
            lock.sync_all().map_err(system(&path, "sync"))?;
        }
        file::drop_cached_pages(&lock);
        let checked = check_file(&path, &lock, access)?;
        let opened = match access {
            OpenAccess::ReadOnly => file::open_read_only(&path, options.direct),
            OpenAccess::New | OpenAccess::ReadWrite => file::open(&path, options.direct),
        };
        let (file, mode) = opened.map_err(system(&path, "open"))?;
        let mut ring = match options.uring {
            UringChoice::Auto if file::is_in_memory(&file) => FileRing::in_memory(file, RING_ENTRIES)?,
            choice => FileRing::open(file, RING_ENTRIES, choice)?,
        };
        if mode == FileMode::Direct {
            // Transfers through the page cache pin nothing.
            ring.register_buffers(REGISTERED_SLABS_MAX);
        }
        let ring = HostRing { ring, mode, lock, clock: Clock::start() };
        Ok(Self::from_checked(path, checked, ring, access, options.zero_fill_mode))
    }
}

impl<R: TransferRing> FileMedia<R> {
    /// Opens a flash file that lies elsewhere than in a directory of the operating system. `file` is used to check it
    /// and to write copies of its superblock again, `ring` from then on; errors call it `path`.
    ///
    /// # Errors
    /// The file is damaged, of another length or of an unknown version, or an access to it failed.
    pub fn open_over(
        file: &impl StartupFile,
        ring: R,
        path: PathBuf,
        access: OpenAccess,
        zero_fill_mode: ZeroFillMode,
    ) -> Result<Self, FileMediaError> {
        let checked = check_file(&path, file, access)?;
        Ok(Self::from_checked(path, checked, ring, access, zero_fill_mode))
    }

    fn from_checked(
        path: PathBuf,
        CheckedFile { layout, version1, features, bad_superblocks }: CheckedFile,
        ring: R,
        access: OpenAccess,
        zero_fill_mode: ZeroFillMode,
    ) -> Self {
        let geometry = layout.geometry;
        let access = if version1.is_some() { OpenAccess::ReadOnly } else { access };
        Self {
            zero_fill: ZeroFill::new(layout),
            path,
            layout,
            rules: match access {
                OpenAccess::New => NandRules::erased(geometry),
                OpenAccess::ReadWrite => NandRules::unknown(geometry),
                OpenAccess::ReadOnly => NandRules::read_only(geometry),
            },
            write_pointer_known: vec![access == OpenAccess::New; geometry.blocks as usize],
            version1,
            features,
            bad_superblocks,
            zero_fill_mode,
            programs: PageBatches::default(),
            reads: PageBatches::default(),
            cells: CellOperations::default(),
            programs_in_flight: vec![0; geometry.blocks as usize],
            transfers: FlashTransfers::default(),
            flush: FlushRequests::default(),
            space: SpaceWait::default(),
            now: Nanos::ZERO,
            completions: VecDeque::new(),
            in_flight: 0,
            finished: Vec::new(),
            ring,
        }
    }
}

pub(super) fn system<'p>(
    path: &'p Path,
    doing: &'static str,
) -> impl FnOnce(io::Error) -> FileMediaError + use<'p> {
    move |source| FileMediaError::System { path: path.to_owned(), doing, source }
}

/// Creates the file. It appears under its name only when it is complete and durable.
fn create(directory: &Path, geometry: FlashGeometry, uuid: [u8; 16]) -> Result<(), FileMediaError> {
    if !is_valid_geometry(geometry) {
        return Err(FileMediaError::Geometry { geometry });
    }
    let path = directory.join(FLASH_FILE_NAME);
    if path.exists() {
        return Err(FileMediaError::Exists { path });
    }
    let unfinished = directory.join(UNFINISHED_FILE_NAME);
    let layout = FlashLayout::new(geometry, uuid);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        // It holds what every client stores.
        .mode(0o600)
        .open(&unfinished)
        .map_err(system(&unfinished, "create"))?;
    lock_with_wait(&unfinished, || file.try_lock())?;
    if let Err(error) = write_contents(&file, &unfinished, &layout) {
        // The first error is reported; an error of the removal says less.
        let _ = fs::remove_file(&unfinished);
        return Err(error);
    }
    fs::rename(&unfinished, &path).map_err(system(&path, "rename the finished file to"))?;
    let parent = File::open(directory).map_err(system(directory, "open"))?;
    parent.sync_all().map_err(system(directory, "sync"))
}

fn write_contents(file: &File, path: &Path, layout: &FlashLayout) -> Result<(), FileMediaError> {
    allocate(file, layout.file_bytes).map_err(|error| match error {
        AllocateError::NoSpace { needed_bytes, free_bytes } => {
            FileMediaError::NoSpace { path: path.to_owned(), needed_bytes, free_bytes }
        }
        AllocateError::System(source) => system(path, "allocate")(source),
    })?;
    write_structures(file, layout).map_err(system(path, "write"))
}

/// Writes an empty flash file, durably, into a file that has the length which the geometry needs.
///
/// # Errors
/// A write or the sync failed.
pub fn write_new_file(file: &impl StartupFile, geometry: FlashGeometry, uuid: [u8; 16]) -> io::Result<()> {
    write_structures(file, &FlashLayout::new(geometry, uuid))
}

fn write_structures(file: &impl StartupFile, layout: &FlashLayout) -> io::Result<()> {
    // The cells and the first fill region are written now, so that the first commits find written space, not merely
    // reserved space.
    write_zeros(file, 0, layout.file_bytes.min(layout.slots_offset + REGION_BYTES))?;
    write_zeros(file, layout.tail_offset(), layout.file_bytes)?;
    write_superblocks(file, &Superblock::new(*layout), 0..SUPERBLOCK_COPIES)?;
    file.sync()
}

pub(super) fn write_zeros(file: &impl StartupFile, start: u64, end: u64) -> io::Result<()> {
    const ZEROS: &[u8] = &[0; 1 << 16];
    (start..end).step_by(ZEROS.len()).try_for_each(|at| {
        let bytes = usize::try_from(end - at).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
        file.write_at(&ZEROS[..bytes], at)
    })
}

pub(super) fn write_superblocks(
    file: &impl StartupFile,
    superblock: &Superblock,
    copies: impl IntoIterator<Item = u8>,
) -> io::Result<()> {
    let mut copies = copies.into_iter();
    copies.try_for_each(|copy| {
        file.write_at(&superblock.encode(copy), superblock.layout.superblock_offset(copy))
    })
}

/// Checks the structures of a file and, unless it is opened read-only, writes bad copies of its superblock again.
pub(super) fn check_file(
    path: &Path,
    file: &impl StartupFile,
    access: OpenAccess,
) -> Result<CheckedFile, FileMediaError> {
    let found_bytes = file.length().map_err(system(path, "examine"))?;
    let wrong_length =
        |expected_bytes| FileMediaError::Length { path: path.to_owned(), expected_bytes, found_bytes };
    if found_bytes < PIECE_BYTES as u64 {
        return Err(wrong_length(PIECE_BYTES as u64));
    }
    let mut pieces = PieceReader::new(file, found_bytes);
    if let Ok(first) = pieces.piece(0)
        && let Some(old) = check_other_version(path, file, &mut pieces, (&first, found_bytes))?
    {
        let layout = old.flash_layout();
        let features = FeatureBits::default();
        return Ok(CheckedFile { layout, version1: Some(old), features, bad_superblocks: Vec::new() });
    }
    let ChosenSuperblock { superblock, bad } = pieces.choose().map_err(|undecided| {
        let UndecidedSuperblock { bad, guess } = undecided;
        match guess {
            Some(layout) if layout.file_bytes != found_bytes => wrong_length(layout.file_bytes),
            None if bad.iter().all(|bad| is_foreign(bad.fault)) => {
                FileMediaError::NotFlash { path: path.to_owned() }
            }
            _ => FileMediaError::SuperblockDamaged { path: path.to_owned(), bad },
        }
    })?;
    if superblock.layout.file_bytes != found_bytes {
        return Err(wrong_length(superblock.layout.file_bytes));
    }
    check_features(path, superblock.features, access)?;
    if access != OpenAccess::ReadOnly && !bad.is_empty() {
        if upgrade::is_unfinished(&superblock, &mut pieces) {
            upgrade::finish(file, &superblock, &[]).map_err(system(path, "finish the upgrade of"))?;
        }
        write_superblocks(file, &superblock, bad.iter().map(|bad| bad.copy))
            .and_then(|()| file.sync())
            .map_err(system(path, "write copies of the superblock again in"))?;
    }
    let superblock = match access {
        OpenAccess::ReadWrite if superblock.features.incompatible & FeatureBits::EXTENTS == 0 => {
            // The bit is set before its first use.
            let next = superblock.with_extents();
            upgrade::write_revision(file, &next).map_err(system(path, "write the superblock of"))?;
            next
        }
        _ => superblock,
    };
    let Superblock { layout, features, .. } = superblock;
    Ok(CheckedFile { layout, version1: None, features, bad_superblocks: bad })
}

/// Returns true if a place holds nothing that was ever a superblock.
fn is_foreign(fault: SuperblockFault) -> bool {
    matches!(fault, SuperblockFault::NotFlash | SuperblockFault::Missing)
}

/// Opens a file of version 1, and refuses one of an unknown version. Returns `None` if the copies of the superblock
/// decide.
fn check_other_version<F: StartupFile>(
    path: &Path,
    file: &F,
    pieces: &mut PieceReader<'_, F>,
    (first, found_bytes): (&[u8; PIECE_BYTES], u64),
) -> Result<Option<Version1Pages>, FileMediaError> {
    match version_of(first) {
        Ok(version1::VERSION) => {
            // An upgrade writes the second copy after the first one: with it the file has version 2, whatever the first
            // one says.
            let second = pieces.piece(PIECE_BYTES as u64);
            if second.is_ok_and(|second| version_of(&second) == Ok(VERSION)) {
                return Ok(None);
            }
        }
        Ok(VERSION) | Err(_) => return Ok(None),
        Ok(found) => {
            return Err(FileMediaError::Version { path: path.to_owned(), found, known: VERSION });
        }
    }
    let opened = Version1Pages::open(file, found_bytes, first).map_err(|fault| {
        let bad = vec![BadSuperblock { copy: 0, fault }];
        FileMediaError::SuperblockDamaged { path: path.to_owned(), bad }
    })?;
    opened.map(Some).map_err(|fault| match fault {
        Version1Fault::Length { expected_bytes } => {
            FileMediaError::Length { path: path.to_owned(), expected_bytes, found_bytes }
        }
        Version1Fault::Session => FileMediaError::SessionDamaged { path: path.to_owned() },
        Version1Fault::Table(number) => FileMediaError::TableDamaged { path: path.to_owned(), number },
        Version1Fault::Io(source) => system(path, "read the tables of")(source),
    })
}

/// Checks that this program knows the features of a file.
fn check_features(path: &Path, found: FeatureBits, access: OpenAccess) -> Result<(), FileMediaError> {
    let path = path.to_owned();
    let unknown = |found: u64, known: u64| Some(found & !known).filter(|&bits| bits != 0);
    if let Some(bits) = unknown(found.incompatible, FeatureBits::KNOWN.incompatible) {
        return Err(FileMediaError::Incompatible { path, bits });
    }
    match unknown(found.read_compatible, FeatureBits::KNOWN.read_compatible) {
        Some(bits) if access != OpenAccess::ReadOnly => Err(FileMediaError::ReadCompatible { path, bits }),
        _ => Ok(()),
    }
}

/// Takes a lock, and waits for a lock that is being released.
fn lock_with_wait(
    path: &Path,
    try_lock: impl Fn() -> Result<(), TryLockError>,
) -> Result<(), FileMediaError> {
    let clock = Clock::start();
    loop {
        match try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if clock.now() < LOCK_WAIT_MAX => Clock::sleep(LOCK_POLL_PERIOD),
            Err(TryLockError::WouldBlock) => return Err(FileMediaError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(system(path, "lock")(source)),
        }
    }
}
