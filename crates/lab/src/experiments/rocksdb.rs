//! Figures 8 and 9 of the uDMA paper: `RocksDB` over direct I/O, with memory from a pool, static, or pinned for each request.
//!
//! Input: `db_bench` and the file system of `plugins/rocksdb`, which `make rocksdb` builds.
//! Output: microseconds of an operation and operations a second by block length and method, and the claims
//! `p3.udma.fig8` and `p3.udma.fig9`. The methods run interleaved on copies of one database, in the paper's mode, random reads with
//! one write in ten, by one thread and almost without a block cache. Static memory, pinned once, is the floor.

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::measure::{CompareCase, SampleSpread, run_interleaved};
use crate::report::ReportRow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "rocksdb",
    summary: "figures 8 and 9 of the uDMA paper: RocksDB with pool buffers for direct I/O",
    baseline: "memory mapped and pinned for each request; static memory (floor)",
    claims: &["p3.udma.fig8", "p3.udma.fig9"],
    run,
};

/// Mean improvement according to the paper, in per cent.
const LATENCY: (&str, ClaimGoal, &str) = (
    "p3.udma.fig8",
    ClaimGoal::AtLeast(11.13),
    "% shorter operation than with pinning for each request, mean of all block lengths",
);
const RATE: (&str, ClaimGoal, &str) = (
    "p3.udma.fig9",
    ClaimGoal::AtLeast(9.5),
    "% more operations a second than with pinning for each request, mean of all block lengths",
);
/// The methods, as the plugin's URI names them.
const METHODS: [&str; 3] = ["pool", "static", "each"];
const POOL: usize = 0;
const EACH: usize = 2;

struct BenchPlan {
    keys: u64,
    rounds: usize,
    /// Operations of a run.
    operations: u64,
}

const FULL: BenchPlan = BenchPlan { keys: 500_000, rounds: 4, operations: 15_000 };
const QUICK: BenchPlan = BenchPlan { keys: 100_000, rounds: 2, operations: 5_000 };
const FULL_BLOCKS: &[u32] = &[4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];
const QUICK_BLOCKS: &[u32] = &[4 << 10, 128 << 10];
/// Environment variable with the path of the plugin.
const PLUGIN: &str = "HEADWATER_ROCKSDB";
/// The load whose line is read.
const LOAD: &str = "readrandomwriterandom";

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let mut findings = ExperimentFindings::default();
    let bench = match DbBench::find(context) {
        Ok(bench) => bench,
        Err(why) => {
            let claim = |(name, goal, unit)| LabClaim::not_run(name, goal, unit, &why);
            findings.claims.extend([claim(LATENCY), claim(RATE)]);
            return Ok(findings);
        }
    };
    let blocks = if context.is_quick() { QUICK_BLOCKS } else { FULL_BLOCKS };
    let (mut shorter, mut more) = (Vec::new(), Vec::new());
    for &block_bytes in blocks {
        let samples = bench.measure(context, block_bytes)?;
        for (method, micros) in METHODS.into_iter().zip(&samples) {
            let rates: Vec<f64> = micros.iter().map(|micros| 1e6 / micros).collect();
            findings.rows.push(
                ReportRow::new()
                    .with("figures", "8 and 9")
                    .with("block_bytes", u64::from(block_bytes))
                    .with("memory", method)
                    .with("us_per_op", SampleSpread::of(micros))
                    .with("ops_per_s", SampleSpread::of(&rates)),
            );
        }
        let ratio = SampleSpread::of_ratios(&samples[POOL], &samples[EACH]);
        let ratio = ratio.map_or(f64::NAN, |ratio| ratio.median);
        shorter.push((1.0 - ratio) * 100.0);
        more.push((1.0 / ratio - 1.0) * 100.0);
    }
    let claim = |(name, goal, unit), percent: &[f64], paper: &str| {
        let baseline = format!("{}; the paper has {paper} beside SPDK", bench.version);
        LabClaim::found(name, goal, (mean(percent), unit), EvidenceLabel::Measured, baseline)
    };
    findings.claims.extend([claim(LATENCY, &shorter, "11.13 %"), claim(RATE, &more, "9.5 %")]);
    Ok(findings)
}

#[expect(clippy::cast_precision_loss, reason = "a handful of block lengths")]
fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

/// The installed `db_bench` with the plugin.
struct DbBench {
    plugin: PathBuf,
    version: String,
}

impl DbBench {
    /// Finds both; the error is the reason why there is no figure.
    fn find(context: &RunContext) -> Result<Self, String> {
        let beside = || {
            let binary = context.binary().ok()?;
            Some(binary.parent()?.parent()?.join("rocksdb").join("headwater.so"))
        };
        let plugin = std::env::var_os(PLUGIN).map(PathBuf::from).or_else(beside);
        let plugin = plugin.filter(|plugin| plugin.is_file()).ok_or_else(|| {
            format!("the plugin is not built: `make rocksdb` builds it; {PLUGIN} names it elsewhere")
        })?;
        let output = Command::new("db_bench")
            .arg("--version")
            .output()
            .map_err(|error| format!("db_bench cannot be run ({error}): apt-get install rocksdb-tools"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.split_whitespace().last().unwrap_or("of an unknown version");
        Ok(Self { plugin, version: format!("RocksDB's db_bench {version}") })
    }

    /// Returns the microseconds of an operation in each round, by method. Each run has a copy of the same database, because
    /// a run leaves tables behind that make the next one slower.
    fn measure(&self, context: &RunContext, block_bytes: u32) -> Result<Vec<Vec<f64>>, LabError> {
        let plan = if context.is_quick() { QUICK } else { FULL };
        let filled = context.scratch().join(format!("rocksdb-{block_bytes}"));
        let copy = context.scratch().join(format!("rocksdb-{block_bytes}-copy"));
        let options = |benchmarks: &str, folder: &Path| {
            vec![
                format!("--benchmarks={benchmarks}"),
                format!("--num={}", plan.keys),
                format!("--block_size={block_bytes}"),
                format!("--db={}", folder.display()),
            ]
        };
        let mut fill = options("fillrandom,compact", &filled);
        fill.push("--disable_wal=1".to_owned());
        self.run(METHODS[POOL], &fill)?;
        let mut work = options(LOAD, &copy);
        work.extend(["--use_existing_db=1".to_owned(), format!("--reads={}", plan.operations)]);
        let one = |method: usize| -> Result<f64, LabError> {
            copy_database(&filled, &copy)
                .map_err(|source| LabError::Io { what: "copy the database", source })?;
            let text = self.run(METHODS[method], &work)?;
            parse(&text).ok_or_else(|| failed(format!("it printed no line of {LOAD}")))
        };
        let (mut pool, mut fixed, mut each) = (|| one(0), || one(1), || one(2));
        let mut contestants: [CompareCase<'_, f64, LabError>; 3] = [&mut pool, &mut fixed, &mut each];
        run_interleaved(plan.rounds, &mut contestants)
    }

    fn run(&self, method: &str, options: &[String]) -> Result<String, LabError> {
        let output = Command::new("db_bench")
            .env("LD_PRELOAD", &self.plugin)
            .arg(format!("--fs_uri=headwater://{method}"))
            .args(["--threads=1", "--value_size=400", "--compression_type=none", "--cache_size=1048576"])
            .args(options)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(failed(format!("{}: {}", output.status, text.lines().last().unwrap_or("no message"))))
    }
}

/// Makes `copy` a copy of a closed database. Tables never change, so they are links.
fn copy_database(filled: &Path, copy: &Path) -> io::Result<()> {
    if copy.exists() {
        fs::remove_dir_all(copy)?;
    }
    fs::create_dir(copy)?;
    for entry in fs::read_dir(filled)? {
        let path = entry?.path();
        let Some(name) = path.file_name() else { continue };
        if path.extension().is_some_and(|ending| ending == "sst") {
            fs::hard_link(&path, copy.join(name))?;
        } else {
            fs::copy(&path, copy.join(name))?;
        }
    }
    Ok(())
}

/// Returns the microseconds of an operation from the line of the load. Progress may stand before it on the same line.
fn parse(text: &str) -> Option<f64> {
    let line = text.split(['\n', '\r']).find_map(|line| {
        let (_, rest) = line.split_once(LOAD)?;
        rest.trim_start().strip_prefix(':')
    })?;
    let (micros, _) = line.split_once("micros/op")?;
    micros.trim().parse().ok()
}

fn failed(reason: String) -> LabError {
    LabError::Measure { program: "db_bench".to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_the_load_is_found_behind_progress() {
        let text = "DB path: [/x]\nreadrandomwriterandom :      73.077 micros/op 13684 ops/sec 3.069 seconds";
        assert_eq!(parse(text), Some(73.077));
        assert_eq!(parse("... finished 100 ops \rreadrandomwriterandom : 5.5 micros/op"), Some(5.5));
        assert_eq!(parse("fillrandom : 9.8 micros/op"), None);
    }

    #[test]
    fn copy_of_a_database_shares_its_tables_and_nothing_else() {
        let context = RunContext::open(crate::RunOptions::default()).unwrap();
        let (filled, copy) = (context.scratch().join("filled"), context.scratch().join("copy"));
        fs::create_dir(&filled).unwrap();
        fs::write(filled.join("7.sst"), "table").unwrap();
        fs::write(filled.join("CURRENT"), "one").unwrap();
        copy_database(&filled, &copy).unwrap();
        fs::write(copy.join("CURRENT"), "changed").unwrap();
        fs::write(copy.join("8.sst"), "of the run").unwrap();
        copy_database(&filled, &copy).unwrap();
        assert_eq!(fs::read_to_string(copy.join("CURRENT")).unwrap(), "one");
        assert_eq!(fs::read_to_string(copy.join("7.sst")).unwrap(), "table");
        assert!(!copy.join("8.sst").exists());
    }

    #[test]
    fn missing_plugin_is_a_reason_that_names_its_target() {
        let options = crate::RunOptions {
            binary: Some(PathBuf::from("/nowhere/release/headwater")),
            ..crate::RunOptions::default()
        };
        let context = RunContext::open(options).unwrap();
        if std::env::var_os(PLUGIN).is_none() {
            let why = DbBench::find(&context).err().unwrap();
            assert!(why.contains("make rocksdb"), "{why}");
        }
    }
}
