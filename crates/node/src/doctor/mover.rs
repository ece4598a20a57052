//! `headwater doctor --mover`: how fast this machine copies, and the channels that the mover of a node would use.
//!
//! Input: copies of some sizes, the features of the processor, work queues of DSA devices, GPUs. Output: a table, the
//! thresholds, the choices of a mover with the channels that there are, and findings. Nothing is changed and nothing needs root.
//! A work queue or a GPU is opened for a moment and closed.

use super::mover_choices::{MoverChoices, channel_time, whole_job};
use super::{DoctorFinding, FindingVerdict};
use crate::config::ByteSize;
use crate::daemon::node_mover::dsa_roots;
use headwater_dma::mover::{
    DsaChannel, DsaConfig, GpuChannel, GpuConfig, LARGE_JOB_BYTES, SoftwareChannel, StreamingBorder,
};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::copy::persist::{
    PersistentCopies, STREAMING_PERSIST_BYTES_MIN, WriteBackInstruction, write_back_instruction,
};
use headwater_host::copy::{StreamingCopies, copy_crc32c, kernel_name};
use headwater_host::dsa::{
    DsaInstructions, DsaOpcode, DsaRoots, NOT_RUN_ON_SILICON, SETUP_COMMANDS, WorkQueueInfo, discover,
};
use headwater_host::gpu::{GpuDriver, GpuInfo, HostRegistrations, NOT_RUN_ON_GPU, library_path};
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The sizes of the table, in bytes.
pub(super) const SIZES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// The time that a cell is measured for.
const CELL: Nanos = Nanos::from_millis(3);
/// The time that a software channel polls before it sleeps: longer than a cell takes.
pub(super) const SPIN: Nanos = Nanos::from_millis(5);

/// The time of each way to copy one size, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CopyRow {
    /// The size.
    pub bytes: u64,
    /// A copy through the cache.
    pub cached_ns: u64,
    /// A copy past the cache.
    pub streaming_ns: u64,
    /// A copy with the CRC-32C of the bytes.
    pub crc_ns: u64,
    /// A copy that has left the cache.
    pub persistent_ns: u64,
    /// A job on a software channel; `None` if the system has no thread for one.
    pub software_channel_ns: Option<u64>,
}

/// The copies of this machine, and the channels of a mover.
#[derive(Clone, Debug, Serialize)]
pub struct MoverReport {
    /// One row for each size.
    pub rows: Vec<CopyRow>,
    /// The length in bytes from which the mover of a node decides which engine moves a job.
    pub threshold_bytes: u64,
    /// The length in bytes from which a copy that is not read soon passes the cache by, by calibration; `u64::MAX` if none does
    /// that is not longer than the last-level cache, which every longer one passes by.
    pub streaming_bytes: u64,
    /// The length in bytes from which a persistent copy passes the cache by.
    pub persistent_streaming_bytes: u64,
    /// The choices of a mover; `None` without a channel.
    pub choices: Option<MoverChoices>,
    /// Kernels, channels and reasons.
    pub findings: Vec<DoctorFinding>,
}

impl MoverReport {
    /// Returns the report of this machine, with the choices of a mover that has so many threads, and the work queues and GPUs
    /// that this process can open. Measures for about 100 ms, and for 200 ms more with channels. The border is not measured: the
    /// caller has it from the calibration of the machine.
    #[must_use]
    pub fn measure(threads: u8, border: StreamingBorder) -> Self {
        let clock = Clock::start();
        let mut channel = SoftwareChannel::start(clock, SPIN);
        let rows = SIZES.map(|bytes| CopyRow {
            software_channel_ns: channel
                .as_mut()
                .ok()
                .and_then(|channel| channel_time(channel, clock, whole_job(bytes))),
            ..cpu_row(clock, bytes)
        });
        let mut findings = vec![kernels(), persistence()];
        findings.push(match &channel {
            Ok(_) => DoctorFinding::new("software channel", FindingVerdict::Active, "available").why(
                "a thread with copies of its own; it saves no CPU time: `serve --mover-threads N` where cores are idle",
            ),
            Err(error) => DoctorFinding::new("software channel", FindingVerdict::StandIn, "none").why(error.to_string()),
        });
        findings.extend(work_queues(&dsa_roots(), DsaInstructions::detect()));
        findings.extend(gpus(&library_path()));
        // Its thread must not take a core from those of the mover.
        drop(channel);
        let choices = match MoverChoices::measure(threads, clock) {
            Ok(choices) => choices,
            Err(error) => {
                findings.push(
                    DoctorFinding::new("choices", FindingVerdict::StandIn, "none").why(error.to_string()),
                );
                None
            }
        };
        Self {
            choices,
            rows: rows.to_vec(),
            threshold_bytes: LARGE_JOB_BYTES as u64,
            streaming_bytes: u64::try_from(border.bytes()).unwrap_or(u64::MAX),
            persistent_streaming_bytes: STREAMING_PERSIST_BYTES_MIN as u64,
            findings,
        }
    }
}

fn kernels() -> DoctorFinding {
    DoctorFinding::new("copy and CRC", FindingVerdict::Active, kernel_name())
}

fn persistence() -> DoctorFinding {
    let instruction = write_back_instruction();
    let verdict = if instruction == WriteBackInstruction::Unavailable {
        FindingVerdict::StandIn
    } else {
        FindingVerdict::Active
    };
    DoctorFinding::new("write-back", verdict, instruction.name())
}

/// Returns a finding for each work queue of DSA devices, or the reason that there is none.
fn work_queues(roots: &DsaRoots, instructions: DsaInstructions) -> Vec<DoctorFinding> {
    match discover(roots) {
        Ok(queues) => queues.iter().map(|queue| work_queue(queue, instructions)).collect(),
        Err(error) => vec![
            DoctorFinding::new("DSA", FindingVerdict::Note, format!("no work queue; {NOT_RUN_ON_SILICON}"))
                .why(error.to_string())
                .change(format!("as root, where there is a device: {SETUP_COMMANDS}")),
        ],
    }
}

fn work_queue(queue: &WorkQueueInfo, instructions: DsaInstructions) -> DoctorFinding {
    let node = queue.node.map_or_else(|| "unknown".to_owned(), |node| node.to_string());
    let batches =
        if queue.batch_max > 1 { format!("batches of {}", queue.batch_max) } else { "no batches".into() };
    let names: Vec<&str> = queue.forbidden.opcodes().map(DsaOpcode::name).collect();
    let forbidden = if names.is_empty() {
        String::new()
    } else {
        format!(", its op_config forbids {}", names.join(", "))
    };
    let found = format!(
        "{} {:?}: {}, {} entries, {batches}, transfers up to {}, node {node}{forbidden}",
        queue.id,
        queue.name,
        queue.mode.name(),
        queue.size,
        ByteSize(u64::from(queue.transfer_bytes_max)),
    );
    match DsaChannel::open(queue, instructions, DsaConfig::default()) {
        Ok(channel) => DoctorFinding::new(
            "DSA",
            FindingVerdict::Note,
            format!("{found}, by {}; {NOT_RUN_ON_SILICON}", channel.way().name()),
        )
        .change("`serve --mover-dsa` gives it to the mover"),
        Err(error) => {
            DoctorFinding::new("DSA", FindingVerdict::StandIn, format!("{found}; {NOT_RUN_ON_SILICON}"))
                .why(error.to_string())
        }
    }
}

/// Returns a finding for each GPU, or the reason that there is none.
fn gpus(library: &Path) -> Vec<DoctorFinding> {
    match GpuDriver::open(library) {
        Ok(driver) => driver.gpus().iter().map(|gpu| gpu_finding(&driver, gpu)).collect(),
        Err(error) => vec![
            DoctorFinding::new("GPU", FindingVerdict::Note, format!("none; {NOT_RUN_ON_GPU}"))
                .why(error.to_string()),
        ],
    }
}

fn gpu_finding(driver: &Arc<GpuDriver>, gpu: &GpuInfo) -> DoctorFinding {
    let node = gpu.node.map_or_else(|| "unknown".to_owned(), |node| node.to_string());
    let (major, minor) = driver.version();
    let GpuInfo { number, name, bus_id, .. } = gpu;
    let found =
        format!("gpu {number} {name:?} at {bus_id}: CUDA {major}.{minor}, node {node}; {NOT_RUN_ON_GPU}");
    let opened = HostRegistrations::open(driver)
        .map_err(Into::into)
        .and_then(|registrations| GpuChannel::open(driver, *number, registrations, GpuConfig::default()));
    match opened {
        Ok(_) => DoctorFinding::new("GPU", FindingVerdict::Note, found)
            .change(format!("`serve --mover-gpu {}` gives it to the mover", number + 1)),
        Err(error) => DoctorFinding::new("GPU", FindingVerdict::StandIn, found).why(error.to_string()),
    }
}

/// Returns the time of one call, of as many as fit the time of a cell.
pub(super) fn time_of(clock: Clock, mut call: impl FnMut()) -> u64 {
    call();
    let begun = clock.now();
    let mut calls = 0;
    loop {
        call();
        calls += 1;
        let elapsed = clock.now().since(begun);
        if elapsed >= CELL {
            return elapsed.0 / calls;
        }
    }
}

fn cpu_row(clock: Clock, bytes: usize) -> CopyRow {
    let (source, mut target) = (vec![1; bytes], vec![0; bytes]);
    let mut streaming = StreamingCopies::default();
    let mut persistent = PersistentCopies::default();
    CopyRow {
        bytes: bytes as u64,
        cached_ns: time_of(clock, || std::hint::black_box(&mut target).copy_from_slice(&source)),
        streaming_ns: time_of(clock, || {
            streaming.copy(std::hint::black_box(&mut target), &source);
            streaming.fence();
        }),
        crc_ns: time_of(clock, || {
            std::hint::black_box(copy_crc32c(std::hint::black_box(&mut target), &source, 0));
        }),
        persistent_ns: time_of(clock, || {
            persistent.copy(std::hint::black_box(&mut target), &source);
            let _ = persistent.drain();
        }),
        software_channel_ns: None,
    }
}

/// A column of the table: heading, and cell.
type RateColumn = (&'static str, fn(&CopyRow) -> Option<u64>);

const COLUMNS: [RateColumn; 5] = [
    ("cached", |row| Some(row.cached_ns)),
    ("streaming", |row| Some(row.streaming_ns)),
    ("copy+CRC", |row| Some(row.crc_ns)),
    ("persistent", |row| Some(row.persistent_ns)),
    ("sw channel", |row| row.software_channel_ns),
];

impl fmt::Display for MoverReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Copies again and again between two private memories, in the caches if they fit, in GB/s; - is unavailable."
        )?;
        write!(f, "{:>10}", "size")?;
        for (heading, _) in COLUMNS {
            write!(f, "{heading:>12}")?;
        }
        writeln!(f)?;
        for row in &self.rows {
            write!(f, "{:>10}", ByteSize(row.bytes).to_string())?;
            for (_, cell) in COLUMNS {
                let text = cell(row).map_or_else(|| "-".to_owned(), |nanos| rate(row.bytes, nanos));
                write!(f, "{text:>12}")?;
            }
            writeln!(f)?;
        }
        let streaming = match self.streaming_bytes {
            u64::MAX => "at no other length".to_owned(),
            bytes => format!("from {} on", ByteSize(bytes)),
        };
        writeln!(
            f,
            "\n  decisions from {} on; what is longer than the last-level cache passes it by, what is not read soon {streaming}, a \
             persistent copy from {} on",
            ByteSize(self.threshold_bytes),
            ByteSize(self.persistent_streaming_bytes)
        )?;
        match &self.choices {
            Some(choices) => write!(f, "\n{choices}")?,
            None => writeln!(
                f,
                "\n  no channel: the CPU does every job. `--mover-threads N` shows what a mover with threads chooses; work \
                 queues of DSA devices and GPUs are used where there are some"
            )?,
        }
        for finding in &self.findings {
            write!(f, "\n{finding}")?;
        }
        Ok(())
    }
}

/// Returns bytes a nanosecond, which are GB/s, with two digits.
fn rate(bytes: u64, nanos: u64) -> String {
    let hundredths = bytes.saturating_mul(100) / nanos.max(1);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_testkit::software_gpu::SoftwareGpu;
    use headwater_testkit::work_queue_folders::make_work_queue;

    #[test]
    fn gpus_are_listed_with_name_and_version_or_the_reason_why_none() {
        let none = gpus(Path::new("/nowhere/libcuda.so.1"));
        let text = none[0].to_string();
        assert!(text.contains("none") && text.contains("install the driver of the GPU"), "{text}");
        let two = SoftwareGpu::with_faults("devices 2");
        let found = gpus(&two.library());
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        for (number, text) in texts.iter().enumerate() {
            let named = format!("gpu {number} \"software GPU {number}\" at FFFF:0");
            for part in
                [&named, "CUDA 12.4, node unknown", NOT_RUN_ON_GPU, &format!("--mover-gpu {}", number + 1)]
            {
                assert!(text.contains(part), "{part} is missing in {text}");
            }
        }
        let broken = SoftwareGpu::with_faults("fail cuMemAlloc 0 2");
        let text = gpus(&broken.library())[0].to_string();
        assert!(text.contains("CUDA_ERROR_OUT_OF_MEMORY") && text.contains("nvidia-smi"), "{text}");
        let without = SoftwareGpu::with_faults("devices 0");
        let text = gpus(&without.library())[0].to_string();
        assert!(text.contains("knows no GPU"), "{text}");
    }

    #[test]
    fn work_queues_are_listed_with_mode_size_and_node_or_the_reason_why_none() {
        let root = tempfile::TempDir::new().unwrap();
        let roots = DsaRoots::below(root.path());
        let none = work_queues(&roots, DsaInstructions::NONE);
        let text = none[0].to_string();
        assert!(text.contains("no work queue") && text.contains("modprobe idxd"), "{text}");
        assert!(text.contains("accel-config enable-wq"), "{text}");
        let queue = make_work_queue(root.path(), "wq0.1");
        for (name, text) in [("../numa_node", "1"), ("name", "mine"), ("threshold", "15")] {
            std::fs::write(queue.join(name), text).unwrap();
        }
        let text = work_queues(&roots, DsaInstructions::NONE)[0].to_string();
        for part in ["wq0.1 \"mine\": shared, 16 entries, batches of 32", "2 MiB", "node 1", "ENQCMD"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(text.contains(NOT_RUN_ON_SILICON) && !text.contains("op_config"), "{text}");
        // Copies, copies with CRC and drains.
        std::fs::write(queue.join("op_config"), "00000000,0002000c\n").unwrap();
        let text = work_queues(&roots, DsaInstructions::NONE)[0].to_string();
        let forbidden = "op_config forbids no-op, batch, fill, compare, dualcast, CRC, cache flush";
        assert!(text.contains(forbidden) && text.contains("no batches"), "{text}");
        std::fs::write(queue.join("op_config"), "00000000,00000000\n").unwrap();
        let text = work_queues(&roots, DsaInstructions::NONE)[0].to_string();
        assert!(text.contains("wq0.1: its op_config permits no operation over memory"), "{text}");
    }

    #[test]
    fn report_has_a_row_for_each_size_and_serialises() {
        let report = MoverReport::measure(0, StreamingBorder::from_bytes(16_384));
        let text = report.to_string();
        for what in
            ["4 KiB", "4 MiB", "sw channel", "write-back", "DSA", NOT_RUN_ON_SILICON, "GPU", NOT_RUN_ON_GPU]
        {
            assert!(text.contains(what), "{what} is missing in\n{text}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rows"].as_array().map(Vec::len), Some(SIZES.len()));
        assert_eq!(json["threshold_bytes"], 16_384);
        assert_eq!(json["streaming_bytes"], 16_384);
        assert!(text.contains("what is not read soon from 16 KiB on"), "{text}");
        let never = StreamingBorder::from_bytes(u64::MAX).bytes();
        let report = MoverReport { streaming_bytes: never as u64, ..report };
        assert!(report.to_string().contains("what is not read soon at no other length"), "{report}");
        assert!(json["choices"].is_null() && text.contains("no channel: the CPU does every job"), "{text}");
        assert_eq!(rate(4_096, 1_000), "4.09");
    }
}
