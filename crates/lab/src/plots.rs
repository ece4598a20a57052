//! The plots of published runs, as SVG.
//!
//! Input: outcomes as `headwater lab run NAME --json` prints them. Output: one SVG for each plot of the table of plots whose
//! experiment is among the runs. Invariant: every point of a plot is a row of its run; equal runs give equal text, so that a
//! published plot is compared byte by byte.

mod svg;

use crate::figures::FiguresError;
use serde_json::Value;
use svg::{BarGroup, PlotAxis, PlotBar, PlotSeries, bar_plot, line_plot};

/// A plot as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlotFile {
    /// The name of its file: `move-study-curves.svg`.
    pub name: String,
    /// The SVG.
    pub svg: String,
}

/// A plot of the rows of an experiment.
struct PlotSpec {
    experiment: &'static str,
    name: &'static str,
    title: &'static str,
    /// A column that only the rows of the plot have, and its value if it has several.
    rows: (&'static str, Option<&'static str>),
    form: PlotForm,
}

/// The form of a plot, with the columns of its rows.
enum PlotForm {
    /// A line for each series.
    Lines { series: &'static str, x: (&'static str, PlotAxis), y: (&'static str, PlotAxis) },
    /// A bar for each row, from `low` or the start of the axis to `value`; the column `note`, where it is one, stands behind.
    Bars {
        group: &'static str,
        label: &'static str,
        low: Option<&'static str>,
        value: (&'static str, PlotAxis),
    },
}

const BYTES: PlotAxis = PlotAxis::Bytes;
const CROSS_RATES: PlotForm =
    PlotForm::Lines { series: "series", x: ("bytes", BYTES), y: ("gb_per_s", PlotAxis::Logarithmic("GB/s")) };
const CROSS_BREAK_EVEN: PlotForm =
    PlotForm::Bars { group: "flow", label: "step", low: None, value: ("break_even_bytes", BYTES) };

/// All plots.
const PLOTS: [PlotSpec; 9] = [
    PlotSpec {
        experiment: "move-model",
        name: "move-model-ladder",
        title: "Rate of eight cores with one rule after another (MODEL)",
        rows: ("rung", None),
        form: PlotForm::Bars {
            group: "machine",
            label: "rung",
            low: None,
            value: ("gb_per_s", PlotAxis::Linear("GB/s")),
        },
    },
    PlotSpec {
        experiment: "move-study",
        name: "move-study-curves",
        title: "Rate of copies by length and way, DSA (MODEL)",
        rows: ("part", Some("curve")),
        form: PlotForm::Lines {
            series: "series",
            x: ("bytes", BYTES),
            y: ("gb_per_s", PlotAxis::Logarithmic("GB/s")),
        },
    },
    PlotSpec {
        experiment: "move-study",
        name: "move-study-break-even",
        title: "Shortest copy that offload does faster than the CPU; no bar: none (MODEL)",
        rows: ("part", Some("break-even")),
        form: PlotForm::Bars {
            group: "machine",
            label: "step",
            low: None,
            value: ("break_even_bytes", BYTES),
        },
    },
    PlotSpec {
        experiment: "move-study",
        name: "move-study-depth",
        title: "Break-even by jobs in flight, one DSA channel (MODEL)",
        rows: ("part", Some("depth")),
        form: PlotForm::Lines {
            series: "series",
            x: ("jobs_in_flight", PlotAxis::Logarithmic("jobs in flight")),
            y: ("break_even_bytes", BYTES),
        },
    },
    PlotSpec {
        experiment: "move-study",
        name: "move-study-ranges",
        title: "Range of the break-even where nothing is published (MODEL)",
        rows: ("part", Some("range")),
        form: PlotForm::Bars {
            group: "jobs",
            label: "dimension",
            low: Some("lowest_break_even_bytes"),
            value: ("highest_break_even_bytes", BYTES),
        },
    },
    PlotSpec {
        experiment: "move-cross",
        name: "move-cross-channels",
        title: "Rate by size, channels and depth, DRAM to DRAM, channels of the same node (MODEL)",
        rows: ("part", Some("rates by channels and depth")),
        form: CROSS_RATES,
    },
    PlotSpec {
        experiment: "move-cross",
        name: "move-cross-directions",
        title: "Rate by size, direction and DDIO, one channel of the same node, waited for (MODEL)",
        rows: ("part", Some("rates by direction and DDIO")),
        form: CROSS_RATES,
    },
    PlotSpec {
        experiment: "move-cross",
        name: "move-cross-break-even-same-node",
        title: "Break-even after each optimisation, channels of the same node; no bar: none to 256 KiB (MODEL)",
        rows: ("plot", Some("break-even, same node")),
        form: CROSS_BREAK_EVEN,
    },
    PlotSpec {
        experiment: "move-cross",
        name: "move-cross-break-even-other-node",
        title: "Break-even after each optimisation, channels of the other node; no bar: none to 256 KiB (MODEL)",
        rows: ("plot", Some("break-even, other node")),
        form: CROSS_BREAK_EVEN,
    },
];

/// Returns the names of the plots of an experiment, with their titles.
pub(crate) fn plots_of(experiment: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    PLOTS.iter().filter(move |plot| plot.experiment == experiment).map(|plot| (plot.name, plot.title))
}

/// Draws the plots of runs: pairs of a file name and its text.
///
/// # Errors
/// [`FiguresError`] names the file that is no run.
pub fn render_plots(runs: &[(String, String)]) -> Result<Vec<PlotFile>, FiguresError> {
    let mut plots = Vec::new();
    for (file, text) in runs {
        let run: Value = serde_json::from_str(text)
            .map_err(|error| FiguresError::Json { file: file.clone(), reason: error.to_string() })?;
        let missing = |field| FiguresError::Field { file: file.clone(), field };
        let experiment = run["experiment"].as_str().ok_or_else(|| missing("experiment"))?;
        let rows = run["rows"].as_array().ok_or_else(|| missing("rows"))?;
        let drawn = PLOTS.iter().filter(|plot| plot.experiment == experiment);
        plots.extend(drawn.map(|plot| PlotFile { name: format!("{}.svg", plot.name), svg: plot.draw(rows) }));
    }
    Ok(plots)
}

impl PlotSpec {
    fn draw(&self, rows: &[Value]) -> String {
        let (column, value) = self.rows;
        let is_chosen = |row: &&Value| {
            let found = row[column].as_str();
            found.is_some() && (value.is_none() || found == value)
        };
        let rows: Vec<&Value> = rows.iter().filter(is_chosen).collect();
        match self.form {
            PlotForm::Lines { series, x, y } => {
                let mut lines: Vec<PlotSeries> = Vec::new();
                for row in rows {
                    let name = row[series].as_str().unwrap_or_default();
                    if !lines.iter().any(|line| line.name == name) {
                        lines.push(PlotSeries { name: name.to_owned(), points: Vec::new() });
                    }
                    let line = lines.iter_mut().find(|line| line.name == name);
                    if let (Some(line), Some(x), Some(y)) = (line, row[x.0].as_f64(), row[y.0].as_f64()) {
                        line.points.push((x, y));
                    }
                }
                line_plot(self.title, (x.1, y.1), &lines)
            }
            PlotForm::Bars { group, label, low, value } => {
                let mut groups: Vec<BarGroup> = Vec::new();
                for row in rows {
                    let name = row[group].as_str().unwrap_or_default();
                    if groups.last().is_none_or(|last| last.name != name) {
                        groups.push(BarGroup { name: name.to_owned(), bars: Vec::new() });
                    }
                    let bar = PlotBar {
                        label: row[label].as_str().unwrap_or_default().to_owned(),
                        low: low.and_then(|low| row[low].as_f64()),
                        value: row[value.0].as_f64(),
                        note: row["note"].as_str().unwrap_or_default().to_owned(),
                    };
                    groups.iter_mut().last().into_iter().for_each(|last| last.bars.push(bar.clone()));
                }
                bar_plot(self.title, value.1, &groups)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn study(rows: &Value) -> Vec<(String, String)> {
        let run = serde_json::json!({"experiment": "move-study", "rows": rows});
        vec![("a.json".to_owned(), run.to_string())]
    }

    #[test]
    fn plots_have_exactly_the_rows_of_their_part() {
        let rows = serde_json::json!([
            {"part": "curve", "series": "CPU", "bytes": 64, "gb_per_s": 5.0},
            {"part": "curve", "series": "CPU", "bytes": 128, "gb_per_s": 6.0},
            {"part": "curve", "series": "DSA <1>", "bytes": 64, "gb_per_s": 0.5},
            {"part": "break-even", "machine": "DSA", "step": "lists", "break_even_bytes": 320},
            {"part": "break-even", "machine": "DSA", "step": "missing", "break_even_bytes": null},
        ]);
        let plots = render_plots(&study(&rows)).unwrap();
        let named = |name: &str| &plots.iter().find(|plot| plot.name == name).unwrap().svg;
        let curves = named("move-study-curves.svg");
        assert_eq!(curves.matches("<polyline").count(), 2);
        assert!(curves.contains("DSA &lt;1&gt;") && !curves.contains("lists"));
        let bars = named("move-study-break-even.svg");
        assert_eq!(bars.matches("<rect class=\"bar\"").count(), 1);
        assert!(bars.contains(">320<") && bars.contains(">missing<") && !bars.contains("DSA &lt;"));
    }

    #[test]
    fn plots_of_the_cross_have_the_rows_that_name_them() {
        let rates = "rates by direction and DDIO";
        let near = "break-even, same node";
        let run = serde_json::json!({"experiment": "move-cross", "rows": [
            {"part": "cross", "bytes": 256, "gb_per_s": 1.0},
            {"part": rates, "series": "a", "bytes": 256, "gb_per_s": 1.0},
            {"part": "break-even", "plot": near, "flow": "a", "step": "b", "break_even_bytes": 512},
            {"part": "break-even", "plot": null, "flow": null, "step": "b", "break_even_bytes": 768},
        ]});
        let plots = render_plots(&[("a.json".to_owned(), run.to_string())]).unwrap();
        assert_eq!(plots.len(), plots_of("move-cross").count());
        let count = |name: &str, mark: &str| {
            plots.iter().find(|plot| plot.name == name).unwrap().svg.matches(mark).count()
        };
        assert_eq!(count("move-cross-channels.svg", "<polyline"), 0);
        assert_eq!(count("move-cross-directions.svg", "<polyline"), 1);
        assert_eq!(count("move-cross-break-even-same-node.svg", "<rect class=\"bar\""), 1);
        assert_eq!(count("move-cross-break-even-other-node.svg", "<rect class=\"bar\""), 0);
    }

    #[test]
    fn file_that_is_no_run_is_named() {
        let broken = [("a.json".to_owned(), "[".to_owned())];
        assert!(matches!(render_plots(&broken), Err(FiguresError::Json { file, .. }) if file == "a.json"));
        let empty = [("b.json".to_owned(), "{\"experiment\": \"io\"}".to_owned())];
        let missing = FiguresError::Field { file: "b.json".to_owned(), field: "rows" };
        assert_eq!(render_plots(&empty), Err(missing));
    }

    #[test]
    fn published_plots_are_exactly_what_their_runs_say() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/figures");
        let mut published = Vec::new();
        let mut runs = Vec::new();
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("svg") => published.push(name),
                Some("json") => runs.push((name, fs::read_to_string(&path).unwrap())),
                _ => panic!("{name} is neither a run nor a plot"),
            }
        }
        let drawn = render_plots(&runs).unwrap();
        for plot in &drawn {
            let text = fs::read_to_string(folder.join(&plot.name)).unwrap();
            assert!(text == plot.svg, "{}: write it again: `make figures`", plot.name);
        }
        published.retain(|name| drawn.iter().all(|plot| plot.name != *name));
        assert!(published.is_empty(), "no run has these plots: {published:?}");
    }
}
