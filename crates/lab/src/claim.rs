//! A claim: a promised goal, the value that this run measured, the baseline, and whether the claim holds.
//!
//! Input: a goal and a value, or the reason why there is none.
//! Output: one JSON object `{name, goal, value, unit, label, baseline, holds}`, with `why` added if there is no value.
//! Invariant: without a finite value a claim does not hold.

use serde::{Serialize, Serializer};
use std::fmt;

/// The bound that a value must meet for its claim to hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClaimGoal {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

impl ClaimGoal {
    /// Returns true if a value meets the goal.
    #[must_use]
    pub fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }
}

impl fmt::Display for ClaimGoal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(limit) => write!(f, "<= {limit}"),
            Self::AtLeast(limit) => write!(f, ">= {limit}"),
        }
    }
}

impl Serialize for ClaimGoal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The kind of evidence behind a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum EvidenceLabel {
    /// Measured on this machine, in this run.
    Measured,
    /// The mechanism ran and worked, on a substitute whose speed is not representative.
    Functional,
    /// Computed by a model in virtual time.
    Model,
}

impl fmt::Display for EvidenceLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Measured => "MEASURED",
            Self::Functional => "FUNCTIONAL",
            Self::Model => "MODEL",
        })
    }
}

/// One promise and its measured value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabClaim {
    /// Its name, prefixed with the number of its part: `p1.resp.p16.get.100`.
    pub name: String,
    /// The bound that the value must meet.
    pub goal: ClaimGoal,
    /// The measured value; `None` if the comparison could not run.
    pub value: Option<f64>,
    /// The unit of the value.
    pub unit: &'static str,
    /// The kind of evidence.
    pub label: EvidenceLabel,
    /// The baseline, with its own figure.
    pub baseline: String,
    /// True if the value meets the goal.
    pub holds: bool,
    /// The reason why there is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl LabClaim {
    /// Creates a claim with a measured value. A value that is not finite counts as none.
    #[must_use]
    pub fn found(
        name: impl Into<String>,
        goal: ClaimGoal,
        (value, unit): (f64, &'static str),
        label: EvidenceLabel,
        baseline: impl Into<String>,
    ) -> Self {
        let baseline = baseline.into();
        if !value.is_finite() {
            return Self {
                baseline,
                label,
                ..Self::not_run(name, goal, unit, "the measurement gave no finite number")
            };
        }
        Self {
            name: name.into(),
            goal,
            value: Some(value),
            unit,
            label,
            baseline,
            holds: goal.is_met_by(value),
            why: None,
        }
    }

    /// Creates a claim whose comparison could not run, with the reason.
    #[must_use]
    pub fn not_run(
        name: impl Into<String>,
        goal: ClaimGoal,
        unit: &'static str,
        why: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            goal,
            value: None,
            unit,
            label: EvidenceLabel::Measured,
            baseline: "not run".to_owned(),
            holds: false,
            why: Some(why.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_holds_only_if_its_value_meets_its_goal() {
        let at = |goal, value| {
            LabClaim::found("p1.x", goal, (value, "ratio"), EvidenceLabel::Measured, "floor").holds
        };
        assert!(at(ClaimGoal::AtMost(0.8), 0.8));
        assert!(!at(ClaimGoal::AtMost(0.8), 0.81));
        assert!(at(ClaimGoal::AtLeast(1.15), 1.15));
        assert!(!at(ClaimGoal::AtLeast(1.15), 1.14));
    }

    #[test]
    fn claim_with_a_non_finite_value_never_holds() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let claim = LabClaim::found(
                "p1.x",
                ClaimGoal::AtMost(1.0),
                (value, "ratio"),
                EvidenceLabel::Model,
                "floor",
            );
            assert!(!claim.holds);
            assert_eq!(claim.value, None);
            assert_eq!(claim.label, EvidenceLabel::Model);
            assert!(claim.why.is_some());
        }
    }

    #[test]
    fn claim_serializes_to_the_documented_json_object() {
        let claim =
            LabClaim::found("p1.x", ClaimGoal::AtMost(0.8), (0.5, "ratio"), EvidenceLabel::Measured, "redis");
        let json = serde_json::to_value(&claim).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "name": "p1.x", "goal": "<= 0.8", "value": 0.5, "unit": "ratio", "label": "MEASURED",
                "baseline": "redis", "holds": true
            })
        );
        let missing =
            serde_json::to_value(LabClaim::not_run("p1.y", ClaimGoal::AtLeast(1.0), "ratio", "no peer"))
                .unwrap();
        assert_eq!(missing["value"], serde_json::Value::Null);
        assert_eq!(missing["holds"], false);
        assert_eq!(missing["why"], "no peer");
    }
}
