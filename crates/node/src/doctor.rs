//! `headwater doctor`: what this machine offers, what of it is used, why not, and the command that would change it.
//!
//! In: the system's own words: /proc, /sys, system calls. Out: [`Finding`]s. Nothing is changed and nothing needs root.

pub mod device_scan;
pub mod machine;
pub mod memory;
pub mod storage;

use serde::Serialize;
use std::fmt;
use std::path::Path;

/// Whether something is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is there and used.
    Active,
    /// It is not; something slower stands in.
    StandIn,
    /// It only informs.
    Note,
    /// It will get in the way.
    Problem,
}

/// One thing looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What.
    pub what: &'static str,
    /// Whether it is used.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// Why it matters or why it is not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The command that would change it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
}

impl Finding {
    /// Something found.
    pub fn new(what: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { what, verdict, found: found.into(), why: None, change: None }
    }

    /// With a reason.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// With the command that would change it.
    #[must_use]
    pub fn change(mut self, change: impl Into<String>) -> Self {
        self.change = Some(change.into());
        self
    }
}

/// Looks at everything; `data` is where a node's data would lie.
#[must_use]
pub fn examine(data: &Path) -> Vec<Finding> {
    let mut findings = machine::examine();
    findings.extend(storage::examine(data));
    findings
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.verdict {
            Verdict::Active => "active  ",
            Verdict::StandIn => "stand-in",
            Verdict::Note => "note    ",
            Verdict::Problem => "PROBLEM ",
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
