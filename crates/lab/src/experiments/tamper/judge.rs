//! The judge of one damage: what the check says, and what a node then answers.
//!
//! Input: an image and a damage. Output: a verdict. Invariant: before each damage the file is the image again, byte for
//! byte.

use super::damage::Damage;
use super::image::{FlashImage, ask};
use super::node::{NodeFolder, NodeStart};
use crate::experiment::{LabError, RunContext};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::process::ExitStatus;

const CHUNK_BYTES: usize = 4_096;

/// The result of one damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TamperVerdict {
    /// Every answer is right, and the check reports nothing.
    Harmless,
    /// Every answer is right, and the check reports the damage.
    Reported,
    /// Some answers are errors, the rest is right, and the check reported it.
    Errors,
    /// The node refuses to open the file, and the check reported it.
    Refused,
    /// An answer is an error, or the node refuses, and the check reported nothing.
    Unseen,
    /// An answer is another one than before the damage.
    Wrong,
    /// A program crashed.
    Crashed,
    /// A program neither served nor ended, or a reply never came.
    Hung,
}

impl TamperVerdict {
    /// Every verdict, in the order of the report.
    pub(super) const ALL: [Self; 8] = [
        Self::Harmless,
        Self::Reported,
        Self::Errors,
        Self::Refused,
        Self::Unseen,
        Self::Wrong,
        Self::Crashed,
        Self::Hung,
    ];

    /// Returns its column in the report.
    pub(super) fn column(self) -> &'static str {
        match self {
            Self::Harmless => "harmless",
            Self::Reported => "reported",
            Self::Errors => "errors",
            Self::Refused => "refused",
            Self::Unseen => "unseen",
            Self::Wrong => "wrong",
            Self::Crashed => "crashed",
            Self::Hung => "hung",
        }
    }

    /// Returns true if the program broke its promise.
    pub(super) fn is_failure(self) -> bool {
        matches!(self, Self::Unseen | Self::Wrong | Self::Crashed | Self::Hung)
    }
}

/// A verdict with its reason.
pub(super) struct Finding {
    /// The verdict.
    pub(super) verdict: TamperVerdict,
    /// The first answer or end that led to it.
    pub(super) reason: String,
}

impl Finding {
    fn new(verdict: TamperVerdict, reason: impl Into<String>) -> Self {
        Self { verdict, reason: reason.into() }
    }
}

/// A judge with a folder of its own.
pub(super) struct Judge {
    folder: NodeFolder,
    /// True once the file holds an image.
    is_written: bool,
}

impl Judge {
    /// Makes a judge.
    pub(super) fn new(context: &RunContext, worker: usize) -> Result<Self, LabError> {
        Ok(Self { folder: NodeFolder::new(context, &format!("worker-{worker}"))?, is_written: false })
    }

    /// Judges a damage.
    pub(super) fn judge(&mut self, image: &FlashImage, damage: &Damage) -> Result<Finding, LabError> {
        let mut found = self.judge_file(image, damage)?;
        if found.verdict.is_failure() {
            let kept =
                self.keep(image, damage).map_err(|source| LabError::Io { what: "keep a file", source })?;
            found.reason = format!("{}; kept as {kept}", found.reason);
        }
        Ok(found)
    }

    /// Writes the damaged file again into the working folder: neither the seed nor the run shows it later, because times
    /// decide where a node writes. Returns its name.
    fn keep(&mut self, image: &FlashImage, damage: &Damage) -> io::Result<String> {
        let name = format!("tamper-{}.flash", damage.seed());
        self.write(image, damage)?;
        std::fs::copy(self.folder.flash(), &name)?;
        Ok(name)
    }

    fn judge_file(&mut self, image: &FlashImage, damage: &Damage) -> Result<Finding, LabError> {
        let failed = |source| LabError::Io { what: "damage a copy of the flash file", source };
        self.write(image, damage).map_err(failed)?;
        let reported = match self.folder.check()? {
            None => return Ok(Finding::new(TamperVerdict::Hung, "the check does not end")),
            Some(status) => match status.code() {
                Some(0) => false,
                Some(1) => true,
                _ => return Ok(Finding::new(TamperVerdict::Crashed, self.end("the check", status))),
            },
        };
        let (node, mut client) = match self.folder.start(None)? {
            NodeStart::Serves(node, client) => (node, client),
            NodeStart::Hangs => {
                return Ok(Finding::new(TamperVerdict::Hung, "the node neither serves nor ends"));
            }
            NodeStart::Ended(status) if status.code() == Some(1) => {
                let verdict = if reported { TamperVerdict::Refused } else { TamperVerdict::Unseen };
                return Ok(Finding::new(verdict, self.end("the node", status)));
            }
            NodeStart::Ended(status) => {
                return Ok(Finding::new(TamperVerdict::Crashed, self.end("the node", status)));
            }
        };
        let answers = match ask(&mut client) {
            Ok(answers) => answers,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Finding::new(TamperVerdict::Hung, "a reply never came"));
            }
            Err(error) => {
                let log = self.folder.log();
                return Ok(Finding::new(TamperVerdict::Crashed, format!("{error}; {}", last_line(&log))));
            }
        };
        drop(node);
        let wrong = answers.iter().find(|answer| answer.error().is_none() && !answer.is_right(&image.values));
        if let Some(wrong) = wrong {
            return Ok(Finding::new(TamperVerdict::Wrong, wrong.to_string()));
        }
        let error = answers.iter().find(|answer| answer.error().is_some());
        Ok(match (error, reported) {
            (None, false) => Finding::new(TamperVerdict::Harmless, ""),
            (None, true) => Finding::new(TamperVerdict::Reported, ""),
            (Some(_), true) => Finding::new(TamperVerdict::Errors, ""),
            (Some(error), false) => Finding::new(TamperVerdict::Unseen, error.to_string()),
        })
    }

    fn end(&self, program: &str, status: ExitStatus) -> String {
        format!("{program} ended with {status}: {}", last_line(&self.folder.log()))
    }

    /// Writes the image where the file differs from it, then the damage.
    fn write(&mut self, image: &FlashImage, damage: &Damage) -> io::Result<()> {
        let path = self.folder.flash();
        if !self.is_written {
            std::fs::write(&path, &image.bytes)?;
            self.is_written = true;
        }
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        file.set_len(image.bytes.len() as u64)?;
        let found = std::fs::read(&path)?;
        for (number, (found, wanted)) in
            found.chunks(CHUNK_BYTES).zip(image.bytes.chunks(CHUNK_BYTES)).enumerate()
        {
            if found != wanted {
                file.write_all_at(wanted, (number * CHUNK_BYTES) as u64)?;
            }
        }
        for (at, bytes) in &damage.writes {
            file.write_all_at(bytes, *at as u64)?;
        }
        file.set_len(damage.bytes as u64)
    }
}

fn last_line(log: &str) -> &str {
    log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing")
}
