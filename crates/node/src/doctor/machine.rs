//! The findings on the machine: kernels for copies and checksums, memory, topology, clock.
//!
//! Input: /proc, /sys, the CPU. Output: findings. A file that cannot be read is a finding too, not a failure.

use super::{DoctorFinding, FindingVerdict};
use crate::config::ByteSize;
use headwater_dma::pool::{MachineNodes, NodePlacement as _};
use headwater_host::calibration::{Calibration, CalibrationOrigin, SPIN_VARIABLE, SpinOverride};
use headwater_host::clock::Clock;
use headwater_host::pinning::MemlockBudget;
use headwater_host::topology::LastLevelCache;
use rustix::process::{Resource, getrlimit};
use std::path::Path;

/// Examines the machine.
#[must_use]
pub fn examine() -> Vec<DoctorFinding> {
    vec![
        kernels(),
        processors(),
        last_level_cache(LastLevelCache::of_this_machine()),
        spin(&Calibration::load_or_measure(&Clock::start())),
        memlock(),
        huge_pages(),
        transparent_huge_pages(),
        numa(),
        clock_source(),
        descriptors(),
    ]
}

fn kernels() -> DoctorFinding {
    let name = headwater_host::copy::kernel_name();
    let finding = DoctorFinding::new(
        "copy and CRC",
        if name == "portable" { FindingVerdict::StandIn } else { FindingVerdict::Active },
        name,
    );
    if name == "portable" {
        finding.why("no CRC-32C instruction of this CPU is supported; checksums cost several times more")
    } else {
        finding.why("the fastest kernel for this CPU, chosen at the start of the program")
    }
}

fn processors() -> DoctorFinding {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let finding = DoctorFinding::new("processors", FindingVerdict::Note, format!("{count} for this process"));
    if count == 1 {
        finding.why(
            "the device, its clients and the kernel share one processor, so waiting clients slow the device",
        )
    } else {
        finding
    }
}

/// Returns the size of the cache from which on copies pass it by.
fn last_level_cache(cache: LastLevelCache) -> DoctorFinding {
    let size =
        |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), |bytes| ByteSize(bytes).to_string());
    let finding = DoctorFinding::new("last-level cache", FindingVerdict::Note, size(cache.bytes()));
    match (cache.by_kernel, cache.by_processor) {
        (Some(kernel), Some(processor)) if kernel != processor => finding.why(format!(
            "the kernel says {}, the processor {}: the smaller counts for copies that pass the cache by",
            ByteSize(kernel),
            ByteSize(processor)
        )),
        (None, None) => finding
            .why("neither the kernel nor the processor says it: no copy passes the cache by for its length"),
        _ => finding.why("copies that are longer pass the cache by"),
    }
}

/// Returns the time that an idle core polls before it sleeps, with its source.
fn spin(calibration: &Calibration) -> DoctorFinding {
    let micros = |span: headwater_host::clock::Nanos| format!("{}.{} us", span.0 / 1_000, span.0 / 100 % 10);
    let measured = match calibration.origin {
        CalibrationOrigin::Measured => "measured just now",
        CalibrationOrigin::Cached => "measured by an earlier run on this machine",
    };
    let wake = format!(
        "a wake-up round trip between two threads takes {}, {measured}",
        micros(calibration.wake_round_trip)
    );
    let spin = micros(calibration.spin_before_sleep);
    match &calibration.spin_override {
        SpinOverride::Used => {
            DoctorFinding::new("idle spin", FindingVerdict::Note, format!("{spin}, from {SPIN_VARIABLE}"))
                .why(wake)
                .change(format!("unset {SPIN_VARIABLE}   # to use the measured value"))
        }
        SpinOverride::Unset => {
            DoctorFinding::new("idle spin", FindingVerdict::Active, format!("{spin}, calibrated"))
                .why(wake)
                .change(format!("{SPIN_VARIABLE}=MICROSECONDS headwater serve"))
        }
        SpinOverride::Ignored(text) => DoctorFinding::new(
            "idle spin",
            FindingVerdict::Problem,
            format!("{spin}, calibrated; {SPIN_VARIABLE}={text} is ignored"),
        )
        .why("it is not a whole number of microseconds")
        .change(format!("{SPIN_VARIABLE}=20 headwater serve")),
    }
}

pub(super) fn memlock() -> DoctorFinding {
    let budget = MemlockBudget::read();
    let locked = ByteSize(budget.locked_bytes);
    let change = "ulimit -l unlimited   # or LimitMEMLOCK=infinity in the service";
    match budget.limit_bytes {
        None => DoctorFinding::new("locked memory", FindingVerdict::Note, format!("no limit; {locked} locked")),
        Some(limit) if budget.privileged => {
            DoctorFinding::new("locked memory", FindingVerdict::Note, format!("limit {}, {locked} locked", ByteSize(limit)))
                .why("this process has CAP_IPC_LOCK, so the limit does not apply to it")
        }
        Some(limit) => DoctorFinding::new(
            "locked memory",
            FindingVerdict::Note,
            format!("limit {}, {locked} locked", ByteSize(limit)),
        )
        .why(
            "memory that is pinned or registered for devices counts towards the limit; a node registers frames of its flash \
             files on disks in at most half of it together, and transfers the rest without",
        )
        .change(change),
    }
}

pub(super) fn huge_pages() -> DoctorFinding {
    let pages =
        read_first_line("/proc/sys/vm/nr_hugepages").and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    if pages > 0 {
        return DoctorFinding::new("huge pages", FindingVerdict::Note, format!("{pages} reserved"));
    }
    DoctorFinding::new("huge pages", FindingVerdict::StandIn, "none reserved")
        .why("memory is mapped in 4 KiB pages, or in transparent huge pages where they are enabled")
        .change("sudo sysctl vm.nr_hugepages=512")
}

pub(super) fn transparent_huge_pages() -> DoctorFinding {
    let Some(text) = read_first_line("/sys/kernel/mm/transparent_hugepage/enabled") else {
        return DoctorFinding::new("transparent huge", FindingVerdict::StandIn, "not built into this kernel");
    };
    let chosen = bracketed(&text).unwrap_or("unknown").to_owned();
    match chosen.as_str() {
        "never" => DoctorFinding::new("transparent huge", FindingVerdict::StandIn, chosen)
            .why("large regions are mapped in 4 KiB pages; lookups miss the TLB more often")
            .change("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),
        _ => DoctorFinding::new("transparent huge", FindingVerdict::Active, chosen),
    }
}

pub(super) fn numa() -> DoctorFinding {
    let nodes = read_first_line("/sys/devices/system/node/online").unwrap_or_else(|| "0".to_owned());
    let found = format!("online: {nodes}");
    match MachineNodes::find() {
        Ok(None) => DoctorFinding::new("NUMA nodes", FindingVerdict::Note, found),
        Ok(Some(placement)) => DoctorFinding::new("NUMA nodes", FindingVerdict::Active, found).why(format!(
            "{} have memory: the pool has an arena on each, and a thread uses the closest one with room",
            placement.nodes().len()
        )),
        Err(error) => DoctorFinding::new("NUMA nodes", FindingVerdict::StandIn, found)
            .why(format!("{error}"))
            .change("numactl --cpunodebind=0 --membind=0 headwater serve"),
    }
}

fn clock_source() -> DoctorFinding {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = read_first_line(path).unwrap_or_else(|| "unknown".to_owned());
    match source.as_str() {
        // These are read in user space, in about 20 ns.
        "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter" => {
            DoctorFinding::new("clock", FindingVerdict::Active, source).why("read without a system call")
        }
        _ => DoctorFinding::new("clock", FindingVerdict::StandIn, source)
            .why("each read of the clock may be a system call")
            .change("boot with clocksource=tsc if the processor's TSC is stable"),
    }
}

fn descriptors() -> DoctorFinding {
    match getrlimit(Resource::Nofile).current {
        None => DoctorFinding::new("open files", FindingVerdict::Note, "no limit"),
        Some(limit) => DoctorFinding::new("open files", FindingVerdict::Note, format!("limit {limit}"))
            .why("each client uses one")
            .change("ulimit -n 65536   # or LimitNOFILE=65536 in the service"),
    }
}

/// Returns the first line of a file, or `None` if it cannot be read.
pub(super) fn read_first_line(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok().and_then(|text| text.lines().next().map(|line| line.trim().to_owned()))
}

/// Returns the chosen word of a list such as `always [madvise] never`.
fn bracketed(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_word_is_the_bracketed_one() {
        assert_eq!(bracketed("always [madvise] never"), Some("madvise"));
        assert_eq!(bracketed("always"), None);
    }

    #[test]
    fn finding_of_the_spin_time_names_its_source() {
        let calibration = |spin_override| Calibration {
            spin_before_sleep: headwater_host::clock::Nanos(7_250),
            wake_round_trip: headwater_host::clock::Nanos(7_250),
            streaming_copy_from_bytes: 4_096,
            origin: CalibrationOrigin::Cached,
            spin_override,
        };
        let text = |spin_override| spin(&calibration(spin_override)).to_string();
        let calibrated = text(SpinOverride::Unset);
        assert!(
            calibrated.contains("7.2 us, calibrated") && calibrated.contains("earlier run"),
            "{calibrated}"
        );
        assert!(text(SpinOverride::Used).contains("from HEADWATER_SPIN_US"));
        let ignored = text(SpinOverride::Ignored("5us".to_owned()));
        assert!(ignored.starts_with("PROBLEM") && ignored.contains("HEADWATER_SPIN_US=5us"), "{ignored}");
    }

    #[test]
    fn sizes_of_the_last_level_cache_that_differ_are_said() {
        let text = |by_kernel, by_processor| {
            last_level_cache(LastLevelCache { by_kernel, by_processor }).to_string()
        };
        let differ = text(Some(256 << 20), Some(32 << 20));
        assert!(differ.contains("32 MiB") && differ.contains("256 MiB"), "{differ}");
        assert!(text(Some(8 << 20), Some(8 << 20)).contains("8 MiB"));
        assert!(text(None, None).contains("unknown"));
    }

    #[test]
    fn every_stand_in_and_problem_has_a_reason_or_a_command() {
        for finding in examine() {
            assert!(!finding.found.is_empty());
            if matches!(finding.verdict, FindingVerdict::StandIn | FindingVerdict::Problem) {
                assert!(finding.why.is_some() || finding.change.is_some(), "{}", finding.what);
            }
        }
    }
}
