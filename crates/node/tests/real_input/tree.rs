//! The real files of the test: the list of files, their contents, and the values that overwrite them.
//!
//! Input: an existing folder. Output: [`TreeFile`]s whose values can be computed again from the file, so that the test
//! keeps no values in memory.

use headwater_ssd::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use headwater_ssd::log::record::{HEADER_BYTES, UNIT_BYTES};
use headwater_ssd::media::PAGES_PER_BLOCK;
use headwater_ssd::media::geometry::BLOCK_DATA_BYTES;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Fill level of the device, in percent of the data bytes of its pages.
const FULL_PERCENT: u64 = 85;
/// Capacities are whole numbers of blocks on each of the 32 dies.
const DIES: u64 = 32;
/// Minimum number of blocks at which clients may fill more than 85 % of the device.
const BLOCKS_MIN: u64 = 160;
/// Minimum size of the files that fill up a sample, so that few files suffice.
const SAMPLE_FILLER_MIN: u64 = 16 << 10;
/// Maximum size of a file in a sample.
const SAMPLE_FILE_MAX: u64 = 64 << 10;

/// A file that becomes a key.
#[derive(Clone, Debug)]
pub(crate) struct TreeFile {
    pub(crate) key: Vec<u8>,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
}

impl TreeFile {
    /// Returns the bytes of its record on flash.
    fn record_bytes(&self) -> u64 {
        let head = u64::try_from(HEADER_BYTES + self.key.len()).unwrap();
        (head + self.bytes).next_multiple_of(u64::try_from(UNIT_BYTES).unwrap())
    }

    /// Returns the contents of the file.
    pub(crate) fn original(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }

    /// Returns the value that overwrites the key in a round: the bytes of the file plus a constant of the round,
    /// repeated until the value has grown by `growth`. Every byte differs from the file and from every other round.
    pub(crate) fn rewritten(&self, round: u8, growth: ValueGrowth) -> Vec<u8> {
        let original = self.original();
        if original.is_empty() {
            return vec![round];
        }
        let shift = round.wrapping_mul(89);
        let bytes = growth.apply(original.len()).min(VALUE_BYTES_MAX);
        let mut value: Vec<u8> = original.iter().map(|byte| byte.wrapping_add(shift)).collect();
        value.reserve(bytes.saturating_sub(value.len()));
        while value.len() < bytes {
            let more = original.len().min(bytes - value.len());
            value.extend_from_within(..more);
        }
        value
    }
}

/// The growth of values that keeps the device as full as before when half of the keys are deleted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueGrowth {
    all: u64,
    kept: u64,
}

impl ValueGrowth {
    /// Returns the growth with which the kept items take the room of all.
    pub(crate) fn between(all: &[TreeFile], kept: &[TreeFile]) -> Self {
        let bytes = |items: &[TreeFile]| items.iter().map(TreeFile::record_bytes).sum::<u64>();
        Self { all: bytes(all), kept: bytes(kept).max(1) }
    }

    fn apply(self, bytes: usize) -> usize {
        let grown = u128::try_from(bytes).unwrap() * u128::from(self.all) / u128::from(self.kept);
        usize::try_from(grown).unwrap()
    }
}

/// Returns every regular file below a folder that can be read and fits a value, sorted by key.
pub(crate) fn walk(root: &Path) -> Vec<TreeFile> {
    let mut items = Vec::new();
    let mut folders = vec![(root.to_owned(), Vec::new())];
    while let Some((folder, prefix)) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let entry = entry.unwrap();
            let mut key: Vec<u8> = prefix.clone();
            key.extend_from_slice(entry.file_name().as_bytes());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                key.push(b'/');
                folders.push((entry.path(), key));
            } else if kind.is_file() && key.len() <= KEY_BYTES_MAX {
                let bytes = entry.metadata().unwrap().len();
                let fits = usize::try_from(bytes).is_ok_and(|bytes| bytes <= VALUE_BYTES_MAX);
                let readable = rustix::fs::access(entry.path(), rustix::fs::Access::READ_OK);
                if fits && readable.is_ok() {
                    items.push(TreeFile { key, path: entry.path(), bytes });
                }
            }
        }
    }
    items.sort_by(|a, b| a.key.cmp(&b.key));
    items
}

/// Returns the blocks of the device that these files fill to 85 %, rounded to whole rows of dies.
pub(crate) fn blocks_for(items: &[TreeFile]) -> u64 {
    let bytes: u64 = items.iter().map(TreeFile::record_bytes).sum();
    let full = bytes * 100 / FULL_PERCENT / u64::try_from(BLOCK_DATA_BYTES).unwrap();
    ((full + DIES / 2) / DIES * DIES).max(BLOCKS_MIN)
}

/// Returns true if the files fill the smallest device.
pub(crate) fn are_enough(items: &[TreeFile]) -> bool {
    let bytes: u64 = items.iter().map(TreeFile::record_bytes).sum();
    bytes * 100 >= data_bytes(BLOCKS_MIN) * FULL_PERCENT
}

/// Returns the data bytes of `blocks`.
pub(crate) fn data_bytes(blocks: u64) -> u64 {
    blocks * u64::try_from(BLOCK_DATA_BYTES).unwrap()
}

/// Returns the value of `--capacity` for `blocks`: page slots of 4,608 bytes.
pub(crate) fn flash_bytes(blocks: u64) -> u64 {
    blocks * u64::try_from(PAGES_PER_BLOCK).unwrap() * 4_608
}

/// Copies every n-th file into `folder`, `count` of them, then larger ones until whole rows of dies are full to 85 %,
/// but never more than `bytes_max`. Returns the files with their new paths.
pub(crate) fn sample(items: &[TreeFile], count: usize, bytes_max: u64, folder: &Path) -> Vec<TreeFile> {
    let stride = (items.len() / count).max(1);
    // While a value is overwritten, its old record still takes room: on such a small device the largest would not fit.
    let small = |item: &&TreeFile| item.bytes <= SAMPLE_FILE_MAX;
    let order = (0..stride).flat_map(|first| items.iter().skip(first).step_by(stride));
    let mut taken: Vec<TreeFile> = Vec::new();
    let mut bytes = 0;
    let mut goal = None;
    for item in order.filter(small) {
        if taken.len() >= count && goal.is_none() {
            let row = data_bytes(DIES) * FULL_PERCENT / 100;
            goal = Some(bytes.max(row * BLOCKS_MIN / DIES).next_multiple_of(row));
        }
        if goal.is_some() && item.bytes < SAMPLE_FILLER_MIN {
            continue;
        }
        if bytes + item.record_bytes() > goal.unwrap_or(bytes_max).min(bytes_max) {
            continue;
        }
        bytes += item.record_bytes();
        let path = folder.join(std::ffi::OsStr::from_bytes(&item.key));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, item.original()).unwrap();
        taken.push(TreeFile { path, ..item.clone() });
    }
    taken.sort_by(|a, b| a.key.cmp(&b.key));
    taken
}
