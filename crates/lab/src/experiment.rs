//! The interface of an experiment: its description, its context and its findings.
//!
//! Input: [`RunOptions`] from the command line.
//! Output: [`ExperimentFindings`], or a [`LabError`] that says what to do.
//! Invariant: an experiment writes only below [`RunContext::scratch`], which is removed at the end of the run.

use crate::claim::LabClaim;
use crate::report::ReportRow;
use headwater_host::clock::{Clock, Nanos};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

/// Maximum duration of a `--quick` run. `io` takes longer, up to a minute, because it runs nine pairs with fio, and
/// `resp` by [`QUICK_PER_PEER`] for each peer after the first one.
pub const QUICK_MAX: Nanos = Nanos::from_millis(20_000);
/// Time by which each peer after the first one prolongs a quick run of `resp`.
pub const QUICK_PER_PEER: Nanos = Nanos::from_millis(10_000);

/// One experiment of the table.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LabExperiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// A sentence that says what it measures.
    pub summary: &'static str,
    /// The baseline that it compares with, in addition to the floor.
    pub baseline: &'static str,
    /// The claims that it evaluates; a name that ends in `.*` covers all claims with that prefix.
    pub claims: &'static [&'static str],
    /// The function that runs it.
    #[serde(skip)]
    pub run: fn(&RunContext) -> Result<ExperimentFindings, LabError>,
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// True to end within [`QUICK_MAX`]: fewer rounds, the same claims.
    pub quick: bool,
    /// The seed of all randomness.
    pub seed: u64,
    /// The `headwater` program, for experiments that start a node; the running program when `None`.
    pub binary: Option<PathBuf>,
    /// The folder for scratch files; the system's temporary folder if `None`. Put it on the disk to be measured.
    pub scratch: Option<PathBuf>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { quick: false, seed: 1, binary: None, scratch: None }
    }
}

/// The findings of an experiment.
#[derive(Clone, Debug, Default)]
pub struct ExperimentFindings {
    /// The measured rows.
    pub rows: Vec<ReportRow>,
    /// The evaluated claims.
    pub claims: Vec<LabClaim>,
}

/// The reason why an experiment has no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// No experiment has that name.
    #[error("no experiment is named `{name}`: `headwater lab list` lists all names")]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// Scratch files could not be written.
    #[error("cannot use {} for scratch files: {source}; set TMPDIR to a folder you can write to", path.display())]
    Scratch {
        /// The folder.
        path: PathBuf,
        /// The error that the kernel returned.
        source: io::Error,
    },
    /// A program could not be started or did not become ready.
    #[error("{program} did not start: {reason}")]
    Start {
        /// The program.
        program: String,
        /// The failure, and what to check.
        reason: String,
    },
    /// A running peer stopped responding or returned an invalid response.
    #[error("{program} failed during the measurement: {reason}")]
    Measure {
        /// The program.
        program: String,
        /// The failure.
        reason: String,
    },
    /// The kernel refused an operation that the measurement needs.
    #[error("cannot {what}: {source}")]
    Io {
        /// The attempted operation.
        what: &'static str,
        /// The error that the kernel returned.
        source: io::Error,
    },
}

/// The context of one run of an experiment: options, clock and scratch folder.
#[derive(Debug)]
pub struct RunContext {
    options: RunOptions,
    clock: Clock,
    scratch: PathBuf,
}

impl RunContext {
    /// Creates the scratch folder and starts the clock.
    pub(crate) fn open(options: RunOptions) -> Result<Self, LabError> {
        // The process id and wall clock make the name unique among processes, the count among runs of one process.
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let parent = options.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let clock = Clock::start();
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let name = format!("headwater-lab-{}-{}-{run}", std::process::id(), clock.wall().0);
        let scratch = parent.join(name);
        fs::create_dir_all(&scratch).map_err(|source| LabError::Scratch { path: scratch.clone(), source })?;
        Ok(Self { options, clock, scratch })
    }

    /// Creates a context with the same options, whose scratch folder is in `parent`.
    pub(crate) fn with_scratch_in(&self, parent: &Path) -> Result<Self, LabError> {
        Self::open(RunOptions { scratch: Some(parent.to_owned()), ..self.options.clone() })
    }

    /// Returns true if the run must end within [`QUICK_MAX`].
    #[must_use]
    pub fn is_quick(&self) -> bool {
        self.options.quick
    }

    /// Returns the seed of all randomness.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.options.seed
    }

    /// Returns the run's clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the remaining time of a quick run, less `reserve`; `Nanos(u64::MAX)` for a full run.
    #[must_use]
    pub fn time_left(&self, reserve: Nanos) -> Nanos {
        self.time_left_beside(1, reserve)
    }

    /// Returns the same for a run that compares with this number of peers: each after the first one adds
    /// [`QUICK_PER_PEER`], so that more peers do not leave scenarios out.
    #[must_use]
    pub fn time_left_beside(&self, peers: usize, reserve: Nanos) -> Nanos {
        if !self.options.quick {
            return Nanos(u64::MAX);
        }
        let more = Nanos(QUICK_PER_PEER.0.saturating_mul(peers.saturating_sub(1) as u64));
        QUICK_MAX.after(more).since(self.clock.now().after(reserve))
    }

    /// Returns the folder that is removed at the end of the run.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Returns the path of the `headwater` program.
    ///
    /// # Errors
    /// No path was given and the path of the running program cannot be found.
    pub fn binary(&self) -> Result<PathBuf, LabError> {
        if let Some(path) = &self.options.binary {
            return Ok(path.clone());
        }
        std::env::current_exe().map_err(|source| LabError::Io { what: "find the running program", source })
    }
}

impl Drop for RunContext {
    fn drop(&mut self) {
        // On failure only scratch files remain, which the system cleans up; the error cannot be returned here.
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_folder_is_removed_with_the_context() {
        let context = RunContext::open(RunOptions::default()).unwrap();
        let path = context.scratch().to_owned();
        fs::write(path.join("file"), b"x").unwrap();
        assert!(path.is_dir());
        drop(context);
        assert!(!path.exists());
    }

    #[test]
    fn scratch_error_names_the_folder_and_tmpdir() {
        let options = RunOptions { scratch: Some(PathBuf::from("/proc/nowhere")), ..RunOptions::default() };
        let error = RunContext::open(options).unwrap_err();
        assert!(error.to_string().contains("/proc/nowhere"));
        assert!(error.to_string().contains("TMPDIR"));
    }

    #[test]
    fn only_a_quick_run_has_a_time_limit() {
        let full = RunContext::open(RunOptions::default()).unwrap();
        assert_eq!(full.time_left(QUICK_MAX), Nanos(u64::MAX));
        let quick = RunContext::open(RunOptions { quick: true, ..RunOptions::default() }).unwrap();
        assert!(quick.time_left(Nanos::ZERO) <= QUICK_MAX);
        assert_eq!(quick.time_left(QUICK_MAX), Nanos::ZERO);
    }

    #[test]
    fn each_peer_after_the_first_prolongs_a_quick_run() {
        let quick = RunContext::open(RunOptions { quick: true, ..RunOptions::default() }).unwrap();
        assert_eq!(quick.time_left_beside(0, QUICK_MAX), Nanos::ZERO);
        assert_eq!(quick.time_left_beside(1, QUICK_MAX), Nanos::ZERO);
        assert_eq!(
            quick.time_left_beside(3, QUICK_MAX.after(QUICK_PER_PEER).after(QUICK_PER_PEER)),
            Nanos::ZERO
        );
        assert!(quick.time_left_beside(usize::MAX, QUICK_MAX) > QUICK_PER_PEER);
        let full = RunContext::open(RunOptions::default()).unwrap();
        assert_eq!(full.time_left_beside(2, QUICK_MAX), Nanos(u64::MAX));
    }
}
