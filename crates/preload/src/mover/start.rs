//! The start and the end of the library in a process.
//!
//! Input: the environment, the table of mounts, and the state of the process. Output: thresholds, which until now no length
//! reached; at the end a report of the counters. Invariant: the library works before the start too, by its own short kernels and
//! the kernel's calls.

use super::counters::COUNTERS;
use super::dax_transfer::{MAPS_ANY_FILE, TRANSFER_BYTES};
use super::fault_fixup;
use super::large_moves::STREAM_BYTES;
use super::memory_functions::{COMPARE_BYTES, LARGE_BYTES};
use super::next_functions::find_all;
use super::prefault::PREFAULT_BYTES;
use super::settings::{self, MappedKinds, PreloadSettings, names_dax, says_unfiltered};
use rustix::fs::{Mode, OFlags, open};
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicU8, Ordering};

/// The longest path of a report, with the zero behind it.
const PATH_BYTES: usize = 4_096;

/// The path of the report; empty without one. A copy, because programs write their title over their environment.
static REPORT_PATH: [AtomicU8; PATH_BYTES] = [const { AtomicU8::new(0) }; PATH_BYTES];

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Runs when the C library has loaded this one, with what the program starts with.
extern "C" fn start(_count: c_int, _arguments: *const *const c_char, environment: *const *const c_char) {
    find_all();
    // SAFETY: the call reads a value of the process.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // The program has more rights than its user, who shall not choose what it does.
        return;
    }
    // SAFETY: the C library passes the environment of the process to every function of this section.
    let settings = unsafe { PreloadSettings::read(environment) };
    let path = settings.report.map(CStr::to_bytes).filter(|path| path.len() < PATH_BYTES);
    for (byte, kept) in path.unwrap_or_default().iter().zip(&REPORT_PATH) {
        kept.store(*byte, Ordering::Relaxed);
    }
    // A filter may end the program at a call that a copy does not make without this library.
    let automatic = || if is_unfiltered() { settings::PREFAULT_BYTES } else { usize::MAX };
    let prefault_bytes = settings.prefault_bytes.unwrap_or_else(automatic);
    PREFAULT_BYTES.store(prefault_bytes, Ordering::Relaxed);
    STREAM_BYTES.store(settings.stream_bytes, Ordering::Relaxed);
    LARGE_BYTES.store(settings.stream_bytes.min(prefault_bytes), Ordering::Relaxed);
    COMPARE_BYTES.store(settings.compare_bytes, Ordering::Relaxed);
    let maps_files = match settings.files {
        MappedKinds::Off => false,
        MappedKinds::Dax | MappedKinds::Any => true,
        MappedKinds::Automatic => has_dax_mount(),
    };
    // A mapping counts against a limit on addresses, and a limit on the length of files is not checked by a mapped write.
    let is_free = is_unlimited(libc::RLIMIT_AS) && is_unlimited(libc::RLIMIT_FSIZE);
    if maps_files && is_free && settings.file_bytes != usize::MAX && fault_fixup::install() {
        MAPS_ANY_FILE.store(settings.files == MappedKinds::Any, Ordering::Relaxed);
        TRANSFER_BYTES.store(settings.file_bytes, Ordering::Relaxed);
    }
}

fn is_unlimited(resource: libc::__rlimit_resource_t) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills in a local value.
    let result = unsafe { libc::getrlimit(resource, &raw mut limit) };
    result == 0 && limit.rlim_cur == libc::RLIM_INFINITY
}

/// Returns true if no filter refuses system calls of this process, as far as the kernel says.
fn is_unfiltered() -> bool {
    let Ok(status) = open(c"/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    let mut text = [0_u8; 4_096];
    let mut filled = 0;
    while let Some(free) = text.get_mut(filled..).filter(|free| !free.is_empty()) {
        match rustix::io::read(&status, free) {
            Ok(0) | Err(_) => break,
            Ok(read) => filled += read,
        }
    }
    text.get(..filled).is_some_and(says_unfiltered)
}

/// Returns true if a DAX file system is mounted.
fn has_dax_mount() -> bool {
    let Ok(mounts) = open(c"/proc/self/mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    let mut buffer = [0_u8; 4_096];
    // Bytes of the word that the last part ended in.
    let mut kept = 0;
    while let Some(free) = buffer.get_mut(kept..).filter(|free| !free.is_empty()) {
        let Ok(read) = rustix::io::read(&mounts, free) else { return false };
        let filled = kept + read.min(buffer.len() - kept);
        if names_dax(&buffer[..filled]) {
            return true;
        }
        if read == 0 {
            return false;
        }
        let word =
            buffer[..filled].iter().rev().take_while(|byte| !matches!(byte, b' ' | b'\n' | b',')).count();
        // A word that fills the buffer is a path, and is dropped.
        kept = if word < buffer.len() { word } else { 0 };
        buffer.copy_within(filled - word..filled.min(filled - word + kept), 0);
    }
    false
}

/// Runs when the program ends: appends the counters to the report.
extern "C" fn end() {
    let mut path = [0_u8; PATH_BYTES];
    for (byte, kept) in path.iter_mut().zip(&REPORT_PATH) {
        *byte = kept.load(Ordering::Relaxed);
    }
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return };
    if path.is_empty() {
        return;
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
    let Ok(report) = open(path, flags, Mode::from_raw_mode(0o644)) else { return };
    let mut text = ReportText { bytes: [0; 2_048], length: 0 };
    text.add("process", u64::from(std::process::id()));
    COUNTERS.for_each(|name, value| text.add(name, value));
    // A report that cannot be written has no reader.
    let _ = rustix::io::write(&report, &text.bytes[..text.length]);
}

/// The lines of a report.
struct ReportText {
    bytes: [u8; 2_048],
    length: usize,
}

impl ReportText {
    /// Adds a line, if there is room.
    fn add(&mut self, name: &str, value: u64) {
        use std::io::Write as _;
        let mut rest = &mut self.bytes[self.length..];
        let before = rest.len();
        if writeln!(rest, "{name} {value}").is_ok() {
            self.length += before - rest.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_a_line_for_each_counter() {
        let mut text = ReportText { bytes: [0; 2_048], length: 0 };
        let mut lines = 0;
        COUNTERS.for_each(|name, _| {
            text.add(name, u64::MAX);
            lines += 1;
        });
        let text = String::from_utf8(text.bytes[..text.length].to_vec()).unwrap();
        assert_eq!(text.lines().count(), lines);
        assert!(text.contains("mapped_writes 18446744073709551615\n"), "{text}");
    }
}
