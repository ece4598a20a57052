//! The sysfs attributes of a block device's queue.
//!
//! Input: sysfs folders. Output: numbers, where they exist.

use std::path::{Path, PathBuf};

/// The page size by which drivers count segments.
const PAGE_BYTES: usize = 4_096;
/// Maximum bytes of a transfer where sysfs reports none.
const TRANSFER_BYTES: usize = 128 << 10;

/// Reads the number in a file.
pub(crate) fn number_in(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the queue's folder of a block device, or of the disk that it is a partition of.
pub(crate) fn queue_folder_of(major: u32, minor: u32) -> Option<PathBuf> {
    let device = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let own = device.join("queue");
    let found = if own.is_dir() { Some(own) } else { device.parent().map(|disk| disk.join("queue")) };
    found.filter(|folder| folder.is_dir())
}

/// Returns the maximum bytes and segments of one command; a larger one would be split, which not every I/O path can.
/// `limit` is the file with the byte limit: of the hardware, or of the kernel.
pub(crate) fn transfer_limits(queue: &Path, limit: &str) -> (usize, usize) {
    let number = |file: &str| number_in(&queue.join(file)).and_then(|number| usize::try_from(number).ok());
    let segments = number("max_segments");
    // An unaligned buffer spans one page more than its bytes fill, and each page may be a segment.
    let pages = segments.map(|segments| (segments.max(2) - 1) * PAGE_BYTES);
    let bytes = number(limit).map(|kib| kib << 10).into_iter().chain(pages).min().unwrap_or(TRANSFER_BYTES);
    (bytes.max(PAGE_BYTES), segments.unwrap_or(1).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_applies() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(transfer_limits(folder.path(), "max_sectors_kb"), (TRANSFER_BYTES, 1));
        std::fs::write(folder.path().join("max_sectors_kb"), "512\n").unwrap();
        assert_eq!(transfer_limits(folder.path(), "max_sectors_kb"), (512 << 10, 1));
        std::fs::write(folder.path().join("max_segments"), "127\n").unwrap();
        assert_eq!(transfer_limits(folder.path(), "max_sectors_kb"), (126 * 4_096, 127));
    }
}
