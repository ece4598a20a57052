//! What the machine offers: kernels for copies and checksums, memory, topology, clock.
//!
//! In: /proc, /sys, the CPU. Out: findings. A file that cannot be read is a finding too, never a failure.

use super::{Finding, Verdict};
use crate::config::Bytes;
use rustix::process::{Resource, getrlimit};
use std::path::Path;

/// Looks at the machine.
#[must_use]
pub fn examine() -> Vec<Finding> {
    vec![
        kernels(),
        processors(),
        memlock(),
        huge_pages(),
        transparent_huge_pages(),
        numa(),
        clock_source(),
        descriptors(),
    ]
}

fn kernels() -> Finding {
    let name = headwater_host::copy::kernel_name();
    let finding = Finding::new(
        "copy and CRC",
        if name == "portable" {
            Verdict::StandIn
        } else {
            Verdict::Active
        },
        name,
    );
    if name == "portable" {
        finding
            .why("this CPU has no CRC-32C instruction that is known here; checksums cost several times more")
    } else {
        finding.why("the fastest kernel this CPU has, chosen when the program started")
    }
}

fn processors() -> Finding {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let finding = Finding::new("processors", Verdict::Note, format!("{count} for this process"));
    if count == 1 {
        finding.why(
            "the device, its clients and the kernel share one processor, so waiting clients slow the device",
        )
    } else {
        finding
    }
}

fn memlock() -> Finding {
    let limit = getrlimit(Resource::Memlock).current;
    match limit {
        None => Finding::new("locked memory", Verdict::Note, "no limit"),
        Some(bytes) => Finding::new("locked memory", Verdict::Note, format!("limit {}", Bytes(bytes)))
            .why("registered buffers count against it; this part pins none")
            .change("ulimit -l unlimited   # or LimitMEMLOCK=infinity in the service"),
    }
}

fn huge_pages() -> Finding {
    let pages = read("/proc/sys/vm/nr_hugepages")
        .and_then(|text| text.parse::<u64>().ok())
        .unwrap_or(0);
    if pages > 0 {
        return Finding::new("huge pages", Verdict::Note, format!("{pages} reserved"));
    }
    Finding::new("huge pages", Verdict::StandIn, "none reserved")
        .why("memory is mapped in 4 KiB pages, or in transparent huge pages where those are on")
        .change("sudo sysctl vm.nr_hugepages=512")
}

fn transparent_huge_pages() -> Finding {
    let Some(text) = read("/sys/kernel/mm/transparent_hugepage/enabled") else {
        return Finding::new("transparent huge", Verdict::StandIn, "not built into this kernel");
    };
    let chosen = bracketed(&text).unwrap_or("unknown").to_owned();
    match chosen.as_str() {
        "never" => Finding::new("transparent huge", Verdict::StandIn, chosen)
            .why("large regions are mapped in 4 KiB pages; lookups miss the TLB more often")
            .change("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),
        _ => Finding::new("transparent huge", Verdict::Active, chosen),
    }
}

fn numa() -> Finding {
    let nodes = read("/sys/devices/system/node/online").unwrap_or_else(|| "0".to_owned());
    let finding = Finding::new("NUMA nodes", Verdict::Note, format!("online: {nodes}"));
    if nodes == "0" {
        finding
    } else {
        finding
            .why("this part binds nothing to a node")
            .change("numactl --cpunodebind=0 --membind=0 headwater serve")
    }
}

fn clock_source() -> Finding {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = read(path).unwrap_or_else(|| "unknown".to_owned());
    match source.as_str() {
        // These are read in user space, in some 20 ns.
        "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter" => {
            Finding::new("clock", Verdict::Active, source).why("read without a system call")
        }
        _ => Finding::new("clock", Verdict::StandIn, source)
            .why("each reading of the clock may be a system call")
            .change("boot with clocksource=tsc if the processor's TSC is stable"),
    }
}

fn descriptors() -> Finding {
    match getrlimit(Resource::Nofile).current {
        None => Finding::new("open files", Verdict::Note, "no limit"),
        Some(limit) => Finding::new("open files", Verdict::Note, format!("limit {limit}"))
            .why("each client takes one")
            .change("ulimit -n 65536   # or LimitNOFILE=65536 in the service"),
    }
}

/// A file's first line, or nothing when it cannot be read.
pub(super) fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path)
        .ok()
        .and_then(|text| text.lines().next().map(|line| line.trim().to_owned()))
}

/// The chosen word of a list such as `always [madvise] never`.
fn bracketed(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_word_is_the_bracketed_one() {
        assert_eq!(bracketed("always [madvise] never"), Some("madvise"));
        assert_eq!(bracketed("always"), None);
    }

    #[test]
    fn whatever_stands_in_says_why() {
        for finding in examine() {
            assert!(!finding.found.is_empty());
            if matches!(finding.verdict, Verdict::StandIn | Verdict::Problem) {
                assert!(
                    finding.why.is_some() || finding.change.is_some(),
                    "{}",
                    finding.what
                );
            }
        }
    }
}
