//! Files that hold a medium: opened past the page cache where their file system allows it, allocated in full.
//!
//! Input: a path, a length. Output: an open [`File`] and its I/O mode; space that a later write cannot run out of.
//! Invariant: a file reported as [`FileMode::Direct`] takes transfers of whole 512-byte sectors.

mod huge_pages;

use rustix::fs::{
    Advice, AtFlags, FallocateFlags, OFlags, StatxFlags, fadvise, fallocate, fstatfs, fstatvfs, statx,
};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::mapped_region::SECTOR_BYTES;

/// The `f_type` that `fstatfs` reports for tmpfs.
const TMPFS: u64 = 0x0102_1994;

/// The choice between direct I/O and the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectChoice {
    /// Direct I/O where the file system takes transfers of 512-byte sectors.
    #[default]
    Auto,
    /// Through the page cache.
    Never,
}

/// The I/O mode of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileMode {
    /// Direct transfers between memory and disk.
    Direct,
    /// Through the page cache.
    Buffered,
}

/// Opens an existing file for reading and writing.
///
/// # Errors
/// The file cannot be opened.
pub fn open(path: &Path, choice: DirectChoice) -> io::Result<(File, FileMode)> {
    open_as(path, choice, OpenOptions::new().read(true).write(true))
}

/// Opens an existing file for reading only: the kernel refuses every write to it.
///
/// # Errors
/// The file cannot be opened.
pub fn open_read_only(path: &Path, choice: DirectChoice) -> io::Result<(File, FileMode)> {
    open_as(path, choice, OpenOptions::new().read(true))
}

fn open_as(path: &Path, choice: DirectChoice, options: &mut OpenOptions) -> io::Result<(File, FileMode)> {
    let file = options.open(path)?;
    if choice == DirectChoice::Never || !supports_sector_io(&file) {
        return Ok((file, FileMode::Buffered));
    }
    let direct = options.custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path);
    // A file system that reports direct I/O and then refuses it is used through the page cache.
    Ok(direct.map_or((file, FileMode::Buffered), |direct| (direct, FileMode::Direct)))
}

/// Returns true if a file lies in memory (tmpfs): no device carries out its transfers, and none of them waits for one.
#[must_use]
pub fn is_in_memory(file: &File) -> bool {
    fstatfs(file).is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|kind| kind == TMPFS))
}

/// Drops the clean pages of a file from the page cache, as far as the file system can. After a failed write-back the
/// kernel keeps the bytes that it could not write as clean pages: who reads them takes for durable what is not on the disk.
pub fn drop_cached_pages(file: &File) {
    // Without this the file is read as before: a file system without it has no page cache, or cannot drop one.
    let _unsupported = fadvise(file, 0, None, Advice::DontNeed);
}

/// Returns true if direct transfers may start, end and lie in memory at any sector; false on kernels before 6.1, which
/// do not report it.
fn supports_sector_io(file: &File) -> bool {
    statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).is_ok_and(|found| {
        let fits = |align: u32| align > 0 && SECTOR_BYTES.is_multiple_of(align as usize);
        found.stx_mask & StatxFlags::DIOALIGN.bits() != 0
            && fits(found.stx_dio_mem_align)
            && fits(found.stx_dio_offset_align)
    })
}

/// An error of allocating a file.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// The file system has less free space than the file needs.
    #[error(
        "a file of {needed_bytes} bytes exceeds the {free_bytes} bytes free: free some space or reduce the capacity"
    )]
    NoSpace {
        /// Length of the file.
        needed_bytes: u64,
        /// Free bytes for this user.
        free_bytes: u64,
    },
    /// The operating system refused.
    #[error("cannot allocate the file: {0}")]
    System(#[from] io::Error),
}

/// Sets the length of a file and, where the file system can, allocates space for all of it. A file in memory gets huge pages,
/// as far as the kernel has some.
///
/// # Errors
/// There is too little space, or the file system refuses such a file.
pub fn allocate(file: &File, bytes: u64) -> Result<(), AllocateError> {
    let free_bytes = || -> io::Result<u64> {
        let found = fstatvfs(file)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    };
    // Checked first, because an allocation that fails half way takes every free byte of the machine for a moment.
    let free = free_bytes()?;
    if bytes > free {
        return Err(AllocateError::NoSpace { needed_bytes: bytes, free_bytes: free });
    }
    let found_bytes = file.metadata()?.len();
    if is_in_memory(file) && found_bytes < bytes {
        // The kernel joins no pages behind the end of a file.
        file.set_len(bytes)?;
        huge_pages::take(file, bytes);
    }
    let allocated = fallocate(file, FallocateFlags::empty(), 0, bytes);
    if allocated.is_err() {
        file.set_len(found_bytes)?;
    }
    match allocated {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC) => Err(AllocateError::NoSpace { needed_bytes: bytes, free_bytes: free_bytes()? }),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(file.set_len(bytes)?),
        Err(errno) => Err(AllocateError::System(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocated_file_has_requested_length() {
        let file = tempfile::NamedTempFile::new().unwrap();
        allocate(file.as_file(), 1 << 20).unwrap();
        assert_eq!(file.as_file().metadata().unwrap().len(), 1 << 20);
    }

    #[test]
    fn insufficient_space_error_reports_needed_and_free_bytes() {
        let file = tempfile::tempfile().unwrap();
        let Err(AllocateError::NoSpace { needed_bytes, free_bytes }) = allocate(&file, 1 << 60) else {
            panic!("an exabyte was allocated");
        };
        assert_eq!(needed_bytes, 1 << 60);
        assert!(free_bytes < needed_bytes);
        assert_eq!(file.metadata().unwrap().len(), 0);
    }

    #[test]
    fn dropped_pages_are_read_from_the_disk_again() {
        use rustix::io::{ReadWriteFlags, preadv2};
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 1 << 16], 0).unwrap();
        file.sync_all().unwrap();
        let is_cached = || {
            let mut bytes = [0; SECTOR_BYTES];
            let buffers = &mut [io::IoSliceMut::new(&mut bytes)];
            preadv2(&file, buffers, 0, ReadWriteFlags::NOWAIT)
        };
        // A file system in memory keeps its pages, and not every file system tells whether it has one.
        let in_memory = is_in_memory(&file);
        let tells = is_cached() != Err(Errno::OPNOTSUPP);
        assert_eq!(is_cached(), if tells { Ok(SECTOR_BYTES) } else { Err(Errno::OPNOTSUPP) });
        // The question starts a read of the page, which a quick disk may end before the kernel answers. One refusal
        // suffices: a page that is still cached is never refused.
        let is_dropped = (0..1_000).any(|_| {
            drop_cached_pages(&file);
            is_cached() == Err(Errno::AGAIN)
        });
        assert_eq!(is_dropped, tells && !in_memory);
        let mut bytes = [0; SECTOR_BYTES];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [7; SECTOR_BYTES]);
    }

    #[test]
    fn file_opened_for_reading_refuses_writes() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        for choice in [DirectChoice::Auto, DirectChoice::Never] {
            let (file, _) = open_read_only(file.path(), choice).unwrap();
            assert!(file.write_all_at(&[7; SECTOR_BYTES], 0).is_err());
        }
        assert_eq!(file.as_file().metadata().unwrap().len(), 0);
    }

    #[test]
    fn file_opens_in_both_modes_and_missing_file_is_not_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(open(file.path(), DirectChoice::Never).unwrap().1, FileMode::Buffered);
        open(file.path(), DirectChoice::Auto).unwrap();
        let missing = file.path().with_extension("missing");
        assert_eq!(open(&missing, DirectChoice::Auto).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
