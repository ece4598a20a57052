//! The generic device of a namespace: its properties, and the block window that the client may access.
//!
//! Input: a path, the number of a partition. Output: a [`DeviceFile`]. The properties come from Identify, which needs
//! CAP_SYS_ADMIN, or from sysfs, which every user may read; partitions and limits come from sysfs.

use crate::client_namespace::ClientNamespace;
use crate::error::{IoError, SubmitError};
use crate::identify::{
    CNS_DESCRIPTORS, CNS_NAMESPACE, CNS_NAMESPACE_OF_SET, IDENTIFY_BYTES, KEY_VALUE_COMMAND_SET,
    block_namespace, command_set, key_space,
};
use crate::uring::sysfs::{number_in, transfer_limits};
use headwater_host::device_ring::{NvmeCommand, admin_command, namespace_id};
use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor};
use rustix::io::Errno;
use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Admin opcode Identify.
const IDENTIFY: u8 = 0x06;
/// The unit of partition sizes in sysfs, independent of the block size.
const SECTOR_BYTES: u64 = 512;
/// Maximum buffers of one command.
const SEGMENTS: usize = 16;

/// The blocks that the client may access, in the device's numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockWindow {
    /// The first block.
    pub(super) start: u64,
    /// The number of blocks.
    pub(super) blocks: u64,
}

impl BlockWindow {
    /// Returns the first block of a run in the device's numbering, if the run lies in the window.
    ///
    /// # Errors
    /// [`SubmitError::BlocksOutOfRange`] with the client's numbers.
    #[inline]
    pub(super) fn locate(self, first: u64, blocks: u64) -> Result<u64, SubmitError> {
        let inside = first.checked_add(blocks).is_some_and(|end| end <= self.blocks);
        let start = self.start.checked_add(first).filter(|_| inside);
        start.ok_or(SubmitError::BlocksOutOfRange { first, blocks, size: self.blocks })
    }
}

/// An open generic device.
#[derive(Debug)]
pub(super) struct DeviceFile {
    pub(super) file: Arc<File>,
    pub(super) path: PathBuf,
    pub(super) facts: ClientNamespace,
    pub(super) window: BlockWindow,
    /// Maximum bytes of one command: the driver does not split commands.
    pub(super) transfer_bytes_max: usize,
    /// Maximum buffers of one command.
    pub(super) segments_max: usize,
    /// The sysfs folder of its block device.
    disk: PathBuf,
}

impl DeviceFile {
    pub(super) fn open(path: &Path, partition: Option<u32>) -> Result<Self, IoError> {
        let wrong = |reason: &dyn Display| device_error(path, reason);
        let (file, writable) = open_with_fallback(path).map_err(|errno| wrong(&errno))?;
        let stat = fstat(&file).map_err(|errno| wrong(&errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice {
            return Err(wrong(
                &"is not a character device; name /dev/ngXnY, or open a block device as io-uring:PATH",
            ));
        }
        let id = namespace_id(&file)
            .map_err(|error| wrong(&format_args!("is not an NVMe namespace ({error}); name /dev/ngXnY")))?;
        let number = format!("/sys/dev/char/{}:{}", major(stat.st_rdev), minor(stat.st_rdev));
        let generic = std::fs::canonicalize(number).map_err(|error| wrong(&error))?;
        let name =
            generic.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("ng"));
        let name = name.ok_or_else(|| wrong(&"is not the device of one namespace; name /dev/ngXnY"))?;
        let disk = Path::new("/sys/class/block").join(format!("nvme{name}"));
        let facts =
            ClientNamespace { writable, ..read_properties(&file, id, &disk).map_err(|error| wrong(&error))? };
        let window = match partition {
            None => BlockWindow { start: 0, blocks: facts.size },
            Some(number) => partition_window(&disk, number, &facts).map_err(|reason| wrong(&reason))?,
        };
        let size = if facts.is_key_space() { facts.size } else { window.blocks };
        let (bytes, segments) = transfer_limits(&disk.join("queue"), "max_hw_sectors_kb");
        // The driver would copy buffers that do not fill whole pages, and many small ones need many segments.
        let (transfer_bytes_max, segments_max) = (bytes, segments.min(SEGMENTS));
        Ok(Self {
            file: Arc::new(file),
            path: path.to_owned(),
            facts: ClientNamespace { size, ..facts },
            window,
            transfer_bytes_max,
            segments_max,
            disk,
        })
    }

    /// Checks that the driver has polled queues.
    pub(super) fn check_polling(&self) -> Result<(), IoError> {
        if number_in(&self.disk.join("queue/io_poll")) == Some(1) {
            Ok(())
        } else {
            Err(self.polling_error())
        }
    }

    pub(super) fn polling_error(&self) -> IoError {
        device_error(
            &self.path,
            &"cannot be polled: the driver has no polled queues (nvme.poll_queues=N on the kernel's command line), \
              or io_uring is refused; open it without poll=1",
        )
    }
}

fn device_error(path: &Path, reason: &dyn Display) -> IoError {
    IoError::Device { reason: format!("{}: {reason}", path.display()) }
}

/// Opens for writing if permitted, else for reading. Returns the file, and if it is writable.
fn open_with_fallback(path: &Path) -> Result<(File, bool), Errno> {
    let tried = |access| rustix::fs::open(path, access | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
    match tried(OFlags::RDWR) {
        Ok(descriptor) => Ok((File::from(descriptor), true)),
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Ok((File::from(tried(OFlags::RDONLY)?), false)),
        Err(errno) => Err(errno),
    }
}

/// Reads the properties of a namespace from Identify, or else from sysfs.
fn read_properties(file: &File, id: u32, disk: &Path) -> Result<ClientNamespace, IoError> {
    let Ok(descriptors) = identify(file, id, CNS_DESCRIPTORS, 0) else {
        let bytes = number_in(&disk.join("size")).and_then(|sectors| sectors.checked_mul(SECTOR_BYTES));
        let bytes = bytes.filter(|&bytes| bytes > 0);
        let block_bytes = number_in(&disk.join("queue/logical_block_size"));
        let block_bytes = block_bytes.and_then(|bytes| u32::try_from(bytes).ok());
        let block_bytes = block_bytes.filter(|&bytes| u64::from(bytes) >= SECTOR_BYTES);
        let metadata = number_in(&disk.join("metadata_bytes")).unwrap_or(0);
        return match (bytes, block_bytes) {
            (Some(bytes), Some(block_bytes)) if metadata == 0 => Ok(ClientNamespace {
                id,
                block_bytes,
                size: bytes / u64::from(block_bytes),
                writable: true,
                blocks: None,
                retrieve_options: false,
            }),
            _ => Err(IoError::Denied {
                reason: format!(
                    "Identify of namespace {id} failed, and {} shows no usable block format; open it with \
                     CAP_SYS_ADMIN",
                    disk.display()
                ),
            }),
        };
    };
    if command_set(&descriptors) == KEY_VALUE_COMMAND_SET {
        return Ok(key_space(id, &identify(file, id, CNS_NAMESPACE_OF_SET, KEY_VALUE_COMMAND_SET)?));
    }
    let (facts, metadata) = block_namespace(id, &identify(file, id, CNS_NAMESPACE, 0)?)?;
    if metadata > 0 {
        return Err(IoError::Unsupported {
            reason: format!(
                "the format of namespace {id} has {metadata} bytes of metadata per block; format it without metadata"
            ),
        });
    }
    Ok(facts)
}

fn identify(file: &File, id: u32, view: u8, set: u8) -> Result<Vec<u8>, IoError> {
    let mut page = vec![0; IDENTIFY_BYTES];
    let words_10_15 = [u32::from(view), u32::from(set) << 24, 0, 0, 0, 0];
    let command = NvmeCommand { opcode: IDENTIFY, namespace: id, words_10_15, ..NvmeCommand::default() };
    match admin_command(file, command, &mut page) {
        Ok((0, _)) => Ok(page),
        Ok((status, _)) => {
            Err(IoError::Protocol { reason: format!("Identify {view:02x}h: status {status:#x}") })
        }
        Err(error) => Err(IoError::Denied {
            reason: format!(
                "the kernel refused Identify {view:02x}h of namespace {id}: {error}; open it with CAP_SYS_ADMIN"
            ),
        }),
    }
}

/// Returns the blocks of a partition.
fn partition_window(disk: &Path, number: u32, facts: &ClientNamespace) -> Result<BlockWindow, String> {
    let name = disk.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let folder = disk.with_file_name(format!("{name}p{number}"));
    let sectors = |file: &str| number_in(&folder.join(file));
    let (Some(start), Some(count)) = (sectors("start"), sectors("size")) else {
        return Err(format!("{name} has no partition {number}; see /sys/class/block"));
    };
    let block_sectors = u64::from(facts.block_bytes) / SECTOR_BYTES;
    let whole = block_sectors > 0 && start.is_multiple_of(block_sectors);
    let window = BlockWindow { start: start / block_sectors.max(1), blocks: count / block_sectors.max(1) };
    let inside = window.start.checked_add(window.blocks).is_some_and(|end| end <= facts.size);
    if whole && inside && window.blocks > 0 {
        return Ok(window);
    }
    Err(format!(
        "partition {number}, {count} sectors from {start} on, is not a run of the {} blocks of {} bytes",
        facts.size, facts.block_bytes
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_a_run_of_whole_blocks_inside_its_disk() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("nvme0n1");
        let part = folder.path().join("nvme0n1p2");
        std::fs::create_dir(&part).unwrap();
        let facts = |block_bytes, size| ClientNamespace {
            id: 1,
            block_bytes,
            size,
            writable: true,
            blocks: None,
            retrieve_options: false,
        };
        let set = |start: &str, size: &str| {
            std::fs::write(part.join("start"), start).unwrap();
            std::fs::write(part.join("size"), size).unwrap();
        };
        set("2048\n", "4100\n");
        assert_eq!(
            partition_window(&disk, 2, &facts(512, 10_000)),
            Ok(BlockWindow { start: 2_048, blocks: 4_100 })
        );
        assert_eq!(
            partition_window(&disk, 2, &facts(4_096, 10_000)),
            Ok(BlockWindow { start: 256, blocks: 512 })
        );
        assert!(
            partition_window(&disk, 2, &facts(512, 6_000)).unwrap_err().contains("4100 sectors from 2048")
        );
        assert!(partition_window(&disk, 1, &facts(512, 10_000)).unwrap_err().contains("no partition 1"));
        set("2049", "4096");
        assert!(partition_window(&disk, 2, &facts(4_096, 10_000)).is_err(), "it begins inside a block");
        set("18446744073709551615", "2");
        assert!(partition_window(&disk, 2, &facts(512, 10_000)).is_err());
        set("0", "7");
        assert!(partition_window(&disk, 2, &facts(4_096, 10_000)).is_err(), "it holds no block");
    }

    /// Checks for a former defect: a block size above 32 bits was taken as 4 GiB less one byte, and a size in sectors
    /// wrapped in release.
    #[test]
    fn sizes_that_no_namespace_has_are_refused_and_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path();
        std::fs::create_dir(disk.join("queue")).unwrap();
        // A file of this kind knows no Identify, so the properties come from the folder.
        let file = tempfile::tempfile().unwrap();
        let read = |size: &str, block_bytes: &str| {
            std::fs::write(disk.join("size"), size).unwrap();
            std::fs::write(disk.join("queue/logical_block_size"), block_bytes).unwrap();
            read_properties(&file, 3, disk)
        };
        let facts = read("16\n", "4096\n").unwrap();
        assert_eq!((facts.block_bytes, facts.size), (4_096, 2));
        for (size, block_bytes) in
            [("16", "4294967296"), ("36028797018963969", "512"), ("16", "0"), ("0", "512")]
        {
            let refused = read(size, block_bytes).unwrap_err().to_string();
            assert!(refused.contains("no usable block format"), "{size}, {block_bytes}: {refused}");
        }
    }

    #[test]
    fn opening_a_path_that_is_not_a_namespace_names_the_path() {
        for path in ["/dev/null", "/dev/there-is-none", "/tmp"] {
            let error = DeviceFile::open(Path::new(path), None).unwrap_err().to_string();
            assert!(error.contains(path), "{error}");
        }
    }
}
