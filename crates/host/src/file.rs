//! Files that hold a medium: opened past the page cache where their file system allows it, allocated in full.
//!
//! In: a path, a length. Out: an open [`File`] and how it moves bytes; space that a later write cannot run out of.
//! Invariant: a file reported as [`FileMode::Direct`] takes transfers of whole 512-byte sectors.

use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags, fallocate, fstatvfs, statx};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::region::SECTOR_BYTES;

/// Whether to go past the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectChoice {
    /// Where the file system takes transfers of 512-byte sectors.
    #[default]
    Auto,
    /// Through the page cache.
    Never,
}

/// How an open file moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileMode {
    /// Straight between memory and disk.
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
pub fn open_to_read(path: &Path, choice: DirectChoice) -> io::Result<(File, FileMode)> {
    open_as(path, choice, OpenOptions::new().read(true))
}

fn open_as(path: &Path, choice: DirectChoice, options: &mut OpenOptions) -> io::Result<(File, FileMode)> {
    let file = options.open(path)?;
    if choice == DirectChoice::Never || !takes_sectors(&file) {
        return Ok((file, FileMode::Buffered));
    }
    let direct = options.custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path);
    // A file system that promised and then refuses is served through its cache.
    Ok(direct.map_or((file, FileMode::Buffered), |direct| (direct, FileMode::Direct)))
}

/// Whether direct transfers may start, end and lie in memory at any sector. Kernels before 6.1 do not say; then no.
fn takes_sectors(file: &File) -> bool {
    statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).is_ok_and(|found| {
        let fits = |align: u32| align > 0 && SECTOR_BYTES.is_multiple_of(align as usize);
        found.stx_mask & StatxFlags::DIOALIGN.bits() != 0
            && fits(found.stx_dio_mem_align)
            && fits(found.stx_dio_offset_align)
    })
}

/// Why a file could not be allocated.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// The file system has less free space than the file needs.
    #[error(
        "{needed_bytes} bytes are needed and {free_bytes} are free: free some space or ask for less capacity"
    )]
    NoSpace {
        /// Length of the file.
        needed_bytes: u64,
        /// What is free for this user.
        free_bytes: u64,
    },
    /// The operating system refused.
    #[error("the file cannot be allocated: {0}")]
    System(#[from] io::Error),
}

/// Gives the file a length and, where the file system can, space for all of it.
///
/// # Errors
/// There is too little space, or the file system refuses such a file.
pub fn allocate(file: &File, bytes: u64) -> Result<(), AllocateError> {
    let free_bytes = || -> io::Result<u64> {
        let found = fstatvfs(file)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    };
    // Asked before, because an allocation that fails half way takes every free byte of the machine for a moment.
    let free = free_bytes()?;
    if bytes > free {
        return Err(AllocateError::NoSpace { needed_bytes: bytes, free_bytes: free });
    }
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
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
    fn an_allocated_file_has_its_length() {
        let file = tempfile::NamedTempFile::new().unwrap();
        allocate(file.as_file(), 1 << 20).unwrap();
        assert_eq!(file.as_file().metadata().unwrap().len(), 1 << 20);
    }

    #[test]
    fn too_little_space_is_an_error_with_both_numbers() {
        let file = tempfile::tempfile().unwrap();
        let Err(AllocateError::NoSpace { needed_bytes, free_bytes }) = allocate(&file, 1 << 60) else {
            panic!("an exabyte was allocated");
        };
        assert_eq!(needed_bytes, 1 << 60);
        assert!(free_bytes < needed_bytes);
        assert_eq!(file.metadata().unwrap().len(), 0);
    }

    #[test]
    fn a_file_opened_to_read_takes_no_writes() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        for choice in [DirectChoice::Auto, DirectChoice::Never] {
            let (file, _) = open_to_read(file.path(), choice).unwrap();
            assert!(file.write_all_at(&[7; SECTOR_BYTES], 0).is_err());
        }
        assert_eq!(file.as_file().metadata().unwrap().len(), 0);
    }

    #[test]
    fn a_file_opens_either_way_and_a_missing_one_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(open(file.path(), DirectChoice::Never).unwrap().1, FileMode::Buffered);
        open(file.path(), DirectChoice::Auto).unwrap();
        let missing = file.path().with_extension("missing");
        assert_eq!(open(&missing, DirectChoice::Auto).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
