//! Creates and opens flash files.
//!
//! Input: a data directory. Output: an open, locked, checked file with its layout and its erase table, or an error that
//! names the faulty part. Invariant: a file named `flash` is complete, because it gets the name last; a session is
//! durable before it gives out a generation.

use super::batches::PageBatches;
use super::layout::{CopyNumber, FlashLayout, PIECE_BYTES, SuperblockFault, VERSION, is_valid_geometry};
use super::space_wait::SpaceWait;
use super::table::{EraseTable, TableFault};
use super::transfers::{FlashTransfers, FlushRequests};
use super::zero_fill::REGION_BYTES;
use super::zero_fill::ZeroFill;
use super::{
    FLASH_FILE_NAME, FileMedia, FileMediaError, FileOptions, HostRing, RING_ENTRIES, StartupFile,
    TransferRing, ZeroFillMode,
};
use crate::media::{FlashGeometry, NandRules};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::file::{self, AllocateError, allocate};
use headwater_host::uring::FileRing;
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use zerocopy::IntoBytes;

/// Time to wait for a lock: a child forked by another thread of the last owner holds it until it executes its own
/// program.
const LOCK_WAIT_MAX: Nanos = Nanos::from_millis(200);
const LOCK_POLL_PERIOD: Nanos = Nanos::from_millis(2);

/// The access to a flash file that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenAccess {
    /// The file was just created: every block is erased. Begins a session.
    New,
    /// Every block must be erased before it is programmed again. Begins a session.
    ReadWrite,
    /// Every operation that would change the file is refused.
    ReadOnly,
}

/// The checked parts of a flash file that is being opened.
#[derive(Debug)]
struct CheckedFile {
    layout: FlashLayout,
    table: EraseTable,
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

    /// Opens the flash file of a data directory. Every block must be erased before it is programmed again.
    ///
    /// # Errors
    /// The file is missing, in use, damaged, truncated or of another version.
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
        let ring = FileRing::open(file, RING_ENTRIES, options.uring)?;
        let ring = HostRing { ring, mode, _lock: lock };
        Ok(Self::from_checked(path, checked, ring, access, options.zero_fill_mode))
    }
}

impl<R: TransferRing> FileMedia<R> {
    /// Opens a flash file that lies elsewhere than in a directory of the operating system. `file` is used to check it
    /// and to begin a session, `ring` from then on; errors call it `path`.
    ///
    /// # Errors
    /// The file is damaged, truncated or of another version, or an access to it failed.
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
        CheckedFile { layout, table }: CheckedFile,
        ring: R,
        access: OpenAccess,
        zero_fill_mode: ZeroFillMode,
    ) -> Self {
        let geometry = layout.geometry;
        Self {
            zero_fill: ZeroFill::new(layout, table.generations()),
            path,
            layout,
            rules: match access {
                OpenAccess::New => NandRules::erased(geometry),
                OpenAccess::ReadWrite => NandRules::unknown(geometry),
                OpenAccess::ReadOnly => NandRules::read_only(geometry),
            },
            write_pointer_known: vec![access == OpenAccess::New; geometry.blocks as usize],
            table,
            zero_fill_mode,
            programs: PageBatches::default(),
            reads: PageBatches::default(),
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

fn system<'p>(path: &'p Path, doing: &'static str) -> impl FnOnce(io::Error) -> FileMediaError + use<'p> {
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
    let unfinished = directory.join("flash.unfinished");
    let layout = FlashLayout::new(geometry, uuid);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
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
    allocate(file, layout.file_bytes()).map_err(|error| match error {
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
    file.write_at(layout.superblock().as_bytes(), 0)?;
    file.write_at(&layout.session_piece(0), FlashLayout::session_offset(CopyNumber::First))?;
    EraseTable::create(layout, file)?;
    // The first fill region is written now, so that the first commits find written space, not merely reserved space.
    let slots = layout.slots_offset();
    let end = layout.file_bytes().min(slots + REGION_BYTES);
    let zeros = [0; PIECE_BYTES];
    let mut at = slots;
    while at < end {
        let chunk = usize::try_from(end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        file.write_at(&zeros[..chunk], at)?;
        at += chunk as u64;
    }
    file.sync()
}

/// Checks the structures of a file and, unless it is opened read-only, begins a session.
fn check_file(
    path: &Path,
    file: &impl StartupFile,
    access: OpenAccess,
) -> Result<CheckedFile, FileMediaError> {
    let layout = superblock(path, file)?;
    let mut table = table(path, file, &layout)?;
    let (last, copy) = last_session(path, file, &layout)?;
    if access != OpenAccess::ReadOnly {
        let session = table.session_after().max(last + 1);
        let begin = || -> io::Result<()> {
            file.write_at(&layout.session_piece(session), FlashLayout::session_offset(copy.other()))?;
            file.sync()
        };
        begin().map_err(system(path, "begin a session in"))?;
        table.begin_session(session);
    }
    Ok(CheckedFile { layout, table })
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

fn table(path: &Path, file: &impl StartupFile, layout: &FlashLayout) -> Result<EraseTable, FileMediaError> {
    EraseTable::load(layout, file).map_err(|fault| match fault {
        TableFault::Damaged(number) => FileMediaError::TableDamaged { path: path.to_owned(), number },
        TableFault::Io(source) => system(path, "read the erase table of")(source),
    })
}

fn superblock(path: &Path, file: &impl StartupFile) -> Result<FlashLayout, FileMediaError> {
    let found_bytes = file.length().map_err(system(path, "examine"))?;
    let too_short =
        |expected_bytes| FileMediaError::Length { path: path.to_owned(), expected_bytes, found_bytes };
    if found_bytes < PIECE_BYTES as u64 {
        return Err(too_short(PIECE_BYTES as u64));
    }
    let mut piece = [0; PIECE_BYTES];
    file.read_at(&mut piece, 0).map_err(system(path, "read the superblock of"))?;
    let path_owned = path.to_owned();
    let layout = FlashLayout::from_superblock(&piece).map_err(|fault| match fault {
        SuperblockFault::NotFlash => FileMediaError::NotFlash { path: path_owned },
        SuperblockFault::Damaged | SuperblockFault::InvalidFields => {
            FileMediaError::SuperblockDamaged { path: path_owned }
        }
        SuperblockFault::Version(found) => {
            FileMediaError::Version { path: path_owned, found, known: VERSION }
        }
    })?;
    // A longer file is accepted: bytes behind the last slot are not read.
    if found_bytes < layout.file_bytes() {
        return Err(too_short(layout.file_bytes()));
    }
    Ok(layout)
}

/// Returns the last session that began, and the copy that records it.
fn last_session(
    path: &Path,
    file: &impl StartupFile,
    layout: &FlashLayout,
) -> Result<(u64, CopyNumber), FileMediaError> {
    let mut best = None;
    let mut piece = [0; PIECE_BYTES];
    for copy in CopyNumber::BOTH {
        file.read_at(&mut piece, FlashLayout::session_offset(copy))
            .map_err(system(path, "read the session of"))?;
        let found = layout.read_session(&piece).map(|session| (session, copy));
        best = match (best, found) {
            (Some((best, _)), Some((session, _))) if session > best => found,
            (None, _) => found,
            _ => best,
        };
    }
    best.ok_or_else(|| FileMediaError::SessionDamaged { path: path.to_owned() })
}
