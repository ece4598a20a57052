//! A description of the machine on which a figure was measured.
//!
//! Input: files of `/proc` and `/sys`. Output: [`MachineInfo`]; a value that cannot be read is "unknown".

use serde::Serialize;
use std::fs;
use std::path::Path;

/// The machine on which an experiment ran.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineInfo {
    /// Model name of the processor.
    pub cpu: String,
    /// Number of cores that this process may use.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// Memory, in bytes.
    pub ram_bytes: u64,
    /// Caches of the first core, nearest first: `L1d 32K, L1i 32K, L2 1024K, L3 32768K`.
    pub caches: String,
    /// File system under the scratch folder.
    pub scratch: String,
    /// Build profile of this program: figures of a `debug` build are not representative.
    pub build: &'static str,
    /// Load average over the last minute at the start of the run: if not near zero, other programs were running.
    pub load_1m: f64,
}

impl MachineInfo {
    /// Reads the description from the kernel.
    pub(crate) fn read(scratch: &Path) -> Self {
        let cpuinfo = text("/proc/cpuinfo");
        let meminfo = text("/proc/meminfo");
        Self {
            cpu: or_unknown(field(&cpuinfo, "model name")),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: or_unknown(Some(text("/proc/sys/kernel/osrelease").trim())),
            ram_bytes: field(&meminfo, "MemTotal").map_or(0, kibibytes),
            caches: caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
            scratch: file_system(&text("/proc/mounts"), scratch),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            load_1m: load(&text("/proc/loadavg")),
        }
    }
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn or_unknown(value: Option<&str>) -> String {
    value.filter(|value| !value.is_empty()).unwrap_or("unknown").to_owned()
}

/// Returns the value of the first `key : value` line.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then_some(value.trim())
    })
}

/// Converts a value such as `16318480 kB` to bytes.
fn kibibytes(value: &str) -> u64 {
    let number = value.split_whitespace().next().unwrap_or("");
    number.parse::<u64>().unwrap_or(0).saturating_mul(1_024)
}

fn load(loadavg: &str) -> f64 {
    let first = loadavg.split_whitespace().next().unwrap_or("");
    first.parse().unwrap_or(0.0)
}

fn caches(folder: &Path) -> String {
    let mut found = Vec::new();
    for index in 0..8 {
        let cache = folder.join(format!("index{index}"));
        let (level, kind, size) =
            (text(cache.join("level")), text(cache.join("type")), text(cache.join("size")));
        if level.is_empty() {
            break;
        }
        let suffix = match kind.trim() {
            "Data" => "d",
            "Instruction" => "i",
            _ => "",
        };
        found.push(format!("L{}{suffix} {}", level.trim(), size.trim()));
    }
    or_unknown(Some(&found.join(", ")))
}

/// Returns the type of the file system that holds a path: that of the mount with the longest prefix of it.
fn file_system(mounts: &str, path: &Path) -> String {
    let best = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace().skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(point, _)| path.starts_with(point))
        .max_by_key(|(point, _)| point.len());
    or_unknown(best.map(|(_, kind)| kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed_by_field_name() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Fast 9000: the CPU\n";
        assert_eq!(field(cpuinfo, "model name"), Some("Fast 9000: the CPU"));
        assert_eq!(field(cpuinfo, "model"), None);
        assert_eq!(kibibytes("16 kB"), 16_384);
        assert_eq!(kibibytes("much"), 0);
        assert!((load("1.50 0.1 0.2 1/2 3") - 1.5).abs() < 1e-9);
    }

    #[test]
    fn file_system_is_that_of_the_longest_mount_prefix() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /scratch tmpfs rw 0 0\n/dev/b /scratch2 xfs rw 0 0\n";
        assert_eq!(file_system(mounts, Path::new("/scratch/x")), "tmpfs");
        assert_eq!(file_system(mounts, Path::new("/scratch2/x")), "xfs");
        assert_eq!(file_system(mounts, Path::new("/home")), "ext4");
        assert_eq!(file_system("", Path::new("/home")), "unknown");
    }

    #[test]
    fn machine_has_a_core_and_memory() {
        let machine = MachineInfo::read(Path::new("/"));
        assert!(machine.cores >= 1);
        assert!(machine.ram_bytes > 0);
        assert!(!machine.kernel.is_empty());
    }
}
