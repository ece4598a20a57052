//! Result rows, and the rendering of an outcome for a terminal.
//!
//! Input: rows of named cells; the name of a number ends with its unit.
//! Output: JSON objects, or tables with aligned columns. Consecutive rows with the same columns share a table.

use crate::ExperimentOutcome;
use crate::claim::LabClaim;
use crate::experiment::LabExperiment;
use crate::measure::SampleSpread;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::fmt::Write as _;

/// One value of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum RowCell {
    /// A text.
    Text(String),
    /// A count.
    Count(u64),
    /// A measured number.
    Number(f64),
    /// A median with its lowest and highest; in JSON an object of the three.
    Spread(SampleSpread),
    /// Not measured.
    Missing,
}

impl RowCell {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => count.to_string(),
            Self::Number(number) => format_number(*number),
            Self::Spread(spread) => {
                format!(
                    "{} [{}..{}]",
                    format_number(spread.median),
                    format_number(spread.min),
                    format_number(spread.max)
                )
            }
            Self::Missing => "-".to_owned(),
        }
    }
}

impl Serialize for RowCell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Count(count) => serializer.serialize_u64(*count),
            Self::Number(number) if number.is_finite() => serializer.serialize_f64(*number),
            Self::Spread(spread) => spread.serialize(serializer),
            Self::Number(_) | Self::Missing => serializer.serialize_none(),
        }
    }
}

impl From<&str> for RowCell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for RowCell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for RowCell {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<f64> for RowCell {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl<T: Into<RowCell>> From<Option<T>> for RowCell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Missing, Into::into)
    }
}

impl From<SampleSpread> for RowCell {
    fn from(spread: SampleSpread) -> Self {
        Self::Spread(spread)
    }
}

/// One measurement, as named cells in display order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportRow(Vec<(&'static str, RowCell)>);

impl ReportRow {
    /// Creates a row without cells.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the row with one more cell.
    #[must_use]
    pub fn with(mut self, column: &'static str, cell: impl Into<RowCell>) -> Self {
        self.0.push((column, cell.into()));
        self
    }

    /// Returns the cell of a column.
    #[must_use]
    pub fn get(&self, column: &str) -> Option<&RowCell> {
        self.0.iter().find(|(name, _)| *name == column).map(|(_, cell)| cell)
    }

    fn columns(&self) -> Vec<&'static str> {
        self.0.iter().map(|(name, _)| *name).collect()
    }
}

impl Serialize for ReportRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, cell) in &self.0 {
            map.serialize_entry(name, cell)?;
        }
        map.end()
    }
}

/// Renders an outcome for a terminal.
#[must_use]
pub fn render_table(outcome: &ExperimentOutcome) -> String {
    let machine = &outcome.machine;
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{}: {}, {} cores, {} MiB, {}, Linux {}, scratch on {}, load {:.2}, {} build\n",
        outcome.experiment,
        machine.cpu,
        machine.cores,
        machine.ram_bytes >> 20,
        machine.caches,
        machine.kernel,
        machine.scratch,
        machine.load_1m,
        machine.build
    );
    for rows in outcome.rows.chunk_by(|a, b| a.columns() == b.columns()) {
        let head: Vec<String> = rows[0].columns().iter().map(|name| (*name).to_owned()).collect();
        let body = rows.iter().map(|row| row.0.iter().map(|(_, cell)| cell.text()).collect());
        out.push_str(&align(&head, body.collect()));
        out.push('\n');
    }
    let head = ["claim", "goal", "value", "unit", "label", "holds", "against"].map(str::to_owned);
    out.push_str(&align(&head, outcome.claims.iter().map(claim_cells).collect()));
    for claim in &outcome.claims {
        if let Some(why) = &claim.why {
            let _ = writeln!(out, "{}: not measured: {why}", claim.name);
        }
    }
    out
}

/// Renders the list of experiments for a terminal.
#[must_use]
pub fn render_list(experiments: &[LabExperiment]) -> String {
    let head = ["experiment", "measures", "against", "claims"].map(str::to_owned);
    let body = experiments
        .iter()
        .map(|e| vec![e.name.to_owned(), e.summary.to_owned(), e.baseline.to_owned(), e.claims.join(" ")])
        .collect();
    align(&head, body)
}

fn claim_cells(claim: &LabClaim) -> Vec<String> {
    vec![
        claim.name.clone(),
        claim.goal.to_string(),
        claim.value.map_or_else(|| "-".to_owned(), format_number),
        claim.unit.to_owned(),
        claim.label.to_string(),
        if claim.holds { "yes" } else { "NO" }.to_owned(),
        claim.baseline.clone(),
    ]
}

/// Formats a number with about three significant digits.
pub(crate) fn format_number(number: f64) -> String {
    let size = number.abs();
    if number == 0.0 || !number.is_finite() || size >= 1_000.0 {
        format!("{number:.0}")
    } else if size >= 100.0 {
        format!("{number:.1}")
    } else if size >= 1.0 {
        format!("{number:.2}")
    } else {
        format!("{number:.3}")
    }
}

/// Returns a table with aligned columns.
pub(crate) fn align(head: &[String], body: Vec<Vec<String>>) -> String {
    let mut widths: Vec<usize> = head.iter().map(|name| name.chars().count()).collect();
    for row in &body {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut out = String::new();
    for row in [head.to_vec(), rule].iter().chain(&body) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_serializes_to_an_object_in_column_order() {
        let row = ReportRow::new()
            .with("server", "ours")
            .with("ops", 3_u64)
            .with("cpu_us", 1.5)
            .with("flushes_per_s", None::<f64>);
        let json = serde_json::to_string(&row).unwrap();
        assert_eq!(json, r#"{"server":"ours","ops":3,"cpu_us":1.5,"flushes_per_s":null}"#);
        assert_eq!(row.get("ops"), Some(&RowCell::Count(3)));
    }

    #[test]
    fn non_finite_number_serializes_to_null() {
        assert_eq!(serde_json::to_string(&RowCell::Number(f64::NAN)).unwrap(), "null");
    }

    #[test]
    fn columns_are_aligned() {
        let text = align(&["a".to_owned(), "b".to_owned()], vec![vec!["long".to_owned(), "x".to_owned()]]);
        assert_eq!(text, "a     b\n----  -\nlong  x\n");
    }

    #[test]
    fn numbers_have_about_three_digits() {
        let shown: Vec<String> =
            [0.0, 0.1234, 1.234, 123.45, 98765.4].into_iter().map(format_number).collect();
        assert_eq!(shown, ["0", "0.123", "1.23", "123.5", "98765"]);
    }
}
