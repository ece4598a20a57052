//! The file or block device behind the queues: opening it, and the requirements of direct I/O on it.
//!
//! Input: a path, options. Output: a [`BlockFile`]. Invariant: it accepts transfers at every multiple of its block
//! size, and all its blocks lie in it.

use super::NAMESPACE;
use super::sysfs::{number_in, queue_folder_of, transfer_limits};
use crate::client_namespace::ClientNamespace;
use crate::command::BLOCKS_MAX;
use crate::error::IoError;
use headwater_host::device_ring::{EXTENT_BYTES_MAX, EXTENTS_MAX};
use headwater_host::file::allocate;
use headwater_host::uring::UringChoice;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, fstat, ioctl_blksszget, major, minor, statx};
use rustix::io::{Errno, pread};
use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Smallest block.
const SECTOR_BYTES: u32 = 512;
/// A block size that every file system accepts, and the largest one that is probed.
const PAGE_BYTES: u32 = 4_096;

/// The options of opening a file or block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UringOptions {
    /// True to poll the device for completions, without interrupts.
    pub poll: bool,
    /// The size in bytes of the file to create if it does not exist.
    pub create: Option<u64>,
    /// The choice between io_uring and plain system calls.
    pub uring: UringChoice,
}

/// An open file or block device.
#[derive(Debug)]
pub(super) struct BlockFile {
    pub(super) file: Arc<File>,
    pub(super) path: PathBuf,
    pub(super) facts: ClientNamespace,
    /// Alignment of buffer addresses, in bytes.
    pub(super) memory_align: usize,
    /// Maximum bytes of one command.
    pub(super) transfer_bytes_max: usize,
    /// Maximum buffers of one command.
    pub(super) segments_max: usize,
    /// True for a block device, which supports discards.
    pub(super) is_device: bool,
    /// A note about degraded performance.
    pub(super) note: Option<String>,
}

/// The alignment of direct transfers, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DirectAlignment {
    block: u32,
    memory: usize,
}

impl BlockFile {
    pub(super) fn open(path: &Path, options: &UringOptions) -> Result<Self, IoError> {
        let wrong = |reason: &str| IoError::Device { reason: format!("{}: {reason}", path.display()) };
        if let Some(bytes) = options.create {
            create(path, bytes)?;
        }
        let (file, writable, direct) = open_with_fallback(path).map_err(|errno| match errno {
            Errno::NOENT => wrong("there is no such file; create it with ?create=SIZE"),
            Errno::ISDIR => wrong("is a directory; name a file in it, with ?create=SIZE for a new one"),
            errno => wrong(&errno.to_string()),
        })?;
        let stat = fstat(&file).map_err(|errno| wrong(&errno.to_string()))?;
        let is_device = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => false,
            FileType::BlockDevice => true,
            FileType::Directory => {
                return Err(wrong("is a directory; name a file in it, with ?create=SIZE for a new one"));
            }
            FileType::CharacterDevice => {
                return Err(wrong("is a character device; /dev/ng* are opened as nvme-ng:PATH"));
            }
            _ => return Err(wrong("is neither a file nor a block device; name one of these")),
        };
        let bytes = (&file).seek(SeekFrom::End(0)).map_err(|error| wrong(&error.to_string()))?;
        let align = alignment(&file, is_device, direct);
        let size = bytes / u64::from(align.block);
        if size == 0 {
            let block = align.block;
            return Err(wrong(&format!("its {bytes} bytes are less than a block of {block}; extend it")));
        }
        let note = (!direct).then(|| {
            let name = path.display();
            format!("{name}: the file system has no direct I/O: transfers are copied through the page cache")
        });
        let facts = ClientNamespace {
            id: NAMESPACE,
            block_bytes: align.block,
            size,
            writable,
            blocks: None,
            retrieve_options: false,
        };
        let memory_align = if direct { align.memory } else { 1 };
        let (transfer_bytes_max, segments_max) = if options.poll {
            // Kernels up to 6.1 retry a polled transfer forever if it has to be split.
            let queue = queue_folder(&file, is_device);
            (queue.map_or(PAGE_BYTES as usize, |queue| transfer_limits(&queue, "max_sectors_kb").0), 1)
        } else {
            ((align.block as usize * BLOCKS_MAX as usize).min(EXTENT_BYTES_MAX), EXTENTS_MAX)
        };
        Ok(Self {
            file: Arc::new(file),
            path: path.to_owned(),
            facts,
            memory_align,
            transfer_bytes_max,
            segments_max,
            is_device,
            note,
        })
    }

    /// Checks that the device under the file has polled queues, as far as sysfs shows it.
    pub(super) fn check_polling(&self) -> Result<(), IoError> {
        let io_poll =
            queue_folder(&self.file, self.is_device).and_then(|queue| number_in(&queue.join("io_poll")));
        if io_poll == Some(0) { Err(self.polling_error()) } else { Ok(()) }
    }

    pub(super) fn polling_error(&self) -> IoError {
        let name = self.path.display();
        IoError::Device {
            reason: format!(
                "{name}: cannot be polled: its driver has no polled queues (NVMe: nvme.poll_queues=N on the kernel's \
                 command line), or its file system or the page cache does not support polling; open it without poll=1"
            ),
        }
    }
}

/// Returns the sysfs folder of the queue of a block device, or of the device under a file.
fn queue_folder(file: &File, is_device: bool) -> Option<PathBuf> {
    let stat = fstat(file).ok()?;
    let number = if is_device { stat.st_rdev } else { stat.st_dev };
    queue_folder_of(major(number), minor(number))
}

/// Creates a file with space for `bytes` bytes, unless it exists.
fn create(path: &Path, bytes: u64) -> Result<(), IoError> {
    let wrong = |reason: String| IoError::Device { reason: format!("{}: {reason}", path.display()) };
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
        Ok(descriptor) => File::from(descriptor),
        Err(Errno::EXIST) => return Ok(()),
        Err(errno) => return Err(wrong(errno.to_string())),
    };
    allocate(&file, bytes).map_err(|error| {
        // The next open would take a partly allocated file for a complete one.
        let _ = std::fs::remove_file(path);
        wrong(error.to_string())
    })
}

/// Opens for writing if permitted, with direct I/O if supported. Returns the file, and if it is writable and direct.
fn open_with_fallback(path: &Path) -> Result<(File, bool, bool), Errno> {
    let tried = |access: OFlags, direct: OFlags| {
        rustix::fs::open(path, access | direct | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
    };
    let access_of = |access: OFlags| match tried(access, OFlags::DIRECT) {
        Ok(descriptor) => Ok((File::from(descriptor), true)),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok((File::from(tried(access, OFlags::empty())?), false)),
        Err(errno) => Err(errno),
    };
    match access_of(OFlags::RDWR) {
        Ok((file, direct)) => Ok((file, true, direct)),
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
            access_of(OFlags::RDONLY).map(|(file, direct)| (file, false, direct))
        }
        Err(errno) => Err(errno),
    }
}

/// Returns the alignment of transfers.
fn alignment(file: &File, is_device: bool, direct: bool) -> DirectAlignment {
    let logical = if is_device { ioctl_blksszget(file).ok() } else { None };
    let reported = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let reported = reported.filter(|found| found.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    let reported = reported.map(|found| (found.stx_dio_offset_align, found.stx_dio_mem_align));
    let block = match (logical, reported) {
        (Some(logical), _) => logical,
        (None, Some((offset, _))) if direct && offset > 0 => offset,
        (None, _) if direct => probe_block(file),
        _ => SECTOR_BYTES,
    };
    let memory = reported.map(|(_, memory)| memory).filter(|&memory| memory > 0);
    let block = block.max(SECTOR_BYTES).next_power_of_two();
    DirectAlignment { block, memory: memory.unwrap_or(block) as usize }
}

/// Probes for the smallest block that a direct read accepts: kernels before 6.1, and some file systems, do not report
/// it.
fn probe_block(file: &File) -> u32 {
    let page = PAGE_BYTES as usize;
    let mut memory = vec![0; 2 * page];
    let start = memory.as_ptr().align_offset(page).min(page);
    let mut block = SECTOR_BYTES;
    while block < PAGE_BYTES {
        let into = &mut memory[start..start + block as usize];
        if pread(file, into, block.into()).is_ok() {
            return block;
        }
        block *= 2;
    }
    PAGE_BYTES
}
