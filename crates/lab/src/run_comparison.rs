//! The comparison of two runs of one experiment, claim by claim.
//!
//! Input: two outcomes as `headwater lab run NAME --json` prints them, and the difference that two values may have.
//! Output: for each claim of both runs both values, their ratio, and whether they agree; with the baseline of the second run
//! and the ratio to the first run behind each of its numbers. Peers, canned replies and floors that differ as the value does
//! show that the machine differed, and not the product.
//! Invariant: the order of the runs does not decide if they agree; a claim without a value in one of them is not compared.

use crate::figures::{FiguresError, RunRecord, parse_run};
use crate::report::{align, format_number};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;

/// The reason why two runs cannot be compared.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ComparisonError {
    /// A file holds no run.
    #[error(transparent)]
    Run(#[from] FiguresError),
    /// The runs are of different experiments.
    #[error(
        "one run is of the experiment `{first}`, the other of `{second}`: name two runs of one experiment"
    )]
    Experiments {
        /// The experiment of the first run.
        first: String,
        /// The experiment of the second run.
        second: String,
    },
    /// No claim has a value in both runs.
    #[error("no claim has a value in both runs: `why` in {first} and {second} says what was missing")]
    NothingCompared {
        /// The first file.
        first: String,
        /// The second file.
        second: String,
    },
}

/// The result of comparing the two values of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimAgreement {
    /// They differ by no more than is permitted.
    Within,
    /// They differ by more.
    Outside,
    /// One of them was not measured.
    Missing,
}

/// One claim of two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedClaim {
    /// Its name.
    pub name: String,
    /// The value in the first run.
    pub first: Option<f64>,
    /// The value in the second run.
    pub second: Option<f64>,
    /// The second value over the first one; `None` if there is no finite one.
    pub ratio: Option<f64>,
    /// The unit of the values.
    pub unit: String,
    /// The result of comparing the values.
    pub agreement: ClaimAgreement,
    /// The baseline of the second run, with the ratio to the first one behind each number that differs.
    pub baseline: String,
}

/// The circumstances of one of the compared runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedRun {
    /// Its file.
    pub file: String,
    /// The command that ran it.
    pub command: String,
    /// The day, UTC.
    pub date: String,
    /// The processor.
    pub cpu: String,
    /// Load average at its start, if the file states it.
    pub load_1m: Option<f64>,
}

/// Two compared runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunComparison {
    /// The experiment.
    pub experiment: String,
    /// The permitted difference, as a share of the lower value.
    pub within: f64,
    /// The runs.
    pub runs: [ComparedRun; 2],
    /// The claims of both, in the order of the first run.
    pub claims: Vec<ComparedClaim>,
    /// The names of claims that only one run has.
    pub unpaired: Vec<String>,
}

impl RunComparison {
    /// Returns true if no claim is outside of the permitted difference.
    #[must_use]
    pub fn is_within(&self) -> bool {
        self.claims.iter().all(|claim| claim.agreement != ClaimAgreement::Outside)
    }
}

/// Compares two runs: pairs of a file name and its text. Values agree if the higher one is at most `1 + within` times the
/// lower one.
///
/// # Errors
/// [`ComparisonError`] if a file is no run, the experiments differ, or no claim has two values.
pub fn compare_runs(
    first: &(String, String),
    second: &(String, String),
    within: f64,
) -> Result<RunComparison, ComparisonError> {
    let (first_json, second_json) = (parse_run(&first.0, &first.1)?, parse_run(&second.0, &second.1)?);
    let first = RunRecord { file: &first.0, value: &first_json };
    let second = RunRecord { file: &second.0, value: &second_json };
    let experiment = first.text("experiment")?;
    if experiment != second.text("experiment")? {
        return Err(ComparisonError::Experiments {
            first: experiment.to_owned(),
            second: second.text("experiment")?.to_owned(),
        });
    }
    let (before, after) = (claims_of(&first)?, claims_of(&second)?);
    let mut claims = Vec::new();
    let mut unpaired = Vec::new();
    for claim in &before {
        match after.iter().find(|other| other.name == claim.name) {
            Some(other) => claims.push(compare_claim(claim, other, within)),
            None => unpaired.push(claim.name.to_owned()),
        }
    }
    let is_new = |claim: &&RunClaim<'_>| before.iter().all(|other| other.name != claim.name);
    unpaired.extend(after.iter().filter(is_new).map(|claim| claim.name.to_owned()));
    if claims.iter().all(|claim| claim.agreement == ClaimAgreement::Missing) {
        let (first, second) = (first.file.to_owned(), second.file.to_owned());
        return Err(ComparisonError::NothingCompared { first, second });
    }
    Ok(RunComparison {
        experiment: experiment.to_owned(),
        within,
        runs: [run_of(&first)?, run_of(&second)?],
        claims,
        unpaired,
    })
}

/// A claim as a run states it.
struct RunClaim<'a> {
    name: &'a str,
    unit: &'a str,
    baseline: &'a str,
    value: Option<f64>,
}

fn claims_of<'a>(run: &RunRecord<'a>) -> Result<Vec<RunClaim<'a>>, FiguresError> {
    let claims = run.value["claims"].as_array().ok_or_else(|| run.missing("claims"))?;
    let read = |value: &'a Value| -> Result<RunClaim<'a>, FiguresError> {
        let claim = RunRecord { file: run.file, value };
        Ok(RunClaim {
            name: claim.text("name")?,
            unit: claim.text("unit")?,
            baseline: claim.text("baseline")?,
            value: claim.value["value"].as_f64(),
        })
    };
    claims.iter().map(read).collect()
}

fn run_of(run: &RunRecord<'_>) -> Result<ComparedRun, FiguresError> {
    let machine = &run.value["machine"];
    Ok(ComparedRun {
        file: run.file.to_owned(),
        command: run.text("command")?.to_owned(),
        date: run.text("date")?.to_owned(),
        cpu: machine["cpu"].as_str().ok_or_else(|| run.missing("machine.cpu"))?.to_owned(),
        load_1m: machine["load_1m"].as_f64(),
    })
}

fn compare_claim(first: &RunClaim<'_>, second: &RunClaim<'_>, within: f64) -> ComparedClaim {
    let (ratio, agreement) = match (first.value, second.value) {
        (Some(before), Some(after)) => agreement_of(before, after, within),
        _ => (None, ClaimAgreement::Missing),
    };
    ComparedClaim {
        name: first.name.to_owned(),
        first: first.value,
        second: second.value,
        ratio,
        unit: second.unit.to_owned(),
        agreement,
        baseline: compared_baseline(first.baseline, second.baseline),
    }
}

/// Returns the second value over the first one if that is a number, and whether the two agree.
fn agreement_of(first: f64, second: f64, within: f64) -> (Option<f64>, ClaimAgreement) {
    if first.total_cmp(&second).is_eq() {
        return (Some(1.0), ClaimAgreement::Within);
    }
    let ratio = second / first;
    let is_within = ratio > 0.0 && ratio.max(ratio.recip()) <= 1.0 + within;
    let agreement = if is_within { ClaimAgreement::Within } else { ClaimAgreement::Outside };
    (ratio.is_finite().then_some(ratio), agreement)
}

/// Returns the second baseline with the ratio to the first one behind each number that differs, and the earlier text behind
/// each other word that differs.
fn compared_baseline(first: &str, second: &str) -> String {
    let (before, after): (Vec<&str>, Vec<&str>) = (first.split(' ').collect(), second.split(' ').collect());
    if before.len() != after.len() {
        return format!("{second} (was: {first})");
    }
    let words: Vec<String> =
        before.iter().zip(after).map(|(before, after)| compared_word(before, after)).collect();
    words.join(" ")
}

fn compared_word(before: &str, after: &str) -> String {
    if before == after {
        return after.to_owned();
    }
    let end = after.trim_end_matches(PUNCTUATION).len();
    let (word, mark) = after.split_at(end);
    match number_in(before).zip(number_in(after)).map(|(before, after)| after / before) {
        Some(ratio) if ratio.is_finite() => format!("{word} (x{ratio:.2}){mark}"),
        _ => format!("{word} (was {}){mark}", before.trim_end_matches(PUNCTUATION)),
    }
}

/// The marks that may follow a number in a baseline.
const PUNCTUATION: [char; 4] = [';', ',', ':', ')'];

fn number_in(word: &str) -> Option<f64> {
    let number = word.trim_start_matches('(').trim_end_matches(PUNCTUATION);
    number.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Renders a comparison for a terminal.
#[must_use]
pub fn render_comparison(comparison: &RunComparison) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    for (name, run) in ["first", "second"].into_iter().zip(&comparison.runs) {
        let load = run.load_1m.map_or_else(|| "unknown".to_owned(), |load| format!("{load:.2}"));
        let _ =
            writeln!(out, "{name}: {}, `{}`, {}, {}, load {load}", run.file, run.command, run.date, run.cpu);
    }
    out.push('\n');
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), format_number);
    let head = ["claim", "first", "second", "ratio", "agree", "unit", "baseline of the second (x ratio)"];
    let row = |claim: &ComparedClaim| {
        vec![
            claim.name.clone(),
            number(claim.first),
            number(claim.second),
            number(claim.ratio),
            match claim.agreement {
                ClaimAgreement::Within => "yes",
                ClaimAgreement::Outside => "NO",
                ClaimAgreement::Missing => "-",
            }
            .to_owned(),
            claim.unit.clone(),
            claim.baseline.clone(),
        ]
    };
    out.push_str(&align(&head.map(str::to_owned), comparison.claims.iter().map(row).collect()));
    let of = |agreement| comparison.claims.iter().filter(|claim| claim.agreement == agreement).count();
    let (outside, missing) = (of(ClaimAgreement::Outside), of(ClaimAgreement::Missing));
    let _ = writeln!(
        out,
        "\n{outside} of {} claims differ by more than {} %",
        comparison.claims.len() - missing,
        format_number(comparison.within * 100.0)
    );
    if missing > 0 {
        let _ = writeln!(out, "{missing} claims were not measured in one of the runs");
    }
    for name in &comparison.unpaired {
        let _ = writeln!(out, "{name}: only one run has this claim");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(experiment: &str, values: &[(&str, Option<f64>)], baseline: &str) -> (String, String) {
        let claims: Vec<_> = values
            .iter()
            .map(|(name, value)| {
                serde_json::json!({
                    "name": name, "goal": "<= 1", "value": value, "unit": "ratio", "label": "MEASURED",
                    "baseline": baseline, "holds": false
                })
            })
            .collect();
        let text = serde_json::json!({
            "experiment": experiment, "command": "headwater lab run x --quick", "date": "2026-11-28", "quick": true,
            "machine": {"cpu": "A CPU", "cores": 2, "kernel": "6.1", "load_1m": 0.5},
            "rows": [], "claims": claims,
        });
        (format!("{experiment}.json"), text.to_string())
    }

    fn agreement(first: f64, second: f64) -> ClaimAgreement {
        let of = |value| run("resp", &[("p1.a", Some(value))], "floor");
        compare_runs(&of(first), &of(second), 0.1).unwrap().claims[0].agreement
    }

    #[test]
    fn values_agree_within_the_bound_in_both_orders() {
        for (first, second, expected) in [
            (1.0, 1.09, ClaimAgreement::Within),
            (1.0, 1.11, ClaimAgreement::Outside),
            (0.0, 0.0, ClaimAgreement::Within),
            (0.0, 0.1, ClaimAgreement::Outside),
            (-1.0, 1.0, ClaimAgreement::Outside),
            (-1.0, -1.05, ClaimAgreement::Within),
        ] {
            assert_eq!(agreement(first, second), expected, "{first} {second}");
            assert_eq!(agreement(second, first), expected, "{second} {first}");
        }
    }

    #[test]
    fn claim_that_differs_is_found_beside_those_that_agree() {
        let first = run("resp", &[("p1.a", Some(1.0)), ("p1.b", Some(2.0)), ("p1.c", None)], "floor");
        let second = run("resp", &[("p1.d", Some(1.0)), ("p1.b", Some(1.5)), ("p1.a", Some(1.05))], "floor");
        let comparison = compare_runs(&first, &second, 0.1).unwrap();
        assert!(!comparison.is_within());
        let found: Vec<_> =
            comparison.claims.iter().map(|claim| (claim.name.as_str(), claim.agreement)).collect();
        assert_eq!(found, [("p1.a", ClaimAgreement::Within), ("p1.b", ClaimAgreement::Outside)]);
        assert_eq!(comparison.claims[1].ratio, Some(0.75));
        assert_eq!(comparison.unpaired, ["p1.c", "p1.d"]);
        let text = render_comparison(&comparison);
        assert!(text.contains("1 of 2 claims differ by more than 10.00 %"), "{text}");
        assert!(text.contains("p1.d: only one run has this claim"), "{text}");
        assert!(compare_runs(&first, &second, 0.5).unwrap().is_within());
    }

    #[test]
    fn baseline_shows_what_differs_beside_the_product() {
        let before = "redis-server 7.0.15 at 2.00 us an operation; canned replies 1.00 us (2 cores)";
        let after = "redis-server 7.2.4 at 2.20 us an operation; canned replies 1.50 us (2 cores)";
        assert_eq!(
            compared_baseline(before, after),
            "redis-server 7.2.4 (was 7.0.15) at 2.20 (x1.10) us an operation; canned replies 1.50 (x1.50) us (2 cores)"
        );
        assert_eq!(compared_baseline("floor, 10;", "floor, 15;"), "floor, 15 (x1.50);");
        assert_eq!(compared_baseline("not run", "at 3 ns"), "at 3 ns (was: not run)");
        assert_eq!(compared_baseline("0 us", "2 us"), "2 (was 0) us");
    }

    #[test]
    fn claim_without_a_value_is_not_compared() {
        let first = run("resp", &[("p1.a", Some(1.0)), ("p1.b", None)], "floor");
        let second = run("resp", &[("p1.a", Some(1.0)), ("p1.b", Some(3.0))], "floor");
        let comparison = compare_runs(&first, &second, 0.0).unwrap();
        assert!(comparison.is_within());
        assert_eq!(comparison.claims[1].agreement, ClaimAgreement::Missing);
        assert!(render_comparison(&comparison).contains("1 claims were not measured"));
        let nothing = run("resp", &[("p1.a", None)], "not run");
        let error = compare_runs(&nothing, &second, 0.1).unwrap_err();
        assert!(matches!(error, ComparisonError::NothingCompared { .. }), "{error}");
    }

    #[test]
    fn runs_of_two_experiments_and_files_without_a_run_are_refused() {
        let resp = run("resp", &[("p1.a", Some(1.0))], "floor");
        let error = compare_runs(&resp, &run("io", &[("p1.a", Some(1.0))], "floor"), 0.1).unwrap_err();
        assert!(matches!(error, ComparisonError::Experiments { .. }), "{error}");
        let broken = ("a.json".to_owned(), "{}".to_owned());
        let error = compare_runs(&resp, &broken, 0.1).unwrap_err();
        assert!(error.to_string().contains("a.json has no `experiment`"), "{error}");
    }
}
