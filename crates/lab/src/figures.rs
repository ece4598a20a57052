//! The page of figures, written from the JSON of runs.
//!
//! Input: outcomes as `headwater lab run NAME --json` prints them. Output: a Markdown page with one table an experiment:
//! claim, goal, value, label, baseline; with the machine, the date and the command of the run above it, and its plots below
//! it. Invariant: every figure on the page stands in a run; a value that is missing shows its reason, and a quick run says
//! that it is short.

use crate::plots::plots_of;
use serde_json::Value;
use std::fmt::Write as _;

/// A run that the page cannot be written from.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FiguresError {
    /// The text is no JSON.
    #[error("{file} is no JSON ({reason}): write it with `headwater lab run NAME --json > FILE`")]
    Json {
        /// The file.
        file: String,
        /// The parser's message.
        reason: String,
    },
    /// A field is missing or has another type.
    #[error("{file} has no `{field}`: write it again with `headwater lab run NAME --json > FILE`")]
    Field {
        /// The file.
        file: String,
        /// The field.
        field: &'static str,
    },
    /// Two files hold runs of one experiment.
    #[error("{file} is a second run of the experiment `{experiment}`: keep one of the two")]
    Twice {
        /// The second file.
        file: String,
        /// The experiment.
        experiment: String,
    },
    /// No run was given.
    #[error("no run was given: name the JSON files of the runs")]
    NoRuns,
}

/// The opening of the page.
const OPENING: &str = "\
# Figures

`headwater lab figures` writes this page from the runs in `docs/figures/`; it is not edited. Each figure is a claim that its
command measures again on your machine, beside its baseline, in the same run. `MEASURED` is time on the machine that is
named; `FUNCTIONAL` is a count that any machine finds; `MODEL` is virtual time. A value in bold misses its goal;
[missed-goals.md](missed-goals.md) says why. A run marked *short* was made with `--quick`: fewer rounds, the same claims.
";

/// Returns the page for the runs: pairs of a file name and its text.
///
/// # Errors
/// [`FiguresError`] names the file that is no run, or the experiment that occurs twice.
pub fn render_figures(runs: &[(String, String)]) -> Result<String, FiguresError> {
    let mut page = OPENING.to_owned();
    let mut seen: Vec<String> = Vec::new();
    for (file, text) in runs {
        let run = parse_run(file, text)?;
        let run = RunRecord { file, value: &run };
        let experiment = run.text("experiment")?;
        if seen.iter().any(|earlier| earlier == experiment) {
            return Err(FiguresError::Twice { file: file.clone(), experiment: experiment.to_owned() });
        }
        seen.push(experiment.to_owned());
        page.push_str(&section(&run)?);
    }
    if seen.is_empty() { Err(FiguresError::NoRuns) } else { Ok(page) }
}

/// Parses the JSON of a run.
pub(crate) fn parse_run(file: &str, text: &str) -> Result<Value, FiguresError> {
    serde_json::from_str(text)
        .map_err(|error| FiguresError::Json { file: file.to_owned(), reason: error.to_string() })
}

/// One run or one claim of it, with the file it came from.
pub(crate) struct RunRecord<'a> {
    /// The file.
    pub(crate) file: &'a str,
    /// The JSON object.
    pub(crate) value: &'a Value,
}

impl<'a> RunRecord<'a> {
    /// Returns the error that names a missing field.
    pub(crate) fn missing(&self, field: &'static str) -> FiguresError {
        FiguresError::Field { file: self.file.to_owned(), field }
    }

    /// Returns the text of a field.
    pub(crate) fn text(&self, field: &'static str) -> Result<&'a str, FiguresError> {
        self.value[field].as_str().ok_or_else(|| self.missing(field))
    }
}

fn section(run: &RunRecord<'_>) -> Result<String, FiguresError> {
    let machine = &run.value["machine"];
    let cpu = machine["cpu"].as_str().ok_or_else(|| run.missing("machine.cpu"))?;
    let kernel = machine["kernel"].as_str().ok_or_else(|| run.missing("machine.kernel"))?;
    let cores = machine["cores"].as_u64().ok_or_else(|| run.missing("machine.cores"))?;
    let claims = run.value["claims"].as_array().ok_or_else(|| run.missing("claims"))?;
    let short =
        if run.value["quick"].as_bool().ok_or_else(|| run.missing("quick"))? { ", *short*" } else { "" };
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "\n## {}\n\n`{}`, {}{short}. {cpu}, {cores} cores, Linux {kernel}.\n\n",
        run.text("experiment")?,
        run.text("command")?,
        run.text("date")?
    );
    out.push_str("| claim | goal | value | label | baseline |\n| --- | --- | --- | --- | --- |\n");
    for claim in claims {
        let claim = RunRecord { file: run.file, value: claim };
        let _ = writeln!(
            out,
            "| `{}` | {} {} | {} | {} | {} |",
            claim.text("name")?,
            claim.text("goal")?,
            claim.text("unit")?,
            value_of(&claim),
            claim.text("label")?,
            cell(claim.text("baseline")?)
        );
    }
    for (name, title) in plots_of(run.text("experiment")?) {
        let _ = write!(out, "\n![{title}](figures/{name}.svg)\n");
    }
    Ok(out)
}

/// Returns the value of a claim, in bold if it misses its goal, or the reason why there is none.
fn value_of(claim: &RunRecord<'_>) -> String {
    let holds = claim.value["holds"].as_bool() == Some(true);
    match claim.value["value"].as_f64() {
        Some(value) if holds => crate::report::format_number(value),
        Some(value) => format!("**{}**", crate::report::format_number(value)),
        None => format!("not measured: {}", cell(claim.value["why"].as_str().unwrap_or("no reason given"))),
    }
}

/// Returns a text that fits a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn run(name: &str) -> (String, String) {
        let text = serde_json::json!({
            "experiment": name, "command": "headwater lab run x --quick", "date": "2026-11-22", "quick": true,
            "machine": {"cpu": "A CPU", "cores": 2, "kernel": "6.1"},
            "rows": [],
            "claims": [
                {"name": "p1.a", "goal": "<= 1", "value": 0.5, "unit": "ratio", "label": "MEASURED",
                 "baseline": "a | b", "holds": true},
                {"name": "p1.b", "goal": "<= 1", "value": 2.0, "unit": "ratio", "label": "MODEL",
                 "baseline": "c", "holds": false},
                {"name": "p1.c", "goal": "<= 1", "value": null, "unit": "us", "label": "MEASURED",
                 "baseline": "not run", "holds": false, "why": "no peer"},
            ],
        });
        (format!("{name}.json"), text.to_string())
    }

    #[test]
    fn page_shows_each_claim_with_machine_date_and_command() {
        let page = render_figures(&[run("device")]).unwrap();
        for line in [
            "## device",
            "`headwater lab run x --quick`, 2026-11-22, *short*. A CPU, 2 cores, Linux 6.1.",
            "| `p1.a` | <= 1 ratio | 0.500 | MEASURED | a \\| b |",
            "| `p1.b` | <= 1 ratio | **2.00** | MODEL | c |",
            "| `p1.c` | <= 1 us | not measured: no peer | MEASURED | not run |",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn file_that_is_no_run_is_named() {
        let broken = ("a.json".to_owned(), "{".to_owned());
        assert!(
            matches!(render_figures(&[broken]), Err(FiguresError::Json { file, .. }) if file == "a.json")
        );
        let empty = ("b.json".to_owned(), "{}".to_owned());
        assert_eq!(
            render_figures(&[empty]),
            Err(FiguresError::Field { file: "b.json".to_owned(), field: "experiment" })
        );
        assert_eq!(render_figures(&[]), Err(FiguresError::NoRuns));
        assert!(matches!(render_figures(&[run("io"), run("io")]), Err(FiguresError::Twice { .. })));
    }

    #[test]
    fn published_page_is_exactly_what_its_runs_say() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let mut files: Vec<_> =
            fs::read_dir(docs.join("figures")).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
        files.sort();
        let runs: Vec<_> = files
            .iter()
            .map(|file| (file.display().to_string(), fs::read_to_string(file).unwrap()))
            .collect();
        let page = fs::read_to_string(docs.join("figures.md")).unwrap();
        assert!(page == render_figures(&runs).unwrap(), "write it again: `make figures`");
    }
}
