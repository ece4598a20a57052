//! Creates and opens flash files.
//!
//! Input: a data directory. Output: an open, locked, checked file with its layout and its erase table, or an error that
//! names the faulty part. Invariant: a file named `flash` is complete, because it gets the name last; a session is
//! durable before it gives out a generation.

use super::batches::PageBatches;
use super::layout::{CopyNumber, FlashLayout, PIECE_BYTES, SuperblockFault, VERSION, is_valid_geometry};
use super::table::{EraseTable, TableFault};
use super::transfers::{FlashTransfers, FlushRequests};
use super::zero_fill::REGION_BYTES;
use super::zero_fill::ZeroFill;
use super::{FLASH_FILE_NAME, FileMedia, FileMediaError, FileOptions, RING_ENTRIES, ZeroFillMode};
use crate::media::{FlashGeometry, NandRules};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::file::{self, AllocateError, FileMode, allocate};
use headwater_host::uring::FileRing;
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use zerocopy::IntoBytes;

/// Time to wait for a lock: a child forked by another thread of the last owner holds it until it executes its own
/// program.
const LOCK_WAIT_MAX: Nanos = Nanos::from_millis(200);
const LOCK_POLL_PERIOD: Nanos = Nanos::from_millis(2);

/// An open flash file.
#[derive(Debug)]
struct OpenFlashFile {
    path: PathBuf,
    /// The open file that holds the lock.
    lock: File,
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
        let mut media = Self::open(directory, options)?;
        media.rules = NandRules::erased(geometry);
        media.write_pointer_known.fill(true);
        Ok(media)
    }

    /// Opens the flash file of a data directory. Every block must be erased before it is programmed again.
    ///
    /// # Errors
    /// The file is missing, in use, damaged, truncated or of another version.
    pub fn open(directory: &Path, options: FileOptions) -> Result<Self, FileMediaError> {
        let opened = open(directory)?;
        let file = file::open(&opened.path, options.direct);
        let rules = NandRules::unknown(opened.layout.geometry);
        Self::from_file(opened, file, rules, options)
    }

    /// Opens the flash file of a data directory read-only: every operation that would change it is refused. Several
    /// processes may read one file, but not while a node serves from it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_read_only(directory: &Path, options: FileOptions) -> Result<Self, FileMediaError> {
        let opened = open_read_only(directory)?;
        let file = file::open_read_only(&opened.path, options.direct);
        let rules = NandRules::read_only(opened.layout.geometry);
        Self::from_file(opened, file, rules, FileOptions { zero_fill_mode: ZeroFillMode::Never, ..options })
    }

    fn from_file(
        opened: OpenFlashFile,
        file: io::Result<(File, FileMode)>,
        rules: NandRules,
        options: FileOptions,
    ) -> Result<Self, FileMediaError> {
        let (file, mode) = file.map_err(|source| FileMediaError::System {
            path: opened.path.clone(),
            doing: "open",
            source,
        })?;
        let ring = FileRing::open(file, RING_ENTRIES, options.uring)?;
        let geometry = opened.layout.geometry;
        Ok(Self {
            zero_fill: ZeroFill::new(opened.layout, opened.table.generations()),
            path: opened.path,
            layout: opened.layout,
            rules,
            write_pointer_known: vec![false; geometry.blocks as usize],
            table: opened.table,
            zero_fill_mode: options.zero_fill_mode,
            programs: PageBatches::default(),
            reads: PageBatches::default(),
            programs_in_flight: vec![0; geometry.blocks as usize],
            transfers: FlashTransfers::default(),
            flush: FlushRequests::default(),
            completions: VecDeque::new(),
            in_flight: 0,
            finished: Vec::new(),
            ring,
            mode,
            _lock: opened.lock,
        })
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
    lock(&unfinished, &file)?;
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
    let write = || -> io::Result<()> {
        file.write_all_at(layout.superblock().as_bytes(), 0)?;
        file.write_all_at(&layout.session_piece(0), FlashLayout::session_offset(CopyNumber::First))?;
        EraseTable::create(layout, file)?;
        // The first fill region is written now, so that the first commits find written space, not merely reserved
        // space.
        let slots = layout.slots_offset();
        let end = layout.file_bytes().min(slots + REGION_BYTES);
        let zeros = [0; PIECE_BYTES];
        let mut at = slots;
        while at < end {
            let chunk = usize::try_from(end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            file.write_all_at(&zeros[..chunk], at)?;
            at += chunk as u64;
        }
        file.sync_all()
    };
    write().map_err(system(path, "write"))
}

/// Opens the file, checks it, and begins a session.
fn open(directory: &Path) -> Result<OpenFlashFile, FileMediaError> {
    let path = directory.join(FLASH_FILE_NAME);
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(system(&path, "open"))?;
    lock(&path, &file)?;
    let layout = superblock(&path, &file)?;
    let mut table = table(&path, &file, &layout)?;
    let (last, copy) = last_session(&path, &file, &layout)?;
    let session = table.session_after().max(last + 1);
    let begin = || -> io::Result<()> {
        file.write_all_at(&layout.session_piece(session), FlashLayout::session_offset(copy.other()))?;
        file.sync_all()
    };
    begin().map_err(system(&path, "begin a session in"))?;
    table.begin_session(session);
    Ok(OpenFlashFile { path, lock: file, layout, table })
}

/// Opens the file read-only and checks it. Begins no session and writes nothing; other processes may read it too.
fn open_read_only(directory: &Path) -> Result<OpenFlashFile, FileMediaError> {
    let path = directory.join(FLASH_FILE_NAME);
    let file = File::open(&path).map_err(system(&path, "open"))?;
    lock_with_wait(&path, || file.try_lock_shared())?;
    let layout = superblock(&path, &file)?;
    let table = table(&path, &file, &layout)?;
    last_session(&path, &file, &layout)?;
    Ok(OpenFlashFile { path, lock: file, layout, table })
}

fn lock(path: &Path, file: &File) -> Result<(), FileMediaError> {
    lock_with_wait(path, || file.try_lock())
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

fn table(path: &Path, file: &File, layout: &FlashLayout) -> Result<EraseTable, FileMediaError> {
    EraseTable::load(layout, file).map_err(|fault| match fault {
        TableFault::Damaged(number) => FileMediaError::TableDamaged { path: path.to_owned(), number },
        TableFault::Io(source) => system(path, "read the erase table of")(source),
    })
}

fn superblock(path: &Path, file: &File) -> Result<FlashLayout, FileMediaError> {
    let found_bytes = file.metadata().map_err(system(path, "examine"))?.len();
    let too_short =
        |expected_bytes| FileMediaError::Length { path: path.to_owned(), expected_bytes, found_bytes };
    if found_bytes < PIECE_BYTES as u64 {
        return Err(too_short(PIECE_BYTES as u64));
    }
    let mut piece = [0; PIECE_BYTES];
    file.read_exact_at(&mut piece, 0).map_err(system(path, "read the superblock of"))?;
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
fn last_session(path: &Path, file: &File, layout: &FlashLayout) -> Result<(u64, CopyNumber), FileMediaError> {
    let mut best = None;
    let mut piece = [0; PIECE_BYTES];
    for copy in CopyNumber::BOTH {
        file.read_exact_at(&mut piece, FlashLayout::session_offset(copy))
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
