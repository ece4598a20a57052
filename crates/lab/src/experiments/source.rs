//! The counts of the source itself: words, summaries, names, layers, walks, and instructions of a read.
//!
//! Input: a checkout, in the current folder; `cargo xtask tidy --report` there, and the recorded instruction counts.
//! Output: one claim a count. They are counts, so any machine finds the same.

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::report::ReportRow;
use std::fs;
use std::process::Command;

/// The counts that the instruction gate compares with, from the root of a checkout.
const RECORDED: &str = "tests/instructions/recorded";

/// A claim, the line of the report that holds its value, its goal and its unit.
type CountedClaim = (&'static str, &'static str, ClaimGoal, &'static str);

const CLAIMS: &[CountedClaim] = &[
    ("p5.words.refused", "refused_words", ClaimGoal::AtMost(0.0), "words"),
    ("p5.summaries.questions", "question_summaries", ClaimGoal::AtMost(0.0), "summaries"),
    ("p5.types.one_word", "one_word_types_percent", ClaimGoal::AtMost(40.0), "% of types"),
    ("p5.types.defined", "one_word_type_defined_most", ClaimGoal::AtMost(2.0), "definitions of one name"),
    ("p5.imports.cycle", "import_cycle_longest", ClaimGoal::AtMost(6.0), "files"),
    ("p5.walk.get", "walk_files_get", ClaimGoal::AtMost(14.0), "files"),
    ("p5.walk.read", "walk_files_read", ClaimGoal::AtMost(9.0), "files"),
    ("p5.commits.subjects", "commit_subjects_over_72", ClaimGoal::AtMost(0.0), "subjects"),
    ("p5.readme.lines", "readme_lines", ClaimGoal::AtMost(120.0), "lines"),
    ("p5.instructions.depth_32", "instructions_depth_32", ClaimGoal::AtMost(713.0), "instructions a read"),
    ("p5.instructions.depth_1", "instructions_depth_1", ClaimGoal::AtMost(1_040.0), "instructions a read"),
];

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "source",
    summary: "counts of the source: refused words, summaries, names, cycles, walks, instructions of a read",
    baseline: "the counts at 48b7a75, before part 5",
    claims: &["p5.*"],
    run,
};

fn run(_context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let mut report = tidy_report()?;
    let recorded = fs::read_to_string(RECORDED).map_err(|_| outside())?;
    for depth in ["depth_1", "depth_32"] {
        // The file counts the instructions of a thousand reads.
        if let Some(thousand) = value_of(&recorded, &depth.replace('_', " ")) {
            report.push_str(&format!("\ninstructions_{depth} {}", thousand / 1_000.0));
        }
    }
    let mut findings = ExperimentFindings::default();
    for &(name, line, goal, unit) in CLAIMS {
        let value = value_of(&report, line);
        findings.rows.push(ReportRow::new().with("count", line).with("value", value));
        findings.claims.push(match value {
            Some(value) => {
                LabClaim::found(name, goal, (value, unit), EvidenceLabel::Functional, baseline_of(line))
            }
            None => LabClaim::not_run(name, goal, unit, format!("the report has no number for `{line}`")),
        });
    }
    Ok(findings)
}

/// Runs the report in the checkout that is the current folder.
fn tidy_report() -> Result<String, LabError> {
    if fs::metadata("xtask/Cargo.toml").is_err() {
        return Err(outside());
    }
    let done = Command::new("cargo")
        .args(["run", "--quiet", "--package", "xtask", "--", "tidy", "--report"])
        .output()
        .map_err(|source| LabError::Io { what: "run cargo", source })?;
    if !done.status.success() {
        let reason = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        return Err(LabError::Measure { program: "cargo xtask tidy --report".to_owned(), reason });
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

fn outside() -> LabError {
    LabError::Measure {
        program: "cargo xtask tidy --report".to_owned(),
        reason: "the current folder is no checkout of Headwater: run the experiment from the root of one"
            .to_owned(),
    }
}

/// Returns the number of a line `name number`.
fn value_of(report: &str, line: &str) -> Option<f64> {
    let rest = report.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns the count at the commit before part 5.
fn baseline_of(line: &str) -> &'static str {
    match line {
        "refused_words" => "622 in comments",
        "question_summaries" => "19 % of doc comments",
        "one_word_types_percent" => "60 %",
        "one_word_type_defined_most" => "15",
        "import_cycle_longest" => "33 in the device crate",
        "walk_files_get" => "33",
        "walk_files_read" => "18",
        "commit_subjects_over_72" => "89 of 339",
        "readme_lines" => "193",
        "instructions_depth_32" => "792",
        _ => "1155",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_read_by_its_whole_name() {
        let report = "walk_files_get 14\nrefused_words 3\ncommit_subjects_over_72 unknown (no history)\n";
        assert_eq!(value_of(report, "refused_words"), Some(3.0));
        assert_eq!(value_of(report, "walk_files"), None);
        assert_eq!(value_of(report, "commit_subjects_over_72"), None);
    }

    #[test]
    fn every_claim_has_a_name_of_its_own() {
        let mut names: Vec<_> = CLAIMS.iter().map(|claim| claim.0).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CLAIMS.len());
    }
}
