//! The processors, caches and memory nodes of this machine.
//!
//! Input: files of the kernel under /sys and /proc, and what the processor says of itself. Output: a [`Topology`], for
//! `doctor`, for calibration and for placing threads. Invariant: what the kernel does not report is left out, never
//! guessed; reading cannot fail, only find less.

mod last_level_cache;

pub use last_level_cache::LastLevelCache;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::io;
use std::path::Path;

/// The folder of the processors below the root.
const CPU_FOLDER: &str = "sys/devices/system/cpu";

/// One cache of the first processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuCache {
    /// The cache level; 1 is the closest to the processor.
    pub level: u32,
    /// The contents: `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Processors that share it.
    pub shared_by: Vec<usize>,
}

/// One node of memory and the processors that are close to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryNode {
    /// The kernel's number for it.
    pub number: u32,
    /// Its processors.
    pub cpus: Vec<usize>,
    /// Its memory in bytes, 0 if the kernel does not report it.
    pub memory_bytes: u64,
    /// The distance of each node, this one included, in the order of [`Topology::nodes`]: 10 is local, 20 twice as far.
    /// Empty if the kernel does not report it.
    pub distances: Vec<u32>,
}

/// The machine, as far as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Name of the processor, empty if unknown.
    pub cpu_model: String,
    /// Processors that are online.
    pub cpus_online: Vec<usize>,
    /// Processors that this thread may run on.
    pub cpus_allowed: Vec<usize>,
    /// Caches of the first processor, the closest first.
    pub caches: Vec<CpuCache>,
    /// Nodes of memory.
    pub nodes: Vec<MemoryNode>,
    /// Instruction set extensions of this processor that the copy and CRC kernels can use.
    pub features: Vec<&'static str>,
    /// The kernel's release.
    pub kernel_release: String,
}

impl Topology {
    /// Reads the machine's topology.
    #[must_use]
    pub fn read() -> Self {
        Self {
            cpus_allowed: allowed_cpus(),
            features: cpu_features(),
            kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
            ..Self::read_from(Path::new("/"))
        }
    }

    /// Reads the topology from files under another root instead of `/`.
    fn read_from(root: &Path) -> Self {
        let cpu = root.join(CPU_FOLDER);
        let mut caches = caches_of(&cpu);
        caches.sort_by_key(|cache| cache.level);
        let nodes = numbered_entries(&root.join("sys/devices/system/node"), "node")
            .into_iter()
            .map(|(number, path)| MemoryNode {
                number,
                cpus: parse_cpu_list(&read_text(&path.join("cpulist"))),
                memory_bytes: node_memory(&read_text(&path.join("meminfo"))),
                distances: read_text(&path.join("distance"))
                    .split_whitespace()
                    .filter_map(|word| word.parse().ok())
                    .collect(),
            })
            .collect();
        Self {
            cpu_model: cpu_model(&read_text(&root.join("proc/cpuinfo"))),
            cpus_online: parse_cpu_list(&read_text(&cpu.join("online"))),
            caches,
            nodes,
            ..Self::default()
        }
    }

    /// Returns the numbers of all nodes, the closest to `node` first: itself, and of equally distant ones the lower
    /// number. Without distances from the kernel, every other node is equally distant.
    #[must_use]
    pub fn nodes_by_distance(&self, node: u32) -> Vec<u32> {
        let distances = self.nodes.iter().find(|known| known.number == node).map(|known| &known.distances);
        let far = |place: usize| distances.and_then(|distances| distances.get(place)).copied();
        let mut order: Vec<_> = (self.nodes.iter().enumerate())
            .map(|(place, known)| (known.number != node, far(place).unwrap_or(u32::MAX), known.number))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, _, number)| number).collect()
    }

    /// Returns the nodes that have memory; none where the kernel reports no nodes.
    pub fn nodes_with_memory(&self) -> impl Iterator<Item = &MemoryNode> {
        self.nodes.iter().filter(|node| node.memory_bytes > 0)
    }

    /// Returns the distance from node `from` to memory of node `to`, 10 for the same node; `None` if the kernel does
    /// not report it.
    #[must_use]
    pub fn distance(&self, from: u32, to: u32) -> Option<u32> {
        let place = self.nodes.iter().position(|node| node.number == to)?;
        let from = self.nodes.iter().find(|node| node.number == from)?;
        from.distances.get(place).copied()
    }

    /// Returns the number of processors that this thread may run on, at least one.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.cpus_allowed.len().max(1)
    }
}

/// Pins the calling thread to one processor.
///
/// # Errors
/// The processor does not exist or is not allowed for this process.
pub fn pin_current_thread(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

fn allowed_cpus() -> Vec<usize> {
    sched_getaffinity(None)
        .map_or_else(|_| Vec::new(), |set| (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

#[cfg(target_arch = "x86_64")]
fn cpu_features() -> Vec<&'static str> {
    use std::arch::is_x86_feature_detected as has;
    let found = [
        ("sse4.2", has!("sse4.2")),
        ("pclmulqdq", has!("pclmulqdq")),
        ("avx2", has!("avx2")),
        ("avx512f", has!("avx512f")),
        ("avx512vl", has!("avx512vl")),
        ("vpclmulqdq", has!("vpclmulqdq")),
    ];
    found.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn cpu_features() -> Vec<&'static str> {
    Vec::new()
}

fn read_text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the directory entries whose name is a word and a number, sorted by number.
fn numbered_entries(directory: &Path, word: &str) -> Vec<(u32, std::path::PathBuf)> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix(word)?.parse().ok()?;
            Some((number, entry.path()))
        })
        .collect();
    found.sort();
    found
}

/// Parses the kernel's lists: `0-3,8,10-11`. Parts that do not parse are skipped.
fn parse_cpu_list(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            found.extend(first..=last.min(first.saturating_add(CpuSet::MAX_CPU)));
        }
    }
    found
}

/// Parses the kernel's sizes: `32K`, `1024K`, `2M`.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, unit) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) => (digits, &text[digits.len()..]),
        None => (text, ""),
    };
    let shift = match unit {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => 0,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Returns the caches of the first of the processors that a folder describes.
fn caches_of(cpu: &Path) -> Vec<CpuCache> {
    let entries = numbered_entries(&cpu.join("cpu0/cache"), "index");
    entries.into_iter().filter_map(|(_, path)| read_cache(&path)).collect()
}

fn read_cache(path: &Path) -> Option<CpuCache> {
    Some(CpuCache {
        level: read_text(&path.join("level")).trim().parse().ok()?,
        kind: read_text(&path.join("type")).trim().to_owned(),
        bytes: parse_size(&read_text(&path.join("size")))?,
        shared_by: parse_cpu_list(&read_text(&path.join("shared_cpu_list"))),
    })
}

fn node_memory(meminfo: &str) -> u64 {
    let total = meminfo.lines().find(|line| line.contains("MemTotal:"));
    let kibibytes = total.and_then(|line| line.split_whitespace().rev().nth(1)?.parse::<u64>().ok());
    kibibytes.unwrap_or(0).saturating_mul(1_024)
}

fn cpu_model(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
    name.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topology_is_read_from_kernel_files() {
        let root = tempfile::TempDir::new().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("proc/cpuinfo", "processor : 0\nmodel name\t: Some CPU 9000\nmodel name\t: other\n");
        put("sys/devices/system/cpu/online", "0-2,5\n");
        for (index, level, kind, size) in
            [(0, 1, "Data", "32K"), (1, 1, "Instruction", "32K"), (3, 3, "Unified", "8M")]
        {
            let at = format!("sys/devices/system/cpu/cpu0/cache/index{index}");
            put(&format!("{at}/level"), &format!("{level}\n"));
            put(&format!("{at}/type"), kind);
            put(&format!("{at}/size"), size);
            put(&format!("{at}/shared_cpu_list"), "0,2");
        }
        put("sys/devices/system/node/node10/cpulist", "5");
        put("sys/devices/system/node/node2/cpulist", "0-2");
        put(
            "sys/devices/system/node/node2/meminfo",
            "Node 2 MemTotal:       2048 kB\nNode 2 MemFree: 1 kB\n",
        );
        put("sys/devices/system/node/possible", "0-1");
        put("sys/devices/system/node/node2/distance", "10 21\n");
        let found = Topology::read_from(root.path());
        assert_eq!(found.cpu_model, "Some CPU 9000");
        assert_eq!(found.cpus_online, [0, 1, 2, 5]);
        assert_eq!(found.caches.len(), 3);
        assert_eq!(found.caches.iter().map(|cache| cache.bytes).max(), Some(8 << 20));
        assert_eq!(found.caches[0].shared_by, [0, 2]);
        let numbers: Vec<_> = found.nodes.iter().map(|node| node.number).collect();
        assert_eq!(numbers, [2, 10]);
        assert_eq!(found.nodes[0].memory_bytes, 2 << 20);
        assert_eq!(found.nodes[0].cpus, [0, 1, 2]);
        assert_eq!(found.nodes[0].distances, [10, 21]);
        assert!(found.nodes[1].distances.is_empty());
    }

    #[test]
    fn missing_or_malformed_kernel_files_are_no_error() {
        let root = tempfile::TempDir::new().unwrap();
        assert_eq!(Topology::read_from(root.path()), Topology::default());
        assert_eq!(parse_cpu_list("x,3-,-4,7-5,9"), [9]);
        assert_eq!(parse_cpu_list("0-18446744073709551615").len(), CpuSet::MAX_CPU + 1);
        assert_eq!(parse_size("K"), None);
        assert_eq!(parse_size("99999999999999999999G"), None);
        assert_eq!(parse_size("18446744073709551615G"), None);
    }

    #[test]
    fn nodes_are_ordered_by_distance() {
        let node = |number, distances: &[u32]| MemoryNode {
            number,
            cpus: Vec::new(),
            memory_bytes: 0,
            distances: distances.to_vec(),
        };
        let nodes = vec![
            node(0, &[10, 32, 21, 32]),
            node(1, &[32, 10, 32, 21]),
            node(4, &[]),
            node(7, &[32, 21, 32, 10]),
        ];
        let topology = Topology { nodes, ..Topology::default() };
        assert_eq!(topology.nodes_by_distance(0), [0, 4, 1, 7]);
        assert_eq!(topology.nodes_by_distance(7), [7, 1, 0, 4]);
        assert_eq!(topology.nodes_by_distance(4), [4, 0, 1, 7]);
        assert_eq!(topology.nodes_by_distance(9), [0, 1, 4, 7]);
        let far = [topology.distance(7, 1), topology.distance(4, 0), topology.distance(0, 9)];
        assert_eq!(far, [Some(21), None, None]);
        assert_eq!(topology.nodes_with_memory().count(), 0);
    }

    #[test]
    fn this_machine_has_a_core_and_a_kernel() {
        let found = Topology::read();
        assert!(found.cores() >= 1);
        assert!(!found.kernel_release.is_empty());
    }

    #[test]
    fn pinned_thread_may_run_on_its_processor_only() {
        let cpu = *allowed_cpus().last().unwrap();
        let pinned = std::thread::spawn(move || {
            pin_current_thread(cpu).unwrap();
            allowed_cpus()
        });
        assert_eq!(pinned.join().unwrap(), [cpu]);
        assert!(pin_current_thread(usize::MAX).is_err());
        assert!(pin_current_thread(CpuSet::MAX_CPU - 1).is_err());
    }
}
