//! What an experiment is, what it is given and what it gives back.
//!
//! In: [`Options`] from the command line. Out: [`Findings`], or a [`LabError`] that says what to do. Invariant: an
//! experiment writes only below [`Context::scratch`], which is gone when the run is over.

use crate::claim::Claim;
use crate::report::Row;
use headwater_host::clock::{Clock, Nanos};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

/// Longest that a `--quick` run may take. Only `io` takes longer, within a minute: nine pairs with fio need it.
pub const QUICK_MAX: Nanos = Nanos::from_millis(20_000);

/// One experiment of the table.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Experiment {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it measures, in a sentence.
    pub summary: &'static str,
    /// What it compares with, beside the floor.
    pub baseline: &'static str,
    /// The claims it bears on; a name that ends in `.*` stands for all below it.
    pub claims: &'static [&'static str],
    /// Measures.
    #[serde(skip)]
    pub run: fn(&Context) -> Result<Findings, LabError>,
}

/// How an experiment is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// End within [`QUICK_MAX`]: fewer rounds, the same claims.
    pub quick: bool,
    /// Seed of everything random.
    pub seed: u64,
    /// The `headwater` program, for experiments that start a node; the running program when `None`.
    pub binary: Option<PathBuf>,
    /// Where scratch files go; the system's folder for them when `None`. Put it on the disk that matters.
    pub scratch: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { quick: false, seed: 1, binary: None, scratch: None }
    }
}

/// What an experiment found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// What was measured.
    pub rows: Vec<Row>,
    /// What it says about our promises.
    pub claims: Vec<Claim>,
}

/// Why an experiment gave no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// No experiment has that name.
    #[error("there is no experiment `{name}`: `headwater lab list` shows them all")]
    Unknown {
        /// The name that was asked for.
        name: String,
    },
    /// Scratch files could not be written.
    #[error("cannot use {} for scratch files: {source}; set TMPDIR to a folder you can write to", path.display())]
    Scratch {
        /// Which folder.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A program could not be started or did not answer.
    #[error("{program} did not start: {reason}")]
    Start {
        /// Which program.
        program: String,
        /// What happened, and what to look at.
        reason: String,
    },
    /// A running peer stopped answering, or answered nonsense.
    #[error("{program} failed while it was measured: {reason}")]
    Measure {
        /// Which program.
        program: String,
        /// What happened.
        reason: String,
    },
    /// The kernel refused something that measuring needs.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What an experiment works with.
#[derive(Debug)]
pub struct Context {
    options: Options,
    clock: Clock,
    scratch: PathBuf,
}

impl Context {
    /// Makes the scratch folder and starts the clock.
    pub(crate) fn open(options: Options) -> Result<Self, LabError> {
        // A folder's name is unique among processes by the id and the wall clock, among runs of one process by a count.
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let parent = options.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let clock = Clock::start();
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let name = format!("headwater-lab-{}-{}-{run}", std::process::id(), clock.wall().0);
        let scratch = parent.join(name);
        fs::create_dir_all(&scratch).map_err(|source| LabError::Scratch { path: scratch.clone(), source })?;
        Ok(Self { options, clock, scratch })
    }

    /// Whether the run has to end within [`QUICK_MAX`].
    #[must_use]
    pub fn is_quick(&self) -> bool {
        self.options.quick
    }

    /// Seed of everything random.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.options.seed
    }

    /// The run's clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// What is left of the time of a quick run, `reserve` kept back; the end of time for a full one.
    #[must_use]
    pub fn time_left(&self, reserve: Nanos) -> Nanos {
        if self.options.quick { QUICK_MAX.since(self.clock.now().after(reserve)) } else { Nanos(u64::MAX) }
    }

    /// A folder that goes with the run.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// The `headwater` program.
    ///
    /// # Errors
    /// When no path was given and the running program's own cannot be found.
    pub fn binary(&self) -> Result<PathBuf, LabError> {
        if let Some(path) = &self.options.binary {
            return Ok(path.clone());
        }
        std::env::current_exe().map_err(|source| LabError::Io { what: "find the running program", source })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // What remains is scratch that the system cleans up; there is nobody to tell.
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_goes_with_the_run() {
        let context = Context::open(Options::default()).unwrap();
        let path = context.scratch().to_owned();
        fs::write(path.join("file"), b"x").unwrap();
        assert!(path.is_dir());
        drop(context);
        assert!(!path.exists());
    }

    #[test]
    fn scratch_that_cannot_be_made_is_named() {
        let options = Options { scratch: Some(PathBuf::from("/proc/nowhere")), ..Options::default() };
        let error = Context::open(options).unwrap_err();
        assert!(error.to_string().contains("/proc/nowhere"));
        assert!(error.to_string().contains("TMPDIR"));
    }

    #[test]
    fn a_full_run_has_all_the_time_there_is() {
        let full = Context::open(Options::default()).unwrap();
        assert_eq!(full.time_left(QUICK_MAX), Nanos(u64::MAX));
        let quick = Context::open(Options { quick: true, ..Options::default() }).unwrap();
        assert!(quick.time_left(Nanos::ZERO) <= QUICK_MAX);
        assert_eq!(quick.time_left(QUICK_MAX), Nanos::ZERO);
    }
}
