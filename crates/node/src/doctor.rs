//! `headwater doctor`: reports the features of this machine that are used or not, the reasons, and commands to enable
//! them.
//!
//! Input: /proc, /sys and system calls. Output: [`DoctorFinding`]s. Nothing is changed and nothing needs root.

pub mod device_scan;
pub mod machine;
pub mod memory;
pub mod mover;
pub mod mover_choices;
pub mod storage;
pub mod tiers;

use serde::Serialize;
use std::fmt;
use std::path::Path;

/// The assessment of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingVerdict {
    /// Available and used.
    Active,
    /// Not available; a slower substitute is used.
    StandIn,
    /// For information.
    Note,
    /// An invalid setting, or a fault that keeps a node from working.
    Problem,
}

/// The result for one feature or limit of the machine.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorFinding {
    /// Name of the feature or limit.
    pub what: &'static str,
    /// Its assessment.
    pub verdict: FindingVerdict,
    /// Its state.
    pub found: String,
    /// The reason why it matters or why it is not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The command that changes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
}

impl DoctorFinding {
    /// Returns a finding without a reason and a command.
    pub fn new(what: &'static str, verdict: FindingVerdict, found: impl Into<String>) -> Self {
        Self { what, verdict, found: found.into(), why: None, change: None }
    }

    /// Adds a reason.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// Adds the command that changes the state.
    #[must_use]
    pub fn change(mut self, change: impl Into<String>) -> Self {
        self.change = Some(change.into());
        self
    }
}

/// Examines the machine and the disk under `data`, the data directory of a node.
#[must_use]
pub fn examine(data: &Path) -> Vec<DoctorFinding> {
    let mut findings = machine::examine();
    findings.extend(tiers::examine());
    findings.extend(storage::examine(data));
    findings
}

impl fmt::Display for DoctorFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.verdict {
            FindingVerdict::Active => "active  ",
            FindingVerdict::StandIn => "stand-in",
            FindingVerdict::Note => "note    ",
            FindingVerdict::Problem => "PROBLEM ",
        };
        write!(f, "{mark}  {:<16} {}", self.what, self.found)?;
        for (label, text) in [("why", &self.why), ("change", &self.change)] {
            if let Some(text) = text {
                write!(f, "\n{:28}{label}: {text}", "")?;
            }
        }
        Ok(())
    }
}
