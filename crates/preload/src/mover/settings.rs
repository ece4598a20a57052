//! The settings: environment variables of the program.
//!
//! Input: the environment as a program starts with it. Output: [`PreloadSettings`]. Invariant: nothing is allocated; a value that
//! cannot be read counts as absent.

use super::last_level_cache::last_level_cache_bytes;
use std::ffi::{CStr, c_char};

/// The length from which copies and fills pass the cache by: `HEADWATER_PRELOAD_STREAM_BYTES`.
const STREAM_VARIABLE: &[u8] = b"HEADWATER_PRELOAD_STREAM_BYTES=";
/// The length from which absent pages of a target are made present: `HEADWATER_PRELOAD_PREFAULT_BYTES`.
const PREFAULT_VARIABLE: &[u8] = b"HEADWATER_PRELOAD_PREFAULT_BYTES=";
/// The length from which comparisons are done here: `HEADWATER_PRELOAD_COMPARE_BYTES`.
const COMPARE_VARIABLE: &[u8] = b"HEADWATER_PRELOAD_COMPARE_BYTES=";
/// The length from which reads and writes go through a mapping: `HEADWATER_PRELOAD_FILE_BYTES`.
const FILE_VARIABLE: &[u8] = b"HEADWATER_PRELOAD_FILE_BYTES=";
/// The files that are mapped: `HEADWATER_PRELOAD_FILES`.
const FILES_VARIABLE: &[u8] = b"HEADWATER_PRELOAD_FILES=";
/// The file that gets the counters at the end of the program: `HEADWATER_PRELOAD_REPORT`.
const REPORT_VARIABLE: &[u8] = b"HEADWATER_PRELOAD_REPORT=";

/// The length from which copies pass the cache by, without a setting, on a processor that does not say the size of its last
/// cache. A copy that fits it is mostly read at once, and then slower.
const STREAM_BYTES: usize = 32 << 20;
/// The least length from which copies pass the cache by without a setting: a virtual machine may hide the last cache.
const STREAM_BYTES_MIN: usize = 1 << 20;
/// The length from which absent pages are made present, without a setting, in a program that may make every system call.
pub(super) const PREFAULT_BYTES: usize = 1 << 20;
/// The length from which a transfer through a mapping is tried, without a setting: its checks take five calls of the kernel.
const FILE_BYTES: usize = 64 << 10;
/// The least length of each setting: shorter ranges are not worth a look.
const BYTES_MIN: usize = 256;

/// The files that are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MappedKinds {
    /// Files on DAX, if the program starts with a DAX file system mounted.
    Automatic,
    /// Files on DAX.
    Dax,
    /// Files of every file system: without DAX they are as durable as what `pwrite` leaves in the page cache.
    Any,
    /// No files.
    Off,
}

/// The settings of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreloadSettings {
    pub(super) stream_bytes: usize,
    /// `None` without a setting.
    pub(super) prefault_bytes: Option<usize>,
    pub(super) compare_bytes: usize,
    pub(super) file_bytes: usize,
    pub(super) files: MappedKinds,
    pub(super) report: Option<&'static CStr>,
}

impl Default for PreloadSettings {
    fn default() -> Self {
        Self {
            stream_bytes: stream_bytes_of(last_level_cache_bytes()),
            prefault_bytes: None,
            compare_bytes: usize::MAX,
            file_bytes: FILE_BYTES,
            files: MappedKinds::Automatic,
            report: None,
        }
    }
}

impl PreloadSettings {
    /// Reads the settings.
    ///
    /// # Safety
    /// `environment` is a null-terminated array of strings that live as long as the process, as the C library passes it.
    pub(super) unsafe fn read(mut environment: *const *const c_char) -> Self {
        let mut settings = Self::default();
        if environment.is_null() {
            return settings;
        }
        loop {
            // SAFETY: the array ends with a null pointer, which ends the loop.
            let entry = unsafe { *environment };
            if entry.is_null() {
                return settings;
            }
            // SAFETY: the entry is a string that lives as long as the process.
            settings.apply(unsafe { CStr::from_ptr(entry) });
            environment = environment.wrapping_add(1);
        }
    }

    fn apply(&mut self, entry: &'static CStr) {
        let bytes = entry.to_bytes();
        let lengths = [
            (STREAM_VARIABLE, &mut self.stream_bytes),
            (COMPARE_VARIABLE, &mut self.compare_bytes),
            (FILE_VARIABLE, &mut self.file_bytes),
        ];
        for (variable, length) in lengths {
            if let Some(value) = bytes.strip_prefix(variable) {
                *length = length_of(value).unwrap_or(*length);
            }
        }
        if let Some(value) = bytes.strip_prefix(PREFAULT_VARIABLE) {
            self.prefault_bytes = length_of(value).or(self.prefault_bytes);
        }
        match bytes.strip_prefix(FILES_VARIABLE) {
            Some(b"dax") => self.files = MappedKinds::Dax,
            Some(b"any") => self.files = MappedKinds::Any,
            Some(b"off") => self.files = MappedKinds::Off,
            _ => {}
        }
        let is_report = bytes.starts_with(REPORT_VARIABLE) && bytes.len() > REPORT_VARIABLE.len();
        if is_report && let Some(path) = entry.to_bytes_with_nul().get(REPORT_VARIABLE.len()..) {
            self.report = CStr::from_bytes_with_nul(path).ok();
        }
    }
}

/// Returns the length from which copies pass a last-level cache by.
fn stream_bytes_of(cache_bytes: Option<usize>) -> usize {
    cache_bytes.map_or(STREAM_BYTES, |bytes| bytes.max(STREAM_BYTES_MIN))
}

/// Returns a length in bytes; `off` is one that nothing has.
fn length_of(value: &[u8]) -> Option<usize> {
    if value == b"off" {
        return Some(usize::MAX);
    }
    let mut length = 0_usize;
    for digit in value {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        length = length.checked_mul(10)?.checked_add(usize::from(digit))?;
    }
    (!value.is_empty()).then_some(length.max(BYTES_MIN))
}

/// Returns true if the state of a process, as `/proc/self/status` has it, says that no filter refuses system calls (seccomp).
pub(super) fn says_unfiltered(status: &[u8]) -> bool {
    status.split(|byte| *byte == b'\n').any(|line| line == b"Seccomp:\t0")
}

/// Returns true if a table of mounts, as `/proc/self/mountinfo` has it, names a file system with DAX: by an option, or because
/// it lies on persistent memory.
pub(super) fn names_dax(mounts: &[u8]) -> bool {
    let is_dax = |word: &[u8]| {
        word == b"dax" || word.starts_with(b"dax=") && word != b"dax=never" || word.starts_with(b"/dev/pmem")
    };
    mounts.split(|byte| matches!(byte, b' ' | b'\n' | b',')).any(is_dax)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_read_and_a_bad_value_changes_nothing() {
        let entries = [
            c"HEADWATER_PRELOAD_STREAM_BYTES=1000000".as_ptr(),
            c"HEADWATER_PRELOAD_STREAM_BYTES=12x".as_ptr(),
            c"HEADWATER_PRELOAD_PREFAULT_BYTES=65536".as_ptr(),
            c"HEADWATER_PRELOAD_PREFAULT_BYTES=-1".as_ptr(),
            c"HEADWATER_PRELOAD_COMPARE_BYTES=1".as_ptr(),
            c"HEADWATER_PRELOAD_FILE_BYTES=off".as_ptr(),
            c"HEADWATER_PRELOAD_FILES=any".as_ptr(),
            c"HEADWATER_PRELOAD_FILES=whatever".as_ptr(),
            c"HEADWATER_PRELOAD_REPORT=/a b".as_ptr(),
            c"HEADWATER_PRELOAD_REPORT=".as_ptr(),
            c"PATH=/bin".as_ptr(),
            std::ptr::null(),
        ];
        // SAFETY: the strings are literals, and the array ends with a null pointer.
        let settings = unsafe { PreloadSettings::read(entries.as_ptr()) };
        let expected = PreloadSettings {
            stream_bytes: 1_000_000,
            prefault_bytes: Some(65_536),
            compare_bytes: BYTES_MIN,
            file_bytes: usize::MAX,
            files: MappedKinds::Any,
            report: Some(c"/a b"),
        };
        assert_eq!(settings, expected);
        // SAFETY: a null pointer is an absent environment.
        assert_eq!(unsafe { PreloadSettings::read(std::ptr::null()) }, PreloadSettings::default());
    }

    #[test]
    fn copies_pass_the_last_cache_by_from_its_size_on() {
        assert_eq!(stream_bytes_of(Some(48 << 20)), 48 << 20);
        assert_eq!(stream_bytes_of(Some(512 << 10)), STREAM_BYTES_MIN);
        assert_eq!(stream_bytes_of(None), STREAM_BYTES);
    }

    #[test]
    fn filters_of_system_calls_are_recognised() {
        assert!(says_unfiltered(b"Name:\tcat\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n"));
        for text in ["Seccomp:\t2\n", "Seccomp:\t1\n", "Seccomp_filters:\t0\n", "Name:\tSeccomp:\t0\n", ""] {
            assert!(!says_unfiltered(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn lengths_are_decimal_and_do_not_overflow() {
        let lengths: [(&[u8], _); 6] = [
            (b"4096", Some(4_096)),
            (b"0", Some(BYTES_MIN)),
            (b"", None),
            (b"-1", None),
            (b"18446744073709551615", Some(usize::MAX)),
            (b"18446744073709551616", None),
        ];
        for (text, length) in lengths {
            assert_eq!(length_of(text), length);
        }
    }

    #[test]
    fn mounts_with_dax_are_recognised() {
        let with = |source: &str, options: &str| {
            format!(
                "22 1 0:20 / / rw - ext4 /dev/sda1 rw\n36 22 259:0 / /mnt rw,noatime shared:1 - ext4 {source} {options}\n"
            )
        };
        for (source, options, is_dax) in [
            ("/dev/sdb", "rw", false),
            ("/dev/pmem0", "rw", true),
            ("/dev/sdb", "rw,dax=always", true),
            ("/dev/sdb", "rw,dax", true),
            ("/dev/sdb", "rw,dax=inode", true),
            ("/dev/sdb", "rw,dax=never", false),
            ("/dev/sdb", "rw,nodax", false),
        ] {
            assert_eq!(names_dax(with(source, options).as_bytes()), is_dax, "{source} {options}");
        }
    }
}
